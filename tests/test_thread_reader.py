"""The newer protocol tells a thread's whole past: what of it is the run's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from midstream_client._flow import Call, Emit, Next, Subscribe
from midstream_client._thread_streaming import ThreadReader
from midstream_client._thread_streaming import read as read_thread
from midstream_client.events import Custom, Event, Retried, Sealed, Started, Token, ToolCall, ToolResult

NUMBERS = iter(range(10_000))


def event(method: str, data: dict[str, Any], *, name: str | None = None, inside: str = "") -> dict[str, Any]:
    params = {"namespace": [inside] if inside else [], "data": data}
    return {"method": method, "event_id": name or f"{next(NUMBERS)}-0", "params": params}


def lifecycle(run_id: str, word: str, **more: Any) -> dict[str, Any]:
    return event("lifecycle", {"event": word, **more}, name=f"synth:{run_id}:lc||{word}")


def start(name: str) -> dict[str, Any]:
    return event("messages", {"event": "message-start", "role": "ai", "id": name})


def text(said: str, index: int = 0) -> dict[str, Any]:
    delta = {"type": "text-delta", "text": said}
    return event("messages", {"event": "content-block-delta", "index": index, "delta": delta})


def block(content: dict[str, Any], index: int = 0) -> dict[str, Any]:
    return event("messages", {"event": "content-block-finish", "index": index, "content": content})


def finish() -> dict[str, Any]:
    return event("messages", {"event": "message-finish"})


def values(*messages: dict[str, Any]) -> dict[str, Any]:
    return event("values", {"messages": list(messages)})


def read(
    *events: dict[str, Any], reader: ThreadReader | None = None, statuses: Sequence[str] = ()
) -> list[Event]:
    """Reads events; whenever the reader looks at its run, it finds the next of the statuses."""
    reader = reader or ThreadReader("t")
    found: list[Event] = []
    looks = iter(statuses)
    for steps in (reader.begin("mine"), *map(reader.read, events)):
        answer = None
        with contextlib.suppress(StopIteration):
            while True:
                step = steps.send(answer)
                if isinstance(step, Emit):
                    found.append(step.event)
                answer = {"status": next(looks)} if isinstance(step, Call) else None
    assert list(looks) == []
    return found


def test_what_other_runs_said_before_and_after_is_not_shown() -> None:
    reader = ThreadReader("t")
    other = [start("m0"), text("not mine"), finish()]

    shown = read(
        lifecycle("old", "running"),
        *other,
        lifecycle("old", "completed"),
        lifecycle("mine", "running"),
        start("m1"),
        text("mine"),
        finish(),
        lifecycle("mine", "completed"),
        lifecycle("next", "running"),
        start("m2"),
        reader=reader,
    )

    assert shown == [Started("mine"), Token("mine", "m1", None)]
    assert reader.is_over


def test_what_a_reopened_stream_repeats_is_passed_over() -> None:
    said = [lifecycle("mine", "running"), start("m1"), text("once")]

    assert read(*said, *said, text(" more")) == [
        Started("mine"),
        Token("once", "m1", None),
        Token(" more", "m1", None),
    ]


def test_a_snapshot_in_mid_message_is_a_second_attempt() -> None:
    kept = {"type": "ai", "id": "m1", "content": "kept"}

    shown = read(
        lifecycle("mine", "running"),
        values(),
        start("m1"),
        text("kept"),
        finish(),
        values(kept),
        start("m2"),
        text("lost"),
        values(kept),
        start("m3"),
        text("again"),
        finish(),
        values(kept, {"type": "ai", "id": "m3", "content": "again"}),
    )

    assert shown == [
        Started("mine"),
        Token("kept", "m1", None),
        Token("lost", "m2", None),
        Retried("mine", 2, ("m2",)),
        Token("again", "m3", None),
    ]


def test_tool_calls_results_and_texts_that_did_not_stream_come_with_their_ends() -> None:
    old = {"type": "tool", "id": "t0", "tool_call_id": "c0", "content": "old"}
    new = {"type": "tool", "id": "t1", "tool_call_id": "c1", "name": "add", "content": "3"}
    call = {"type": "tool_call", "id": "c1", "name": "add", "args": {"a": 1}}

    shown = read(
        lifecycle("mine", "running"),
        values(old),
        start("m1"),
        text("Let "),
        block({"type": "text", "text": "Let me."}),
        block(call, 1),
        block(call, 1),
        finish(),
        values(old, new),
    )

    assert shown == [
        Started("mine"),
        Token("Let ", "m1", None),
        Token("me.", "m1", None),
        ToolCall("c1", "add", {"a": 1}, "m1", None),
        ToolResult("c1", "add", "3", "success", None),
    ]


def test_midstreams_channel_and_any_other_are_told_apart() -> None:
    sealed = {"type": "preemption", "event": "sealed", "node": "model", "message_id": "m", "request_ids": []}

    shown = read(
        lifecycle("mine", "running"),
        event("custom", {"name": "preemption", "payload": sealed}),
        event("custom", {"name": "progress", "payload": 3}, inside="sub:1"),
    )

    assert shown[1:] == [Sealed("m", "model", ()), Custom(3, ("sub:1",))]


def test_frames_that_are_no_events_and_a_failure() -> None:
    reader = ThreadReader("t")
    read(
        {"type": "success", "id": 1},
        lifecycle("mine", "running"),
        text("of no message"),
        lifecycle("mine", "failed", error="out of tokens"),
        reader=reader,
        statuses=["running", "error"],
    )

    assert (reader.is_over, reader.failure) == (True, (None, "out of tokens"))


@pytest.mark.parametrize("statuses", [["success"], ["running"] * 4])
def test_a_failure_of_a_lost_attempt_is_not_the_runs(statuses: list[str]) -> None:
    reader = ThreadReader("t")
    shown = read(
        lifecycle("mine", "running"),
        lifecycle("mine", "failed", error="the worker is gone"),
        start("m1"),
        text("Hello"),
        reader=reader,
        statuses=statuses,
    )

    assert (reader.is_over, reader.failure) == (False, None)
    assert shown[-1] == Token("Hello", "m1", None)


@pytest.mark.parametrize(("status", "is_over"), [("running", False), ("timeout", True), (None, True)])
def test_in_a_silence_the_run_is_looked_at(status: str | None, is_over: bool) -> None:
    """The server tells nobody of a run that has timed out, or was rolled back."""
    reader = ThreadReader("t")
    read(lifecycle("mine", "running"), reader=reader)

    look = reader.read({"method": "quiet"})
    assert next(look) == Call("runs", "get", ("t", "mine"))
    answer = httpx.Response(404, request=httpx.Request("GET", "http://server.test"))
    with contextlib.suppress(StopIteration):
        if status is None:
            look.throw(httpx.HTTPStatusError("gone", request=answer.request, response=answer))
        else:
            look.send({"status": status})

    assert reader.is_over is is_over


def test_a_run_that_is_over_and_was_told_has_nothing_to_say_after_a_silence() -> None:
    reader = ThreadReader("t")
    read(lifecycle("mine", "running"), {"method": "quiet"}, reader=reader, statuses=["success"])

    assert (reader.is_over, reader.is_missed) == (True, False)


def test_a_past_without_the_run_is_asked_for_again_and_not_without_end() -> None:
    """A busy server tells the past late, or a part of it."""
    reader = ThreadReader("t")
    steps = read_thread(reader, "mine", is_websocket=True)
    others = [lifecycle("other", "running"), lifecycle("other", "completed")]
    quiet: dict[str, Any] = {"method": "quiet"}
    opened: list[bool] = []
    parts: Iterator[Any] = iter(())
    asked: Any = None
    with contextlib.suppress(StopIteration):
        while True:
            step: Any = steps.send(asked)
            asked = None
            if isinstance(step, Subscribe):
                opened.append(step.is_websocket)
                parts = iter([*others, *[quiet] * 9])
            elif isinstance(step, Next):
                asked = next(parts)
            elif isinstance(step, Call):
                asked = {"status": "success"}

    assert (reader.is_over, opened) == (True, [True, False, False, False])
