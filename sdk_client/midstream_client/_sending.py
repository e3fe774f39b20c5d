"""`send`: a chat's text, delivered exactly once, whatever runs begin and end meanwhile.

Every way into the thread has an id that follows from the text's own, so that a repetition changes nothing,
and it takes one way at a time:

1. Nothing runs: start a run with the text. The server refuses that if a run has begun meanwhile.
2. A run is there: steer it, and watch. The text is applied, or the thread pauses for a person, who is waited
   for: done. (A thread that is `interrupted` and asks nothing waits for nobody: its run was cancelled.)
3. The run has ended without the steer: withdraw it. If the server says that it was applied, done. A run that
   was begun by somebody else may have read the ledger just before; so the withdraw counts only once nothing
   runs any more and the thread's own state still knows nothing of the steer. Then go to 1, with a new id for
   the next steer, because a withdrawn one stays withdrawn.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from midstream_client._answering import interrupts
from midstream_client._flow import Call, Flow, again, status_of
from midstream_client._run_streaming import CAN_BE_JOINED
from midstream_client._shown import messages_in, text_of
from midstream_client._steering import (
    POLL_SECONDS,
    Server,
    Watch,
    deadline,
    report,
    settled,
    steer,
    truly_seen,
    wait,
    withdraw,
)
from midstream_client.errors import InvalidRequestError, RequestRefusedError
from midstream_client.protocol import SteerRequest, ThreadStatus
from midstream_client.requests import Report, RequestOutcome, Sent, Uuid, request_of

SEARCHED_RUNS = 100
"""How many of a thread's runs are searched for one that a repeated `send` has started."""

KEY = "midstream_send_id"
"""Under which a run's metadata names the `send` that started it."""


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
    watch = Watch(thread_id, timeout, (yield from deadline(timeout)))

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
        ended, status = yield from settled(watch, steered)
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


def _take_back(server: Server, watch: Watch, request_id: str) -> Flow[RequestOutcome]:
    """Withdraws a steer for which there was no run; returns how it has ended."""
    try:
        yield from withdraw(server, watch.thread_id, request_id)
    except RequestRefusedError as refused:
        if refused.outcome is None:
            raise
        ended, _ = yield from settled(watch, request_id)
        return ended
    return (yield from _taken_back(watch, request_id))


def _taken_back(watch: Watch, request_id: str) -> Flow[RequestOutcome]:
    """Waits until a withdrawn steer is in no run's hands any more; returns how it has ended after all."""
    pause = POLL_SECONDS
    while True:
        seen = yield from truly_seen(watch.thread_id, pause)
        known = seen.outcome_of(request_id) or RequestOutcome(request_id, "withdrawn")
        if known.is_applied or seen.thread_status != "busy":
            return known
        pause = yield from wait(watch, request_id, pause)


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
