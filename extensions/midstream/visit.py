"""One entry of a model node, as a generator: what it decides is here, what it waits for is not.

The generator yields effects and is sent their results; `ModelNode` performs them, awaited or not. A visit
does one of three things, in this order:

1. The run is halted: nothing.
2. A boundary is open, or requests are pending: the boundary. Its messages and the ids of the requests that
   they came from are one update, so both are committed by one checkpoint, or neither. Then the node goes to
   itself, or the run ends with a halt reason.
3. Else the model is called. If its answer was sealed, or requests came while it ended, the answer is
   committed and the node goes to itself, where case 2 finds it; else the turn is over.

A request that the state has as handled is marked on the ledger as well, so that a fork from an older
checkpoint does not apply it again. Only what is found in storage is marked: under `exit` durability, and
for a moment under `async`, the state that a node sees is not yet saved.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from langchain_core.messages import AIMessage, BaseMessage
from langgraph.types import Command

from midstream._ledger_flow import MAX_SETTLED, Entry, View
from midstream.boundary import (
    INCOMPLETE,
    Drain,
    drain,
    handled,
    injected,
    outcome_at_entry,
    turn_of,
)
from midstream.events import Emitter
from midstream.gate import WaitReason
from midstream.options import Preemption
from midstream.replay import SEALED_KEY, tidy_sealed
from midstream.run import Run
from midstream.state import Boundary, Halt, Handled, PreemptionState, Turn, halt_of, preemption_of
from midstream.watch import WatchedCall

STEPS_FOR_SEAL = 2
"""Steps that a run needs after a seal: the boundary, and the model going on."""

Update: TypeAlias = dict[str, Any] | Command[Any]


@dataclass(frozen=True, slots=True)
class ReadLedger:
    """Asks for a `View` of the ledger."""


@dataclass(frozen=True, slots=True)
class ReadSaved:
    """Asks for the handled requests in the state as it is in storage, by id."""


@dataclass(frozen=True, slots=True)
class WriteMarks:
    """Asks for marks on the ledger."""

    marks: Mapping[str, Handled]


@dataclass(frozen=True, slots=True)
class Rotate:
    """Asks for a new root of the ledger."""

    view: View


@dataclass(frozen=True, slots=True)
class WriteHalt:
    """Asks for the ledger's own record of a halt."""

    halt: Halt


@dataclass(frozen=True, slots=True)
class CallModel:
    """Asks for the model's answer; `call` decides over its stream."""

    call: NodeCall


Effect: TypeAlias = ReadLedger | ReadSaved | WriteMarks | Rotate | WriteHalt | CallModel
T = TypeVar("T")
Flow: TypeAlias = Generator[Effect, Any, T]


class NodeCall(WatchedCall):
    """One call of a node's model: wants to be sealed when a request for its node is pending."""

    def __init__(self, visit: Visit) -> None:
        super().__init__()
        self.count_tokens = visit.options.token_counter
        self._visit = visit
        self._wanted: tuple[Entry, ...] = ()
        self._told: set[str] = set()
        self.claimed: list[str] = []
        """The requests for which the answer was ended."""

    @property
    def is_halted(self) -> bool:
        """Whether a halt is among the requests that are waiting."""
        return any(entry.kind == "halt" for entry in self._wanted)

    def look(self, view: View) -> None:
        self._wanted = self._visit.drain(view).applied
        if self._wanted:
            self.request()
        else:
            self.requested = False

    def claim(self) -> bool:
        visit = self._visit
        if visit.seals_used >= visit.options.max_seals:
            return self._wait("budget")
        if visit.steps_left is not None and visit.steps_left < STEPS_FOR_SEAL:
            return self._wait("recursion_limit")
        self.claimed = visit.run.take(visit.owner, [entry.id for entry in self._wanted])
        return bool(self.claimed)

    def blocked(self, reason: WaitReason) -> None:
        self._wait(reason)

    def _wait(self, reason: WaitReason | Literal["budget", "recursion_limit"]) -> bool:
        if reason not in self._told:
            self._told.add(reason)
            self._visit.emitter.emit(
                "waiting", reason=reason, request_ids=[entry.id for entry in self._wanted]
            )
        return False


class Visit:
    """The facts of one entry of a model node, and the flow that follows from them."""

    def __init__(
        self,
        *,
        state: Any,
        messages: Sequence[BaseMessage],
        messages_key: str,
        node: str,
        owner: str,
        run: Run,
        options: Preemption,
        emitter: Emitter,
        steps_left: int | None,
    ) -> None:
        self.options = options
        self.owner = owner
        self.run = run
        self.emitter = emitter
        self.steps_left = steps_left
        self._state = state
        self._value: PreemptionState = preemption_of(state)
        self._messages = messages
        self._message_ids = frozenset(message.id for message in messages)
        self._messages_key = messages_key
        self._node = node
        self._turn = turn_of(self._value, messages, run.id)

    @property
    def seals_used(self) -> int:
        return len(self._turn["seals"])

    def drain(self, view: View) -> Drain:
        """Returns what this node would settle of what the ledger says."""
        pending = view.pending(self._value.get("handled", {}))
        free = set(self.run.free(self.owner, [entry.id for entry in pending]))
        return drain(
            [entry for entry in pending if entry.id in free],
            node=self._node,
            turn=self._turn,
            message_ids=self._message_ids,
        )

    def flow(self) -> Flow[Update]:
        """Runs the visit; returns the node's update."""
        if halt_of(self._state, self.run.id) is not None:
            return {}

        view: View = yield ReadLedger()
        yield from self._tidy(view)
        todo = self._take(view)
        boundary = self._open_boundary()
        # An entry needs one more step, for the model; without it the requests wait for the next run.
        if boundary is not None or (todo and (todo.halts or self.steps_left != 0)):
            return (yield from self._run_boundary(boundary, todo))

        call = NodeCall(self)
        call.look(view)
        answer: AIMessage = yield CallModel(call)
        if call.sealed:
            return self._seal(answer, call)
        if answer.tool_calls:
            return (yield from self._go_to_tools(answer, call))
        return (yield from self._end(answer))

    def _take(self, view: View) -> Drain:
        todo = self.drain(view)
        self.run.take(self.owner, [entry.id for entry in todo.applied + todo.expired])
        return todo

    def _open_boundary(self) -> Boundary | None:
        boundary = self._value.get("boundaries", {}).get(self._node)
        if boundary is None or boundary["phase"] != "open":
            return None
        # One that was left open by an earlier turn is history: a person has spoken since.
        old = self._value.get("turn")
        return boundary if old is not None and old["key"] == self._turn["key"] else None

    def _tidy(self, view: View) -> Flow[None]:
        known = self._value.get("handled", {})
        if any(entry.id in known and entry.id not in view.marks for entry in view.entries):
            saved: Mapping[str, Handled] = yield ReadSaved()
            if marks := {each.id: saved[each.id] for each in view.pending() if each.id in saved}:
                yield WriteMarks(marks)
        if view.size > MAX_SETTLED or not view.carried:
            yield Rotate(view)

    def _run_boundary(self, boundary: Boundary | None, todo: Drain) -> Flow[Update]:
        kind = boundary["kind"] if boundary is not None else "entry"
        outcome = {"seal": "sealed", "end": "turn_end"}.get(kind) or outcome_at_entry(self._messages)
        messages: list[BaseMessage] = [message for entry in todo.steers for message in injected(entry)]
        update = self._update(messages, handled=self._handled(todo, outcome))

        if todo.expired:
            self.emitter.emit("expired", request_ids=[entry.id for entry in todo.expired])
        if messages:
            self.emitter.emit(
                "injected",
                outcome=outcome,
                message_ids=[message.id for message in messages],
                request_ids=[entry.id for entry in todo.steers],
            )

        if todo.halts:
            return (
                yield from self._halt(
                    update, str(todo.halts[0].reason), [entry.id for entry in todo.halts], kind
                )
            )
        if not messages and kind == "seal" and not todo.known:
            empty = boundary["message_id"] if boundary is not None else None
            update["preemption"]["turn"]["empty_boundaries"] = [str(empty)]
            return (yield from self._halt(update, INCOMPLETE, [], kind))
        self._enter(update, "going", kind, None)
        return Command(update=update, goto=self._node)

    def _halt(
        self,
        update: dict[str, Any],
        reason: str,
        request_ids: list[str],
        kind: Literal["seal", "end", "entry"],
    ) -> Flow[Update]:
        halt = Halt(run_id=self.run.id, reason=reason, node=self._node)
        yield WriteHalt(halt)
        update["preemption"]["halt"] = halt
        self._enter(update, "over", kind, None)
        self.emitter.emit("halted", reason=reason, run_id=self.run.id, request_ids=request_ids)
        return update

    def _seal(self, answer: AIMessage, call: NodeCall) -> Update:
        answer = tidy_sealed(answer)
        answer.response_metadata[SEALED_KEY] = {
            "sealed": True,
            "node": self._node,
            "request_ids": call.claimed,
        }
        self.emitter.emit("sealed", message_id=answer.id, request_ids=call.claimed)
        update = self._update([answer])
        update["preemption"]["turn"]["seals"] = [str(answer.id)]
        self._enter(update, "open", "seal", answer.id)
        return Command(update=update, goto=self._node)

    def _go_to_tools(self, answer: AIMessage, call: NodeCall) -> Flow[Update]:
        if call.is_halted:
            # The tools must not act any more, so the halt is settled together with the turn that calls them.
            view: View = yield ReadLedger()
            todo = self._take(view)
            if todo.halts:
                halting = Drain(halts=todo.halts)
                update = self._update([answer], handled=self._handled(halting, "tool_boundary"))
                request_ids = [entry.id for entry in todo.halts]
                return (yield from self._halt(update, str(todo.halts[0].reason), request_ids, "entry"))
        update = self._update([answer])
        self._close(update)
        return update

    def _end(self, answer: AIMessage) -> Flow[Update]:
        view: View = yield ReadLedger()
        todo = self._take(view)
        if todo.steers and (self.steps_left is None or self.steps_left >= STEPS_FOR_SEAL):
            update = self._update([answer])
            self._enter(update, "open", "end", answer.id)
            return Command(update=update, goto=self._node)

        settled = Drain(halts=todo.halts, expired=todo.expired, known=todo.known)
        update = self._update([answer], handled=self._handled(settled, "turn_end"))
        if todo.halts:
            request_ids = [entry.id for entry in todo.halts]
            return (yield from self._halt(update, str(todo.halts[0].reason), request_ids, "end"))
        self._close(update)
        return update

    def _handled(self, todo: Drain, outcome: str) -> dict[str, Handled]:
        return handled(todo, outcome=outcome, run_id=self.run.id, node=self._node)

    def _update(
        self, messages: Sequence[BaseMessage], *, handled: dict[str, Handled] | None = None
    ) -> dict[str, Any]:
        turn = Turn(key=self._turn["key"], runs=[self.run.id], seals=[], restarts=[], empty_boundaries=[])
        value: PreemptionState = {"turn": turn}
        if handled:
            value["handled"] = handled
        update: dict[str, Any] = {"preemption": value}
        if messages:
            update[self._messages_key] = list(messages)
        return update

    def _enter(
        self,
        update: dict[str, Any],
        phase: Literal["open", "going", "over"],
        kind: Literal["seal", "end", "entry"],
        message_id: str | None,
    ) -> None:
        before = self._value.get("boundaries", {}).get(self._node)
        n = before["n"] + 1 if before is not None else 1
        update["preemption"]["boundaries"] = {
            self._node: Boundary(n=n, phase=phase, kind=kind, message_id=message_id)
        }

    def _close(self, update: dict[str, Any]) -> None:
        before = self._value.get("boundaries", {}).get(self._node)
        if before is not None and before["phase"] != "over":
            self._enter(update, "over", before["kind"], None)
