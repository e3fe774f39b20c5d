"""How the tool node runs what may run: once, to the end, and with everything that a tool is given."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NotRequired

import anyio
import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.channels import UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, RetryPolicy, Send, interrupt
from typing_extensions import TypedDict

from midstream import ToolNode
from midstream.run import is_inside_tool
from midstream.state import PreemptionState, merge
from support.tool_batches import (
    BROWSER,
    Conversation,
    Durability,
    Effects,
    State,
    asaver_of,
    good_answer,
    graph_of,
    message,
    once,
    tools_of,
)

SEND, ASK, NOTE = ("send", {"to": "ann"}), ("ask", {"topic": "a"}), ("note", {"text": "n"})
FAIL = ("fail_once", {"name": "f"})

colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path / "effects")


def node_of(effects: Effects, *more: BaseTool, **rules: Any) -> ToolNode:
    return ToolNode([*tools_of(effects), *more], **{"interrupting_tools": ["ask"], **rules})


@colours
@pytest.mark.parametrize("durability", ["sync", "exit"])
async def test_a_retry_of_the_node_repeats_only_what_had_failed(
    asynchronous: bool, durability: Durability, effects: Effects
) -> None:
    graph = graph_of(
        node_of(effects),
        InMemorySaver(),
        retry_policy=RetryPolicy(max_attempts=2, initial_interval=0.001, jitter=False),
    )
    talk = Conversation(graph, asynchronous, durability)
    await talk.say(message(SEND, FAIL, ASK, NOTE))

    await talk.say(Command(resume="yes"))

    assert effects.counts() == {**once(["send ann", "note n", "ask a"]), "try f": 2}
    assert [one.tool_call_id for one in talk.results] == ["call_0", "call_1", "call_2", "call_3"]
    assert len(graph.get_state({"configurable": {"thread_id": "thread"}}).tasks) == 0


async def test_every_call_of_a_phase_ends_before_the_node_raises(effects: Effects) -> None:
    failed, ended = asyncio.Event(), []

    @tool
    async def slow() -> str:
        """Ends after the other has failed."""
        await failed.wait()
        await asyncio.sleep(0)
        ended.append("slow")
        return "slow"

    @tool
    async def broken() -> str:
        """Fail at once."""
        failed.set()
        raise LookupError("broken")

    talk = Conversation(graph_of(node_of(effects, slow, broken), InMemorySaver()))
    await talk.say(message(("slow", {}), ("broken", {}), ASK))

    with anyio.fail_after(5), pytest.raises(LookupError):
        await talk.say(Command(resume="yes"))
    assert ended == ["slow"]

    with pytest.raises(LookupError):
        await talk.say(None)
    assert ended == ["slow"], "its result was kept"


def test_every_call_of_a_phase_ends_before_the_sync_node_raises(effects: Effects) -> None:
    failed, ended = threading.Event(), []

    @tool
    def slow() -> str:
        """Ends after the other has failed."""
        assert failed.wait(5)
        ended.append("slow")
        return "slow"

    @tool
    def broken() -> str:
        """Fail at once."""
        failed.set()
        raise LookupError("broken")

    graph = graph_of(node_of(effects, slow, broken), InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    graph.invoke(message(("broken", {}), ("slow", {}), ASK), config)

    for _ in range(2):
        with pytest.raises(LookupError):
            graph.invoke(Command(resume="yes"), config)
        assert ended == ["slow"]


@pytest.mark.parametrize("limit", [None, 1])
async def test_a_cancelled_run_leaves_nothing_running(limit: int | None, effects: Effects) -> None:
    started, log = asyncio.Event(), []

    @tool
    async def endless() -> str:
        """Never end."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            log.append("ended")
        return ""

    graph = graph_of(node_of(effects, endless), InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}, "max_concurrency": limit}
    await graph.ainvoke(message(SEND, ASK, ("endless", {})), config)
    before = asyncio.all_tasks()
    run = asyncio.create_task(graph.ainvoke(Command(resume="yes"), config))
    with anyio.fail_after(5):
        await started.wait()

    run.cancel()
    with anyio.fail_after(5), pytest.raises(asyncio.CancelledError):
        await run

    assert log == ["ended"]
    assert asyncio.all_tasks() == before


@colours
@pytest.mark.parametrize("limit", [1, 2])
async def test_a_limit_of_concurrency_does_not_stop_the_node(
    limit: int, asynchronous: bool, effects: Effects
) -> None:
    """LangGraph counts a node's tasks with the node that waits for them: two nodes would hold both places."""
    calls = message(
        SEND, ASK, NOTE, ("send", {"to": "bob"}), ("send", {"to": "cid"}), ("ask", {"topic": "b"})
    )

    def in_threes(state: State) -> list[Send]:
        made: Any = state["messages"][-1]
        return [Send("tools", made.tool_calls[:3]), Send("tools", made.tool_calls[3:])]

    builder = StateGraph(State).add_node("tools", node_of(effects))
    builder.add_node("start", lambda state: {}).add_edge(START, "start")
    graph = builder.add_conditional_edges("start", in_threes, ["tools"]).compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}, "max_concurrency": limit}

    async def say(given: Any) -> Any:
        with anyio.fail_after(20):
            if asynchronous:
                return await graph.ainvoke(given, config)
            run = partial(graph.invoke, given, config)
            return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)

    state = await say(calls)
    state = await say(Command(resume={pause.id: "yes" for pause in state["__interrupt__"]}))

    assert effects.counts() == once(["send ann", "ask a", "note n", "send bob", "send cid", "ask b"])
    assert sum(isinstance(one, ToolMessage) for one in state["messages"]) == 6


@colours
async def test_sent_one_at_a_time_each_call_still_runs_once(asynchronous: bool, effects: Effects) -> None:
    def each(state: State) -> list[Send]:
        return [Send("tools", [call]) for call in state["messages"][-1].tool_calls]  # type: ignore[union-attr]

    rules: Any = {"interrupt_on": {"delete": True}, "interrupt_mode": "per_call"}
    builder = StateGraph(State).add_node("tools", node_of(effects, **rules))
    builder.add_node("start", lambda state: {}).add_edge(START, "start")
    graph = builder.add_conditional_edges("start", each, ["tools"]).compile(checkpointer=InMemorySaver())
    talk = Conversation(graph, asynchronous)

    await talk.say(message(SEND, ASK, ("delete", {"path": "x"}), NOTE))
    bad = {pause.id: {"type": "zap"} for pause in talk.pauses if "type" in pause.value}
    await talk.answer(bad)
    assert sorted(bool(value.get("errors")) for value in talk.asked) == [False, True]
    await talk.answer(
        {pause.id: {"type": "approve"} if "type" in pause.value else "yes" for pause in talk.pauses}
    )

    assert effects.counts() == once(["send ann", "ask a", "delete x", "note n"])
    assert {one.tool_call_id for one in talk.results} == {"call_0", "call_1", "call_2", "call_3"}


@colours
async def test_a_second_turn_with_the_same_call_ids_runs_again(asynchronous: bool, effects: Effects) -> None:
    talk = Conversation(graph_of(node_of(effects), InMemorySaver()), asynchronous)
    for _ in range(2):
        await talk.say(message(SEND, ASK))
        await talk.say(Command(resume="yes"))

    assert effects.counts() == {"send ann": 2, "ask a": 2}


async def test_each_step_may_be_taken_by_another_process(tmp_path: Path, effects: Effects) -> None:
    rules: Any = {"interrupt_on": {"delete": True}, "interrupt_mode": "per_call"}
    calls = message(SEND, ASK, ("delete", {"path": "x"}), FAIL)
    talk = Conversation(graph_of(node_of(effects), None))

    async def step(given: Any) -> None:
        async with asaver_of("sqlite", tmp_path, str) as saver:
            talk.graph = graph_of(node_of(effects, **rules), saver)
            await talk.say(given)

    await step(calls)
    ask, approval = sorted((pause.id for pause in talk.pauses), key=lambda id_: id_ not in asks(talk))
    await step(Command(resume={approval: {"type": "zap"}}))
    await step(Command(resume={ask: "yes"}))
    assert [bool(value.get("errors")) for value in talk.asked] == [True]
    with pytest.raises(ConnectionError):
        await step(Command(resume={approval: {"type": "approve"}}))
    await step(None)

    assert effects.counts() == {**once(["send ann", "ask a", "delete x"]), "try f": 2}
    assert [one.tool_call_id for one in talk.results] == ["call_0", "call_1", "call_2", "call_3"]


def asks(talk: Conversation) -> set[str]:
    return {pause.id for pause in talk.pauses if "ask" in pause.value}


@colours
async def test_a_halted_run_answers_its_calls_and_does_nothing(asynchronous: bool, effects: Effects) -> None:
    class Halted(State):
        preemption: NotRequired[Annotated[PreemptionState, merge]]

    def halt(state: Any, runtime: Any) -> Any:
        run_id = runtime.execution_info.run_id
        return {"preemption": {"halt": {"run_id": run_id, "reason": "closing time", "node": "model"}}}

    builder = StateGraph(Halted)
    builder.add_node("halt", halt).add_node("tools", node_of(effects, interrupt_on={"delete": True}))
    builder.add_edge(START, "halt").add_edge("halt", "tools")
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}, "run_id": "0190a000-0000-7000-8000-000000000001"}
    calls: Any = message(SEND, ASK, ("delete", {"path": "x"}), ("unknown", {}))

    state = await graph.ainvoke(calls, config) if asynchronous else graph.invoke(calls, config)

    assert effects.counts() == {}
    assert "__interrupt__" not in state
    assert [(one.tool_call_id, one.status, one.content) for one in state["messages"][1:]] == [
        (f"call_{index}", "error", "not run: halted (closing time)") for index in range(4)
    ]


@colours
@pytest.mark.parametrize("calls", [[SEND], [SEND, ASK]], ids=["without a gate", "with a gate"])
async def test_what_a_tool_starts_knows_that_it_is_inside_a_tool(
    calls: Any, asynchronous: bool, effects: Effects
) -> None:
    """So a `ModelNode` in there leaves the thread's requests to the agent outside."""
    seen = []

    def look(state: State) -> Any:
        seen.append(is_inside_tool(get_config()))
        return {"notes": []}

    agent = StateGraph(State).add_node(look).add_edge(START, "look").compile()

    @tool
    async def delegate() -> str:
        """Run a graph, in a task of its own."""
        await asyncio.create_task(agent.ainvoke({"messages": [], "notes": []}))
        return "done"

    @tool
    def sync_delegate() -> str:
        """Run a graph."""
        agent.invoke({"messages": [], "notes": []})
        return "done"

    inner: tuple[str, dict[str, Any]] = ("delegate" if asynchronous else "sync_delegate", {})
    graph = graph_of(node_of(effects, delegate, sync_delegate), InMemorySaver())
    talk = Conversation(graph, asynchronous)
    await talk.say(message(*calls, inner))
    if talk.pauses:
        await talk.say(Command(resume="yes"))

    assert seen == [True]
    assert not is_inside_tool({})


@colours
async def test_a_graph_in_a_tool_can_speak_to_the_graph_outside(asynchronous: bool, effects: Effects) -> None:
    def hand_over(state: Any) -> Command[Any]:
        result = ToolMessage("handed over", tool_call_id="call_1")
        return Command(graph=Command.PARENT, goto="other", update={"messages": [result]})

    agent = StateGraph(State).add_node(hand_over).add_edge(START, "hand_over").compile()

    @tool
    def transfer() -> str:
        """Let another agent take over."""
        return str(agent.invoke({"messages": [], "notes": []}))

    builder = StateGraph(State).add_node("tools", node_of(effects, transfer)).add_edge(START, "tools")
    builder.add_node("other", lambda state: {"notes": ["other was here"]})
    talk = Conversation(builder.compile(checkpointer=InMemorySaver()), asynchronous)
    await talk.say(message(ASK, ("transfer", {}), SEND))

    await talk.say(Command(resume="yes"))

    assert talk.state["notes"] == ["other was here"]
    assert {one.tool_call_id for one in talk.results} == {"call_0", "call_1", "call_2"}
    assert effects.counts() == once(["ask a", "send ann"])


@colours
async def test_tools_are_given_state_store_and_runtime(asynchronous: bool, effects: Effects) -> None:
    seen: dict[str, Any] = {}

    @tool
    def look(
        state: Annotated[dict[str, Any], InjectedState],
        notes: Annotated[list[str], InjectedState("notes")],
        store: Annotated[BaseStore, InjectedStore],
        runtime: ToolRuntime[Any, Any],
        call_id: Annotated[str, InjectedToolCallId],
    ) -> str:
        """Look around."""
        found = store.get(("a",), "b")
        seen.update(
            messages=len(state["messages"]),
            notes=notes,
            stored=found.value if found else None,
            call_id=(runtime.tool_call_id, call_id),
            thread=runtime.config["configurable"]["thread_id"],
            context=runtime.context,
            tools="look" in [one.name for one in runtime.tools],
        )
        runtime.stream_writer({"looked": True})
        return "seen"

    store = InMemoryStore()
    store.put(("a",), "b", {"c": 1})
    builder = StateGraph(State, context_schema=Context)
    builder.add_node("tools", node_of(effects, look)).add_edge(START, "tools")
    graph = builder.compile(checkpointer=InMemorySaver(), store=store)
    config: Any = {"configurable": {"thread_id": "t"}}
    calls: Any = {**message(("look", {}), ASK), "notes": ["n"]}
    graph.invoke(calls, config, context=ANN)

    given: Any = Command(resume="yes")
    if asynchronous:
        stream = graph.astream(given, config, stream_mode="custom", context=ANN)
        written = [one async for one in stream]
    else:
        written = list(graph.stream(given, config, stream_mode="custom", context=ANN))

    assert written == [{"looked": True}]
    assert seen == {
        "messages": 1,
        "notes": ["n"],
        "stored": {"c": 1},
        "call_id": ("call_0", "call_0"),
        "thread": "t",
        "context": {"user": "ann"},
        "tools": True,
    }


class Context(TypedDict):
    user: str


ANN: Context = {"user": "ann"}


HANDLERS: dict[str, tuple[Any, str | None]] = {
    "all": (True, "Error: LookupError('broken')\n Please fix your mistakes."),
    "a text": ("try again", "try again"),
    "a type": (LookupError, "Error: LookupError('broken')\n Please fix your mistakes."),
    "types": ((KeyError, LookupError), "Error: LookupError('broken')\n Please fix your mistakes."),
    "a function": (lambda error: f"sorry: {error}", "sorry: broken"),
    "another type": (TypeError, None),
    "none": (False, None),
}


@colours
@pytest.mark.parametrize(("handler", "content"), HANDLERS.values(), ids=HANDLERS)
async def test_errors_are_handled_as_the_node_was_told(
    handler: Any, content: str | None, asynchronous: bool, effects: Effects
) -> None:
    @tool
    def broken() -> str:
        """Fail."""
        raise LookupError("broken")

    node = node_of(effects, broken, handle_tool_errors=handler)
    talk = Conversation(graph_of(node, InMemorySaver()), asynchronous)
    await talk.say(message(("broken", {}), ASK, SEND))

    if content is None:
        with pytest.raises(LookupError):
            await talk.say(Command(resume="yes"))
    else:
        await talk.say(Command(resume="yes"))
        assert talk.contents[0] == ("call_0", content)
    assert effects.counts() == once(["ask a", "send ann"])


@colours
async def test_a_wrapper_wraps_each_call_once(asynchronous: bool, effects: Effects) -> None:
    def wrap(request: Any, execute: Any) -> Any:
        effects.add(f"wrap {request.tool_call['id']}")
        return execute(request)

    async def awrap(request: Any, execute: Any) -> Any:
        effects.add(f"wrap {request.tool_call['id']}")
        return await execute(request)

    node = node_of(effects, wrap_tool_call=wrap, awrap_tool_call=awrap)
    talk = Conversation(graph_of(node, InMemorySaver()), asynchronous)
    await talk.say(message(SEND, ASK, NOTE, ("made_up:name", {})))
    await talk.say(Command(resume="yes"))

    counts = effects.counts()
    # The wrapper of a call that pauses comes before the pause, and so runs with each attempt.
    assert counts.pop("wrap call_1") == 2
    assert counts == once(["send ann", "ask a", "note n", "wrap call_0", "wrap call_2", "wrap call_3"])
    assert "made_up:name is not a valid tool" in talk.contents[3][1]


@colours
async def test_durable_always_keeps_what_an_undeclared_pause_would_repeat(
    asynchronous: bool, effects: Effects
) -> None:
    node = ToolNode(tools_of(effects), durable="always")
    talk = Conversation(graph_of(node, InMemorySaver()), asynchronous)
    await talk.say(message(SEND, ASK))
    assert effects.counts() == once(["send ann"])

    await talk.say(Command(resume="yes"))
    assert effects.counts() == once(["send ann", "ask a"])


@colours
async def test_a_pause_that_makes_siblings_run_again_is_warned_of_once(
    asynchronous: bool, effects: Effects, caplog: pytest.LogCaptureFixture
) -> None:
    talk = Conversation(graph_of(ToolNode(tools_of(effects)), InMemorySaver()), asynchronous)
    for _ in range(2):
        await talk.say(message(SEND, ASK))
        await talk.say(Command(resume="yes"))

    assert effects.counts() == {"send ann": 4, "ask a": 2}, "as the stock node has it"
    assert [record.getMessage() for record in caplog.records if record.name == "midstream"] == [
        "tool 'ask' paused beside other calls, which run again when it is answered: list it in "
        "`interrupting_tools` of the tool node 'tools', or give that `durable=\"always\"`"
    ]


@colours
@pytest.mark.parametrize(
    ("calls", "rules"),
    [
        ([ASK], {}),
        ([SEND, ASK], {"interrupting_tools": ["ask"]}),
        ([SEND, ASK], {"durable": "always"}),
        ([SEND, ASK], {"interrupt_on": {"send": True}}),
    ],
    ids=["alone", "listed", "always durable", "beside a gate"],
)
async def test_a_pause_that_makes_nothing_run_again_is_not_warned_of(
    calls: Any, rules: Any, asynchronous: bool, effects: Effects, caplog: pytest.LogCaptureFixture
) -> None:
    talk = Conversation(graph_of(ToolNode(tools_of(effects), **rules), InMemorySaver()), asynchronous)
    await talk.say(message(*calls))
    while talk.pauses:
        await talk.answer({pause.id: good_answer(pause.value) for pause in talk.pauses})

    assert effects.counts() == once([{"ask": "ask a", "send": "send ann"}[name] for name, _ in calls])
    assert caplog.records == []


@colours
async def test_durable_never_keeps_no_result_and_so_lets_nothing_act_before_the_last_pause(
    asynchronous: bool, effects: Effects
) -> None:
    class Handle:
        """What no saver can keep."""

    @tool
    def hold(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Take hold of something."""
        effects.add("hold")
        return Command(
            update={"handle": Handle(), "messages": [ToolMessage("held", tool_call_id=tool_call_id)]}
        )

    class Holding(State):
        handle: Annotated[Any, UntrackedValue(object)]

    node = node_of(effects, hold, durable="never", host_tools=[BROWSER], interrupt_on={"send": True})
    builder = StateGraph(Holding).add_node("tools", node).add_edge(START, "tools")
    talk = Conversation(builder.compile(checkpointer=InMemorySaver()), asynchronous)

    await talk.say(message(("hold", {}), SEND, ASK, ("browse", {"url": "u"})))
    while talk.pauses:
        assert "hold" not in effects.counts()
        assert "send ann" not in effects.counts()
        await talk.answer({pause.id: good_answer(pause.value) for pause in talk.pauses})

    assert effects.counts() == once(["hold", "send ann", "ask a"])
    assert {one.tool_call_id for one in talk.results} == {"call_0", "call_1", "call_2", "call_3"}


@colours
async def test_the_stream_shows_each_result_under_one_id(asynchronous: bool, effects: Effects) -> None:
    @tool
    def report(runtime: ToolRuntime) -> str:
        """Write a part of the result as it comes."""
        runtime.emit_output_delta("half")
        return "whole"

    graph = graph_of(node_of(effects, report), InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    shown: dict[str, set[str | None]] = {}
    deltas = []
    modes: Any = ["messages", "tools"]
    givens: list[Any] = [message(SEND, ("report", {}), ASK), Command(resume="yes")]
    for given in givens:
        if asynchronous:
            events: list[Any] = [one async for one in graph.astream(given, config, stream_mode=modes)]
        else:
            events = list(graph.stream(given, config, stream_mode=modes))
        for mode, chunk in events:
            if mode == "messages" and isinstance(chunk[0], ToolMessage):
                shown.setdefault(chunk[0].tool_call_id, set()).add(chunk[0].id)
            if mode == "tools" and chunk["event"] == "tool-output-delta":
                deltas.append(chunk["delta"])
            assert mode != "tools" or chunk["event"] != "tool-error", "a pause is not an error"

    kept = graph.get_state(config).values["messages"]
    assert {one.tool_call_id: {one.id} for one in kept if isinstance(one, ToolMessage)} == shown
    assert deltas == ["half"]


async def test_an_interrupting_name_is_harmless_in_a_child_graph(effects: Effects) -> None:
    """The same rules may be given to every node of a team."""
    rules: Any = {"interrupting_tools": ["ask", "of_the_parent"]}
    child = graph_of(node_of(effects, **rules), None)
    builder = StateGraph(State).add_node("child", child).add_edge(START, "child")
    talk = Conversation(builder.compile(checkpointer=InMemorySaver()))

    await talk.say(message(SEND, ASK, ("of_the_parent", {})))
    await talk.say(Command(resume="yes"))

    assert effects.counts() == once(["send ann", "ask a"])
    assert [one.status for one in talk.results] == ["success", "success", "error"]


def test_the_calls_are_those_of_the_last_message(effects: Effects) -> None:
    graph = graph_of(node_of(effects, interrupting_tools=["send"]), InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    graph.invoke(message(SEND), config)
    state = graph.invoke({"messages": [AIMessage("nothing to do")], "notes": []}, config)

    assert effects.counts() == once(["send ann"])
    assert len(state["messages"]) == 3


async def test_a_graph_without_a_saver_runs_what_needs_no_answer(effects: Effects) -> None:
    @tool
    def maybe(sure: bool) -> str:
        """Ask only when not sure."""
        return "sure" if sure else str(interrupt("sure?"))

    graph = graph_of(node_of(effects, maybe, interrupting_tools=["maybe"]), None)
    state = await graph.ainvoke(message(SEND, ("maybe", {"sure": True})))

    assert [one.content for one in state["messages"][1:]] == ["sent to ann", "sure"]
