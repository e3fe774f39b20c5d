"""What a host sees of a run, as it happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from midstream_client.interrupts import PendingInterrupt


@dataclass(frozen=True, slots=True)
class Started:
    """A run is there; the first event, and the one after which `run_id` is known."""

    run_id: str
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Token:
    """New text of an answer."""

    text: str
    message_id: str
    node: str | None
    """The graph's node; None where the protocol does not say."""

    namespace: tuple[str, ...] = ()
    """The subgraph that the node is in; empty for the graph itself."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request is there, and the answer cannot end yet."""

    reason: str
    node: str
    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sealed:
    """The answer that was streaming has been ended, and is a turn of its own."""

    message_id: str
    node: str
    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Restarted:
    """An answer that had shown nothing yet was dropped, so that requests apply at once."""

    message_id: str | None
    node: str
    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Injected:
    """Requests became messages of the thread."""

    message_ids: tuple[str, ...]
    request_ids: tuple[str, ...]
    outcome: str
    node: str


@dataclass(frozen=True, slots=True)
class Halted:
    """The run ends by a request or a hook; what was written stays."""

    reason: str
    run_id: str
    node: str
    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Expired:
    """Requests named a run of another turn, and will never apply."""

    request_ids: tuple[str, ...]
    node: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model calls a tool."""

    id: str
    name: str
    args: Mapping[str, Any]
    message_id: str
    node: str | None
    namespace: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A call was answered: by a tool, by a person, or by the host."""

    tool_call_id: str
    name: str | None
    content: Any
    status: Literal["success", "error"]
    node: str | None
    namespace: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Custom:
    """Anything else that a node wrote to its `custom` stream."""

    data: Any
    namespace: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Retried:
    """Another worker has taken the run over, and begins again after the last committed step.

    What it says again comes under new message ids. The text of `discarded` is not in the thread: take it off
    the screen.
    """

    run_id: str
    attempt: int
    discarded: tuple[str, ...]
    """Ids of messages that were shown."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The run has paused for a person; read from the thread's state, not from the stream."""

    run_id: str
    interrupts: tuple[PendingInterrupt, ...]


@dataclass(frozen=True, slots=True)
class Error:
    """The run has failed."""

    run_id: str
    error: str
    """The exception's name, such as `ValueError`; `Error` where nobody says it."""

    message: str


@dataclass(frozen=True, slots=True)
class Done:
    """The stream is over; always the last event."""

    run_id: str
    status: str
    """The run's, in the server's words: `success`, `error`, `interrupted`, `timeout`. `interrupted` is one
    that has paused, whose `Interrupted` came just before, and one that was cancelled."""

    halt_reason: str | None = None
    is_cancelled: bool = False
    """Whether somebody has cancelled the run, or rolled it back: nobody is asked anything, and what it had
    not committed is gone."""


Event: TypeAlias = (
    Started
    | Token
    | Waiting
    | Sealed
    | Restarted
    | Injected
    | Halted
    | Expired
    | ToolCall
    | ToolResult
    | Custom
    | Retried
    | Interrupted
    | Error
    | Done
)


def preemption_event(data: Mapping[str, Any]) -> Event | None:
    """Returns the event that midstream's own `custom` data stands for; None if it is of a newer midstream."""
    node = str(data.get("node", ""))
    ids = tuple(data.get("request_ids") or ())
    match data.get("event"):
        case "waiting":
            return Waiting(str(data["reason"]), node, ids)
        case "sealed":
            return Sealed(str(data["message_id"]), node, ids)
        case "restarted":
            return Restarted(data.get("message_id"), node, ids)
        case "injected":
            return Injected(tuple(data["message_ids"]), ids, str(data["outcome"]), node)
        case "halted":
            return Halted(str(data["reason"]), str(data["run_id"]), node, ids)
        case "expired":
            return Expired(ids, node)
    return None
