"""Mistral's chat completions."""

from __future__ import annotations

import json
import re
from typing import Any

from langchain_mistralai import ChatMistralAI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from providers.api import Call, FakeAPI, Think, Writer, refuse

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
FOLLOWS = {
    "system": {"user", "assistant", "system"},
    "user": {"assistant"},
    "assistant": {"user", "tool"},
    "tool": {"assistant", "tool"},
}


class Mistral(FakeAPI):
    """`/chat/completions`, with the order of roles that its error 3230 enforces."""

    def model(self, **options: Any) -> ChatMistralAI:
        known = {"base_url": f"{self.url}/v1", "api_key": "x", "model": "mistral-small", "max_retries": 1}
        return ChatMistralAI(**{**known, **options})

    def refusal(self, message: str) -> Response:
        error = {"object": "error", "message": message, "type": "invalid_request_message_order"}
        return JSONResponse({**error, "param": None, "code": "3230"}, 400)

    def check(self, body: Any, request: Request) -> None:
        before, waiting = None, 0
        known: list[str] = []
        for message in body["messages"]:
            role, calls = message["role"], message.get("tool_calls") or []
            if before is not None:
                refuse(role not in FOLLOWS[before], f"Unexpected role '{role}' after role '{before}'")
            if role == "tool":
                waiting -= 1
            else:
                refuse(waiting, "Not the same number of function calls and responses")
            refuse(waiting < 0, "Not the same number of function calls and responses")
            content = message.get("content")
            if role == "assistant":
                refuse(
                    bool(calls) == bool(content),
                    "Assistant message must have either content or tool_calls, but not both.",
                )
                waiting = len(calls)
                known += [call["id"] for call in calls]
                refuse(len({*known}) < len(known), "Duplicate tool call id in assistant message")
                for call in calls:
                    refuse(
                        not re.fullmatch("[a-zA-Z0-9]{9}", call["id"]), "Tool call id has to be 9 characters"
                    )
                    json.loads(call["function"]["arguments"])
            for block in content if isinstance(content, list) else ():
                kind = block["type"]
                refuse(kind not in ("text", "image_url", "thinking", "reference"), f"Invalid chunk: {kind}")
            before = role
        refuse(
            before not in ("user", "tool") and not body["messages"][-1].get("prefix"),
            f"Expected last role User or Tool (or Assistant with prefix True) for serving but got {before}",
        )
        refuse(waiting, "Not the same number of function calls and responses")

    def writer(self, body: Any) -> Writer:
        return _Chunks()

    def is_stream(self, body: Any, request: Request) -> bool:
        return bool(body.get("stream"))

    def whole(self, body: Any, texts: list[str]) -> Response:
        message = {"role": "assistant", "content": "".join(texts)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse({"id": "1", "model": "mistral-small", "choices": [choice], "usage": USAGE})


class _Chunks(Writer):
    def __init__(self) -> None:
        self._calls = 0

    def _data(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        data: dict[str, Any] = {"id": "1", "object": "chat.completion.chunk", "created": 1}
        data |= {"model": "mistral-small", "choices": [choice]}
        if finish:
            data["usage"] = USAGE
        return f"data: {json.dumps(data)}\n\n".encode()

    def start(self) -> list[bytes]:
        return [self._data({"role": "assistant", "content": ""})]

    def write(self, part: Any) -> list[bytes]:
        if isinstance(part, str):
            return [self._data({"content": part})]
        if isinstance(part, Think):
            thought = {"type": "thinking", "thinking": [{"type": "text", "text": part.text}]}
            return [self._data({"content": [thought]})]
        assert isinstance(part, Call)
        call = {"id": part.id, "index": self._calls, "function": {"name": part.name, "arguments": part.args}}
        self._calls += 1
        return [self._data({"content": "", "tool_calls": [call]})]

    def end(self) -> list[bytes]:
        return [self._data({"content": ""}, "tool_calls" if self._calls else "stop"), b"data: [DONE]\n\n"]
