"""What the client raises of its own; the SDK's and HTTP's errors pass unchanged.

* MidstreamError
  * NotInstalledError
"""

from __future__ import annotations


class MidstreamError(Exception):
    """The base of every failure that the client raises itself."""


class NotInstalledError(MidstreamError):
    """The server took the request for an ordinary state update: it does not run midstream."""

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        super().__init__(
            f"the server took a request for thread {thread_id!r} for an ordinary state update: it does not "
            'run midstream: install `langgraph-midstream[server]` there, put `"http": {"app": '
            '"midstream.server:app"}` into its langgraph.json (or add `PreemptionMiddleware` to the app that '
            "is there), and start it again"
        )
