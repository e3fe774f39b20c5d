"""What a host has been shown of a run, on whichever protocol its stream comes."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from midstream_client._flow import Emit
from midstream_client.events import (
    Custom,
    Event,
    Halted,
    Retried,
    Started,
    Token,
    ToolCall,
    ToolResult,
    preemption_event,
)

Namespace = tuple[str, ...]


@dataclass(slots=True)
class Shown:
    """The words, tool calls and tool results that were shown of one run, each once."""

    texts: dict[str, str] = field(default_factory=dict)
    """By message id, in order."""

    places: dict[str, tuple[str | None, Namespace]] = field(default_factory=dict)
    calls: set[str] = field(default_factory=set)
    results: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    """Calls whose results are shown once the thread has them."""

    def text(self, text: str, message_id: str, node: str | None, namespace: Namespace) -> Iterator[Event]:
        if text:
            self.texts[message_id] = self.texts.get(message_id, "") + text
            self.places[message_id] = (node, namespace)
            yield Token(text, message_id, node, namespace)

    def call(
        self, call: Mapping[str, Any], message_id: str, node: str | None, namespace: Namespace
    ) -> Iterator[Event]:
        name = call.get("id")
        if name and name not in self.calls:
            self.calls.add(name)
            yield ToolCall(name, call["name"], call.get("args") or {}, message_id, node, namespace)

    def result(self, message: Mapping[str, Any], node: str | None, namespace: Namespace) -> Iterator[Event]:
        name = str(message.get("tool_call_id"))
        if name not in self.results:
            self.results.add(name)
            status: Literal["success", "error"] = "error" if message.get("status") == "error" else "success"
            yield ToolResult(name, message.get("name"), message.get("content"), status, node, namespace)

    def rest(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[Event]:
        """Yields what the thread holds and the stream did not show, of what it began to show."""
        for message in messages:
            name = message.get("id")
            if message.get("type") == "tool" and message.get("tool_call_id") in self.held:
                yield from self.result(message, None, ())
            if name in self.texts and message.get("type") == "ai":
                whole, shown = text_of(message.get("content")), self.texts[name]
                if whole.startswith(shown):
                    yield from self.text(whole[len(shown) :], name, *self.places[name])

    def void(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """Forgets and returns the shown messages that are not among these."""
        held = {message.get("id") for message in messages}
        gone = tuple(name for name in self.texts if name not in held)
        for name in gone:
            del self.texts[name]
        return gone


@dataclass(slots=True)
class Reader:
    """Reads the parts of a stream into the events of one run."""

    thread_id: str
    run_id: str = ""
    attempt: int = 0
    shown: Shown = field(default_factory=Shown)
    failure: tuple[str | None, str] | None = None
    """The error's name, where the stream says it, and its message."""

    halt_reason: str | None = None

    def begin(self, run_id: str, attempt: int = 1) -> Generator[Emit, Any, None]:
        self.run_id, self.attempt = run_id, attempt
        yield Emit(Started(run_id, attempt))

    def retried(self, attempt: int, messages: Sequence[Mapping[str, Any]]) -> Generator[Emit, Any, None]:
        """Begins again after what is committed, these messages."""
        # langgraph-api 0.12 tells how the attempt before was lost, as if the run had failed.
        self.attempt, self.failure = attempt, None
        yield Emit(Retried(self.run_id, attempt, self.shown.void(messages)))

    def custom(self, data: Any, namespace: Namespace) -> Event:
        if is_preemption(data):
            event = preemption_event(data)
            if isinstance(event, Halted):
                self.halt_reason = event.reason
            if event is not None:
                return event
        return Custom(data, namespace)


def is_preemption(data: Any) -> bool:
    return isinstance(data, Mapping) and data.get("type") == "preemption"


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
