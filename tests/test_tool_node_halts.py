"""A halt that comes while a batch waits for its answers stops what the answers would have let go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import tools_condition

from chat_models.scripted import ScriptedChatModel
from midstream import Ledger, MidstreamState, ModelNode, ToolNode
from support.tool_batches import BROWSER, Conversation, Effects, tools_of

colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])

CALLS = [
    {"name": "send", "args": {"to": "ann"}},
    {"name": "ask", "args": {"topic": "a"}},
    {"name": "delete", "args": {"path": "x"}},
    {"name": "browse", "args": {"url": "u"}},
]


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path / "effects")


def agent(effects: Effects, saver: Any) -> Any:
    tools = tools_of(effects)
    node = ToolNode(
        tools,
        interrupting_tools=["ask"],
        interrupt_on={"delete": True},
        interrupt_mode="per_call",
        host_tools=[BROWSER],
    )
    builder = StateGraph(MidstreamState).add_node("model", ModelNode(ScriptedChatModel(), tools=tools))
    builder.add_node("tools", node).add_edge(START, "model").add_edge("tools", "model")
    return builder.add_conditional_edges("model", tools_condition).compile(checkpointer=saver)


async def waiting(effects: Effects, saver: Any, *, asynchronous: bool) -> tuple[Conversation, str, str]:
    """An agent that waits for an approval and an answer, and the ids of these."""
    talk = Conversation(agent(effects, saver), asynchronous)
    script = {"turns": [{"tool_calls": CALLS}, {"say": "Done."}]}
    await talk.say({"messages": [("user", json.dumps(script))]})
    found = {pause.value.get("type", "ask"): pause.id for pause in talk.pauses}
    return talk, found["tool_approval"], found["ask"]


@colours
async def test_a_halt_while_the_batch_waits_lets_nothing_act(asynchronous: bool, effects: Effects) -> None:
    saver = InMemorySaver()
    talk, approval, ask = await waiting(effects, saver, asynchronous=asynchronous)
    await talk.answer({ask: "yes"})
    request = Ledger(saver, talk.thread).append({"kind": "halt", "reason": "enough"})

    await talk.answer({approval: {"type": "approve"}})

    assert talk.pauses == []
    assert effects.counts() == {"ask a": 1}
    assert [(one.status, one.content) for one in talk.results] == [
        ("error", "not run: halted (enough)"),
        ("success", "a: yes"),
        ("error", "not run: halted (enough)"),
        ("error", "not run: halted (enough)"),
    ]
    assert talk.state["preemption"]["halt"]["reason"] == "enough", "a model node has settled it"
    assert talk.state["preemption"]["handled"][request]["outcome"] == "tool_boundary"


@colours
@pytest.mark.parametrize(
    "request_",
    [
        {"kind": "steer", "messages": [{"role": "user", "content": "Quick."}]},
        {"kind": "halt", "reason": "enough", "node": "another"},
        {"kind": "halt", "reason": "enough", "run_id": "0190a000-0000-7000-8000-000000000001"},
    ],
    ids=["steer", "another node's halt", "another run's halt"],
)
async def test_what_is_no_halt_of_this_run_stops_nothing(
    request_: Any, asynchronous: bool, effects: Effects
) -> None:
    saver = InMemorySaver()
    talk, approval, ask = await waiting(effects, saver, asynchronous=asynchronous)
    Ledger(saver, talk.thread).append(request_)

    await talk.answer({approval: {"type": "approve"}, ask: "yes"})
    assert effects.counts() == {"ask a": 1, "send ann": 1, "delete x": 1}
    assert [value["type"] for value in talk.asked] == ["tool_execution"]


@colours
async def test_a_halt_after_the_tools_have_acted_takes_no_result_away(
    asynchronous: bool, effects: Effects
) -> None:
    saver = InMemorySaver()
    talk, approval, ask = await waiting(effects, saver, asynchronous=asynchronous)
    await talk.answer({approval: {"type": "approve"}, ask: "yes"})
    Ledger(saver, talk.thread).append({"kind": "halt", "reason": "enough"})

    await talk.answer({talk.pauses[0].id: {"content": "opened"}})

    assert effects.counts() == {"ask a": 1, "send ann": 1, "delete x": 1}
    assert [one.status for one in talk.results] == ["success"] * 4
    assert talk.state["preemption"]["halt"]["reason"] == "enough"
