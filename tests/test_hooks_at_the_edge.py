"""Boundary hooks at a run's last steps, after unusual tools, and as they fail."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from fakes import FakeChatModel, calls
from midstream import BoundaryHook, BoundaryInput, BoundaryOutput, Preemption
from support.steering import ASKED, agent, ledger_of, look_up, said, steer, thread

Told = list[tuple[str, str]]


def hooks(told: Told, output: BoundaryOutput | None = None, *, at: Any = ("tools", "end")) -> Preemption:
    """Options with a hook that keeps where it was asked, and what was said last."""

    def hook(given: BoundaryInput) -> BoundaryOutput | None:
        told.append((given.kind, given.messages[-1].text))
        return output

    return Preemption(boundary_hooks=[BoundaryHook(hook, at=at)])


# A run's last steps


@pytest.mark.parametrize("limit", range(2, 9))
async def test_hooks_are_asked_up_to_the_last_steps_and_else_the_log_says_what_to_do(
    limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    told: Told = []
    graph = agent(FakeChatModel(answers=[["The end."]]), saver=InMemorySaver(), preemption=hooks(told))

    state = await graph.ainvoke(ASKED, {**thread(), "recursion_limit": limit})

    assert said(state["messages"])[1:] == [("ai", "The end.")]
    is_told = told == [("end", "The end.")]
    is_logged = "hooks at the turn's end are not asked: the run has" in caplog.text
    assert (is_told, is_logged) in [(True, False), (False, True)]
    assert is_told or limit < 4
    assert caplog.text.count("give it a higher recursion_limit") == int(is_logged)


@pytest.mark.parametrize("limit", range(4, 12))
async def test_what_a_hook_says_is_said_or_the_log_says_why_not(
    limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    """And a run never fails at its limit because a hook has spoken."""
    told: Told = []
    preemption = hooks(told, BoundaryOutput(messages=["Louder."]), at={"tools"})
    model = FakeChatModel(answers=[calls("look_up", '{"word": "cat"}'), ["A cat."]])
    graph = agent(model, saver=InMemorySaver(), tools=[look_up], preemption=preemption)

    state = await graph.ainvoke(ASKED, {**thread(), "recursion_limit": limit})

    assert told == [("tools", "cat: a thing")]
    assert state["messages"][-1].text == "A cat."
    is_said = ("human", "Louder.") in said(state["messages"])
    assert is_said == ("is passed over" not in caplog.text)
    assert is_said or limit < 7


async def test_a_hook_may_end_a_run_that_has_no_steps_left() -> None:
    told: Told = []
    preemption = hooks(told, BoundaryOutput(prevent_continuation=True, stop_reason="Enough."), at={"tools"})
    model = FakeChatModel(answers=[calls("look_up", '{"word": "cat"}'), ["never"]])
    graph = agent(model, saver=InMemorySaver(), tools=[look_up], preemption=preemption)

    state = await graph.ainvoke(ASKED, {**thread(), "recursion_limit": 4})

    assert state["preemption"]["halt"]["reason"] == "Enough."
    assert state["messages"][-1].type == "tool"


async def test_a_request_that_comes_at_the_last_step_is_left_to_the_next_run() -> None:
    told: Told = []
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["The end.", lambda: ledger.append(steer("Louder."))], ["Louder!"]])
    graph = agent(model, saver=saver, preemption=hooks(told))

    state = await graph.ainvoke(ASKED, {**config, "recursion_limit": 4})

    assert said(state["messages"])[1:] == [("ai", "The end.")]
    assert told == [("end", "The end.")]
    state = await graph.ainvoke({"messages": [HumanMessage("And?")]}, config)
    assert said(state["messages"])[2:] == [("human", "And?"), ("human", "Louder."), ("ai", "Louder!")]


# Tools that say more than their results


@tool
def speak(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Answers, and says something in a person's name."""
    return Command(
        update={"messages": [ToolMessage("spoken", tool_call_id=tool_call_id), HumanMessage("I say so.")]}
    )


async def test_hooks_are_asked_after_tools_that_end_in_a_persons_words() -> None:
    told: Told = []
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[calls("speak"), ["Fine."]])
    preemption = hooks(told, BoundaryOutput(messages=["Louder."]), at={"tools"})
    graph = agent(model, saver=saver, tools=[speak], preemption=preemption)

    await graph.ainvoke(ASKED, config, interrupt_after=["tools"])
    await ledger.aappend(steer("Shorter."))
    state = await graph.ainvoke(None, config)

    assert told == [("tools", "I say so.")]
    assert said(state["messages"])[3:] == [
        ("human", "I say so."),
        ("human", "Shorter."),
        ("human", "Louder."),
        ("ai", "Fine."),
    ]
    assert [each["outcome"] for each in state["preemption"]["handled"].values()] == ["tool_boundary"]


async def test_an_answer_to_a_hook_reaches_it_also_after_a_tool_has_spoken() -> None:
    def hook(given: BoundaryInput) -> BoundaryOutput:
        return BoundaryOutput(messages=[interrupt("What now?")])

    model = FakeChatModel(answers=[calls("speak"), ["Fine."]])
    options = Preemption(boundary_hooks=[BoundaryHook(hook, at={"tools"})])
    graph, config = agent(model, saver=InMemorySaver(), tools=[speak], preemption=options), thread()
    paused = await graph.ainvoke(ASKED, config)
    assert [each.value for each in paused["__interrupt__"]] == ["What now?"]

    state = await graph.ainvoke(Command(resume="Rhyme."), config)

    assert said(state["messages"])[2:] == [
        ("tool", "spoken"),
        ("human", "I say so."),
        ("human", "Rhyme."),
        ("ai", "Fine."),
    ]
