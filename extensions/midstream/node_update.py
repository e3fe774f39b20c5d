"""What a visit of a model node writes: its messages, and how far the node's turn has come."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send

from midstream._run_notes import Claim
from midstream.boundary import Drain, handled, turn_of
from midstream.run import Run
from midstream.state import Boundary, Handled, PreemptionState, Turn, merge

Update: TypeAlias = dict[str, Any] | Command[Any]
Kind: TypeAlias = Literal["seal", "end", "entry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a visit takes place."""

    node: str
    owner: str
    """Names the agent among those of its run, the same at each of its entries."""

    thread_id: str
    run: Run

    input: str
    """Names the input that the run goes on from: another one begins a new turn."""

    messages_key: str
    steps_left: int | None
    """Steps that the graph may take after this one; None if that cannot be told."""

    step: str | None = None
    """The step of the root graph, within which claims count; None if it cannot be told."""

    is_shared: bool = False
    """Whether there may be other agents in this step."""

    sent: Mapping[str, Any] | None = None
    """The argument of the `Send` that started the node; None where an edge did."""

    def claim(
        self, request_ids: list[str], at: float, *, ended: Collection[str] = (), outcome: str | None = None
    ) -> Claim | None:
        """Returns what the agent has to note of what it takes or ends; None where that cannot be told."""
        if self.step is None:
            return None
        return Claim(
            step=self.step,
            owner=self.owner,
            request_ids=request_ids,
            outcome=outcome,
            ended=list(ended),
            at=at,
        )

    def has_steps(self, steps: int) -> bool:
        """Tells whether the run may take so many steps, and two more for what follows a turn of the model.

        That is a round of its tools, or the node that a conditional edge leads to: neither is known here.
        """
        return self.steps_left is None or self.steps_left >= steps + 2

    @property
    def can_go_on(self) -> bool:
        """Whether the run has the step that the model needs after something was said to it."""
        return self.has_steps(1)


class NodeUpdates:
    """Builds the updates of one visit; each has what was settled until then."""

    def __init__(self, place: Place, value: PreemptionState) -> None:
        self._place = place
        self._settled: dict[str, Handled] = {}
        self.restarts: list[str] = []
        """The ids of answers that were dropped."""

        self._is_longer = False
        self.turn = turn_of(value, place.input, place.run.id)
        """The turn that the visit is a part of."""

        self.boundary: Boundary | None = value.get("boundaries", {}).get(place.node)
        """Where the node stands as it is entered; None at the first time."""

    @property
    def is_lengthened(self) -> bool:
        """Whether the run has taken a step, up to this one, that it would not have taken by itself."""
        return self._is_longer or self._place.run.id in self.turn.get("lengthened", ())

    def lengthen(self) -> None:
        """Takes note that this is such a step."""
        self._is_longer = True

    @property
    def settled(self) -> Collection[str]:
        """The ids of the requests whose end this visit has taken note of."""
        return self._settled.keys()

    def settle(self, todo: Drain, outcome: str) -> None:
        """Takes note of how requests have ended."""
        place = self._place
        self._settled.update(handled(todo, outcome=outcome, run_id=place.run.id, node=place.node))

    def know_runs(self, run_ids: Sequence[str]) -> None:
        """Takes note of earlier runs of the turn."""
        self.turn = {**self.turn, "runs": list(dict.fromkeys([*run_ids, *self.turn["runs"]]))}

    def of(
        self, messages: Sequence[BaseMessage] = (), *, sealed: Sequence[str] = (), empty: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Returns an update with these messages; with the ids of those that were sealed, or led nowhere."""
        mine = Turn(
            key=self.turn["key"],
            runs=self.turn["runs"],
            seals=list(sealed),
            restarts=self.restarts,
            empty_boundaries=list(empty),
        )
        if self._is_longer:
            mine["lengthened"] = [self._place.run.id]
        value: PreemptionState = {"turn": mine}
        if self._settled:
            value["handled"] = self._settled
        update: dict[str, Any] = {"preemption": value}
        if messages:
            update[self._place.messages_key] = list(messages)
        return update

    def set_phase(
        self,
        update: dict[str, Any],
        phase: Literal["open", "going", "over"],
        kind: Kind,
        message_id: str | None = None,
        *,
        held: AIMessage | None = None,
    ) -> None:
        """Adds to an update where the node stands after it."""
        before = self.boundary
        n = before["n"] + 1 if before is not None else 1
        boundary = Boundary(n=n, phase=phase, kind=kind, message_id=message_id)
        if held is not None:
            boundary["held"] = held
        update["preemption"]["boundaries"] = {self._place.node: boundary}

    def close(self, update: dict[str, Any]) -> None:
        """Adds to an update that the node's turn is over, if it was not before."""
        before = self.boundary
        if before is not None and before["phase"] != "over":
            self.set_phase(update, "over", before["kind"])

    def again(self, update: dict[str, Any]) -> Command[Any]:
        """Commits an update and enters the node once more, with the same argument where it was sent one."""
        place = self._place
        update["preemption"]["turn"]["lengthened"] = [place.run.id]
        if place.sent is None:
            return Command(update=update, goto=place.node)

        key = place.messages_key
        value = update["preemption"]
        mine = {**merge(place.sent.get("preemption"), value), "sent": place.owner}
        messages = add_messages(place.sent.get(key) or [], update.get(key, []))
        # Where this instance of the node stands is its own affair: others of its name have other arguments.
        shared = {**update, "preemption": {k: v for k, v in value.items() if k != "boundaries"}}
        return Command(
            update=shared, goto=Send(place.node, {**place.sent, key: messages, "preemption": mine})
        )
