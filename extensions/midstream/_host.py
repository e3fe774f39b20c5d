"""Every private name of the host that midstream touches, and nothing else.

Each says the version that it was read from.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from inspect import getclosurevars, isfunction
from types import ModuleType
from typing import Any, NamedTuple

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.channels import binop
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint
from langgraph.config import get_config
from langgraph.errors import EmptyChannelError
from langgraph.graph import START, message
from langgraph.prebuilt import ToolNode
from langgraph.pregel.protocol import PregelProtocol

from midstream._versions import lacks


def _private(module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        raise lacks("langgraph", f"{module.__name__}.{name}") from None


messages_delta_reducer: Callable[[Any, Any], Any] = _private(message, "_messages_delta_reducer")
"""The host's own reducer for messages in a `DeltaChannel`, by which it knows that a channel holds messages.

Read from langgraph 1.2.24, `langgraph.pregel._messages.ensure_message_ids`.
"""


_get_overwrite: Callable[[Any], tuple[bool, Any]] = _private(binop, "_get_overwrite")


def is_overwrite(value: Any) -> bool:
    """Tells whether a write sets a channel's value instead of being reduced into it.

    Read from langgraph 1.2.24, `langgraph.channels.binop._get_overwrite`.
    """
    return _get_overwrite(value)[0]


def saver_of(config: RunnableConfig) -> BaseCheckpointSaver[Any] | None:
    """Returns the saver of the graph that a node runs in, or None where nothing is saved.

    Read from langgraph 1.2.24, `langgraph._internal._constants.CONFIG_KEY_CHECKPOINTER`.
    """
    saver: BaseCheckpointSaver[Any] | None = config.get("configurable", {}).get("__pregel_checkpointer")
    # Asked for what it does: a server's own saver need not be of the class.
    return saver if hasattr(saver, "aget_tuple") else None


def root_run_id() -> str | None:
    """Returns the id of the run that this code works for, in whatever subgraph; None if it was given none.

    Read from langgraph 1.2.20 and 1.2.24, as `input_version` is: the outermost graph's loop has the config of
    its call, while what LangGraph tells a node of its execution has no run id in a subgraph. Read from
    langgraph-api 0.11.1 and 0.16.7, `stream.astream_state`: a run that is taken up again, after its worker
    was lost, has no run id in its config any more. It still is the same run to everybody else, under the id
    that its creation put among the configurables.
    """
    try:
        config = get_config()
    except RuntimeError:  # not in a graph
        return None
    loop = _root_loop_of(config)
    run_id = loop.config.get("run_id") if loop is not None else None
    run_id = run_id or config.get("configurable", {}).get("run_id")
    return str(run_id) if run_id else None


def steps_left(config: RunnableConfig) -> int | None:
    """Returns how many more steps the graph may take after this one, or None if that cannot be told.

    Read from langgraph 1.2.24, `langgraph.managed.is_last_step`: `stop - step` counts this step too.
    """
    scratchpad = config.get("configurable", {}).get("__pregel_scratchpad")
    stop, step = getattr(scratchpad, "stop", None), getattr(scratchpad, "step", None)
    return stop - step - 1 if isinstance(stop, int) and isinstance(step, int) else None


def input_version(config: RunnableConfig) -> str | None:
    """Names the input that a run goes on from: another name after each new input to the thread.

    It is the version of the root graph's input channel. An answer to a question, a run without input, a crash
    and a second attempt leave it as it is, in subgraphs too, and each checkpoint has its own: a fork goes on
    with the input of its past. None where it cannot be told.

    Read from langgraph 1.2.20 and 1.2.24, `langgraph.pregel._runner`: what a task calls others by holds a
    method of the graph's loop, which holds the checkpoint that the task was begun from.
    """
    loop = _root_loop_of(config)
    return input_of(loop.checkpoint) if loop is not None else None


def input_of(checkpoint: Checkpoint) -> str | None:
    """Names the input that a checkpoint's graph took last, as `input_version` does."""
    version = checkpoint["channel_versions"].get(START)
    return None if version is None else str(version)


class RootStep(NamedTuple):
    """Where a node stands in the step of the outermost graph."""

    id: str
    """The checkpoint that the step was begun from; what its tasks do comes into the state after it."""

    is_shared: bool
    """Whether other nodes may work in the same step, or in other steps within it."""

    home: str | None
    """The checkpoint namespace of the graph that is kept for good and is handed what the node writes to the
    channel; None if there is none: a graph in between lacks the channel, or is called by a node's code."""


def root_step(config: RunnableConfig, channel: str) -> RootStep | None:
    """Returns where a node stands in the step of the outermost graph; None where it cannot be told.

    Read from langgraph 1.2.20 and 1.2.24, as `input_version` and `is_below_tools` are; a graph that keeps its
    state from one run to the next (`checkpointer=True`) has a namespace without task ids.
    """
    loop = _loop_of(config)
    home: str | None = None
    is_handed_on, is_shared = True, False
    while loop is not None:
        is_shared = is_shared or loop.is_nested or len(loop.tasks) > 1
        namespace = loop.config["configurable"].get("checkpoint_ns", "") if loop.is_nested else ""
        if home is None and is_handed_on and ":" not in namespace:
            home = namespace
        if not loop.is_nested:
            return RootStep(str(loop.checkpoint["id"]), is_shared, home)
        outer = _loop_of(loop.config)
        if outer is not None:
            task = outer.tasks.get(loop.config["configurable"].get("__pregel_task_id"))
            steps = getattr(task.proc, "steps", [task.proc]) if task is not None else []
            handed = loop.output_keys
            is_handed_on = (
                is_handed_on
                and any(isinstance(step, PregelProtocol) for step in steps)
                and channel in outer.specs
                and channel in ([handed] if isinstance(handed, str) else handed)
            )
        loop = outer
    return None


def is_below_tools(config: RunnableConfig) -> bool:
    """Tells whether a node is in a graph that was called in LangGraph's own tool node, at whatever depth.

    Read from langgraph 1.2.20 and 1.2.24: a graph's loop has the tasks of its step by their ids, and a task
    has the runnable of its node, alone or as the first of a sequence.
    """
    loop = _loop_of(config)
    while loop is not None and loop.is_nested:
        task_id = loop.config["configurable"].get("__pregel_task_id")
        loop = _loop_of(loop.config)
        if loop is not None:
            task = loop.tasks.get(task_id)
            if task is None:  # it is over, and has left this graph running in the background
                return True
            if any(isinstance(step, ToolNode) for step in getattr(task.proc, "steps", [task.proc])):
                return True
    return False


def _root_loop_of(config: RunnableConfig) -> Any:
    loop = _loop_of(config)
    while getattr(loop, "is_nested", False) and (outer := _loop_of(loop.config)) is not None:
        loop = outer
    return loop


def _loop_of(config: RunnableConfig) -> Any:
    call = config.get("configurable", {}).get("__pregel_call")
    if call is not None and not isinstance(call, partial):
        # `langgraph.pregel._retry` wraps it for a node that may take only so long.
        call = getclosurevars(call).nonlocals.get("call") if isfunction(call) else None
    return getattr(getattr(call, "keywords", {}).get("schedule_task"), "__self__", None)


def is_sent(config: RunnableConfig) -> bool:
    """Tells whether a node was started by a `Send`, whose argument is its whole state.

    Read from langgraph 1.2.24, `langgraph.pregel._algo.prepare_single_task`.
    """
    return "__pregel_push" in config.get("metadata", {}).get("langgraph_triggers", ())


def read_channel(config: RunnableConfig, name: str) -> Any:
    """Returns a channel of the graph that a node runs in, also where the node's input is not its state.

    None where the graph has no such channel, or it holds nothing. Read from langgraph 1.2.24,
    `langgraph._internal._constants.CONFIG_KEY_READ`.
    """
    read = config.get("configurable", {}).get("__pregel_read")
    try:
        return read(name, False) if read is not None else None
    except (KeyError, EmptyChannelError):
        return None


def configured_model(runnable: Any, config: RunnableConfig | None) -> Runnable[Any, Any] | None:
    """Returns what `init_chat_model(configurable_fields=...)` stands for in this call; None for all else.

    Read from langchain 1.5.2, `langchain.chat_models.base._ConfigurableModel`, which langchain-core does not
    know and which makes its model anew for each call.
    """
    if type(runnable).__name__ != "_ConfigurableModel":
        return None
    model: Runnable[Any, Any] = runnable._model(config)
    return model


_STAMPS = """
SELECT asked.id, root.checkpoint_id, (
    SELECT count(*) FROM checkpoint_writes
    WHERE thread_id = asked.id AND checkpoint_ns = %(namespace)s AND checkpoint_id = root.checkpoint_id
) AS writes
FROM unnest(%(ids)s::text[]) AS asked (id)
CROSS JOIN LATERAL (
    SELECT checkpoint_id FROM checkpoint_writes
    WHERE thread_id = asked.id AND checkpoint_ns = %(namespace)s
    ORDER BY checkpoint_id DESC LIMIT 1
) AS root
"""


_STOCK = ("_cursor", "aget_tuple", "aput", "aput_writes")


def ledger_stamps(
    saver: Any, namespace: str
) -> Callable[[Collection[str]], Awaitable[dict[str, tuple[str, int]]]] | None:
    """Returns a way to ask how far a namespace of many threads has come; None if the saver has none.

    It returns the newest checkpoint with writes and their number, by thread, for those that have one. Read
    from langgraph-checkpoint-postgres 3.1.0 and 3.2.0: `AsyncPostgresSaver._cursor`, and the saver's table
    with its primary key (thread_id, checkpoint_ns, checkpoint_id, …).
    """
    # Not imported here: whoever has such a saver has done so.
    postgres = sys.modules.get("langgraph.checkpoint.postgres.aio")
    stock = getattr(postgres, "AsyncPostgresSaver", None)
    if stock is None or not isinstance(saver, stock):
        return None
    # One that keeps threads in a manner of its own, such as under other ids, knows alone where they are.
    if any(getattr(type(saver), name, None) is not getattr(stock, name, None) for name in _STOCK):
        return None

    async def read(thread_ids: Collection[str]) -> dict[str, tuple[str, int]]:
        async with saver._cursor() as cursor:
            await cursor.execute(_STAMPS, {"ids": list(thread_ids), "namespace": namespace})
            rows = await cursor.fetchall()
        return {row["id"]: (row["checkpoint_id"], row["writes"]) for row in rows}

    return read


async def server_saver() -> BaseCheckpointSaver[Any]:
    """Returns the saver that the server keeps its threads in."""
    # Read from langgraph-api 0.11.1 and 0.16.7, where path and meaning are the same. Imported here and not
    # above, because the server loads our app while it is itself being imported, and because its modules
    # want the server's environment, which a test of the middleware alone does not have.
    try:
        from langgraph_api._checkpointer import get_checkpointer
    except ImportError as error:
        raise lacks("langgraph-api", "langgraph_api._checkpointer.get_checkpointer") from error

    saver: BaseCheckpointSaver[Any] = await get_checkpointer()
    return saver


def uses_responses_api(model: Any, call: Mapping[str, Any]) -> bool:
    """Tells which of OpenAI's two APIs a call of `ChatOpenAI` goes to.

    Read from langchain-openai 1.7.4, `ChatOpenAI._astream`, which asks the same in the same words.
    """
    chooses = getattr(model, "_use_responses_api", None)
    return chooses is not None and bool(chooses({**call, **(getattr(model, "model_kwargs", None) or {})}))
