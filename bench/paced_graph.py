"""An agent whose model streams at the pace that it is told: `{"gap_ms": 20, "silent_after": null}`.

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

WORDS = 1000


class ToldModel(BaseChatModel):
    """Streams a word after each gap; after so many it is silent, and does not end."""

    @property
    def _llm_type(self) -> str:
        return "told"

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 (the base's signature)
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **_: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        told = json.loads(messages[-1].text)
        for number in range(WORDS):
            if number == told["silent_after"]:
                await asyncio.Event().wait()
            await asyncio.sleep(told["gap_ms"] / 1000)
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"word{number} "))

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        raise NotImplementedError("only streams, and only on an event loop")


def agent(saver: BaseCheckpointSaver[Any] | None = None) -> Any:
    builder = StateGraph(MidstreamState)
    builder.add_node("model", ModelNode(ToldModel()))
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    return builder.compile(checkpointer=saver)


graph = agent()
