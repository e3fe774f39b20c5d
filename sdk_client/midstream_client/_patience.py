"""Puts a frame of our own into a thread's stream that has said nothing for a while.

Seen with langgraph-api 0.16.7: nobody is told on the newer protocol that a run was rolled back, or has timed
out, and the SDK passes the server's heartbeats over. At this frame a reader looks at its run.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

QUIET_SECONDS = 2.5
"""Shorter than the 5 s from one heartbeat to the next, so that the first one in a silence counts."""

QUIET = "quiet"
"""The frame's method, which no server uses."""

FRAME = json.dumps({"method": QUIET})


class PatientClient:
    """An httpx client, of either kind, whose event streams say when they are quiet."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def send(self, request: httpx.Request, *, stream: bool) -> Any:
        response = self._client.send(request, stream=stream)
        response.stream = PatientBytes(response.stream)
        return response

    @asynccontextmanager
    async def stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        async with self._client.stream(*args, **options) as response:
            response.stream = PatientBytes(response.stream)
            yield response


class PatientBytes(httpx.AsyncByteStream, httpx.SyncByteStream):
    """The bytes of an event stream; a heartbeat that ends a silence brings the frame along."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._heard = time.monotonic()

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._inner:
            yield self._with_frame(chunk)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            yield self._with_frame(chunk)

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _with_frame(self, chunk: bytes) -> bytes:
        # A heartbeat is a comment, alone and whole; what is compressed is none.
        is_whole = chunk.startswith(b":") and chunk.endswith((b"\n\n", b"\r\n\r\n"))
        if not is_whole or b"data:" in chunk:
            self._heard = time.monotonic()
        elif time.monotonic() - self._heard >= QUIET_SECONDS:
            return chunk + f"data: {FRAME}\n\n".encode()
        return chunk


def patiently(connect: Callable[..., Any]) -> Callable[..., PatientSocket]:
    """Makes websockets that say when they are quiet."""
    return lambda *args, **options: PatientSocket(connect(*args, **options))


class PatientSocket:
    """A websocket, of either kind, that says when it is quiet; made of what `websockets.connect` returns."""

    def __init__(self, connecting: Any) -> None:
        self._connecting = connecting
        self._socket: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def __enter__(self) -> PatientSocket:
        self._socket = self._connecting.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._connecting.__exit__(*details)

    async def __aenter__(self) -> PatientSocket:
        self._socket = await self._connecting.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> None:
        await self._connecting.__aexit__(*details)

    def __iter__(self) -> Iterator[Any]:
        from websockets.exceptions import ConnectionClosedOK

        while True:
            try:
                yield self._socket.recv(QUIET_SECONDS)
            except TimeoutError:
                yield FRAME
            except ConnectionClosedOK:
                return

    async def __aiter__(self) -> AsyncIterator[Any]:
        from websockets.exceptions import ConnectionClosedOK

        while True:
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    frame = await self._socket.recv()
            except TimeoutError:
                frame = FRAME
            except ConnectionClosedOK:
                return
            yield frame
