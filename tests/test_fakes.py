"""The fakes of this folder do what they are taken for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from fakes import (
    ENDLESS,
    SILENCE,
    Answer,
    CountingHandler,
    FakeChatModel,
    SyncChatModel,
    WholeChatModel,
    calls,
)

ASK = [HumanMessage("Tell me a story.")]


async def test_a_script_is_played_step_by_step_by_every_way_of_asking() -> None:
    steps: list[str] = []
    model = FakeChatModel(answers=[["Once", lambda: steps.append("then"), " upon"]] * 4)

    texts = [
        model.invoke(ASK).text,
        (await model.ainvoke(ASK)).text,
        "".join(chunk.text for chunk in model.stream(ASK)),
        "".join([chunk.text async for chunk in model.astream(ASK)]),
    ]

    assert texts == ["Once upon"] * 4
    assert steps == ["then"] * 4
    assert all(call.ended and call.produced == 2 for call in model.calls)
    assert model.invoke(ASK).text == "Done."


async def test_async_steps_are_awaited() -> None:
    steps: list[str] = []

    async def step() -> None:
        await asyncio.sleep(0)
        steps.append("awaited")

    await FakeChatModel(answers=[["Once", step]]).ainvoke(ASK)

    assert steps == ["awaited"]


async def test_what_becomes_of_a_stream_is_written_down() -> None:
    counter, spoke = CountingHandler(), asyncio.Event()
    model = FakeChatModel(answers=[["Once", spoke.set, SILENCE]])
    call = asyncio.create_task(model.ainvoke(ASK, {"callbacks": [counter]}))
    await spoke.wait()
    call.cancel()
    await asyncio.wait([call])

    (seen,) = model.calls
    assert (seen.produced, seen.ended) == (1, False)
    assert seen.closed == [("inner", seen.reader), ("outer", seen.reader)]
    assert repr(counter) == "<CountingHandler [1 started, 0 ended, 0 failed]>"


def test_words_without_end_end_with_the_stream() -> None:
    model = FakeChatModel(answers=[[ENDLESS]])
    stream: Any = model.stream(ASK)
    assert [next(stream).text for _ in range(3)] == [" w0", " w1", " w2"]
    stream.close()

    assert (model.calls[0].produced, model.calls[0].ended) == (3, False)


def test_a_tool_call_streams_in_pieces() -> None:
    (call,) = FakeChatModel(answers=[calls("look_up", '{"word": "cat"}')]).invoke(ASK).tool_calls

    assert (call["name"], call["args"], call["id"]) == ("look_up", {"word": "cat"}, "call-1")


def test_errors_of_a_script_are_raised() -> None:
    with pytest.raises(ConnectionError):
        FakeChatModel(answers=[["Once", ConnectionError("gone")]]).invoke(ASK)


async def test_models_stream_as_their_names_say() -> None:
    async def chunks(model: WholeChatModel) -> int:
        return len([chunk async for chunk in model.astream(ASK) if chunk.text])

    answers: list[Answer] = [["Once", " upon"]]
    assert await chunks(WholeChatModel(answers=answers)) == 1
    assert await chunks(SyncChatModel(answers=answers)) == 2
    assert await chunks(FakeChatModel(answers=answers)) == 2
