"""The look-out for new requests while answers stream: one for each run, whatever the number of its agents.

It reads the ledger when it starts, and at once when a request was written in this process; for those that
another process wrote it looks at its `Pace`. What it sees it tells to all calls that are being streamed. A
ledger that cannot be read does not disturb an answer: it is tried again at the next look.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from midstream import wakeup
from midstream._ledger_view import View
from midstream.glance import Stamp, glances_of
from midstream.ledger import Ledger
from midstream.pace import Pace
from midstream.run import Run
from midstream.seal import SealControl
from midstream.turnstile import turnstile

logger = logging.getLogger("midstream")


class WatchedCall(SealControl, ABC):
    """A model call that wants to know what is on the ledger."""

    @abstractmethod
    def look(self, view: View) -> None:
        """Takes note of what the ledger says; called on any thread, and has to return at once."""


class _Calls:
    """The calls that one watch serves, and how often it looks."""

    def __init__(self, ledger: Ledger, thread_id: str, pace: Pace) -> None:
        self._ledger = ledger
        self._thread_id = thread_id
        self._pace = pace
        self._calls: set[WatchedCall] = set()
        self._failing = False

    def _tell(self, view: View) -> None:
        self._failing = False
        for call in list(self._calls):
            call.look(view)

    def _failed(self) -> None:
        if not self._failing:
            logger.warning("the ledger of thread %s cannot be read", self._thread_id, exc_info=True)
        self._failing = True


class AsyncWatch(_Calls):
    """A watch on an event loop."""

    def __init__(self, ledger: Ledger, thread_id: str, pace: Pace) -> None:
        super().__init__(ledger, thread_id, pace)
        self._turnstile = turnstile()
        self._glances = glances_of(ledger)
        self._turn: asyncio.Future[Any] | None = None
        self._view: View | None = None
        self._stamp: Stamp | None = None
        self._look_now = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def join(self, call: WatchedCall) -> None:
        self._calls.add(call)
        if self._task is None:
            self._task = asyncio.create_task(self._watch())
        else:
            self._wake()

    def leave(self, call: WatchedCall) -> bool:
        """Returns whether that was the last call."""
        self._calls.discard(call)
        return not self._calls

    async def stop(self) -> None:
        """Ends the watch; a read that is under way is awaited, since half a read can spoil a connection.

        A cancelled caller leaves at once, and the read ends by itself.
        """
        self._wake()
        if self._task is not None:
            await asyncio.shield(self._task)

    def _wake(self) -> None:
        self._look_now.set()
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(False)

    async def _look(self) -> View | None:
        """Returns what is on the ledger; reads it at once if there is a reason, or if it has come further."""
        if self._look_now.is_set():
            return await self._read()
        if self._glances is None or not self._glances.is_possible or self._view is None:
            return await self._look_in_turn()

        self._turn = self._glances.ask(self._thread_id)
        try:
            stamp = await self._turn
        except Exception:
            view = await self._look_in_turn()
            self._glances.could_be_read()
            return view
        if not self._calls:
            return None
        if self._look_now.is_set():
            return await self._read()
        if stamp == self._stamp:
            return self._view
        view = await self._read()
        # The one from before the read, and only after it: what was not read yet has another one.
        self._stamp = stamp
        return view

    async def _look_in_turn(self) -> View | None:
        turn = self._turn = self._turnstile.take()
        try:
            await turn
            return await self._read() if self._calls else None
        finally:
            # A wait that was cancelled has left the line, unless its turn had come just before.
            if not turn.cancelled() and turn.result():
                self._turnstile.give_back()

    async def _read(self) -> View:
        self._look_now.clear()
        self._view = await self._ledger.aview()
        return self._view

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._wake)

        unsubscribe = wakeup.subscribe(self._thread_id, wake)
        self._look_now.set()
        try:
            while self._calls:
                view, began = None, time.monotonic()
                try:
                    view = await self._look()
                    if view is not None:
                        self._tell(view)
                except Exception:
                    self._failed()
                if not self._calls:
                    return
                try:
                    async with asyncio.timeout(self._pace.after(view, time.monotonic() - began)):
                        await self._look_now.wait()
                except TimeoutError:
                    continue
        finally:
            unsubscribe()


class SyncWatch(_Calls):
    """A watch on a thread of its own, for graphs that run without an event loop."""

    def __init__(self, ledger: Ledger, thread_id: str, pace: Pace) -> None:
        super().__init__(ledger, thread_id, pace)
        self._look_now = threading.Event()
        self._thread: threading.Thread | None = None

    def join(self, call: WatchedCall) -> None:
        self._calls.add(call)
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="midstream-watch", daemon=True)
            self._thread.start()
        else:
            self._look_now.set()

    def leave(self, call: WatchedCall) -> bool:
        """Returns whether that was the last call."""
        self._calls.discard(call)
        return not self._calls

    def stop(self) -> None:
        """Ends the watch; a read that is under way is awaited."""
        self._look_now.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        unsubscribe = wakeup.subscribe(self._thread_id, self._look_now.set)
        try:
            while self._calls:
                self._look_now.clear()
                view, began = None, time.monotonic()
                try:
                    view = self._ledger.view()
                    self._tell(view)
                except Exception:
                    self._failed()
                if not self._calls:
                    return
                self._look_now.wait(self._pace.after(view, time.monotonic() - began))
        finally:
            unsubscribe()


@asynccontextmanager
async def awatching(
    run: Run, ledger: Ledger, thread_id: str, call: WatchedCall, pace: Pace
) -> AsyncIterator[None]:
    """Tells `call` of what is on the ledger while the block runs."""
    key = (AsyncWatch, id(asyncio.get_running_loop()))
    with run.lock:
        watch: AsyncWatch | None = run.shared.get(key)
        if watch is None:
            watch = run.shared[key] = AsyncWatch(ledger, thread_id, pace)
        watch.join(call)
    try:
        yield
    finally:
        with run.lock:
            is_last = watch.leave(call)
            if is_last:
                run.shared.pop(key, None)
        if is_last:
            await watch.stop()


@contextmanager
def watching(run: Run, ledger: Ledger, thread_id: str, call: WatchedCall, pace: Pace) -> Iterator[None]:
    """Same as `awatching`, on a thread."""
    with run.lock:
        watch: SyncWatch | None = run.shared.get(SyncWatch)
        if watch is None:
            watch = run.shared[SyncWatch] = SyncWatch(ledger, thread_id, pace)
        watch.join(call)
    try:
        yield
    finally:
        with run.lock:
            is_last = watch.leave(call)
            if is_last:
                run.shared.pop(SyncWatch, None)
        if is_last:
            watch.stop()
