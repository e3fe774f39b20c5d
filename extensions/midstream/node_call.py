"""One call of a node's model, as the look-out sees it: what is wanted of it, and whether that may be now."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Collection
from typing import Literal, Protocol, TypeAlias

from midstream._ledger_view import Entry, View
from midstream.boundary import Drain
from midstream.events import Emitter
from midstream.gate import WaitReason
from midstream.options import Preemption
from midstream.run import Run
from midstream.watch import WatchedCall

logger = logging.getLogger("midstream")

Refusal: TypeAlias = WaitReason | Literal["budget", "recursion_limit"]


class Timer(Protocol):
    """Calls back after some seconds, unless it is cancelled."""

    def cancel(self) -> None: ...


class Caller(Protocol):
    """What a call has to know of the visit that makes it."""

    @property
    def options(self) -> Preemption: ...
    @property
    def owner(self) -> str: ...
    @property
    def run(self) -> Run: ...
    @property
    def emitter(self) -> Emitter: ...
    @property
    def ended_before(self) -> Collection[str]:
        """The ids of the turn's seals and restarts, as the state has them."""

    @property
    def can_seal(self) -> bool:
        """Whether the run has the steps that a seal needs."""

    def drain(self, view: View) -> Drain: ...


class NodeCall(WatchedCall):
    """Wants to be sealed while a request for its node is pending, or to be begun anew if it shows nothing."""

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self.count_tokens = caller.options.token_counter
        self._caller = caller
        self._wanted: tuple[Entry, ...] = ()
        self._told: set[str] = set()
        self._restart_at: float | None = None
        self._timer: Timer | None = None
        self.call_later: Callable[[float, Callable[[], None]], Timer] | None = None
        """How to be called back while the provider is silent; None where nothing can interrupt it."""

        self.claimed: list[str] = []
        """The requests for which the answer was ended."""

        self.claimed_since: float | None = None
        """When the first of these was accepted, in seconds of Unix time; None if there are none."""

        self.holds_budget = False
        """Whether a seal was taken from the turn's budget, and not accounted for yet."""

    @property
    def has_halt(self) -> bool:
        """Whether a halt is among the requests that wait."""
        return any(entry.kind == "halt" for entry in self._wanted)

    def look(self, view: View) -> None:
        self._wanted = self._caller.drain(view).applied
        if not self._wanted:
            self.requested = False
            self._restart_at = None  # the next request has a grace of its own
            self.finished()
            return
        if self._restart_at is None and (grace := self._caller.options.restart_grace) is not None:
            self._restart_at = time.monotonic() + grace
            if self.call_later is not None:
                self._timer = self.call_later(grace, self.wake)
        self.request()

    def finished(self) -> None:
        """Stops the clock of a call that is over."""
        if self._timer is not None:
            self._timer.cancel()

    def claim(self) -> bool:
        return self._claim([entry.id for entry in self._wanted])

    def claim_restart(self) -> bool:
        if self._restart_at is None or time.monotonic() < self._restart_at or not self._wanted:
            return False
        return self._claim([entry.id for entry in self._wanted])

    def _claim(self, request_ids: list[str]) -> bool:
        caller = self._caller
        if not caller.can_seal:
            return self._wait("recursion_limit")
        claimed = caller.run.take(caller.owner, request_ids)
        if not claimed:
            return False
        if not caller.run.begin_seal(caller.ended_before, caller.options.max_seals):
            return self._wait("budget")
        self.holds_budget = True
        self.claimed = claimed
        self.claimed_since = min(
            (entry.accepted_at for entry in self._wanted if entry.id in claimed), default=None
        )
        return True

    def blocked(self, reason: WaitReason) -> None:
        if self._wanted:
            self._wait(reason)

    def _wait(self, reason: Refusal) -> bool:
        if reason not in self._told:
            self._told.add(reason)
            self._caller.emitter.emit(
                "waiting", reason=reason, request_ids=[entry.id for entry in self._wanted]
            )
        return False


class PolledCall(NodeCall):
    """Wants to be sealed also when the application's `should_preempt` says so."""

    _requested = False

    def __init__(self, caller: Caller, should_preempt: Callable[[], bool]) -> None:
        super().__init__(caller)
        self._should_preempt: Callable[[], bool] | None = should_preempt

    @property
    def requested(self) -> bool:
        return self._requested or self._poll()

    @requested.setter
    def requested(self, value: bool) -> None:
        self._requested = value

    def opened(self) -> None:
        if self._requested:
            self.wake()

    def _poll(self) -> bool:
        if self._should_preempt is None:
            return False
        try:
            wanted = self._should_preempt()
            if inspect.iscoroutine(wanted):
                wanted.close()
                raise TypeError("should_preempt must be a plain function, because nothing waits for it")
            return bool(wanted)
        except (Exception, asyncio.CancelledError):
            if self._caller.run.disarm(self._should_preempt):
                logger.warning("should_preempt failed and is not asked again in this run", exc_info=True)
            self._should_preempt = None
            return False

    def claim(self) -> bool:
        if self._wanted:
            return super().claim()
        # Parallel agents are polled to the same effect, so one of them seals: the turn's n-th seal is one.
        claimed = self._claim([f"should_preempt {len(self._caller.ended_before)}"])
        self.claimed = []
        return claimed
