"""A run that was given an id: its agents are of one run in whatever subgraph, under that very id."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

from fakes import FakeChatModel
from midstream import MidstreamState, ModelNode, Preemption, after_turn
from support.steering import ASKED, halt, ledger_of, said, steer, thread


def within(node: Any, levels: int) -> Any:
    """This node, in so many graphs."""
    for _ in range(levels):
        builder = StateGraph(MidstreamState)
        builder.add_node("agent", node)
        builder.add_edge(START, "agent")
        node = builder.compile()
    return node


def identified() -> tuple[RunnableConfig, str]:
    run_id = uuid.uuid4()
    return {**thread(), "run_id": run_id}, str(run_id)


def node(*answers: Any, **options: Any) -> ModelNode:
    model = FakeChatModel(answers=[*answers])
    return ModelNode(model, preemption=Preemption(poll_interval=0.02, **options))


def posted(saver: Any, config: RunnableConfig, *requests: dict[str, Any]) -> Callable[[], Any]:
    async def post() -> None:
        for request in requests:
            await ledger_of(saver, config).aappend(request)
        await asyncio.sleep(0.05)

    return post


@pytest.mark.parametrize("levels", [0, 1, 2])
@pytest.mark.parametrize("is_named", [False, True])
async def test_a_halt_in_a_subgraph_is_the_runs(levels: int, is_named: bool) -> None:
    saver, (config, run_id) = InMemorySaver(), identified()
    fence = {"run_id": run_id} if is_named else {}
    first = node(["Half ", posted(saver, config, halt("enough", **fence)), "an ", "answer."])
    builder = StateGraph(MidstreamState)
    builder.add_node("first", within(first, levels))
    builder.add_node("second", node(["I go on."]))
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", END)

    left = await builder.compile(checkpointer=saver).ainvoke(ASKED, config)

    assert left["preemption"]["halt"]["run_id"] == run_id
    assert said(left["messages"])[1:] == [("ai", "Half ")]


@pytest.mark.parametrize("levels", [0, 1, 2])
async def test_a_steer_that_names_the_run_reaches_an_agent_in_a_subgraph(levels: int) -> None:
    saver, (config, run_id) = InMemorySaver(), identified()
    first = node(
        ["Half ", posted(saver, config, steer("Shorter.", run_id=run_id)), "an ", "end."], ["Short."]
    )
    builder = StateGraph(MidstreamState)
    builder.add_node("first", within(first, levels))
    builder.add_edge(START, "first")

    left = await builder.compile(checkpointer=saver).ainvoke(ASKED, config)

    assert said(left["messages"])[1:] == [("ai", "Half "), ("human", "Shorter."), ("ai", "Short.")]


async def test_agents_inside_and_outside_of_a_subgraph_share_one_budget() -> None:
    saver, (config, _) = InMemorySaver(), identified()
    one, other = (steer(text, id=str(uuid.uuid4())) for text in ("To one.", "To the other."))
    posts = posted(saver, config, one, other)
    builder = StateGraph(MidstreamState)
    for name, levels in (("outside", 0), ("inside", 1)):
        answers = ["So ", posts, "much ", "to ", "say."], ["Fine."]
        builder.add_node(name, within(node(*answers, max_seals=1), levels))
        builder.add_edge(START, name)

    left = await builder.compile(checkpointer=saver).ainvoke(ASKED, config)

    assert left["preemption"]["stats"].get("seals", 0) <= 1
    texts = [text for _, text in said(left["messages"])]
    assert {text: texts.count(text) for text in ("To one.", "To the other.")} == {
        "To one.": 1,
        "To the other.": 1,
    }


def test_without_an_event_loop_a_halt_in_a_subgraph_is_the_runs_too() -> None:
    saver, (config, run_id) = InMemorySaver(), identified()
    ledger_of(saver, config).append(halt("enough", run_id=run_id))
    builder = StateGraph(MidstreamState)
    builder.add_node("first", within(node(["Never said."]), 1))
    builder.add_node("second", node(["Nor this."]))
    builder.add_edge(START, "first")
    builder.add_conditional_edges("first", after_turn("second"))

    left = builder.compile(checkpointer=saver).invoke(ASKED, config)

    assert left["preemption"]["halt"]["run_id"] == run_id
    assert said(left["messages"])[1:] == []
