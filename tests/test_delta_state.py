"""`DeltaMidstreamState` against `MidstreamState`: the same writes make the same messages."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
)
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Overwrite

from midstream import DeltaMidstreamState, MidstreamState
from support.examples import examples

Make = Callable[[], Any]
"""A write, made anew for each graph: a channel may give a message its id in place."""

Step = tuple[Make, ...]
"""The writes of parallel nodes in one step."""

Durability = Literal["exit", "async", "sync"]

NAMES = ("a", "b", "c", "d")
IDS = st.sampled_from(NAMES)
WORDS = st.sampled_from(["one", "two", ""])
MESSAGES: st.SearchStrategy[Make] = st.one_of(
    st.builds(lambda name, words: lambda: HumanMessage(words, id=name), IDS, WORDS),
    st.builds(lambda name, words: lambda: AIMessage(words, id=name), IDS, WORDS),
    st.builds(lambda name, words: lambda: AIMessageChunk(content=words, id=name), IDS, WORDS),
    st.builds(lambda words: lambda: HumanMessage(words), WORDS),
    st.builds(lambda words: lambda: words, WORDS),
    st.builds(lambda words: lambda: ("user", words), WORDS),
    st.builds(lambda words: lambda: {"role": "assistant", "content": words}, WORDS),
    st.builds(lambda name: lambda: RemoveMessage(id=name), IDS),
    st.builds(lambda: lambda: RemoveMessage(id=REMOVE_ALL_MESSAGES)),
)
WRITES: st.SearchStrategy[Make] = st.one_of(
    MESSAGES,
    st.lists(MESSAGES, max_size=4).map(lambda makes: lambda: [make() for make in makes]),
)
STEPS: st.SearchStrategy[Step] = st.lists(WRITES, min_size=1, max_size=2).map(tuple)
TURNS = st.lists(st.tuples(WRITES, st.lists(STEPS, max_size=3)), min_size=1, max_size=3)


Script = dict[str, Sequence[Step]]
"""What the nodes write, by thread."""


def writing_graph(state: type, script: Script, saver: InMemorySaver) -> CompiledStateGraph[Any]:
    """Makes a graph of up to three steps of two parallel nodes."""
    builder: StateGraph[Any] = StateGraph(cast("Any", state))
    before: str | list[str] = START
    for n in range(3):
        names = []
        for m in range(2):

            def write(_: Any, config: RunnableConfig, n: int = n, m: int = m) -> dict[str, Any]:
                steps = script[config["configurable"]["thread_id"]]
                return {"messages": steps[n][m]()} if n < len(steps) and m < len(steps[n]) else {}

            builder.add_node(f"n{n}-{m}", cast("Any", write))
            builder.add_edge(before, f"n{n}-{m}")
            names.append(f"n{n}-{m}")
        before = names
    builder.add_edge(before, END)
    return builder.compile(checkpointer=saver)


def contents(messages: Sequence[BaseMessage], *, given: bool = True) -> list[tuple[Any, ...]]:
    """Returns what can be compared: without the ids that nobody gave, unless `given` is false."""
    return [(type(each), each.content, each.id if not given or each.id in NAMES else "") for each in messages]


class Threads:
    """The graph of one state, and the same made afresh to read what it left."""

    def __init__(self, state: type) -> None:
        saver = InMemorySaver()
        self.script: Script = {}
        self.graph = writing_graph(state, self.script, saver)
        self.reader = writing_graph(state, {}, saver)

    def run(self, turns: Sequence[tuple[Make, Sequence[Step]]], durability: Durability) -> list[Any]:
        """Runs turns on a new thread; returns what each left, which is read again, or why one failed."""
        thread_id = str(uuid.uuid4())
        config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
        seen: list[Any] = []
        for made, steps in turns:
            self.script[thread_id] = steps
            try:
                live = self.graph.invoke({"messages": made()}, config, durability=durability)["messages"]
            except ValueError as error:
                return [*seen, str(error)]
            saved = self.reader.get_state(config).values.get("messages", [])
            assert contents(saved, given=False) == contents(live, given=False)
            seen.append(contents(live))
        return seen


plain, delta = Threads(MidstreamState), Threads(DeltaMidstreamState)


@settings(deadline=None, max_examples=examples(120))
@given(turns=TURNS, durability=st.sampled_from(["exit", "async", "sync"]))
def test_the_same_writes_make_the_same_messages_in_both_states(
    turns: list[tuple[Make, list[Step]]], durability: Durability
) -> None:
    """Ids, replacement, removal, removal of all, raw input; live and read again, over several turns."""
    assert delta.run(turns, durability) == plain.run(turns, durability)


def test_an_overwrite_sets_the_messages_and_later_writes_come_after_it() -> None:
    steps: list[Step] = [
        (lambda: Overwrite([HumanMessage("fresh", id="a")]), lambda: AIMessage("beside it", id="b")),
        (lambda: AIMessage("after", id="c"),),
    ]
    turns: list[tuple[Make, Sequence[Step]]] = [(lambda: "old", steps)]
    for durability in cast("list[Durability]", ["exit", "async", "sync"]):
        left = delta.run(turns, durability)
        assert left == plain.run(turns, durability)
        assert left == [[(HumanMessage, "fresh", "a"), (AIMessage, "after", "c")]]


def test_a_message_that_is_given_to_update_state_without_an_id_keeps_one_id_at_every_read() -> None:
    config: RunnableConfig = {"configurable": {"thread_id": str(uuid.uuid4())}}
    delta.graph.update_state(config, {"messages": ("user", "by hand")}, as_node="n2-0")
    delta.graph.update_state(config, {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), "again"]})
    ids = {delta.reader.get_state(config).values["messages"][0].id for _ in range(3)}
    assert len(ids) == 1


def test_a_thread_is_read_right_across_the_checkpoints_that_keep_the_whole_list() -> None:
    """At the 100th update the host keeps the list itself; reading starts from there."""

    def say(n: int) -> Step:
        return (lambda: AIMessage(str(n), id=f"ai {n}"),)

    config: RunnableConfig = {"configurable": {"thread_id": "long"}}
    for n in range(45):
        delta.script["long"] = [say(3 * n), say(3 * n + 1), say(3 * n + 2)]
        asked = HumanMessage(str(n), id=f"human {n}")
        live = delta.graph.invoke({"messages": asked}, config, durability="exit")
    assert delta.reader.get_state(config).values == live
    assert len(live["messages"]) == 45 * 4


def test_a_thread_of_the_plain_state_goes_on_with_the_delta_state() -> None:
    saver = InMemorySaver()
    script: Script = {"t": [(lambda: AIMessage("one", id="b"),)]}
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    writing_graph(MidstreamState, script, saver).invoke({"messages": HumanMessage("hello", id="a")}, config)

    script["t"] = [(lambda: AIMessage("two", id="d"),)]
    graph = writing_graph(DeltaMidstreamState, script, saver)
    live = graph.invoke({"messages": HumanMessage("more", id="c")}, config, durability="exit")
    saved = writing_graph(DeltaMidstreamState, {}, saver).get_state(config).values
    assert [message.id for message in live["messages"]] == ["a", "b", "c", "d"]
    assert saved == live
