"""The usage of a sealed answer.

Most providers report usage with the last chunk, which a sealed stream never gets. What they did report
stays; the rest is estimated over the exact prompt (system, tools and messages) and marked as such.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, SystemMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.utils import count_tokens_approximately

logger = logging.getLogger("midstream")

Estimated: TypeAlias = Literal["input_tokens", "output_tokens"]

TokenCounter: TypeAlias = Callable[[Sequence[BaseMessage]], int]
"""Counts the tokens of messages. It is called when an answer was just ended, so it should not wait."""

EARLY: Final = 2
"""How many times more a text is estimated at than was reported of it, for the report to be an early one."""


def missing_usage(
    prompt: Sequence[BaseMessage],
    tools: Sequence[Any] | None,
    chunks: Sequence[AIMessageChunk],
    count: TokenCounter = count_tokens_approximately,
) -> tuple[UsageMetadata | None, list[Estimated]]:
    """Returns what has to be added to a sealed answer's usage, in tokens, and which numbers are estimates.

    Args:
        prompt: The messages that the provider was sent.
        tools: The tools that it was sent, or None.
        chunks: The answer, with the usage that the provider reported so far.
        count: Counts tokens; where it fails, core's approximate counter does.
    """
    reports = [place for place, chunk in enumerate(chunks) if chunk.usage_metadata]
    counted = reports[-1] + 1 if reports else 0
    seen = [usage for place in reports if (usage := chunks[place].usage_metadata)]
    seen_input = sum(usage["input_tokens"] for usage in seen)
    seen_output = sum(usage["output_tokens"] for usage in seen)

    estimated: list[Estimated] = []
    more_input = more_output = 0
    if not seen_input:
        more_input = _count(count, [*prompt, *_as_message(tools)])
        estimated.append("input_tokens")
    # A report tells of what was written before it, except for an early one, as Anthropic's, which comes with
    # the first chunks and tells of no more than the first tokens.
    before, after = _written(chunks[:counted]), _written(chunks[counted:])
    is_early = not before or EARLY * seen_output < _count(count, [AIMessage(before)])
    if is_early and (written := before + after):
        more_output = max(0, _count(count, [AIMessage(written)]) - seen_output)
    elif after:
        more_output = _count(count, [AIMessage(after)])
    if more_output:
        estimated.append("output_tokens")
    if not estimated:
        return None, []
    more = UsageMetadata(
        input_tokens=more_input, output_tokens=more_output, total_tokens=more_input + more_output
    )
    return more, estimated


def _as_message(tools: Sequence[Any] | None) -> list[BaseMessage]:
    """Returns the tools' schemas as text, so that any counter of messages can count them."""
    return [SystemMessage(json.dumps(list(tools), default=str))] if tools else []


def _written(chunks: Iterable[AIMessageChunk]) -> str:
    """Returns what the model wrote in these chunks, thinking and calls of the provider's tools included."""
    return "".join(
        _words(part)
        for chunk in chunks
        for part in (
            *([chunk.content] if isinstance(chunk.content, str) else chunk.content),
            chunk.additional_kwargs.get("reasoning_content"),
        )
    )


_WORDS: Final = ("text", "thinking", "reasoning", "reasoning_content", "summary", "refusal", "partial_json")
_ARGUMENTS: Final = ("input", "args", "action", "queries", "code", "executable_code")


def _words(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, list):
        return "".join(map(_words, part))
    if not isinstance(part, dict):
        return ""
    words = [_words(part.get(key)) for key in _WORDS]
    return "".join(words) + "".join(json.dumps(part[key], default=str) for key in _ARGUMENTS if part.get(key))


def _count(count: TokenCounter, messages: Sequence[BaseMessage]) -> int:
    try:
        return int(count(messages))
    except (Exception, asyncio.CancelledError):  # nothing is awaited here
        logger.warning("the token counter failed; an approximation stands in for it", exc_info=True)
        return count_tokens_approximately(messages)
