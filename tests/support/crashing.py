"""A process that runs one step of a thread, to be killed in the middle of it.

Its tool `second` waits for ever if told so; by then `first` is done.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

from langchain_core.tools import tool
from langgraph.types import Command, interrupt

from midstream import ToolNode
from support.tool_batches import Effects, any_saver, graph_of, message

CALLS = message(("second", {}), ("ask", {}), ("first", {}), ("approved", {}))


def node_of(folder: Path, *, wait: bool) -> ToolNode:
    effects = Effects(folder / "effects")

    @tool
    def ask() -> str:
        """Ask a person."""
        answer = interrupt({"ask": "a"})
        effects.add("ask")
        return str(answer)

    @tool
    def first() -> str:
        """Act at once."""
        effects.add("first")
        return "first"

    @tool
    def second() -> str:
        """Act, or wait to be killed before it does."""
        if wait:
            threading.Event().wait()
        effects.add("second")
        return "second"

    @tool
    def approved() -> str:
        """Act once it was approved."""
        effects.add("approved")
        return "approved"

    rules: Any = {"interrupt_on": {"approved": True}, "interrupt_mode": "per_call"}
    return ToolNode([ask, first, second, approved], interrupting_tools=["ask"], **rules)


async def step(order: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Takes one step; returns what is asked, by id, and the results."""
    folder = Path(order["folder"])
    asynchronous: bool = order["asynchronous"]
    async with any_saver(order["saver"], folder, lambda: order["uri"], asynchronous=asynchronous) as saver:
        graph = graph_of(node_of(folder, wait=order["wait"]), saver)
        config: Any = {"configurable": {"thread_id": order["thread"]}}
        answers = order["answers"]
        given: Any = CALLS if order["first"] else Command(resume=answers) if answers else None
        if asynchronous:
            state = await graph.ainvoke(given, config, durability=order["durability"])
        else:
            state = graph.invoke(given, config, durability=order["durability"])

    pauses = {pause.id: pause.value for pause in state.get("__interrupt__", ())}
    return pauses, [(one.tool_call_id, one.content) for one in state["messages"][1:]]


if __name__ == "__main__":
    asyncio.run(step(json.loads(sys.argv[1])))
