"""Several agents in one run: a request is honoured once, and a halt stops them all."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send

from fakes import ENDLESS, FakeChatModel
from midstream import Ledger, MidstreamState, ModelNode, Preemption, after_turn

ASKED: Any = {"messages": [HumanMessage("Tell me a story.", id="h1")]}


class Team:
    """A run of several agents on one thread, with what its streams show."""

    def __init__(self) -> None:
        self.saver = InMemorySaver()
        self.thread_id = str(uuid.uuid4())
        self.ledger = Ledger(self.saver, self.thread_id)
        self.builder: Any = StateGraph(MidstreamState)
        self.models: dict[str, FakeChatModel] = {}
        self.events: list[dict[str, Any]] = []
        self.started = asyncio.Barrier(1)

    @property
    def config(self) -> RunnableConfig:
        return {"configurable": {"thread_id": self.thread_id}}

    def agent(self, name: str, *answers: Sequence[Any], **options: Any) -> ModelNode:
        self.models[name] = FakeChatModel(answers=list(answers))
        return ModelNode(self.models[name], preemption=Preemption(**options))

    async def run(self, given: Any = ASKED, **compiling: Any) -> dict[str, Any]:
        graph = self.builder.compile(checkpointer=self.saver, **compiling)
        async with asyncio.timeout(20):
            async for _, event in graph.astream(given, self.config, stream_mode="custom", subgraphs=True):
                self.events.append(event)
        return dict((await graph.aget_state(self.config)).values)

    def seen(self, word: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == word]


def all_stream(team: Team, n: int) -> Any:
    """Returns a step that is passed when all `n` agents of a team are streaming."""
    team.started = asyncio.Barrier(n)

    async def step() -> None:
        await team.started.wait()

    return step


def post_once(team: Team, *requests: dict[str, Any]) -> Any:
    async def step() -> None:
        for request in requests:
            await team.ledger.aappend(request)

    return step


async def nap() -> None:
    """A step at which the provider lets others run."""
    await asyncio.sleep(0)


TAIL = [nap, " w"] * 50
STEER = {"kind": "steer", "messages": "Shorter."}
HALT = {"kind": "halt", "reason": "Enough."}


async def test_one_request_seals_one_of_two_parallel_streams() -> None:
    team = Team()
    together = all_stream(team, 2)

    team.builder.add_node("a", team.agent("a", ["A", together, post_once(team, STEER), *TAIL], ["A2"]))
    team.builder.add_node("b", team.agent("b", ["B", together, *TAIL], ["B2"]))
    team.builder.add_edge(START, "a")
    team.builder.add_edge(START, "b")
    state = await team.run()

    assert len(team.seen("sealed")) == 1
    assert [message.text for message in state["messages"]].count("Shorter.") == 1
    assert state["preemption"]["stats"]["seals"] == 1
    sealed_by = team.seen("sealed")[0]["node"]
    assert sealed_by in ("a", "b")
    assert [each["node"] for each in state["preemption"]["handled"].values()] == [sealed_by]


async def test_each_agent_honours_the_request_that_names_it() -> None:
    team = Team()
    together = all_stream(team, 2)
    to_a = {**STEER, "messages": "To a.", "node": "a"}
    to_b = {**STEER, "messages": "To b.", "node": "b"}
    team.builder.add_node("a", team.agent("a", ["A", together, post_once(team, to_b), ENDLESS], ["A2"]))
    team.builder.add_node("b", team.agent("b", ["B", together, post_once(team, to_a), ENDLESS], ["B2"]))
    team.builder.add_edge(START, "a")
    team.builder.add_edge(START, "b")
    state = await team.run()

    assert sorted(event["node"] for event in team.seen("sealed")) == ["a", "b"]
    handled = {each["node"]: each["message_ids"] for each in state["preemption"]["handled"].values()}
    by_id = {message.id: message.text for message in state["messages"]}
    assert {node: [by_id[name] for name in names] for node, names in handled.items()} == {
        "a": ["To a."],
        "b": ["To b."],
    }
    assert state["preemption"]["stats"]["seals"] == 2


async def test_parallel_agents_share_one_budget() -> None:
    team = Team()
    together = all_stream(team, 2)
    to_a = {**STEER, "messages": "To a.", "node": "a"}
    to_b = {**STEER, "messages": "To b.", "node": "b"}
    for name, request in (("a", to_b), ("b", to_a)):
        node = team.agent(name, [name, together, post_once(team, request), *TAIL], [f"{name}2"], max_seals=1)
        team.builder.add_node(name, node)
        team.builder.add_edge(START, name)
    state = await team.run()

    assert len(team.seen("sealed")) == 1
    assert state["preemption"]["stats"]["seals"] == 1
    assert sorted(each["outcome"] for each in state["preemption"]["handled"].values()) == [
        "sealed",
        "turn_end",
    ]
    assert {event["reason"] for event in team.seen("waiting")} >= {"budget"}


def _static(team: Team, node: ModelNode) -> None:
    team.builder.add_node("next", node)
    team.builder.add_edge(["a", "b"], "next")


def _routed(team: Team, node: ModelNode) -> None:
    team.builder.add_node("next", node)
    team.builder.add_conditional_edges("a", after_turn("next"))
    team.builder.add_conditional_edges("b", after_turn("next"))


def _commanded(team: Team, node: ModelNode) -> None:
    team.builder.add_node("router", lambda state: Command(goto=["next", "next2"]))
    team.builder.add_node("next", node)
    team.builder.add_node("next2", node)
    team.builder.add_edge(["a", "b"], "router")


def _sent(team: Team, node: ModelNode) -> None:
    team.builder.add_node("next", node)
    team.builder.add_node("join", lambda state: {})
    team.builder.add_edge(["a", "b"], "join")
    team.builder.add_conditional_edges(
        "join", lambda state: [Send("next", {"messages": state["messages"]}) for _ in range(2)], ["next"]
    )


def _in_a_subgraph(team: Team, node: ModelNode) -> None:
    inner = StateGraph(MidstreamState).add_node("next", node).add_edge(START, "next").compile()
    team.builder.add_node("inner", inner)
    team.builder.add_edge(["a", "b"], "inner")


@pytest.mark.parametrize("then", [_static, _routed, _commanded, _sent, _in_a_subgraph])
async def test_a_halt_keeps_the_sealed_turn_and_stops_every_other_agent(then: Any) -> None:
    team = Team()
    together = all_stream(team, 2)
    halt = {**HALT, "node": "a"}
    team.builder.add_node("a", team.agent("a", ["A", together, post_once(team, halt), ENDLESS]))
    team.builder.add_node("b", team.agent("b", ["B", together, " goes on"]))
    team.builder.add_edge(START, "a")
    team.builder.add_edge(START, "b")
    then(team, team.agent("next", ["never"]))
    state = await team.run()

    texts = [message.text for message in state["messages"]]
    assert texts[0] == "Tell me a story."
    assert sorted(text[0] for text in texts[1:]) == ["A", "B"]
    assert "B goes on" in texts
    assert team.models["next"].calls == []
    halted = state["preemption"]["halt"]
    assert (halted["reason"], halted["node"]) == ("Enough.", "a")
    assert len(team.seen("halted")) == 1


async def test_a_halt_stops_an_agent_that_is_further_on_in_the_same_step() -> None:
    """The other branch is two steps long; its second agent is entered after the halt and declines."""
    team = Team()
    together = all_stream(team, 2)
    team.builder.add_node(
        "a", team.agent("a", ["A", together, post_once(team, {**HALT, "node": "a"}), ENDLESS])
    )
    team.builder.add_node("b", team.agent("b", ["B", together]))
    team.builder.add_node("c", team.agent("c", ["C"]))
    team.builder.add_edge(START, "a")
    team.builder.add_edge(START, "b")
    team.builder.add_edge("b", "c")
    state = await team.run()

    # `c` runs in the step in which `a` is at its boundary: it may have begun before the halt was decided.
    assert len(team.models["c"].calls) <= 1
    assert state["preemption"]["halt"]["node"] == "a"


async def test_one_of_several_sent_workers_is_steered_and_goes_on_with_its_own_task() -> None:
    team = Team()
    together = all_stream(team, 3)
    answers = [["W", together, post_once(team), *TAIL] for _ in range(3)]
    model = FakeChatModel(answers=[*answers, ["Steered."]])
    team.builder.add_node("worker", ModelNode(model))
    tasks = [Send("worker", {"messages": [HumanMessage(f"Task {n}.", id=f"t{n}")]}) for n in range(3)]
    team.builder.add_conditional_edges(START, lambda state: tasks, ["worker"])
    team.builder.add_edge("worker", END)
    posted = asyncio.Event()

    async def post() -> None:
        if not posted.is_set():
            posted.set()
            await team.ledger.aappend(STEER)

    for answer in answers:
        answer[2] = post
    state = await team.run()

    assert len(team.seen("sealed")) == 1
    assert len(team.seen("injected")) == 1
    assert len(model.calls) == 4
    last = model.calls[3].texts
    assert last[0].startswith("Task ")
    assert last[1].startswith("W")
    assert last[2:] == ["Shorter."]
    texts = [message.text for message in state["messages"]]
    assert texts.count("Shorter.") == 1
    assert texts.count("W" + " w" * 50) == 2
    assert "Steered." in texts
    assert state["preemption"]["stats"]["seals"] == 1


async def test_agents_that_are_subgraphs_share_requests_and_count_once_in_the_parent() -> None:
    team = Team()
    together = all_stream(team, 2)

    def subgraph(name: str, *answers: Any) -> Any:
        inner: Any = StateGraph(MidstreamState)
        inner.add_node("model", team.agent(name, *answers))
        inner.add_edge(START, "model")
        return inner.compile()

    team.builder.add_node("a", subgraph("a", ["A", together, post_once(team, STEER), *TAIL], ["A2"]))
    team.builder.add_node("b", subgraph("b", ["B", together, *TAIL], ["B2"]))
    team.builder.add_edge(START, "a")
    team.builder.add_edge(START, "b")
    state = await team.run()

    assert len(team.seen("sealed")) == 1
    assert [message.text for message in state["messages"]].count("Shorter.") == 1
    assert state["preemption"]["stats"] == {"seals": 1, "restarts": 0, "empty_boundaries": 0}

    # The next turn starts anew, and what was handled stays handled.
    again = await team.run({"messages": [HumanMessage("Another.", id="h2")]})
    assert [message.text for message in again["messages"]].count("Shorter.") == 1
    assert again["preemption"]["stats"]["seals"] == 1
    assert again["preemption"]["turn"]["seals"] == []
