"""A chat model without a model: it streams what the last human message tells it to.

What it says depends on the conversation alone, so a test can work out what it *would* have said. A message of
plain words is echoed and followed by `word1 word2 …`. A message that is a JSON object is a script:

    {"turns": [{"say": "Let me look.", "tool_calls": [{"name": "search", "args": {"q": "cats"}}]},
               {"say": "Found it.", "words": 5}]}

One turn for each answer since that message: the model is called, calls tools, is called again. After the last
turn it answers as to plain words.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.chat_models import agenerate_from_stream, generate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import ToolCallChunk, tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer: a text, and then the tools that it calls."""

    text: str
    tool_calls: Sequence[dict[str, Any]] = field(default=())
    """Each with `name`, `args` and, if it matters, `id`."""


class ScriptedChatModel(BaseChatModel):
    """Answers from the last human message, one word per chunk, at a steady pace."""

    words: int = 60
    """How many words follow the echo."""

    interval_ms: float = 20.0
    """The wait before each chunk, in milliseconds."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def answer(self, messages: Sequence[BaseMessage]) -> Turn:
        """Returns the whole of what it says to this conversation."""
        since = _since_last_human(messages)
        said = sum(isinstance(message, AIMessage) for message in since)
        asked = since[0].text if since else ""

        script = _script(asked)
        if script is None:
            return Turn(f"You said: {asked}. {_numbered(self.words)}")
        if said >= len(script):
            return Turn(f"Script done. {_numbered(self.words)}")

        turn = script[said]
        text = " ".join(part for part in (turn.get("say", ""), _numbered(turn.get("words", 0))) if part)
        calls = [
            {
                "name": call["name"],
                "args": call.get("args", {}),
                "id": call.get("id", f"call_{len(messages)}_{i}"),
            }
            for i, call in enumerate(turn.get("tool_calls", []))
        ]
        return Turn(text, calls)

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _chunks(self, messages: Sequence[BaseMessage]) -> Iterator[ChatGenerationChunk]:
        turn = self.answer(messages)
        pieces = re.findall(r"\s*\S+", turn.text)
        for piece in pieces:
            yield _chunk(piece)

        for index, call in enumerate(turn.tool_calls):
            args = json.dumps(call["args"])
            half = len(args) // 2
            yield _chunk("", tool_call_chunk(name=call["name"], args="", id=call["id"], index=index))
            yield _chunk("", tool_call_chunk(args=args[:half], index=index))
            yield _chunk("", tool_call_chunk(args=args[half:], index=index))

        asked = sum(len(message.text.split()) for message in messages)
        usage = UsageMetadata(input_tokens=asked, output_tokens=len(pieces), total_tokens=asked + len(pieces))
        yield ChatGenerationChunk(message=AIMessageChunk(content="", usage_metadata=usage))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in self._chunks(messages):
            time.sleep(self.interval_ms / 1000)
            yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._chunks(messages):
            await asyncio.sleep(self.interval_ms / 1000)
            yield chunk

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages, stop, run_manager, **kwargs))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages, stop, run_manager, **kwargs))


def _since_last_human(messages: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
    for index in range(len(messages) - 1, -1, -1):
        if isinstance(messages[index], HumanMessage):
            return messages[index:]
    return []


def _script(text: str) -> list[dict[str, Any]] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        script = json.loads(text)
    except json.JSONDecodeError:
        return None
    turns = script.get("turns")
    if not isinstance(turns, list):
        raise ValueError(f'a script is {{"turns": [{{"say": …, "tool_calls": […]}}, …]}}, got {text!r}')
    return turns


def _numbered(count: int) -> str:
    return " ".join(f"word{n}" for n in range(1, count + 1))


def _chunk(content: str, *calls: ToolCallChunk) -> ChatGenerationChunk:
    message = AIMessageChunk(content=content, tool_call_chunks=list(calls))
    return ChatGenerationChunk(message=message)
