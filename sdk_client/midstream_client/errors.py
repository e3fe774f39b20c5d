"""What the client raises of its own; the SDK's and HTTP's errors pass unchanged.

* MidstreamError
  * NotInstalledError
  * InvalidRequestError      (also a ValueError)
  * RequestRefusedError
  * UnknownInterruptError    (also a LookupError)
  * InvalidAnswerError       (also a ValueError)
  * ThreadPausedError
  * NotSettledError          (also a TimeoutError)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


class MidstreamError(Exception):
    """The base of every failure that the client raises itself."""


class NotInstalledError(MidstreamError):
    """The server does not run midstream; nothing was sent to the thread, or it had no effect."""

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        super().__init__(
            f"the server of thread {thread_id!r} does not run midstream: install "
            '`langgraph-midstream[server]` there, put `"http": {"app": "midstream.server:app"}` into its '
            "langgraph.json (or add `PreemptionMiddleware` to the app that is there), and start it again"
        )


RIGHT = {
    "id": "a UUID, such as str(uuid.uuid4())",
    "request_id": "a UUID, such as the `id` of a receipt",
    "run_id": "a run's id, a UUID",
    "node": "the name of a model node, at most 256 characters",
    "messages": 'a text that is not blank, or 1 to 32 messages {"role": "user", "content": ...}',
    "text": "a string that is not blank",
    "reason": "a string that is not blank, at most 1024 characters",
}
"""What each argument of a request is, by its name."""


class InvalidRequestError(MidstreamError, ValueError):
    """An argument is none that the method takes; nothing was sent."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems = dict(problems)
        """Reasons by field, such as `messages.0.content`; at least one."""

        self.field, self.reason = next(iter(self.problems.items()))
        said = "; ".join(
            f"{field}: {reason}" + (f", where {name} is {RIGHT[name]}" if name in RIGHT else "")
            for field, reason in self.problems.items()
            for name in [field.partition(".")[0]]
        )
        super().__init__(f"nothing was sent, because of these arguments: {said}")


class RequestRefusedError(MidstreamError):
    """The server did not take a request; nothing was changed by it."""

    def __init__(
        self, thread_id: str, request_id: str, status: int, reason: str, outcome: str | None
    ) -> None:
        self.thread_id = thread_id
        self.request_id = request_id
        self.status = status
        """The HTTP status: 404 or 409 for a withdraw, 413, 422, or 429 where the thread holds too many."""

        self.reason = reason
        """The server's own words."""

        self.outcome = outcome
        """How the request had ended already, where a withdraw came too late; else None."""

        super().__init__(
            f"the server refused request {request_id!r} for thread {thread_id!r} ({status}): {reason}"
        )


class UnknownInterruptError(MidstreamError, LookupError):
    """An answer names an interrupt that the thread does not wait in; nothing was sent."""

    def __init__(self, thread_id: str, unknown: Collection[str], pending: Collection[str]) -> None:
        self.thread_id = thread_id
        self.unknown = tuple(unknown)
        self.pending = tuple(pending)
        waits = (
            f"it waits in {', '.join(map(repr, self.pending))}"
            if self.pending
            else "it waits in none: it was answered already, or its run has ended"
        )
        super().__init__(
            f"thread {thread_id!r} has no interrupt {', '.join(map(repr, self.unknown))}; {waits}. "
            "Nothing was sent: read `interrupts(thread_id)` again, and answer what it returns"
        )


@dataclass(frozen=True, slots=True)
class AnswerProblem:
    """What is wrong with one field of one answer."""

    interrupt_id: str
    field: str
    """Its path, such as `decisions.0.edited_action.args.to`; empty for the answer as a whole."""

    reason: str
    tool_call_id: str | None = None
    """The call that it is about, where the question is about several; None if that is not known."""

    def __str__(self) -> str:
        call = f" (of {self.tool_call_id})" if self.tool_call_id else ""
        return f"{self.interrupt_id}: {f'{self.field}{call}: ' if self.field else ''}{self.reason}"


class InvalidAnswerError(MidstreamError, ValueError):
    """An answer is not what its interrupt asks for; none of the answers was sent."""

    def __init__(self, thread_id: str, problems: Sequence[AnswerProblem]) -> None:
        self.thread_id = thread_id
        self.problems = tuple(problems)
        """At least one."""

        first = self.problems[0]
        self.interrupt_id = first.interrupt_id
        self.field = first.field
        self.reason = first.reason
        super().__init__(
            "nothing was sent, because of these answers: "
            + "; ".join(map(str, self.problems))
            + f". Correct them and answer again; thread {thread_id!r} waits as before"
        )


class ThreadPausedError(MidstreamError):
    """New input would disturb the interrupts that the thread waits in; nothing was sent."""

    def __init__(self, thread_id: str, pending: Collection[str]) -> None:
        self.thread_id = thread_id
        self.pending = tuple(pending)
        super().__init__(
            f"thread {thread_id!r} waits for a person in {', '.join(map(repr, self.pending))}: answer with "
            "`resume=`, or `steer` the thread, whose message is then applied after the answer"
        )


class NotSettledError(MidstreamError, TimeoutError):
    """A request was still waiting for its safe point when the time was over; it stays on the thread."""

    def __init__(self, thread_id: str, request_id: str, timeout: float) -> None:
        self.thread_id = thread_id
        self.request_id = request_id
        self.timeout = timeout
        super().__init__(
            f"request {request_id!r} of thread {thread_id!r} was neither applied nor given up after "
            f"{timeout:g} s: wait again with `outcome`, or `withdraw` it"
        )
