"""Runs a message's tool calls: asks first, acts once, and survives any answer.

`ToolNode` extends LangGraph's own, and relies on the methods of it that are overridden or called here and in
`jobs` (`_func`, `_afunc`, `_run_one`, `_arun_one`, `_parse_input`, `_extract_state`, `_combine_tool_outputs`;
read from langgraph 1.2.24). Without a gate in the batch, they do all the work.

Otherwise the calls go through phases. What may wait for a person is settled first, and together; then the
rest runs, and is awaited to its end whatever happens to one of them. Each job is a LangGraph task: what it
gave is kept with the step's writes, and when the node is entered again (for another answer, after an error
or a crash, in another process) the finished ones give the same without running. A task's id depends on its
place in the order of the node's tasks. So one phase follows another, each starts its jobs in the order of the
calls, and what those are depends on kept results alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, cast, get_args

from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import get_executor_for_config
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.errors import GraphInterrupt
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.runtime import Runtime

from midstream._host import root_step, saver_of
from midstream._ledger_view import View
from midstream._tasks import (
    asaved_pauses,
    channel,
    current,
    has_tasks,
    may_be_answered,
    saved_pauses,
    steady_calls,
    ungated,
)
from midstream.approvals import InterruptMode, InterruptOnConfig, Questions, not_run, policies
from midstream.arguments import Schema
from midstream.batch import Batch, Durable, Rules
from midstream.boundary import halt_ahead
from midstream.errors import ConfigurationError
from midstream.jobs import Work
from midstream.ledger import Ledger
from midstream.run import inside_tool, is_inside_tool, run_id_of, run_of
from midstream.state import Halt, PreemptionState, halt_of, preemption_of

logger = logging.getLogger("midstream")

_PAUSED = "__midstream_paused"
"""The attribute of a pause on its way out that names the tool which it came from."""


class ToolNode(LangGraphToolNode):
    """Runs tool calls; those that need a person are settled before any other starts, and each runs once.

    The order holds for calls that come in one batch, as they do from an edge. Sent one at a time
    (`Send("tools", [call])`) each still runs once, but none waits for another, and if one fails, LangGraph
    cancels the others, which then run again from their beginning.

    Answer by interrupt id, `Command(resume={id: answer})`. LangGraph refuses an answer without an id while
    several questions are open, and a mapping with a key that is no id, before this node sees it: that run
    fails, the questions stay. An answer without an id is taken only by a question that was shown before.

    Args:
        tools: What this node can run, as for LangGraph's `ToolNode`.
        interrupting_tools: Names of tools that call `interrupt()` in their bodies. They run before all
            others. A name that this node does not run has no effect. Where one is missing, and no other gate
            is in the batch, its siblings run again, as with LangGraph's own node; a warning says so. Give
            each `interrupt()` a `response_schema`, a pydantic model: without it, whatever comes is taken for
            the answer. What catches `ValueError` around it, in the body or in a wrapper, also catches the
            invalid answer.
        interrupt_on: Which tools need approval, as for LangChain's `HumanInTheLoopMiddleware`: `True`, or a
            dict with `allowed_decisions` and, if wished, `description` and `when`, both of them plain
            functions.
        interrupt_mode: `"batched"` asks one question about all calls, `"per_call"` one about each.
        host_tools: Tools that the host runs, such as a browser: their schemas, in any form that a model can
            be given. A call of one pauses with a request of type `tool_execution`; one whose arguments do
            not fit the schema is answered with an error, and the host is not asked.
        durable: Which calls are LangGraph tasks, whose results are kept and have to be serialisable.
            `"auto"`: those of a batch with a gate; `"always"`: all; `"never"`: none that does not itself
            pause (then host tools are waited for before any other tool runs).
        options: Everything that LangGraph's `ToolNode` takes.

    Raises:
        ConfigurationError: A gate would be open, or an option is none of those above.
    """

    def __init__(
        self,
        tools: Sequence[BaseTool | Callable[..., Any]],
        *,
        interrupting_tools: Iterable[str] = (),
        interrupt_on: Mapping[str, bool | InterruptOnConfig] | None = None,
        interrupt_mode: InterruptMode = "batched",
        host_tools: Iterable[Any] = (),
        durable: Durable = "auto",
        **options: Any,
    ) -> None:
        super().__init__(tools, **options)
        _one_of("interrupt_mode", interrupt_mode, get_args(InterruptMode))
        _one_of("durable", durable, get_args(Durable))
        pausing = _names(interrupting_tools)
        host = _schemas(host_tools)
        if twice := sorted(host.keys() & self.tools_by_name.keys()):
            raise ConfigurationError(f"{twice} are in tools and in host_tools: leave them in one of the two")
        known: dict[str, Schema] = {**self.tools_by_name, **host}
        self._rules = Rules(
            policies=policies(interrupt_on, known),
            questions=Questions(known),
            interrupting=pausing & self.tools_by_name.keys(),
            host=frozenset(host),
            mode=interrupt_mode,
            durable=durable,
        )
        self._told: set[str] = set()
        """Tools that have been warned of."""

    def _func(self, input: Any, config: RunnableConfig, runtime: Runtime[Any]) -> Any:  # noqa: A002
        calls, input_type = self._parse_input(input)
        if halt := _halt(input, config, runtime):
            return self._answered(calls, input_type, halt)
        if not self._needs_phases(calls, config):
            try:
                with inside_tool():
                    return super()._func(input, config, runtime)
            except GraphInterrupt as pause:
                self._tell_of_repeats(pause, calls)
                raise

        batch = Batch(calls, self._rules)
        work = Work(self, batch, input_type, self._extract_state(input, config), runtime)
        if may_be_answered(config):
            work.pauses = saved_pauses(config, runtime)
        if single := batch.single:
            batch.take(single, [work.here(single[0])])
            return self._combined(batch, input_type)

        steady_calls(config, runtime)
        with ExitStack() as stack:
            if config.get("max_concurrency") or self._rules.durable == "never":
                work.executor = stack.enter_context(get_executor_for_config(config))
            if config.get("max_concurrency"):
                stack.enter_context(current(ungated(config, work.executor)))

            batch.gate(work.gates().result() if batch.has_conditions else work.descriptions())
            if single := batch.single:
                batch.take(single, [work.here(single[0])])
                return self._combined(batch, input_type)

            for phase in batch.phases:
                jobs = phase()
                futures = [work.start(job) for job in jobs]
                # Each is waited for, before any of their errors is raised.
                batch.take(jobs, [_result(future) for future in futures])
                if work.was_answered and batch.is_open and (requests := _requests(input, config, runtime)):
                    ledger, value, place = requests
                    batch.halt_for(_halt_ahead(ledger.view(), value, runtime, *place))

        return self._combined(batch, input_type)

    async def _afunc(self, input: Any, config: RunnableConfig, runtime: Runtime[Any]) -> Any:  # noqa: A002
        calls, input_type = self._parse_input(input)
        if halt := _halt(input, config, runtime):
            return self._answered(calls, input_type, halt)
        if not self._needs_phases(calls, config):
            try:
                with inside_tool():
                    return await super()._afunc(input, config, runtime)
            except GraphInterrupt as pause:
                self._tell_of_repeats(pause, calls)
                raise

        batch = Batch(calls, self._rules)
        work = Work(self, batch, input_type, self._extract_state(input, config), runtime)
        if may_be_answered(config):
            work.pauses = await asaved_pauses(config, runtime)
        if single := batch.single:
            batch.take(single, [await work.ahere(single[0])])
            return self._combined(batch, input_type)

        steady_calls(config, runtime)
        started: set[asyncio.Future[Any]] = set()
        with ExitStack() as stack:
            if config.get("max_concurrency"):
                stack.enter_context(current(ungated(config, None, started)))

            batch.gate(await work.agates() if batch.has_conditions else work.descriptions())
            if single := batch.single:
                batch.take(single, [await work.ahere(single[0])])
                return self._combined(batch, input_type)

            for phase in batch.phases:
                jobs = phase()
                batch.take(jobs, await _all([work.astart(job) for job in jobs], started))
                if work.was_answered and batch.is_open and (requests := _requests(input, config, runtime)):
                    ledger, value, place = requests
                    batch.halt_for(_halt_ahead(await ledger.aview(), value, runtime, *place))

        return self._combined(batch, input_type)

    def _run_one(self, call: ToolCall, input_type: Any, tool_runtime: Any) -> Any:
        try:
            return super()._run_one(call, input_type, tool_runtime)
        except GraphInterrupt as pause:
            setattr(pause, _PAUSED, call["name"])
            raise

    async def _arun_one(self, call: ToolCall, input_type: Any, tool_runtime: Any) -> Any:
        try:
            return await super()._arun_one(call, input_type, tool_runtime)
        except GraphInterrupt as pause:
            setattr(pause, _PAUSED, call["name"])
            raise

    def _tell_of_repeats(self, pause: GraphInterrupt, calls: Sequence[ToolCall]) -> None:
        """Warns, once for each tool, that a pause beside other calls makes them run again."""
        name = getattr(pause, _PAUSED, None)
        if len(calls) < 2 or name is None or name in self._told:
            return
        self._told.add(name)
        logger.warning(
            "tool %r paused beside other calls, which run again when it is answered: list it in "
            '`interrupting_tools` of the tool node %r, or give that `durable="always"`',
            name,
            self.name,
        )

    def _combined(self, batch: Batch, input_type: Any) -> Any:
        return self._combine_tool_outputs(cast("list[Any]", batch.outputs()), input_type)

    def _answered(self, calls: Sequence[ToolCall], input_type: Any, halt: Halt) -> Any:
        return self._combine_tool_outputs([not_run(call, halt["reason"]) for call in calls], input_type)

    def _needs_phases(self, calls: Sequence[ToolCall], config: RunnableConfig) -> bool:
        gated = any(call["name"] in self._rules.gated for call in calls)
        if gated and (nameless := [call["name"] for call in calls if call["id"] is None]):
            raise ValueError(f"a call of {nameless[0]!r} has no id, by which its result could be told apart")
        if has_tasks(config):
            return gated or self._rules.durable == "always"
        if gated and any(self._rules.asks(call) for call in calls):
            raise RuntimeError(
                "this batch asks for approval or for the host's work, which needs a graph: "
                "add the tool node to a StateGraph and compile it with a checkpointer"
            )
        return False


def _result(future: Future[Any]) -> Any:
    error = future.exception()
    return future.result() if error is None else error


async def _all(jobs: Sequence[Awaitable[Any]], started: Collection[asyncio.Future[Any]]) -> list[Any]:
    """Awaits every job to its end, and returns what each gave or raised.

    A caller that is cancelled finds all of them cancelled, and ended those that it started itself.
    """
    futures = [asyncio.ensure_future(job) for job in jobs]
    try:
        return await asyncio.gather(*futures, return_exceptions=True)
    finally:
        if unfinished := [future for future in (*futures, *started) if not future.done()]:
            await asyncio.wait(unfinished)


def _preemption(input: Any, config: RunnableConfig) -> PreemptionState:  # noqa: A002
    """Returns the channel's value; read from the channel where the input is not the state."""
    if isinstance(input, list):
        return preemption_of({"preemption": channel("preemption", config)})
    if isinstance(input, dict) and input.get("__type") == "tool_call_with_context":
        return preemption_of(input["state"])
    return preemption_of(input)


def _halt(input: Any, config: RunnableConfig, runtime: Runtime[Any]) -> Halt | None:  # noqa: A002
    """Returns why the run was halted, if it was."""
    value = _preemption(input, config)
    return halt_of({"preemption": value}, run_id_of(runtime)) if value.get("halt") else None


def _halt_ahead(
    view: View, value: PreemptionState, runtime: Runtime[Any], step: str | None, graph: str
) -> str | None:
    """Returns the reason of a halt that is to come; that of one over which a hook is still asked first."""
    run = run_of(runtime)
    return run.halt["reason"] if run.halt is not None else halt_ahead(view, value, run.id, step, graph)


def _requests(
    input: Any,  # noqa: A002
    config: RunnableConfig,
    runtime: Runtime[Any],
) -> tuple[Ledger, PreemptionState, tuple[str | None, str]] | None:
    """Returns the thread's requests, what became of them, and the root graph's step and the graph that this
    is; None where this node has no say in them.

    They stay as they are: a model node settles them. Only, nothing is begun that somebody has asked to stop
    while this batch waited for its answers.
    """
    saver, info, value = saver_of(config), runtime.execution_info, _preemption(input, config)
    if saver is None or info is None or info.thread_id is None or not value or is_inside_tool(config):
        return None
    step = root_step(config, "preemption")
    place = step.id if step is not None else None, (info.checkpoint_ns or "").rpartition("|")[0]
    return Ledger(saver, info.thread_id), value, place


def _names(names: Iterable[Any]) -> frozenset[str]:
    if isinstance(names, str):
        raise ConfigurationError("interrupting_tools must be a list of names, not a string")
    listed = list(names)
    for name in listed:
        if not isinstance(name, str):
            raise ConfigurationError(
                f"interrupting_tools must list names, not {name!r}: give the name that the tool is called by"
            )
    return frozenset(listed)


def _schemas(tools: Iterable[Any]) -> dict[str, Schema]:
    if isinstance(tools, str | Mapping | BaseTool):
        raise ConfigurationError(f"host_tools must be a list of tools, not {tools!r}")
    found: dict[str, Schema] = {}
    for tool in tools:
        name, schema = _named_schema(tool)
        if name in found:
            raise ConfigurationError(f"host_tools has {name!r} twice")
        found[name] = schema
    return found


def _named_schema(tool: Any) -> tuple[str, Schema]:
    if isinstance(tool, BaseTool):
        return tool.name, tool
    try:
        function = convert_to_openai_tool(tool)["function"]
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(
            f"host_tools has {tool!r}, which says nothing of its arguments: give a tool, or a dict with "
            "`name`, `description` and `parameters`"
        ) from error
    return function["name"], function.get("parameters", {"type": "object"})


def _one_of(option: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise ConfigurationError(f"{option} must be one of {list(values)}, not {value!r}")
