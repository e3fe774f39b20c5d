"""The channel `preemption`: what becomes of two writes, whoever writes them and in whatever order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import InvalidUpdateError
from langgraph.graph import END, START, StateGraph

from fakes import SILENCE, FakeChatModel
from midstream import MidstreamState, ModelNode
from midstream.state import MAX_HANDLED, NOTHING, Boundary, Halt, Handled, PreemptionState, Turn, merge
from support.steering import ASKED, is_sealed, ledger_of, said, steer, thread

NAMES = st.sampled_from("abcdef")
IDS = st.lists(NAMES, unique=True, max_size=3)
PHASES = st.sampled_from(["open", "going", "over"])


def handled(name: str, at: float) -> Handled:
    return Handled(outcome="sealed", run_id="r", node="n", message_ids=[name], accepted_at=at)


@st.composite
def writes(draw: st.DrawFn, writer: str, key: str = "h1", run: str = "r") -> PreemptionState:
    """What a model node of its own writes in a turn: its own seals, requests and boundary."""
    turn = Turn(
        key=key,
        runs=[run],
        seals=[f"{writer}-{each}" for each in draw(IDS)],
        restarts=[f"{writer}-{each}" for each in draw(IDS)],
        empty_boundaries=[f"{writer}-{each}" for each in draw(IDS)],
    )
    update: PreemptionState = {"turn": turn}
    if names := draw(IDS):
        update["handled"] = {f"{writer}-{each}": handled(each, ord(each)) for each in names}
    if draw(st.booleans()):
        n = draw(st.integers(1, 5))
        update["boundaries"] = {writer: Boundary(n=n, phase="open", kind="seal", message_id=f"{writer}-{n}")}
    return update


def content(value: PreemptionState) -> Any:
    """A value without the order in which its sets were filled."""
    turn = value.get("turn")
    return {
        **value,
        "turn": turn
        and {name: sorted(each) if isinstance(each, list) else each for name, each in turn.items()},
    }


@given(st.data())
def test_the_same_write_twice_is_the_write_once(data: st.DataObject) -> None:
    before = merge({}, data.draw(writes("a", key=data.draw(NAMES), run=data.draw(NAMES))))
    write = data.draw(writes("b", key=data.draw(NAMES), run=data.draw(NAMES)))

    once = merge(before, write)

    assert merge(once, write) == once


@given(writes("a"), writes("b"), writes("c"))
def test_the_order_of_two_writers_of_one_turn_does_not_matter(
    before: PreemptionState, one: PreemptionState, other: PreemptionState
) -> None:
    start = merge({}, before)

    assert content(merge(merge(start, one), other)) == content(merge(merge(start, other), one))


@given(writes("a", key="h0", run="q"), writes("b"), writes("c"))
def test_the_order_of_two_writers_who_begin_a_turn_does_not_matter(
    before: PreemptionState, one: PreemptionState, other: PreemptionState
) -> None:
    start = merge({}, before)

    merged = merge(merge(start, one), other)

    assert content(merged) == content(merge(merge(start, other), one))
    assert merged["before"]["seals"] == len(before["turn"]["seals"])
    assert merged["stats"]["seals"] == sum(len(each["turn"]["seals"]) for each in (before, one, other))


@given(writes("a", key="h0", run="q"), writes("b"), writes("c"))
def test_a_subgraph_that_hands_its_whole_value_back_changes_nothing(
    older: PreemptionState, before: PreemptionState, inside: PreemptionState
) -> None:
    parent = merge(merge({}, older), before)

    child = merge(merge({}, parent), inside)

    assert content(merge(parent, child)) == content(child)
    assert content(merge(child, parent)) == content(child)
    assert content(merge(parent, parent)) == content(parent)


@given(writes("a", key="h0", run="q"), writes("b"), writes("c"))
def test_a_subgraph_that_hands_back_what_it_was_given_before_the_turn_began_changes_nothing(
    older: PreemptionState, one: PreemptionState, other: PreemptionState
) -> None:
    given = merge(merge({}, older), {"halt": Halt(run_id="q", reason="Enough.", node="a")})
    halt = Halt(run_id="r", reason="No more.", node="b")

    begun = merge(merge(given, one), {"halt": halt})

    assert merge(begun, given) == begun
    assert content(merge(merge(begun, given), other)) == content(merge(merge(begun, other), given))


@given(writes("a"))
def test_a_value_survives_being_saved(write: PreemptionState) -> None:
    serde = JsonPlusSerializer()
    value = merge({}, write)

    assert serde.loads_typed(serde.dumps_typed(value)) == value
    assert merge(serde.loads_typed(serde.dumps_typed(value)), write) == value


def test_an_empty_write_changes_nothing() -> None:
    value = merge({}, {"turn": Turn(key="h", runs=["r"], seals=["m"], restarts=[], empty_boundaries=[])})

    assert merge(value, {}) == value
    assert merge(None, None) == {}
    assert merge({}, value) == value


def test_of_two_agents_that_halt_one_run_the_first_word_stays() -> None:
    first = Halt(run_id="r", reason="Enough.", node="one")
    second = Halt(run_id="r", reason="No more.", node="two")

    assert merge({"halt": first}, {"halt": second})["halt"] == first
    assert (
        merge({"halt": first}, {"halt": Halt(run_id="s", reason="New.", node="two")})["halt"]["run_id"] == "s"
    )


def test_handled_requests_are_remembered_up_to_a_bound_newest_last() -> None:
    value: PreemptionState = {}
    for n in range(MAX_HANDLED + 10):
        value = merge(value, {"handled": {f"{n:04}": handled("m", float(n))}})

    assert len(value["handled"]) == MAX_HANDLED
    assert next(iter(value["handled"])) == "0010"


def test_a_new_turn_folds_the_counts_of_the_old_one() -> None:
    value: PreemptionState = {}
    for n in range(3):
        turn = Turn(key=f"h{n}", runs=[f"r{n}"], seals=[f"m{n}"], restarts=[], empty_boundaries=[f"m{n}"])
        value = merge(value, {"turn": turn})

    assert value["turn"]["seals"] == ["m2"]
    assert value["before"] == {"seals": 2, "restarts": 0, "empty_boundaries": 2}
    assert value["stats"] == {"seals": 3, "restarts": 0, "empty_boundaries": 3}
    assert NOTHING == {"seals": 0, "restarts": 0, "empty_boundaries": 0}


def test_the_schema_of_a_graph_can_be_shown_on_every_python() -> None:
    """The server asks for it; before Python 3.12 pydantic refuses what `typing.TypedDict` makes."""
    builder = StateGraph(MidstreamState)
    builder.add_node("nothing", lambda state: {})
    builder.add_edge(START, "nothing")
    builder.add_edge("nothing", END)

    schema = builder.compile().get_output_jsonschema()

    assert set(schema["properties"]) == {"messages", "preemption"}


@pytest.mark.parametrize("own_saver", [None, True], ids=["inherits", "keeps its own"])
async def test_an_agent_in_a_subgraph_is_steered_and_counted_once(own_saver: bool | None) -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.aappend(steer("Be brief.")), SILENCE], ["A cat."]])
    inner = StateGraph(MidstreamState)
    inner.add_node("model", ModelNode(model))
    inner.add_edge(START, "model")
    inner.add_edge("model", END)
    outer = StateGraph(MidstreamState)
    outer.add_node("agent", inner.compile(checkpointer=own_saver))
    outer.add_edge(START, "agent")
    outer.add_edge("agent", END)
    graph = outer.compile(checkpointer=saver)

    state = await graph.ainvoke(ASKED, config)

    assert said(state["messages"])[1:] == [("ai", "Once"), ("human", "Be brief."), ("ai", "A cat.")]
    assert is_sealed(state["messages"][1])
    assert state["preemption"]["stats"] == {"seals": 1, "restarts": 0, "empty_boundaries": 0}
    assert len(state["preemption"]["handled"]) == 1
    assert await ledger.arequests() == []


@pytest.mark.parametrize("written", [{"kind": "steer", "messages": "x"}, "stop", ["stop"]], ids=repr)
def test_a_request_that_comes_by_the_wrong_door_is_told_the_right_one(written: Any) -> None:
    """Dropping it without a word would lose it: the server was set up without `http.app`."""
    builder: Any = StateGraph(MidstreamState)
    builder.add_node("node", lambda state: {})
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t"}}
    graph.invoke({"messages": []}, config)

    with pytest.raises(InvalidUpdateError, match=r"midstream\.server:app"):
        graph.update_state(config, {"preemption": written})
    with pytest.raises(InvalidUpdateError, match=r"midstream\.Ledger"):
        graph.invoke({"messages": [], "preemption": written}, config)
