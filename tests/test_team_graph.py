"""The deployable team: one of two parallel agents is steered, and a halt stops all that come after."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver

from midstream import Ledger


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MIDSTREAM_MODEL", "scripted")
    monkeypatch.setenv("MIDSTREAM_SCRIPTED_WORDS", "30")
    monkeypatch.setenv("MIDSTREAM_SCRIPTED_INTERVAL_MS", "5")
    import runpy
    from pathlib import Path

    return runpy.run_path(str(Path(__file__).parent.parent / "graphs" / "team.py"))["builder"]


async def told(builder: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Runs the team, and posts the request when both of its first agents are speaking."""
    saver, thread_id = InMemorySaver(), str(uuid.uuid4())
    graph = builder.compile(checkpointer=saver)
    config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
    speaking: set[str] = set()
    is_posted = False
    async with asyncio.timeout(30):
        async for _, (_, metadata) in graph.astream(
            {"messages": [("user", "Shall we?")]}, config, stream_mode="messages", subgraphs=True
        ):
            speaking.add(metadata["langgraph_node"])
            if not is_posted and len(speaking) == 2:
                is_posted = True
                await Ledger(saver, thread_id).aappend(request)
    return dict((await graph.aget_state(config)).values)


async def test_a_steer_that_names_an_agent_is_honoured_by_that_one(team: Any) -> None:
    state = await told(team, {"kind": "steer", "messages": "Be brief.", "node": "sceptic"})

    sealed = [m for m in state["messages"] if m.response_metadata.get("preemption", {}).get("sealed")]
    assert [message.response_metadata["preemption"]["node"] for message in sealed] == ["sceptic"]
    assert [message.text for message in state["messages"]].count("Be brief.") == 1
    assert state["preemption"]["stats"]["seals"] == 1
    # Two first answers, the one that went on after the steer, and the conclusion.
    assert sum(isinstance(message, AIMessage) for message in state["messages"]) == 4


async def test_a_halt_keeps_what_was_said_and_nobody_concludes(team: Any) -> None:
    state = await told(team, {"kind": "halt", "reason": "Enough."})

    assert state["preemption"]["halt"]["reason"] == "Enough."
    assert state["preemption"]["halt"]["node"] in ("optimist", "sceptic")
    assert sum(isinstance(message, AIMessage) for message in state["messages"]) == 2
