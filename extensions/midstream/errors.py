"""What midstream raises.

* MidstreamError
  * ConfigurationError   (also a ValueError)
  * LedgerFullError
"""

from __future__ import annotations


class MidstreamError(Exception):
    """The base of every failure that midstream raises itself."""


class ConfigurationError(MidstreamError, ValueError):
    """Something was put together in a way that cannot work; raised at construction."""


class LedgerFullError(MidstreamError):
    """The thread already holds as many unhandled requests as it may."""

    def __init__(self, thread_id: str, pending: int) -> None:
        self.thread_id = thread_id
        self.pending = pending
        super().__init__(
            f"thread {thread_id!r} already has {pending} pending requests: "
            "wait until some were applied, or withdraw them"
        )
