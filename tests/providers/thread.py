"""A thread with one agent, whose model may be another one in every run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from midstream import Ledger, MidstreamState, ModelNode, Preemption

GIVEN_UP_AFTER_SECONDS = 20


class Thread:
    """One thread on one saver; what the newest run streamed is in `events` and `shown`."""

    def __init__(self, saver: BaseCheckpointSaver[Any], thread_id: str) -> None:
        self.saver = saver
        self.config: Any = {"configurable": {"thread_id": thread_id}}
        self.ledger = Ledger(saver, thread_id)
        self.events: list[dict[str, Any]] = []
        self.shown: list[str] = []
        """What a person saw of each answer."""

    def steer(self, text: str) -> Any:
        """Returns a step of a script that posts a message."""
        return lambda: self.ledger.append({"kind": "steer", "messages": text})

    def halt(self, reason: str = "Enough.") -> Any:
        return lambda: self.ledger.append({"kind": "halt", "reason": reason})

    def graph(self, model: Any, tools: Sequence[Any] = (), **options: Any) -> Any:
        builder = StateGraph(MidstreamState)
        node = ModelNode(model, tools=tools, prompt="Be kind.", preemption=Preemption(**options))
        builder.add_node("model", node)
        builder.add_edge(START, "model")
        if tools:
            builder.add_node("tools", ToolNode(tools))
            builder.add_conditional_edges("model", tools_condition)
            builder.add_edge("tools", "model")
        return builder.compile(checkpointer=self.saver)

    async def run(self, model: Any, *said: str, tools: Sequence[Any] = (), **options: Any) -> list[Any]:
        """Runs the agent, with a human input or without one, and returns the thread's messages."""
        graph = self.graph(model, tools, **options)
        self.events, self.shown = [], []
        begins = True
        async with asyncio.timeout(GIVEN_UP_AFTER_SECONDS):
            async for mode, chunk in graph.astream(
                {"messages": [("user", text) for text in said]},
                self.config,
                stream_mode=["messages", "custom", "updates"],
            ):
                if mode == "custom":
                    self.events.append(chunk)
                elif mode == "updates":
                    begins = True
                elif isinstance(chunk[0], AIMessage):
                    if begins:
                        self.shown.append("")
                        begins = False
                    self.shown[-1] += chunk[0].text
        return self.messages()

    def messages(self) -> list[Any]:
        """Returns the thread's messages as they are in storage."""
        found = self.saver.get(self.config)
        return list(found["channel_values"].get("messages", ())) if found else []

    def happened(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.events if each["event"] == event]


def roles(messages: Sequence[BaseMessage]) -> list[str]:
    return [message.type for message in messages]
