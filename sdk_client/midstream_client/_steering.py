"""Steer, halt, withdraw, and what became of it.

A thread that is `busy` for long is not taken at its word: its runs are looked at. Seen with langgraph-api
0.16.7: when its run is rolled back it stays so, until its next run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn
from urllib.parse import quote

import httpx

from midstream_client._answering import GOING
from midstream_client._flow import Call, Clock, Flow, Pause, again, said_by, status_of
from midstream_client.errors import (
    InvalidRequestError,
    NotInstalledError,
    NotSettledError,
    RequestRefusedError,
)
from midstream_client.protocol import (
    HaltRequest,
    Request,
    SteerRequest,
    ThreadStatus,
    UserMessage,
    WithdrawRequest,
)
from midstream_client.requests import (
    Messages,
    PendingRequest,
    Receipt,
    Report,
    RequestOutcome,
    Stats,
    Uuid,
    report_of,
    request_of,
    stats_of,
)

POLL_SECONDS = 0.05
"""The first wait between two looks at a thread."""

SLOWEST_POLL_SECONDS = 1.0

DOUBTED_POLL_SECONDS = 0.2
"""From which wait on a `busy` thread is asked for its runs."""

NEWEST_RUNS = 10
"""Among how many of them one is looked for that has not ended."""


NO_SUCH_ROUTE = ({"detail": "Not Found"}, "Not Found")
"""What a server says of a route that it does not have; of a thread it says more."""


@dataclass(slots=True)
class Server:
    """What a client has learned of its server."""

    is_installed: bool = False


@dataclass(frozen=True, slots=True)
class Watch:
    """How long a thread is watched."""

    thread_id: str
    timeout: float | None
    deadline: float | None


def steer(
    server: Server,
    thread_id: str,
    messages: Messages,
    *,
    run_id: Uuid | None = None,
    node: str | None = None,
    request_id: Uuid | None = None,
) -> Flow[Receipt]:
    fields = {"id": request_id, "messages": _plain(messages), "run_id": run_id, "node": node}
    return _post(server, thread_id, request_of(SteerRequest, fields))


def halt(
    server: Server,
    thread_id: str,
    reason: str,
    *,
    run_id: Uuid | None = None,
    node: str | None = None,
    request_id: Uuid | None = None,
) -> Flow[Receipt]:
    fields = {"id": request_id, "reason": reason, "run_id": run_id, "node": node}
    return _post(server, thread_id, request_of(HaltRequest, fields))


def withdraw(server: Server, thread_id: str, request_id: Uuid) -> Flow[Receipt]:
    return _post(server, thread_id, request_of(WithdrawRequest, {"id": request_id}, id="request_id"))


def report(thread_id: str) -> Flow[Report]:
    call = Call("http", "get", (f"/threads/{quote(str(thread_id), safe='')}/preemption",))
    try:
        answer = yield from again(call)
    except httpx.HTTPStatusError as error:
        if status_of(error) != 404 or getattr(error, "body", None) not in NO_SUCH_ROUTE:
            raise
        # A thread's id that is none makes such a route, too.
        yield from again(Call("threads", "get", (thread_id,)))
        raise NotInstalledError(str(thread_id)) from error
    return report_of(answer)


def pending_requests(thread_id: str) -> Flow[list[PendingRequest]]:
    return list((yield from report(thread_id)).pending)


def outcome(receipt: Receipt, *, timeout: float | None) -> Flow[RequestOutcome]:
    if not isinstance(receipt, Receipt):
        raise InvalidRequestError({"receipt": f"must be what `steer` or `halt` returned, not {receipt!r}"})
    watch = Watch(receipt.thread_id, timeout, (yield from deadline(timeout)))
    ended, _ = yield from settled(watch, receipt.id)
    return ended


def halt_reason(thread_id: str, run_id: str) -> Flow[str | None]:
    reason = (yield from report(thread_id)).halts.get(run_id)
    if reason is not None:
        return reason
    # Older than what the ledger keeps: the run itself may know.
    run = yield from again(Call("runs", "get", (thread_id, run_id)))
    found: str | None = (run.get("metadata") or {}).get("halt_reason")
    return found


def stats(thread_id: str) -> Flow[Stats]:
    state = yield from again(Call("threads", "get_state", (thread_id,)))
    return stats_of(state.get("values"))


def _post(server: Server, thread_id: str, request: Request) -> Flow[Receipt]:
    if not server.is_installed:
        # A server without midstream would take the request for an ordinary update: it would write the
        # thread's state, and drop the interrupts of a paused one.
        yield from report(thread_id)
        server.is_installed = True
    values = {"preemption": request.model_dump(mode="json", exclude_none=True)}
    try:
        answer = yield from again(Call("threads", "update_state", (thread_id, values)))
    except httpx.HTTPStatusError as error:
        _refuse(thread_id, request.id, error)
    said = answer.get("preemption") if isinstance(answer, Mapping) else None
    if said is None:
        raise NotInstalledError(thread_id)
    return Receipt.model_validate({**said, "thread_id": str(thread_id)})


def _refuse(thread_id: str, request_id: str, error: httpx.HTTPStatusError) -> NoReturn:
    said = said_by(error)
    # Only midstream itself says more than `detail`; the server's own errors pass unchanged.
    if isinstance(known := said.get("preemption"), dict):
        refused = RequestRefusedError(
            thread_id,
            request_id,
            error.response.status_code,
            str(said.get("detail", "")),
            known.get("outcome"),
        )
        raise refused from error
    raise error


def settled(watch: Watch, request_id: str) -> Flow[tuple[RequestOutcome, ThreadStatus]]:
    """Waits while a run is there that may still apply the request."""
    pause = POLL_SECONDS
    while True:
        seen = yield from truly_seen(watch.thread_id, pause)
        known = seen.outcome_of(request_id)
        if known is None:
            known = yield from _remembered(watch.thread_id, request_id)
        if known.outcome != "pending" or seen.thread_status != "busy":
            return known, seen.thread_status
        pause = yield from wait(watch, request_id, pause)


def truly_seen(thread_id: str, pause: float) -> Flow[Report]:
    """Returns the thread's report, in which a `busy` thread that has no run is `idle`.

    What ran has been committed when its run is over, so it is in a report that is read after that.
    """
    seen = yield from report(thread_id)
    if seen.thread_status != "busy" or pause < DOUBTED_POLL_SECONDS:
        return seen
    runs = yield from again(Call("runs", "list", (thread_id,), {"limit": NEWEST_RUNS}))
    if any(run["status"] in GOING for run in runs):
        return seen
    seen = yield from report(thread_id)
    return replace(seen, thread_status="idle") if seen.thread_status == "busy" else seen


def _remembered(thread_id: str, request_id: str) -> Flow[RequestOutcome]:
    """Looks in the thread's state for a request that the ledger has forgotten: it remembers more."""
    state = yield from again(Call("threads", "get_state", (thread_id,)))
    values = state.get("values")
    handled = (values.get("preemption") or {}).get("handled", {}) if isinstance(values, Mapping) else {}
    if request_id not in handled:
        reason = (
            f"thread {thread_id!r} knows no request {request_id!r}: check that the receipt is of this server"
        )
        raise RequestRefusedError(thread_id, request_id, 404, reason, None)
    found = report_of({"thread_status": "idle", "pending": [], "handled": handled, "halts": []})
    return found.outcomes[request_id]


def deadline(timeout: float | None) -> Flow[float | None]:
    if timeout is None:
        return None
    if not isinstance(timeout, int | float):
        raise InvalidRequestError({"timeout": f"must be a number of seconds, or None, not {timeout!r}"})
    now: float = yield Clock()
    return now + timeout


def wait(watch: Watch, request_id: str, pause: float) -> Flow[float]:
    """Waits; returns the next wait's length."""
    if watch.deadline is not None:
        left = watch.deadline - (yield Clock())
        if left <= 0:
            raise NotSettledError(watch.thread_id, request_id, watch.timeout or 0.0)
        pause = min(pause, left)
    yield Pause(pause)
    return min(pause * 1.5, SLOWEST_POLL_SECONDS)


def _plain(messages: Messages) -> Any:
    """Returns the messages as the wire has them; it judges what is none."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        return messages
    return [each.model_dump() if isinstance(each, UserMessage) else each for each in messages]
