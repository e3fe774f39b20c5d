"""Bedrock's Converse, whose streams are frames of AWS's own binary encoding."""

from __future__ import annotations

import json
import re
import struct
import zlib
from typing import Any

from langchain_aws import ChatBedrockConverse
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from providers.api import Call, FakeAPI, Think, Writer, refuse


def frame(event: str, payload: dict[str, Any]) -> bytes:
    """Returns one event of `application/vnd.amazon.eventstream`."""
    headers = b"".join(
        struct.pack("!B", len(name))
        + name.encode()
        + b"\x07"
        + struct.pack("!H", len(value))
        + value.encode()
        for name, value in (
            (":event-type", event),
            (":content-type", "application/json"),
            (":message-type", "event"),
        )
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(body), len(headers))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + body
    return message + struct.pack("!I", zlib.crc32(message))


class Converse(FakeAPI):
    """`/model/{model}/converse-stream`."""

    media_type = "application/vnd.amazon.eventstream"

    def __init__(self) -> None:
        super().__init__()
        self.signatures: dict[str, str] = {}
        self._model: ChatBedrockConverse | None = None

    def model(self, **options: Any) -> ChatBedrockConverse:
        known = {
            "model": "anthropic.claude-3-7-sonnet-20250219-v1:0",
            "region_name": "us-east-1",
            "endpoint_url": self.url,
            "aws_access_key_id": "x",
            "aws_secret_access_key": "x",
        }
        if self._model is None or options:  # it takes seconds to read what AWS has to offer
            self._model = ChatBedrockConverse(**{**known, **options})
        return self._model

    def refusal(self, message: str) -> Response:
        return JSONResponse({"message": message}, 400, {"x-amzn-ErrorType": "ValidationException"})

    def is_stream(self, body: Any, request: Request) -> bool:
        return request.url.path.endswith("converse-stream")

    def check(self, body: Any, request: Request) -> None:
        messages = body["messages"]
        refuse(messages[0]["role"] != "user", "A conversation must start with a user message.")
        refuse(messages[-1]["role"] != "user", "The conversation must end with a user message.")
        waiting: set[str] = set()
        for place, message in enumerate(messages):
            content, at = message["content"], f"messages.{place}.content"
            refuse(place and messages[place - 1]["role"] == message["role"], f"{at}: roles must alternate")
            refuse(not content, f"The content field in the Message object at messages.{place} is empty.")
            for block in content:
                if "text" in block:
                    refuse(
                        not block["text"].strip(),
                        f"The text field in the ContentBlock object at {at} is blank.",
                    )
                elif "reasoningContent" in block:
                    text = block["reasoningContent"]["reasoningText"]
                    known = self.signatures.get(text.get("signature", ""))
                    refuse(known != text["text"], f"{at}: Invalid `signature` in `thinking` block")
                else:
                    refuse(
                        not block.keys() <= {"toolUse", "toolResult", "image", "document"},
                        f"{at}: unknown block {sorted(block)}",
                    )
            results = {block["toolResult"]["toolUseId"] for block in content if "toolResult" in block}
            refuse(waiting - results, f"Expected toolResult blocks at {at} for the following Ids: {waiting}")
            refuse(results - waiting, f"The number of toolResult blocks at {at} exceeds the previous turn's.")
            names = [block["toolUse"]["toolUseId"] for block in content if "toolUse" in block]
            waiting = set(names)
            refuse(len(waiting) < len(names), f"The toolUse blocks at {at} contain duplicate Ids: {names}")
            refuse(
                any(not re.fullmatch("[a-zA-Z0-9_.:-]+", name) for name in waiting), f"{at}: bad toolUseId"
            )
            refuse(
                (waiting or results) and not body.get("toolConfig"), "The toolConfig field must be defined."
            )

    def writer(self, body: Any) -> Writer:
        return _Events(self)


class _Events(Writer):
    def __init__(self, api: Converse) -> None:
        self._api = api
        self._index = -1
        self._kind = ""
        self._has_calls = False

    def _begin(self, kind: str, start: dict[str, Any] | None = None) -> list[bytes]:
        events = self._stop()
        self._index += 1
        self._kind = kind
        if start is not None:
            events.append(frame("contentBlockStart", {"contentBlockIndex": self._index, "start": start}))
        return events

    def _stop(self) -> list[bytes]:
        return [frame("contentBlockStop", {"contentBlockIndex": self._index})] if self._index >= 0 else []

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return frame("contentBlockDelta", {"contentBlockIndex": self._index, "delta": delta})

    def start(self) -> list[bytes]:
        return [frame("messageStart", {"role": "assistant"})]

    def write(self, part: Any) -> list[bytes]:
        if isinstance(part, str):
            events = [] if self._kind == "text" else self._begin("text")
            return [*events, self._delta({"text": part})]
        if isinstance(part, Think):
            events = [*self._begin("thought"), self._delta({"reasoningContent": {"text": part.text}})]
            if not part.cut:
                signature = f"signature-{part.id}"
                self._api.signatures[signature] = part.text
                events.append(self._delta({"reasoningContent": {"signature": signature}}))
            return events
        assert isinstance(part, Call)
        self._has_calls = True
        return [
            *self._begin("call", {"toolUse": {"toolUseId": part.id, "name": part.name}}),
            self._delta({"toolUse": {"input": part.args}}),
        ]

    def end(self) -> list[bytes]:
        reason = "tool_use" if self._has_calls else "end_turn"
        usage = {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18}
        return [
            *self._stop(),
            frame("messageStop", {"stopReason": reason}),
            frame("metadata", {"usage": usage, "metrics": {"latencyMs": 1}}),
        ]
