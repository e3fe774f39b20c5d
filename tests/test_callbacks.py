"""What handlers, tracers and usage counters see of sealed answers: model calls that ended by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.messages import AIMessageChunk
from langgraph.checkpoint.memory import InMemorySaver

from fakes import ENDLESS, SILENCE, CountingHandler, FakeChatModel, RecordingTracer
from midstream import Preemption
from support.steering import ASKED, agent, halt, ledger_of, look_up, said, steer, thread

SEALS = pytest.mark.parametrize("seals", [1, 2, 8])

LAST = AIMessageChunk(
    content="",
    usage_metadata={"input_tokens": 7, "output_tokens": 3, "total_tokens": 10},
    response_metadata={"model_name": "fake-1"},
)


def steered_model(ledger: Any, seals: int, **options: Any) -> FakeChatModel:
    def steered(n: int) -> list[Any]:
        return [f"Part {n}", lambda: ledger.aappend(steer(f"Steer {n}.")), SILENCE]

    return FakeChatModel(answers=[*(steered(n) for n in range(seals)), ["The", " end.", LAST]], **options)


PLACES: dict[str, Callable[[FakeChatModel], Any]] = {
    "bare": lambda model: model,
    "bound": lambda model: model.bind(stop=["\n"]),
    "with tools": lambda model: model.bind_tools([look_up]),
    "with fallbacks": lambda model: model.with_fallbacks([FakeChatModel()]),
    "with retries": lambda model: model.with_retry(stop_after_attempt=2),
}


@SEALS
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("way", ["ainvoke", "messages", "v3"])
@pytest.mark.filterwarnings("ignore:The v3 streaming protocol")
async def test_every_call_that_starts_also_ends_and_none_fails(
    seals: int, place: Callable[[FakeChatModel], Any], way: str
) -> None:
    saver, config = InMemorySaver(), thread()
    of_config, of_model, tracer = CountingHandler(), CountingHandler(), RecordingTracer()
    usage = UsageMetadataCallbackHandler()
    model = steered_model(ledger_of(saver, config), seals, callbacks=[of_model])
    graph = agent(place(model), saver=saver)
    config = {**config, "callbacks": [of_config, tracer, usage]}

    if way == "ainvoke":
        await graph.ainvoke(ASKED, config)
    elif way == "messages":
        async for _ in graph.astream(ASKED, config, stream_mode="messages"):
            pass
    else:
        async for _ in await graph.astream_events(ASKED, config, version="v3"):
            pass

    messages = (await graph.aget_state(config)).values["messages"]
    spoken = [message for message in messages if message.type == "ai"]
    assert len(spoken) == seals + 1
    for handler in (of_config, of_model):
        assert (handler.starts, len(handler.ends), handler.errors) == (seals + 1, seals + 1, [])
        assert said(handler.ends) == said(spoken)
    assert [run.error for run in tracer.ended] == [None] * (seals + 1)
    assert {run.name for run in tracer.ended} == {"FakeChatModel"}
    assert tracer.run_map == {}
    # Whoever bills by the handler's sums sees the sealed calls as well.
    assert list(usage.usage_metadata) == ["fake-1"]
    total = sum(message.usage_metadata["total_tokens"] for message in spoken)
    assert usage.usage_metadata["fake-1"]["total_tokens"] == total
    assert all(message.usage_metadata["input_tokens"] for message in spoken)


@SEALS
def test_every_call_that_starts_also_ends_without_an_event_loop(seals: int) -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    of_config, of_model, tracer = CountingHandler(), CountingHandler(), RecordingTracer()

    def steered(n: int) -> list[Any]:
        return [f"Part {n}", lambda: ledger.append(steer(f"Steer {n}.")), ENDLESS]

    model = FakeChatModel(answers=[*map(steered, range(seals)), ["The", " end."]], callbacks=[of_model])
    graph = agent(model, saver=saver)

    state = graph.invoke(ASKED, {**config, "callbacks": [of_config, tracer]})

    spoken = [message for message in state["messages"] if message.type == "ai"]
    for handler in (of_config, of_model):
        assert (handler.starts, len(handler.ends), handler.errors) == (seals + 1, seals + 1, [])
        assert said(handler.ends) == said(spoken)
    assert [run.error for run in tracer.ended] == [None] * (seals + 1)


async def test_a_failed_model_and_its_fallback_are_told_as_they_were() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    broken, counter = CountingHandler(), CountingHandler()
    first = FakeChatModel(answers=[[ConnectionError("no route")]] * 2, callbacks=[broken])
    second = steered_model(ledger, 1, callbacks=[counter])

    await agent(first.with_fallbacks([second]), saver=saver).ainvoke(ASKED, config)

    assert (broken.starts, len(broken.ends), len(broken.errors)) == (2, 0, 2)
    assert (counter.starts, len(counter.ends), counter.errors) == (2, 2, [])


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("begins", [["Once"], []], ids=["in mid-answer", "before the first word"])
async def test_a_call_that_is_cancelled_is_told_as_failed_once(
    place: Callable[[FakeChatModel], Any], begins: list[str]
) -> None:
    """Core alone tells nobody, so that its span would stay open for ever."""
    of_config, of_model, tracer = CountingHandler(), CountingHandler(), RecordingTracer()
    is_there = asyncio.Event()
    model = FakeChatModel(answers=[[*begins, is_there.set, SILENCE]], callbacks=[of_model])
    graph = agent(place(model), saver=InMemorySaver())

    run = asyncio.create_task(graph.ainvoke(ASKED, {**thread(), "callbacks": [of_config, tracer]}))
    async with asyncio.timeout(10):
        await is_there.wait()
        run.cancel()
        await asyncio.wait([run])

    assert run.cancelled()
    for handler in (of_config, of_model):
        assert (handler.starts, len(handler.ends)) == (1, 0)
        assert [type(error) for error in handler.errors] == [asyncio.CancelledError]
    assert [bool(each.error) for each in tracer.ended] == [True]


async def test_a_stream_that_fails_halfway_fails_as_it_would_alone() -> None:
    saver, config = InMemorySaver(), thread()
    counter = CountingHandler()
    model = FakeChatModel(answers=[["Once", ConnectionError("gone")]], callbacks=[counter])

    with pytest.raises(ConnectionError, match="gone"):
        await agent(model, saver=saver).ainvoke(ASKED, config)

    assert (counter.starts, len(counter.ends), len(counter.errors)) == (1, 0, 1)


async def test_usage_that_the_provider_has_sent_stays_and_the_rest_is_marked_as_estimated() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    first = AIMessageChunk(
        content="",
        usage_metadata={"input_tokens": 100, "output_tokens": 1, "total_tokens": 101},
    )
    text = "Once upon a time there was a cat, and it was"
    model = FakeChatModel(answers=[[first, text, lambda: ledger.aappend(halt("Stop.")), SILENCE]])

    state = await agent(model, saver=saver).ainvoke(ASKED, config)

    sealed = state["messages"][1]
    assert sealed.usage_metadata["input_tokens"] == 100
    assert sealed.usage_metadata["output_tokens"] > 5
    assert sealed.usage_metadata["total_tokens"] == sum(
        sealed.usage_metadata[name] for name in ("input_tokens", "output_tokens")
    )
    assert sealed.response_metadata["estimated"] == ["output_tokens"]


async def test_an_estimate_counts_the_system_prompt_and_the_tools() -> None:
    async def input_tokens(**options: Any) -> int:
        saver, config = InMemorySaver(), thread()
        ledger = ledger_of(saver, config)
        model = FakeChatModel(answers=[["Once", lambda: ledger.aappend(halt("Stop.")), SILENCE]])
        state = await agent(model, saver=saver, **options).ainvoke(ASKED, config)
        return int(state["messages"][1].usage_metadata["input_tokens"])

    bare = await input_tokens()
    prompted = await input_tokens(prompt="You are a kind and patient teller of stories. " * 10)
    equipped = await input_tokens(tools=[look_up])

    assert bare > 0
    assert prompted > bare + 50
    assert equipped > bare


async def test_an_answer_that_nobody_seals_keeps_the_providers_own_usage() -> None:
    saver, config = InMemorySaver(), thread()
    model = FakeChatModel(answers=[["The", " end.", LAST]])

    state = await agent(model, saver=saver).ainvoke(ASKED, config)

    assert state["messages"][1].usage_metadata == LAST.usage_metadata
    assert "estimated" not in state["messages"][1].response_metadata


@pytest.mark.parametrize("options", [Preemption(), Preemption(enabled=False)], ids=["on", "off"])
async def test_a_call_is_traced_the_same_with_and_without_preemption(options: Preemption) -> None:
    saver, config = InMemorySaver(), thread()
    tracer = RecordingTracer()
    graph = agent(FakeChatModel(answers=[["The", " end.", LAST]]), saver=saver, preemption=options)

    await graph.ainvoke(ASKED, {**config, "callbacks": [tracer]})

    (run,) = tracer.ended
    assert run.serialized is not None
    assert (run.name, run.error, run.serialized["id"]) == ("FakeChatModel", None, ["fakes", "FakeChatModel"])
    assert run.extra["metadata"]["ls_model_name"] == "fake-1"
    assert run.extra["metadata"]["ls_provider"] == "fakechatmodel"
    assert run.extra["invocation_params"]["_type"] == "fake"
