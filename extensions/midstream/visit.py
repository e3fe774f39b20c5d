"""One entry of a model node, as a generator: what it decides is here, what it waits for is not.

The generator yields effects and is sent their results; `ModelNode` performs them, awaited or not. A visit
does one of three things, in this order:

1. The run is halted: nothing.
2. A boundary is open, or something is to be said before the model speaks: the boundary. Its messages and the
   ids of the requests that they came from are one update, so both are committed by one checkpoint, or
   neither. Then the node goes to itself, or the run ends with a halt reason.
3. Else the model is called. If its answer was sealed, or if the end of the turn has a boundary, the answer is
   committed and the node goes to itself, where case 2 finds it; else the turn is over.

A request that the state has as handled is marked on the ledger as well, so that a fork from an older
checkpoint does not apply it again; until then a claim tells those who do not see that state. Only what is
found in storage is marked: under `exit` durability, and for a moment under `async`, the state that a node
sees is not yet saved. So the last requests of a run are marked by the run after it, which looks for them in
other branches of the thread too: it may be a fork.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from langchain_core.messages import AIMessage, BaseMessage

from midstream._ledger_flow import MAX_SETTLED
from midstream._ledger_view import View
from midstream._run_notes import seal_note
from midstream.boundary import (
    INCOMPLETE,
    OUT_OF_STEPS,
    Drain,
    is_answered,
    outcome_at_entry,
    without_calls,
)
from midstream.effects import (
    CallModel,
    Flow,
    ReadLedger,
    ReadSaved,
    Rotate,
    Saved,
    WriteMarks,
    WriteSeal,
)
from midstream.events import Emitter
from midstream.halting import Halting
from midstream.hooks import BoundaryHook, Moment
from midstream.news import News
from midstream.node_call import NodeCall, PolledCall
from midstream.node_update import Kind, NodeUpdates, Place, Update
from midstream.options import Preemption
from midstream.pace import Pace
from midstream.replay import SEALED_KEY, tidy_sealed
from midstream.run import Run
from midstream.saying import Saying, Talk, said_by
from midstream.state import Boundary, PreemptionState, Turn
from midstream.taking import Taking

logger = logging.getLogger("midstream")


class Visit:
    """The facts of one entry of a model node, and the flow that follows from them."""

    def __init__(
        self,
        *,
        value: PreemptionState,
        messages: Sequence[BaseMessage],
        place: Place,
        options: Preemption,
        emitter: Emitter,
    ) -> None:
        self.options = options
        self.emitter = emitter
        self._value = value
        self._messages = messages
        self._place = place
        self._updates = NodeUpdates(place, value)
        self._talk = Talk(place, self._updates, messages)
        self._news = News(emitter, place, time.time())
        self._halting = Halting(place, self._updates, self._talk, self._news, options.hooks_at("end"))
        place.run.enter(place.input)
        self._taking = Taking(place, self._updates, value, messages, self._news)

    @property
    def _turn(self) -> Turn:
        return self._updates.turn

    @property
    def owner(self) -> str:
        return self._place.owner

    @property
    def run(self) -> Run:
        return self._place.run

    @property
    def ended_before(self) -> Collection[str]:
        return [*self._turn["seals"], *self._turn["restarts"]]

    @property
    def pace(self) -> Pace:
        """How often to look for requests while the model streams."""
        is_resumed = any(run_id != self.run.id for run_id in self._turn["runs"])
        return Pace(self.options.poll_interval, self.run.began_at if is_resumed else None)

    @property
    def can_seal(self) -> bool:
        """Whether the run has the steps for a boundary and the model going on."""
        return self._place.has_steps(2)

    def drain(self, view: View) -> Drain:
        return self._taking.drain(view)

    def flow(self) -> Flow[Update]:
        """Runs the visit; returns the node's update."""
        update = yield from self._visit()
        if self._place.sent is not None and isinstance(update, dict) and "preemption" in update:
            update["preemption"].pop("boundaries", None)
        self._news.tell()
        return update

    def _visit(self) -> Flow[Update]:
        if self._is_halted:
            return self._decline()
        view: View = yield ReadLedger()
        if any(
            each["run_id"] == self.run.id
            and each["node"] != self._place.node
            and each["at"] >= self.run.renewed_at
            for each in view.halts
        ):
            return self._decline()  # another agent decided it, and this process has not seen its state
        view = yield from self._tidy(view)
        for claim in view.claims_of_others(self._place.step, self.owner):
            self.run.know_ended(claim["ended"])

        if (boundary := self._open_boundary()) is not None:
            self._updates.lengthen()
            if (held := self._held) is not None:
                return (yield from self._go_to_tools(held, is_held=True))
            return (yield from self._run_boundary(boundary, view))
        if (update := (yield from self._enter(view))) is not None:
            return update
        return (yield from self._call_model(view))

    @property
    def _is_halted(self) -> bool:
        halt = self._value.get("halt")
        if halt is not None and halt["run_id"] == self.run.id and self._is_old_turn:
            return True
        # The agent that decided it is here again only if that was not committed, and then decides it anew.
        return self.run.halt is not None and self.run.halted_by != self.owner

    @property
    def _is_old_turn(self) -> bool:
        """Whether the channel's value is of this turn already."""
        old = self._value.get("turn")
        return old is not None and old["key"] == self._turn["key"]

    def _open_boundary(self) -> Boundary | None:
        boundary = self._updates.boundary
        if boundary is None or boundary["phase"] != "open":
            return None
        # One that was left open by an earlier turn is history.
        return boundary if self._is_old_turn else None

    @property
    def _held(self) -> AIMessage | None:
        """The answer that the agent has committed without its calls, and has to put in their place."""
        boundary = self._open_boundary()
        held = boundary.get("held") if boundary is not None else None
        return held if isinstance(held, AIMessage) else None

    def _decline(self) -> Update:
        """Does nothing in a run that is halted, but to leave no answer without its calls."""
        if (held := self._held) is None:
            return {}
        update = self._updates.of(self._answerable(held))
        self._updates.close(update)
        return update

    def _tidy(self, view: View) -> Flow[View]:
        """Marks what has ended, and keeps the ledger small; returns the ledger with those marks."""
        known = self._value.get("handled", {})
        begins = self._turn is not self._value.get("turn")
        if any(entry.id in known and entry.id not in view.marks for entry in view.entries) or (
            begins and view.pending(known)
        ):
            saved: Saved = yield ReadSaved(with_branches=begins)
            # A run of this turn may have ended before a node of ours could note it.
            mine = [run_id for run_id, name in saved.runs.items() if name == self._turn["key"]]
            self._updates.know_runs(mine)
            past = saved.handled
            if marks := {each.id: past[each.id] for each in view.pending() if each.id in past}:
                yield WriteMarks(marks)
                view = replace(view, marks={**view.marks, **marks})
        if view.size > MAX_SETTLED or not view.carried:
            yield Rotate(view)
        return view

    def _enter(self, view: View) -> Flow[Update | None]:
        """Says what has to be said before the model is called; None if that is nothing."""
        boundary = self._updates.boundary
        came_back = boundary is not None and boundary["phase"] == "going" and self._is_old_turn
        hooks: list[BoundaryHook] = []
        if self._outcome_here == "tool_boundary" and not came_back:
            hooks = self.options.hooks_at("tools")
        todo = yield from self._taking.take_if_possible(view, self._outcome_here)
        saying = yield from self._talk.ask(todo, "tools", hooks)
        if not saying.messages and saying.halt_reason is None:
            return None
        return (yield from self._say(todo, saying, "entry", self._outcome_here))

    @property
    def _outcome_here(self) -> str:
        return outcome_at_entry(self._messages)

    def _run_boundary(self, boundary: Boundary, view: View) -> Flow[Update]:
        kind = boundary["kind"]
        outcome = "sealed" if kind == "seal" else "turn_end"
        take = self._taking.take if kind == "seal" else self._taking.take_if_possible
        todo = yield from take(view, outcome)
        if kind == "seal":
            yield self._noted(boundary, view)
        moment: Moment = "seal" if kind == "seal" else "end"
        sealed = next((each for each in self._messages if each.id == boundary["message_id"]), None)
        saying = yield from self._talk.ask(todo, moment, self.options.hooks_at(moment), sealed)
        if not saying.messages and saying.halt_reason is None:
            if kind == "end":
                update = self._updates.of()
                self._updates.set_phase(update, "over", kind)
                return update
            if not todo.known and not is_answered(sealed, self._messages):
                update = self._updates.of(empty=[str(boundary["message_id"])])
                self._news.log("boundary", outcome="empty", messages=0)
                halted = yield from self._halting.halt(update, INCOMPLETE, todo, kind, sealed)
                yield self._noted(boundary, view, is_empty=True)
                return halted
        return (yield from self._say(todo, saying, kind, outcome, sealed if kind == "seal" else None))

    def _noted(self, boundary: Boundary, view: View, *, is_empty: bool = False) -> WriteSeal:
        note = seal_note(self.run.id, str(boundary["message_id"]), time.time(), is_empty=is_empty)
        self.run.note_seal(note, view.runs)
        return WriteSeal(note, view)

    def _say(
        self, todo: Drain, saying: Saying, kind: Kind, outcome: str, sealed: BaseMessage | None = None
    ) -> Flow[Update]:
        """Commits what a boundary comes to, and goes on or halts."""
        self._updates.settle(todo, outcome)
        update = self._updates.of(saying.messages)
        if saying.messages:
            self._news.keep(
                "injected",
                outcome=outcome,
                message_ids=[message.id for message in saying.messages],
                request_ids=[entry.id for entry in todo.steers],
            )
        self._news.log(
            "boundary",
            outcome=outcome,
            messages=len(saying.messages),
            request_ids=[entry.id for entry in todo.applied],
        )
        if saying.halt_reason is not None:
            return (yield from self._halting.halt(update, saying.halt_reason, todo, kind, sealed))
        self._updates.set_phase(update, "going", kind)
        return self._updates.again(update)

    def _call_model(self, view: View) -> Flow[Update]:
        poll = self.options.should_preempt
        if poll is not None and self.run.is_armed(poll) and self.options.hooks_at("seal"):
            call: NodeCall = PolledCall(self, poll)
        else:
            call = NodeCall(self)
        call.look(view)
        self._news.tell()
        message_id: str | None = None
        try:
            answer: AIMessage = yield CallModel(call)
            if call.holds_budget:
                message_id = str(answer.id)
        finally:
            if call.holds_budget:
                self.run.finish_seal(message_id)

        if call.restarted:
            return (yield from self._restart(answer, call))
        if call.sealed:
            return (yield from self._seal(answer, call, view))
        if answer.tool_calls:
            return (yield from self._go_to_tools(answer, has_halt=call.has_halt))
        return (yield from self._end(answer))

    def _restart(self, answer: AIMessage, call: NodeCall) -> Flow[Update]:
        """Applies what waits, in place of an answer that had shown nothing; that one is not kept."""
        self._news.keep("restarted", message_id=answer.id, request_ids=call.claimed)
        self._news.log("restarted", began=call.claimed_since, message_id=answer.id, request_ids=call.claimed)
        self._updates.restarts = [str(answer.id)]
        view: View = yield ReadLedger()
        if self.drain(view).halts and self.options.hooks_at("end"):
            # They may pause, and would find that the answer was never begun: so that is committed first.
            yield from self._taking.tell_agents(view, [], self._updates.restarts)
            update = self._updates.of()
            self._updates.set_phase(update, "going", "entry")
            return self._updates.again(update)
        todo = yield from self._taking.take(view, "entry")
        return (yield from self._say(todo, said_by(todo), "entry", "entry"))

    def _seal(self, answer: AIMessage, call: NodeCall, view: View) -> Flow[Update]:
        yield from self._taking.tell_agents(view, call.claimed, [str(answer.id)])
        answer = tidy_sealed(answer)
        answer.response_metadata[SEALED_KEY] = {
            "sealed": True,
            "node": self._place.node,
            "request_ids": call.claimed,
        }
        self._news.keep("sealed", message_id=answer.id, request_ids=call.claimed)
        self._news.log("sealed", began=call.claimed_since, message_id=answer.id, request_ids=call.claimed)
        update = self._updates.of([answer], sealed=[str(answer.id)])
        self._updates.set_phase(update, "open", "seal", answer.id)
        return self._updates.again(update)

    def _go_to_tools(
        self, answer: AIMessage, *, has_halt: bool = True, is_held: bool = False
    ) -> Flow[Update]:
        if has_halt:
            # The tools must not act any more, so the halt is settled together with the turn that calls them.
            view: View = yield ReadLedger()
            halting = Drain(halts=self.drain(view).halts)
            self.run.take(self.owner, [entry.id for entry in halting.halts])
            if halting.halts and not is_held and self.options.hooks_at("end") and self._place.has_steps(1):
                return self._hold(answer)
            if (halting := (yield from self._taking.apply(halting, view, "tool_boundary"))).halts:
                messages = self._answerable(answer)
                return (yield from self._halting.obey(messages, halting, "tool_boundary", may_pause=is_held))
        if self._is_out_of_steps:
            update = self._updates.of(without_calls(answer))
            return (yield from self._halting.halt(update, OUT_OF_STEPS, Drain(), "end", may_pause=is_held))
        update = self._updates.of(self._answerable(answer) if self._is_halted else [answer])
        self._updates.close(update)
        return update

    def _hold(self, answer: AIMessage) -> Update:
        """Commits an answer whose tools must not act, before hooks are asked that may pause.

        What it says is a message at once; its calls stay out of the thread until they can be answered as not
        run, because a graph's edges lead from them to the tools.
        """
        update = self._updates.of(without_calls(answer))
        self._updates.set_phase(update, "open", "end", answer.id, held=answer)
        return self._updates.again(update)

    def _answerable(self, answer: AIMessage) -> list[AIMessage]:
        """Returns an answer whose tools must not act; without its calls where no steps are left for that."""
        return [answer] if self._place.has_steps(0) else without_calls(answer)

    @property
    def _is_out_of_steps(self) -> bool:
        """Whether a round of tools would end in a recursion error, for which our own steps may be to blame.

        How many rounds a model will want cannot be known when its answer is sealed, or when a hook speaks: so
        what they say is said while there are steps for the model to answer it, and this is the price.
        """
        return not self._place.has_steps(0) and self._updates.is_lengthened

    def _end(self, answer: AIMessage) -> Flow[Update]:
        view: View = yield ReadLedger()
        todo = yield from self._taking.take(view, "turn_end")
        hooks = self.options.hooks_at("end")
        if (todo.steers and self._place.has_steps(2)) or (hooks and self._place.has_steps(0)):
            update = self._updates.of([answer])
            self._updates.set_phase(update, "open", "end", answer.id)
            return self._updates.again(update)
        if todo.halts:
            halting = Drain(halts=todo.halts)
            return (yield from self._halting.obey([answer], halting, "turn_end", may_pause=False))
        if hooks:
            self._talk.lacks_steps("boundary hooks at the turn's end are not asked")
        update = self._updates.of([answer])
        self._updates.close(update)
        return update
