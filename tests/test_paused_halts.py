"""What a boundary comes to is said and noted when it is certain: not before a hook that may pause the run."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import tools_condition
from langgraph.types import Command, interrupt

from fakes import ENDLESS, SILENCE, FakeChatModel, calls
from midstream import (
    BoundaryHook,
    BoundaryInput,
    BoundaryOutput,
    MidstreamState,
    ModelNode,
    Preemption,
    ToolNode,
    after_turn,
)
from support.steering import ASKED, OpenLedgerSaver, agent, halt, ledger_of, look_up, said, steer, thread


def confirm(given: BoundaryInput) -> None:
    interrupt(f"{given.halt_reason} Right?")


CONFIRM = BoundaryHook(confirm, at={"end"})


def as_run(config: RunnableConfig, run_id: str) -> RunnableConfig:
    return {**config, "run_id": uuid.UUID(run_id)}


async def events(graph: Any, given: Any, config: RunnableConfig) -> list[str]:
    """Runs a graph; returns the events that a host sees."""
    async with asyncio.timeout(10):
        return [each["event"] async for each in graph.astream(given, config, stream_mode="custom")]


def halted_agent(saver: OpenLedgerSaver, config: RunnableConfig, when: str) -> Any:
    """An agent that is halted in one of its ways, and asks before it is."""
    post = saver.posted(config, halt("Enough."))
    first, *rest = calls("look_up", '{"word": "cat"}')
    script = {
        "as it speaks": ["Once", post, ENDLESS],
        "as it calls a tool": ["So.", first, post, *rest],
        "as it is silent": ["  ", post, SILENCE],
        "as it ends": ["The end.", lambda: ledger_of(saver, config).append(halt("Enough."))],
        "for want of words": ["Once", ENDLESS],
    }[when]
    polls = iter([True])
    options = Preemption(
        boundary_hooks=[CONFIRM, lambda _: None],
        restart_grace=0,
        should_preempt=(lambda: next(polls, False)) if when == "for want of words" else None,
    )
    return agent(FakeChatModel(answers=[script]), saver=saver, tools=[look_up], preemption=options)


WAYS = {
    "as it speaks": "Enough.",
    "as it calls a tool": "Enough.",
    "as it is silent": "Enough.",
    "as it ends": "Enough.",
    "for want of words": "preempt_incomplete",
}


@pytest.mark.parametrize(("when", "reason"), WAYS.items())
async def test_a_run_that_pauses_over_its_halt_is_not_halted_before_it_is_resumed(
    when: str, reason: str
) -> None:
    saver, config = OpenLedgerSaver(), thread()
    ledger, graph = ledger_of(saver, config), halted_agent(saver, config, when)
    one, other = str(uuid.uuid4()), str(uuid.uuid4())

    before = await events(graph, ASKED, as_run(config, one))

    view = await ledger.aview()
    assert "halted" not in before
    assert view.halts == ()
    assert not any(note["empty_boundaries"] for note in view.runs.values())
    assert "halt" not in (await graph.aget_state(config)).values["preemption"]

    after = await events(graph, Command(resume="Yes."), as_run(config, other))

    view = await ledger.aview()
    assert after == ["halted"]
    assert [(each["run_id"], each["reason"]) for each in view.halts] == [(other, reason)]
    state = (await graph.aget_state(config)).values["preemption"]
    assert state["halt"] == {"run_id": other, "reason": reason, "node": "model"}
    empty = [len(note["empty_boundaries"]) for note in view.runs.values()]
    assert sum(empty) == state["stats"]["empty_boundaries"] == int(reason == "preempt_incomplete")


@pytest.mark.parametrize(("when", "reason"), WAYS.items())
async def test_new_input_instead_of_an_answer_leaves_no_halt_of_the_run_that_paused(
    when: str, reason: str
) -> None:
    saver, config = OpenLedgerSaver(), thread()
    ledger, graph = ledger_of(saver, config), halted_agent(saver, config, when)
    one, other = str(uuid.uuid4()), str(uuid.uuid4())
    await events(graph, ASKED, as_run(config, one))

    graph = agent(FakeChatModel(answers=[["A dog."]]), saver=saver, tools=[look_up])
    given = {"messages": [HumanMessage("And a dog?")]}
    state = await graph.ainvoke(given, as_run(config, other))

    view = await ledger.aview()
    still_asked = reason == "Enough."  # the request waits for the next run, which is halted by it
    assert [each["run_id"] for each in view.halts] == ([other] if still_asked else [])
    assert not any(note["empty_boundaries"] for note in view.runs.values())
    assert (state["preemption"].get("halt") or {}).get("run_id") == (other if still_asked else None)


async def test_what_is_injected_is_said_once_and_after_the_pause() -> None:
    saver, config = OpenLedgerSaver(), thread()
    ledger = ledger_of(saver, config)

    async def post() -> None:
        await ledger.aappend(steer("Shorter."))
        await ledger.aappend(halt("Enough."))

    model = FakeChatModel(answers=[["Once", post, ENDLESS]])
    graph = agent(model, saver=saver, preemption=Preemption(boundary_hooks=[CONFIRM]))

    assert await events(graph, ASKED, config) == ["sealed"]
    assert len((await graph.aget_state(config)).values["messages"]) == 2
    assert await events(graph, Command(resume="Yes."), config) == ["injected", "halted"]


async def test_what_has_expired_is_said_once_though_a_hook_pauses_and_before_the_model_speaks() -> None:
    saver, config = OpenLedgerSaver(), thread()
    ledger = ledger_of(saver, config)
    past = str(uuid.uuid4())

    async def post() -> None:
        await ledger.aappend(steer("Too late.", run_id=past))
        await ledger.aappend(steer("Shorter."))

    hook = BoundaryHook(lambda _: BoundaryOutput(messages=[interrupt("How?")]), at={"seal"})
    model = FakeChatModel(answers=[["Once", post, ENDLESS], ["Fine."]])
    graph = agent(model, saver=saver, preemption=Preemption(boundary_hooks=[hook]))

    assert await events(graph, ASKED, config) == ["sealed"]
    assert await events(graph, Command(resume="In rhyme."), config) == ["expired", "injected"]

    await ledger.aappend(steer("Too late again.", run_id=past))
    asked = {"messages": [HumanMessage("And?")]}
    model = FakeChatModel(answers=[["Well", ", well."]])
    graph = agent(model, saver=saver)
    seen: list[str] = []
    stream: Any = graph.astream(asked, config, stream_mode=["custom", "messages"])
    async for mode, each in stream:
        seen.append(each["event"] if mode == "custom" else "token")
    assert seen[:2] == ["expired", "token"]
    assert seen.count("expired") == 1


def beside_the_boundary(model: Any, other: Any) -> Any:
    """A graph in which another agent works in the step of the boundary of a model's first answer."""
    outer = StateGraph(MidstreamState)
    outer.add_node("model", model)
    outer.add_node("first", lambda _: None)
    outer.add_node("inner", other)
    outer.add_edge(START, "model")
    outer.add_edge(START, "first")
    outer.add_edge("first", "inner")
    outer.add_edge("model", END)
    outer.add_edge("inner", END)
    return outer


async def test_other_agents_decline_while_a_hook_is_asked_over_the_halt() -> None:
    saver, config = OpenLedgerSaver(), thread()
    is_working, is_asked, is_over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait(given: BoundaryInput) -> None:
        """Halts once the other agent is at work, and lasts until that is through."""
        async with asyncio.timeout(10):
            if given.kind == "seal":
                await is_working.wait()
            else:
                is_asked.set()
                await is_over.wait()

    @tool
    async def work() -> str:
        """Works until the hook is asked."""
        is_working.set()
        async with asyncio.timeout(10):
            await is_asked.wait()
        return "worked"

    busy = FakeChatModel(answers=[calls("work"), ["never"]])
    inner = StateGraph(MidstreamState)
    inner.add_node("busy", ModelNode(busy, tools=[work]))
    inner.add_node("tools", ToolNode([work]))
    inner.add_node("over", lambda _: is_over.set())
    inner.add_edge(START, "busy")
    inner.add_conditional_edges("busy", tools_condition, {"tools": "tools", END: "over"})
    inner.add_edge("tools", "busy")

    post = saver.posted(config, halt("Enough.", node="model"))
    model = FakeChatModel(answers=[["Once", post, ENDLESS]])
    options = Preemption(boundary_hooks=[BoundaryHook(wait, at={"seal", "end"})])
    outer = beside_the_boundary(ModelNode(model, preemption=options), inner.compile())

    state = await outer.compile(checkpointer=saver).ainvoke(ASKED, config)

    assert state["preemption"]["halt"]["reason"] == "Enough."
    assert len(busy.calls) == 1
    assert state["messages"][-1].text == "worked"


async def test_a_halt_that_was_given_up_after_a_pause_stops_nobody() -> None:
    """Also where the run is resumed under its own id, in the same process."""
    saver, config = InMemorySaver(), as_run(thread(), str(uuid.uuid4()))
    wishes = iter([BoundaryOutput(prevent_continuation=True), BoundaryOutput(messages=["Go on."])])
    polls = iter([True])
    options = Preemption(
        boundary_hooks=[BoundaryHook(lambda _: next(wishes), at={"seal"}), CONFIRM],
        should_preempt=lambda: next(polls, False),
    )
    builder = StateGraph(MidstreamState)
    builder.add_node(
        "a", ModelNode(FakeChatModel(answers=[["Once", ENDLESS], ["Fine."]]), preemption=options)
    )
    builder.add_node("b", ModelNode(FakeChatModel(answers=[["And so it was."]])))
    builder.add_edge(START, "a")
    builder.add_conditional_edges("a", after_turn("b"), ["b", END])
    builder.add_edge("b", END)
    graph = builder.compile(checkpointer=saver)

    paused = await graph.ainvoke(ASKED, config)
    assert len(paused["__interrupt__"]) == 1
    await graph.ainvoke(Command(resume="No."), config)
    state = await graph.ainvoke(Command(resume="No."), config)

    assert said(state["messages"])[2:] == [
        ("human", "Go on."),
        ("ai", "Fine."),
        ("ai", "And so it was."),
    ]


async def test_a_batch_that_was_answered_begins_nothing_while_a_hook_is_asked_over_the_halt() -> None:
    saver, config = OpenLedgerSaver(), thread()
    is_asked, is_over = asyncio.Event(), asyncio.Event()

    async def confirm_slowly(given: BoundaryInput) -> None:
        interrupt("Right?")
        is_asked.set()
        async with asyncio.timeout(10):
            await is_over.wait()

    @tool
    async def ask() -> str:
        """Asks, and takes its time over the answer."""
        answer = str(interrupt("Which?"))
        async with asyncio.timeout(10):
            await is_asked.wait()
        return answer

    asked = tool_call_chunk(name="ask", args="{}", id="c1", index=0)
    waits = tool_call_chunk(name="look_up", args='{"word": "cat"}', id="c2", index=1)
    batch = AIMessageChunk(content="", tool_call_chunks=[asked, waits])
    busy = FakeChatModel(answers=[[batch], ["never"]])
    inner = StateGraph(MidstreamState)
    inner.add_node("busy", ModelNode(busy, tools=[ask, look_up]))
    inner.add_node("tools", ToolNode([ask, look_up], interrupting_tools=["ask"]))
    inner.add_node("over", lambda _: is_over.set())
    inner.add_edge(START, "busy")
    inner.add_conditional_edges("busy", tools_condition, {"tools": "tools", END: "over"})
    inner.add_edge("tools", "busy")

    post = saver.posted(config, halt("Enough.", node="model"))
    options = Preemption(boundary_hooks=[BoundaryHook(confirm_slowly, at={"end"})])
    model = FakeChatModel(answers=[["Once", post, ENDLESS]])
    outer = beside_the_boundary(ModelNode(model, preemption=options), inner.compile())
    graph = outer.compile(checkpointer=saver)
    paused = await graph.ainvoke(ASKED, config)
    answers = {each.id: "this" for each in paused["__interrupt__"]}
    assert len(answers) == 2

    state = await graph.ainvoke(Command(resume=answers), config)

    assert state["preemption"]["halt"]["reason"] == "Enough."
    first, second = state["messages"][-2:]
    assert first.text == "this"
    assert "not run" in second.text.lower()
