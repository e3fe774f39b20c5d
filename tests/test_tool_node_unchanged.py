"""Without a gate in the batch, this node is LangGraph's own: same results, same errors, same events."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import add
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime
from langgraph.prebuilt import ToolNode as StockToolNode
from langgraph.prebuilt.tool_node import ToolCallWithContext
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, Send
from pydantic import BaseModel, Field

from midstream import ToolNode


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], add]


class Model(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], add] = Field(default_factory=list)


@dataclass
class Data:
    messages: Annotated[list[AnyMessage], add_messages]


class Talk(TypedDict):
    talk: Annotated[list[AnyMessage], add_messages]


@tool
def double(x: int) -> str:
    """Double a number."""
    return str(2 * x)


@tool
async def adouble(x: int) -> str:
    """Double a number, awaited."""
    await asyncio.sleep(0)
    return str(2 * x)


def halve(x: float, y: float = 2) -> float:
    """Divide a number."""
    return x / y


@tool
def structured(x: int) -> Any:
    """Give an object."""
    return {"x": x, "é": [x]}


@tool
def blocks(x: int) -> Any:
    """Give content blocks."""
    return [{"type": "text", "text": str(x)}]


@tool(response_format="content_and_artifact")
def with_artifact(x: int) -> Any:
    """Give an artifact."""
    return f"made {x}", {"made": x}


@tool
def broken(x: int) -> str:
    """Fail."""
    raise LookupError(f"nothing at {x}")


@tool
def impolite(x: int) -> str:
    """Fail as tools do."""
    raise ToolException(f"cannot {x}")


def _handled(x: int) -> str:
    raise ToolException(f"cannot {x}")


handled = StructuredTool.from_function(
    _handled, name="handled", description="Fail, and handle it.", handle_tool_error=True
)


@tool
def remember(text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Write to the state."""
    messages = [ToolMessage(f"wrote {text}", tool_call_id=tool_call_id)]
    return Command(update={"notes": [text], "messages": messages})


@tool
def forgets_its_message(text: str) -> Command[Any]:
    """Write to the state without a result."""
    return Command(update={"notes": [text], "messages": []})


@tool
def clear(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Remove everything."""
    return Command(update={"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES)]})


@tool
def several(text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
    """Give a result and a command."""
    return [Command(update={"notes": [text]}), ToolMessage("both", tool_call_id=tool_call_id)]


@tool
def wrong_kind(x: int) -> Any:
    """Give a list of the wrong things."""
    return [Command(update={"notes": ["x"]})]


@tool
def hand_over(text: str) -> Command[Any]:
    """Send work to the graph outside."""
    return Command(graph=Command.PARENT, goto=[Send("outside", {"notes": [text]})])


@tool
def go_on(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Go to another node."""
    return Command(goto="other", update={"messages": [ToolMessage("going", tool_call_id=tool_call_id)]})


@tool
def sees(
    x: int,
    state: Annotated[Any, InjectedState],
    store: Annotated[BaseStore, InjectedStore],
    runtime: ToolRuntime[Any, Any],
) -> str:
    """Look around."""
    found = store.get(("a",), "b")
    keys = sorted(state) if isinstance(state, dict) else type(state).__name__
    runtime.stream_writer({"looked": x})
    return f"{keys} {found.value if found else None} {runtime.tool_call_id} {len(runtime.tools)}"


@tool
def sees_notes(x: int, notes: Annotated[list[str], InjectedState("notes")]) -> str:
    """Look at the notes."""
    return f"{x} {notes}"


TOOLS: list[BaseTool | Callable[..., Any]] = [
    double,
    adouble,
    halve,
    structured,
    blocks,
    with_artifact,
    broken,
    impolite,
    handled,
    remember,
    forgets_its_message,
    clear,
    several,
    wrong_kind,
    hand_over,
    go_on,
    sees,
    sees_notes,
]


@tool
def gated(x: int) -> str:
    """Never called here."""
    raise AssertionError


def stock(**options: Any) -> StockToolNode:
    return StockToolNode([*TOOLS, gated], **options)


def ours(**options: Any) -> ToolNode:
    """With every kind of gate, none of which is in the batch."""
    return ToolNode(
        [*TOOLS, gated],
        interrupt_on={"gated": True},
        interrupting_tools=["gated", "elsewhere"],
        host_tools=[{"name": "browse", "description": "", "parameters": {"type": "object"}}],
        **options,
    )


def calls(*made: tuple[str, dict[str, Any]]) -> list[Any]:
    return [
        {"name": name, "args": args, "id": f"call_{index}", "type": "tool_call"}
        for index, (name, args) in enumerate(made)
    ]


def ai(*made: tuple[str, dict[str, Any]]) -> AIMessage:
    return AIMessage("", id="ai", tool_calls=calls(*made))


BATCHES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "one": [("double", {"x": 1})],
    "several": [("double", {"x": 1}), ("halve", {"x": 3}), ("structured", {"x": 2}), ("blocks", {"x": 4})],
    "artifact": [("with_artifact", {"x": 1}), ("double", {"x": 2})],
    "unknown tool": [("made_up", {"x": 1}), ("double", {"x": 1})],
    "missing arguments": [("double", {"y": 1})],
    "wrong arguments": [("halve", {"x": "a"})],
    "failing": [("broken", {"x": 1})],
    "failing beside another": [("broken", {"x": 1}), ("double", {"x": 1})],
    "failing politely": [("impolite", {"x": 1})],
    "handled by the tool": [("handled", {"x": 1})],
    "command": [("remember", {"text": "a"}), ("double", {"x": 1}), ("remember", {"text": "b"})],
    "command without a result": [("forgets_its_message", {"text": "a"})],
    "command that clears": [("clear", {})],
    "list of both": [("several", {"text": "a"}), ("double", {"x": 1})],
    "list without a result": [("wrong_kind", {"x": 1})],
    "goto": [("go_on", {}), ("double", {"x": 3})],
    "injected": [("sees", {"x": 1}), ("sees_notes", {"x": 2})],
    "forged injection": [("sees_notes", {"x": 2, "notes": ["forged"]})],
    "nothing": [],
}


def wrap(request: Any, execute: Any) -> Any:
    if request.tool is None:
        return ToolMessage("by the wrapper", tool_call_id=request.tool_call["id"])
    try:
        result = execute(request)
    except LookupError:
        return execute(request.override(tool_call={**request.tool_call, "name": "double"}, tool=double))
    return result


async def awrap(request: Any, execute: Any) -> Any:
    if request.tool_call["name"] == "double":
        raise ValueError("wrapper")
    return await execute(request)


OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "handle all": {"handle_tool_errors": True},
    "handle none": {"handle_tool_errors": False},
    "handle some": {"handle_tool_errors": (LookupError,)},
    "a function": {"handle_tool_errors": lambda error: f"oh: {error}"},
    "wrapped": {"wrap_tool_call": wrap},
    "wrapped async": {"wrap_tool_call": wrap, "awrap_tool_call": awrap, "handle_tool_errors": "failed"},
    "named": {"name": "hands", "tags": ["t"]},
}


RAISING = ("defaults", "handle none", "wrapped", "named")


def scrubbed(value: Any) -> str:
    """The value in words, without what differs from run to run."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID", repr(value))
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", "TIME", text)
    return re.sub(r"0x[0-9a-f]+|\b0\.\d{10,}\b", "N", text)


def outside(state: Any) -> Any:
    return {"notes": [f"outside {state['notes']}"]}


def graph_of(node: Any, schema: Any = State) -> Any:
    builder = StateGraph(schema)
    builder.add_node("tools", node).add_edge(START, "tools")
    builder.add_node("other", lambda state: {}).add_edge("other", END)
    return builder.compile(checkpointer=InMemorySaver(), store=store())


def store() -> InMemoryStore:
    kept = InMemoryStore()
    kept.put(("a",), "b", {"c": 1})
    return kept


MODES = ["values", "updates", "custom", "messages", "tasks", "checkpoints", "tools"]


async def events(graph: Any, given: Any, asynchronous: bool) -> list[str]:
    """Everything that a run shows, and what it ended with."""
    config = {"configurable": {"thread_id": "1"}}
    seen: list[Any] = []
    try:
        if asynchronous:
            async for event in graph.astream(given, config, stream_mode=MODES, subgraphs=True):
                seen.append(event)
        else:
            for event in graph.stream(given, config, stream_mode=MODES, subgraphs=True):
                seen.append(event)
    except Exception as error:
        seen.append((type(error), str(error)))
    seen.append(graph.get_state(config).values)
    return [scrubbed(event) for event in seen]


def in_any_order(seen: list[str]) -> list[str]:
    """Calls run at the same time, so what they show may interleave."""
    return sorted(seen)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
async def test_a_run_shows_and_gives_the_same(batch: Any, asynchronous: bool) -> None:
    for name, options in OPTIONS.items():
        if asynchronous and batch == BATCHES["failing beside another"] and name in RAISING:
            continue  # the stock node leaves while the other is still running, and shows it or not
        given = {"messages": [ai(*batch)], "notes": ["n"]}

        expected = await events(graph_of(stock(**options)), given, asynchronous)
        found = await events(graph_of(ours(**options)), given, asynchronous)

        assert in_any_order(found) == in_any_order(expected), name


INPUTS: dict[str, Callable[[Any], Any]] = {
    "a list of messages": lambda made: [ai(*made)],
    "a list of calls": lambda made: calls(*made),
    "a call with its state": lambda made: ToolCallWithContext(
        tool_call=calls(*made)[0],
        __type="tool_call_with_context",
        state={"messages": [ai(*made)], "notes": ["inlined"]},
    ),
    "no message": lambda _: {"messages": []},
    "no AI message": lambda _: {"messages": [ToolMessage("x", tool_call_id="y")]},
    "a model": lambda made: Model(messages=[ai(*made)], notes=["m"]),
    "a dataclass": lambda made: Data(messages=[ai(*made)]),
}


@pytest.mark.parametrize("given", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("batch", ["one", "command", "injected", "list of both"])
async def test_every_form_of_input_is_taken_alike(given: Callable[[Any], Any], batch: str) -> None:
    """In the node's own hands, as a node that calls it would do it."""

    async def through(node: Any) -> list[str]:
        async def call(state: State, config: RunnableConfig) -> dict[str, Any]:
            found = []
            for run in (node.invoke, node.ainvoke):
                try:
                    result = run(given(BATCHES[batch]), config)
                    found.append(await result if asyncio.iscoroutine(result) else result)
                except Exception as error:
                    found.append((type(error), str(error)))
            seen.extend(scrubbed(one) for one in found)
            return {"notes": []}

        seen: list[str] = []
        await graph_of(call).ainvoke({"messages": [], "notes": []}, {"configurable": {"thread_id": "1"}})
        return seen

    assert await through(ours()) == await through(stock())


@pytest.mark.parametrize("schema", [Model, Data], ids=["model", "dataclass"])
async def test_every_form_of_state_is_taken_alike(schema: Any) -> None:
    given = {"messages": [ai(("double", {"x": 1}), ("sees", {"x": 2}))]}

    found = await events(graph_of(ours(), schema), given, True)

    assert in_any_order(found) == in_any_order(await events(graph_of(stock(), schema), given, True))


async def test_messages_may_have_another_name() -> None:
    given = {"talk": [ai(("double", {"x": 1}))]}

    found = await events(graph_of(ours(messages_key="talk"), Talk), given, True)

    assert found[-1].count("'2'") == 1
    expected = await events(graph_of(stock(messages_key="talk"), Talk), given, True)
    assert in_any_order(found) == in_any_order(expected)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
async def test_work_is_sent_to_the_graph_outside_alike(asynchronous: bool) -> None:
    def team(node: Any) -> Any:
        inner = StateGraph(State).add_node("tools", node).add_edge(START, "tools").compile()
        builder = StateGraph(State).add_node("inner", inner).add_edge(START, "inner")
        return builder.add_node("outside", outside).compile(checkpointer=InMemorySaver())

    given = {"messages": [ai(("hand_over", {"text": "a"}), ("hand_over", {"text": "b"}))], "notes": []}

    found = await events(team(ours()), given, asynchronous)

    assert in_any_order(found) == in_any_order(await events(team(stock()), given, asynchronous))
    assert "outside ['a']" in found[-1]
    assert "outside ['b']" in found[-1]


async def test_async_tools_are_awaited_together() -> None:
    given = {"messages": [ai(("adouble", {"x": 1}), ("adouble", {"x": 2}))], "notes": []}

    found = await events(graph_of(ours()), given, True)

    assert in_any_order(found) == in_any_order(await events(graph_of(stock()), given, True))


def test_it_names_its_tools_like_its_parent() -> None:
    assert ours().tools_by_name.keys() == stock().tools_by_name.keys()
    assert (ours(name="hands").name, ours(tags=["t"]).tags) == ("hands", ["t"])
