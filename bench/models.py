"""A chat model that says what a benchmark needs, without delay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal, TypeAlias

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models.chat_models import agenerate_from_stream
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from bench.paced_graph import OnlyStreams

Content = Literal["text", "blocks", "whitespace", "reasoning", "tool arguments"]

Opening: TypeAlias = Callable[[], Awaitable[object]]


CONTENTS: dict[Content, Any] = {
    "text": "word ",
    "blocks": [{"type": "text", "text": "word ", "index": 0}],
    "whitespace": " ",
    "reasoning": [{"type": "thinking", "thinking": "word ", "index": 0}],
    "tool arguments": "",
}


def _message(kind: Content, place: int, size: int) -> AIMessageChunk:
    if kind != "tool arguments":
        return AIMessageChunk(content=CONTENTS[kind])
    args = '{"text": "' if place == 0 else '"}' if place == size - 1 else "word "
    first = {"name": "search", "id": "call_1"} if place == 0 else {}
    return AIMessageChunk(content="", tool_call_chunks=[tool_call_chunk(args=args, index=0, **first)])


class ReadyModel(OnlyStreams):
    """Streams chunks that were made in advance, without any delay: all that is timed is what reads them."""

    size: int
    content: Content = "text"

    calls_tool: bool = False
    """Whether the answer begins with a tool call, after which it cannot be sealed."""

    breath: int = 0
    """After how many chunks the event loop gets a turn; 0: never, the strictest way to count."""

    opening: Opening | None = None
    """Awaited after `opens_after` chunks."""

    opens_after: int = 1

    _chunks: list[ChatGenerationChunk] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "ready"

    def refill(self) -> None:
        """Makes the chunks of the next answer, or wipes off what core has written into the last one's."""
        for chunk in self._chunks:
            chunk.message.__dict__.update(id=None, response_metadata={})
        if self._chunks:
            return
        kinds = [_message(self.content, place, self.size) for place in (0, 1, self.size - 1)]
        first, middle, last = (ChatGenerationChunk(message=message) for message in kinds)
        chunks = [first, *[middle] * (self.size - 2), last]
        self._chunks[:] = [
            chunk.model_copy(update={"message": chunk.message.model_copy()}) for chunk in chunks
        ]
        if self.calls_tool:
            call = tool_call_chunk(name="search", args="{}", id="call_1", index=0)
            self._chunks[0] = ChatGenerationChunk(
                message=AIMessageChunk(content=CONTENTS[self.content], tool_call_chunks=[call])
            )

    async def _astream(
        self,
        messages: list[BaseMessage],  # noqa: ARG002 (the base's signature)
        stop: list[str] | None = None,  # noqa: ARG002
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **_: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        if not self.breath and self.opening is None:
            for chunk in self._chunks:
                yield chunk
            return
        for number, chunk in enumerate(self._chunks):
            if self.breath and number % self.breath == 0:
                await asyncio.sleep(0)
            if number == self.opens_after and self.opening is not None:
                await self.opening()
            yield chunk

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages, stop, None, **kwargs))
