"""Steering and halting a compiled graph, by every way to run one."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from fakes import ENDLESS, SILENCE, FakeChatModel
from support.steering import ASKED, agent, halt, is_sealed, ledger_of, said, steer, thread


async def test_a_steer_seals_the_answer_and_the_run_goes_on() -> None:
    saver, config = InMemorySaver(), thread()
    ledger, request_id = ledger_of(saver, config), str(uuid.uuid4())
    model = FakeChatModel(
        answers=[
            ["Once", " upon", lambda: ledger.aappend(steer("Be brief.", id=request_id)), SILENCE],
            ["A cat."],
        ]
    )
    graph = agent(model, saver=saver)

    state = await graph.ainvoke(ASKED, config)

    assert said(state["messages"]) == [
        ("human", "Tell me a story."),
        ("ai", "Once upon"),
        ("human", "Be brief."),
        ("ai", "A cat."),
    ]
    sealed, injected = state["messages"][1], state["messages"][2]
    assert sealed.response_metadata["preemption"] == {
        "sealed": True,
        "node": "model",
        "request_ids": [request_id],
    }
    assert injected.id == str(uuid.uuid5(uuid.UUID(request_id), "0"))
    assert injected.additional_kwargs == {"source": "steer", "request_id": request_id}
    assert [call.texts for call in model.calls] == [
        ["Tell me a story."],
        ["Tell me a story.", "Once upon", "Be brief."],
    ]
    preemption = state["preemption"]
    assert preemption["handled"][request_id]["outcome"] == "sealed"
    assert preemption["handled"][request_id]["message_ids"] == [injected.id]
    assert preemption["stats"] == {"seals": 1, "restarts": 0, "empty_boundaries": 0}
    assert "halt" not in preemption
    assert (await graph.aget_state(config)).next == ()
    assert await ledger.arequests() == []


def test_a_steer_seals_the_answer_of_a_graph_without_an_event_loop() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(
        answers=[["Once", " upon", lambda: ledger.append(steer("Be brief.")), ENDLESS], ["A cat."]]
    )

    state = agent(model, saver=saver).invoke(ASKED, config)

    kinds = said(state["messages"])
    assert [kind for kind, _ in kinds] == ["human", "ai", "human", "ai"]
    assert kinds[1][1].startswith("Once upon")
    assert kinds[2:] == [("human", "Be brief."), ("ai", "A cat.")]
    # The provider made what the thread keeps and nothing more.
    assert len(kinds[1][1].split()) == model.calls[0].produced
    assert [name for name, _ in model.calls[0].closed] == ["inner", "outer"]


async def test_the_sealed_turn_is_in_a_checkpoint_of_its_own() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.aappend(steer("Be brief.")), SILENCE], ["A cat."]])
    graph = agent(model, saver=saver)
    await graph.ainvoke(ASKED, config)

    history = [
        [message.text for message in each.values.get("messages", [])]
        async for each in graph.aget_state_history(config)
    ]

    assert history == [
        ["Tell me a story.", "Once", "Be brief.", "A cat."],
        ["Tell me a story.", "Once", "Be brief."],
        ["Tell me a story.", "Once"],
        ["Tell me a story."],
        [],
    ]


async def test_a_halt_keeps_the_sealed_turn_and_injects_nothing() -> None:
    saver, config = InMemorySaver(), thread()
    run_id = str(uuid.uuid4())
    ledger, request_id = ledger_of(saver, config), str(uuid.uuid4())
    model = FakeChatModel(
        answers=[["Once", lambda: ledger.aappend(halt("The user left.", id=request_id)), SILENCE]]
    )
    graph = agent(model, saver=saver)

    state = await graph.ainvoke(ASKED, {**config, "run_id": uuid.UUID(run_id)})

    assert said(state["messages"]) == [("human", "Tell me a story."), ("ai", "Once")]
    assert state["preemption"]["halt"] == {"run_id": run_id, "reason": "The user left.", "node": "model"}
    assert state["preemption"]["handled"][request_id]["outcome"] == "sealed"
    assert len(model.calls) == 1
    assert (await graph.aget_state(config)).next == ()
    assert [each["reason"] for each in (await ledger.aview()).halts] == ["The user left."]


def test_a_halt_ends_a_run_without_an_event_loop() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.append(halt("Enough.")), ENDLESS]])

    state = agent(model, saver=saver).invoke(ASKED, config)

    assert [message.type for message in state["messages"]] == ["human", "ai"]
    assert is_sealed(state["messages"][1])
    assert state["preemption"]["halt"]["reason"] == "Enough."


async def test_a_halted_thread_answers_the_next_run() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.aappend(halt("Enough.")), SILENCE], ["Hello."]])
    graph = agent(model, saver=saver)
    await graph.ainvoke(ASKED, config)

    state = await graph.ainvoke({"messages": [HumanMessage("Hi.")]}, config)

    assert said(state["messages"])[2:] == [("human", "Hi."), ("ai", "Hello.")]


STREAMED = [
    ("messages", "Once"),
    ("messages", " upon"),
    ("custom", "sealed"),
    ("updates", "Once upon"),
    ("custom", "injected"),
    ("messages", "Be brief."),
    ("updates", "Be brief."),
    ("messages", "A"),
    ("messages", " cat."),
    ("updates", "A cat."),
]


def in_order(mode: str, part: Any) -> tuple[str, str]:
    if mode == "messages":
        return mode, part[0].text
    if mode == "custom":
        return mode, part["event"]
    return mode, part["model"]["messages"][-1].text


async def test_a_stream_shows_what_happens_in_its_order() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(
        answers=[
            ["Once", " upon", lambda: ledger.aappend(steer("Be brief.")), SILENCE],
            ["A", " cat."],
        ]
    )
    graph = agent(model, saver=saver)

    seen = [
        in_order(mode, part)
        async for mode, part in graph.astream(ASKED, config, stream_mode=["messages", "custom", "updates"])
    ]

    assert [each for each in seen if each[1]] == STREAMED


def test_a_stream_shows_what_happens_in_its_order_without_an_event_loop() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(
        answers=[["Once", lambda: ledger.append(steer("Be brief.")), ENDLESS], ["A", " cat."]]
    )
    graph = agent(model, saver=saver)

    seen = [
        in_order(mode, part)
        for mode, part in graph.stream(ASKED, config, stream_mode=["messages", "custom", "updates"])
    ]

    spoken = [each for each in seen if each[1]]
    sealed = spoken.index(("custom", "sealed"))
    assert {mode for mode, _ in spoken[:sealed]} == {"messages"}
    assert spoken[sealed + 1] == ("updates", "".join(text for _, text in spoken[:sealed]))
    assert spoken[sealed + 2 :] == STREAMED[4:]


async def test_events_say_which_requests_and_messages_they_are_about() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    first, second, third = (str(uuid.uuid4()) for _ in range(3))
    run_id = str(uuid.uuid4())

    async def post() -> None:
        await ledger.aappend(steer("One.", id=first))
        await ledger.aappend(steer("Two.", id=second))

    model = FakeChatModel(
        answers=[
            ["Once", post, SILENCE],
            ["A cat.", lambda: ledger.aappend(halt("Enough.", id=third)), SILENCE],
        ]
    )
    graph = agent(model, saver=saver)

    events = [
        event
        async for event in graph.astream(ASKED, {**config, "run_id": uuid.UUID(run_id)}, stream_mode="custom")
    ]
    messages = (await graph.aget_state(config)).values["messages"]

    about = {"type": "preemption", "node": "model"}
    # Which of the two the watch saw first is not ours to say; both are applied at the boundary.
    assert events[0].pop("request_ids") in ([first], [first, second])
    assert events == [
        {**about, "event": "sealed", "message_id": messages[1].id},
        {
            **about,
            "event": "injected",
            "outcome": "sealed",
            "message_ids": [messages[2].id, messages[3].id],
            "request_ids": [first, second],
        },
        {**about, "event": "sealed", "message_id": messages[4].id, "request_ids": [third]},
        {**about, "event": "halted", "reason": "Enough.", "run_id": run_id, "request_ids": [third]},
    ]
    assert [message.text for message in messages] == ["Tell me a story.", "Once", "One.", "Two.", "A cat."]


@pytest.mark.filterwarnings("ignore:The v3 streaming protocol")
async def test_the_newer_protocol_shows_the_answer_the_steer_and_the_continuation_in_order() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(
        answers=[
            ["Once", " upon", lambda: ledger.aappend(steer("Be brief.")), SILENCE],
            ["A", " cat."],
        ]
    )
    graph = agent(model, saver=saver)

    run = await graph.astream_events(ASKED, config, version="v3")
    assert "preemption" in run.extensions
    seen: list[tuple[str, str]] = []
    async for event in run:
        data = event["params"]["data"]
        if event["method"] == "custom:preemption":
            seen.append(("extension", data["event"]))
        elif event["method"] == "messages" and isinstance(data[0], BaseMessage):
            seen.append((data[0].type, data[0].text))
        elif event["method"] == "messages" and data[0]["event"] == "content-block-delta":
            seen.append(("token", data[0]["delta"]["text"]))
        elif event["method"] == "messages" and data[0]["event"] in ("message-start", "message-finish"):
            seen.append(("message", data[0]["event"].removeprefix("message-")))

    assert seen == [
        ("message", "start"),
        ("token", "Once"),
        ("token", " upon"),
        ("message", "finish"),
        ("extension", "sealed"),
        ("extension", "injected"),
        ("human", "Be brief."),
        ("message", "start"),
        ("token", "A"),
        ("token", " cat."),
        ("message", "finish"),
    ]
    messages = (await graph.aget_state(config)).values["messages"]
    assert said(messages) == [
        ("human", "Tell me a story."),
        ("ai", "Once upon"),
        ("human", "Be brief."),
        ("ai", "A cat."),
    ]
    assert is_sealed(messages[1])
    assert messages[1].response_metadata["estimated"] == ["input_tokens", "output_tokens"]


@pytest.mark.filterwarnings("ignore:The v3 streaming protocol")
def test_the_newer_protocol_without_an_event_loop_seals_as_well() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.append(steer("Be brief.")), ENDLESS], ["A cat."]])
    graph = agent(model, saver=saver)

    for _ in graph.stream_events(ASKED, config, version="v3"):
        pass

    messages = graph.get_state(config).values["messages"]
    assert [message.type for message in messages] == ["human", "ai", "human", "ai"]
    assert is_sealed(messages[1])
