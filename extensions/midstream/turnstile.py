"""A queue for those who look at the storage only to see whether something is new.

A saver does one thing at a time. If all streams of a busy process stood in its line to look for requests, what
their runs have to write would wait behind them. So of those who only look, a few are let through at once, and
the others wait here, in their order. Whoever knows of something new goes past.
"""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakKeyDictionary

AT_ONCE = 2
"""Enough that a saver is never idle between two looks."""

_turnstiles: WeakKeyDictionary[asyncio.AbstractEventLoop, Turnstile] = WeakKeyDictionary()


class Turnstile:
    """Gives turns, in the order in which they are asked for; not thread-safe."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._free = at_once
        self._waiting: deque[asyncio.Future[bool]] = deque()

    def __repr__(self) -> str:
        return f"<Turnstile [{self._free} free, {len(self._waiting)} waiting]>"

    def take(self) -> asyncio.Future[bool]:
        """Returns a future that is True once it is one's turn; then `give_back` must be called.

        Whoever sets it to False, or cancels it, leaves the line and goes without a turn.
        """
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._free:
            self._free -= 1
            turn.set_result(True)
        else:
            self._waiting.append(turn)
        return turn

    def give_back(self) -> None:
        """Ends a turn, and begins that of the next in line."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(True)
                return
        self._free += 1


def turnstile() -> Turnstile:
    """Returns the turnstile of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _turnstiles.get(loop)
    if found is None:
        found = _turnstiles[loop] = Turnstile()
    return found
