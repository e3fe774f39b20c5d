"""Leaving a model node by a conditional edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langgraph.config import get_config
from langgraph.graph import END
from langgraph.prebuilt import tools_condition
from langgraph.runtime import get_runtime

from midstream.run import halt_in
from midstream.state import preemption_of


def after_turn(
    then: str = END, *, tools: str | None = None, messages_key: str = "messages"
) -> Callable[[Any], str]:
    """Returns a path function that leaves a model node for `then` only when the node's turn is over.

    A sealed model node goes back to itself; an edge that went on all the same would start the next node
    beside it. Use it for edges to other nodes: `builder.add_conditional_edges("model", after_turn("next"))`.

    Args:
        then: Where the graph goes when the turn is over, and was not halted.
        tools: The node that runs tool calls; None where the model has no tools.
        messages_key: The state's channel of messages.
    """

    def path(state: Any) -> str:
        node = get_config()["metadata"]["langgraph_node"]
        boundary = preemption_of(state).get("boundaries", {}).get(node)
        if boundary is not None and boundary["phase"] != "over":
            return END  # the node's own `Command` goes on
        if tools is not None and tools_condition(state, messages_key) == "tools":
            return tools
        return END if halt_in(state, get_runtime()) is not None else then

    return path
