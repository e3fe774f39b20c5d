"""What an answer that was ended early says of itself, and where it is not to be kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.caches import RETURN_VAL_TYPE, BaseCache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk

from midstream.replay import SEALED_KEY
from midstream.usage import TokenCounter, missing_usage

logger = logging.getLogger("midstream")


def last_chunk(
    model: BaseChatModel,
    chunks: list[AIMessageChunk],
    prompt: Sequence[BaseMessage],
    call: dict[str, Any],
    *,
    count_tokens: TokenCounter,
    is_dropped: bool,
) -> ChatGenerationChunk:
    """Builds the chunk that ends an answer early: its mark, and the usage that the provider did not send.

    Args:
        model: The model that was called.
        chunks: What it has said.
        prompt: The messages that the provider was sent.
        call: The keyword arguments of the call, the tools among them.
        count_tokens: Counts what the provider had no time to count.
        is_dropped: Whether nobody will keep this answer: it has shown nothing, and is begun anew.
    """
    try:
        usage, estimated = missing_usage(prompt, call.get("tools"), chunks, count_tokens)
    except (Exception, asyncio.CancelledError):  # nothing is awaited here
        logger.warning("the usage of a sealed answer could not be estimated", exc_info=True)
        usage, estimated = None, []
    metadata: dict[str, Any] = {SEALED_KEY: {"restarted": True} if is_dropped else {"sealed": True}}
    if estimated:
        metadata["estimated"] = list(estimated)
    # Many providers name the model with the last chunk; without a name, handlers that sum up usage skip it.
    is_named = any(chunk.response_metadata.get("model_name") for chunk in chunks)
    if not is_named and (name := _model_name(model, call)):
        metadata["model_name"] = name
    return ChatGenerationChunk(
        message=AIMessageChunk(
            content="" if not chunks or isinstance(chunks[-1].content, str) else [],
            id=chunks[-1].id if chunks else None,
            usage_metadata=usage,
            response_metadata=metadata,
            chunk_position="last",
        )
    )


def _model_name(model: BaseChatModel, call: dict[str, Any]) -> str | None:
    try:
        return model._get_ls_params(**{k: v for k, v in call.items() if k != "stop"}).get("ls_model_name")
    except Exception:
        logger.debug("a model cannot tell its name", exc_info=True)
        return None


class SealedStaysOut(BaseCache):
    """The cache of a sealable model: half an answer is never kept as if it were the answer."""

    def __init__(self, cache: BaseCache, is_half: Callable[[], bool]) -> None:
        self._cache = cache
        self._is_half = is_half

    def lookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        return self._cache.lookup(prompt, llm_string)

    async def alookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        return await self._cache.alookup(prompt, llm_string)

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        if not self._is_half():
            self._cache.update(prompt, llm_string, return_val)

    async def aupdate(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        if not self._is_half():
            await self._cache.aupdate(prompt, llm_string, return_val)

    def clear(self, **kwargs: Any) -> None:
        self._cache.clear(**kwargs)
