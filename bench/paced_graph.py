"""Models that stream at a pace, and an agent whose message tells it: `{"gap_ms": 20, "silent_after": null}`.

A server loads this file by its path, so it stands on nothing else of the benchmarks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph

from midstream import MidstreamState, ModelNode


class OnlyStreams(BaseChatModel):
    """Cannot be called, only streamed from."""

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        raise NotImplementedError("only streams, and only on an event loop")


class PacedModel(OnlyStreams):
    """Streams a word every `interval` seconds; after `silent_after` words it is silent and does not end."""

    interval: float = 0.02
    words: int = 1000
    silent_after: int | None = None

    @property
    def _llm_type(self) -> str:
        return "paced"

    def pace(self, messages: list[BaseMessage]) -> tuple[float, int | None]:  # noqa: ARG002
        """Returns the interval, and after how many words it is silent."""
        return self.interval, self.silent_after

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 (the base's signature)
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **_: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        interval, silent_after = self.pace(messages)
        for number in range(self.words):
            if number == silent_after:
                await asyncio.Event().wait()
            await asyncio.sleep(interval)
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"word{number} "))


class ToldModel(PacedModel):
    """Takes its pace from the last message."""

    def pace(self, messages: list[BaseMessage]) -> tuple[float, int | None]:
        told = json.loads(messages[-1].text)
        return told["gap_ms"] / 1000, told["silent_after"]


def agent(node: Any, saver: BaseCheckpointSaver[Any] | None = None) -> Any:
    """Returns a graph of this node alone."""
    builder = StateGraph(MidstreamState)
    builder.add_node("model", node)
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    return builder.compile(checkpointer=saver)


graph = agent(ModelNode(ToldModel()))
