"""Agents as subgraphs: what one of them has done counts when the graph around it has committed it.

LangGraph keeps the progress of a subgraph that was paused or cancelled for whoever resumes it, and throws it
away when new input comes. A request is therefore neither lost with such progress nor applied twice within it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import tools_condition
from langgraph.types import Command, interrupt

from fakes import FakeChatModel, calls
from midstream import (
    BoundaryHook,
    BoundaryInput,
    Ledger,
    MidstreamState,
    ModelNode,
    NotPendingError,
    Preemption,
    ToolNode,
)
from support.steering import halt, is_sealed, ledger_of, said, steer, thread

ASKED: Any = {"messages": [HumanMessage("How far is it?", id="h1")]}
ASKED_ANEW: Any = {"messages": [HumanMessage("And how high?", id="h2")]}
DURABILITIES = ["sync", "async", "exit"]
QUESTION = calls("ask", '{"about": "it"}')


@tool
def ask(about: str) -> str:
    """Asks a person."""
    return str(interrupt(f"What about {about}?"))


def agent(name: str, model: FakeChatModel, *, checkpointer: Any = None, **options: Any) -> Any:
    """An agent that may ask, as a subgraph."""
    builder = StateGraph(MidstreamState)
    builder.add_node(
        name, ModelNode(model, tools=[ask], preemption=Preemption(poll_interval=0.02, **options))
    )
    builder.add_node("tools", ToolNode([ask], interrupting_tools=["ask"]))
    builder.add_edge(START, name)
    builder.add_conditional_edges(name, tools_condition)
    builder.add_edge("tools", name)
    return builder.compile(checkpointer=checkpointer)


def team(saver: Any, *agents: Any, schema: Any = MidstreamState) -> Any:
    """These agents at the same time."""
    builder = StateGraph(schema)
    for number, each in enumerate(agents):
        builder.add_node(f"agent_{number}", each)
        builder.add_edge(START, f"agent_{number}")
    return builder.compile(checkpointer=saver)


@asynccontextmanager
async def storage(kind: str, path: Path) -> AsyncIterator[Any]:
    if kind == "memory":
        yield InMemorySaver()
        return
    async with AsyncSqliteSaver.from_conn_string(str(path / "threads.sqlite")) as saver:
        yield saver


def posted(ledger: Ledger, request: dict[str, Any]) -> Callable[[], Any]:
    """Posts a request in the middle of an answer, and leaves it time to be seen."""

    async def post() -> None:
        await ledger.aappend(request)
        await asyncio.sleep(0.05)

    return post


async def after(done: asyncio.Event) -> None:
    async with asyncio.timeout(10):
        await done.wait()


async def answers(graph: Any, config: RunnableConfig) -> Any:
    """The answer to every question that is open."""
    state = await graph.aget_state(config)
    return Command(resume={each.id: "yes" for each in state.interrupts})


def steers(model: FakeChatModel, text: str) -> list[int]:
    """How often a text was in each prompt of a model."""
    return [call.texts.count(text) for call in model.calls]


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("end", ["paused", "cancelled"])
async def test_a_steer_whose_half_answer_is_thrown_away_with_its_subgraph_is_applied_in_the_next_turn(
    end: str, kind: str, durability: str, tmp_path: Path
) -> None:
    async with storage(kind, tmp_path) as saver:
        config = thread()
        ledger = ledger_of(saver, config)
        is_going_on = asyncio.Event()

        async def hold() -> None:
            is_going_on.set()
            await asyncio.sleep(60)

        model = FakeChatModel(
            answers=[
                ["It is ", posted(ledger, steer("In metres.")), "ten ", "miles."],
                QUESTION if end == "paused" else ["So ", hold, "it is."],
                ["Twenty metres."],
                ["Again."],
            ]
        )
        graph = team(saver, agent("a", model))
        run = asyncio.create_task(graph.ainvoke(ASKED, config, durability=durability))
        if end == "cancelled":
            await after(is_going_on)
            run.cancel()
        await asyncio.wait([run], timeout=10)

        state = await graph.ainvoke(ASKED_ANEW, config, durability=durability)

        assert model.calls[-1].texts == ["How far is it?", "And how high?", "In metres."]
        assert said(state["messages"])[-2:] == [("human", "In metres."), ("ai", "Twenty metres.")]
        assert [each["outcome"] for each in state["preemption"]["handled"].values()] == ["entry"]
        assert await ledger.arequests() == []

        # And that is the end of it.
        state = await graph.ainvoke({"messages": [HumanMessage("Again?")]}, config, durability=durability)
        assert [text for _, text in said(state["messages"])].count("In metres.") == 1
        assert [each["outcome"] for each in (await ledger.aview()).marks.values()] == ["entry"]


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_sync_graph_keeps_a_steer_whose_half_answer_is_thrown_away(
    kind: str, durability: Any, tmp_path: Path
) -> None:
    path = ":memory:" if kind == "memory" else str(tmp_path / "threads.sqlite")
    with SqliteSaver.from_conn_string(path) as sqlite:
        saver: Any = InMemorySaver() if kind == "memory" else sqlite
        config = thread()
        ledger = ledger_of(saver, config)

        def post() -> None:
            ledger.append(steer("In metres."))
            time.sleep(0.1)

        model = FakeChatModel(answers=[["It is ", post, "ten ", "miles."], QUESTION, ["Twenty metres."]])
        graph = team(saver, agent("a", model))

        graph.invoke(ASKED, config, durability=durability)
        state = graph.invoke(ASKED_ANEW, config, durability=durability)

        assert said(state["messages"])[-2:] == [("human", "In metres."), ("ai", "Twenty metres.")]
        assert ledger.requests() == []


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("depth", [1, 2])
async def test_a_steer_is_applied_once_by_a_subgraph_that_is_resumed_and_marked_when_its_graph_is_over(
    depth: int, kind: str, durability: str, tmp_path: Path
) -> None:
    async with storage(kind, tmp_path) as saver:
        config = thread()
        ledger = ledger_of(saver, config)
        model = FakeChatModel(
            answers=[
                ["It is ", posted(ledger, steer("In metres.")), "ten ", "miles."],
                QUESTION,
                ["Ten metres."],
                ["Again."],
            ]
        )
        inner = agent("a", model)
        graph = team(saver, inner if depth == 1 else team(None, inner))

        await graph.ainvoke(ASKED, config, durability=durability)
        assert (await ledger.aview()).marks == {}
        state = await graph.ainvoke(await answers(graph, config), config, durability=durability)

        assert [text for _, text in said(state["messages"])].count("In metres.") == 1
        assert [each["outcome"] for each in state["preemption"]["handled"].values()] == ["sealed"]
        await graph.ainvoke(ASKED_ANEW, config, durability=durability)
        assert [each["outcome"] for each in (await ledger.aview()).marks.values()] == ["sealed"]
        assert steers(model, "In metres.") == [0, 1, 1, 1]


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("has_asked", [False, True])
async def test_a_steer_that_one_agent_was_sealed_for_is_not_given_to_another_after_a_pause(
    has_asked: bool, kind: str, durability: str, tmp_path: Path
) -> None:
    async with storage(kind, tmp_path) as saver:
        config = thread()
        ledger = ledger_of(saver, config)
        is_asking = asyncio.Event()
        first = FakeChatModel(
            answers=[
                [lambda: after(is_asking), "It is ", posted(ledger, steer("In metres.")), "ten ", "miles."],
                QUESTION if has_asked else ["Ten metres."],
                ["Ten metres."],
            ]
        )
        second = FakeChatModel(answers=[[is_asking.set, *QUESTION], ["Well."], ["Done."]])
        graph = team(saver, agent("a", first), agent("b", second))

        await graph.ainvoke(ASKED, config, durability=durability)
        state = await graph.ainvoke(await answers(graph, config), config, durability=durability)

        assert steers(first, "In metres.") == [0, 1, 1][: len(first.calls)]
        assert steers(second, "In metres.") == [0, 0]
        assert [each["node"] for each in state["preemption"]["handled"].values()] == ["a"]
        assert state["preemption"]["stats"]["seals"] == 1


@pytest.mark.parametrize("durability", DURABILITIES)
def test_two_agents_of_a_sync_graph_share_a_steer_across_a_pause(durability: Any) -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)

    def post() -> None:
        time.sleep(0.1)
        ledger.append(steer("In metres."))
        time.sleep(0.1)

    first = FakeChatModel(answers=[["It is ", post, "ten ", "miles."], ["Ten metres."]])
    second = FakeChatModel(answers=[QUESTION, ["Well."], ["Done."]])
    graph = team(saver, agent("a", first), agent("b", second))

    graph.invoke(ASKED, config, durability=durability)
    questions = graph.get_state(config).interrupts
    graph.invoke(Command(resume={each.id: "yes" for each in questions}), config, durability=durability)

    assert steers(first, "In metres.") == [0, 1]
    assert steers(second, "In metres.") == [0, 0]


async def test_a_halt_ends_one_run_and_not_the_one_that_answers_the_other_agent() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    is_asking = asyncio.Event()
    first = FakeChatModel(
        answers=[[lambda: after(is_asking), "It is ", posted(ledger, halt("Enough.")), "ten ", "miles."]]
    )
    second = FakeChatModel(answers=[[is_asking.set, *QUESTION], ["Well."]])
    graph = team(saver, agent("a", first), agent("b", second))

    await graph.ainvoke(ASKED, config)
    state = await graph.ainvoke(await answers(graph, config), config)

    # Its tool ran as well: the halt was another's, and is over.
    assert said(state["messages"])[-2:] == [("tool", "yes"), ("ai", "Well.")]
    assert (state["preemption"]["halt"]["node"], len(state["preemption"]["handled"])) == ("a", 1)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_the_agents_of_a_turn_share_its_budget_across_a_pause(
    kind: str, durability: str, tmp_path: Path
) -> None:
    async with storage(kind, tmp_path) as saver:
        config = thread()
        ledger = ledger_of(saver, config)
        first = FakeChatModel(
            answers=[["It is ", posted(ledger, steer("In metres.", node="a")), "ten"], ["Ten metres."]]
        )
        second = FakeChatModel(
            answers=[QUESTION, ["Well ", posted(ledger, steer("In feet.", node="b")), "then."], ["Feet."]]
        )
        graph = team(saver, agent("a", first, max_seals=1), agent("b", second, max_seals=1))

        await graph.ainvoke(ASKED, config, durability=durability)
        state = await graph.ainvoke(await answers(graph, config), config, durability=durability)

        assert [text for _, text in said(state["messages"]) if text.startswith("Well")] == ["Well then."]
        assert sum(map(is_sealed, state["messages"])) == state["preemption"]["stats"]["seals"] == 1
        assert steers(second, "In feet.") == [0, 0, 1]


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_what_two_agents_had_begun_is_void_after_new_input_and_the_steer_is_applied_anew(
    durability: str,
) -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    first = FakeChatModel(
        answers=[["It is ", posted(ledger, steer("In metres.")), "ten"], ["Ten metres."], ["High."]]
    )
    second = FakeChatModel(answers=[QUESTION, ["Higher."], ["Highest."]])
    graph = team(saver, agent("a", first), agent("b", second))

    await graph.ainvoke(ASKED, config, durability=durability)
    state = await graph.ainvoke(ASKED_ANEW, config, durability=durability)

    assert [text for _, text in said(state["messages"])].count("In metres.") == 1
    assert len(first.calls) + len(second.calls) == 5
    assert await ledger.arequests() == []


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_an_agent_that_was_cancelled_before_its_boundary_was_committed_takes_the_steer_again(
    durability: str,
) -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    is_asked = asyncio.Event()

    async def hold(_: BoundaryInput) -> None:
        if not is_asked.is_set():
            is_asked.set()
            await asyncio.sleep(60)

    model = FakeChatModel(
        answers=[["It is ", posted(ledger, steer("In metres.")), "ten"], ["Ten metres."], ["Ten metres."]]
    )
    graph = team(saver, agent("a", model, boundary_hooks=[BoundaryHook(hold, at={"seal"})]))
    run = asyncio.create_task(graph.ainvoke(ASKED, config, durability=durability))
    await after(is_asked)
    run.cancel()
    await asyncio.wait([run], timeout=10)

    state = await graph.ainvoke(None, config, durability=durability)

    assert [text for _, text in said(state["messages"])].count("In metres.") == 1
    assert len(state["preemption"]["handled"]) == 1


async def test_what_an_agent_has_taken_outlives_the_ledgers_root() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    is_asking = asyncio.Event()
    first = FakeChatModel(
        answers=[
            [lambda: after(is_asking), "It is ", posted(ledger, steer("In metres.")), "ten"],
            ["Ten metres."],
        ]
    )
    second = FakeChatModel(answers=[[is_asking.set, *QUESTION], ["Well."]])
    graph = team(saver, agent("a", first), agent("b", second))
    await graph.ainvoke(ASKED, config)
    root = (await ledger.aview()).root

    for _ in range(40):
        name = await ledger.aappend(steer("Never mind."))
        await ledger.aappend({"kind": "withdraw", "id": name})
    await graph.ainvoke(await answers(graph, config), config)

    assert (await ledger.aview()).root > root
    assert steers(second, "In metres.") == [0, 0]


async def test_a_steer_that_a_subgraph_has_applied_can_be_withdrawn_only_when_that_is_undone() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(
        answers=[["It is ", posted(ledger, steer("In metres.")), "ten"], QUESTION, ["Ten."]]
    )
    graph = team(saver, agent("a", model))
    await graph.ainvoke(ASKED, config)
    [request] = (await ledger.aview()).entries

    with pytest.raises(NotPendingError, match="has ended as 'sealed'"):
        await ledger.aappend({"kind": "withdraw", "id": request.id})

    # The host throws away what the paused step had come to.
    await graph.aupdate_state(config, {"messages": [HumanMessage("Start again.")]}, as_node=START)
    await ledger.aappend({"kind": "withdraw", "id": request.id})
    await graph.ainvoke(None, config)
    assert steers(model, "In metres.") == [0, 1, 0]


async def test_a_subgraph_that_keeps_its_own_state_knows_what_it_has_applied_after_new_input_too() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(
        answers=[["It is ", posted(ledger, steer("In metres.")), "ten"], QUESTION, ["Ten metres."], ["High."]]
    )
    graph = team(saver, agent("a", model, checkpointer=True))

    await graph.ainvoke(ASKED, config)
    await graph.ainvoke(ASKED_ANEW, config)

    assert steers(model, "In metres.") == [0, 1, 1]
    assert [each["outcome"] for each in (await ledger.aview()).marks.values()] == ["sealed"]


class Talk(TypedDict):
    """A state in which nobody can say what became of a request."""

    messages: list[Any]


@pytest.mark.parametrize("way", ["without the channel", "called by a node's code"])
async def test_where_the_graph_around_is_not_told_the_agents_own_word_counts(way: str) -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(
        answers=[["It is ", posted(ledger, steer("In metres.")), "ten"], ["Ten metres."], ["High."]]
    )
    inner = agent("a", model)

    async def call(state: Any) -> Any:
        given = {"messages": [each for each in state["messages"] if each.type == "human"]}
        found = await inner.ainvoke(given)
        return {"messages": [found["messages"][-1]]}

    is_called = way != "without the channel"
    graph = team(saver, call if is_called else inner, schema=MidstreamState if is_called else Talk)

    await graph.ainvoke(ASKED, config)
    await graph.ainvoke(ASKED_ANEW, config)

    assert steers(model, "In metres.")[:2] == [0, 1]
    assert [each["outcome"] for each in (await ledger.aview()).marks.values()] == ["sealed"]
    assert await ledger.arequests() == []


@pytest.mark.parametrize("is_subgraph", [False, True])
@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_steer_cannot_be_withdrawn_while_a_hook_is_asked_about_the_boundary_that_applies_it(
    durability: Any, is_subgraph: bool
) -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    refused: list[str | None] = []

    async def withdraw(_: BoundaryInput) -> None:
        [request] = (await ledger.aview()).entries
        with pytest.raises(NotPendingError) as error:
            await ledger.aappend({"kind": "withdraw", "id": request.id})
        refused.append(error.value.outcome)

    model = FakeChatModel(answers=[["It is ", posted(ledger, steer("In metres.")), "ten"], ["Ten metres."]])
    hook = BoundaryHook(withdraw, at={"seal"})
    inner = agent("a", model, boundary_hooks=[hook], checkpointer=None if is_subgraph else saver)
    graph = team(saver, inner) if is_subgraph else inner

    state = await graph.ainvoke(ASKED, config, durability=durability)

    assert refused == ["sealed"]
    assert [each["outcome"] for each in state["preemption"]["handled"].values()] == ["sealed"]
    assert (await ledger.aview()).withdrawn == frozenset()


async def test_under_exit_durability_what_is_applied_cannot_be_withdrawn_before_it_is_saved() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    refused: list[str | None] = []

    async def withdraw() -> None:
        [request] = (await ledger.aview()).entries
        with pytest.raises(NotPendingError) as error:
            await ledger.aappend({"kind": "withdraw", "id": request.id})
        refused.append(error.value.outcome)

    post = posted(ledger, steer("In metres."))
    model = FakeChatModel(answers=[["Hello."], ["It is ", post, "ten"], ["Ten ", withdraw, "metres."]])
    graph = agent("a", model, checkpointer=saver)

    await graph.ainvoke(ASKED, config, durability="exit")
    state = await graph.ainvoke(ASKED_ANEW, config, durability="exit")

    assert refused == [each["outcome"] for each in state["preemption"]["handled"].values()] == ["sealed"]
