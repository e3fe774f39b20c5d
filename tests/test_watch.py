"""The look-out of a run: what it sees, how often it looks, and that it never disturbs an answer."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

from fakes import ENDLESS, SILENCE, FakeChatModel
from midstream import Ledger, MidstreamState, ModelNode, Preemption, wakeup
from midstream.ledger import NAMESPACE
from midstream.pace import Pace
from midstream.run import Run
from midstream.turnstile import AT_ONCE, Turnstile, turnstile
from midstream.watch import WatchedCall, awatching, watching
from support.steering import ASKED, OpenLedgerSaver, agent, is_sealed, ledger_of, said, steer, thread

NEVER = 3600.0


class FailingSaver(OpenLedgerSaver):
    """A saver whose ledger cannot be read for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.failures_left = 0
        self.failed = asyncio.Event()

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        if config["configurable"].get("checkpoint_ns") == NAMESPACE and self.failures_left:
            self.failures_left -= 1
            self.failed.set()
            raise ConnectionError("the database is away")
        return await super().aget_tuple(config)


class Listener(WatchedCall):
    """A call that writes down which requests it was told of."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[str]] = []
        self.told = threading.Event()

    def look(self, view: Any) -> None:
        self.seen.append([entry.id for entry in view.pending()])
        self.told.set()


def post_unseen(saver: InMemorySaver, config: RunnableConfig, text: str) -> None:
    """Posts as another process does: the ledger is written, and nobody here is woken."""
    silent = wakeup.notify
    try:
        wakeup.notify = lambda thread_id: None
        ledger_of(saver, config).append(steer(text))
    finally:
        wakeup.notify = silent


async def test_a_request_of_another_process_is_seen_at_the_next_look() -> None:
    saver, config = InMemorySaver(), thread()
    model = FakeChatModel(
        answers=[["Once", lambda: post_unseen(saver, config, "Brief."), SILENCE], ["A cat."]]
    )
    graph = agent(model, saver=saver, preemption=Preemption(poll_interval=0.01))

    state = await asyncio.wait_for(graph.ainvoke(ASKED, config), 10)

    assert said(state["messages"])[1:] == [("ai", "Once"), ("human", "Brief."), ("ai", "A cat.")]


def test_a_request_of_another_process_is_seen_at_the_next_look_without_an_event_loop() -> None:
    saver, config = InMemorySaver(), thread()
    model = FakeChatModel(
        answers=[["Once", lambda: post_unseen(saver, config, "Brief."), ENDLESS], ["A cat."]]
    )

    state = agent(model, saver=saver, preemption=Preemption(poll_interval=0.01)).invoke(ASKED, config)

    assert [message.type for message in state["messages"]] == ["human", "ai", "human", "ai"]


async def test_a_request_of_this_process_is_seen_at_once_whatever_the_interval() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(
        answers=[["Once", lambda: asyncio.to_thread(ledger.append, steer("Brief.")), SILENCE], ["A cat."]]
    )
    graph = agent(model, saver=saver, preemption=Preemption(poll_interval=NEVER))

    state = await asyncio.wait_for(graph.ainvoke(ASKED, config), 10)

    assert said(state["messages"])[1:] == [("ai", "Once"), ("human", "Brief."), ("ai", "A cat.")]


async def test_a_ledger_that_cannot_be_read_does_not_disturb_the_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    saver, config = FailingSaver(), thread()
    ledger = ledger_of(saver, config)

    async def fail_twice_and_come_back() -> None:
        saver.failures_left = 2
        wakeup.notify(config["configurable"]["thread_id"])
        await saver.failed.wait()
        saver.failures_left = 0
        await ledger.aappend(steer("Brief."))

    model = FakeChatModel(answers=[["Once", fail_twice_and_come_back, SILENCE], ["A cat."]])
    graph = agent(model, saver=saver, preemption=Preemption(poll_interval=NEVER))

    with caplog.at_level(logging.WARNING, logger="midstream"):
        state = await asyncio.wait_for(graph.ainvoke(ASKED, config), 10)

    assert said(state["messages"])[1:] == [("ai", "Once"), ("human", "Brief."), ("ai", "A cat.")]
    assert [record.getMessage().split(" of thread ")[0] for record in caplog.records] == ["the ledger"]


async def test_a_ledger_that_is_away_is_told_once_for_each_time_it_goes_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    saver, config = FailingSaver(), thread()
    run, call = Run("r"), Listener()
    ledger = ledger_of(saver, config)

    async def looked() -> None:
        saver.failed.clear()
        await asyncio.wait_for(saver.failed.wait(), 5)

    with caplog.at_level(logging.WARNING, logger="midstream"):
        async with awatching(run, ledger, config["configurable"]["thread_id"], call, Pace(0.001)):
            for _ in range(2):
                saver.failures_left = 3
                await looked()
                while saver.failures_left:
                    await looked()
                await asyncio.wait_for(saver.is_read(), 5)

    assert len(caplog.records) == 2


async def test_parallel_calls_of_a_run_share_one_look_out() -> None:
    saver, config = OpenLedgerSaver(), thread()
    run, ledger = Run("r"), ledger_of(saver, config)
    thread_id = config["configurable"]["thread_id"]
    one, two = Listener(), Listener()
    before = asyncio.all_tasks()

    async with awatching(run, ledger, thread_id, one, Pace(NEVER)):
        await saver.is_read()
        async with awatching(run, ledger, thread_id, two, Pace(NEVER)):
            await saver.is_read()
            assert len(asyncio.all_tasks() - before) == 1
            request = await ledger.aappend(steer("Brief."))
            await saver.is_read()
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks() - before) == 1
        seen_by_two = len(two.seen)
        await ledger.aappend(steer("Briefer."))
        await saver.is_read()
        await asyncio.sleep(0)

    assert asyncio.all_tasks() == before
    assert run.shared == {}
    assert [request] in one.seen
    assert [request] in two.seen
    assert len(two.seen) == seen_by_two
    assert len(one.seen[-1]) == 2


def test_parallel_calls_on_threads_share_one_look_out() -> None:
    saver, config = InMemorySaver(), thread()
    run, ledger = Run("r"), ledger_of(saver, config)
    thread_id = config["configurable"]["thread_id"]
    one, two = Listener(), Listener()
    before = threading.active_count()

    with watching(run, ledger, thread_id, one, Pace(NEVER)):
        with watching(run, ledger, thread_id, two, Pace(NEVER)):
            assert threading.active_count() == before + 1
            assert one.told.wait(5)
            assert two.told.wait(5)
        assert threading.active_count() == before + 1

    assert threading.active_count() == before
    assert run.shared == {}


async def test_a_call_that_fails_leaves_no_look_out_behind() -> None:
    saver, config = InMemorySaver(), thread()
    before = asyncio.all_tasks()
    model = FakeChatModel(answers=[["Once", ConnectionError("gone")]])

    with pytest.raises(ConnectionError):
        await agent(model, saver=saver).ainvoke(ASKED, config)

    assert asyncio.all_tasks() == before
    assert wakeup._subscribers == {}


class SlowLedger(Ledger):
    """A ledger whose read takes as long as a test likes."""

    def __init__(self) -> None:
        super().__init__(InMemorySaver(), "t")
        self.is_reading = asyncio.Event()
        self.may_read = asyncio.Event()
        self.has_read = False

    async def aview(self) -> Any:
        self.is_reading.set()
        await self.may_read.wait()
        self.has_read = True
        return await super().aview()


async def test_a_caller_that_is_cancelled_waits_for_a_read_that_is_under_way() -> None:
    """Half a read can spoil a connection that others use."""
    ledger = SlowLedger()

    async def call() -> None:
        async with awatching(Run("r"), ledger, "t", Listener(), Pace(NEVER)):
            await asyncio.Event().wait()

    task = asyncio.create_task(call())
    await ledger.is_reading.wait()
    task.cancel()
    asyncio.get_running_loop().call_soon(ledger.may_read.set)
    await asyncio.wait([task], timeout=5)

    assert task.cancelled()
    assert ledger.has_read


async def test_a_caller_that_is_cancelled_twice_goes_at_once_and_the_read_ends_by_itself() -> None:
    ledger = SlowLedger()
    before = asyncio.all_tasks()

    async def call() -> None:
        async with awatching(Run("r"), ledger, "t", Listener(), Pace(NEVER)):
            await asyncio.Event().wait()

    task = asyncio.create_task(call())
    await ledger.is_reading.wait()
    loop = asyncio.get_running_loop()
    task.cancel()
    loop.call_soon(lambda: loop.call_soon(task.cancel))
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()
    assert not ledger.has_read

    ledger.may_read.set()
    await asyncio.wait(asyncio.all_tasks() - before, timeout=5)
    assert ledger.has_read
    assert asyncio.all_tasks() == before


async def test_runs_in_two_event_loops_of_one_process_do_not_share_a_look_out() -> None:
    saver = InMemorySaver()

    def run_elsewhere(name: str) -> list[tuple[str, str]]:
        config = thread()
        ledger = ledger_of(saver, config)
        model = FakeChatModel(answers=[["Once", lambda: ledger.aappend(steer(name)), SILENCE], ["A cat."]])
        state = asyncio.run(agent(model, saver=saver).ainvoke(ASKED, config))
        return said(state["messages"])[1:]

    first, second = await asyncio.gather(
        asyncio.to_thread(run_elsewhere, "One."), asyncio.to_thread(run_elsewhere, "Two.")
    )

    assert first == [("ai", "Once"), ("human", "One."), ("ai", "A cat.")]
    assert second == [("ai", "Once"), ("human", "Two."), ("ai", "A cat.")]


async def test_a_request_from_another_loops_thread_wakes_the_run() -> None:
    """As on the server, where the API and the workers have event loops of their own."""
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)

    def post() -> None:
        threading.Thread(target=lambda: asyncio.run(ledger.aappend(steer("Brief.")))).start()

    model = FakeChatModel(answers=[["Once", post, SILENCE], ["A cat."]])
    graph = agent(model, saver=saver, preemption=Preemption(poll_interval=NEVER))

    state = await asyncio.wait_for(graph.ainvoke(ASKED, config), 10)

    assert said(state["messages"])[1:] == [("ai", "Once"), ("human", "Brief."), ("ai", "A cat.")]


async def test_two_agents_in_parallel_share_one_steer() -> None:
    saver, config = OpenLedgerSaver(), thread()
    spoke = asyncio.Event()
    request = str(uuid.uuid4())
    ledger = ledger_of(saver, config)

    async def post() -> None:
        await spoke.wait()
        await ledger.aappend(steer("Brief.", id=request))
        await saver.is_read()

    one = FakeChatModel(answers=[["One", post, " is", " one."], ["Short."], ["never"]])
    two = FakeChatModel(answers=[["Two", spoke.set, saver.is_read, " is", " two."], ["Short."], ["never"]])
    builder = StateGraph(MidstreamState)
    for name, model in (("one", one), ("two", two)):
        builder.add_node(name, ModelNode(model))
        builder.add_edge(START, name)
        builder.add_edge(name, END)

    state = await builder.compile(checkpointer=saver).ainvoke(ASKED, config)

    texts = [text for _, text in said(state["messages"])]
    assert texts.count("Brief.") == 1
    assert sum(map(is_sealed, state["messages"])) == 1
    assert state["preemption"]["stats"]["seals"] == 1
    assert set(state["preemption"]["handled"]) == {request}
    assert len(one.calls) + len(two.calls) == 3


class CountingLedger(Ledger):
    """A ledger that is read for as long as a test likes, and knows by how many at once."""

    reading = 0
    most = 0

    def __init__(self, gate: asyncio.Event) -> None:
        super().__init__(InMemorySaver(), str(uuid.uuid4()))
        self._gate = gate
        self.looks = 0
        self.looked = asyncio.Event()

    async def aview(self) -> Any:
        kind = type(self)
        kind.reading += 1
        kind.most = max(kind.most, kind.reading)
        try:
            self.looks += 1
            await self._gate.wait()
            self.looked.set()
            return await super().aview()
        finally:
            kind.reading -= 1


async def test_of_many_runs_that_only_look_few_are_in_the_savers_line_at_once() -> None:
    """What the runs have to write is in the same line."""
    gate = asyncio.Event()
    gate.set()
    ledgers = [CountingLedger(gate) for _ in range(20)]
    others = asyncio.all_tasks()

    async def stream(ledger: CountingLedger, over: asyncio.Event) -> None:
        async with awatching(Run(ledger._thread_id), ledger, ledger._thread_id, Listener(), Pace(0.004)):
            await over.wait()

    over = asyncio.Event()
    async with asyncio.TaskGroup() as streams:
        for ledger in ledgers:
            streams.create_task(stream(ledger, over))
        while any(ledger.looks < 2 for ledger in ledgers):  # the first look of each is not in the line
            await asyncio.sleep(0.001)

        CountingLedger.most = 0
        gate.clear()
        while CountingLedger.reading < AT_ONCE:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)  # longer than all of them wait between two looks
        assert CountingLedger.reading == AT_ONCE

        # One that knows of a request goes past; and whoever leaves does not wait for a turn.
        waiting = min(ledgers, key=lambda ledger: ledger.looks)
        before = waiting.looks
        wakeup.notify(waiting._thread_id)
        while waiting.looks == before:
            await asyncio.sleep(0.001)
        assert CountingLedger.reading in (AT_ONCE, AT_ONCE + 1)
        over.set()
        async with asyncio.timeout(10):
            while len(asyncio.all_tasks() - others) > 2 * (AT_ONCE + 1):
                await asyncio.sleep(0.001)
        gate.set()

    assert repr(turnstile()) == f"<Turnstile [{AT_ONCE} free, 0 waiting]>"


async def test_a_run_that_is_cancelled_in_the_line_gives_its_place_and_its_turn_away() -> None:
    line = Turnstile(at_once=1)
    first, second, third, fourth = (line.take() for _ in range(4))
    assert [turn.done() for turn in (first, second, third, fourth)] == [True, False, False, False]

    second.cancel()
    third.set_result(False)
    line.give_back()
    assert fourth.result() is True
    line.give_back()
    assert repr(line) == "<Turnstile [1 free, 0 waiting]>"
