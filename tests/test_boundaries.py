"""Where a request lands: at a run's entry, after tools, at an answer's end, or on the ledger until then."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from fakes import SILENCE, FakeChatModel, calls
from midstream import MidstreamState, ModelNode, NotPendingError, Preemption, after_turn
from support.steering import (
    ASKED,
    OpenLedgerSaver,
    agent,
    halt,
    is_sealed,
    ledger_of,
    look_up,
    said,
    steer,
    thread,
)


def new_id() -> str:
    return str(uuid.uuid4())


async def events_of(graph: Any, given: Any, config: Any, **options: Any) -> list[dict[str, Any]]:
    return [event async for event in graph.astream(given, config, stream_mode="custom", **options)]


def words(events: list[dict[str, Any]]) -> list[str]:
    return [each["event"] for each in events]


def outcomes(state: Any) -> dict[str, str]:
    return {name: record["outcome"] for name, record in state["preemption"]["handled"].items()}


# Entry


async def test_a_request_that_waited_for_a_run_is_applied_at_its_entry() -> None:
    saver, config, request = InMemorySaver(), thread(), new_id()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["A cat."]])
    await ledger.aappend(steer("Be brief.", id=request))

    state = await agent(model, saver=saver).ainvoke(ASKED, config)

    assert said(state["messages"]) == [
        ("human", "Tell me a story."),
        ("human", "Be brief."),
        ("ai", "A cat."),
    ]
    assert outcomes(state) == {request: "entry"}
    assert state["preemption"]["stats"]["seals"] == 0


async def test_a_halt_that_waited_for_a_run_ends_it_before_the_model_is_called() -> None:
    saver, config, request = InMemorySaver(), thread(), new_id()
    model = FakeChatModel()
    await ledger_of(saver, config).aappend(halt("Not now.", id=request))

    state = await agent(model, saver=saver).ainvoke(ASKED, config)

    assert said(state["messages"]) == [("human", "Tell me a story.")]
    assert model.calls == []
    assert state["preemption"]["halt"]["reason"] == "Not now."
    assert outcomes(state) == {request: "entry"}


async def test_a_halt_stops_one_run_and_not_the_next() -> None:
    saver, config = InMemorySaver(), thread()
    model = FakeChatModel(answers=[["Hello."]])
    ledger = ledger_of(saver, config)
    await ledger.aappend(halt("Not now."))
    await ledger.aappend(halt("Not now, I said."))
    graph = agent(model, saver=saver)
    await graph.ainvoke(ASKED, config)

    state = await graph.ainvoke({"messages": [HumanMessage("Hi.")]}, config)

    assert said(state["messages"])[-1] == ("ai", "Hello.")


# Tools


async def test_a_steer_waits_for_the_tools_and_follows_their_results() -> None:
    saver, config, request = OpenLedgerSaver(), thread(), new_id()
    model = FakeChatModel(
        answers=[
            [
                "Let me see.",
                *calls("look_up", '{"word": "cat"}')[:1],
                saver.posted(config, steer("Be brief.", id=request)),
                *calls("look_up", '{"word": "cat"}')[1:],
            ],
            ["A cat."],
        ]
    )
    graph = agent(model, saver=saver, tools=[look_up])

    events = await events_of(graph, ASKED, config)
    state = (await graph.aget_state(config)).values

    assert said(state["messages"])[1:] == [
        ("ai", "Let me see."),
        ("tool", "cat: a thing"),
        ("human", "Be brief."),
        ("ai", "A cat."),
    ]
    assert outcomes(state) == {request: "tool_boundary"}
    assert not is_sealed(state["messages"][1])
    assert [each.get("reason", each["event"]) for each in events] == ["tool_call", "injected"]


async def test_a_request_during_a_tool_is_applied_after_it() -> None:
    saver, config, request = InMemorySaver(), thread(), new_id()
    ledger = ledger_of(saver, config)

    @tool
    async def slow(word: str) -> str:
        """Takes its time."""
        await ledger.aappend(steer("Be brief.", id=request))
        return word

    model = FakeChatModel(answers=[calls("slow", '{"word": "cat"}'), ["A cat."]])

    state = await agent(model, saver=saver, tools=[slow]).ainvoke(ASKED, config)

    assert said(state["messages"])[1:] == [
        ("ai", ""),
        ("tool", "cat"),
        ("human", "Be brief."),
        ("ai", "A cat."),
    ]
    assert outcomes(state) == {request: "tool_boundary"}


async def test_a_halt_while_a_tool_call_streams_is_settled_with_the_turn_that_calls() -> None:
    """LangGraph's own tool node knows of no halt and acts; what matters here is that no answer follows."""
    saver, config, request = OpenLedgerSaver(), thread(), new_id()
    whole = calls("look_up", '{"word": "cat"}')
    model = FakeChatModel(answers=[[whole[0], saver.posted(config, halt("Stop.", id=request)), *whole[1:]]])
    graph = agent(model, saver=saver, tools=[look_up])

    state = await graph.ainvoke(ASKED, config)

    assert state["preemption"]["halt"]["reason"] == "Stop."
    assert len(model.calls) == 1
    assert outcomes(state) == {request: "tool_boundary"}
    assert [call["name"] for call in state["messages"][1].tool_calls] == ["look_up"]
    assert state["messages"][-1].type == "tool"


async def test_a_halt_during_a_tool_stops_before_the_next_answer() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)

    @tool
    async def slow(word: str) -> str:
        """Takes its time."""
        await ledger.aappend(halt("Stop."))
        return word

    model = FakeChatModel(answers=[calls("slow", '{"word": "cat"}')])

    state = await agent(model, saver=saver, tools=[slow]).ainvoke(ASKED, config)

    assert said(state["messages"])[1:] == [("ai", ""), ("tool", "cat")]
    assert state["preemption"]["halt"]["reason"] == "Stop."
    assert len(model.calls) == 1


# The turn's end


async def test_a_request_with_the_last_chunk_is_applied_at_the_end_and_the_run_goes_on() -> None:
    saver, config, request = InMemorySaver(), thread(), new_id()
    ledger = ledger_of(saver, config)

    def post() -> None:
        # By the sync door, so that no watch has a turn before the stream has ended.
        ledger.append(steer("Be brief.", id=request))

    model = FakeChatModel(answers=[["Once upon a time.", post], ["A cat."]])
    graph = agent(model, saver=saver)

    events = await events_of(graph, ASKED, config)
    state = (await graph.aget_state(config)).values

    assert said(state["messages"])[1:] == [
        ("ai", "Once upon a time."),
        ("human", "Be brief."),
        ("ai", "A cat."),
    ]
    assert not is_sealed(state["messages"][1])
    assert outcomes(state) == {request: "turn_end"}
    assert words(events) == ["injected"]


async def test_a_halt_with_the_last_chunk_is_told_all_the_same() -> None:
    saver, config, request = InMemorySaver(), thread(), new_id()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once upon a time.", lambda: ledger.append(halt("Stop.", id=request))]])
    graph = agent(model, saver=saver)

    events = await events_of(graph, ASKED, config)
    state = (await graph.aget_state(config)).values

    assert said(state["messages"])[1:] == [("ai", "Once upon a time.")]
    assert state["preemption"]["halt"]["reason"] == "Stop."
    assert outcomes(state) == {request: "turn_end"}
    assert words(events) == ["halted"]


# Order, and taking back


async def test_steers_are_applied_in_the_order_of_their_acceptance() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    # Ids that sort against the order of acceptance: savers give writes back by id.
    ids = sorted((new_id() for _ in range(5)), reverse=True)
    for n, name in enumerate(ids):
        await ledger.aappend(steer(f"Steer {n}.", id=name))
    model = FakeChatModel(answers=[["A cat."]])

    state = await agent(model, saver=saver).ainvoke(ASKED, config)

    assert [text for _, text in said(state["messages"])[1:-1]] == [f"Steer {n}." for n in range(5)]


async def test_a_steer_of_many_messages_keeps_their_order_in_one_update() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    request = {
        "kind": "steer",
        "messages": [{"role": "user", "content": "One."}, {"role": "user", "content": "Two."}],
    }
    model = FakeChatModel(answers=[["Once", lambda: ledger.aappend(request), SILENCE], ["A cat."]])

    state = await agent(model, saver=saver).ainvoke(ASKED, config)

    assert [text for _, text in said(state["messages"])[1:]] == ["Once", "One.", "Two.", "A cat."]
    assert state["preemption"]["stats"]["seals"] == 1


async def test_a_request_that_was_taken_back_changes_nothing() -> None:
    saver, config, request = InMemorySaver(), thread(), new_id()
    ledger = ledger_of(saver, config)

    async def change_of_mind() -> None:
        await ledger.aappend(steer("Be brief.", id=request))
        await ledger.aappend({"kind": "withdraw", "id": request})

    model = FakeChatModel(answers=[[change_of_mind, "Once", " upon a time."]])

    state = await agent(model, saver=saver).ainvoke(ASKED, config)

    assert said(state["messages"])[1:] == [("ai", "Once upon a time.")]
    assert state["preemption"].get("handled", {}) == {}


async def test_a_request_that_was_applied_cannot_be_taken_back() -> None:
    saver, config, request = InMemorySaver(), thread(), new_id()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(
        answers=[["Once", lambda: ledger.aappend(steer("Be brief.", id=request)), SILENCE], ["A cat."]]
    )
    await agent(model, saver=saver).ainvoke(ASKED, config)

    with pytest.raises(NotPendingError, match="it has ended as 'sealed'"):
        await ledger.aappend({"kind": "withdraw", "id": request})


async def test_a_request_that_is_posted_again_after_it_was_applied_is_not_applied_again() -> None:
    saver, config, request = InMemorySaver(), thread(), new_id()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(
        answers=[
            ["Once", lambda: ledger.aappend(steer("Be brief.", id=request)), SILENCE],
            [lambda: ledger.aappend(steer("Be brief.", id=request)), "A", " cat."],
        ]
    )
    graph = agent(model, saver=saver)
    await graph.ainvoke(ASKED, config)
    await ledger.aappend(steer("Be brief.", id=request))

    state = await graph.ainvoke({"messages": [HumanMessage("And now?")]}, config)

    assert [text for _, text in said(state["messages"])] == [
        "Tell me a story.",
        "Once",
        "Be brief.",
        "A cat.",
        "And now?",
        "Done.",
    ]


async def test_steers_before_a_halt_are_kept_in_the_thread_and_those_after_it_wait() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)

    async def post() -> None:
        await ledger.aappend(steer("Before."))
        await ledger.aappend(halt("Stop."))
        await ledger.aappend(steer("After."))

    model = FakeChatModel(answers=[["Once", post, SILENCE], ["Hello."]])
    graph = agent(model, saver=saver)

    state = await graph.ainvoke(ASKED, config)

    assert said(state["messages"])[1:] == [("ai", "Once"), ("human", "Before.")]
    assert state["preemption"]["halt"]["reason"] == "Stop."
    assert [entry.messages[0]["content"] for entry in await ledger.arequests()] == ["After."]

    state = await graph.ainvoke({"messages": [HumanMessage("Hi.")]}, config)

    assert [text for _, text in said(state["messages"])[3:]] == ["Hi.", "After.", "Hello."]


# Whom a request is for


async def test_a_request_for_another_node_is_left_to_it() -> None:
    saver, config, request = InMemorySaver(), thread(), new_id()
    ledger = ledger_of(saver, config)
    first = FakeChatModel(
        answers=[["One.", lambda: ledger.aappend(steer("To two.", id=request, node="two")), " Done."]]
    )
    second = FakeChatModel(answers=[["Two."]])
    builder = StateGraph(MidstreamState)
    builder.add_node("one", ModelNode(first))
    builder.add_node("two", ModelNode(second))
    builder.add_edge(START, "one")
    builder.add_conditional_edges("one", after_turn("two"))
    builder.add_conditional_edges("two", after_turn())

    state = await builder.compile(checkpointer=saver).ainvoke(ASKED, config)

    assert said(state["messages"])[1:] == [("ai", "One. Done."), ("human", "To two."), ("ai", "Two.")]
    assert state["preemption"]["handled"][request]["node"] == "two"


async def test_two_agents_in_a_row_are_each_left_when_their_turn_is_over() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    first = FakeChatModel(
        answers=[["One", lambda: ledger.aappend(steer("Louder.")), SILENCE], ["ONE."], ["never"]]
    )
    second = FakeChatModel(
        answers=[["Two", lambda: ledger.aappend(steer("Softer.")), SILENCE], ["two."], ["never"]]
    )
    builder = StateGraph(MidstreamState)
    builder.add_node("one", ModelNode(first))
    builder.add_node("two", ModelNode(second))
    builder.add_edge(START, "one")
    builder.add_conditional_edges("one", after_turn("two"))
    builder.add_conditional_edges("two", after_turn())

    state = await builder.compile(checkpointer=saver).ainvoke(ASKED, config)

    assert [text for _, text in said(state["messages"])[1:]] == [
        "One",
        "Louder.",
        "ONE.",
        "Two",
        "Softer.",
        "two.",
    ]
    assert state["preemption"]["stats"]["seals"] == 2


async def test_a_halt_of_the_first_agent_leaves_the_second_alone() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    first = FakeChatModel(answers=[["One", lambda: ledger.aappend(halt("Stop.")), SILENCE]])
    second = FakeChatModel()
    builder = StateGraph(MidstreamState)
    builder.add_node("one", ModelNode(first))
    builder.add_node("two", ModelNode(second))
    builder.add_edge(START, "one")
    builder.add_conditional_edges("one", after_turn("two"))
    builder.add_conditional_edges("two", after_turn())

    state = await builder.compile(checkpointer=saver).ainvoke(ASKED, config)

    assert said(state["messages"])[1:] == [("ai", "One")]
    assert second.calls == []


async def test_an_agent_with_tools_is_left_after_its_last_answer() -> None:
    saver, config = InMemorySaver(), thread()
    first = FakeChatModel(answers=[calls("look_up", '{"word": "cat"}'), ["One."]])
    second = FakeChatModel(answers=[["Two."]])
    builder = StateGraph(MidstreamState)
    builder.add_node("one", ModelNode(first, tools=[look_up]))
    builder.add_node("look", ToolNode([look_up]))
    builder.add_node("two", ModelNode(second))
    builder.add_edge(START, "one")
    builder.add_conditional_edges("one", after_turn("two", tools="look"))
    builder.add_edge("look", "one")
    builder.add_conditional_edges("two", after_turn())

    state = await builder.compile(checkpointer=saver).ainvoke(ASKED, config)

    assert [kind for kind, _ in said(state["messages"])] == ["human", "ai", "tool", "ai", "ai"]


@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_request_for_this_run_is_applied_and_one_for_another_turns_run_expires(attempt: int) -> None:
    """At its second attempt the server gives a run's id in another place."""
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    run_id, old, mine, stop = new_id(), new_id(), new_id(), new_id()

    async def post() -> None:
        await ledger.aappend(steer("For a run of long ago.", id=old, run_id=new_id()))
        await ledger.aappend(halt("For a run of long ago.", id=stop, run_id=new_id()))
        await ledger.aappend(steer("For this one.", id=mine, run_id=run_id))

    model = FakeChatModel(answers=[["Once", post, SILENCE], ["A cat."]])
    graph = agent(model, saver=saver)

    named: RunnableConfig = {**config, "run_id": uuid.UUID(run_id)}
    if attempt == 2:
        named = {"configurable": {**config["configurable"], "run_id": run_id}}
    events = await events_of(graph, ASKED, named)
    state = (await graph.aget_state(config)).values

    assert said(state["messages"])[1:] == [("ai", "Once"), ("human", "For this one."), ("ai", "A cat.")]
    assert outcomes(state) == {old: "expired", stop: "expired", mine: "sealed"}
    assert state["preemption"]["turn"]["runs"] == [run_id]
    assert words(events) == ["sealed", "expired", "injected"]
    assert sorted(events[1]["request_ids"]) == sorted([old, stop])
    assert "halt" not in state["preemption"]


async def test_a_request_that_expires_as_an_answer_ends_is_told_as_expired() -> None:
    saver, config, request = InMemorySaver(), thread(), new_id()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(
        answers=[["A cat.", lambda: ledger.aappend(steer("Too late.", id=request, run_id=new_id()))]]
    )
    graph = agent(model, saver=saver)

    events = await events_of(graph, ASKED, config)
    state = (await graph.aget_state(config)).values

    assert outcomes(state) == {request: "expired"}
    assert words(events) == ["expired"]


async def test_a_request_that_had_expired_before_the_answer_is_told_of_once() -> None:
    saver, config, request = InMemorySaver(), thread(), new_id()
    await ledger_of(saver, config).aappend(steer("Too late.", id=request, run_id=new_id()))
    graph = agent(FakeChatModel(answers=[["A cat."]]), saver=saver)

    events = await events_of(graph, ASKED, config)

    assert outcomes((await graph.aget_state(config)).values) == {request: "expired"}
    assert words(events) == ["expired"]


async def test_a_request_for_the_first_run_of_a_turn_holds_for_the_run_that_resumes_it() -> None:
    saver, config, request, first_run = InMemorySaver(), thread(), new_id(), new_id()
    ledger = ledger_of(saver, config)

    @tool
    def ask(word: str) -> str:
        """Asks a person."""
        return str(interrupt(f"May I say {word}?"))

    model = FakeChatModel(answers=[calls("ask", '{"word": "cat"}'), ["A cat."]])
    graph = agent(model, saver=saver, tools=[ask])
    await graph.ainvoke(ASKED, {**config, "run_id": uuid.UUID(first_run)})
    await ledger.aappend(steer("Be brief.", id=request, run_id=first_run))

    state = await graph.ainvoke(Command(resume="yes"), {**config, "run_id": uuid.uuid4()})

    assert said(state["messages"])[1:] == [
        ("ai", ""),
        ("tool", "yes"),
        ("human", "Be brief."),
        ("ai", "A cat."),
    ]
    assert outcomes(state) == {request: "tool_boundary"}


# While a person is asked


async def test_a_request_leaves_a_pending_question_alone_and_applies_after_its_answer() -> None:
    saver, config, request = InMemorySaver(), thread(), new_id()
    ledger = ledger_of(saver, config)
    asked: list[str] = []

    @tool
    def ask(word: str) -> str:
        """Asks a person."""
        asked.append(word)
        return str(interrupt(f"May I say {word}?"))

    model = FakeChatModel(answers=[calls("ask", '{"word": "cat"}'), ["A cat."]])
    graph = agent(model, saver=saver, tools=[ask])
    await graph.ainvoke(ASKED, config)
    before = (await graph.aget_state(config)).interrupts

    await ledger.aappend(steer("Be brief.", id=request))

    assert (await graph.aget_state(config)).interrupts == before
    state = await graph.ainvoke(Command(resume={before[0].id: "yes"}), config)
    assert said(state["messages"])[1:] == [
        ("ai", ""),
        ("tool", "yes"),
        ("human", "Be brief."),
        ("ai", "A cat."),
    ]
    assert outcomes(state) == {request: "tool_boundary"}
    assert asked == ["cat", "cat"]


# The budget


async def test_a_spent_budget_leaves_requests_to_the_answers_end_and_says_so() -> None:
    saver, config, first, second = OpenLedgerSaver(), thread(), new_id(), new_id()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(
        answers=[
            ["Once", lambda: ledger.aappend(steer("Brief.", id=first)), SILENCE],
            [
                "A",
                saver.posted(config, steer("Briefer.", id=second)),
                " cat",
                " is",
                " a cat.",
            ],
            ["Cat."],
        ]
    )
    graph = agent(model, saver=saver, preemption=Preemption(max_seals=1))

    events = await events_of(graph, ASKED, config)
    state = (await graph.aget_state(config)).values

    assert [text for _, text in said(state["messages"])[1:]] == [
        "Once",
        "Brief.",
        "A cat is a cat.",
        "Briefer.",
        "Cat.",
    ]
    assert outcomes(state) == {first: "sealed", second: "turn_end"}
    about = {"type": "preemption", "node": "model", "event": "waiting"}
    assert [each for each in events if each["event"] == "waiting"] == [
        {**about, "reason": "budget", "request_ids": [second]}
    ]


async def test_no_budget_at_all_still_applies_requests_at_the_end() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.aappend(steer("Brief.")), " upon."], ["A cat."]])
    graph = agent(model, saver=saver, preemption=Preemption(max_seals=0))

    state = await graph.ainvoke(ASKED, config)

    assert said(state["messages"])[1:] == [("ai", "Once upon."), ("human", "Brief."), ("ai", "A cat.")]
    assert state["preemption"]["stats"]["seals"] == 0


async def test_a_new_human_input_has_a_budget_of_its_own() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)

    def steered(text: str) -> list[Any]:
        return [text, lambda: ledger.aappend(steer("Brief.")), SILENCE]

    model = FakeChatModel(answers=[steered("One"), ["Two."], steered("Three"), ["Four."]])
    graph = agent(model, saver=saver, preemption=Preemption(max_seals=1))
    await graph.ainvoke(ASKED, config)

    state = await graph.ainvoke({"messages": [HumanMessage("And now?")]}, config)

    assert [text for _, text in said(state["messages"])[4:]] == ["And now?", "Three", "Brief.", "Four."]
    assert len(state["preemption"]["turn"]["seals"]) == 1
    assert state["preemption"]["stats"]["seals"] == 2


async def test_a_steer_is_no_new_input_so_the_budget_goes_on() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)

    def steered(n: int) -> list[Any]:
        return [f"Part {n}", lambda: ledger.aappend(steer(f"Steer {n}.")), SILENCE]

    model = FakeChatModel(
        answers=[
            *(steered(n) for n in range(8)),
            ["Once", lambda: ledger.append(steer("The last.")), " more."],
            ["End."],
        ]
    )

    state = await agent(model, saver=saver).ainvoke(ASKED, config)

    assert sum(map(is_sealed, state["messages"])) == 8
    assert [text for _, text in said(state["messages"])[-3:]] == ["Once more.", "The last.", "End."]
    assert state["preemption"]["stats"]["seals"] == 8


# What a request waits for


async def test_each_reason_to_wait_is_told_once() -> None:
    saver, config, request = OpenLedgerSaver(), thread(), new_id()
    thought = AIMessageChunk(content=[{"type": "thinking", "thinking": "hm", "index": 0}])
    begun = AIMessageChunk(
        content=[{"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}, "index": 1}]
    )
    found = AIMessageChunk(
        content=[{"type": "web_search_tool_result", "tool_use_id": "s1", "content": [], "index": 2}]
    )
    spoken = AIMessageChunk(content=[{"type": "text", "text": "Cats.", "index": 3}])
    space = AIMessageChunk(content=[{"type": "text", "text": "", "index": 3}])
    model = FakeChatModel(
        answers=[
            [
                saver.posted(config, steer("Brief.", id=request)),
                space,
                space,
                thought,
                thought,
                begun,
                found,
                spoken,
                SILENCE,
            ],
            ["A cat."],
        ]
    )
    graph = agent(model, saver=saver)

    events = await events_of(graph, ASKED, config)
    state = (await graph.aget_state(config)).values

    assert [each.get("reason", each["event"]) for each in events] == [
        "no_text",
        "reasoning",
        "provider_tool",
        "sealed",
        "injected",
    ]
    assert {name for each in events for name in each["request_ids"]} == {request}
    assert said(state["messages"])[1:] == [("ai", "Cats."), ("human", "Brief."), ("ai", "A cat.")]
