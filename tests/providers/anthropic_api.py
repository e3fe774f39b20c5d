"""Anthropic's messages API."""

from __future__ import annotations

import json
from typing import Any

from langchain_anthropic import ChatAnthropic
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from providers.api import Call, FakeAPI, Found, Search, Think, Writer, refuse

KEYS = {
    "text": {"type", "text", "citations", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
    "tool_use": {"type", "id", "name", "input"},
    "server_tool_use": {"type", "id", "name", "input"},
    "web_search_tool_result": {"type", "tool_use_id", "content"},
    "tool_result": {"type", "tool_use_id", "content", "is_error"},
    "image": {"type", "source"},
}


class Messages(FakeAPI):
    """`/v1/messages`; `takes_prefill` is what the older models do."""

    def __init__(self, *, takes_prefill: bool = False) -> None:
        super().__init__()
        self.takes_prefill = takes_prefill
        self.signatures: dict[str, str] = {}

    def model(self, **options: Any) -> ChatAnthropic:
        known = {"base_url": self.url, "api_key": "x", "model": "claude-opus-4-7", "max_retries": 0}
        return ChatAnthropic(**{**known, **options})

    def refusal(self, message: str) -> Response:
        error = {"type": "invalid_request_error", "message": message}
        return JSONResponse({"type": "error", "error": error}, 400)

    def check(self, body: Any, request: Request) -> None:
        messages = body["messages"]
        refuse(not messages, "messages: at least one message is required")
        refuse(messages[0]["role"] != "user", 'messages: first message must use the "user" role')
        waiting: set[str] = set()
        calls: set[str] = set()
        for place, message in enumerate(messages):
            is_end = place == len(messages) - 1
            content = message["content"]
            if isinstance(content, str):
                content = [{"type": "text", "text": content}] if content else []
            refuse(
                not content and not (is_end and message["role"] == "assistant"),
                f"messages.{place}: all messages must have non-empty content except for the optional final "
                "assistant message",
            )
            self._check_blocks(f"messages.{place}", content)
            results = {block["tool_use_id"] for block in content if block["type"] == "tool_result"}
            refuse(
                waiting - results,
                f"messages.{place}: `tool_use` ids were found without `tool_result` blocks immediately "
                f"after: {waiting - results}",
            )
            refuse(
                results - waiting, f"messages.{place}: unexpected `tool_use_id` found: {results - waiting}"
            )
            names = [block["id"] for block in content if block["type"] == "tool_use"]
            waiting = set(names)
            refuse(
                len(waiting) < len(names) or waiting & calls,
                f"messages.{place}.content: `tool_use` ids must be unique",
            )
            calls |= waiting
        refuse(waiting, f"`tool_use` ids were found without `tool_result` blocks: {waiting}")
        last = messages[-1]
        if last["role"] == "assistant":
            refuse(
                not self.takes_prefill or (body.get("thinking") or {}).get("type") == "enabled",
                "This model does not support assistant message prefill. The conversation must end with a "
                "user message.",
            )
            text = (
                last["content"] if isinstance(last["content"], str) else last["content"][-1].get("text", "")
            )
            refuse(text != text.rstrip(), "final assistant content cannot end with trailing whitespace")

    def _check_blocks(self, where: str, content: list[dict[str, Any]]) -> None:
        found = {block.get("tool_use_id") for block in content if block["type"].endswith("_tool_result")}
        for place, block in enumerate(content):
            kind, at = block["type"], f"{where}.content.{place}"
            refuse(kind not in KEYS, f"{at}: Input tag '{kind}' found using 'type' does not match any tag")
            extra = block.keys() - KEYS[kind]
            refuse(extra, f"{at}.{kind}.{next(iter(extra), '')}: Extra inputs are not permitted")
            if kind == "text":
                refuse(not block["text"].strip(), "text content blocks must contain non-whitespace text")
            elif kind == "thinking":
                known = self.signatures.get(block.get("signature", ""))
                refuse(known != block["thinking"], f"{at}: Invalid `signature` in `thinking` block")
            elif kind == "server_tool_use":
                refuse(
                    block["id"] not in found,
                    f"{at}: `{block['name']}` tool use with id `{block['id']}` was found without a "
                    "corresponding result block",
                )

    def writer(self, body: Any) -> Writer:
        return _Blocks(self)


class _Blocks(Writer):
    def __init__(self, api: Messages) -> None:
        self._api = api
        self._index = -1
        self._in_text = False
        self._has_calls = False

    def _event(self, kind: str, **facts: Any) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **facts})}\n\n".encode()

    def _begin(self, block: dict[str, Any]) -> list[bytes]:
        events = self._stop()
        self._index += 1
        return [*events, self._event("content_block_start", index=self._index, content_block=block)]

    def _delta(self, **delta: Any) -> bytes:
        return self._event("content_block_delta", index=self._index, delta=delta)

    def _stop(self) -> list[bytes]:
        self._in_text = False
        return [self._event("content_block_stop", index=self._index)] if self._index >= 0 else []

    def start(self) -> list[bytes]:
        message: dict[str, Any] = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-opus-4-7",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 25, "output_tokens": 1},
        }
        return [self._event("message_start", message=message), self._event("ping")]

    def write(self, part: Any) -> list[bytes]:
        if isinstance(part, str):
            events = [] if self._in_text else self._begin({"type": "text", "text": ""})
            self._in_text = True
            return [*events, self._delta(type="text_delta", text=part)]
        if isinstance(part, Think):
            events = self._begin({"type": "thinking", "thinking": "", "signature": ""})
            events.append(self._delta(type="thinking_delta", thinking=part.text))
            if not part.cut:
                signature = f"signature-{part.id}"
                self._api.signatures[signature] = part.text
                events.append(self._delta(type="signature_delta", signature=signature))
            return events
        if isinstance(part, Search | Found):
            return self._search(part)
        assert isinstance(part, Call)
        self._has_calls = True
        half = len(part.args) // 2
        return [
            *self._begin({"type": "tool_use", "id": part.id, "name": part.name, "input": {}}),
            self._delta(type="input_json_delta", partial_json=part.args[:half]),
            self._delta(type="input_json_delta", partial_json=part.args[half:]),
        ]

    def _search(self, part: Search | Found) -> list[bytes]:
        name = f"srvtoolu_{part.id}"
        if isinstance(part, Search):
            use = {"type": "server_tool_use", "id": name, "name": "web_search", "input": {}}
            query = json.dumps({"query": part.query})
            return [*self._begin(use), self._delta(type="input_json_delta", partial_json=query)]
        page: dict[str, Any] = {"type": "web_search_result", "url": "https://example.com/", "title": "Cats"}
        page |= {"encrypted_content": "page-1", "page_age": None}
        return self._begin({"type": "web_search_tool_result", "tool_use_id": name, "content": [page]})

    def end(self) -> list[bytes]:
        delta: dict[str, Any] = {
            "stop_reason": "tool_use" if self._has_calls else "end_turn",
            "stop_sequence": None,
        }
        usage = {"input_tokens": 25, "output_tokens": 7}
        return [
            *self._stop(),
            self._event("message_delta", delta=delta, usage=usage),
            self._event("message_stop"),
        ]
