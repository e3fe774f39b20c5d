"""A run's stream, read into events.

The stream is not trusted alone. Who joins late, or again, may be shown interrupts that are answered already,
or miss the last words; so when it has ended, the thread's state says what waits, and what was not shown yet.

A run that is taken over by another worker says so by a second `metadata` part, with a higher `attempt`. Its
node begins again, under new message ids; of the messages that were shown, those that the state does not hold
are void.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import httpx

from midstream_client._answering import placed
from midstream_client._flow import Call, Clock, Pause, again
from midstream_client.answers import Answer
from midstream_client.errors import ThreadPausedError
from midstream_client.events import (
    Custom,
    Done,
    Error,
    Event,
    Halted,
    Interrupted,
    Retried,
    Started,
    Token,
    ToolCall,
    ToolResult,
    preemption_event,
)
from midstream_client.interrupts import interrupts_of

MODES = ("messages-tuple", "custom", "updates")


@dataclass(frozen=True, slots=True)
class Open:
    """Asks for a stream, by a method of the SDK that returns an iterator; replaces the one before."""

    call: Call


@dataclass(frozen=True, slots=True)
class Command:
    """Asks for a command of the newer protocol; answered by the server's envelope."""

    thread_id: str
    method: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Asks for a thread's events on the newer protocol; replaces the stream before."""

    thread_id: str
    is_websocket: bool
    channels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Next:
    """Asks for the stream's next part; answered by `END` after the last one."""


@dataclass(frozen=True, slots=True)
class Emit:
    """Hands an event to the host."""

    event: Event


END = object()

StreamStep: TypeAlias = Open | Command | Subscribe | Next | Emit | Call | Pause | Clock
StreamFlow: TypeAlias = Generator[StreamStep, Any, None]


@dataclass(slots=True)
class Shown:
    """What the host has been shown of one run."""

    texts: dict[str, str] = field(default_factory=dict)
    """By message id, in order."""

    nodes: dict[str, tuple[str | None, tuple[str, ...]]] = field(default_factory=dict)
    calls: set[str] = field(default_factory=set)
    results: set[str] = field(default_factory=set)

    def token(
        self, message: Mapping[str, Any], node: str | None, namespace: tuple[str, ...]
    ) -> Iterator[Event]:
        text, name = text_of(message.get("content")), message.get("id")
        if not text or name is None:
            return
        if message.get("type") == "ai" and name in self.texts:
            # A whole message, after its tokens.
            return
        self.texts[name] = self.texts.get(name, "") + text
        self.nodes[name] = (node, namespace)
        yield Token(text, name, node, namespace)

    def tools(
        self, message: Mapping[str, Any], node: str | None, namespace: tuple[str, ...]
    ) -> Iterator[Event]:
        for call in message.get("tool_calls") or ():
            name = call.get("id")
            if message.get("type") == "ai" and name and name not in self.calls:
                self.calls.add(name)
                yield ToolCall(name, call["name"], call["args"], str(message.get("id")), node, namespace)
        if message.get("type") == "tool" and (name := message.get("tool_call_id")) not in self.results:
            self.results.add(str(name))
            status: Literal["success", "error"] = "error" if message.get("status") == "error" else "success"
            yield ToolResult(str(name), message.get("name"), message.get("content"), status, node, namespace)

    def rest(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[Event]:
        """Yields what the thread holds and the stream did not show, of the messages that it began to show."""
        for message in messages:
            name = message.get("id")
            if name in self.texts and message.get("type") == "ai":
                whole, shown = text_of(message.get("content")), self.texts[name]
                if whole != shown and whole.startswith(shown):
                    self.texts[name] = whole
                    yield Token(whole[len(shown) :], name, *self.nodes[name])

    def void(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """Forgets and returns the shown messages that are not among these."""
        held = {message.get("id") for message in messages}
        gone = tuple(name for name in self.texts if name not in held)
        for name in gone:
            del self.texts[name]
        return gone


@dataclass(slots=True)
class RunReader:
    """Reads the parts of one run's stream."""

    thread_id: str
    run_id: str = ""
    attempt: int = 0
    shown: Shown = field(default_factory=Shown)
    failure: tuple[str, str] | None = None
    """The error's name and message."""

    halt_reason: str | None = None

    def join(self, run_id: str) -> StreamFlow:
        self.run_id, self.attempt = run_id, 1
        yield Emit(Started(run_id))

    def read(self, part: Any) -> StreamFlow:
        kind, *space = str(part.event).split("|")
        namespace = tuple(space)
        data = part.data
        match kind:
            case "metadata" if isinstance(data, Mapping):
                yield from self._metadata(data)
            case "messages":
                message, about = data
                node = about.get("langgraph_node")
                if message.get("type") in ("AIMessageChunk", "ai"):
                    yield from map(Emit, self.shown.token(message, node, namespace))
                elif message.get("type") == "tool":
                    yield from map(Emit, self.shown.tools(message, node, namespace))
            case "updates" if isinstance(data, Mapping):
                for node, update in data.items():
                    for message in messages_in(update):
                        yield from map(Emit, self.shown.tools(message, node, namespace))
            case "custom":
                yield Emit(self._custom(data, namespace))
            case "error":
                said = data if isinstance(data, Mapping) else {}
                self.failure = (str(said.get("error", "Error")), str(said.get("message", data)))

    def _metadata(self, data: Mapping[str, Any]) -> StreamFlow:
        attempt = int(data.get("attempt") or 1)
        if not self.run_id:
            self.run_id = str(data.get("run_id", ""))
            self.attempt = attempt
            yield Emit(Started(self.run_id, attempt))
        elif attempt > self.attempt:
            self.attempt = attempt
            state = yield from again(Call("threads", "get_state", (self.thread_id,)))
            yield Emit(Retried(self.run_id, attempt, self.shown.void(messages_in(state.get("values")))))

    def _custom(self, data: Any, namespace: tuple[str, ...]) -> Event:
        if isinstance(data, Mapping) and data.get("type") == "preemption":
            event = preemption_event(data)
            if isinstance(event, Halted):
                self.halt_reason = event.reason
            if event is not None:
                return event
        return Custom(data, namespace)


def stream(
    thread_id: str,
    assistant_id: str,
    *,
    input: Mapping[str, Any] | None,  # noqa: A002 (the SDK's own word)
    resume: Mapping[str, Answer] | None,
    run_id: str | None,
    run: Mapping[str, Any],
) -> StreamFlow:
    """Streams a new run with this input or these answers, or joins the one that is named."""
    reader = RunReader(thread_id)
    options: dict[str, Any]
    if run_id is not None:
        yield from reader.join(run_id)
        # From the first event that the server has kept. Without modes: the server would filter by the names
        # of its events, which are not those of the modes, and leave out the tokens.
        options = {"last_event_id": "-1"}
        yield Open(Call("runs", "join_stream", (thread_id, run_id), options))
    else:
        options = {"stream_mode": list(MODES)}
        if resume is not None:
            options["command"] = {"resume": (yield from placed(thread_id, resume))}
        else:
            yield from refuse_if_paused(thread_id)
            options["input"] = input
        options |= {"stream_subgraphs": True, "stream_resumable": True, "on_disconnect": "continue"}
        options |= {"multitask_strategy": "reject", **run}
        yield Open(Call("runs", "stream", (thread_id, assistant_id), options))

    while (part := (yield Next())) is not END:
        yield from reader.read(part)
    yield from finish(thread_id, reader)


def check_one(**given: Any) -> None:
    """Raises unless exactly one of these is given."""
    if sum(value is not None for value in given.values()) != 1:
        raise ValueError(f"give exactly one of {', '.join(f'{name}=' for name in given)}")


def refuse_if_paused(thread_id: str) -> Generator[StreamStep, Any, None]:
    """Stops new input that would give every pending interrupt of the thread another id."""
    state = yield from again(Call("threads", "get_state", (thread_id,)))
    if pending := interrupts_of(state):
        raise ThreadPausedError(thread_id, [each.id for each in pending])


def finish(thread_id: str, reader: RunReader) -> StreamFlow:
    """Shows what the stream left out, and how the run has ended."""
    state = yield from again(Call("threads", "get_state", (thread_id,)))
    status = "success"
    if reader.run_id:
        try:
            run = yield from again(Call("runs", "get", (thread_id, reader.run_id)))
            status = str(run["status"])
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 404:
                raise
            # Rolled back: the run is gone, and what it wrote.
            status = "interrupted"

    messages = messages_in(state.get("values"))
    yield from map(Emit, reader.shown.rest(messages))
    if reader.failure is not None:
        yield Emit(Error(reader.run_id, *reader.failure))
        status = "error" if status in ("success", "running", "pending") else status
    pending = tuple(interrupts_of(state))
    if pending and reader.failure is None:
        yield Emit(Interrupted(reader.run_id, pending))
        status = "interrupted"
    yield Emit(Done(reader.run_id, status, reader.halt_reason or _halt_in(state, reader.run_id)))


def _halt_in(state: Mapping[str, Any], run_id: str) -> str | None:
    values = state.get("values")
    halt = ((values.get("preemption") or {}).get("halt") or {}) if isinstance(values, Mapping) else {}
    return str(halt["reason"]) if run_id and halt.get("run_id") == run_id else None


def messages_in(values: Any) -> list[Mapping[str, Any]]:
    """Returns the messages in a state or an update, whatever their channel is called."""
    found: list[Mapping[str, Any]] = []
    for value in values.values() if isinstance(values, Mapping) else ():
        for message in value if isinstance(value, list) else [value]:
            if isinstance(message, Mapping) and "type" in message and "content" in message:
                found.append(message)
    return found


def text_of(content: Any) -> str:
    """Returns the text of a message's content."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(
        block if isinstance(block, str) else str(block.get("text", ""))
        for block in content
        if isinstance(block, str) or (isinstance(block, Mapping) and block.get("type") == "text")
    )
