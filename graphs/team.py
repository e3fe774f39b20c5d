"""Several agents in one run: two speak at the same time, a third draws the conclusion.

Each speaker is a subgraph, so that a sealed answer goes on inside it and the editor starts when both are
done. A steer is honoured by one of them, or by the one that it names (`node="sceptic"`); a halt ends the
answer that it reaches, and every agent that comes after declines.
"""

from __future__ import annotations

from typing import Any

from langgraph.graph import START, StateGraph

from chat_models import chosen_model
from midstream import MidstreamState, ModelNode, PreemptionTransformer

model = chosen_model()


def agent(name: str, prompt: str) -> Any:
    """Returns an agent as a subgraph with one model node, called like the agent."""
    builder = StateGraph(MidstreamState)
    builder.add_node(name, ModelNode(model, prompt=prompt))
    builder.add_edge(START, name)
    return builder.compile(name=name)


builder = StateGraph(MidstreamState)
builder.add_node("for", agent("optimist", "Say in a few sentences what speaks for it."))
builder.add_node("against", agent("sceptic", "Say in a few sentences what speaks against it."))
builder.add_node("conclusion", agent("editor", "Weigh what was said, and conclude in one sentence."))
builder.add_edge(START, "for")
builder.add_edge(START, "against")
builder.add_edge(["for", "against"], "conclusion")

graph = builder.compile(name="team", transformers=[PreemptionTransformer])
