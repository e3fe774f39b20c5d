"""The default agent: a model and its tools, that can be steered and halted while it streams.

The environment variable `MIDSTREAM_MODEL` chooses the model; see `chat_models/choice.py`.
"""

from __future__ import annotations

from datetime import UTC, datetime

from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import tools_condition

from chat_models import calls_tools, chosen_model
from midstream import MidstreamState, ModelNode, Preemption, PreemptionTransformer, ToolNode


@tool
def current_time() -> str:
    """Tell the date and the time of day, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


tools = [current_time] if calls_tools() else []

builder = StateGraph(MidstreamState)
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
