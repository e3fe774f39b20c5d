"""The private names of LangGraph that the tool node needs, and what each is relied on for.

Read from langgraph 1.2.24. A task's id comes from its place in the order of its node's calls, and its
answers lie in its scratchpad; both are reached through the node's config and nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.runtime import Runtime
from langgraph.types import Interrupt, _interrupt_id

CALL = "__pregel_call"
CHECKPOINTER = "__pregel_checkpointer"
CHECKPOINT_MAP = "checkpoint_map"
DURABILITY = "__pregel_durability"
READ = "__pregel_read"
RESUME_MAP = "__pregel_resume_map"
RESUMING = "__pregel_resuming"
SCRATCHPAD = "__pregel_scratchpad"
TASK_ID = "__pregel_task_id"
INTERRUPT = "__interrupt__"
RESUME = "__resume__"
NULL_TASK_ID = "00000000-0000-0000-0000-000000000000"


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
    return _bare(config)(False) is not None


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


@dataclass(frozen=True, slots=True)
class Pauses:
    """What was asked before this run, and what came of the run's bare answer (one without an id).

    LangGraph keeps a bare answer beside the checkpoint, where every later run of that step finds it again,
    and gives it to the first question that comes. So it is taken only by a question that had been shown, and
    whoever asks anew wipes it out before the question is saved: what is there when a question comes again
    was sent after that question.
    """

    asked: Mapping[str, tuple[Interrupt, ...]]
    """The questions, by task id."""

    shown: frozenset[str] = frozenset()
    """Ids of the questions that a bare answer may be for; empty if there is none."""

    bare: Callable[[bool], Any] | None = None
    """Gives the bare answer, or takes it out of the run's memory; None if there is none."""

    kept_at: RunnableConfig | None = None
    """The checkpoint that the bare answer was seen with."""


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


def _levels(config: RunnableConfig) -> list[RunnableConfig]:
    """Returns the checkpoint of each graph around this code, outermost first."""
    conf = _conf(config)
    return [
        {
            "configurable": {
                "thread_id": conf["thread_id"],
                "checkpoint_ns": ns,
                "checkpoint_id": checkpoint_id,
            }
        }
        for ns, checkpoint_id in sorted(conf.get(CHECKPOINT_MAP, {}).items(), key=lambda item: len(item[0]))
    ]


class _Hidden:
    """Stands for a bare answer that is not meant for what runs here."""

    def __init__(self, answer: Callable[[bool], Any]) -> None:
        self.answer = answer

    def __call__(self, consume: bool = False) -> None:  # noqa: ARG002
        return None


def _bare(config: RunnableConfig) -> Callable[[bool], Any]:
    answer = _conf(config)[SCRATCHPAD].get_null_resume
    return answer.answer if isinstance(answer, _Hidden) else answer


def _writes(saved: Any) -> list[tuple[str, str, Any]]:
    return list(saved.pending_writes or ()) if saved is not None else []


def _asked(saved: Any) -> dict[str, tuple[Interrupt, ...]]:
    return {
        task_id: tuple(value) if isinstance(value, list | tuple) else (value,)
        for task_id, channel, value in _writes(saved)
        if channel == INTERRUPT
    }


def _kept(saved: Any) -> Any:
    """Returns the bare answer that is kept with a checkpoint, if any."""
    for task_id, channel, value in _writes(saved):
        if task_id == NULL_TASK_ID and channel == RESUME:
            return value
    return None


def _seen(config: RunnableConfig, here: Any, levels: list[tuple[RunnableConfig, Any]]) -> Pauses:
    """Makes the pauses from this step's checkpoint and, if there is a bare answer, from all around it."""
    bare = _bare(config)
    if (answer := bare(False)) is None:
        return Pauses(_asked(here))

    kept_at, outer = next(
        ((level, saved) for level, saved in levels if _kept(saved) is not None),
        (None, levels[0][1] if levels else here),
    )
    shown = frozenset(question.id for questions in _asked(outer).values() for question in questions)
    if kept_at is not None and _saves_late(config) and _kept(outer) == answer:
        # This run has saved nothing yet: the answer came with an earlier one.
        shown = frozenset()
    return Pauses(_asked(here), shown, bare, kept_at)


def _saves_late(config: RunnableConfig) -> bool:
    return _conf(config).get(DURABILITY) == "exit"


def saved_pauses(config: RunnableConfig, runtime: Runtime[Any]) -> Pauses:
    """Reads from the saver what this step's tasks have asked so far."""
    saver, address = _conf(config).get(CHECKPOINTER), _address(runtime)
    if not saver or not address:
        return Pauses({})
    levels = _levels(config) if _bare(config)(False) is not None else []
    return _seen(config, saver.get_tuple(address), [(level, saver.get_tuple(level)) for level in levels])


async def asaved_pauses(config: RunnableConfig, runtime: Runtime[Any]) -> Pauses:
    """Same as `saved_pauses`, but awaited."""
    saver, address = _conf(config).get(CHECKPOINTER), _address(runtime)
    if not saver or not address:
        return Pauses({})
    levels = _levels(config) if _bare(config)(False) is not None else []
    around = [(level, await saver.aget_tuple(level)) for level in levels]
    return _seen(config, await saver.aget_tuple(address), around)


LOOKS, LOOK_SECONDS = 10, 0.02
"""How often, and at which intervals, to look for an answer that is being saved."""

SPENT = [(RESUME, None)]


def _where_to_spend(config: RunnableConfig, pauses: Pauses) -> Any:
    """Returns the saver that keeps a bare answer, or is about to; None if nothing is to be wiped out."""
    saver = _conf(config).get(CHECKPOINTER)
    if pauses.bare is None or not saver:
        return None
    if _saves_late(config):
        pauses.bare(True)
        if pauses.kept_at is None:
            return None
    return saver


def spend_bare_answer(config: RunnableConfig, pauses: Pauses) -> None:
    """Wipes out the bare answer that was there when this run began; called before a question is saved."""
    saver = _where_to_spend(config, pauses)
    if saver is None:
        return

    kept_at = pauses.kept_at
    for _ in range(LOOKS):
        if kept_at is not None:
            break
        time.sleep(LOOK_SECONDS)
        levels = _levels(config)
        kept_at = next((level for level in levels if _kept(saver.get_tuple(level)) is not None), None)
    saver.put_writes(kept_at or _levels(config)[0], SPENT, NULL_TASK_ID)


async def aspend_bare_answer(config: RunnableConfig, pauses: Pauses) -> None:
    """Same as `spend_bare_answer`, but awaited."""
    saver = _where_to_spend(config, pauses)
    if saver is None:
        return

    kept_at = pauses.kept_at
    for _ in range(LOOKS):
        if kept_at is not None:
            break
        await asyncio.sleep(LOOK_SECONDS)
        for level in _levels(config):
            if _kept(await saver.aget_tuple(level)) is not None:
                kept_at = level
                break
    await saver.aput_writes(kept_at or _levels(config)[0], SPENT, NULL_TASK_ID)


class Answers:
    """The answers that one task has: those of earlier runs, and at most one that came with this run."""

    def __init__(self, config: RunnableConfig, pauses: Pauses, *, takes_bare: bool = True) -> None:
        conf = _conf(config)
        self._config = config
        self._scratchpad = conf[SCRATCHPAD]
        self._sent = cast("Mapping[str, Any]", conf.get(RESUME_MAP) or {})
        resume, ns = self._scratchpad.resume, conf["checkpoint_ns"]

        # LangGraph also takes an answer to the task's first question for its next one.
        came_now = bool(resume) and _interrupt_id(ns, len(resume) - 1) in self._sent
        if not came_now and len(resume) > 1 and _interrupt_id(ns, 0) in self._sent:
            resume.pop()

        answered = {_interrupt_id(ns, index) for index in range(len(resume))}
        waiting = {question.id for question in pauses.asked.get(conf[TASK_ID], ())} - answered
        if self._sent or not takes_bare or not waiting & pauses.shown:
            self._set("get_null_resume", _Hidden(_bare(config)))

        self._earlier = len(resume) - came_now
        # The code around the tool node may have asked, or run graphs, in the same task.
        self._asked = self._count("interrupt_counter")
        self._graphs = self._count("subgraph_counter")

    def _set(self, field: str, value: Any) -> None:
        object.__setattr__(self._scratchpad, field, value)

    def _count(self, counter: str) -> int:
        """Returns how far a counter has come, and leaves it there."""
        count: int = getattr(self._scratchpad, counter)()
        self._set(counter, itertools.count(count).__next__)
        return count

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
            interrupt_counter=itertools.count(self._asked).__next__,
            subgraph_counter=itertools.count(self._graphs).__next__,
            get_null_resume=_Hidden(_bare(self._config)),
        )
        return {
            **self._config,
            "configurable": {**_conf(self._config), SCRATCHPAD: scratchpad, RESUME_MAP: None},
        }
