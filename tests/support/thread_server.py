"""What the server is to the middleware: an ASGI app with threads, which keeps what reaches it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from starlette.types import Message, Receive, Scope, Send

THREAD_ID = "6f1f54b4-2f0c-4f6e-8f6e-000000000001"
BOB = (b"authorization", b"Bearer bob")


class ThreadServer:
    """Knows one thread, owned by everybody but bob, and answers everything else with what it was sent."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, bytes]] = []
        self.headers: list[dict[bytes, bytes]] = []
        self.received: list[Message] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            self.received.append(message)
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        path = scope["path"]
        self.calls.append((scope["method"], path, body))
        self.headers.append(dict(scope["headers"]))
        if BOB in scope["headers"]:
            await answer(send, 403, {"detail": "not yours"})
        elif path.endswith(f"/threads/{THREAD_ID}") and scope["method"] in ("GET", "PATCH"):
            await answer(send, 200, {"thread_id": THREAD_ID, "status": "busy", "values": {"a": 1}})
        elif path.endswith(f"/threads/{THREAD_ID}/state") and b'"values":null' in body:
            await answer(send, 409, {"detail": f"Thread {THREAD_ID} has in-flight runs"})
        elif "/threads/" in path and path.count("/") - scope.get("root_path", "").count("/") == 2:
            await answer(send, 404, {"detail": "no such thread"})
        else:
            await answer(send, 200, {"echo": body.decode(errors="replace"), "path": path})

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"].upper()})


async def answer(send: Send, status: int, content: Any) -> None:
    headers = [(b"content-type", b"application/json"), (b"access-control-allow-origin", b"https://ui")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})


async def call(
    app: Any,
    method: str,
    path: str,
    chunks: Iterable[bytes] = (b"",),
    *,
    headers: Iterable[tuple[bytes, bytes]] = (),
    root_path: str = "",
    then: Iterable[Message] = (),
) -> tuple[int, dict[str, str], bytes, list[Message]]:
    """Calls an ASGI app as a server does; returns status, headers, body, and all messages it sent."""
    parts = list(chunks)
    messages: list[Message] = [
        {"type": "http.request", "body": part, "more_body": n < len(parts) - 1}
        for n, part in enumerate(parts)
    ]
    messages += then
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": root_path,
        "query_string": b"",
        "headers": list(headers),
    }
    await app(scope, receive, send)
    if not sent:
        return 0, {}, b"", sent
    body = b"".join(message.get("body", b"") for message in sent[1:])
    names = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], names, body, sent
