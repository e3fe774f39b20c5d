"""A turn is an input and all runs that go on from it: one budget, and one set of runs that requests name."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt

from fakes import SILENCE, FakeChatModel, calls
from midstream import MidstreamState, ModelNode, Preemption
from support.steering import ASKED, OpenLedgerSaver, halt, ledger_of, said, steer, thread

FIRST, SECOND = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))


@tool
def ask(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Asks a person, and says in the person's name what the answer was."""
    answer = interrupt("Sure?")
    spoken: list[AnyMessage] = [
        ToolMessage("asked", tool_call_id=tool_call_id),
        HumanMessage(f"I say {answer}."),
    ]
    return Command(update={"messages": spoken})


class Story:
    """A thread with a budget of one seal: its first run spends it, and is then asked a question."""

    def __init__(self, shape: str = "alone", *, durability: Literal["sync", "exit"] = "sync") -> None:
        self.saver = OpenLedgerSaver()
        self.config: RunnableConfig = thread()
        self.durability = durability
        self.model = FakeChatModel(
            answers=[
                ["Once", self.posts(steer("Shorter.", id=FIRST)), SILENCE],
                calls("ask"),
                ["Then", self.posts(steer("Even shorter.", id=SECOND)), " more", " and", " more."],
                ["Fine."],
            ]
        )
        agent: Any = StateGraph(MidstreamState)
        options = Preemption(max_seals=1)
        limit = 60 if shape == "timed" else None
        agent.add_node("model", ModelNode(self.model, tools=[ask], preemption=options), timeout=limit)
        agent.add_node("tools", ToolNode([ask]))
        agent.add_edge(START, "model")
        agent.add_conditional_edges("model", tools_condition)
        agent.add_edge("tools", "model")
        if shape == "nested":
            outer: Any = StateGraph(MidstreamState)
            outer.add_node("agent", agent.compile())
            outer.add_edge(START, "agent")
            outer.add_edge("agent", END)
            agent = outer
        self.graph = agent.compile(checkpointer=self.saver)

    def posts(self, request: dict[str, Any]) -> Callable[[], Any]:
        return lambda: self.saver.posted(self.config, request)()

    async def run(self, given: Any, **config: Any) -> dict[str, Any]:
        async with asyncio.timeout(20):
            state = await self.graph.ainvoke(given, {**self.config, **config}, durability=self.durability)
        return dict(state)


def kept_its_turn(state: dict[str, Any]) -> bool:
    """Whether the second run went on with the turn of the first: then its budget is spent."""
    runs = len(state["preemption"]["turn"]["runs"])
    outcome = state["preemption"]["handled"][SECOND]["outcome"]
    assert (runs, outcome) in [(2, "turn_end"), (1, "sealed")]
    return runs == 2


same_turn: dict[str, Any] = {
    "a resume": Command(resume="yes"),
    "a resume that brings words along": Command(
        resume="yes", update={"messages": [HumanMessage("And quick.")]}
    ),
}
new_turn: dict[str, Any] = {
    "words": {"messages": [HumanMessage("Hello?")]},
    "an input in which no person speaks": {"messages": []},
}


@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("shape", ["alone", "nested", "timed"])
@pytest.mark.parametrize("way", [*same_turn, *new_turn])
async def test_a_run_that_resumes_keeps_its_turn_and_one_with_new_input_begins_another(
    way: str, shape: str, durability: Literal["sync", "exit"]
) -> None:
    """Whoever speaks in between: here the tool does, in the person's name."""
    story = Story(shape, durability=durability)
    await story.run(ASKED)

    state = await story.run((same_turn | new_turn)[way])

    assert kept_its_turn(state) == (way in same_turn)
    assert state["messages"][-1].text == "Fine."


async def test_a_run_that_goes_on_after_a_crash_keeps_its_turn() -> None:
    story = Story()
    story.model.answers[1:2] = [[ConnectionError("the provider is away")]]
    with pytest.raises(ConnectionError):
        await story.run(ASKED)

    assert kept_its_turn(await story.run(None))


async def test_a_second_attempt_at_a_run_keeps_its_turn() -> None:
    """The server gives the run's id in another place then."""
    story, run_id = Story(), uuid.uuid4()
    story.model.answers[1:2] = [[ConnectionError("the worker was lost")]]
    with pytest.raises(ConnectionError):
        await story.run(ASKED, run_id=run_id)

    again = {**story.config["configurable"], "run_id": str(run_id)}
    state = await story.run(None, configurable=again)

    assert state["preemption"]["turn"]["runs"] == [str(run_id)]
    assert state["preemption"]["handled"][SECOND]["outcome"] == "turn_end"


async def test_a_fork_goes_on_with_the_turn_of_its_past() -> None:
    story = Story()
    story.model.answers[2:2] = [["Hello."]]
    await story.run(ASKED)
    history = [each async for each in story.graph.aget_state_history(story.config)]
    steered = next(each for each in history if len(each.values["messages"]) == 3)
    state = await story.run({"messages": [HumanMessage("Hello?")]})
    assert len(state["preemption"]["turn"]["runs"]) == 1

    assert kept_its_turn(await story.run(None, **steered.config))


async def test_what_a_host_writes_to_the_state_is_no_input() -> None:
    """The words are the model's to read, and the turn goes on: another one begins with an input."""
    story = Story()
    await story.run(ASKED)
    await story.graph.aupdate_state(
        story.config, {"messages": [HumanMessage("Never mind.")]}, as_node="tools"
    )

    state = await story.run(None)

    assert kept_its_turn(state)
    assert story.model.calls[2].texts[-1] == "Never mind."


async def test_words_that_a_host_writes_after_a_sealed_answer_are_something_to_go_on_with() -> None:
    """Though the request that the answer was sealed for was withdrawn meanwhile."""
    story = Story()
    await story.graph.ainvoke(ASKED, story.config, interrupt_after=["model"])
    await ledger_of(story.saver, story.config).aappend({"kind": "withdraw", "id": FIRST})
    await story.graph.aupdate_state(story.config, {"messages": [HumanMessage("And?")]}, as_node="__start__")
    story.model.answers[1:] = [["Fine."]]

    state = await story.run(None)

    assert said(state["messages"])[1:] == [("ai", "Once"), ("human", "And?"), ("ai", "Fine.")]
    assert "halt" not in state["preemption"]


async def test_a_run_id_that_is_used_again_is_another_run() -> None:
    """As an open-source host may do, which has one id for a thread."""
    story, run_id = Story(), uuid.uuid4()
    story.model.answers = [
        ["Hello.", story.posts(halt("Stop.")), SILENCE],
        ["Then", story.posts(steer("Even shorter.", id=SECOND)), SILENCE],
        ["Fine."],
    ]
    state = await story.run(ASKED, run_id=run_id)
    assert state["preemption"]["halt"]["reason"] == "Stop."

    state = await story.run({"messages": [HumanMessage("Hello?")]}, run_id=run_id)

    assert said(state["messages"])[-4:] == [
        ("human", "Hello?"),
        ("ai", "Then"),
        ("human", "Even shorter."),
        ("ai", "Fine."),
    ]


async def test_a_subgraph_beside_the_agent_that_says_nothing_does_not_bring_the_old_turn_back() -> None:
    """It hands back all that it was given, and that was before the agent wrote of the new turn."""
    saver, config = OpenLedgerSaver(), thread()
    model = FakeChatModel(
        answers=[["Hello."], ["Once", lambda: ledger_of(saver, config).aappend(steer("Shorter.")), SILENCE]]
    )
    other: Any = StateGraph(MidstreamState)
    other.add_node("other", ModelNode(FakeChatModel()))
    other.add_conditional_edges(START, lambda state: "other" if len(state["messages"]) == 1 else END)
    builder: Any = StateGraph(MidstreamState)
    builder.add_node("model", ModelNode(model))
    builder.add_node("quiet", other.compile())
    builder.add_edge(START, "model")
    builder.add_edge(START, "quiet")
    builder.add_edge("model", END)
    graph = builder.compile(checkpointer=saver)
    await graph.ainvoke(ASKED, config)

    state = await graph.ainvoke({"messages": [HumanMessage("Hello?")]}, config)

    assert [each["outcome"] for each in state["preemption"]["handled"].values()] == ["sealed"]
    assert len(state["preemption"]["turn"]["seals"]) == 1
    assert state["preemption"]["before"] == {"seals": 0, "restarts": 0, "empty_boundaries": 0}


async def test_a_request_for_a_run_that_ended_before_it_said_anything_holds_for_the_one_that_goes_on() -> (
    None
):
    """The server notes a run's id with each checkpoint of it."""
    saver, config, model = OpenLedgerSaver(), thread(), FakeChatModel(answers=[["Fine."]])
    runs = [uuid.uuid4(), uuid.uuid4(), uuid.uuid4()]
    named: list[RunnableConfig] = [
        {**config, "run_id": each, "metadata": {"run_id": str(each)}} for each in runs
    ]
    builder: Any = StateGraph(MidstreamState)
    builder.add_node("may", lambda state: {"messages": [HumanMessage(interrupt("May I?"))]})
    builder.add_node("model", ModelNode(model))
    builder.add_edge(START, "may")
    builder.add_edge("may", "model")
    builder.add_edge("model", END)
    graph = builder.compile(checkpointer=saver)
    for each in named[:2]:
        await graph.ainvoke(ASKED, each)
    ledger = ledger_of(saver, config)
    await ledger.aappend(steer("Never mind.", id=FIRST, run_id=str(runs[0])))
    await ledger.aappend(steer("Shorter.", id=SECOND, run_id=str(runs[1])))

    state = await graph.ainvoke(Command(resume="Yes."), named[2])

    assert {name: each["outcome"] for name, each in state["preemption"]["handled"].items()} == {
        FIRST: "expired",
        SECOND: "entry",
    }
    assert said(state["messages"])[1:] == [("human", "Yes."), ("human", "Shorter."), ("ai", "Fine.")]
