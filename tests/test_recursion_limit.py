"""A run never fails at its recursion limit because somebody steered or halted it, or a hook has spoken."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import tools_condition

from fakes import Answer, Call, FakeChatModel, calls
from midstream import (
    BoundaryHook,
    BoundaryInput,
    BoundaryOutput,
    MidstreamState,
    ModelNode,
    Preemption,
    ToolNode,
)
from support.examples import examples
from support.steering import ASKED, OpenLedgerSaver, agent, halt, is_sealed, ledger_of, said, steer, thread

Moment = tuple[int, int]
"""A call of the model, counted from 0, and how many of its words have come."""


class ToolHeavyModel(FakeChatModel):
    """Calls a tool in each of its rounds, whatever it is told meanwhile, and then ends."""

    rounds: int

    interludes: dict[Moment, list[Any]]
    """What happens at which moment."""

    def _start(self, messages: list[BaseMessage], options: dict[str, Any]) -> tuple[Call, Answer]:
        call, _ = super()._start(messages, options)
        done = sum(isinstance(message, ToolMessage) for message in messages)
        steps: list[Any] = []
        for n, word in enumerate(["Let", " me", " see."]):
            steps += [word, *self.interludes.get((len(self.calls) - 1, n), ())]
        if done < self.rounds:
            steps += calls("work", call_id=f"call {done}")
        return call, steps


@dataclass
class Left:
    """What a run left."""

    messages: list[BaseMessage]
    halt_reason: str | None
    pending: list[str]
    """Texts of the requests that wait for the next run."""


async def run(
    limit: int,
    rounds: int,
    *,
    at_entry: int = 0,
    moments: Sequence[Moment] = (),
    in_tools: Collection[int] = (),
    halts: Sequence[Moment] = (),
    hooked: Collection[int] | None = None,
) -> Left | None:
    """Steers an agent at these moments, at these rounds of its tool and before its run; halts it at others.

    It has a hook, unless `hooked` is None, that speaks at these of the times that it is asked. None: the run
    failed at its limit.
    """
    saver, config = OpenLedgerSaver(), thread()
    ledger = ledger_of(saver, config)
    interludes: dict[Moment, list[Any]] = {}
    for n, moment in enumerate(moments):
        interludes.setdefault(moment, []).append(saver.posted(config, steer(f"streaming {n}")))
    for moment in halts:
        interludes.setdefault(moment, []).append(saver.posted(config, halt("Enough.")))
    for n in range(at_entry):
        await ledger.aappend(steer(f"entry {n}"))
    worked = 0

    @tool
    async def work() -> str:
        """Works."""
        nonlocal worked
        worked += 1
        if worked in in_tools:
            await ledger.aappend(steer(f"tool {worked}"))
        return "worked"

    asked_hook = itertools.count(1)

    def hook(_: BoundaryInput) -> BoundaryOutput | None:
        n = next(asked_hook)
        return BoundaryOutput(additional_context=f"hook {n}") if n in (hooked or ()) else None

    hooks = [] if hooked is None else [BoundaryHook(hook, at={"seal", "tools", "end"})]
    model = ToolHeavyModel(rounds=rounds, interludes=interludes)
    graph = agent(model, saver=saver, tools=[work], preemption=Preemption(boundary_hooks=hooks))
    asked = {"messages": [HumanMessage("Go.", id="h1")]}
    try:
        values = await graph.ainvoke(asked, {**config, "recursion_limit": limit})
    except GraphRecursionError:
        return None
    return Left(
        messages=values["messages"],
        halt_reason=values["preemption"].get("halt", {}).get("reason"),
        pending=[
            str(entry.messages[0]["content"]) for entry in await ledger.arequests() if entry.kind == "steer"
        ],
    )


def check(left: Left | None, limit: int, rounds: int) -> None:
    if left is None:
        assert asyncio.run(run(limit, rounds)) is None
        return

    last = left.messages[-1]
    assert isinstance(last, AIMessage | ToolMessage)
    assert not (isinstance(last, AIMessage) and last.tool_calls)
    tools = sum(isinstance(message, ToolMessage) for message in left.messages)
    assert (tools == rounds) == (left.halt_reason is None)
    assert left.halt_reason in (None, "recursion_limit")

    applied = [each.text for each in left.messages if each.additional_kwargs.get("source") == "steer"]
    assert len({*applied, *left.pending}) == len(applied) + len(left.pending)


@settings(deadline=None, max_examples=examples(60))
@given(
    limit=st.integers(3, 12),
    rounds=st.integers(0, 5),
    at_entry=st.integers(0, 1),
    moments=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2)), max_size=3),
    in_tools=st.sets(st.integers(1, 5), max_size=2),
)
def test_a_steered_run_fails_at_its_limit_only_where_the_same_run_would_fail_unsteered(
    limit: int, rounds: int, at_entry: int, moments: list[Moment], in_tools: set[int]
) -> None:
    steered = run(limit, rounds, at_entry=at_entry, moments=moments, in_tools=in_tools)
    check(asyncio.run(steered), limit, rounds)


@pytest.mark.parametrize("limit", range(3, 13))
def test_one_steer_in_the_first_answer_of_a_run_with_just_enough_steps(limit: int) -> None:
    """The longest run that the limit lets through, which has no step to spare for anybody else."""
    rounds = (limit - 2) // 2
    assert asyncio.run(run(limit, rounds)) is not None
    assert asyncio.run(run(limit, rounds + 1)) is None
    for moments, at_entry in [([(0, 0)], 0), ([(0, 2)], 0), ([], 1), ([(0, 0), (1, 0)], 1)]:
        left = asyncio.run(run(limit, rounds, moments=moments, at_entry=at_entry))
        assert left is not None
        check(left, limit, rounds)


async def test_a_run_that_lacks_the_steps_for_its_tools_after_a_seal_is_halted_and_keeps_its_words() -> None:
    left = await run(8, 3, moments=[(0, 0)])
    assert left is not None
    assert left.halt_reason == "recursion_limit"
    assert [(each.type, each.text, is_sealed(each)) for each in left.messages] == [
        ("human", "Go.", False),
        ("ai", "Let me", True),
        ("human", "streaming 0", False),
        ("ai", "Let me see.", False),
        ("tool", "worked", False),
        ("ai", "Let me see.", False),
        ("tool", "worked", False),
        ("ai", "Let me see.", False),
    ]


async def test_a_seal_that_the_remaining_steps_cannot_carry_is_refused_and_the_request_waits() -> None:
    left = await run(4, 1, moments=[(0, 0)])
    assert left is not None
    assert left.pending == ["streaming 0"]
    assert [each.type for each in left.messages] == ["human", "ai", "tool", "ai"]


SOME_MOMENTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=3)


@settings(deadline=None, max_examples=examples(150))
@given(
    limit=st.integers(4, 20),
    spare=st.integers(0, 2),
    at_entry=st.integers(0, 1),
    moments=SOME_MOMENTS,
    in_tools=st.sets(st.integers(1, 9), max_size=2),
    halts=SOME_MOMENTS,
    hooked=st.none() | st.sets(st.integers(1, 9), max_size=4),
)
def test_a_run_that_would_come_to_its_end_by_itself_never_fails_for_all_that_is_asked_and_said(
    limit: int,
    spare: int,
    at_entry: int,
    moments: list[Moment],
    in_tools: set[int],
    halts: list[Moment],
    hooked: set[int] | None,
) -> None:
    rounds = max(0, (limit - 2) // 2 - spare)
    left = asyncio.run(
        run(
            limit,
            rounds,
            at_entry=at_entry,
            moments=moments,
            in_tools=in_tools,
            halts=halts,
            hooked=hooked,
        )
    )

    assert left is not None
    assert left.halt_reason in (None, "recursion_limit", "Enough.")
    called = [call["id"] for each in left.messages if isinstance(each, AIMessage) for call in each.tool_calls]
    worked = [each.tool_call_id for each in left.messages if isinstance(each, ToolMessage)]
    assert called == worked
    assert left.halt_reason is not None or len(worked) == rounds
    assert left.halt_reason != "recursion_limit" or any(
        each.additional_kwargs.get("source") in ("steer", "hook") for each in left.messages
    )


async def test_a_halt_of_a_steered_run_leaves_out_the_calls_that_no_steps_are_left_to_answer() -> None:
    left = await run(6, 2, at_entry=1, halts=[(1, 2)])

    assert left is not None
    assert left.halt_reason == "Enough."
    assert [(each.type, each.text) for each in left.messages[1:]] == [
        ("human", "entry 0"),
        ("ai", "Let me see."),
        ("tool", "worked"),
        ("ai", "Let me see."),
    ]
    assert isinstance(left.messages[-1], AIMessage)
    assert left.messages[-1].tool_calls == []


async def test_an_agent_that_calls_tools_as_another_halts_leaves_them_out_at_its_last_step() -> None:
    saver, config = OpenLedgerSaver(), thread()
    ledger, is_asked = ledger_of(saver, config), asyncio.Event()

    async def halted() -> None:
        async with asyncio.timeout(10):
            await is_asked.wait()

    @tool
    def work() -> str:
        """Works."""
        return "worked"

    busy = FakeChatModel(answers=[["So.", halted, *calls("work")]])
    other = FakeChatModel(answers=[["Hi.", lambda: ledger.append(halt("Enough.", node="b"))]])
    hook = BoundaryHook(lambda _: is_asked.set(), at={"end"})
    builder = StateGraph(MidstreamState)
    builder.add_node("a", ModelNode(busy, tools=[work]))
    builder.add_node("b", ModelNode(other, preemption=Preemption(boundary_hooks=[hook])))
    builder.add_node("tools", ToolNode([work]))
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    builder.add_conditional_edges("a", tools_condition)
    builder.add_edge("tools", "a")
    builder.add_edge("b", END)
    graph = builder.compile(checkpointer=saver)

    state = await graph.ainvoke(ASKED, {**config, "recursion_limit": 3})

    assert state["preemption"]["halt"]["reason"] == "Enough."
    assert sorted(said(state["messages"])[1:]) == [("ai", "Hi."), ("ai", "So.")]
