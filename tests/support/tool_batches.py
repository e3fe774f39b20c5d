"""Batches of tool calls with real side effects, and the graphs, savers and answers to take them through."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Interrupt, interrupt
from pydantic import BaseModel

Durability = Literal["sync", "async", "exit"]
DURABILITIES: tuple[Durability, ...] = ("sync", "async", "exit")
SAVERS = ("memory", "sqlite", "postgres")


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], add]


class Effects:
    """What tools did to the world: one line in a file for each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def add(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{line}\n")

    def counts(self) -> dict[str, int]:
        return dict(Counter(self.path.read_text().splitlines()))


class Colour(BaseModel):
    colour: Literal["red", "blue"]


def tools_of(effects: Effects) -> list[BaseTool]:
    """One tool of each kind that matters; each leaves its effect once its work is done."""

    @tool
    def ask(topic: str) -> str:
        """Ask a person."""
        answer = interrupt({"ask": topic})
        effects.add(f"ask {topic}")
        return f"{topic}: {answer}"

    @tool
    def pick(topic: str) -> str:
        """Ask a person for one of two colours."""
        answer = interrupt({"pick": topic}, response_schema=Colour)
        effects.add(f"pick {topic}")
        return f"{topic}: {answer.colour}"

    @tool
    def send(to: str) -> str:
        """Send a message."""
        effects.add(f"send {to}")
        return f"sent to {to}"

    @tool
    def delete(path: str) -> str:
        """Delete a file."""
        effects.add(f"delete {path}")
        return f"deleted {path}"

    @tool
    def note(text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Write to the state."""
        effects.add(f"note {text}")
        messages = [ToolMessage(f"noted {text}", tool_call_id=tool_call_id)]
        return Command(update={"notes": [text], "messages": messages})

    @tool
    def fail_once(name: str) -> str:
        """Fail the first time."""
        tried = f"try {name}" in effects.counts()
        effects.add(f"try {name}")
        if not tried:
            raise ConnectionError(name)
        return f"done {name}"

    class Inner(TypedDict):
        said: Annotated[list[str], add]

    def work(state: Inner) -> Inner:
        effects.add("research work")
        return {"said": ["worked"]}

    def consult(state: Inner) -> Inner:
        return {"said": [str(interrupt({"ask": "inner"}))]}

    inner = StateGraph(Inner).add_node(work).add_node(consult)
    agent = inner.add_edge(START, "work").add_edge("work", "consult").compile()

    @tool
    def research(topic: str) -> str:
        """Let another agent work."""
        said = agent.invoke({"said": []})["said"]
        effects.add(f"research {topic}")
        return ", ".join(said)

    return [ask, pick, send, delete, note, fail_once, research]


BROWSER = {
    "name": "browse",
    "description": "Open a page in the person's browser.",
    "parameters": {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]},
}


def message(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """The state after a model made these calls; their ids are `call_0`, `call_1`, …"""
    made = [
        {"name": name, "args": args, "id": f"call_{index}", "type": "tool_call"}
        for index, (name, args) in enumerate(calls)
    ]
    return {"messages": [AIMessage("", id="ai", tool_calls=made)], "notes": []}


def graph_of(node: Any, saver: BaseCheckpointSaver[Any] | None, **options: Any) -> CompiledStateGraph[Any]:
    builder = StateGraph(State)
    builder.add_node("tools", node, **options)
    return builder.add_edge(START, "tools").compile(checkpointer=saver)


def agent_of(node: Any, calls: Sequence[tuple[str, dict[str, Any]]]) -> Any:
    """An agent that makes one call after another; their ids are `inner_0`, `inner_1`, …"""

    def model(state: MessagesState) -> Any:
        made = sum(one.type == "ai" for one in state["messages"])
        if made == len(calls):
            return {"messages": [AIMessage("done")]}
        name, args = calls[made]
        call = {"name": name, "args": args, "id": f"inner_{made}", "type": "tool_call"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    def route(state: MessagesState) -> str:
        return "tools" if state["messages"][-1].tool_calls else END  # type: ignore[union-attr]

    builder = StateGraph(MessagesState).add_node("model", model).add_node("tools", node)
    builder.add_edge(START, "model").add_conditional_edges("model", route).add_edge("tools", "model")
    return builder.compile()


@dataclass
class Conversation:
    """Drives one thread of a graph, sync or async, and remembers what came back last."""

    graph: CompiledStateGraph[Any]
    asynchronous: bool = True
    durability: Durability = "sync"
    thread: str = "thread"
    state: dict[str, Any] = field(default_factory=dict)

    async def say(self, given: Any) -> None:
        """Runs the graph on an input, a command, or None to go on after an error."""
        config: Any = {"configurable": {"thread_id": self.thread}}
        if self.asynchronous:
            self.state = await self.graph.ainvoke(given, config, durability=self.durability)
        else:
            self.state = self.graph.invoke(given, config, durability=self.durability)

    async def answer(self, answers: Mapping[str, Any]) -> None:
        """Answers pauses by their ids."""
        await self.say(Command(resume=dict(answers)))

    @property
    def pauses(self) -> list[Interrupt]:
        return list(self.state.get("__interrupt__", ()))

    @property
    def asked(self) -> list[Any]:
        return [pause.value for pause in self.pauses]

    @property
    def results(self) -> list[ToolMessage]:
        return [one for one in self.state["messages"] if isinstance(one, ToolMessage)]

    @property
    def contents(self) -> list[tuple[str, Any]]:
        """Call id and content of each result, in order."""
        return [(one.tool_call_id, one.content) for one in self.results]


def good_answer(value: Any) -> Any:
    """The answer that lets a call of `tools_of` go through."""
    if "action_requests" in value:
        return {"decisions": [{"type": "approve"} for _ in value["action_requests"]]}
    if value.get("type") == "tool_approval":
        return {"type": "approve"}
    if value.get("type") == "tool_execution":
        return {"content": f"opened {value['args']['url']}", "status": "success"}
    return {"colour": "red"} if "pick" in value else "yes"


@contextlib.contextmanager
def saver_of(kind: str, folder: Path, postgres_uri: Callable[[], str]) -> Iterator[BaseCheckpointSaver[Any]]:
    """A sync saver. On the same folder a second one of `sqlite` finds what the first one left."""
    if kind == "memory":
        yield InMemorySaver()
    elif kind == "sqlite":
        from langgraph.checkpoint.sqlite import SqliteSaver

        with SqliteSaver.from_conn_string(str(folder / "state.db")) as saver:
            yield saver
    else:
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(postgres_uri()) as saver:
            saver.setup()
            yield saver


@contextlib.asynccontextmanager
async def asaver_of(
    kind: str, folder: Path, postgres_uri: Callable[[], str]
) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """Same as `saver_of`, but async."""
    if kind == "memory":
        yield InMemorySaver()
    elif kind == "sqlite":
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncSqliteSaver.from_conn_string(str(folder / "state.db")) as saver:
            yield saver
    else:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

        async with AsyncPostgresSaver.from_conn_string(postgres_uri()) as saver:
            await saver.setup()
            yield saver


@contextlib.asynccontextmanager
async def any_saver(
    kind: str, folder: Path, postgres_uri: Callable[[], str], *, asynchronous: bool
) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    if asynchronous:
        async with asaver_of(kind, folder, postgres_uri) as saver:
            yield saver
    else:
        with saver_of(kind, folder, postgres_uri) as saver:
            yield saver


def once(lines: Sequence[str]) -> dict[str, int]:
    """The counts when each of these happened exactly once."""
    return dict.fromkeys(lines, 1)
