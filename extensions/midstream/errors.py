"""What midstream raises.

* MidstreamError
  * ConfigurationError   (also a ValueError)
  * LedgerFullError
  * NotPendingError      (also a LookupError)
  * RequestConflictError (also a ValueError)
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


class NotPendingError(MidstreamError, LookupError):
    """A request cannot be withdrawn, because it is unknown or because it has ended already."""

    def __init__(self, thread_id: str, request_id: str, outcome: str | None) -> None:
        self.thread_id = thread_id
        self.request_id = request_id
        self.outcome = outcome
        """How the request ended; None if the thread does not know it."""

        super().__init__(
            f"request {request_id!r} of thread {thread_id!r} cannot be withdrawn: it has ended as {outcome!r}"
            if outcome
            else f"thread {thread_id!r} knows no request {request_id!r}: check the thread, and that the "
            "request was accepted"
        )


class RequestConflictError(MidstreamError, ValueError):
    """Another request has this id; unlike the same request posted again, which changes nothing."""

    def __init__(self, thread_id: str, request_id: str) -> None:
        self.thread_id = thread_id
        self.request_id = request_id
        super().__init__(
            f"thread {thread_id!r} has another request with the id {request_id!r}: give each request an id "
            "of its own, and repeat an id only to repeat the same request"
        )
