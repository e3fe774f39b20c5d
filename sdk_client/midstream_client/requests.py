"""Requests as a host sees them: the receipt, what is still pending, and how each ended."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar, cast
from uuid import UUID

from pydantic import ValidationError

from midstream_client import protocol
from midstream_client.errors import InvalidRequestError
from midstream_client.protocol import (
    HaltRequest,
    Outcome,
    SteerRequest,
    ThreadStatus,
    UserMessage,
    WithdrawRequest,
)

Messages: TypeAlias = str | Sequence[UserMessage | Mapping[str, Any]]
"""One text, or messages `{"role": "user", "content": …}`."""

Uuid: TypeAlias = str | UUID
"""An id, as a string or as it is."""

PLAINER = (
    ("^Value error, ", ""),
    ("^Input should be a valid dictionary or instance of (.*)", r"must be a dict or a \1"),
    ("^Input should be (a valid )?", "must be "),
    ("^must be (string|list|dictionary)", r"must be a \1"),
    ("^(String|List) should have ", "must have "),
    (" after validation", ""),
    ("^Extra inputs are not permitted", "is no field of it"),
)
"""What to read for pydantic's words, in order."""

R = TypeVar("R", SteerRequest, HaltRequest, WithdrawRequest)


class Receipt(protocol.Receipt):
    """The server's word that a request is on its thread's ledger; `outcome` waits for what becomes of it."""

    thread_id: str
    """The thread that it was posted to."""


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """How a request ended, or that it waits."""

    id: str
    outcome: Outcome
    """`pending`: the thread waits for a person, or has no run, and the request is applied by the next one."""

    run_id: str | None = None
    """The run that it was applied in; None if it was not."""

    node: str | None = None
    """The model node that applied it."""

    message_ids: tuple[str, ...] = ()
    """The messages that it became; empty for a halt, and if it was not applied."""

    @property
    def is_applied(self) -> bool:
        return self.outcome in ("sealed", "tool_boundary", "turn_end", "entry")


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request that waits for a safe point, or for the next run."""

    id: str
    kind: Literal["steer", "halt"]
    accepted_at: float
    """Unix time, in seconds."""

    messages: tuple[dict[str, Any], ...] = ()
    """Empty for a halt."""

    reason: str | None = None
    """None for a steer."""

    run_id: str | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """How a text reached the model, or will."""

    id: str
    """The id that `send` was given or made."""

    how: Literal["steered", "started", "waiting", "withdrawn"]
    """`steered`: into the run that was there. `started`: as the input of a new run. `waiting`: the thread
    waits for a person, and the text is applied after the answer. `withdrawn`: somebody took it back."""

    run_id: str | None
    """The run that the text is in; None if it is in none."""

    message_ids: tuple[str, ...]
    request_id: str | None = None
    """The steer's own id, as in `pending_requests` and for `withdraw`; None if a run was started."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts over the whole life of a thread."""

    seals: int = 0
    restarts: int = 0
    empty_boundaries: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What `GET /threads/{thread_id}/preemption` says."""

    thread_status: ThreadStatus
    """Read before the rest: if it is not `busy`, whatever ran before has been committed."""

    pending: tuple[PendingRequest, ...]
    outcomes: Mapping[str, RequestOutcome]
    halts: Mapping[str, str] = field(default_factory=dict)
    """Reasons by run id."""

    def outcome_of(self, request_id: str) -> RequestOutcome | None:
        """Returns how a request ended or that it waits; None if the thread does not know it."""
        if any(request.id == request_id for request in self.pending):
            return RequestOutcome(request_id, "pending")
        return self.outcomes.get(request_id)


def request_of(kind: type[R], fields: Mapping[str, Any], **names: str) -> R:
    """Makes a request of what is given; `names` are the host's words where they are not the wire's.

    Raises:
        InvalidRequestError: A field is not of the wire's shape.
    """
    given = {
        name: str(value) if isinstance(value, UUID) else value
        for name, value in fields.items()
        if value is not None or name in ("messages", "reason")
    }
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        problems: dict[str, str] = {}
        for each in error.errors():
            field = _field(each["loc"], names)
            reason = _plain(field, each)
            problems[field] = f"{problems[field]}, or {reason}" if field in problems else reason
        raise InvalidRequestError(problems) from None


def _field(path: tuple[int | str, ...], names: Mapping[str, str]) -> str:
    first, *rest = path
    if first in names:
        return names[str(first)]
    # The last part can be a choice of the type's, such as `list[dict[str,any]]`.
    return ".".join(str(each) for each in (first, *rest) if each != "str" and "[" not in str(each))


def _plain(field: str, error: Any) -> str:
    """Returns what is wrong with a field in a person's words, where pydantic speaks of its own matters."""
    if field == "messages" and error["type"] == "list_type":
        return f"must be a text, or a list of messages, not {reprlib.repr(error['input'])}"
    text = str(error["msg"])
    for words, plainer in PLAINER:
        text = re.sub(words, plainer, text)
    return text


def report_of(answer: Any) -> Report:
    """Reads the server's report."""
    return Report(
        thread_status=cast("ThreadStatus", answer["thread_status"]),
        pending=tuple(_pending(entry) for entry in answer["pending"]),
        outcomes={name: _ended(name, said) for name, said in answer["handled"].items()},
        halts={halt["run_id"]: halt["reason"] for halt in answer["halts"]},
    )


def _pending(entry: Mapping[str, Any]) -> PendingRequest:
    return PendingRequest(
        id=entry["id"],
        kind=entry["kind"],
        accepted_at=entry["accepted_at"],
        messages=tuple(entry.get("messages") or ()),
        reason=entry.get("reason"),
        run_id=entry.get("run_id"),
        node=entry.get("node"),
    )


def _ended(request_id: str, said: Mapping[str, Any]) -> RequestOutcome:
    return RequestOutcome(
        request_id,
        said["outcome"],
        run_id=said.get("run_id"),
        node=said.get("node") or None,
        message_ids=tuple(said.get("message_ids") or ()),
    )


def stats_of(values: Any) -> Stats:
    """Reads the counts in a thread's state; zeros for a thread without midstream."""
    said = (values.get("preemption") or {}).get("stats") if isinstance(values, Mapping) else None
    known = said or {}
    return Stats(**{name: int(known.get(name, 0)) for name in ("seals", "restarts", "empty_boundaries")})
