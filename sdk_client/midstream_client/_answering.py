"""Read what a thread waits in, and answer it: all answers, or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midstream_client._flow import Call, Flow, again
from midstream_client.answers import Answer, place
from midstream_client.interrupts import PendingInterrupt, Resumed, interrupts_of


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
    if not answers:
        raise ValueError("answers must name at least one interrupt: {interrupt_id: answer}")
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
    options = {"multitask_strategy": "reject", **run, "command": {"resume": checked}}
    started = yield Call("runs", "create", (thread_id, assistant_id), options)
    run_id, status = str(started["run_id"]), str(started["status"])
    if wait:
        yield from again(Call("runs", "join", (thread_id, run_id)))
        status = str((yield from again(Call("runs", "get", (thread_id, run_id))))["status"])
        left = yield from interrupts(thread_id)
        if left and status == "success":
            # What langgraph-api 0.16.7 says of a run that has paused.
            status = "interrupted"
    else:
        left = [each for each in (yield from interrupts(thread_id)) if each.id not in checked]
    return Resumed(run_id, status, tuple(checked), tuple(left))
