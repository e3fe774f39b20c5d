"""Going back in a thread's history, and stopping and going on by the graph's own means."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from fakes import SILENCE, FakeChatModel, calls
from midstream import MidstreamState, ModelNode
from support.steering import ASKED, agent, halt, ledger_of, look_up, said, steer, thread


async def before_the_first_answer(graph: Any, config: Any) -> Any:
    history = [each async for each in graph.aget_state_history(config)]
    return next(each.config for each in history if len(each.values.get("messages", [])) == 1)


async def test_a_fork_from_before_a_steer_does_not_apply_it_again() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(
        answers=[
            ["Once", lambda: ledger.aappend(steer("Be brief.")), SILENCE],
            ["A cat."],
            ["Another story."],
        ]
    )
    graph = agent(model, saver=saver)
    await graph.ainvoke(ASKED, config)

    state = await graph.ainvoke(None, await before_the_first_answer(graph, config))

    assert said(state["messages"]) == [("human", "Tell me a story."), ("ai", "Another story.")]


async def test_a_fork_from_before_a_halt_is_not_halted_by_it() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(
        answers=[["Once", lambda: ledger.aappend(halt("Stop.")), SILENCE], ["Another story."]]
    )
    graph = agent(model, saver=saver)
    await graph.ainvoke(ASKED, config)

    state = await graph.ainvoke(None, await before_the_first_answer(graph, config))

    assert said(state["messages"]) == [("human", "Tell me a story."), ("ai", "Another story.")]


async def test_a_graph_that_stops_after_each_node_shows_the_sealed_turn_and_goes_on() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.aappend(steer("Be brief.")), SILENCE], ["A cat."]])
    builder = StateGraph(MidstreamState)
    builder.add_node("model", ModelNode(model))
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    graph = builder.compile(checkpointer=saver, interrupt_after=["model"])

    stops = [said((await graph.ainvoke(ASKED, config))["messages"])]
    while (await graph.aget_state(config)).next:
        stops.append(said((await graph.ainvoke(None, config))["messages"]))

    assert [len(each) for each in stops] == [2, 3, 4]
    assert stops[-1][1:] == [("ai", "Once"), ("human", "Be brief."), ("ai", "A cat.")]


async def test_a_person_who_speaks_before_the_sealed_turn_went_on_is_answered() -> None:
    """A run is stopped between a seal and its boundary, and the host does not resume it but asks anew."""
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.aappend(steer("Be brief.")), SILENCE], ["A cat."]])
    builder = StateGraph(MidstreamState)
    builder.add_node("model", ModelNode(model))
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    await builder.compile(checkpointer=saver, interrupt_after=["model"]).ainvoke(ASKED, config)

    state = await builder.compile(checkpointer=saver).ainvoke({"messages": [HumanMessage("Hello?")]}, config)

    assert said(state["messages"]) == [
        ("human", "Tell me a story."),
        ("ai", "Once"),
        ("human", "Hello?"),
        ("human", "Be brief."),
        ("ai", "A cat."),
    ]
    assert "halt" not in state["preemption"]


async def test_a_steer_never_lands_between_a_tool_call_and_its_result() -> None:
    """Nor does it when the run was stopped right there."""

    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[calls("look_up", '{"word": "cat"}'), ["A cat."]])
    builder = StateGraph(MidstreamState)
    builder.add_node("model", ModelNode(model, tools=[look_up]))
    builder.add_node("tools", ToolNode([look_up]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    graph = builder.compile(checkpointer=saver, interrupt_before=["tools"])
    await graph.ainvoke(ASKED, config)
    await ledger.aappend(steer("Be brief."))

    state = await graph.ainvoke(None, config)

    assert [kind for kind, _ in said(state["messages"])] == ["human", "ai", "tool", "human", "ai"]


async def test_a_person_who_speaks_instead_of_letting_a_tool_run_is_followed_by_the_steer() -> None:
    """The thread then has a call without a result, which is for the last hop to the provider to answer."""

    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[calls("look_up", '{"word": "cat"}'), ["A cat."]])
    builder = StateGraph(MidstreamState)
    builder.add_node("model", ModelNode(model, tools=[look_up]))
    builder.add_node("tools", ToolNode([look_up]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    graph = builder.compile(checkpointer=saver, interrupt_before=["tools"])
    await graph.ainvoke(ASKED, config)
    await ledger.aappend(steer("Be brief."))

    state = await graph.ainvoke({"messages": [HumanMessage("Never mind.")]}, config)

    assert [text for kind, text in said(state["messages"])][-3:] == ["Never mind.", "Be brief.", "A cat."]
