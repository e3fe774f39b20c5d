"""The default agent: a model and its tools, that can be steered and halted while it streams.

The environment variable `MIDSTREAM_MODEL` chooses the model; see `chat_models/choice.py`. `MIDSTREAM_STATE`
is `plain` (the default) or `delta`: with it, the messages are a `DeltaChannel`.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import tools_condition

from chat_models import calls_tools, chosen_model
from midstream import (
    DeltaMidstreamState,
    MidstreamState,
    ModelNode,
    Preemption,
    PreemptionTransformer,
    ToolNode,
)

STATES = {"plain": MidstreamState, "delta": DeltaMidstreamState}


@tool
def current_time() -> str:
    """Tell the date and the time of day, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


tools = [current_time] if calls_tools() else []

state = os.environ.get("MIDSTREAM_STATE", "").strip() or "plain"
if state not in STATES:
    raise ValueError(f"MIDSTREAM_STATE is {state!r}, but must be one of {', '.join(STATES)}")

builder = StateGraph(STATES[state])
builder.add_node(
    "model",
    ModelNode(
        chosen_model(),
        tools=tools,
        prompt="You are a helpful assistant.",
        preemption=Preemption(max_seals=8),
    ),
)
builder.add_node("tools", ToolNode(tools))
builder.add_edge(START, "model")
builder.add_conditional_edges("model", tools_condition)
builder.add_edge("tools", "model")

# The transformer shows the events of preemption to clients of the newer protocol (`client.threads.stream`).
graph = builder.compile(name="agent", transformers=[PreemptionTransformer])
