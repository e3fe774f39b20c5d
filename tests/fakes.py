"""Chat models that play a script and write down what became of it.

A script is a list of answers, and an answer is a list of steps:

* a text or an `AIMessageChunk`: the next chunk;
* a callable, sync or async, with no argument: called before the next chunk, as if the world moved on;
* an exception: raised;
* `SILENCE`: the provider says nothing more, and does not end either (async only);
* `ENDLESS`: words without end, until somebody closes the stream.

What the provider did is in `calls`: the messages that it was sent, how many chunks it produced, and which of
its generators were closed, in which order and by which task.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.chat_models import agenerate_from_stream, generate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.schemas import Run
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field

SILENCE: Final = object()
ENDLESS: Final = object()

Step = Any
Answer = Sequence[Step]


def calls(name: str, args: str = "{}", *, call_id: str = "call-1") -> list[Step]:
    """The steps by which a tool call streams: its name first, and its arguments in two pieces."""
    half = len(args) // 2
    return [
        AIMessageChunk(
            content="", tool_call_chunks=[tool_call_chunk(name=name, args="", id=call_id, index=0)]
        ),
        AIMessageChunk(content="", tool_call_chunks=[tool_call_chunk(args=args[:half], index=0)]),
        AIMessageChunk(content="", tool_call_chunks=[tool_call_chunk(args=args[half:], index=0)]),
    ]


@dataclass
class Call:
    """One call of the provider."""

    messages: list[BaseMessage]
    options: dict[str, Any]

    reader: object
    """The task, or else the thread, that reads the answer."""

    produced: int = 0
    """How many chunks the provider has made."""

    ended: bool = False
    """Whether the script was played to its end."""

    closed: list[tuple[str, object]] = field(default_factory=list)
    """Which generator was ended, and by which task or thread."""

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.messages]


class WholeChatModel(BaseChatModel):
    """Plays a script, and cannot stream."""

    model: str = "fake-1"
    answers: list[Answer] = Field(default_factory=list)
    """One for each call; later calls are answered `Done.`"""

    # Of no type, so that a copy which is made by the constructor shares the list.
    calls: Any = Field(default_factory=list, exclude=True, repr=False)

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _start(self, messages: list[BaseMessage], options: dict[str, Any]) -> tuple[Call, Answer]:
        call = Call(list(messages), options, _here())
        n = len(self.calls)
        self.calls.append(call)
        return call, self.answers[n] if n < len(self.answers) else ["Done."]

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        call, answer = self._start(messages, kwargs)
        said: AIMessageChunk | None = None
        for step in answer:
            if callable(step):
                step()
            elif isinstance(step, Exception):
                raise step
            else:
                chunk = _chunk(step)
                said = chunk if said is None else said + chunk
                call.produced += 1
        call.ended = True
        assert said is not None
        message = AIMessage(content=said.content, tool_calls=said.tool_calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


class SyncChatModel(WholeChatModel):
    """Plays a script, and streams by `_stream` alone: core bridges `astream` to it."""

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        call, answer = self._start(messages, kwargs)
        try:
            yield from self._play(call, answer)
        finally:
            call.closed.append(("outer", _here()))

    def _play(self, call: Call, answer: Answer) -> Iterator[ChatGenerationChunk]:
        try:
            for step in answer:
                if step is ENDLESS:
                    for n in itertools.count():
                        call.produced += 1
                        yield ChatGenerationChunk(message=_chunk(f" w{n}"))
                elif callable(step):
                    step()
                elif isinstance(step, Exception):
                    raise step
                else:
                    call.produced += 1
                    yield ChatGenerationChunk(message=_chunk(step))
            call.ended = True
        finally:
            call.closed.append(("inner", _here()))


class FakeChatModel(SyncChatModel):
    """Plays a script and streams it by both ways, as a generator inside a generator."""

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages, stop, run_manager, **kwargs))

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages, stop, run_manager, **kwargs))

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        call, answer = self._start(messages, kwargs)
        try:
            async for chunk in self._aplay(call, answer):
                yield chunk
        finally:
            call.closed.append(("outer", _here()))

    async def _aplay(self, call: Call, answer: Answer) -> AsyncIterator[ChatGenerationChunk]:
        try:
            for step in answer:
                if step is SILENCE:
                    await asyncio.Event().wait()
                elif step is ENDLESS:
                    for n in itertools.count():
                        await asyncio.sleep(0)
                        call.produced += 1
                        yield ChatGenerationChunk(message=_chunk(f" w{n}"))
                elif callable(step):
                    if inspect.isawaitable(waiting := step()):
                        await waiting
                elif isinstance(step, Exception):
                    raise step
                else:
                    call.produced += 1
                    yield ChatGenerationChunk(message=_chunk(step))
            call.ended = True
        finally:
            call.closed.append(("inner", _here()))


def _here() -> object:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.current_thread()


def _chunk(step: Any) -> AIMessageChunk:
    # A copy: core writes on what it is given, and a script may be played twice.
    return AIMessageChunk(content=step) if isinstance(step, str) else step.model_copy(deep=True)


class CountingHandler(BaseCallbackHandler):
    """Counts the beginnings and ends of model calls, and keeps the messages with which they ended."""

    def __init__(self) -> None:
        self.starts = 0
        self.errors: list[BaseException] = []
        self.ends: list[AIMessage] = []

    def __repr__(self) -> str:
        return f"<CountingHandler [{self.starts} started, {len(self.ends)} ended, {len(self.errors)} failed]>"

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        self.starts += 1

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        self.ends.append(response.generations[0][0].message)

    def on_llm_error(self, error: BaseException, **kwargs: Any) -> None:
        self.errors.append(error)


class InlineHandler(CountingHandler):
    """Counts where it is told, without the detour of a thread: nothing is missed as a run is cancelled."""

    run_inline = True

    @property
    def left_open(self) -> int:
        """How many calls were announced, and then neither ended nor failed.

        Core itself leaves one open that is cancelled in the moment before it begins, or after it has ended.
        """
        return self.starts - len(self.ends) - len(self.errors)


class RecordingTracer(BaseTracer):
    """Keeps the runs of chat models as a tracer sees them, in the order in which they ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[Run] = []

    def _persist_run(self, run: Run) -> None:
        """Keeps nothing: the tree is not of interest."""

    def _end_trace(self, run: Run) -> None:
        if run.run_type in ("llm", "chat_model"):
            self.ended.append(run)
        super()._end_trace(run)
