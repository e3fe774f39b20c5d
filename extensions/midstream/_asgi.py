"""Calls within the server, and bodies that are handed on while they are read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from langgraph.checkpoint.base import BaseCheckpointSaver
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from midstream._update_body import KeyFinder

GetSaver: TypeAlias = Callable[[], Awaitable[BaseCheckpointSaver[Any]]]

MAX_HELD_BYTES = 32 * 2**20
"""An answer that is larger passes as it is."""

_OF_ONE_BODY = frozenset((b"content-length", b"etag", b"content-md5", b"digest", b"content-digest"))
"""Headers that are true of one body only."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server itself answered."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def is_ok(self) -> bool:
        return 200 <= self.status < 300

    def shared_headers(self) -> dict[str, str]:
        """Returns the headers that an answer to the same caller needs too: those of CORS.

        Our middleware stands outside the server's own CORS middleware, unless `middleware_order` says
        otherwise.
        """
        return {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in self.headers
            if name.lower().startswith(b"access-control-") or name.lower() == b"vary"
        }


class Replay:
    """Gives back what was read, message by message, and then whatever comes: a disconnect too."""

    def __init__(self, messages: deque[Message], receive: Receive) -> None:
        self._messages = messages
        self._receive = receive

    async def __call__(self) -> Message:
        return self._messages.popleft() if self._messages else await self._receive()


class Guard:
    """Stands between a large update and the server, which acts only when it has the whole body."""

    def __init__(self, finder: KeyFinder, receive: Replay, send: Send) -> None:
        self.has_started = False
        self._finder = finder
        self._unread = len(receive._messages)
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        message = await self._receive()
        if self._unread:
            self._unread -= 1
        elif message["type"] == "http.request" and self._finder.feed(message.get("body", b"")):
            return {"type": "http.disconnect"}
        return message

    async def send(self, message: Message) -> None:
        if self._finder.found and not self.has_started:
            return
        self.has_started = True
        await self._send(message)


class Hold:
    """Keeps a small JSON answer back until it is whole, to change it; every other answer passes as it comes.

    Args:
        send: Takes the answer.
        change: Returns another body for a whole one, or None to leave it.
    """

    def __init__(self, send: Send, change: Callable[[bytes], Awaitable[bytes | None]]) -> None:
        self._send = send
        self._change = change
        self._start: Message | None = None
        self._pieces: list[bytes] = []
        self._size = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_plain_json(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        elif message["type"] == "http.response.body":
            self._pieces.append(message.get("body", b""))
            self._size += len(self._pieces[-1])
            if not message.get("more_body", False):
                # Here, and not when the app returns, which has more to do before it does.
                await self._finish()
            elif self._size > MAX_HELD_BYTES:
                await self._let_go(more_body=True)
        else:
            await self._let_go(more_body=True)
            await self._send(message)

    async def _finish(self) -> None:
        assert self._start is not None
        # The one piece that it usually is, is not copied.
        body = await self._change(b"".join(self._pieces))
        if body is not None:
            headers = [
                (name, value)
                for name, value in self._start.get("headers", ())
                if name.lower() not in _OF_ONE_BODY
            ]
            headers.append((b"content-length", b"%d" % len(body)))
            self._start = {**self._start, "headers": headers}
            self._pieces = [body]
        await self._let_go()

    async def _let_go(self, *, more_body: bool = False) -> None:
        assert self._start is not None
        start, self._start = self._start, None
        await self._send(start)
        body = b"".join(self._pieces)
        self._pieces.clear()
        await self._send({"type": "http.response.body", "body": body, "more_body": more_body})


def _is_plain_json(start: Message) -> bool:
    headers = {name.lower(): value for name, value in start.get("headers", ())}
    return bool(
        start["status"] == 200
        and headers.get(b"content-type", b"").startswith(b"application/json")
        and headers.get(b"content-encoding", b"identity") == b"identity"
    )


class StraightLifespan(Starlette):
    """An app whose start and end go past its middleware, straight to its router.

    The server adds a middleware of its own that asks for the Store before it passes anything on, and so also
    before the start that opens the Store. The in-memory server makes one then; langgraph-runtime-pg raises,
    and no graph is ever loaded. Read from langgraph-api 0.11.1 and 0.16.7, `middleware.ensure_store`.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            scope["app"] = self
            await self.router(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


async def perform(app: ASGIApp, scope: Scope, body: bytes) -> Answer:
    """Makes one call of an app and returns its whole answer."""
    sent: list[Message] = []
    asked = False

    async def receive() -> Message:
        nonlocal asked
        if asked:
            await asyncio.get_running_loop().create_future()  # The caller stays until the answer is whole.
        asked = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = next(message for message in sent if message["type"] == "http.response.start")
    parts = [message.get("body", b"") for message in sent if message["type"] == "http.response.body"]
    return Answer(start["status"], list(start.get("headers", ())), b"".join(parts))
