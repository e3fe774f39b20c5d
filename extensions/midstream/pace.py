"""How often a run looks for new requests: at once after something has happened, and then less and less.

Whoever has just spoken to a run, by a request or by the answer to a question, is likely to speak again, and
is watching. A stream that is long and quiet is looked after at the slowest pace, which is the bound on how
late a request of another process may be seen.
"""

from __future__ import annotations

import time

from midstream._ledger_view import View

FASTEST = 0.25
"""The fastest pace, as a share of the slowest."""

LIVELY_SECONDS = 2.0
"""How long the pace stays the fastest after something has happened."""

GROWTH = 1.5
"""By how much each wait is longer than the one before it."""


class Pace:
    """The waits between the looks of one run.

    Args:
        slowest: The longest wait, in seconds.
        resumed_at: When a person answered what the run had asked, by the wall clock; None if nobody did.
    """

    def __init__(self, slowest: float, resumed_at: float | None = None) -> None:
        self._slowest = slowest
        self._resumed_at = resumed_at if resumed_at is not None else 0.0
        self._wait = 0.0

    def __repr__(self) -> str:
        return f"<Pace [{self._wait:g} of {self._slowest:g} s]>"

    def after(self, view: View | None, took: float, now: float | None = None) -> float:
        """Returns how long to wait after a look.

        From the beginning of one look to that of the next no more than the slowest wait passes, unless a look
        takes longer than half of that: then the time between two looks is as long as a look takes, so that
        storage that is slow is not asked without a pause.

        Args:
            view: What was seen; None if the ledger could not be read.
            took: How long it took to see it, in seconds.
            now: The wall clock; read if not given.
        """
        now = time.time() if now is None else now
        asked_at = view.entries[-1].accepted_at if view is not None and view.entries else 0.0
        is_lively = now - max(asked_at, self._resumed_at) < LIVELY_SECONDS
        fastest = self._slowest * FASTEST
        self._wait = fastest if is_lively else min(max(self._wait * GROWTH, fastest), self._slowest)
        return max(self._wait - took, min(took, self._slowest))
