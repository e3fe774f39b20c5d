"""One question for all threads that a process only looks at: how far has each one's ledger come.

To read the ledgers of hundreds of streams one by one, several times a second, takes much of a worker's time
and of its storage's, though hardly one of them has changed. Where the saver can be asked for all of them in
one query, a look is a part of that query, and a ledger is read when it has come further.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from midstream._host import ledger_stamps
from midstream.ledger import NAMESPACE, Ledger

GATHER_SECONDS = 0.01
"""How long the first to look waits for others: looks are late by this much, and by one query."""

MAX_FAILURES = 3
"""How often in a row a question may fail, though the ledgers can be read, until no more are asked."""

Stamp: TypeAlias = tuple[str, int]
"""The newest root of a ledger, and how many writes it holds: another one after each change."""

logger = logging.getLogger("midstream")

_glances: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakKeyDictionary[Any, Glances | None]] = (
    WeakKeyDictionary()
)


class Glances:
    """Gathers who looks and asks for all of them; not thread-safe.

    Args:
        read: Returns the stamps of the ledgers of these threads that have one.
    """

    def __init__(self, read: Callable[[Collection[str]], Awaitable[Mapping[str, Stamp]]]) -> None:
        self.is_possible = True
        self._failures = 0
        self._read = read
        self._waiting: list[tuple[str, asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Glances [{len(self._waiting)} waiting]>"

    def ask(self, thread_id: str) -> asyncio.Future[Any]:
        """Returns a future with the `Stamp` of the thread's ledger, or None if there is no ledger.

        Whoever sets it, or cancels it, is not waited for.
        """
        stamp = asyncio.get_running_loop().create_future()
        self._waiting.append((thread_id, stamp))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._answer())
        return stamp

    def could_be_read(self) -> None:
        """Notes that a ledger was read after the question had failed: if it always fails, it is given up."""
        if self.is_possible and self._failures >= MAX_FAILURES:
            self.is_possible = False
            logger.warning("the ledgers of all streams cannot be looked at together: each is read alone")

    async def _answer(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER_SECONDS)
            asked, self._waiting = [each for each in self._waiting if not each[1].done()], []
            try:
                found = await self._read({thread_id for thread_id, _ in asked}) if asked else {}
            except Exception as error:
                self._failures += 1
                for _, stamp in asked:
                    if not stamp.done():
                        stamp.set_exception(error)
            else:
                self._failures = 0
                for thread_id, stamp in asked:
                    if not stamp.done():
                        stamp.set_result(found.get(thread_id))


def glances_by_saver() -> MutableMapping[Any, Glances | None]:
    """Returns the glances of the running event loop."""
    return _glances.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())


def glances_of(ledger: Ledger) -> Glances | None:
    """Returns the running event loop's glances at the saver of this ledger; None if there are none."""
    by_saver, saver = glances_by_saver(), ledger.saver
    if saver not in by_saver:
        read = ledger_stamps(saver, NAMESPACE)
        by_saver[saver] = Glances(read) if read is not None else None
    return by_saver[saver]
