"""The newer protocol's stream of a thread, read into events.

It is not a stream of one run. Seen with langgraph-api 0.16.7 and langgraph-sdk 0.4.14:

* Who subscribes is first told the thread's past, run by run, and the SDK's own subscriptions end at the first
  run's end. So this reads the SDK's transport, and only what is of its own run; an event says which run it is
  of at the run's beginning and end, by its id.
* Words name neither their node nor, after the first, their message; nor does anything say that another worker
  has taken the run over. But a snapshot of the state comes only between steps: one that comes while a message
  is unfinished is the state that a new attempt begins from.
* A text that does not stream comes with its block's end, tool results only with snapshots, and interrupts
  without their questions: those are read from the thread's state.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import httpx

from midstream_client._answering import placed
from midstream_client._flow import Call, Pause, again, status_of
from midstream_client._streaming import (
    END,
    Command,
    Emit,
    Next,
    RunReader,
    StreamFlow,
    StreamStep,
    Subscribe,
    finish,
    messages_in,
    refuse_if_paused,
)
from midstream_client._streaming import stream as stream_run
from midstream_client.answers import Answer
from midstream_client.events import Retried, Token, ToolCall

Protocol: TypeAlias = Literal["runs", "threads", "websocket"]
"""How a stream comes: `runs`, by the run's own stream; `threads`, by the newer protocol of
`client.threads.stream`; `websocket`, the same by a websocket."""

CHANNELS = ("messages", "values", "lifecycle", "custom")
LOST = ("unsupported", "unknown_command")
"""What a server says that has the route but not what is behind it."""

RETRIES = 5
RETRY_SECONDS = 0.2


@dataclass(slots=True)
class ThreadReader(RunReader):
    """Reads the events of one run out of its thread's."""

    is_active: bool = False
    """Whether what comes now is of the run."""

    is_over: bool = False
    seen: set[str] = field(default_factory=set)
    open: dict[tuple[str, ...], list[str]] = field(default_factory=dict)
    """Unfinished messages by namespace, the newest last."""

    blocks: dict[tuple[str, Any], str] = field(default_factory=dict)
    has_state: bool = False

    def read(self, part: Any) -> StreamFlow:
        if not isinstance(part, Mapping) or "method" not in part:
            return
        name = str(part.get("event_id") or "")
        if name and name in self.seen:
            return
        self.seen.add(name)
        params = part.get("params") or {}
        namespace = tuple(params.get("namespace") or ())
        data = params.get("data")
        if part["method"] == "lifecycle" and not namespace and isinstance(data, Mapping):
            yield from self._lifecycle(name, data)
        elif self.is_active and isinstance(data, Mapping):
            match part["method"]:
                case "messages":
                    yield from self._message(data, params.get("node"), namespace)
                case "values":
                    yield from self._state(data, namespace)
                case "custom":
                    yield Emit(self._custom(data.get("payload"), namespace))

    def _lifecycle(self, name: str, data: Mapping[str, Any]) -> StreamFlow:
        kind, _, rest = name.partition(":")
        of = rest.partition(":")[0] if kind == "synth" else None
        is_begin = data.get("event") in ("started", "running")
        if of is not None and of != self.run_id:
            self.is_active = False
            return
        if of is None and not is_begin:
            # A server that names no run at its end: the run itself knows.
            run = yield from again(Call("runs", "get", (self.thread_id, self.run_id)))
            if run["status"] in ("pending", "running"):
                return
        self.is_active = True
        self.is_over = not is_begin
        if data.get("event") == "failed":
            self.failure = ("Error", str(data.get("error") or "the run failed"))

    def _message(self, data: Mapping[str, Any], node: str | None, namespace: tuple[str, ...]) -> StreamFlow:
        unfinished = self.open.setdefault(namespace, [])
        if data.get("event") == "message-start":
            unfinished.append(str(data.get("id")))
            return
        if not unfinished:
            return
        name = str(data.get("id") or unfinished[-1])
        match data.get("event"):
            case "content-block-delta" if data["delta"].get("type") == "text-delta":
                yield from self._text(name, data.get("index"), data["delta"]["text"], node, namespace)
            case "content-block-finish":
                content = data.get("content") or {}
                if content.get("type") == "text":
                    shown = self.blocks.get((name, data.get("index")), "")
                    rest = str(content.get("text", ""))[len(shown) :]
                    yield from self._text(name, data.get("index"), rest, node, namespace)
                elif content.get("type") == "tool_call" and content.get("id") not in self.shown.calls:
                    self.shown.calls.add(content["id"])
                    call = ToolCall(
                        content["id"], content["name"], content.get("args") or {}, name, node, namespace
                    )
                    yield Emit(call)
            case "message-finish" | "error":
                unfinished.remove(name)

    def _text(
        self, name: str, index: Any, text: str, node: str | None, namespace: tuple[str, ...]
    ) -> StreamFlow:
        if not text:
            return
        self.blocks[name, index] = self.blocks.get((name, index), "") + text
        self.shown.texts[name] = self.shown.texts.get(name, "") + text
        self.shown.nodes[name] = (node, namespace)
        yield Emit(Token(text, name, node, namespace))

    def _state(self, values: Mapping[str, Any], namespace: tuple[str, ...]) -> StreamFlow:
        messages = messages_in(values)
        if any(self.open.get(inner) for inner in self.open if inner[: len(namespace)] == namespace):
            self.attempt += 1
            self.open = {}
            yield Emit(Retried(self.run_id, self.attempt, self.shown.void(messages)))
        for message in messages:
            if message.get("type") == "tool":
                if self.has_state or namespace:
                    yield from map(Emit, self.shown.tools(message, None, namespace))
                else:
                    # What the thread held before.
                    self.shown.results.add(str(message.get("tool_call_id")))
        self.has_state = self.has_state or not namespace


def stream(
    thread_id: str,
    assistant_id: str,
    *,
    protocol: Protocol,
    input: Mapping[str, Any] | None,  # noqa: A002 (the SDK's own word)
    resume: Mapping[str, Answer] | None,
    run_id: str | None,
    run: Mapping[str, Any],
) -> StreamFlow:
    """Streams as `_streaming.stream` does, by the thread's events where the server has them."""
    reader = ThreadReader(thread_id)
    if run_id is None:
        run_id = yield from _begin(thread_id, assistant_id, input=input, resume=resume, run=run)
        if run_id is None:
            yield from stream_run(thread_id, assistant_id, input=input, resume=resume, run_id=None, run=run)
            return
    yield from reader.join(run_id)

    failures = 0
    while not reader.is_over:
        before = len(reader.seen)
        lost: Exception | None = None
        yield Subscribe(thread_id, protocol == "websocket", CHANNELS)
        while not reader.is_over:
            try:
                part = yield Next()
            except Exception as error:
                if _is_refused(error):
                    raise
                lost = error
                break
            if part is END:
                break
            yield from reader.read(part)
        if reader.is_over:
            break

        # The stream is opened again, and what it repeats is passed over.
        known = yield from again(Call("runs", "get", (thread_id, run_id)))
        if known["status"] not in ("pending", "running"):
            break
        failures = 0 if len(reader.seen) > before else failures + 1
        if failures > RETRIES:
            raise lost or httpx.ReadError("the thread's stream ends again and again before its run")
        yield Pause(RETRY_SECONDS)
    yield from finish(thread_id, reader)


def _is_refused(error: Exception) -> bool:
    """Tells whether opening the stream again would fail in the same way."""
    # Imported here: who has a stream has the SDK already.
    from langgraph_sdk.stream.errors import is_non_retryable_stream_error

    return is_non_retryable_stream_error(error)


def _begin(
    thread_id: str,
    assistant_id: str,
    *,
    input: Mapping[str, Any] | None,  # noqa: A002 (the SDK's own word)
    resume: Mapping[str, Answer] | None,
    run: Mapping[str, Any],
) -> Generator[StreamStep, Any, str | None]:
    """Starts or resumes a run; returns its id, or None if the server does not have the protocol."""
    options = {name: value for name, value in run.items() if name in ("config", "metadata")}
    if resume is not None:
        answers = yield from placed(thread_id, resume)
        responses = [{"interrupt_id": name, "response": answer} for name, answer in answers.items()]
        command = Command(thread_id, "input.respond", {"responses": responses, **options})
    else:
        yield from refuse_if_paused(thread_id)
        params = {"assistant_id": assistant_id, "input": input, "multitaskStrategy": "reject", **options}
        command = Command(thread_id, "run.start", params)
    try:
        said = yield command
    except httpx.HTTPStatusError as error:
        if status_of(error) in (404, 405):
            return None
        raise
    if said.get("type") == "error":
        if said.get("error") in LOST:
            return None
        raise RuntimeError(f"Protocol error [{said.get('error')}]: {said.get('message', '')}")
    result = said.get("result") or {}
    if result.get("run_id"):
        return str(result["run_id"])
    # A resume does not say which run it has started.
    newest = yield from again(Call("runs", "list", (thread_id,), {"limit": 1}))
    return str(newest[0]["run_id"])
