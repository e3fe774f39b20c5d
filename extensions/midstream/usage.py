"""The usage of a sealed answer.

Most providers report usage with the last chunk, which a sealed stream never gets. What they did report
stays; the rest is estimated over the exact prompt (system, tools and messages) and marked as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.utils import count_tokens_approximately

Estimated = Literal["input_tokens", "output_tokens"]


def missing_usage(
    prompt: Sequence[BaseMessage], tools: list[Any] | None, answer: AIMessage
) -> tuple[UsageMetadata | None, list[Estimated]]:
    """Returns what has to be added to the answer's usage, in tokens, and which of its numbers are estimates.

    Args:
        prompt: The messages that the provider was sent.
        tools: The tool schemas that it was sent, or None.
        answer: The merged answer, with the usage that the provider reported so far.
    """
    reported = answer.usage_metadata
    seen_input = reported["input_tokens"] if reported else 0
    seen_output = reported["output_tokens"] if reported else 0

    estimated: list[Estimated] = []
    more_input = more_output = 0
    if not seen_input:
        more_input = count_tokens_approximately(prompt, tools=tools)
        estimated.append("input_tokens")
    # Some report the output as far as the first chunk and again at the end; a count below the text's own
    # estimate is such an early one.
    output = count_tokens_approximately([answer], extra_tokens_per_message=0, count_name=False)
    if output > seen_output:
        more_output = output - seen_output
        estimated.append("output_tokens")
    if not estimated:
        return None, []
    return (
        UsageMetadata(
            input_tokens=more_input, output_tokens=more_output, total_tokens=more_input + more_output
        ),
        estimated,
    )
