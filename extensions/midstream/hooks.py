"""Hooks: the application's own word at a boundary.

A hook sees what is committed and may add messages, or end the run. One that fails or is late is logged by
its name and passed over: it never costs what was written. An `interrupt()` in a hook pauses the run like
one in a node; on resume the boundary is run again from its start, so nothing with an effect belongs before
it, and nothing that the boundary comes to is told or noted before its hooks have answered. Where the run has
no step left to commit its last answer first, a hook is asked all the same, but cannot pause: the answer would
be lost.

What a hook says costs the run steps. It is said while there are enough for the model to answer it, and for a
round of tools; else it is passed over, as the log says. Should the model then call tools for which no steps
are left, the run is halted with the reason `recursion_limit`, and does not fail.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_messages
from langchain_core.runnables import run_in_executor
from langgraph.errors import GraphBubbleUp

from midstream._ledger_view import Entry
from midstream.errors import ConfigurationError

logger = logging.getLogger("midstream")

Moment: TypeAlias = Literal["seal", "tools", "end"]
MOMENTS: Final = ("seal", "tools", "end")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryInput:
    """What a hook is told."""

    kind: Moment
    """`seal`: an answer was ended early. `tools`: a batch of tools has run. `end`: the turn is ending."""

    messages: Sequence[BaseMessage]
    """The thread's messages as they are committed."""

    sealed: AIMessage | None = None
    """The answer that was ended early, also as the run is halted after it; None at other boundaries."""

    requests: Sequence[Entry] = ()
    """The requests that this boundary settles: steers, then halts, each in order of acceptance."""

    node: str
    run_id: str
    thread_id: str
    seals_used: int
    """How many seals the turn has used."""

    halt_reason: str | None = None
    """Why the run is ending; None for a natural end and while it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryOutput:
    """What a hook wants. Messages and contexts that are empty or white space do not count."""

    messages: Sequence[BaseMessage | str | Mapping[str, Any]] = ()
    """Messages to inject, as LangChain takes them; a string is a human message."""

    additional_context: str | None = None
    """Text to inject as one more human message, for the model's eyes."""

    prevent_continuation: bool = False
    """True: the run ends here, with everything that was written and injected."""

    stop_reason: str | None = None
    """The halt reason when it ends; None: `prevented by <hook>`."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a hook's answer comes to."""

    messages: tuple[BaseMessage, ...] = ()
    halt_reason: str | None = None
    """None: the run may go on."""


NOTHING = Wish()

BoundaryFunction: TypeAlias = Callable[
    [BoundaryInput], BoundaryOutput | Awaitable[BoundaryOutput | None] | None
]


@dataclass(frozen=True, slots=True)
class BoundaryHook:
    """A callable and the boundaries at which it is asked.

    Raises:
        ConfigurationError: The callable is none, or `at` names no boundary.
    """

    function: BoundaryFunction
    at: Collection[Moment] = field(default=frozenset({"seal"}), kw_only=True)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigurationError(f"a boundary hook must be callable, not {self.function!r}")
        at: Any = [self.at] if isinstance(self.at, str) else self.at
        if not isinstance(at, Collection) or not at or any(each not in MOMENTS for each in list(at)):
            raise ConfigurationError(
                f"a boundary hook is asked at some of 'seal', 'tools' and 'end', not {self.at!r}"
            )
        object.__setattr__(self, "at", frozenset(at))

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", None) or type(self.function).__name__

    def call(self, given: BoundaryInput, timeout: float, *, may_pause: bool = True) -> Wish:
        """Calls the hook on a thread of its own and waits for at most `timeout` seconds.

        Raises:
            GraphBubbleUp: The hook paused the run, as it may.
        """
        context = contextvars.copy_context()
        pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="midstream-hook")
        asked = pool.submit(context.run, self._call_and_wait, given)
        pool.shutdown(wait=False)
        if not concurrent.futures.wait([asked], timeout).done:
            return self._too_late(timeout)
        try:
            return self._wish(asked.result())
        except GraphBubbleUp:
            if may_pause:
                raise
            return self._unasked()
        except (Exception, asyncio.CancelledError) as error:
            return self._failed(error)

    async def acall(self, given: BoundaryInput, timeout: float, *, may_pause: bool = True) -> Wish:
        """Same as `call`, but awaited; a cancelled caller cancels an async hook."""
        task = asyncio.current_task()
        cancelled = task.cancelling() if task is not None else 0
        clock = asyncio.timeout(timeout)
        try:
            async with clock:
                output = await self._output(given)
            return self._wish(output)
        except GraphBubbleUp:
            if may_pause:
                raise
            return self._unasked()
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, TimeoutError) and clock.expired():
                return self._too_late(timeout)
            # What the hook itself awaits may be cancelled too, which is not the run's affair.
            if (
                isinstance(error, asyncio.CancelledError)
                and task is not None
                and task.cancelling() > cancelled
            ):
                raise
            return self._failed(error)

    async def _output(self, given: BoundaryInput) -> Any:
        if is_async(self.function):
            return await cast("Awaitable[Any]", self.function(given))
        # Not on the event loop, which a sync hook may block.
        output = await run_in_executor(None, self.function, given)
        return await output if inspect.isawaitable(output) else output

    def _call_and_wait(self, given: BoundaryInput) -> Any:
        result = self.function(given)
        if not inspect.isawaitable(result):
            return result

        async def wait() -> Any:
            return await result

        return asyncio.run(wait())

    def _wish(self, output: Any) -> Wish:
        if output is None:
            return NOTHING
        if not isinstance(output, BoundaryOutput):
            raise TypeError(f"a boundary hook must return a BoundaryOutput or None, not {output!r}")
        one = isinstance(output.messages, str | Mapping | BaseMessage)
        wanted: Any = [output.messages] if one else output.messages
        messages = [each for each in convert_to_messages(wanted) if not _is_blank(each)]
        if str(output.additional_context or "").strip():
            messages.append(HumanMessage(str(output.additional_context)))
        reason = str(output.stop_reason or "").strip() or f"prevented by {self.name}"
        return Wish(
            messages=tuple(self._signed(each) for each in messages),
            halt_reason=reason if output.prevent_continuation else None,
        )

    def _signed(self, message: BaseMessage) -> BaseMessage:
        source = {**message.additional_kwargs, "source": "hook", "hook": self.name}
        return message.model_copy(update={"additional_kwargs": source})

    def _too_late(self, timeout: float) -> Wish:
        logger.warning("boundary hook %s took more than %s s and is passed over", self.name, timeout)
        return NOTHING

    def _unasked(self) -> Wish:
        logger.warning(
            "boundary hook %s cannot pause the run and is passed over: no steps are left to keep the answer "
            "first; give the run a higher recursion_limit",
            self.name,
        )
        return NOTHING

    def _failed(self, error: BaseException) -> Wish:
        logger.warning("boundary hook %s failed and is passed over", self.name, exc_info=error)
        return NOTHING


def is_async(function: Any) -> bool:
    """Tells whether a callable is known to be async; one that is wrapped may turn out to be so."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (the method itself is asked about)
    )


def _is_blank(message: BaseMessage) -> bool:
    if isinstance(message.content, str):
        return not message.content.strip()
    return not any(
        block.strip()
        if isinstance(block, str)
        else block.get("type") != "text" or block.get("text", "").strip()
        for block in message.content
    )
