"""What an agent takes of the requests on the ledger, so that nobody else does, and its host hears of it."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from langchain_core.messages import BaseMessage

from midstream._ledger_view import View
from midstream.boundary import Drain, drain
from midstream.effects import Apply, Flow, WriteClaim
from midstream.news import News
from midstream.node_update import NodeUpdates, Place
from midstream.state import PreemptionState


class Taking:
    """The requests that one visit may settle, and has settled."""

    def __init__(
        self,
        place: Place,
        updates: NodeUpdates,
        value: PreemptionState,
        messages: Sequence[BaseMessage],
        news: News,
    ) -> None:
        self._place = place
        self._updates = updates
        self._handled = frozenset(value.get("handled", {}))
        self._message_ids = frozenset(message.id for message in messages)
        self._news = news
        self._lost: set[str] = set()
        """Requests that were withdrawn, or another agent's, when this one came to claim them."""

    def drain(self, view: View) -> Drain:
        """Returns what this node would settle of what the ledger says."""
        pending = view.pending({*self._handled, *self._updates.settled, *self._lost})
        free = set(self._place.run.free(self._place.owner, [entry.id for entry in pending]))
        for claim in view.claims_of_others(self._place.step, self._place.owner):
            free.difference_update(claim["request_ids"])
        return drain(
            [entry for entry in pending if entry.id in free],
            node=self._place.node,
            turn=self._updates.turn,
            run_id=self._place.run.id,
            message_ids=self._message_ids,
        )

    def take(self, view: View, outcome: str) -> Flow[Drain]:
        """Makes the requests that are to be settled here this agent's own."""
        todo = self.drain(view)
        self._place.run.take(self._place.owner, [entry.id for entry in todo.applied + todo.expired])
        if todo.expired:
            self._news.keep("expired", request_ids=[entry.id for entry in todo.expired])
        self._updates.settle(todo.quiet, "entry")
        yield from self.tell_agents(view, [], self._updates.restarts)
        return (yield from self.apply(todo, view, outcome))

    def take_if_possible(self, view: View, outcome: str) -> Flow[Drain]:
        """Same as `take`; only, without the steps to go on with, requests are left to the next run."""
        if self._place.can_go_on or self.drain(view).halts:
            return (yield from self.take(view, outcome))
        return Drain()

    def apply(self, todo: Drain, view: View, outcome: str) -> Flow[Drain]:
        """Leaves out what was withdrawn in the last moment, and tells who would withdraw the rest."""
        claim = self._place.claim([entry.id for entry in todo.applied], time.time(), outcome=outcome)
        if claim is None or not claim["request_ids"]:
            return todo
        mine: list[str] = yield Apply(claim, view)
        self._lost.update({*claim["request_ids"]} - {*mine})
        return todo.only(mine)

    def tell_agents(self, view: View, request_ids: list[str], ended: Collection[str]) -> Flow[None]:
        """Tells other agents what they must not do too; they do not see this state before it is committed."""
        claim = self._place.claim(request_ids, time.time(), ended=ended)
        if claim is not None and self._place.is_shared and (request_ids or ended):
            yield WriteClaim(claim, view)
