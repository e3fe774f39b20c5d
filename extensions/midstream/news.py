"""What a visit of a model node tells of itself: its events to a host, log lines and counts to an operator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from midstream.events import Emitter
from midstream.node_update import Place
from midstream.telemetry import Event, tell


class News:
    """Keeps what happened until it is certain.

    A hook may pause the run at any time before the visit's update is returned; then nothing has happened, and
    on resume everything happens anew. So it is told once no hook will be asked any more.
    """

    def __init__(self, emitter: Emitter, place: Place, began: float) -> None:
        self._emitter = emitter
        self._place = place
        self._began = began
        self._kept: list[Callable[[], None]] = []

    def keep(self, event: str, **facts: Any) -> None:
        """Has an event emitted when it is time."""
        self._kept.append(partial(self._emitter.emit, event, **facts))

    def log(self, event: Event, **facts: Any) -> None:
        """Has an operator told when it is time; without `began`, of what began with the visit."""
        place = self._place
        known = {"began": self._began, **facts}
        known.update(thread_id=place.thread_id, run_id=place.run.id, node=place.node)
        self._kept.append(partial(tell, event, **known))

    def tell(self) -> None:
        """Tells everything that was kept."""
        kept, self._kept = self._kept, []
        for each in kept:
            each()
