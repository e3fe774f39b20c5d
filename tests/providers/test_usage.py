"""Usage of sealed answers: the provider's numbers where they came, marked estimates where they did not."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.tools import tool

from midstream import ConfigurationError, Preemption
from midstream.usage import missing_usage
from providers.api import ENDLESS, SILENCE, FakeAPI
from providers.thread import Thread


@tool
def look_up(word: str) -> str:
    """Looks a word up in a large dictionary, and tells what it means, with examples from literature."""
    return word


def usage(input_tokens: int, output_tokens: int) -> UsageMetadata:
    total = input_tokens + output_tokens
    return UsageMetadata(input_tokens=input_tokens, output_tokens=output_tokens, total_tokens=total)


async def test_the_providers_numbers_are_kept_and_the_rest_is_estimated(api: FakeAPI, thread: Thread) -> None:
    api.says("Once upon a time there was a cat. ", thread.halt(), ENDLESS)

    messages = await thread.run(api.model(), "Tell me a story.")

    sealed = messages[-1]
    assert sealed.type == "ai"
    if type(api).__name__ == "GenerateContent":  # it tells with every chunk
        assert "estimated" not in sealed.response_metadata
        assert sealed.usage_metadata["input_tokens"] == 11
    else:
        assert sealed.response_metadata["estimated"] == ["input_tokens", "output_tokens"]
        assert sealed.usage_metadata["input_tokens"] > 5
        assert sealed.usage_metadata["output_tokens"] > 5


async def test_the_estimate_is_of_the_whole_prompt_with_tools(chat: Any, thread: Thread) -> None:
    counted: list[list[BaseMessage]] = []

    def count(messages: Sequence[BaseMessage]) -> int:
        counted.append(list(messages))
        return 100 * len(messages)

    chat.says("Once ", thread.halt(), SILENCE)
    messages = await thread.run(chat.model(), "Tell me.", tools=[look_up], token_counter=count)

    prompt, written = counted
    assert [message.type for message in prompt] == ["system", "human", "system"]
    assert "with examples from literature" in prompt[-1].text
    assert [message.text for message in written] == ["Once "]
    assert messages[-1].usage_metadata == usage(300, 100)


async def test_a_counter_that_fails_costs_nothing(
    chat: Any, thread: Thread, caplog: pytest.LogCaptureFixture
) -> None:
    def count(messages: Sequence[BaseMessage]) -> int:
        raise RuntimeError("no tokenizer")

    chat.says("Once ", thread.halt(), SILENCE)
    with caplog.at_level(logging.WARNING, "midstream"):
        messages = await thread.run(chat.model(), "Tell me.", token_counter=count)

    assert messages[-1].text == "Once "
    assert messages[-1].usage_metadata["input_tokens"] > 0
    assert "the token counter failed" in caplog.text


def test_an_early_report_keeps_its_input_and_gets_an_estimated_output() -> None:
    early = AIMessageChunk(content="", usage_metadata=usage(250, 2))
    told = AIMessageChunk(content="a word, " * 40)

    more, estimated = missing_usage([HumanMessage("Tell.")], None, [early, told])

    assert estimated == ["output_tokens"]
    assert more is not None
    assert more["input_tokens"] == 0
    assert more["output_tokens"] + 2 == count_tokens_approximately([AIMessage("a word, " * 40)])


def test_what_was_reported_while_it_was_written_is_exact() -> None:
    chunks = [AIMessageChunk(content="a word, " * 10, usage_metadata=usage(50, 20))]
    chunks += [AIMessageChunk(content="a word, " * 10, usage_metadata=usage(0, 21))]

    assert missing_usage([HumanMessage("Tell.")], None, chunks) == (None, [])

    chunks.append(AIMessageChunk(content="and more words"))
    more, estimated = missing_usage([HumanMessage("Tell.")], None, chunks)
    assert estimated == ["output_tokens"]
    assert more is not None
    assert 0 < more["output_tokens"] < 10


def test_thinking_counts_and_what_a_provider_read_itself_does_not() -> None:
    thought = AIMessageChunk(content=[{"type": "thinking", "thinking": "word " * 100, "index": 0}])
    page = {"type": "web_search_tool_result", "tool_use_id": "1", "content": [{"text": "word " * 1000}]}
    read = AIMessageChunk(content=[{**page, "index": 1}])

    more, _ = missing_usage([SystemMessage("Be kind.")], None, [thought, read])

    assert more is not None
    assert 100 < more["output_tokens"] < 200


def test_a_counter_has_to_be_callable() -> None:
    with pytest.raises(ConfigurationError, match="token_counter must be"):
        Preemption(token_counter=7)  # type: ignore[arg-type]
