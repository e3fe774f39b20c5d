"""Stands between a client and a server, and cuts their connections when a test says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class CuttingProxy:
    """A TCP proxy; `url` is its own, and `cut()` ends all connections as a broken network does."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""
        self.cuts = 0
        self.heads = 0
        """Of how many event streams (or websockets) to come no more than the head is let through."""

        self.server: asyncio.Server | None = None

    def cut(self) -> None:
        self.cuts += 1
        for writer in list(self._writers):
            writer.transport.abort()

    def stop(self) -> None:
        """Ends all connections, and takes no new ones, as a server that was killed."""
        assert self.server is not None
        self.server.close()
        self.cut()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ours = {writer}
        try:
            there = await asyncio.open_connection(self._target.hostname, self._target.port)
            ours.add(there[1])
            self._writers |= ours
            await asyncio.gather(_pass(reader, there[1]), self._pass_back(there[0], writer))
        except OSError:
            pass
        finally:
            self._tasks.discard(task)
            self._writers -= ours
            for each in ours:
                each.transport.abort()

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            head, end, _ = data.partition(b"\r\n\r\n")
            is_stream = b"text/event-stream" in head.lower() or head.startswith(b"HTTP/1.1 101")
            if self.heads and is_stream:
                self.heads -= 1
                writer.write(head + end)
                await writer.drain()
                self.cut()
                return
            writer.write(data)
            await writer.drain()
        writer.close()

    async def close(self) -> None:
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def cutting_proxy(target: str) -> AsyncIterator[CuttingProxy]:
    """Runs a proxy to this server."""
    proxy = CuttingProxy(target)
    server = proxy.server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        proxy.url = f"http://127.0.0.1:{port}"
        yield proxy
    finally:
        server.close()
        await proxy.close()
