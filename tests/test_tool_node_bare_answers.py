"""An answer reaches the question that it was given to, in the run that brought it, and no other."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from midstream import ToolNode
from support.tool_batches import (
    DURABILITIES,
    SAVERS,
    Colour,
    Conversation,
    Durability,
    Effects,
    agent_of,
    any_saver,
    graph_of,
    message,
    tools_of,
)

SEND, DELETE, PICK = ("send", {"to": "ann"}), ("delete", {"path": "x"}), ("pick", {"topic": "p"})
APPROVE = {"type": "approve"}

colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path / "effects")


@pytest.fixture
def uri(request: pytest.FixtureRequest) -> Callable[[], str]:
    """The database's address, which is started only for the tests that ask for it."""
    return lambda: str(request.getfixturevalue("postgres_uri"))


def delegate_to(agent: Any, *, asynchronous: bool) -> Any:
    if asynchronous:

        @tool("delegate")
        async def adelegate(task: str) -> str:
            """Let another agent do it."""
            return str((await agent.ainvoke({"messages": []}))["messages"][-1].content)

        return adelegate

    @tool
    def delegate(task: str) -> str:
        """Let another agent do it."""
        return str(agent.invoke({"messages": []})["messages"][-1].content)

    return delegate


def gates(effects: Effects, mode: Any = "per_call") -> ToolNode:
    return ToolNode(
        tools_of(effects), interrupt_on={"send": True, "delete": True, "ask": True}, interrupt_mode=mode
    )


def asked_for(talk: Conversation) -> set[str]:
    """The tools whose approval is asked for."""
    return {
        value["action_requests"][0]["name"] if "action_requests" in value else value["name"]
        for value in talk.asked
    }


@pytest.mark.parametrize("saver", SAVERS)
@pytest.mark.parametrize("place", ["a tool", "a node"])
@pytest.mark.parametrize("durability", DURABILITIES)
@colours
async def test_an_approval_without_an_id_approves_nothing_in_a_later_run(
    asynchronous: bool,
    durability: Durability,
    place: str,
    saver: str,
    effects: Effects,
    tmp_path: Path,
    uri: Callable[[], str],
) -> None:
    agent = agent_of(gates(effects), [SEND, DELETE])
    delegate = delegate_to(agent, asynchronous=asynchronous)
    node = ToolNode([delegate], interrupting_tools=["delegate"]) if place == "a tool" else agent

    async with any_saver(saver, tmp_path, uri, asynchronous=asynchronous) as checkpointer:
        thread = str(uuid.uuid4())
        talk = Conversation(graph_of(node, checkpointer), asynchronous, durability, thread)
        await talk.say(message(("delegate", {"task": "t"})) if place == "a tool" else {"messages": []})
        await talk.say(Command(resume=APPROVE))
        assert (asked_for(talk), effects.counts()) == ({"delete"}, {"send ann": 1})

        for _ in range(2):
            await talk.say(None)
            assert (asked_for(talk), effects.counts()) == ({"delete"}, {"send ann": 1})

        await talk.say(Command(resume=APPROVE))
        assert talk.pauses == []
        assert effects.counts() == {"send ann": 1, "delete x": 1}


@pytest.mark.parametrize("durability", DURABILITIES)
@colours
async def test_the_approval_of_an_agent_approves_none_of_its_calls(
    asynchronous: bool, durability: Durability, effects: Effects
) -> None:
    delegate = delegate_to(agent_of(gates(effects), [DELETE]), asynchronous=asynchronous)
    node = ToolNode(
        [delegate],
        interrupting_tools=["delegate"],
        interrupt_on={"delegate": True},
        interrupt_mode="per_call",
    )
    talk = Conversation(graph_of(node, InMemorySaver()), asynchronous, durability)
    await talk.say(message(("delegate", {"task": "t"})))
    await talk.say(Command(resume=APPROVE))
    await talk.say(None)
    assert (asked_for(talk), effects.counts()) == ({"delete"}, {})

    await talk.say(Command(resume=APPROVE))
    assert (talk.pauses, effects.counts()) == ([], {"delete x": 1})


@pytest.mark.parametrize("siblings", [[], [DELETE]], ids=["alone", "with a sibling"])
@pytest.mark.parametrize("durability", DURABILITIES)
@colours
async def test_an_answer_to_a_tools_first_question_is_none_to_its_second(
    asynchronous: bool, durability: Durability, siblings: list[Any], effects: Effects
) -> None:
    @tool
    def register(who: str) -> str:
        """Register somebody."""
        return f"{interrupt('name?')}, {interrupt('pin?')}"

    node = ToolNode([register, *tools_of(effects)], interrupting_tools=["register"])
    talk = Conversation(graph_of(node, InMemorySaver()), asynchronous, durability)
    await talk.say(message(("register", {"who": "x"}), *siblings))
    await talk.say(Command(resume="Ann"))
    await talk.say(None)
    assert talk.asked == ["pin?"]

    await talk.say(Command(resume="Ann"))
    assert talk.contents[0] == ("call_0", "Ann, Ann"), "this one was given to the second question"


def asks_first(node: ToolNode, *, asynchronous: bool) -> Any:
    """A node that has a question of its own before it runs the tools."""

    def step(state: Any, config: RunnableConfig) -> Any:
        interrupt("who?")
        return node.invoke(state, config)

    async def astep(state: Any, config: RunnableConfig) -> Any:
        interrupt("who?")
        return await node.ainvoke(state, config)

    return astep if asynchronous else step


@pytest.mark.parametrize("durability", DURABILITIES)
@colours
async def test_an_answer_to_the_node_around_it_approves_nothing(
    asynchronous: bool, durability: Durability, effects: Effects
) -> None:
    graph = graph_of(asks_first(gates(effects), asynchronous=asynchronous), InMemorySaver())
    talk = Conversation(graph, asynchronous, durability)
    await talk.say(message(SEND))
    await talk.say(Command(resume=APPROVE))
    await talk.say(None)
    assert (asked_for(talk), effects.counts()) == ({"send"}, {})

    await talk.say(Command(resume=APPROVE))
    assert (talk.pauses, effects.counts()) == ([], {"send ann": 1})


@pytest.mark.parametrize("durability", DURABILITIES)
@colours
async def test_an_answer_given_at_a_breakpoint_approves_nothing(
    asynchronous: bool, durability: Durability, effects: Effects
) -> None:
    builder = StateGraph(MessagesState).add_node("tools", gates(effects)).add_edge(START, "tools")
    graph = builder.compile(checkpointer=InMemorySaver(), interrupt_before=["tools"])
    talk = Conversation(graph, asynchronous, durability)
    await talk.say({"messages": message(SEND)["messages"]})

    given: Any
    for given in (Command(resume=APPROVE), None, None):
        await talk.say(given)
        assert (asked_for(talk), effects.counts()) == ({"send"}, {})

    await talk.say(Command(resume={talk.pauses[0].id: APPROVE}))
    assert (talk.pauses, effects.counts()) == ([], {"send ann": 1})


@colours
async def test_an_answer_that_a_crash_held_up_still_reaches_its_question(
    asynchronous: bool, effects: Effects
) -> None:
    """A run that failed before it came to the question goes on with the answer that it was given."""
    failing: list[str] = []

    def step(state: Any, config: RunnableConfig) -> Any:
        if failing:
            raise ConnectionError(failing.pop())
        return node.invoke(state, config)

    async def astep(state: Any, config: RunnableConfig) -> Any:
        if failing:
            raise ConnectionError(failing.pop())
        return await node.ainvoke(state, config)

    node = gates(effects)
    talk = Conversation(graph_of(astep if asynchronous else step, InMemorySaver()), asynchronous)
    await talk.say(message(SEND))
    failing.append("away")
    with pytest.raises(ConnectionError):
        await talk.say(Command(resume=APPROVE))

    await talk.say(None)
    assert (talk.pauses, effects.counts()) == ([], {"send ann": 1})


@colours
async def test_a_wrong_answer_is_not_replaced_by_one_given_to_the_node_around_it(
    asynchronous: bool, effects: Effects
) -> None:
    node = ToolNode(tools_of(effects), interrupting_tools=["pick"])
    graph = graph_of(asks_first(node, asynchronous=asynchronous), InMemorySaver())
    talk = Conversation(graph, asynchronous)
    await talk.say(message(PICK))
    await talk.answer({talk.pauses[0].id: {"colour": "blue"}})

    await talk.answer({talk.pauses[0].id: {"colour": "green"}})
    assert [value["pick"] for value in talk.asked] == ["p"]
    assert talk.asked[0]["errors"]

    await talk.answer({talk.pauses[0].id: {"colour": "red"}})
    assert talk.contents == [("call_0", "p: red")]


@colours
async def test_a_wrong_answer_is_not_replaced_by_another_graphs_result(
    asynchronous: bool, effects: Effects
) -> None:
    def graph_that_picks(topic: str) -> Any:
        def ask(state: MessagesState) -> Any:
            answer = interrupt({"pick": topic}, response_schema=Colour)
            effects.add(f"pick {topic}")
            return {"messages": [AIMessage(f"{topic}: {answer.colour}")]}

        return StateGraph(MessagesState).add_node(ask).add_edge(START, "ask").compile()

    before, agent = graph_that_picks("before"), graph_that_picks("inner")

    @tool
    def delegate(task: str) -> str:
        """Let another agent do it."""
        return str(agent.invoke({"messages": []})["messages"][-1].content)

    node = ToolNode([delegate], interrupting_tools=["delegate"])

    def step(state: Any, config: RunnableConfig) -> Any:
        before.invoke({"messages": []})
        return node.invoke(state, config)

    async def astep(state: Any, config: RunnableConfig) -> Any:
        await before.ainvoke({"messages": []})
        return await node.ainvoke(state, config)

    talk = Conversation(graph_of(astep if asynchronous else step, InMemorySaver()), asynchronous)
    await talk.say(message(("delegate", {"task": "t"})))
    await talk.answer({talk.pauses[0].id: {"colour": "blue"}})
    await talk.answer({talk.pauses[0].id: {"colour": "green"}})
    assert {value["pick"] for value in talk.asked} == {"inner"}
    assert effects.counts() == {"pick before": 1}

    await talk.answer({talk.pauses[0].id: {"colour": "red"}})
    assert talk.contents == [("call_0", "inner: red")]
    assert effects.counts() == {"pick before": 1, "pick inner": 1}


class Recorder(InMemorySaver):
    """Notes in which order answers and questions are saved."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[str] = []

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        for name, value in writes:
            if name == "__interrupt__":
                self.saved += [f"asks {question.value['name']}" for question in value]
            elif name == "__resume__" and not task_id.replace("0", "").replace("-", ""):
                self.saved.append("wiped out" if value is None else "answered")
        super().put_writes(config, writes, task_id, task_path)


@colours
async def test_the_answer_is_wiped_out_before_the_next_question_is_saved(
    asynchronous: bool, effects: Effects
) -> None:
    """So that a process that dies in between leaves nothing by which that question could be answered."""
    saver = Recorder()
    graph = graph_of(agent_of(gates(effects), [SEND, DELETE]), saver)
    talk = Conversation(graph, asynchronous)
    await talk.say({"messages": []})
    saver.saved.clear()
    await talk.say(Command(resume=APPROVE))

    order = [*dict.fromkeys(saver.saved)]
    assert order == ["answered", "wiped out", "asks delete"]
