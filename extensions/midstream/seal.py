"""Ending a model's stream early, from inside the model.

A caller that breaks out of `model.astream()` leaves langchain-core with a failed call: `on_llm_error`,
a lost usage, an open span. So the stream is ended below core: `sealable` returns a copy of a runnable in
which every chat model is seen through a subclass of its own class. The subclass passes the provider's
chunks on, and when its `SealControl` says so, closes the provider's stream, adds one last chunk, and ends.
Core sees a natural end: one `on_llm_end` with the merged message, for every handler.

The copy of a chat model *shares the attributes* of the original (one `__dict__`), so that clients which the
model makes lazily are made once, and only the class and the control differ.

How a stream is ended, by the two moments at which that may happen:

1. A chunk was just delivered. The provider's generators are all suspended at a `yield`; they are closed
   one by one, the innermost first. Closing only the outermost would leave the others, and the HTTP stream
   that the innermost holds, to the garbage collector.
2. The provider is silent. The generators are suspended in an `await` of the task that reads them. That task
   is cancelled, which unwinds them from the innermost outwards, and exactly this one cancellation is taken
   back: a cancellation from outside that arrives meanwhile still wins.

Read from langchain-core 1.8.3: `BaseChatModel._generate_with_cache` and its twin ask `_should_stream`, and
read `_stream` / `_astream`, directly or through the bridge to events of the newer protocol. Its `agenerate`
gathers `_agenerate_with_cache`, whose errors it drops when it is cancelled itself.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Iterator
from threading import Lock
from typing import Any, cast
from weakref import WeakKeyDictionary

from langchain_core.caches import BaseCache
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.outputs import ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSequence, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import ensure_config, merge_configs
from langchain_core.runnables.configurable import DynamicRunnable

from midstream._host import configured_model
from midstream.closing import aclose_all, close_all
from midstream.gate import SealGate, WaitReason
from midstream.half_answer import SealedStaysOut, last_chunk
from midstream.last_hop import repair
from midstream.provider import is_structured, provider_of
from midstream.usage import TokenCounter

logger = logging.getLogger("midstream")


class SealControl:
    """Decides over one model call: asked after each chunk, told from outside when to look at once.

    Subclasses override `claim`, `claim_restart` and `blocked`. All methods may be called from any thread.
    """

    def __init__(self) -> None:
        self.requested = False
        """Whether anybody wants the answer to end: a level, not an edge. Read once for each chunk."""

        self.sealed = False
        """Whether a stream of this call was ended early, at a point where the answer may end."""

        self.restarted = False
        """Whether a stream of this call was ended because it had shown nothing: its answer is dropped."""

        self.count_tokens: TokenCounter = count_tokens_approximately
        """Counts what the provider had no time to count."""

        self._live: LiveStream | None = None

    @property
    def ended_early(self) -> bool:
        """Whether a stream of this call was ended before the provider ended it."""
        return self.sealed or self.restarted

    def request(self) -> None:
        """Asks for a seal as soon as the answer's shape allows it, also while the provider is silent."""
        self.requested = True
        self.wake()

    def opened(self) -> None:
        """Is told that a stream has begun to be read."""
        if self.requested:
            self.wake()

    def wake(self) -> None:
        """Has a stream that waits for a silent provider ask again whether it may end."""
        if (live := self._live) is not None:
            live.wake()

    def claim(self) -> bool:
        """Takes the right to seal now; called when the answer may end here. False: it runs on."""
        return True

    def claim_restart(self) -> bool:
        """Takes the right to drop an answer that has shown nothing so far. False: it runs on."""
        return False

    def blocked(self, reason: WaitReason) -> None:
        """Is told what a requested seal waits for; often many times with the same reason."""

    def may_end(self, gate: SealGate) -> bool:
        """Asks the gate, then claims. True at most once for each stream."""
        reason = gate.waiting_for
        if reason is None:
            self.sealed = self.claim()
            return self.sealed
        if gate.is_blank and self.claim_restart():
            self.restarted = True
            return True
        self.blocked(reason)
        return False


class _Answer:
    """What was streamed so far. The gate takes it in only when somebody wants the answer to end.

    Most answers nobody interferes with, and they should cost nothing but the keeping of their chunks.
    """

    __slots__ = ("_gate", "_seen", "chunks")

    def __init__(self) -> None:
        self.chunks: list[AIMessageChunk] = []
        self._gate = SealGate()
        self._seen = 0

    @property
    def gate(self) -> SealGate:
        """The gate, knowing all chunks; costs the size of those that came since it was last asked."""
        for chunk in self.chunks[self._seen :]:
            self._gate.push(chunk)
        self._seen = len(self.chunks)
        return self._gate


class LiveStream:
    """A stream that is being read, as far as somebody outside its task needs to know."""

    __slots__ = ("answer", "control", "ending", "loop", "outside", "task", "waiting")

    def __init__(self, control: SealControl, answer: _Answer) -> None:
        self.control = control
        self.answer = answer
        self.loop = asyncio.get_running_loop()
        self.task = cast("asyncio.Task[Any]", asyncio.current_task())
        self.outside = self.task.cancelling()
        self.waiting = False
        self.ending = False

    def wake(self) -> None:
        """Ends the stream now if it waits for a silent provider and may end; thread-safe."""
        try:
            self.loop.call_soon_threadsafe(self._interrupt)
        except RuntimeError:  # the loop was closed: nobody reads this stream any more
            return

    def _interrupt(self) -> None:
        control = self.control
        if self.waiting and not self.ending and control.requested and control.may_end(self.answer.gate):
            self.ending = True
            self.task.cancel()

    def take_back(self) -> None:
        """Takes our own cancellation back.

        Raises:
            CancelledError: One from outside remains, and wins.
        """
        if self.task.uncancel() > self.outside:
            raise asyncio.CancelledError


_CONTROL = "_midstream_control"
_STRUCTURED = "_midstream_structured"
_classes: WeakKeyDictionary[type[BaseChatModel], type[BaseChatModel]] = WeakKeyDictionary()
_classes_lock = Lock()


def _sealable_class(base: type[BaseChatModel]) -> type[BaseChatModel]:
    with _classes_lock:
        if (known := _classes.get(base)) is None:
            known = _classes[base] = _make_class(base)
        return known


def _make_class(base: type[BaseChatModel]) -> type[BaseChatModel]:
    """Makes the subclass: the name, module and serialised id of its base, and only what its base overrides.

    Core tells by the class whether a model can stream; a model that cannot is left as it is.
    """

    def _should_stream(self: Any, *, async_api: bool, run_manager: Any = None, **kwargs: Any) -> bool:
        # As if the caller had asked for a stream: a node's model is always read chunk by chunk.
        wish = {**kwargs, "stream": kwargs.get("stream", True)}
        return base._should_stream(self, async_api=async_api, run_manager=run_manager, **wish)

    async def _astream(
        self: Any, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        control: SealControl = getattr(self, _CONTROL)
        messages = repair(messages, provider_of(self, kwargs))
        stream = base._astream(self, messages, *args, **kwargs)
        if getattr(self, _STRUCTURED) or is_structured(self, kwargs):
            async for chunk in stream:
                yield chunk
            return

        answer = _Answer()
        live = LiveStream(control, answer)
        keep = answer.chunks.append
        ended = False
        control._live = live
        try:
            control.opened()
            live.waiting = True
            async for chunk in stream:
                live.waiting = False
                if live.ending:  # the provider's client held our cancellation back
                    break
                keep(cast("AIMessageChunk", chunk.message))
                yield chunk
                if control.requested and control.may_end(answer.gate):
                    ended = True
                    break
                live.waiting = True
            live.waiting = False
            if live.ending:
                live.take_back()
                ended = True
        except (asyncio.CancelledError, Exception):
            # Only what comes out of the wait for the provider can be our own doing.
            if not (live.ending and live.waiting):
                raise
            live.take_back()
            ended = True
        finally:
            live.waiting = False
            control._live = None
            await aclose_all(stream)
        if ended:
            yield ended_by(self, answer.chunks, messages, kwargs)

    def _stream(
        self: Any, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        control: SealControl = getattr(self, _CONTROL)
        messages = repair(messages, provider_of(self, kwargs))
        stream = base._stream(self, messages, *args, **kwargs)
        if getattr(self, _STRUCTURED) or is_structured(self, kwargs):
            yield from stream
            return

        answer = _Answer()
        keep = answer.chunks.append
        ended = False
        try:
            for chunk in stream:
                keep(cast("AIMessageChunk", chunk.message))
                yield chunk
                if control.requested and control.may_end(answer.gate):
                    ended = True
                    break
        finally:
            close_all(stream)
        if ended:
            yield ended_by(self, answer.chunks, messages, kwargs)

    # Core tells by the signature whether these two are to be given the callbacks.
    @functools.wraps(base._generate)
    def _generate(self: Any, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return base._generate(self, repair(messages, provider_of(self, kwargs)), *args, **kwargs)

    @functools.wraps(base._agenerate)
    async def _agenerate(self: Any, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return await base._agenerate(self, repair(messages, provider_of(self, kwargs)), *args, **kwargs)

    async def _agenerate_with_cache(
        self: Any,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        outside = task.cancelling()
        try:
            return await base._agenerate_with_cache(self, messages, stop, run_manager, **kwargs)
        except asyncio.CancelledError as error:
            # Core itself tells nobody of a call that is cancelled, whose span then stays open for ever.
            if run_manager is not None and task.cancelling() > outside:
                await run_manager.on_llm_error(error, response=LLMResult(generations=[[]]))
            raise

    def ended_by(
        self: Any, chunks: list[AIMessageChunk], messages: list[BaseMessage], call: dict[str, Any]
    ) -> ChatGenerationChunk:
        control: SealControl = getattr(self, _CONTROL)
        return last_chunk(
            self, chunks, messages, call, count_tokens=control.count_tokens, is_dropped=control.restarted
        )

    def cache(self: Any) -> BaseCache | bool | None:
        configured: BaseCache | bool | None = self.__dict__.get("cache")
        if configured is False:
            return False
        real = configured if isinstance(configured, BaseCache) else get_llm_cache()
        return (
            configured if real is None else SealedStaysOut(real, lambda: getattr(self, _CONTROL).ended_early)
        )

    body: dict[str, Any] = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__slots__": (_CONTROL, _STRUCTURED),
        "_should_stream": _should_stream,
        "_generate": _generate,
        "_agenerate_with_cache": _agenerate_with_cache,
    }
    if base._agenerate is not BaseChatModel._agenerate:
        body["_agenerate"] = _agenerate
    native = []
    if base._astream is not BaseChatModel._astream:
        body["_astream"] = _astream
        native.append("_astream_chat_model_events")
    if base._stream is not BaseChatModel._stream:
        body["_stream"] = _stream
        native.append("_stream_chat_model_events")
    metaclass: Any = type(base)
    made: type[BaseChatModel] = metaclass(base.__name__, (base,), body)
    # Not in the body, where pydantic would take these for a field and for private attributes.
    type.__setattr__(made, "cache", property(cache))
    for name in native:
        # Core prefers a model's own events of the newer protocol, which no seal would reach, to its chunks.
        if hasattr(base, name):
            type.__setattr__(made, name, None)
    return made


_PYDANTIC_STATE = (
    "__dict__",
    "__pydantic_fields_set__",
    "__pydantic_extra__",
    "__pydantic_private__",
)


def _sealable_model(model: BaseChatModel, control: SealControl, structured: bool) -> BaseChatModel:
    made = _sealable_class(type(model))
    seen = made.__new__(made)
    for name in _PYDANTIC_STATE:
        object.__setattr__(seen, name, getattr(model, name))
    object.__setattr__(seen, _CONTROL, control)
    object.__setattr__(seen, _STRUCTURED, structured)
    return seen


def sealable(
    runnable: Runnable[Any, Any], control: SealControl, config: RunnableConfig | None = None
) -> Runnable[Any, Any]:
    """Returns a copy of a runnable whose answer `control` may end early.

    Chat models are found through bindings, retries, fallbacks, configurable fields and alternatives, and at
    the end of a sequence; a runnable that does not end in a chat model comes back as it is, and so does a
    model that cannot stream: both work, unsealed. The original is not changed.

    Args:
        runnable: A chat model, or a runnable that ends in chat models.
        control: Decides over the call; one control serves one call.
        config: The config of the call, by which configurable models are chosen.
    """
    return _sealable(runnable, control, config, structured=False)


def _sealable(
    runnable: Runnable[Any, Any],
    control: SealControl,
    config: RunnableConfig | None,
    *,
    structured: bool,
) -> Runnable[Any, Any]:
    if isinstance(runnable, BaseChatModel):
        return _sealable_model(runnable, control, structured)
    if isinstance(runnable, RunnableBindingBase):
        # `with_structured_output` says so to core, which keeps it from the model itself.
        structured = structured or "ls_structured_output_format" in runnable.kwargs
        config = merge_configs(runnable.config, config)
        inner = _sealable(runnable.bound, control, config, structured=structured)
        return runnable.model_copy(update={"bound": inner})

    def seen(part: Runnable[Any, Any]) -> Runnable[Any, Any]:
        return _sealable(part, control, config, structured=structured)

    if isinstance(runnable, RunnableWithFallbacks):
        fallbacks = [seen(each) for each in runnable.fallbacks]
        return runnable.model_copy(update={"runnable": seen(runnable.runnable), "fallbacks": fallbacks})
    if isinstance(runnable, RunnableSequence):
        return runnable.model_copy(update={"last": seen(runnable.last)})
    if isinstance(runnable, DynamicRunnable):
        return seen(runnable.prepare(ensure_config(config))[0])
    if (chosen_model := configured_model(runnable, config)) is not None:
        return seen(chosen_model)
    return runnable
