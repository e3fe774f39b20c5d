"""The three ways of a stream say the same: of a busy thread, of a run that is not there, of how one ends."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, get_args

import httpx
import pytest
from langgraph_sdk.errors import ConflictError, NotFoundError, UnprocessableEntityError

from midstream_client import InvalidRequestError, approve
from midstream_client._flow import END, Call, Emit, Next, Pause, Subscribe
from midstream_client._streaming import Protocol
from midstream_client._thread_streaming import ThreadReader, read
from midstream_client.events import (
    Custom,
    Done,
    Error,
    Injected,
    Interrupted,
    Started,
    Token,
)
from support.hosted import Host, calls, on_every_way, said

FIRST = "You said: Hello. word1 word2 word3"


async def words(host: Host, thread_id: str, run_id: str, protocol: str) -> str:
    events = await host.events(thread_id, "brief", run_id=run_id, protocol=protocol)
    assert (events[0], events[-1]) == (Started(run_id), Done(run_id, "success"))
    return "".join(event.text for event in events if isinstance(event, Token))


@on_every_way
async def test_a_busy_thread_takes_no_other_run_unless_it_is_told_to(host: Host, protocol: str) -> None:
    thread_id = await host.thread()
    busy = await host.runs.create(thread_id, "long", input=said("Tell me a story."))

    with pytest.raises(ConflictError, match="already running"):
        await host.events(thread_id, "brief", input=said("Hello"), protocol=protocol)
    assert [run["run_id"] for run in await host.runs.list(thread_id)] == [busy["run_id"]]

    what: Any = {"input": said("Hello"), "protocol": protocol, "multitask_strategy": "interrupt"}
    events = await host.events(thread_id, "brief", **what)
    assert "".join(event.text for event in events if isinstance(event, Token)) == FIRST
    assert (await host.runs.get(thread_id, busy["run_id"]))["status"] == "interrupted"


@on_every_way
async def test_answers_to_a_busy_thread_are_refused_unless_it_is_told_otherwise(
    host: Host, protocol: str
) -> None:
    thread_id = await host.thread()
    emails = calls(("send_email", {"to": "ann", "body": "hi"}), ("send_email", {"to": "bob", "body": "hi"}))
    await host.events(thread_id, "per_call", input=said(emails), protocol=protocol)
    ann, bob = await host.midstream.interrupts(thread_id)
    # Somebody else's answer, which takes its time.
    theirs = {"command": {"resume": {ann.id: approve()}}, "after_seconds": 60}
    busy = await host.runs.create(thread_id, "per_call", **theirs)

    answers = {bob.id: approve()}
    with pytest.raises(ConflictError, match="already running"):
        await host.events(thread_id, "per_call", resume=answers, protocol=protocol)
    with pytest.raises(ConflictError, match="already running"):
        await host.midstream.resume(thread_id, "per_call", answers)

    what: Any = {"resume": answers, "protocol": protocol, "multitask_strategy": "rollback"}
    events = await host.events(thread_id, "per_call", **what)
    assert events[1:] == [Interrupted(events[0].run_id, (ann,)), Done(events[0].run_id, "interrupted")]
    assert busy["run_id"] not in [run["run_id"] for run in await host.runs.list(thread_id)]


@on_every_way
async def test_two_who_answer_two_questions_at_once_each_see_their_own_run(host: Host, protocol: str) -> None:
    """Or the server's refusal, and then the question is still open."""
    thread_id = await host.thread()
    emails = calls(("send_email", {"to": "ann", "body": "hi"}), ("send_email", {"to": "bob", "body": "hi"}))
    await host.events(thread_id, "per_call", input=said(emails), protocol=protocol)
    asked = [each.id for each in await host.midstream.interrupts(thread_id)]
    answers: list[Any] = [{asked[0]: approve()}, {asked[1]: approve()}]

    told = await asyncio.gather(
        *(host.events(thread_id, "per_call", resume=each, protocol=protocol) for each in answers),
        return_exceptions=True,
    )

    runs = {run["run_id"]: run["kwargs"]["command"] for run in await host.runs.list(thread_id)}
    still = [each.id for each in await host.midstream.interrupts(thread_id)]
    for answer, events in zip(answers, told, strict=True):
        if isinstance(events, BaseException):
            assert isinstance(events, ConflictError)
            assert list(answer) == still
        else:
            assert runs[events[0].run_id] == {"resume": answer}


@on_every_way
async def test_a_run_that_was_started_either_way_is_joined_either_way(host: Host, protocol: str) -> None:
    thread_id = await host.thread()
    sent = await host.midstream.send(thread_id, "brief", "Hello")
    assert await words(host, thread_id, sent.run_id, protocol) == FIRST

    for started_by in ("runs", "threads"):
        events = await host.events(thread_id, "brief", input=said("Hello"), protocol=started_by)
        assert await words(host, thread_id, events[0].run_id, protocol) == FIRST


@on_every_way
async def test_an_old_run_that_is_joined_does_not_ask_what_a_later_one_asks(
    host: Host, protocol: str
) -> None:
    thread_id = await host.thread()
    old = await host.events(thread_id, "brief", input=said("Hello"), protocol=protocol)
    asked = said(calls(("ask_user", {"question": "which?"})))
    new = await host.events(thread_id, "brief", input=asked, protocol=protocol)

    for events in (old, new):
        joined = await host.events(thread_id, "brief", run_id=events[0].run_id, protocol=protocol)
        assert joined[-2:] == events[-2:]
    assert isinstance(new[-2], Interrupted)


@on_every_way
async def test_a_run_that_is_not_there_is_the_sdks_own_error(host: Host, protocol: str) -> None:
    thread_id, nowhere = await host.thread(), str(uuid.uuid4())
    for wrong, error, about in (
        ({"run_id": nowhere}, NotFoundError, thread_id),
        ({"run_id": "nobody"}, UnprocessableEntityError, thread_id),
        ({"input": said("Hello")}, NotFoundError, nowhere),
        ({"input": said("Hello"), "assistant_id": "nobody"}, UnprocessableEntityError, thread_id),
    ):
        what: dict[str, Any] = {"assistant_id": "brief", **wrong}
        with pytest.raises(error) as missing:
            await host.events(about, what.pop("assistant_id"), protocol=protocol, **what)
        assert isinstance(missing.value, httpx.HTTPStatusError)


@on_every_way
async def test_a_failure_has_its_name_and_its_message(host: Host, protocol: str) -> None:
    thread_id = await host.thread()
    await host.events(thread_id, "fragile", input=said("Hello"), protocol=protocol)
    asked = {each.value: each.id for each in await host.midstream.interrupts(thread_id)}
    answers: dict[str, Any] = {asked["typed?"]: {"choice": "red"}, asked["plain?"]: "bad"}

    events = await host.events(thread_id, "fragile", resume=answers, protocol=protocol)

    run_id = events[0].run_id
    assert events[-2:] == [Error(run_id, "ValueError", "cannot stand that"), Done(run_id, "error")]


@on_every_way
async def test_input_that_the_graph_cannot_take_ends_in_an_error(host: Host, protocol: str) -> None:
    """The server cannot even read the thread's state afterwards."""
    thread_id = await host.thread()
    await host.events(thread_id, "brief", input=said("Hello"))

    events = await host.events(thread_id, "brief", input={"messages": 3}, protocol=protocol)

    assert [type(event) for event in events] == [Started, Error, Done]
    assert (events[1].error, events[2].status) == ("NotImplementedError", "error")


@on_every_way
async def test_a_run_that_was_cancelled_is_told_from_one_that_has_paused(host: Host, protocol: str) -> None:
    thread_id = await host.thread()
    asked = said(calls(("ask_user", {"question": "which?"})))
    paused = await host.events(thread_id, "brief", input=asked, protocol=protocol)
    assert isinstance(paused[-2], Interrupted)
    assert paused[-1] == Done(paused[0].run_id, "interrupted")

    thread_id = await host.thread()
    events: list[Any] = []
    async for event in host.midstream.stream(thread_id, "long", input=said("Hello"), protocol=protocol):
        if isinstance(event, Token) and not any(isinstance(each, Token) for each in events):
            await host.runs.cancel(thread_id, events[0].run_id)
        events.append(event)
    assert [type(event) for event in events if not isinstance(event, Token)] == [Started, Done]
    assert events[-1] == Done(events[0].run_id, "interrupted", is_cancelled=True)


@on_every_way
async def test_a_run_that_is_taken_back_ends_its_stream(host: Host, protocol: str) -> None:
    """On the newer protocol the server says nothing of it."""
    thread_id = await host.thread()
    events: list[Any] = []
    async for event in host.midstream.stream(thread_id, "long", input=said("Hello"), protocol=protocol):
        if isinstance(event, Token) and not any(isinstance(each, Token) for each in events):
            await host.runs.cancel(thread_id, events[0].run_id, action="rollback")
        events.append(event)

    assert events[-1] == Done(events[0].run_id, "interrupted", is_cancelled=True)
    assert await host.runs.list(thread_id) == []


@on_every_way
async def test_what_a_node_writes_comes_once_and_whole(host: Host, protocol: str) -> None:
    """On the newer protocol midstream's own events come twice, and what else a node writes comes bare."""
    thread_id = await host.thread()
    steered = await host.midstream.steer(thread_id, "be brief")

    events = await host.events(thread_id, "noisy", input=said("Hello"), protocol=protocol)

    assert [event.data for event in events if isinstance(event, Custom)] == ["text", {"at": 1}, None]
    (injected,) = [event for event in events if isinstance(event, Injected)]
    assert injected.request_ids == (steered.id,)


@on_every_way
async def test_a_runs_context_reaches_it(host: Host, protocol: str) -> None:
    thread_id = await host.thread()
    events = await host.events(
        thread_id, "noisy", input=said("Hello"), context={"tone": "kind"}, protocol=protocol
    )
    assert {"tone": "kind"} in [event.data for event in events if isinstance(event, Custom)]


def reopened(part: dict[str, Any] | None, *, cuts: int) -> list[float]:
    """Returns the waits while a thread's stream, of which no more than this comes, is cut so often."""
    flow, is_told = read(ThreadReader("t"), "r", is_websocket=False), False
    waits: list[float] = []
    answer: Any = None
    try:
        step: Any = next(flow)
        while True:
            match step:
                case Subscribe():
                    is_told, answer = False, None
                case Next():
                    answer, is_told = END if is_told or part is None else part, True
                case Call("runs", "get"):
                    answer = {"status": "running" if len(waits) < cuts else "success"}
                case Pause(seconds):
                    waits.append(seconds)
                case Emit():
                    answer = None
            step = flow.send(answer)
    except StopIteration:
        return waits


def test_a_thread_stream_that_is_cut_while_its_run_says_nothing_is_opened_as_long_as_the_run_goes_on() -> (
    None
):
    """What was told before says that the server is there; a run that is over is asked for thrice more."""
    waits = reopened({"method": "lifecycle", "event_id": "1", "params": {}}, cuts=1100)

    assert waits[:6] == [0.2, 0.4, 0.8, 1.6, 3.2, 3.2]
    assert set(waits[6:]) == {3.2}
    assert len(waits) == 1100 + 3


def test_a_thread_stream_that_tells_nothing_at_all_is_given_up() -> None:
    with pytest.raises(httpx.ReadError, match="ends again and again"):
        reopened(None, cuts=20)


async def test_a_word_that_is_none_of_the_allowed_ones_names_them() -> None:
    host = Host("http://server.test", "async")
    with pytest.raises(InvalidRequestError, match="one of runs, threads, websocket, not 'sse'"):
        await host.events("t", "brief", input={}, protocol="sse")
    with pytest.raises(InvalidRequestError, match="one of reject, enqueue, interrupt, rollback, not 'wait'"):
        await host.events("t", "brief", input={}, multitask_strategy="wait")
    with pytest.raises(InvalidRequestError, match="one of reject, enqueue, interrupt, rollback"):
        await host.midstream.resume("t", "brief", {"i": 1}, multitask_strategy="wait")
    await host.close()


async def test_a_listener_that_is_cancelled_leaves_nothing_behind_and_the_run_goes_on(
    hosted_url: str,
) -> None:
    host = Host(hosted_url, "async")
    threads = [await host.thread() for _ in get_args(Protocol)]

    async def listen(thread_id: str, protocol: str, has_begun: asyncio.Event) -> None:
        async for event in host.midstream.stream(thread_id, "long", input=said("Hello"), protocol=protocol):
            if isinstance(event, Token):
                has_begun.set()

    before = asyncio.all_tasks()
    begun = [asyncio.Event() for _ in threads]
    listeners = [
        asyncio.create_task(listen(*each)) for each in zip(threads, get_args(Protocol), begun, strict=True)
    ]
    async with asyncio.timeout(30):
        for event in begun:
            await event.wait()
    for listener in listeners:
        listener.cancel()
    await asyncio.gather(*listeners, return_exceptions=True)

    assert asyncio.all_tasks() == before
    for thread_id in threads:
        (run,) = await host.runs.list(thread_id)
        assert run["status"] == "running"
        await host.runs.cancel(thread_id, run["run_id"])
    await host.close()
