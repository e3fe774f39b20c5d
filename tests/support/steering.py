"""What the stories of steering share: the stock agent, a thread of its own, and requests in short."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from midstream import Ledger, MidstreamState, ModelNode, PreemptionTransformer
from midstream.ledger import NAMESPACE

ASKED: Any = {"messages": [HumanMessage("Tell me a story.", id="h1")]}


@tool
def look_up(word: str) -> str:
    """Looks a word up."""
    return f"{word}: a thing"


def thread(**configurable: Any) -> RunnableConfig:
    """The config of a thread that nobody used before."""
    return {"configurable": {"thread_id": str(uuid.uuid4()), **configurable}}


def ledger_of(saver: BaseCheckpointSaver[Any], config: RunnableConfig) -> Ledger:
    return Ledger(saver, config["configurable"]["thread_id"])


def steer(text: str, **more: Any) -> dict[str, Any]:
    return {"kind": "steer", "messages": text, **more}


def halt(reason: str, **more: Any) -> dict[str, Any]:
    return {"kind": "halt", "reason": reason, **more}


def agent(
    model: Any, *, saver: BaseCheckpointSaver[Any], tools: Sequence[Any] = (), **options: Any
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The stock loop of a model and its tools."""
    builder = StateGraph(MidstreamState)
    builder.add_node("model", ModelNode(model, tools=tools, **options))
    builder.add_edge(START, "model")
    if tools:
        builder.add_node("tools", ToolNode(tools))
        builder.add_conditional_edges("model", tools_condition)
        builder.add_edge("tools", "model")
    else:
        builder.add_edge("model", END)
    return builder.compile(checkpointer=saver, transformers=[PreemptionTransformer])


def said(messages: Sequence[BaseMessage]) -> list[tuple[str, str]]:
    return [(message.type, str(message.text)) for message in messages]


def is_sealed(message: BaseMessage) -> bool:
    return bool(message.response_metadata.get("preemption", {}).get("sealed"))


class OpenLedgerSaver(InMemorySaver):
    """A saver that lets a test wait until somebody has read the ledger."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[asyncio.Event] = []

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found = await super().aget_tuple(config)
        if config["configurable"].get("checkpoint_ns") == NAMESPACE:
            # Whoever waits goes on in a later turn of the loop; the reader acts in this one.
            while self._waiting:
                self._waiting.pop().set()
        return found

    async def is_read(self) -> None:
        """Waits for the next read of the ledger."""
        read = asyncio.Event()
        self._waiting.append(read)
        await read.wait()

    def posted(self, config: RunnableConfig, request: dict[str, Any]) -> Callable[[], Awaitable[None]]:
        """A step of a script: posts a request, and waits until the run knows of it."""

        async def post() -> None:
            await ledger_of(self, config).aappend(request)
            await self.is_read()

        return post
