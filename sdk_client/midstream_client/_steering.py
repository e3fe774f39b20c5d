"""Steer, halt, withdraw, and what became of it.

`send` delivers a text exactly once, whatever runs begin and end meanwhile. Every way into the thread has an
id that follows from the text's own, so that a repetition changes nothing, and it takes one way at a time:

1. Nothing runs: start a run with the text. The server refuses that if a run has begun meanwhile.
2. A run is there: steer it, and watch. The text is applied, or the thread pauses for a person, who is waited
   for: done. (A thread that is `interrupted` and asks nothing waits for nobody: its run was cancelled.)
3. The run has ended without the steer: withdraw it. If the server says that it was applied, done. A run that
   was begun by somebody else may have read the ledger just before; so the withdraw counts only once nothing
   runs any more and the thread's own state still knows nothing of the steer. Then go to 1, with a new id for
   the next steer, because a withdrawn one stays withdrawn.

A thread that is `busy` for long is not taken at its word: its runs are looked at. Seen with langgraph-api
0.16.7: when its run is rolled back it stays so, until its next run.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn
from urllib.parse import quote

import httpx

from midstream_client._answering import GOING, interrupts
from midstream_client._flow import Call, Clock, Flow, Pause, again, said_by, status_of
from midstream_client._run_streaming import CAN_BE_JOINED
from midstream_client._shown import messages_in, text_of
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
    Sent,
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

SEARCHED_RUNS = 100
"""How many of a thread's runs are searched for one that a repeated `send` has started."""

KEY = "midstream_send_id"
"""Under which a run's metadata names the `send` that started it."""


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
    watch = Watch(receipt.thread_id, timeout, (yield from _deadline(timeout)))
    ended, _ = yield from _settled(watch, receipt.id)
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


def send(
    server: Server,
    thread_id: str,
    assistant_id: str,
    text: str,
    *,
    send_id: Uuid | None,
    run: Mapping[str, Any],
    timeout: float | None,
) -> Flow[Sent]:
    if not isinstance(text, str):
        raise InvalidRequestError({"text": f"must be a string, not {text!r}; `steer` takes messages"})
    name = request_of(SteerRequest, {"id": send_id, "messages": text}, messages="text").id
    attempt, is_there = 0, False
    watch = Watch(thread_id, timeout, (yield from _deadline(timeout)))

    seen = yield from report(thread_id)
    server.is_installed = True
    if send_id is not None:
        # It may be a repetition, by a host that did not see the first one's answer.
        done, attempt, is_there = yield from _repeated(server, watch, name, text, seen)
        if done is not None:
            return done

    status = yield from _true_status(thread_id, seen.thread_status)
    while True:
        if status == "idle" and not is_there:
            run_id = yield from _start(thread_id, assistant_id, name, text, run)
            if run_id is not None:
                return Sent(name, "started", run_id, (message_id(name),))

        steered = steer_id(name, attempt)
        yield from steer(server, thread_id, text, request_id=steered)
        ended, status = yield from _settled(watch, steered)
        status = yield from _true_status(thread_id, status)
        if ended.outcome == "withdrawn":
            return Sent(name, "withdrawn", None, (), steered)
        if ended.outcome == "pending" and status == "interrupted":
            return Sent(name, "waiting", None, (), steered)
        if ended.outcome == "pending":
            ended = yield from _take_back(server, watch, steered)
        if ended.is_applied:
            return Sent(name, "steered", ended.run_id, ended.message_ids, steered)
        attempt, is_there = attempt + 1, False
        status = "idle"


def _true_status(thread_id: str, status: ThreadStatus) -> Flow[ThreadStatus]:
    """Returns a thread's status, `interrupted` if and only if it waits for a person's answer.

    The server says `interrupted` also of a thread whose run was cancelled, and `error` of one that waits
    although its last run has failed.
    """
    if status not in ("interrupted", "error"):
        return status
    return "interrupted" if (yield from interrupts(thread_id)) else "idle"


def steer_id(send_id: str, attempt: int) -> str:
    """Returns the id of a text's nth steer."""
    return send_id if attempt == 0 else str(uuid.uuid5(uuid.UUID(send_id), f"steer {attempt}"))


def message_id(send_id: str) -> str:
    """Returns the id of a text as the input of a run; that of its first steer, by the server's own rule."""
    return str(uuid.uuid5(uuid.UUID(send_id), "0"))


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


def _settled(watch: Watch, request_id: str) -> Flow[tuple[RequestOutcome, ThreadStatus]]:
    """Waits while a run is there that may still apply the request."""
    pause = POLL_SECONDS
    while True:
        seen = yield from _truly_seen(watch.thread_id, pause)
        known = seen.outcome_of(request_id)
        if known is None:
            known = yield from _remembered(watch.thread_id, request_id)
        if known.outcome != "pending" or seen.thread_status != "busy":
            return known, seen.thread_status
        pause = yield from _wait(watch, request_id, pause)


def _truly_seen(thread_id: str, pause: float) -> Flow[Report]:
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


def _take_back(server: Server, watch: Watch, request_id: str) -> Flow[RequestOutcome]:
    """Withdraws a steer for which there was no run; returns how it has ended."""
    try:
        yield from withdraw(server, watch.thread_id, request_id)
    except RequestRefusedError as refused:
        if refused.outcome is None:
            raise
        ended, _ = yield from _settled(watch, request_id)
        return ended
    return (yield from _taken_back(watch, request_id))


def _taken_back(watch: Watch, request_id: str) -> Flow[RequestOutcome]:
    """Waits until a withdrawn steer is in no run's hands any more; returns how it has ended after all."""
    pause = POLL_SECONDS
    while True:
        seen = yield from _truly_seen(watch.thread_id, pause)
        known = seen.outcome_of(request_id) or RequestOutcome(request_id, "withdrawn")
        if known.is_applied or seen.thread_status != "busy":
            return known
        pause = yield from _wait(watch, request_id, pause)


def _start(
    thread_id: str, assistant_id: str, name: str, text: str, run: Mapping[str, Any]
) -> Flow[str | None]:
    """Starts a run with the text; returns its id, or None if another run is there."""
    options = {
        **CAN_BE_JOINED,
        **run,
        "input": {"messages": [{"role": "user", "content": text, "id": message_id(name)}]},
        "metadata": {**(run.get("metadata") or {}), KEY: name},
        "multitask_strategy": "reject",
    }
    try:
        started = yield Call("runs", "create", (thread_id, assistant_id), options)
    except httpx.ConnectError:
        raise
    except httpx.TransportError:
        # The run may have been started all the same.
        found = yield from _started(thread_id, name)
        if found is None:
            raise
        return found
    except httpx.HTTPStatusError as error:
        if status_of(error) == 409:
            return None
        raise
    return str(started["run_id"])


def _started(thread_id: str, name: str) -> Flow[str | None]:
    run = yield from _run_of(thread_id, name)
    return None if run is None else str(run["run_id"])


def _run_of(thread_id: str, name: str) -> Flow[Mapping[str, Any] | None]:
    """Returns the run that was started with a text."""
    runs: Sequence[Mapping[str, Any]] = yield from again(
        Call("runs", "list", (thread_id,), {"limit": SEARCHED_RUNS})
    )
    return next((run for run in runs if (run.get("metadata") or {}).get(KEY) == name), None)


def _repeated(
    server: Server, watch: Watch, name: str, text: str, seen: Report
) -> Flow[tuple[Sent | None, int, bool]]:
    """Returns what an earlier `send` of this id has done; else which steer to try, and if that is there.

    Raises:
        RequestRefusedError: It was of another text, which the thread still knows.
    """
    run = yield from _run_of(watch.thread_id, name)
    if run is not None:
        given = (run.get("kwargs") or {}).get("input")
        _check_same(watch.thread_id, name, text, given.get("messages") if isinstance(given, Mapping) else ())
        return Sent(name, "started", str(run["run_id"]), (message_id(name),)), 0, False

    attempt = 0
    while (known := seen.outcome_of(steer_id(name, attempt))) is not None:
        if known.outcome == "pending":
            # Posting it again changes nothing, and it is watched to its end.
            return None, attempt, True
        # The ledger tells another text, until it is marked; then the thread has the message.
        yield from steer(server, watch.thread_id, text, request_id=known.id)
        if known.outcome == "withdrawn":
            # The call may have broken off before it had seen what came of that.
            known = yield from _taken_back(watch, known.id)
        if known.is_applied:
            state = yield from again(Call("threads", "get_state", (watch.thread_id,)))
            _check_same(watch.thread_id, known.id, text, messages_in(state.get("values")))
            return Sent(name, "steered", known.run_id, known.message_ids, known.id), attempt, False
        attempt += 1
    return None, attempt, False


def _check_same(thread_id: str, name: str, text: str, messages: Any) -> None:
    """Raises if the message that a text has become, which may be among these, says something else."""
    for message in messages or ():
        if message.get("id") == message_id(name) and text_of(message["content"]) != text:
            reason = (
                f"another text was sent with the id {name!r}: give each text an id of its own, and repeat an "
                "id only to repeat the same text"
            )
            raise RequestRefusedError(thread_id, name, 409, reason, None)


def _deadline(timeout: float | None) -> Flow[float | None]:
    if timeout is None:
        return None
    if not isinstance(timeout, int | float):
        raise InvalidRequestError({"timeout": f"must be a number of seconds, or None, not {timeout!r}"})
    now: float = yield Clock()
    return now + timeout


def _wait(watch: Watch, request_id: str, pause: float) -> Flow[float]:
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
