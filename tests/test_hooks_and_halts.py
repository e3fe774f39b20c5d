"""Boundary hooks as a run is halted: what they are told, what they may say, and pauses that cost nothing."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
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
)
from support.steering import ASKED, OpenLedgerSaver, agent, halt, ledger_of, look_up, said, steer, thread


def hooked(function: Callable[[BoundaryInput], Any], *at: Any, **options: Any) -> Preemption:
    return Preemption(boundary_hooks=[BoundaryHook(function, at=at)], **options)


def told_by(told: list[BoundaryInput], output: BoundaryOutput | None = None) -> Any:
    def hook(given: BoundaryInput) -> BoundaryOutput | None:
        told.append(given)
        return output

    return hook


def asks(heard: list[str]) -> Any:
    """A hook that asks a person whether the halt is right."""

    def confirm(given: BoundaryInput) -> None:
        heard.append(interrupt(f"{given.halt_reason} Right?"))

    return confirm


def reason_of(state: dict[str, Any]) -> str:
    return str(state["preemption"]["halt"]["reason"])


# What they are told


async def test_a_hook_at_a_seal_is_told_of_a_halt_and_what_it_says_is_kept() -> None:
    told: list[BoundaryInput] = []
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)

    async def post() -> None:
        await ledger.aappend(steer("Shorter."))
        await ledger.aappend(halt("Enough."))

    output = BoundaryOutput(messages=["Noted."], prevent_continuation=True, stop_reason="Not this.")
    model = FakeChatModel(answers=[["Once", post, ENDLESS]])
    graph = agent(model, saver=saver, preemption=hooked(told_by(told, output), "seal", "end"))

    state = await graph.ainvoke(ASKED, config)

    sealed = state["messages"][1]
    assert said(state["messages"])[2:] == [("human", "Shorter."), ("human", "Noted.")]
    assert reason_of(state) == "Enough.", "the host's word came first"
    assert [(each.kind, each.halt_reason, each.sealed) for each in told] == [
        ("seal", "Enough.", sealed),
        ("end", "Enough.", sealed),
    ]
    for each in told:
        assert [(request.kind, request.reason) for request in each.requests] == [
            ("steer", None),
            ("halt", "Enough."),
        ]


async def test_a_hook_after_tools_is_told_of_a_halt() -> None:
    told: list[BoundaryInput] = []
    saver, config = InMemorySaver(), thread()
    model = FakeChatModel(answers=[calls("look_up", '{"word": "cat"}')])
    preemption = hooked(told_by(told), "tools", "end")
    graph = agent(model, saver=saver, tools=[look_up], preemption=preemption)
    await graph.ainvoke(ASKED, config, interrupt_after=["tools"])
    await ledger_of(saver, config).aappend(halt("Enough."))

    state = await graph.ainvoke(None, config)

    assert reason_of(state) == "Enough."
    assert [(each.kind, each.halt_reason, len(each.requests)) for each in told] == [
        ("tools", "Enough.", 1),
        ("end", "Enough.", 1),
    ]


async def test_a_hook_at_the_end_sees_the_answer_that_another_hook_has_halted() -> None:
    told: list[BoundaryInput] = []
    stop = BoundaryHook(lambda _: BoundaryOutput(prevent_continuation=True, stop_reason="Policy."))
    options = Preemption(
        boundary_hooks=[stop, BoundaryHook(told_by(told), at={"end"})], should_preempt=lambda: True
    )
    graph = agent(FakeChatModel(answers=[["Once", ENDLESS]]), saver=InMemorySaver(), preemption=options)

    state = await graph.ainvoke(ASKED, thread())

    (given,) = told
    assert (given.halt_reason, given.sealed, given.requests) == ("Policy.", state["messages"][1], ())


async def test_a_hook_at_the_end_sees_the_answer_that_was_sealed_for_nothing() -> None:
    told: list[BoundaryInput] = []
    silent = BoundaryHook(lambda _: None)
    options = Preemption(
        boundary_hooks=[silent, BoundaryHook(told_by(told), at={"end"})], should_preempt=lambda: True
    )
    graph = agent(FakeChatModel(answers=[["Once", ENDLESS]]), saver=InMemorySaver(), preemption=options)

    state = await graph.ainvoke(ASKED, thread())

    (given,) = told
    assert (given.halt_reason, given.sealed) == ("preempt_incomplete", state["messages"][1])


# How they pause


@pytest.mark.parametrize("text", ["Let me see.", ""], ids=["with text", "without text"])
async def test_a_hook_may_pause_a_halt_that_comes_with_a_tool_call(text: str) -> None:
    """The model is not called again, and the calls are in the thread when they can be answered."""
    heard: list[str] = []
    saver, config, request = OpenLedgerSaver(), thread(), str(uuid.uuid4())
    first, *rest = calls("look_up", '{"word": "cat"}')
    script = [text, first, saver.posted(config, halt("Enough.", id=request)), *rest]
    model = FakeChatModel(answers=[script])
    graph = agent(model, saver=saver, tools=[look_up], preemption=hooked(asks(heard), "end"))

    paused = await graph.ainvoke(ASKED, config)

    assert [each.value for each in paused["__interrupt__"]] == ["Enough. Right?"]
    assert said(paused["messages"])[1:] == ([("ai", text)] if text else [])
    assert not any(getattr(each, "tool_calls", None) for each in paused["messages"])

    state = await graph.ainvoke(Command(resume="Yes."), config)

    assert heard == ["Yes."]
    assert len(model.calls) == 1
    assert said(state["messages"])[1:] == [("ai", text), ("tool", "cat: a thing")]
    assert [call["name"] for call in state["messages"][1].tool_calls] == ["look_up"]
    assert reason_of(state) == "Enough."
    assert state["preemption"]["handled"][request]["outcome"] == "tool_boundary"
    assert (await graph.aget_state(config)).next == ()


async def test_new_input_instead_of_an_answer_to_a_hook_keeps_what_was_said() -> None:
    saver, config, run_id = OpenLedgerSaver(), thread(), uuid.uuid4()
    first, *rest = calls("look_up", '{"word": "cat"}')
    post = saver.posted(config, halt("Enough.", run_id=str(run_id)))
    model = FakeChatModel(answers=[["Let me see.", first, post, *rest], ["A dog."]])
    graph = agent(model, saver=saver, tools=[look_up], preemption=hooked(asks([]), "end"))
    await graph.ainvoke(ASKED, {**config, "run_id": run_id})

    graph = agent(model, saver=saver, tools=[look_up])
    state = await graph.ainvoke({"messages": [HumanMessage("And a dog?")]}, config)

    assert said(state["messages"])[1:] == [
        ("ai", "Let me see."),
        ("human", "And a dog?"),
        ("ai", "A dog."),
    ]
    assert model.calls[1].texts[-2:] == ["Let me see.", "And a dog?"]


async def test_a_hook_may_pause_a_halt_for_which_an_answer_was_begun_anew() -> None:
    heard: list[str] = []
    saver, config = OpenLedgerSaver(), thread()
    model = FakeChatModel(answers=[["  ", saver.posted(config, halt("Enough.")), SILENCE]])
    graph = agent(model, saver=saver, preemption=hooked(asks(heard), "end", restart_grace=0))

    paused = await graph.ainvoke(ASKED, config)
    assert [each.value for each in paused["__interrupt__"]] == ["Enough. Right?"]
    state = await graph.ainvoke(Command(resume="Yes."), config)

    assert heard == ["Yes."]
    assert len(model.calls) == 1
    assert said(state["messages"]) == said(ASKED["messages"])
    assert reason_of(state) == "Enough."
    assert state["preemption"]["stats"]["restarts"] == 1


@pytest.mark.parametrize("is_sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("limit", range(2, 6))
async def test_a_hook_that_cannot_pause_at_a_runs_last_step_costs_nothing_and_is_named(
    limit: int, is_sync: bool, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["The end.", lambda: ledger.append(halt("Enough."))]])
    graph = agent(model, saver=saver, preemption=hooked(asks(heard), "end"))
    config["recursion_limit"] = limit

    async def run(given: Any) -> dict[str, Any]:
        if is_sync:
            return await asyncio.to_thread(graph.invoke, given, config)
        return await graph.ainvoke(given, config)

    with caplog.at_level(logging.WARNING, logger="midstream"):
        state = await run(ASKED)
    is_paused = "__interrupt__" in state
    if is_paused:
        assert said(state["messages"])[1:] == [("ai", "The end.")]
        state = await run(Command(resume="Yes."))

    assert heard == (["Yes."] if is_paused else [])
    assert ("confirm cannot pause the run" in caplog.text) == (not is_paused)
    assert is_paused == (limit >= 4)
    assert len(model.calls) == 1
    assert said(state["messages"])[1:] == [("ai", "The end.")]
    assert reason_of(state) == "Enough."


@pytest.mark.parametrize("limit", range(4, 9))
async def test_a_halt_with_a_tool_call_never_fails_at_the_runs_limit_because_of_a_hook(
    limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its tools are answered, and the run ends, whether or not a hook had the steps to pause in."""
    heard: list[str] = []
    saver, config = OpenLedgerSaver(), thread()
    config["recursion_limit"] = limit
    first, *rest = calls("look_up", '{"word": "cat"}')
    model = FakeChatModel(answers=[["So.", first, saver.posted(config, halt("Enough.")), *rest]])
    graph = agent(model, saver=saver, tools=[look_up], preemption=hooked(asks(heard), "end"))

    state = await graph.ainvoke(ASKED, config)
    is_paused = "__interrupt__" in state
    if is_paused:
        state = await graph.ainvoke(Command(resume="Yes."), config)

    assert heard == (["Yes."] if is_paused else [])
    assert ("confirm cannot pause the run" in caplog.text) == (not is_paused)
    assert is_paused == (limit >= 5)
    assert len(model.calls) == 1
    assert said(state["messages"])[1:] == [("ai", "So."), ("tool", "cat: a thing")]
    assert reason_of(state) == "Enough."


async def test_calls_that_wait_for_a_hook_come_into_the_thread_also_when_another_agent_halts() -> None:
    told: list[BoundaryInput] = []
    saver, config = OpenLedgerSaver(), thread()
    ledger = ledger_of(saver, config)
    first, *rest = calls("look_up", '{"word": "cat"}')
    post = saver.posted(config, halt("Not you.", node="a"))
    a = FakeChatModel(answers=[["So.", first, post, *rest]])
    # With the last chunk, so that it is settled in the step in which the other's calls are held back.
    b = FakeChatModel(answers=[["Hi.", lambda: ledger.append(halt("Nor you.", node="b"))]])
    builder = StateGraph(MidstreamState)
    builder.add_node("a", ModelNode(a, tools=[look_up], preemption=hooked(told_by(told), "end")))
    builder.add_node("b", ModelNode(b))
    builder.add_node("tools", ToolNode([look_up]))
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    builder.add_conditional_edges("a", tools_condition)
    builder.add_edge("tools", "a")
    builder.add_edge("b", END)

    state = await builder.compile(checkpointer=saver).ainvoke(ASKED, config)

    assert reason_of(state) == "Nor you."
    assert told == []
    assert sorted(said(state["messages"])[1:]) == [("ai", "Hi."), ("ai", "So.")]
    (asked,) = (each for each in state["messages"] if each.text == "So.")
    assert [call["name"] for call in asked.tool_calls] == ["look_up"]
