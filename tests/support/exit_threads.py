"""Threads that are saved at the exit of a run only: every saver, both colours, and read again afresh."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import Any, Literal, TypeAlias, cast

from langchain_core.messages import AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send, StateSnapshot, interrupt

from fakes import FakeChatModel
from midstream import DeltaMidstreamState, Ledger, MidstreamState, ModelNode
from support.steering import thread

Saver: TypeAlias = BaseCheckpointSaver[Any]
Graph: TypeAlias = CompiledStateGraph[Any, Any, Any, Any]
Build: TypeAlias = Callable[[type, Saver], Graph]
Kind: TypeAlias = Literal["memory", "sqlite", "postgres"]
Colour: TypeAlias = Literal["sync", "async"]

STATES = {"plain": MidstreamState, "delta": DeltaMidstreamState}


class FullDiskError(Exception):
    """A checkpoint could not be saved."""


@cache
def _changed(base: type[Saver], by_task_id: bool) -> Any:
    """Makes a saver whose next checkpoint may fail, and which may know nothing of task paths."""

    class Changed(base):  # type: ignore[misc, valid-type]
        fails = False

        def _fail(self, config: RunnableConfig) -> None:
            if self.fails and not config["configurable"].get("checkpoint_ns"):
                self.fails = False
                raise FullDiskError

        def put(self, config: RunnableConfig, *args: Any) -> Any:
            self._fail(config)
            return super().put(config, *args)

        async def aput(self, config: RunnableConfig, *args: Any) -> Any:
            self._fail(config)
            return await super().aput(config, *args)

    class ById(Changed):
        """Returns writes in the order of their task ids, as a saver of the time before task paths."""

        # The host looks for a parameter `task_path`, and gives none where it finds none.
        def put_writes(self, config: RunnableConfig, writes: Any, task_id: str, *_: Any) -> None:
            super().put_writes(config, writes, task_id)

        async def aput_writes(self, config: RunnableConfig, writes: Any, task_id: str, *_: Any) -> None:
            await super().aput_writes(config, writes, task_id)

        def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
            return _by_task_id(super().get_tuple(config))

        async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
            return _by_task_id(await super().aget_tuple(config))

        get_delta_channel_history = BaseCheckpointSaver.get_delta_channel_history
        aget_delta_channel_history = BaseCheckpointSaver.aget_delta_channel_history

    return ById if by_task_id else Changed


def _by_task_id(found: CheckpointTuple | None) -> CheckpointTuple | None:
    if found is None or found.pending_writes is None:
        return found
    return found._replace(pending_writes=sorted(found.pending_writes, key=lambda write: write[0]))


@dataclass
class Threads:
    """One thread, by one kind of saver, colour and state; each call has objects of its own."""

    kind: Kind
    colour: Colour
    state: type
    where: str = ""
    """The file or the URI of the saver."""

    by_task_id: bool = False
    config: RunnableConfig = field(default_factory=thread)
    kept: InMemorySaver = field(default_factory=InMemorySaver)
    fails_next: bool = False
    """Whether the next run fails to save its checkpoint."""

    open_saver: Saver | None = None
    """The saver of the run that goes on, for what happens in it."""

    @asynccontextmanager
    async def saver(self) -> AsyncIterator[Saver]:
        is_async = self.colour == "async"
        async with AsyncExitStack() as stack:
            match self.kind:
                case "memory":
                    saver = _changed(InMemorySaver, self.by_task_id)()
                    kept = self.kept
                    saver.storage, saver.writes, saver.blobs = kept.storage, kept.writes, kept.blobs
                case "sqlite":
                    cls = _changed(AsyncSqliteSaver if is_async else SqliteSaver, self.by_task_id)
                    saver = await _enter(stack, cls.from_conn_string(self.where))
                case "postgres":
                    cls = _changed(AsyncPostgresSaver if is_async else PostgresSaver, self.by_task_id)
                    saver = await _enter(stack, cls.from_conn_string(self.where))
            saver.fails, self.fails_next = self.fails_next, False
            yield saver

    async def run(self, build: Build, given: Any, config: RunnableConfig | None = None) -> dict[str, Any]:
        """Runs a graph; returns the last value of its stream, and makes sure that it is read again."""
        config = config or self.config
        live: dict[str, Any] = {}
        async with self.saver() as saver:
            graph, self.open_saver = build(self.state, saver), saver
            if self.colour == "async":
                async for value in graph.astream(given, config, stream_mode="values", durability="exit"):
                    live |= value
            else:
                for value in graph.stream(given, config, stream_mode="values", durability="exit"):
                    live |= value
            self.open_saver = None
        live.pop("__interrupt__", None)
        assert self.ordered((await self.read(build)).values) == self.ordered(live)
        return live

    def ordered(self, values: dict[str, Any]) -> dict[str, Any]:
        """Returns values as they can be compared.

        A saver that does not keep the paths of tasks cannot say in which order parallel ones wrote, and a
        `DeltaChannel` is read in the order that the saver says: the host asks for that order of every saver.
        """
        if not (self.by_task_id and self.state is DeltaMidstreamState):
            return values
        messages: list[AnyMessage] = []
        for is_tool, group in groupby(values["messages"], lambda message: isinstance(message, ToolMessage)):
            each = list(group)
            messages += sorted(each, key=lambda message: str(message.id)) if is_tool else each
        return {**values, "messages": messages}

    async def read(self, build: Build, config: RunnableConfig | None = None) -> StateSnapshot:
        async with self.saver() as saver:
            graph = build(self.state, saver)
            if self.colour == "async":
                return await graph.aget_state(config or self.config)
            return graph.get_state(config or self.config)

    def posted(self, request: dict[str, Any]) -> Callable[[], Awaitable[None] | None]:
        """A step of a model's script: posts a request."""

        def post() -> Awaitable[None] | None:
            ledger = Ledger(cast("Saver", self.open_saver), self.config["configurable"]["thread_id"])
            if self.colour == "async":
                return cast("Awaitable[None]", ledger.aappend(request))
            ledger.append(request)
            return None

        return post


async def _enter(stack: AsyncExitStack, manager: Any) -> Any:
    if hasattr(manager, "__aenter__"):
        return await stack.enter_async_context(manager)
    return stack.enter_context(manager)


def use_a_tool(given: dict[str, Any]) -> dict[str, Any]:
    """The tool `ask` waits for a person; the tool `note` does not."""
    call = given["call"]
    said = interrupt(call["args"]["what"]) if call["name"] == "ask" else "noted"
    content = f"{call['args']['what']}: {said}"
    return {"messages": [ToolMessage(content, tool_call_id=call["id"], id=f"tool {call['id']}")]}


def each_call(state: dict[str, Any]) -> list[Send] | str:
    answer = state["messages"][-1]
    return [Send("tool", {"call": call}) for call in getattr(answer, "tool_calls", ())] or END


def fan_out(model: FakeChatModel) -> Build:
    """An agent whose tool calls are parallel tasks of their own."""

    def build(state: type, saver: Saver) -> Graph:
        builder: StateGraph[Any] = StateGraph(cast("Any", state))
        builder.add_node(
            "model", ModelNode(model) if isinstance(model, FakeChatModel) else cast("Any", model)
        )
        builder.add_node("tool", cast("Any", use_a_tool))
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", each_call, ["tool", END])
        builder.add_edge("tool", "model")
        return builder.compile(checkpointer=saver)

    return build
