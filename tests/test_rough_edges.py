"""Steering where a graph is short of steps, retries its nodes, is left alone by its reader, or is raced."""

from __future__ import annotations

import asyncio
import threading
import uuid
from typing import Any, TypedDict, cast

import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.prebuilt import tools_condition
from langgraph.types import RetryPolicy

from fakes import ENDLESS, SILENCE, FakeChatModel, calls
from midstream import MidstreamState, ModelNode, Preemption, ToolNode
from support.steering import (
    ASKED,
    OpenLedgerSaver,
    agent,
    halt,
    is_sealed,
    ledger_of,
    look_up,
    said,
    steer,
    thread,
)


@pytest.mark.parametrize("limit", range(1, 10))
@pytest.mark.parametrize("has_tools", [False, True], ids=["no tools", "tools"])
@pytest.mark.parametrize("when", ["before", "early", "late"])
async def test_a_recursion_limit_is_never_reached_because_of_a_steer(
    limit: int, has_tools: bool, when: str
) -> None:
    """Where the run is short of steps, the request waits for the next one."""

    async def run(saver: OpenLedgerSaver, config: Any, model: FakeChatModel) -> Any:
        graph = agent(model, saver=saver, tools=[look_up] if has_tools else ())
        try:
            return await graph.ainvoke(ASKED, cast("RunnableConfig", {**config, "recursion_limit": limit}))
        except GraphRecursionError:
            return None

    first = calls("look_up", '{"word": "cat"}') if has_tools else []
    unsteered = await run(
        OpenLedgerSaver(), thread(), FakeChatModel(answers=[*([first] if first else []), ["A cat."]])
    )
    saver, config = OpenLedgerSaver(), thread()
    ledger, request = ledger_of(saver, config), str(uuid.uuid4())
    if when == "before":
        await ledger.aappend(steer("Brief.", id=request))
    post = saver.posted(config, steer("Brief.", id=request))
    if when == "early" and has_tools:
        answers = [[post, *first], ["A cat."], ["A cat."]]
    elif when == "early":
        answers = [[post, "A", " cat."], ["A cat."]]
    else:
        answers = [
            *([first] if first else []),
            ["A cat.", lambda: ledger.append(steer("Brief.", id=request))],
        ]

    steered = await run(saver, config, FakeChatModel(answers=[*answers, ["A cat."]]))

    if unsteered is None:
        return
    assert steered is not None
    pending = [entry.id for entry in await ledger.arequests()]
    texts = [text for _, text in said(steered["messages"])]
    assert texts.count("Brief.") + pending.count(request) == 1
    assert texts[-1] == "A cat."
    if limit == 9:
        assert pending == []


@pytest.mark.parametrize("limit", [2, 3, 4, 5, 6])
async def test_tools_that_were_bound_to_the_model_beforehand_count_among_the_steps(limit: int) -> None:
    saver, config = OpenLedgerSaver(), thread()
    model = FakeChatModel(
        answers=[
            [saver.posted(config, steer("Look it up.")), "A", " cat."],
            calls("look_up", '{"word": "cat"}'),
            ["A cat."],
        ]
    )
    builder = StateGraph(MidstreamState)
    builder.add_node("model", ModelNode(model.bind_tools([look_up])))
    builder.add_node("tools", LangGraphToolNode([look_up]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    graph: Any = builder.compile(checkpointer=saver)

    state = await graph.ainvoke(ASKED, {**config, "recursion_limit": limit})

    assert state["messages"][-1].text == "A cat."


async def test_a_steer_that_is_taken_back_too_late_leaves_a_run_that_says_it_is_incomplete() -> None:
    saver, config, request = InMemorySaver(), thread(), str(uuid.uuid4())
    ledger = ledger_of(saver, config)

    async def change_of_mind() -> None:
        await ledger.aappend(steer("Be brief.", id=request))
        try:
            await asyncio.Event().wait()
        finally:  # the seal has been claimed
            await ledger.aappend({"kind": "withdraw", "id": request})

    model = FakeChatModel(answers=[["Once", change_of_mind]])

    state = await agent(model, saver=saver).ainvoke(ASKED, config)

    assert said(state["messages"])[1:] == [("ai", "Once")]
    assert state["preemption"]["halt"]["reason"] == "preempt_incomplete"
    assert state["preemption"]["stats"]["empty_boundaries"] == 1


async def test_a_node_that_is_retried_by_its_graph_can_be_steered_in_its_second_attempt() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(
        answers=[
            ["Onc", ConnectionError("gone")],
            ["Once", lambda: ledger.aappend(steer("Be brief.")), SILENCE],
            ["A cat."],
        ]
    )
    builder = StateGraph(MidstreamState)
    retry = RetryPolicy(initial_interval=0.001, jitter=False, retry_on=ConnectionError)
    builder.add_node("model", ModelNode(model), retry_policy=retry)
    builder.add_edge(START, "model")
    builder.add_edge("model", END)

    state = await builder.compile(checkpointer=saver).ainvoke(ASKED, config)

    assert said(state["messages"])[1:] == [("ai", "Once"), ("human", "Be brief."), ("ai", "A cat.")]


async def test_a_node_that_fails_with_a_request_at_hand_applies_it_in_its_second_attempt() -> None:
    saver, config = OpenLedgerSaver(), thread()
    model = FakeChatModel(
        answers=[[saver.posted(config, steer("Be brief.")), ConnectionError("gone")], ["A cat."]]
    )
    builder = StateGraph(MidstreamState)
    retry = RetryPolicy(initial_interval=0.001, jitter=False, retry_on=ConnectionError)
    builder.add_node("model", ModelNode(model), retry_policy=retry)
    builder.add_edge(START, "model")
    builder.add_edge("model", END)

    state = await builder.compile(checkpointer=saver).ainvoke(ASKED, config)

    assert said(state["messages"])[1:] == [("human", "Be brief."), ("ai", "A cat.")]


async def test_a_reader_who_walks_away_leaves_nothing_running() -> None:
    saver, config = InMemorySaver(), thread()
    model = FakeChatModel(answers=[["Once", SILENCE]])
    before = asyncio.all_tasks()

    stream: Any = agent(model, saver=saver).astream(ASKED, config, stream_mode="messages")
    async for _ in stream:
        break
    await stream.aclose()

    left = asyncio.all_tasks() - before
    if left:
        await asyncio.wait(left, timeout=5)
    assert asyncio.all_tasks() == before
    assert [name for name, _ in model.calls[0].closed] == ["inner", "outer"]


async def test_events_of_the_older_protocol_end_what_they_begin() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.aappend(steer("Be brief.")), SILENCE], ["A cat."]])

    events = [
        (event["event"], event["data"].get("output"))
        async for event in agent(model, saver=saver).astream_events(ASKED, config, version="v2")
        if event["event"].startswith("on_chat_model_") and event["event"] != "on_chat_model_stream"
    ]

    assert [name for name, _ in events] == ["on_chat_model_start", "on_chat_model_end"] * 2
    assert [output.text for _, output in events if output is not None] == ["Once", "A cat."]


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("own_node", [True, False], ids=["our tool node", "LangGraph's"])
@pytest.mark.parametrize("is_deep", [False, True], ids=["called by the tool", "a graph deeper"])
async def test_an_agent_that_a_tool_runs_does_not_take_the_threads_requests(
    asynchronous: bool, own_node: bool, is_deep: bool
) -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    helper = FakeChatModel(answers=[["Helped", lambda: ledger.append(steer("Be brief.")), " a", " whole."]])
    inner: Any = agent(helper, saver=cast("Any", None))
    if is_deep:
        around: Any = StateGraph(MidstreamState)
        around.add_node("helper", inner)
        around.add_edge(START, "helper")
        inner = around.compile()

    @tool
    async def ahelp() -> str:
        """Asks another agent."""
        return str((await asyncio.create_task(inner.ainvoke(ASKED)))["messages"][-1].text)

    @tool
    def help_() -> str:
        """Asks another agent."""
        return str(inner.invoke(ASKED)["messages"][-1].text)

    outer = FakeChatModel(answers=[calls("ahelp" if asynchronous else "help_"), ["Fine."]])
    builder: Any = StateGraph(MidstreamState)
    builder.add_node("model", ModelNode(outer, tools=[ahelp, help_]))
    builder.add_node("tools", (ToolNode if own_node else LangGraphToolNode)([ahelp, help_]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    graph = builder.compile(checkpointer=saver)

    state = await graph.ainvoke(ASKED, config) if asynchronous else graph.invoke(ASKED, config)

    assert said(state["messages"])[2:] == [
        ("tool", "Helped a whole."),
        ("human", "Be brief."),
        ("ai", "Fine."),
    ]
    assert [each["outcome"] for each in state["preemption"]["handled"].values()] == ["tool_boundary"]


@pytest.mark.parametrize("starts", ["a tool", "a node"])
async def test_an_agent_that_is_left_in_the_background_does_not_take_the_threads_requests(
    starts: str,
) -> None:
    saver, config = OpenLedgerSaver(), thread()
    is_on, may_end, left = asyncio.Event(), asyncio.Event(), []
    inner = agent(
        FakeChatModel(answers=[["Helped", lambda: is_on.set(), may_end.wait, " a", " whole."]]),
        saver=cast("Any", None),
    )

    async def help_later() -> Any:
        await saver.is_read()  # by the agent in front, which is on its way then
        return await inner.ainvoke(ASKED)

    @tool
    async def start() -> str:
        """Starts another agent."""
        left.append(asyncio.create_task(help_later()))
        return "started"

    async def node(state: Any) -> dict[str, Any]:
        await start.ainvoke({})
        return {}

    post = saver.posted(config, steer("Be brief."))

    async def finish() -> None:
        may_end.set()
        await asyncio.wait(left)

    second = [is_on.wait, post, finish, "So", SILENCE]
    builder: Any = StateGraph(MidstreamState)
    builder.add_edge(START, "model" if starts == "a tool" else "node")
    builder.add_node("node", node)
    builder.add_edge("node", "model")
    answers: list[Any] = [calls("start"), second] if starts == "a tool" else [second]
    builder.add_node("model", ModelNode(FakeChatModel(answers=answers), tools=[start]))
    builder.add_node("tools", LangGraphToolNode([start]))
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")

    async with asyncio.timeout(20):
        state = await builder.compile(checkpointer=saver).ainvoke(ASKED, config)

    helped = left[0].result()
    assert said(helped["messages"])[-1] == ("ai", "Helped a whole.")
    assert said(state["messages"])[-2:] == [("human", "Be brief."), ("ai", "Done.")]
    assert is_sealed(state["messages"][-3])


def test_many_threads_post_while_a_graph_runs_without_an_event_loop() -> None:
    """The in-memory saver is a bunch of dicts, which one thread reads while another writes."""
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    hosts = 8
    failures: list[BaseException] = []

    def post(n: int) -> None:
        try:
            for m in range(3):
                ledger.append(steer(f"{n}.{m}"))
        except BaseException as error:
            failures.append(error)

    posting = [threading.Thread(target=post, args=(n,)) for n in range(hosts)]

    class UntilSteered(FakeChatModel):
        def _start(self, messages: Any, options: Any) -> Any:
            call, _ = super()._start(messages, options)
            steered = sum("request_id" in message.additional_kwargs for message in messages)
            return call, ["Done."] if steered >= hosts * 3 else ["Part", ENDLESS]

    model = UntilSteered()
    graph = agent(model, saver=saver, preemption=Preemption(max_seals=100))
    for each in posting:
        each.start()

    state = graph.invoke(ASKED, {**config, "recursion_limit": 500})
    for each in posting:
        each.join(10)

    assert failures == []
    steers = [text for kind, text in said(state["messages"])[1:] if kind == "human"]
    assert sorted(steers) == sorted(f"{n}.{m}" for n in range(hosts) for m in range(3))
    assert ledger.requests() == []


async def test_a_steer_and_a_halt_between_two_chunks_of_a_fast_provider_come_in_order() -> None:
    saver, config = OpenLedgerSaver(), thread()
    ledger = ledger_of(saver, config)

    async def post() -> None:
        await ledger.aappend(steer("Be brief."))
        await ledger.aappend(halt("Stop."))
        await saver.is_read()

    model = FakeChatModel(answers=[[post, "Once", ENDLESS]])

    state = await agent(model, saver=saver).ainvoke(ASKED, config)

    assert said(state["messages"])[1:] == [("ai", "Once"), ("human", "Be brief.")]
    assert is_sealed(state["messages"][1])
    assert state["preemption"]["halt"]["reason"] == "Stop."


async def test_tools_keep_what_was_bound_to_the_model_before() -> None:
    model = FakeChatModel(answers=[["A cat."]])

    await agent(model.bind(temperature=0.5), saver=InMemorySaver(), tools=[look_up]).ainvoke(ASKED, thread())

    (call,) = model.calls
    assert [each["function"]["name"] for each in call.options["tools"]] == ["look_up"]
    assert call.options.get("temperature") == 0.5


class Foreign(TypedDict):
    """The state of a graph without midstream, which happens to have a channel of this name."""

    preemption: Any


@pytest.mark.parametrize("value", ["a text", ["handled"], 7], ids=repr)
async def test_what_another_graph_left_under_the_name_does_not_disturb_the_thread(value: Any) -> None:
    saver, config = InMemorySaver(), thread()
    builder = StateGraph(Foreign)
    builder.add_node("leave", lambda state: {"preemption": value})
    builder.add_edge(START, "leave")
    builder.add_edge("leave", END)
    await builder.compile(checkpointer=saver).ainvoke({"preemption": None}, config)

    ledger = ledger_of(saver, config)
    await ledger.aappend(steer("Brief."))
    assert await ledger.ahandled() == {}
    assert [entry.kind for entry in await ledger.arequests()] == ["steer"]
    state = await agent(FakeChatModel(answers=[["A cat."]]), saver=saver).ainvoke(ASKED, config)

    assert said(state["messages"]) == [("human", "Tell me a story."), ("human", "Brief."), ("ai", "A cat.")]
    assert await ledger.arequests() == []
