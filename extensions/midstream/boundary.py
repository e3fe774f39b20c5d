"""What happens between two model calls, as pure functions: which requests apply, and what they become."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage

from midstream._ledger_view import Entry, View
from midstream.state import Handled, PreemptionState, Turn

INCOMPLETE = "preempt_incomplete"
"""The halt reason of a run whose answer was sealed and then found nothing to go on with."""

OUT_OF_STEPS = "recursion_limit"
"""The halt reason of a run that a request or a hook has made longer, and that has no steps left for the tools
that its model calls."""


def turn_of(value: PreemptionState, key: str, run_id: str) -> Turn:
    """Returns the turn that this run belongs to: the one before, or a new one after a new input.

    Args:
        value: The channel as the run finds it.
        key: Names the input that the run goes on from, its own or that of the run that it resumes.
        run_id: The run.
    """
    old = value.get("turn")
    if old is None or old["key"] != key:
        return Turn(key=key, runs=[run_id], seals=[], restarts=[], empty_boundaries=[])
    return old if run_id in old["runs"] else {**old, "runs": [*old["runs"], run_id]}


def injected(entry: Entry) -> list[HumanMessage]:
    """Returns the messages of a steer; their ids follow from the request's, so that none enters twice."""
    return [
        HumanMessage(
            content=message["content"],
            id=str(uuid.uuid5(uuid.UUID(entry.id), str(index))),
            additional_kwargs={"source": "steer", "request_id": entry.id},
        )
        for index, message in enumerate(entry.messages)
    ]


@dataclass(frozen=True, slots=True)
class Drain:
    """The requests that a boundary settles."""

    steers: tuple[Entry, ...] = ()
    halts: tuple[Entry, ...] = ()
    expired: tuple[Entry, ...] = ()

    known: tuple[Entry, ...] = ()
    """Steers whose messages are in the thread already: handled, though the mark of it is gone."""

    @property
    def applied(self) -> tuple[Entry, ...]:
        return self.steers + self.halts

    def only(self, request_ids: Collection[str]) -> Drain:
        """Leaves out what would be applied and is not among these."""
        steers = tuple(entry for entry in self.steers if entry.id in request_ids)
        halts = tuple(entry for entry in self.halts if entry.id in request_ids)
        return replace(self, steers=steers, halts=halts)

    @property
    def quiet(self) -> Drain:
        """What is settled without a word to the model."""
        return Drain(expired=self.expired, known=self.known)


def _is_later(run_id: str, than: str) -> bool:
    """Tells whether a run is known to have been made after another: their ids have to be ordered by time."""
    try:
        one, other = uuid.UUID(run_id), uuid.UUID(than)
    except ValueError:
        return False
    return one.version == other.version and one.version in (6, 7) and one.int > other.int


def drain(
    pending: Sequence[Entry],
    *,
    node: str,
    turn: Turn,
    run_id: str,
    message_ids: Collection[str | None],
) -> Drain:
    """Decides which of the pending requests, in order of acceptance, this node settles now.

    1. One that names another node is left to it; one that names a run of another turn is expired, but for a
       run that is still to come, which it waits for.
    2. Steers that were accepted before a halt are injected; the ones after it wait for the next run.
    3. All halts are settled by the first, so that none is left over to stop the next run.
    """
    mine = [entry for entry in pending if entry.node in (None, node)]
    live = [entry for entry in mine if entry.run_id is None or entry.run_id in turn["runs"]]
    expired = [
        entry
        for entry in mine
        if entry.run_id is not None
        and entry.run_id not in turn["runs"]
        and not _is_later(entry.run_id, run_id)
    ]
    halts = [entry for entry in live if entry.kind == "halt"]
    steers = [entry for entry in live if entry.kind == "steer"]
    if halts:
        first = (halts[0].accepted_at, halts[0].id)
        steers = [entry for entry in steers if (entry.accepted_at, entry.id) < first]
    known = [entry for entry in steers if injected(entry)[0].id in message_ids]
    return Drain(
        steers=tuple(entry for entry in steers if entry not in known),
        halts=tuple(halts),
        expired=tuple(expired),
        known=tuple(known),
    )


def halt_ahead(
    view: View, value: PreemptionState, run_id: str, step: str | None = None, graph: str = ""
) -> str | None:
    """Returns the reason of a halt that a model node of this graph will come to; None if there is none.

    One that names a node may be another agent's, and is left to it; as is one that another agent has settled
    in this step.
    """
    turn = value.get("turn")
    runs = {run_id, *(turn["runs"] if turn is not None else ())}
    gone = {name for claim in view.claims_of_others(step, graph) for name in claim["request_ids"]}
    decided = [record["reason"] for record in view.halts if record["run_id"] == run_id]
    asked = [
        str(entry.reason)
        for entry in view.pending({*value.get("handled", {}), *gone})
        if entry.kind == "halt" and entry.node is None and (entry.run_id is None or entry.run_id in runs)
    ]
    return next(iter(decided + asked), None)


def handled(drained: Drain, *, outcome: str, run_id: str, node: str) -> dict[str, Handled]:
    """Returns how the requests of a boundary ended, by their ids."""

    def record(entry: Entry, how: str) -> Handled:
        return Handled(
            outcome=how,
            run_id=run_id,
            node=node,
            message_ids=[str(message.id) for message in injected(entry)],
            accepted_at=entry.accepted_at,
        )

    ended = {entry.id: record(entry, outcome) for entry in drained.applied + drained.known}
    ended.update({entry.id: {**record(entry, "expired"), "message_ids": []} for entry in drained.expired})
    return ended


def outcome_at_entry(messages: Sequence[AnyMessage] | Sequence[BaseMessage]) -> str:
    """Returns the outcome of a request that applies as a model node is entered.

    A batch of tools may have left more than results: a tool's `Command` says what it likes.
    """
    since = itertools.takewhile(lambda each: not isinstance(each, AIMessage), reversed(messages))
    return "tool_boundary" if any(isinstance(each, ToolMessage) for each in since) else "entry"


def is_answered(sealed: BaseMessage | None, messages: Sequence[BaseMessage]) -> bool:
    """Tells whether somebody else has spoken after the answer: then there is something to go on with."""
    after = reversed(messages) if sealed is not None else ()
    return any(
        isinstance(each, HumanMessage) for each in itertools.takewhile(lambda each: each is not sealed, after)
    )


def without_calls(answer: AIMessage) -> list[AIMessage]:
    """Returns what an answer says apart from its tool calls; nothing if that is all there is to it."""
    if not answer.text.strip():
        return []
    metadata = {"response_metadata": answer.response_metadata, "usage_metadata": answer.usage_metadata}
    return [AIMessage(content=str(answer.text), id=answer.id, name=answer.name, **metadata)]


def messages_of(state: Any, key: str) -> list[BaseMessage]:
    """Returns the messages of a state that is a dict, a dataclass or a pydantic model."""
    found = state.get(key) if isinstance(state, dict) else getattr(state, key, None)
    return list(found or ())
