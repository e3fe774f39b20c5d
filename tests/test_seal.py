"""Ending a stream inside the model: what is closed, when and by whom, and who wins when several want it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.messages import HumanMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import Runnable
from langgraph.checkpoint.memory import InMemorySaver

from fakes import ENDLESS, SILENCE, CountingHandler, FakeChatModel
from midstream import SealControl, sealable
from midstream.gate import WaitReason
from support.steering import ASKED, OpenLedgerSaver, agent, halt, is_sealed, ledger_of, said, steer, thread

ASK = [HumanMessage("Tell me a story.")]


class Control(SealControl):
    """Wants a seal when it is told so, and writes down what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[WaitReason] = []
        self.was_blocked = asyncio.Event()

    def blocked(self, reason: WaitReason) -> None:
        self.reasons.append(reason)
        self.was_blocked.set()


class Balance(CountingHandler):
    """Sees, at each token, how many cancellations hang over the task that reads the stream."""

    run_inline = True

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[int] = []

    def on_llm_new_token(self, *args: Any, **kwargs: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.pending.append(task.cancelling())


class Outside:
    """Somebody who cancels a call that they made."""

    def __init__(self) -> None:
        self.handler = CountingHandler()
        self._call: asyncio.Task[Any] | None = None

    def cancel(self) -> None:
        assert self._call is not None
        self._call.cancel()

    def cancel_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self.cancel)

    async def call(self, model: Runnable[Any, Any]) -> asyncio.Task[Any]:
        """Calls the model in a task, and returns that when it is done."""
        self._call = asyncio.create_task(model.ainvoke(ASK, {"callbacks": [self.handler]}))
        await asyncio.wait([self._call], timeout=5)
        return self._call


@pytest.fixture
def no_cache() -> Iterator[None]:
    yield
    set_llm_cache(None)


# What is closed


async def test_the_providers_inner_generator_is_closed_before_the_outer_one_and_in_the_same_task() -> None:
    control = Control()
    model = FakeChatModel(answers=[["Once", " upon", " a", " time"]])
    model.answers[0].insert(2, control.request)  # type: ignore[attr-defined]

    answer = await sealable(model, control).ainvoke(ASK)

    assert answer.text == "Once upon a"
    (call,) = model.calls
    assert (call.produced, call.ended) == (3, False)
    assert call.closed == [("inner", call.reader), ("outer", call.reader)]


async def test_a_silent_providers_inner_generator_is_closed_before_the_outer_one_and_in_the_same_task() -> (
    None
):
    control = Control()
    model = FakeChatModel(answers=[["Once", " upon", control.request, SILENCE]])

    answer = await sealable(model, control).ainvoke(ASK)

    assert answer.text == "Once upon"
    (call,) = model.calls
    assert call.closed == [("inner", call.reader), ("outer", call.reader)]


def test_generators_are_closed_without_an_event_loop_as_well() -> None:
    control = Control()
    model = FakeChatModel(answers=[["Once", " upon", control.request, " a", " time"]])

    answer = sealable(model, control).invoke(ASK)

    assert answer.text == "Once upon a"
    (call,) = model.calls
    assert call.closed == [("inner", call.reader), ("outer", call.reader)]


async def test_closing_that_fails_costs_nothing_of_the_answer() -> None:
    control, counter = Control(), CountingHandler()

    class Sulking(FakeChatModel):
        async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
            try:
                async for chunk in super()._astream(*args, **kwargs):
                    yield chunk
            finally:
                raise RuntimeError("the connection is gone")

    model = Sulking(answers=[["Once", control.request, " upon", " a"]])

    answer = await sealable(model, control).ainvoke(ASK, {"callbacks": [counter]})

    assert answer.text == "Once upon"
    assert (counter.starts, len(counter.ends), counter.errors) == (1, 1, [])


async def test_generators_that_hold_each_other_are_closed_too() -> None:
    control = Control()

    class Entangled(FakeChatModel):
        async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
            held: list[Any] = []

            async def relay(outer: Any) -> AsyncIterator[ChatGenerationChunk]:
                inner = FakeChatModel._astream(self, *args, **kwargs)
                async for chunk in inner:
                    yield chunk
                assert outer is None

            async def wrapped() -> AsyncIterator[ChatGenerationChunk]:
                mine = held[0]
                source = relay(mine)
                async for chunk in source:
                    yield chunk

            mine = wrapped()
            held.append(mine)
            async for chunk in mine:
                yield chunk

    model = Entangled(answers=[["Once", control.request, " upon", " a"]])

    answer = await sealable(model, control).ainvoke(ASK)

    assert answer.text == "Once upon"
    assert [name for name, _ in model.calls[0].closed] == ["inner", "outer"]


async def test_nothing_is_left_running_after_a_steered_run() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.aappend(steer("Be brief.")), SILENCE], ["A cat."]])
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()

    await agent(model, saver=saver).ainvoke(ASKED, config)

    assert asyncio.all_tasks() == tasks
    assert set(threading.enumerate()) == threads


def test_nothing_is_left_running_after_a_steered_run_without_an_event_loop() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.append(steer("Be brief.")), ENDLESS], ["A cat."]])

    agent(model, saver=saver).invoke(ASKED, config)

    assert [each.name for each in threading.enumerate() if each.name.startswith("midstream")] == []


# A provider that says nothing


async def test_a_request_seals_a_silent_provider_without_another_chunk() -> None:
    control = Control()
    spoke, model = asyncio.Event(), FakeChatModel()
    model.answers = [["Once", spoke.set, SILENCE]]
    call = asyncio.create_task(sealable(model, control).ainvoke(ASK))
    await spoke.wait()

    control.request()

    answer = await asyncio.wait_for(call, 5)
    assert answer.text == "Once"
    assert model.calls[0].produced == 1


async def test_a_request_from_another_thread_seals_a_silent_provider() -> None:
    control = Control()
    spoke, model = asyncio.Event(), FakeChatModel()
    model.answers = [["Once", spoke.set, SILENCE]]
    call = asyncio.create_task(sealable(model, control).ainvoke(ASK))
    await spoke.wait()

    await asyncio.to_thread(control.request)

    assert (await asyncio.wait_for(call, 5)).text == "Once"


async def test_a_silent_provider_that_has_said_nothing_yet_is_waited_for() -> None:
    control = Control()
    spoke, model = asyncio.Event(), FakeChatModel()
    model.answers = [[spoke.set, control.was_blocked.wait, "Once", SILENCE]]
    call = asyncio.create_task(sealable(model, control).ainvoke(ASK))
    await spoke.wait()

    control.request()

    assert (await asyncio.wait_for(call, 5)).text == "Once"
    assert set(control.reasons) == {"no_text"}


async def test_a_request_that_was_there_before_the_stream_ends_it_at_its_first_text() -> None:
    control = Control()
    control.request()
    model = FakeChatModel(answers=[["", "Once", " upon"]])

    assert (await sealable(model, control).ainvoke(ASK)).text == "Once"


async def test_a_provider_that_holds_the_cancellation_back_and_speaks_on_is_sealed_all_the_same() -> None:
    control, balance = Control(), Balance()

    async def stubborn() -> None:
        control.request()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    model = FakeChatModel(answers=[["Once", stubborn, " upon", " a"]])

    answer = await sealable(model, control).ainvoke(ASK, {"callbacks": [balance]})

    assert answer.text == "Once"
    assert balance.pending == [0, 0]


async def test_a_provider_that_holds_the_cancellation_back_and_ends_is_sealed_all_the_same() -> None:
    control, balance = Control(), Balance()

    async def stubborn() -> None:
        control.request()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    model = FakeChatModel(answers=[["Once", stubborn]])

    answer = await sealable(model, control).ainvoke(ASK, {"callbacks": [balance]})

    assert answer.text == "Once"
    assert is_sealed(answer)
    assert balance.pending == [0, 0]


async def test_a_provider_that_makes_an_error_of_the_cancellation_is_sealed_all_the_same() -> None:
    control, balance = Control(), Balance()

    async def confused() -> None:
        control.request()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("read failed") from None

    model = FakeChatModel(answers=[["Once", confused]])

    answer = await sealable(model, control).ainvoke(ASK, {"callbacks": [balance]})

    assert (answer.text, balance.errors) == ("Once", [])
    assert balance.pending == [0, 0]


# Who wins


async def test_a_cancellation_from_outside_while_nothing_is_requested_wins() -> None:
    control, outside = Control(), Outside()
    model = FakeChatModel(answers=[["Once", outside.cancel, SILENCE]])

    call = await outside.call(sealable(model, control))

    assert call.cancelled()
    assert not control.sealed
    assert [name for name, _ in model.calls[0].closed] == ["inner", "outer"]
    assert outside.handler.ends == []


@pytest.mark.parametrize("first", ["ours", "theirs"])
async def test_a_cancellation_from_outside_that_meets_ours_wins(first: str) -> None:
    control, outside = Control(), Outside()

    async def both() -> None:
        if first == "theirs":
            outside.cancel_soon()
            control.request()
        else:
            control.request()
            outside.cancel_soon()
        await asyncio.Event().wait()

    model = FakeChatModel(answers=[["Once", both, " upon"]])

    call = await outside.call(sealable(model, control))

    assert call.cancelled()
    assert [name for name, _ in model.calls[0].closed] == ["inner", "outer"]
    assert outside.handler.ends == []


@pytest.mark.parametrize("then", ["speaks", "ends", "fails"])
async def test_a_cancellation_from_outside_wins_over_a_provider_that_holds_ours_back(then: str) -> None:
    control, outside = Control(), Outside()

    async def stubborn() -> None:
        control.request()
        outside.cancel_soon()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if then == "fails":
                raise ConnectionError("read failed") from None

    model = FakeChatModel(answers=[["Once", stubborn, *([" upon"] if then == "speaks" else [])]])

    call = await outside.call(sealable(model, control))

    assert call.cancelled()
    assert outside.handler.ends == []


async def test_a_cancellation_from_outside_while_the_provider_cleans_up_wins() -> None:
    """The first await after ours was delivered: the provider's own clean-up."""
    control, outside = Control(), Outside()
    cleaned: list[str] = []

    async def slow_to_leave() -> None:
        control.request()
        try:
            await asyncio.Event().wait()
        finally:
            outside.cancel_soon()
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.append("left")

    model = FakeChatModel(answers=[["Once", slow_to_leave]])

    call = await outside.call(sealable(model, control))

    assert call.cancelled()
    assert cleaned == ["left"]
    assert [name for name, _ in model.calls[0].closed] == ["inner", "outer"]
    assert outside.handler.ends == []


async def test_a_cancellation_from_outside_while_a_sealed_stream_is_closed_wins_and_all_is_closed() -> None:
    """The await of the innermost generator's clean-up, which the seal itself has begun."""
    control, outside = Control(), Outside()
    closed: list[str] = []

    class Slow(FakeChatModel):
        async def _aplay(self, call: Any, answer: Any) -> AsyncIterator[ChatGenerationChunk]:
            try:
                async for chunk in super()._aplay(call, answer):
                    yield chunk
            finally:
                outside.cancel_soon()
                try:
                    await asyncio.Event().wait()
                finally:
                    closed.append("slow")

    model = Slow(answers=[["Once", control.request, " upon", " a"]])

    call = await outside.call(sealable(model, control))

    assert call.cancelled()
    assert closed == ["slow"]
    assert [name for name, _ in model.calls[0].closed] == ["inner", "outer"]
    assert outside.handler.ends == []


async def test_a_cancellation_from_outside_as_the_last_chunk_is_handed_over_wins() -> None:
    control, outside = Control(), Outside()

    class Handover(CountingHandler):
        run_inline = True

        def on_llm_new_token(self, token: Any, *, chunk: Any = None, **kwargs: Any) -> None:
            if chunk.message.response_metadata.get("preemption"):
                outside.cancel()

    outside.handler = Handover()
    model = FakeChatModel(answers=[["Once", control.request, " upon", " a"]])

    call = await outside.call(sealable(model, control))

    assert call.cancelled()


async def test_a_timeout_around_a_sealed_call_is_a_timeout() -> None:
    control = Control()
    me = asyncio.current_task()
    assert me is not None

    async def late() -> None:
        control.request()
        deadline.reschedule(asyncio.get_running_loop().time())
        await asyncio.Event().wait()

    model = FakeChatModel(answers=[["Once", late]])

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as deadline:
            await sealable(model, control).ainvoke(ASK)

    assert me.cancelling() == 0


async def test_a_seal_under_a_timeout_that_does_not_strike_leaves_nothing_behind() -> None:
    control = Control()
    me = asyncio.current_task()
    assert me is not None
    model = FakeChatModel(answers=[["Once", control.request, SILENCE]])

    async with asyncio.timeout(60):
        answer = await sealable(model, control).ainvoke(ASK)
        await asyncio.sleep(0)

    assert answer.text == "Once"
    assert me.cancelling() == 0


async def test_a_provider_with_a_timeout_of_its_own_is_sealed_within_it() -> None:
    control = Control()

    async def bounded() -> None:
        control.request()
        async with asyncio.timeout(60):
            await asyncio.Event().wait()

    model = FakeChatModel(answers=[["Once", bounded]])

    assert (await sealable(model, control).ainvoke(ASK)).text == "Once"


async def test_a_cancelled_run_leaves_the_request_for_the_next_one() -> None:
    saver, config = OpenLedgerSaver(), thread()
    ledger = ledger_of(saver, config)
    blocked = asyncio.Event()

    async def wait() -> None:
        blocked.set()
        await asyncio.Event().wait()

    model = FakeChatModel(answers=[[saver.posted(config, steer("Be brief.")), wait, "never"], ["A cat."]])
    graph = agent(model, saver=saver)
    run = asyncio.create_task(graph.ainvoke(ASKED, config))
    await blocked.wait()
    run.cancel()
    await asyncio.wait([run], timeout=5)

    assert run.cancelled()
    assert len(await ledger.arequests()) == 1
    state = await graph.ainvoke(None, config)
    assert said(state["messages"]) == [
        ("human", "Tell me a story."),
        ("human", "Be brief."),
        ("ai", "A cat."),
    ]


# The cache


@pytest.mark.parametrize("where", ["global", "on the model"])
async def test_half_an_answer_is_never_kept_by_a_cache(where: str, no_cache: None) -> None:
    cache, control = InMemoryCache(), Control()
    model = FakeChatModel(
        answers=[["Once", control.request, " upon", " a"], ["Once upon a time."]],
        cache=cache if where == "on the model" else None,
    )
    if where == "global":
        set_llm_cache(cache)

    first = await sealable(model, control).ainvoke(ASK)
    second = await sealable(model, Control()).ainvoke(ASK)
    third = await sealable(model, Control()).ainvoke(ASK)

    assert [first.text, second.text, third.text] == ["Once upon", "Once upon a time.", "Once upon a time."]
    assert len(model.calls) == 2


def test_half_an_answer_is_never_kept_by_a_cache_without_an_event_loop(no_cache: None) -> None:
    control = Control()
    set_llm_cache(InMemoryCache())
    model = FakeChatModel(answers=[["Once", control.request, " upon", " a"], ["Once upon a time."]])

    first = sealable(model, control).invoke(ASK)
    second = sealable(model, Control()).invoke(ASK)

    assert [first.text, second.text] == ["Once upon", "Once upon a time."]


async def test_a_model_and_its_sealable_copy_share_what_a_cache_keeps(no_cache: None) -> None:
    set_llm_cache(InMemoryCache())
    model = FakeChatModel(answers=[["Once upon a time."]])

    kept = await model.ainvoke(ASK)

    assert (await sealable(model, Control()).ainvoke(ASK)).text == kept.text
    assert len(model.calls) == 1


async def test_a_cache_that_is_switched_off_stays_off(no_cache: None) -> None:
    set_llm_cache(InMemoryCache())
    model = FakeChatModel(answers=[["One."], ["Two."]], cache=False)

    assert (await sealable(model, Control()).ainvoke(ASK)).text == "One."
    assert (await sealable(model, Control()).ainvoke(ASK)).text == "Two."


def test_the_original_model_is_not_changed() -> None:
    control = Control()
    control.request()
    model = FakeChatModel(answers=[["Once", " upon"], ["Once", " upon"]])
    bound = model.bind(stop=["\n"])

    assert sealable(bound, control).invoke(ASK).text == "Once"
    assert bound.invoke(ASK).text == "Once upon"
    assert type(model) is FakeChatModel


# The newer protocol's own hook


class NativeModel(FakeChatModel):
    """Has a stream of its own for the newer protocol, which a seal would not reach."""

    async def _astream_chat_model_events(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise AssertionError("the model was read by its own events")
        yield

    def _stream_chat_model_events(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        raise AssertionError("the model was read by its own events")
        yield


@pytest.mark.filterwarnings("ignore:The v3 streaming protocol")
async def test_a_model_with_events_of_its_own_is_read_chunk_by_chunk_so_that_it_can_be_sealed() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = NativeModel(answers=[["Once", lambda: ledger.aappend(halt("Stop.")), SILENCE]])
    graph = agent(model, saver=saver)

    async for _ in await graph.astream_events(ASKED, config, version="v3"):
        pass

    assert said((await graph.aget_state(config)).values["messages"])[1:] == [("ai", "Once")]


async def test_a_prompt_that_cannot_be_counted_costs_nothing_of_the_answer() -> None:
    control = Control()
    odd = [HumanMessage(content=[{"type": "text"}])]
    model = FakeChatModel(answers=[["Once", control.request, " upon", " a"]])

    answer = await sealable(model, control).ainvoke(odd, tools=[object()])

    assert answer.text == "Once upon"
    assert is_sealed(answer)
