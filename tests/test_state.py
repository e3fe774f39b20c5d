from __future__ import annotations

from langgraph.graph import END, START, StateGraph

from midstream import MidstreamState


def test_the_schema_of_a_graph_can_be_shown_on_every_python() -> None:
    """The server asks for it; before Python 3.12 pydantic refuses what `typing.TypedDict` makes."""
    builder = StateGraph(MidstreamState)
    builder.add_node("nothing", lambda state: {})
    builder.add_edge(START, "nothing")
    builder.add_edge("nothing", END)

    schema = builder.compile().get_output_jsonschema()

    assert set(schema["properties"]) == {"messages", "preemption"}
