"""The private names of LangGraph that the tool node needs, and what each is relied on for.

Read from langgraph 1.2.24. A task's id comes from its place in the order of its node's calls, and its
answers lie in its scratchpad; both are reached through the node's config and nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.runtime import Runtime
from langgraph.types import Interrupt, _interrupt_id

CALL = "__pregel_call"
CHECKPOINTER = "__pregel_checkpointer"
READ = "__pregel_read"
RESUME_MAP = "__pregel_resume_map"
RESUMING = "__pregel_resuming"
SCRATCHPAD = "__pregel_scratchpad"
TASK_ID = "__pregel_task_id"
INTERRUPT = "__interrupt__"


def _conf(config: RunnableConfig) -> dict[str, Any]:
    return config.get("configurable", {})


def has_tasks(config: RunnableConfig) -> bool:
    """Tells whether this code runs in a graph's node, where calls can be tasks."""
    return CALL in _conf(config)


def may_be_answered(config: RunnableConfig) -> bool:
    """Tells whether this step may have been begun before, or an answer be there that a pause would take.

    False for the step that a run comes to for the first time, where there is nothing to be read or guarded.
    """
    conf = _conf(config)
    if conf.get(RESUMING) or conf.get(RESUME_MAP):
        return True
    return conf[SCRATCHPAD].get_null_resume(False) is not None


def channel(name: str, config: RunnableConfig) -> Any:
    """Returns the value of one of the graph's channels; None if it has no such channel, or no value."""
    read = _conf(config).get(READ)
    if not isinstance(read, partial) or name not in read.args[1]:
        return None
    return read(name)


@contextmanager
def current(config: RunnableConfig) -> Iterator[None]:
    """Makes this the config that `get_config()` and everything called within find."""
    token = var_child_runnable_config.set(config)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


def task_id_of(config: RunnableConfig) -> str:
    """Returns the id of the task that this code runs in."""
    task_id: str = _conf(config)[TASK_ID]
    return task_id


class _Calls:
    """Counts a node's task calls; goes back to the same number when a retry enters the same place."""

    def __init__(self, start: int) -> None:
        self._count = itertools.count(start)
        self._starts: list[int] = []
        self._attempt = 0
        self._entries = 0

    def __call__(self) -> int:
        return next(self._count)

    def enter(self, attempt: int) -> None:
        if attempt != self._attempt:
            self._attempt, self._entries = attempt, 0
        if self._entries == len(self._starts):
            self._starts.append(next(self._count))
        self._count = itertools.count(self._starts[self._entries])
        self._entries += 1


def steady_calls(config: RunnableConfig, runtime: Runtime[Any]) -> None:
    """Gives the tasks called from here on the same ids in each attempt of the node's retry policy.

    LangGraph counts on through the attempts: a finished task would get a new id in the second, and run
    again (seen with 1.2.24).
    """
    counter = _conf(config)[SCRATCHPAD].call_counter
    if not hasattr(counter, "_counter"):
        return
    if not isinstance(counter._counter, _Calls):
        counter._counter = _Calls(counter())
    info = runtime.execution_info
    counter._counter.enter(info.node_attempt if info is not None else 1)


def ungated(
    config: RunnableConfig, executor: Executor | None, started: set[asyncio.Future[Any]] | None = None
) -> RunnableConfig:
    """Returns a config whose task calls do not wait for one of the run's `max_concurrency` places.

    The node holds such a place itself while it awaits its tasks, so that with few of them both would wait
    for ever (seen). Sync calls run on `executor`, async ones on the loop, noted in `started`.
    """
    call = _conf(config)[CALL]
    if not isinstance(call, partial):
        return config

    def submit(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        wanted = {key: value for key, value in kwargs.items() if not key.startswith("__")}
        if executor is not None:
            return executor.submit(copy_context().run, partial(fn, *args, **wanted))
        future = asyncio.get_running_loop().create_task(fn(*args, **wanted), context=copy_context())
        if started is not None:
            started.add(future)
        return future

    free = partial(call.func, *call.args, **{**call.keywords, "submit": lambda: submit})
    return {**config, "configurable": {**_conf(config), CALL: free}}


Pauses = Mapping[str, tuple[Interrupt, ...]]
"""What was asked, by task id."""


def _address(runtime: Runtime[Any]) -> RunnableConfig | None:
    info = runtime.execution_info
    if info is None or info.thread_id is None:
        return None
    return {
        "configurable": {
            "thread_id": info.thread_id,
            # A task's namespace is its graph's own and one more segment.
            "checkpoint_ns": info.checkpoint_ns.rpartition("|")[0],
            "checkpoint_id": info.checkpoint_id,
        }
    }


def _pauses(saved: Any) -> Pauses:
    writes = saved.pending_writes if saved is not None else None
    return {
        task_id: tuple(value) if isinstance(value, list | tuple) else (value,)
        for task_id, channel, value in writes or ()
        if channel == INTERRUPT
    }


def saved_pauses(config: RunnableConfig, runtime: Runtime[Any]) -> Pauses:
    """Reads from the saver what this step's tasks have asked so far."""
    saver = _conf(config).get(CHECKPOINTER)
    address = _address(runtime)
    return _pauses(saver.get_tuple(address)) if saver and address else {}


async def asaved_pauses(config: RunnableConfig, runtime: Runtime[Any]) -> Pauses:
    """Same as `saved_pauses`, but awaited."""
    saver = _conf(config).get(CHECKPOINTER)
    address = _address(runtime)
    return _pauses(await saver.aget_tuple(address)) if saver and address else {}


def _no_answer(consume: bool = False) -> None:  # noqa: ARG001
    return None


class Answers:
    """The answers that one task has: those of earlier runs, and at most one that came with this run."""

    def __init__(self, config: RunnableConfig, *, takes_bare: bool) -> None:
        conf = _conf(config)
        self._config = config
        self._scratchpad = conf[SCRATCHPAD]
        self._sent = cast("Mapping[str, Any]", conf.get(RESUME_MAP) or {})
        resume, ns = self._scratchpad.resume, conf["checkpoint_ns"]

        # LangGraph also takes an answer to the task's first question for its next one.
        came_now = bool(resume) and _interrupt_id(ns, len(resume) - 1) in self._sent
        if not came_now and len(resume) > 1 and _interrupt_id(ns, 0) in self._sent:
            resume.pop()

        # A bare answer (one without an id) is meant for the pause that was there when the run began. It
        # stays among the step's writes, where the next pause, or the next run, would find it again.
        if not takes_bare or self._sent:
            object.__setattr__(self._scratchpad, "get_null_resume", _no_answer)

        self._earlier = len(resume) - came_now

    @property
    def sent(self) -> Mapping[str, Any]:
        """The answers that came with this run, by interrupt id; empty for a bare one."""
        return self._sent

    def without_new(self) -> RunnableConfig:
        """Returns the task's config as it was before this run brought an answer.

        What asks with it asks the same question under the same id.
        """
        scratchpad = replace(
            self._scratchpad,
            resume=self._scratchpad.resume[: self._earlier],
            interrupt_counter=itertools.count().__next__,
            subgraph_counter=itertools.count().__next__,
            get_null_resume=_no_answer,
        )
        return {
            **self._config,
            "configurable": {**_conf(self._config), SCRATCHPAD: scratchpad, RESUME_MAP: None},
        }
