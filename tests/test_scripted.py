from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool

from chat_models.scripted import ScriptedChatModel


def model(**fields: Any) -> ScriptedChatModel:
    return ScriptedChatModel(interval_ms=0, **fields)


def script(*turns: dict[str, Any]) -> HumanMessage:
    return HumanMessage(json.dumps({"turns": turns}))


async def streamed(chat: BaseChatModel, *messages: Any) -> list[AIMessageChunk]:
    return [chunk async for chunk in chat.astream(list(messages)) if isinstance(chunk, AIMessageChunk)]


async def test_plain_words_are_echoed_and_followed_by_counted_words() -> None:
    chunks = await streamed(model(words=3), HumanMessage("tell me of cats"))

    assert "".join(chunk.text for chunk in chunks) == "You said: tell me of cats. word1 word2 word3"


async def test_one_word_comes_in_each_chunk() -> None:
    chunks = await streamed(model(words=3), HumanMessage("hi"))

    assert [chunk.text for chunk in chunks if chunk.text] == [
        "You",
        " said:",
        " hi.",
        " word1",
        " word2",
        " word3",
    ]


async def test_the_same_conversation_gets_the_same_answer_by_every_way_of_asking() -> None:
    chat, asked = model(words=5), [HumanMessage("hi"), AIMessage("You said:"), HumanMessage("stop")]
    expected = "You said: stop. word1 word2 word3 word4 word5"

    assert chat.answer(asked).text == expected
    assert chat.invoke(asked).text == expected
    assert (await chat.ainvoke(asked)).text == expected
    assert "".join(chunk.text for chunk in chat.stream(asked)) == expected
    assert "".join(chunk.text for chunk in await streamed(chat, *asked)) == expected


async def test_every_beginning_of_the_stream_is_a_prefix_of_the_whole_answer() -> None:
    chat, asked = model(words=20), HumanMessage("hi")
    said = ""
    for chunk in await streamed(chat, asked):
        said += chunk.text
        assert chat.answer([asked]).text.startswith(said)


async def test_a_script_calls_tools_and_goes_on_after_their_results() -> None:
    call = {"name": "search", "args": {"q": "cats"}}
    asked = script({"say": "Let me look.", "tool_calls": [call]}, {"say": "Found it.", "words": 2})
    chat = model(words=1)

    first = await chat.ainvoke([asked])
    assert first.text == "Let me look."
    assert [(c["name"], c["args"], c["id"]) for c in first.tool_calls] == [
        ("search", {"q": "cats"}, "call_1_0")
    ]

    result = ToolMessage("a cat", tool_call_id="call_1_0")
    second = await chat.ainvoke([asked, first, result])
    assert (second.text, second.tool_calls) == ("Found it. word1 word2", [])

    third = await chat.ainvoke([asked, first, result, second])
    assert third.text == "Script done. word1"


async def test_a_tool_call_streams_in_pieces() -> None:
    asked = script({"tool_calls": [{"name": "search", "args": {"q": "cats"}, "id": "c1"}]})
    pieces = [chunk.tool_call_chunks for chunk in await streamed(model(), asked) if chunk.tool_call_chunks]

    assert [(piece[0]["name"], piece[0]["args"]) for piece in pieces] == [
        ("search", ""),
        (None, '{"q": '),
        (None, '"cats"}'),
    ]


async def test_bound_tools_do_not_change_what_it_says() -> None:
    @tool
    def search(q: str) -> str:
        """Search."""
        return q

    chat = model(words=1)
    assert (await chat.bind_tools([search]).ainvoke("hi")).text == chat.answer([HumanMessage("hi")]).text


async def test_usage_counts_the_words() -> None:
    answer = await model(words=2).ainvoke("one two three")

    assert answer.usage_metadata is not None
    assert answer.usage_metadata["input_tokens"] == 3
    assert answer.usage_metadata["output_tokens"] == len(answer.text.split())


def test_a_script_without_turns_says_what_a_script_looks_like() -> None:
    with pytest.raises(ValueError, match=r'a script is \{"turns"'):
        model().answer([HumanMessage('{"say": "hi"}')])


def test_chunks_wait_for_the_interval() -> None:
    """Only a lower bound: nothing here asserts that a machine is fast."""
    import time

    times = [time.monotonic() for _ in ScriptedChatModel(words=2, interval_ms=10).stream("hi")]
    assert all(later - earlier >= 0.009 for earlier, later in pairwise(times[:5]))
