"""The real local model, over the three APIs that llama.cpp's server speaks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

from providers.thread import Thread, roles

MAX_TOKENS = 48
STORY = "Write a long story about a lighthouse keeper named Jameson."
STEER = "Actually, stop the story and tell me in one sentence what a cat is."


KNOWN: dict[str, Any] = {"api_key": "x", "model": "m", "temperature": 0, "max_tokens": MAX_TOKENS}


def chat(url: str) -> Any:
    return ChatOpenAI(base_url=f"{url}/v1", **KNOWN)


def responses(url: str) -> Any:
    return ChatOpenAI(base_url=f"{url}/v1", use_responses_api=True, **KNOWN)


def anthropic(url: str) -> Any:
    return ChatAnthropic(base_url=url, **KNOWN)


async def test_a_real_model_is_steered_halted_and_goes_on(
    local_model_url: str, thread: Thread, make: Any
) -> None:
    graph = thread.graph(make(local_model_url))
    steered = halted = False
    async with asyncio.timeout(60):
        shown = ""
        async for chunk, _ in graph.astream(
            {"messages": [("user", STORY)]}, thread.config, stream_mode="messages"
        ):
            shown += chunk.text
            if not steered and len(shown) > 60:
                steered = True
                await thread.ledger.aappend({"kind": "steer", "messages": STEER})
            kept = thread.messages()
            if not halted and len(kept) == 3 and len(shown) > len(kept[1].text) + 10:
                halted = True
                await thread.ledger.aappend({"kind": "halt", "reason": "Enough."})
    before = thread.messages()
    after = await thread.run(make(local_model_url))

    assert roles(before)[:4] == ["human", "ai", "human", "ai"]
    assert before[1].response_metadata["preemption"]["sealed"] is True
    assert before[1].text
    assert shown.startswith(before[1].text)
    assert roles(after) == [*roles(before), "ai"]
    assert after[-1].text


pytestmark = pytest.mark.parametrize("make", [chat, responses, anthropic], ids=lambda make: make.__name__)
