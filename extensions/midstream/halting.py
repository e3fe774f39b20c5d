"""How an agent halts its run: hooks are asked first, others decline meanwhile, the ledger notes it last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from midstream.boundary import Drain
from midstream.effects import AskHook, Flow, WriteHalt
from midstream.hooks import BoundaryHook
from midstream.news import News
from midstream.node_update import Kind, NodeUpdates, Place, Update
from midstream.saying import Talk
from midstream.state import Halt


class Halting:
    """Halts the run of one visit."""

    def __init__(
        self, place: Place, updates: NodeUpdates, talk: Talk, news: News, hooks: Sequence[BoundaryHook]
    ) -> None:
        self._place = place
        self._updates = updates
        self._talk = talk
        self._news = news
        self._hooks = hooks

    def halt(
        self,
        update: dict[str, Any],
        reason: str,
        todo: Drain,
        kind: Kind,
        sealed: BaseMessage | None = None,
        *,
        may_pause: bool = True,
    ) -> Flow[Update]:
        """Completes an update by which the run ends, for this reason; a hook may pause the run first."""
        halt = Halt(run_id=self._place.run.id, reason=reason, node=self._place.node)
        with self._deciding(halt):
            for hook in self._hooks:
                given = self._talk.given("end", sealed=sealed, todo=todo, halt_reason=reason)
                yield AskHook(hook, given, may_pause)
            # Not before: a hook may pause the run, which then is not halted, and may never be.
            yield WriteHalt(halt)
        update["preemption"]["halt"] = halt
        self._updates.set_phase(update, "over", kind)
        request_ids = [entry.id for entry in todo.halts]
        self._news.keep("halted", reason=reason, run_id=self._place.run.id, request_ids=request_ids)
        self._news.log("halted", reason=reason, request_ids=request_ids)
        return update

    def obey(
        self, messages: list[AIMessage], halting: Drain, outcome: str, *, may_pause: bool
    ) -> Flow[Update]:
        """Commits the last messages and ends the run as requests ask."""
        self._updates.settle(halting, outcome)
        reason = str(halting.halts[0].reason)
        update = self._updates.of(messages)
        return (yield from self.halt(update, reason, halting, "end", may_pause=may_pause))

    @contextmanager
    def _deciding(self, halt: Halt) -> Iterator[None]:
        """Has the run's other agents decline, unless this comes to nothing; of two halts the first stays."""
        run = self._place.run
        if run.halt is None or run.halted_by == self._place.owner:
            run.halt, run.halted_by = halt, self._place.owner
        try:
            yield
        except BaseException:  # a pause or a cancelled run, by which the flow is closed
            if run.halt is halt:
                run.halt = run.halted_by = None
            raise
