"""What a boundary comes to: the words of the requests and of the hooks, in their order."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from langchain_core.messages import AIMessage, BaseMessage

from midstream.boundary import Drain, injected
from midstream.effects import AskHook, Flow
from midstream.hooks import BoundaryHook, BoundaryInput, Moment, Wish
from midstream.node_update import NodeUpdates, Place

logger = logging.getLogger("midstream")


@dataclass(slots=True)
class Saying:
    """What is said at a boundary."""

    messages: list[BaseMessage] = field(default_factory=list)
    halt_reason: str | None = None
    """Why the run ends here; None if it goes on."""


def said_by(todo: Drain) -> Saying:
    """Returns what requests say."""
    return Saying(
        messages=[message for entry in todo.steers for message in injected(entry)],
        halt_reason=todo.halts[0].reason if todo.halts else None,
    )


class Talk:
    """Asks the hooks of one visit."""

    def __init__(self, place: Place, updates: NodeUpdates, messages: Sequence[BaseMessage]) -> None:
        self._place = place
        self._updates = updates
        self._messages = messages

    def ask(
        self,
        todo: Drain,
        moment: Moment,
        hooks: Sequence[BoundaryHook],
        sealed: BaseMessage | None = None,
    ) -> Flow[Saying]:
        """Collects what the requests and the hooks say.

        At the end of a turn that is halted the hooks are not asked here, but as the run ends.
        """
        saying = said_by(todo)
        requested = saying.halt_reason
        for hook in () if moment == "end" and todo.halts else hooks:
            given = self.given(moment, sealed=sealed, todo=todo, halt_reason=requested)
            wish: Wish = yield AskHook(hook, given)
            is_over = requested is not None or wish.halt_reason is not None
            if wish.messages and not is_over and not self._place.can_go_on:
                self.lacks_steps(f"what boundary hook {hook.name} says is passed over")
                continue
            taken = {None, *(each.id for each in self._messages), *(each.id for each in saying.messages)}
            for message in wish.messages:
                is_new = message.id not in taken
                taken.add(message.id)
                saying.messages.append(
                    message if is_new else message.model_copy(update={"id": str(uuid.uuid4())})
                )
            if wish.halt_reason is not None:
                saying.halt_reason = requested or wish.halt_reason
                break
        return saying

    def lacks_steps(self, consequence: str) -> None:
        """Says once in a run what comes of its having no steps left."""
        if self._place.run.is_first(consequence):
            left = self._place.steps_left
            logger.warning(
                "%s: the run has %s steps left; give it a higher recursion_limit", consequence, left
            )

    def given(
        self,
        kind: Moment,
        *,
        sealed: BaseMessage | None,
        todo: Drain,
        halt_reason: str | None,
    ) -> BoundaryInput:
        """Returns what a hook is told."""
        return BoundaryInput(
            kind=kind,
            messages=tuple(self._messages),
            sealed=sealed if isinstance(sealed, AIMessage) else None,
            requests=todo.applied,
            node=self._place.node,
            run_id=self._place.run.id,
            thread_id=self._place.thread_id,
            seals_used=len(self._updates.turn["seals"]),
            halt_reason=halt_reason,
        )
