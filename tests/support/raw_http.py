"""An HTTP client as thin as it can be, so that a load test measures the server."""

from __future__ import annotations

import asyncio
import json
from typing import Any


class Connection:
    """One connection, which is kept open within `async with`."""

    def __init__(self, url: str) -> None:
        self._host, _, self._port = url.removeprefix("http://").partition(":")

    async def __aenter__(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection(self._host, int(self._port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def post(self, path: str, content: Any) -> tuple[int, Any]:
        body = json.dumps(content).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        status = int(answer.split(b" ", 2)[1])
        lines = answer.lower().split(b"\r\n")
        [length] = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
        return status, json.loads(await self._reader.readexactly(length))
