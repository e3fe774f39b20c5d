"""A small server on the loopback that speaks as a provider does: scripted, and as strict as its documents.

A script is a list of answers, and an answer is a list of parts: a text is the next delta; `Think`, `Call`,
`Search` and `Found` are what they say; a callable is called before the next part; `ENDLESS` are words without
end, and `SILENCE` is nothing more, both until the client hangs up; `MUTE` comes first, and is silence without
even a status.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, Self

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

ENDLESS: Final = object()
SILENCE: Final = object()
MUTE: Final = object()

GIVEN_UP_AFTER_SECONDS = 20.0
PAUSE_SECONDS = 0.01


@dataclass(frozen=True)
class Think:
    """Reasoning, complete with what the provider wants to see of it again; `cut` leaves that out."""

    text: str
    id: str = "1"
    cut: bool = False


@dataclass(frozen=True)
class Call:
    """A call for the client, its arguments in two pieces."""

    name: str
    args: str = "{}"
    id: str = "call-1"


@dataclass(frozen=True)
class Search:
    """A search that the provider runs itself; its result is a `Found`."""

    query: str
    id: str = "1"


@dataclass(frozen=True)
class Found:
    """The result of a search."""

    query: str
    id: str = "1"


Said = str | Think | Call | Search | Found
Part = Said | Callable[[], Any] | object


class RefusedError(Exception):
    """What the provider says to a request that breaks its rules."""


class FakeAPI:
    """The server; what it was sent is in `received`, what it refused in `refused`."""

    media_type = "text/event-stream"
    paths: tuple[str, ...] = ("/{path:path}",)

    def __init__(self) -> None:
        self.url = ""
        self.reset()

    def reset(self) -> None:
        """Forgets the script and what was written down, for the next test."""
        self.script: deque[tuple[Part, ...]] = deque()
        self.received: list[Any] = []
        self.refused: list[str] = []
        self.hung_up = 0
        """How many streams the client closed before their end."""

        self.is_down = False

    def says(self, *parts: Part) -> Self:
        """Adds an answer."""
        self.script.append(parts)
        return self

    def model(self, **options: Any) -> Any:
        """Returns the provider's own client, pointed at this server."""
        raise NotImplementedError

    def check(self, body: Any, request: Request) -> None:
        """Raises `RefusedError` for a request that the provider's documents forbid."""

    def refusal(self, message: str) -> Response:
        return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, 400)

    def writer(self, body: Any) -> Writer:
        raise NotImplementedError

    async def _serve(self, request: Request) -> Response:
        response = await self._answer(request)
        # One connection for each request: none is left over when a test's event loop ends.
        response.headers["connection"] = "close"
        return response

    async def _answer(self, request: Request) -> Response:
        body = await request.json()
        self.received.append(body)
        if self.is_down:
            return JSONResponse({"error": {"message": "overloaded"}}, 503)
        try:
            self.check(body, request)
        except RefusedError as refused:
            self.refused.append(str(refused))
            return self.refusal(str(refused))
        parts = self.script.popleft() if self.script else ("There is no more in the script.",)
        if parts and parts[0] is MUTE:
            return await self._say_nothing(request, parts[1:])
        if not self.is_stream(body, request):
            return self.whole(body, [part for part in parts if isinstance(part, str)])
        stream = self._stream(request, self.writer(body), parts)
        return StreamingResponse(stream, media_type=self.media_type)

    async def _say_nothing(self, request: Request, parts: tuple[Part, ...]) -> Response:
        for part in parts:
            if callable(part):
                await run_in_threadpool(part)
        until = time.monotonic() + GIVEN_UP_AFTER_SECONDS
        while not await request.is_disconnected() and time.monotonic() < until:
            await asyncio.sleep(PAUSE_SECONDS)
        self.hung_up += 1
        return Response(status_code=503)

    def is_stream(self, body: Any, request: Request) -> bool:
        return bool(body.get("stream", True))

    def whole(self, body: Any, texts: list[str]) -> Response:
        raise NotImplementedError

    async def _stream(
        self, request: Request, writer: Writer, parts: tuple[Part, ...]
    ) -> AsyncIterator[bytes]:
        ended = False
        try:
            for event in writer.start():
                yield event
            for part in parts:
                if part is ENDLESS or part is SILENCE:
                    until = time.monotonic() + GIVEN_UP_AFTER_SECONDS
                    while not await request.is_disconnected() and time.monotonic() < until:
                        if part is ENDLESS:
                            for event in writer.write("word "):
                                yield event
                        await asyncio.sleep(PAUSE_SECONDS)
                    return
                if isinstance(part, Said):
                    for event in writer.write(part):
                        yield event
                    await asyncio.sleep(0)
                elif callable(part):
                    await asyncio.sleep(PAUSE_SECONDS)
                    await run_in_threadpool(part)
            for event in writer.end():
                yield event
            ended = True
        finally:
            if not ended:
                self.hung_up += 1

    def wait_until_hung_up(self, times: int = 1) -> None:
        """Returns when the client has closed that many streams; fails if it does not."""
        until = time.monotonic() + 5
        while self.hung_up < times:
            assert time.monotonic() < until, f"{self.hung_up} of {times} streams were closed"
            time.sleep(0.005)

    def __enter__(self) -> Self:
        routes = [Route(path, self._serve, methods=["POST"]) for path in self.paths]
        config = uvicorn.Config(
            Starlette(routes=routes), host="127.0.0.1", port=0, log_level="error", lifespan="off"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name=type(self).__name__, daemon=True)
        self._thread.start()
        until = time.monotonic() + 10
        while not self._server.started:
            assert self._thread.is_alive()
            assert time.monotonic() < until
            time.sleep(0.005)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(10)


class Writer:
    """Says one answer in the provider's own events."""

    def start(self) -> list[bytes]:
        return []

    def write(self, part: Said) -> list[bytes]:
        raise NotImplementedError

    def end(self) -> list[bytes]:
        return []


def refuse(condition: object, message: str) -> None:
    if condition:
        raise RefusedError(message)
