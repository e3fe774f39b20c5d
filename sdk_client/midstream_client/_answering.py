"""Read what a thread waits in, and answer it: all answers, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from midstream_client._flow import BROKEN, DROPPED, RETRY_SECONDS, Call, Flow, Pause, again, status_of
from midstream_client.answers import Answer, place
from midstream_client.errors import InvalidRequestError
from midstream_client.interrupts import PendingInterrupt, Resumed, interrupts_of

GOING = ("pending", "running")
"""What a run's status says that has not ended."""


def interrupts(thread_id: str) -> Flow[list[PendingInterrupt]]:
    state = yield from again(Call("threads", "get_state", (thread_id,)))
    found = interrupts_of(state)
    if any(action.tool_call_id is None for interrupt in found for action in interrupt.actions):
        # Its calls may be in the messages of a subgraph.
        state = yield from again(Call("threads", "get_state", (thread_id,), {"subgraphs": True}))
        found = interrupts_of(state)
    return found


def placed(thread_id: str, answers: Mapping[str, Answer]) -> Flow[dict[str, Any]]:
    """Returns the answers as the graph takes them, checked against the thread."""
    if not isinstance(answers, Mapping):
        raise InvalidRequestError({"answers": f"must be a dict {{interrupt_id: answer}}, not {answers!r}"})
    if not answers:
        raise InvalidRequestError({"answers": "must name at least one interrupt: {interrupt_id: answer}"})
    return place(str(thread_id), answers, (yield from interrupts(thread_id)))


def resume(
    thread_id: str,
    assistant_id: str,
    answers: Mapping[str, Answer],
    *,
    wait: bool,
    run: Mapping[str, Any],
) -> Flow[Resumed]:
    checked = yield from placed(thread_id, answers)
    options = {**run, "command": {"resume": checked}}
    started = yield Call("runs", "create", (thread_id, assistant_id), options)
    run_id = str(started["run_id"])
    if not wait:
        left = [each for each in (yield from interrupts(thread_id)) if each.id not in checked]
        return Resumed(run_id, str(started["status"]), tuple(checked), tuple(left))
    over = yield from _over(thread_id, run_id)
    left = yield from interrupts(thread_id)
    status, is_cancelled = ended(over, left)
    asked_again = {each.id for each in left}
    answered = tuple(name for name in checked if name not in asked_again)
    return Resumed(run_id, status, answered, tuple(left), is_cancelled)


def run_or_none(thread_id: str, run_id: str) -> Flow[Mapping[str, Any] | None]:
    """Returns a run that has been there; None if it was rolled back since."""
    try:
        found: Mapping[str, Any] = yield from again(Call("runs", "get", (thread_id, run_id)))
    except httpx.HTTPStatusError as error:
        if status_of(error) != 404:
            raise
        return None
    return found


def ended(run: Mapping[str, Any] | None, pending: Sequence[PendingInterrupt]) -> tuple[str, bool]:
    """Returns how a run has ended, and whether somebody has cancelled it.

    The server's own word does not tell that apart. Seen with langgraph-api 0.16.7: a run that has paused is a
    `success`, and one that was cancelled is `interrupted`; the SDK's word for a thread in either is the
    latter. Where a question is open the thread waits for its answer, whatever the run was.
    """
    if run is None:
        return "interrupted", True
    status = str(run["status"])
    if pending and status == "success":
        return "interrupted", False
    return status, status == "interrupted" and not pending


def _over(thread_id: str, run_id: str) -> Flow[Mapping[str, Any] | None]:
    """Waits for a run's end, however long the host's own timeout for one answer is."""
    while True:
        try:
            yield Call("runs", "join", (thread_id, run_id))
        except (httpx.ReadTimeout, *DROPPED):
            pass
        except httpx.HTTPStatusError as error:
            if status_of(error) not in (404, *BROKEN):
                raise
        run = yield from run_or_none(thread_id, run_id)
        if run is None or run["status"] not in GOING:
            return run
        yield Pause(RETRY_SECONDS)
