"""OpenAI's two APIs: chat completions and Responses."""

from __future__ import annotations

import json
from typing import Any

from langchain_openai import ChatOpenAI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from providers.api import Call, FakeAPI, Found, Search, Think, Writer, refuse

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


class ChatCompletions(FakeAPI):
    """`/chat/completions`."""

    def model(self, **options: Any) -> ChatOpenAI:
        return ChatOpenAI(
            **{"base_url": f"{self.url}/v1", "api_key": "x", "model": "gpt-4o", "max_retries": 0, **options}
        )

    def check(self, body: Any, request: Request) -> None:
        waiting: list[str] = []
        for place, message in enumerate(body["messages"]):
            where, role, content = f"messages[{place}]", message["role"], message.get("content")
            if role == "tool":
                name = message["tool_call_id"]
                refuse(
                    name not in waiting,
                    "messages with role 'tool' must be a response to a preceding message with 'tool_calls'.",
                )
                waiting.remove(name)
                continue
            refuse(
                waiting,
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: {waiting}",
            )
            refuse(role not in ("system", "developer", "user", "assistant"), f"Invalid value: '{role}'")
            calls = message.get("tool_calls") or []
            refuse(not content and not calls, f"Invalid value for '{where}.content': it is empty.")
            self._check_content(where, role, content)
            for call in calls:
                refuse(not call["id"] or not call["function"]["name"], f"Missing '{where}.tool_calls.id'.")
                refuse(not _is_json(call["function"]["arguments"]), f"Invalid JSON in '{where}.tool_calls'.")
                waiting.append(call["id"])
        refuse(waiting, f"The following tool_call_ids did not have response messages: {waiting}")

    def _check_content(self, where: str, role: str, content: Any) -> None:
        if not isinstance(content, list):
            return
        known = {"text": {"type", "text"}, "refusal": {"type", "refusal"}}
        if role == "user":
            known |= {"image_url": {"type", "image_url"}, "file": {"type", "file"}}
        for block in content:
            kind = block.get("type")
            refuse(kind not in known, f"Invalid value: '{kind}'. Supported values are: {sorted(known)}.")
            unknown = block.keys() - known[kind]
            refuse(unknown, f"Unknown parameter: '{where}.content.{next(iter(unknown), '')}'.")
            refuse(kind == "text" and not block["text"], f"'{where}.content': text is empty.")

    def writer(self, body: Any) -> Writer:
        return _Chat(bool((body.get("stream_options") or {}).get("include_usage")))

    def is_stream(self, body: Any, request: Request) -> bool:
        return bool(body.get("stream"))

    def whole(self, body: Any, texts: list[str]) -> Response:
        message = {"role": "assistant", "content": "".join(texts)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": "gpt-4o",
                "choices": [choice],
                "usage": USAGE,
            }
        )


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except json.JSONDecodeError:
        return False


class _Chat(Writer):
    def __init__(self, has_usage: bool) -> None:
        self._has_usage = has_usage
        self._calls = 0

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return self._data({"choices": [choice], "usage": None})

    def _data(self, facts: dict[str, Any]) -> bytes:
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
        return b"data: " + json.dumps({**chunk, **facts}).encode() + b"\n\n"

    def start(self) -> list[bytes]:
        return [self._chunk({"role": "assistant", "content": "", "refusal": None})]

    def write(self, part: Any) -> list[bytes]:
        if isinstance(part, str):
            return [self._chunk({"content": part})]
        if isinstance(part, Think):
            return [self._chunk({"reasoning_content": part.text})]
        assert isinstance(part, Call)
        index, half = self._calls, len(part.args) // 2
        self._calls += 1
        head = {"index": index, "id": part.id, "type": "function"}
        return [
            self._chunk({"tool_calls": [{**head, "function": {"name": part.name, "arguments": ""}}]}),
            self._chunk({"tool_calls": [{"index": index, "function": {"arguments": part.args[:half]}}]}),
            self._chunk({"tool_calls": [{"index": index, "function": {"arguments": part.args[half:]}}]}),
        ]

    def end(self) -> list[bytes]:
        usage = [self._data({"choices": [], "usage": USAGE})] if self._has_usage else []
        return [self._chunk({}, "tool_calls" if self._calls else "stop"), *usage, b"data: [DONE]\n\n"]


class Responses(FakeAPI):
    """`/responses`: keeps what completed, and knows nothing else by its id."""

    def reset(self) -> None:
        super().reset()
        self.stored: set[str] = set()
        self.ciphers: dict[str, str] = {}
        """The ciphertext of each reasoning item that was ever sent."""

        self.answers = 0

    def model(self, **options: Any) -> ChatOpenAI:
        known = {"base_url": f"{self.url}/v1", "api_key": "x", "model": "gpt-5", "max_retries": 0}
        return ChatOpenAI(**{**known, "use_responses_api": True, **options})

    def check(self, body: Any, request: Request) -> None:
        before = body.get("previous_response_id")
        refuse(before and before not in self.stored, f"Previous response with id '{before}' not found.")
        items, calls, outputs = body["input"], set(), set()
        for place, item in enumerate(items):
            kind, name = item.get("type", "message"), item.get("id")
            where = f"input[{place}]"
            if cipher := item.get("encrypted_content"):
                refuse(
                    self.ciphers.get(name) != cipher,
                    f"The encrypted content for item {name} could not be verified.",
                )
            elif name:
                is_stored = name in self.stored and body.get("store") is not False
                refuse(not is_stored and not self._is_whole(item, body), f"Item with id '{name}' not found.")
            if kind == "reasoning":
                refuse(not name, f"Missing required parameter: '{where}.id'.")
                follower = items[place + 1] if place + 1 < len(items) else {}
                refuse(
                    follower.get("role") == "user" or not follower,
                    f"Item '{name}' of type 'reasoning' was provided without its required following item.",
                )
            elif kind == "message":
                self._check_message(where, item)
            elif kind == "function_call":
                # What the model wrote itself is taken; what a client makes of it has to be an object.
                refuse(not isinstance(item["arguments"], str), f"Invalid type for '{where}.arguments'.")
                calls.add(item["call_id"])
            elif kind in ("function_call_output", "custom_tool_call_output"):
                name = item["call_id"]
                refuse(name not in calls, f"No tool call found for function call output with call_id {name}.")
                refuse(name in outputs, f"Duplicate output for {name}.")
                outputs.add(name)
            elif kind == "custom_tool_call":
                calls.add(item["call_id"])
            else:
                refuse(kind not in ("web_search_call", "image_generation_call"), f"Invalid value: '{kind}'.")
        for name in calls - outputs:
            refuse(True, f"No tool output found for function call {name}.")

    def _is_whole(self, item: dict[str, Any], body: Any) -> bool:
        return body.get("store") is False and item["type"] != "reasoning" and len(item) > 2

    def _check_message(self, where: str, item: dict[str, Any]) -> None:
        content = item["content"]
        refuse(not content, f"Invalid '{where}.content': empty.")
        allowed = {"output_text", "refusal"} if item["role"] == "assistant" else {"input_text", "input_image"}
        for block in content if isinstance(content, list) else ():
            refuse(block["type"] not in allowed, f"Invalid value: '{block['type']}' in {where}.")
            refuse(block.get("text") == "", f"Invalid '{where}.content': empty text.")

    def writer(self, body: Any) -> Writer:
        self.answers += 1
        is_shown = "reasoning.encrypted_content" in (body.get("include") or ())
        return _Items(self, self.answers, body.get("store") is not False, is_shown)


class _Items(Writer):
    def __init__(self, api: Responses, number: int, stores: bool, is_shown: bool) -> None:
        self._api = api
        self._is_shown = is_shown
        self._number = number
        self._stores = stores
        self._output: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._sequence = 0

    def _event(self, kind: str, **facts: Any) -> bytes:
        self._sequence += 1
        data = {"type": kind, "sequence_number": self._sequence, **facts}
        return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()

    def _response(self, status: str, output: list[Any]) -> dict[str, Any]:
        usage = {
            "input_tokens": 11,
            "output_tokens": 7,
            "total_tokens": 18,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        return {
            "id": f"resp_{self._number}",
            "object": "response",
            "created_at": 1,
            "status": status,
            "model": "gpt-5",
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage if status == "completed" else None,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
        }

    def start(self) -> list[bytes]:
        return [self._event("response.created", response=self._response("in_progress", []))]

    def _item(self, prefix: str, name: str) -> str:
        return f"{prefix}_{self._number}{name}"

    def _close(self) -> list[bytes]:
        if (item := self._open) is None:
            return []
        self._open = None
        place = {"output_index": len(self._output), "item_id": item["id"], "content_index": 0}
        text = item["content"][0]["text"]
        item["status"] = "completed"
        done = self._event("response.output_text.done", text=text, logprobs=[], **place)
        part = self._event("response.content_part.done", part=item["content"][0], **place)
        return [done, part, *self._done(item)]

    def _done(self, item: dict[str, Any]) -> list[bytes]:
        event = self._event("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        return [event]

    def _added(self, item: dict[str, Any]) -> bytes:
        return self._event("response.output_item.added", output_index=len(self._output), item=item)

    def write(self, part: Any) -> list[bytes]:
        if isinstance(part, str):
            return self._text(part)
        events = self._close()
        if isinstance(part, Think):
            return [*events, *self._reasoning(part)]
        if isinstance(part, Search | Found):
            item = {"id": self._item("ws", part.id), "type": "web_search_call", "status": "in_progress"}
            if isinstance(part, Search):
                return [*events, self._added(item)]
            action = {"type": "search", "query": part.query}
            return [*events, *self._done({**item, "status": "completed", "action": action})]
        assert isinstance(part, Call)
        item = {"id": self._item("fc", part.id), "type": "function_call", "call_id": part.id}
        item |= {"name": part.name, "arguments": "", "status": "in_progress"}
        events.append(self._added(item))
        half, place = len(part.args) // 2, {"output_index": len(self._output), "item_id": item["id"]}
        for delta in (part.args[:half], part.args[half:]):
            events.append(self._event("response.function_call_arguments.delta", delta=delta, **place))
        return [*events, *self._done({**item, "arguments": part.args, "status": "completed"})]

    def _text(self, text: str) -> list[bytes]:
        events = []
        if self._open is None:
            name = self._item("msg", str(len(self._output)))
            self._open = {"id": name, "type": "message", "role": "assistant", "status": "in_progress"}
            self._open["content"] = []
            events.append(self._added({**self._open}))
            self._open["content"] = [{"type": "output_text", "text": "", "annotations": []}]
        self._open["content"][0]["text"] += text
        place = {"output_index": len(self._output), "item_id": self._open["id"], "content_index": 0}
        return [*events, self._event("response.output_text.delta", delta=text, logprobs=[], **place)]

    def _reasoning(self, part: Think) -> list[bytes]:
        name = self._item("rs", part.id)
        item: dict[str, Any] = {"id": name, "type": "reasoning", "summary": []}
        if self._is_shown:  # the real API sends it twice: as the item begins, and the whole as it is done
            item["encrypted_content"] = f"early-{name}"
        place = {"output_index": len(self._output), "item_id": name, "summary_index": 0}
        empty = {"type": "summary_text", "text": ""}
        events = [
            self._added(item),
            self._event("response.reasoning_summary_part.added", part=empty, **place),
            self._event("response.reasoning_summary_text.delta", delta=part.text, **place),
        ]
        if part.cut:
            return events
        item["summary"] = [{"type": "summary_text", "text": part.text}]
        if self._is_shown:
            item["encrypted_content"] = self._api.ciphers[name] = f"cipher-{name}"
        return [*events, *self._done(item)]

    def end(self) -> list[bytes]:
        events = self._close()
        if self._stores:
            self._api.stored |= {f"resp_{self._number}", *(item["id"] for item in self._output)}
        return [
            *events,
            self._event("response.completed", response=self._response("completed", self._output)),
        ]
