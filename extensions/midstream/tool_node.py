"""Runs a message's tool calls: asks first, acts once, and survives any answer.

`ToolNode` extends LangGraph's own, and relies on the methods of it that it overrides or calls (`_func`,
`_afunc`, `_run_one`, `_arun_one`, `_parse_input`, `_extract_state`, `_combine_tool_outputs`; read from
langgraph 1.2.24). Without a gate in the batch, those do all the work.

Otherwise the calls go through phases. What may wait for a person is settled first, and together; then the
rest runs, and is awaited to its end whatever happens to one of them. Each job is a LangGraph task: what it
gave is kept with the step's writes, and when the node is entered again (for another answer, after an error
or a crash, in another process) the finished ones give the same without running. A task's id depends on its
place in the order of the node's tasks. So one phase follows another, each starts its jobs in the order of the
calls, and what those are depends on kept results alone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import replace
from typing import Any, cast, get_args

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import get_executor_for_config
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.config import get_config
from langgraph.errors import ParentCommand
from langgraph.func import task
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest, ToolRuntime
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt

from midstream._tasks import asaved_pauses, channel, current, has_tasks, saved_pauses, steady_calls, ungated
from midstream.approvals import (
    InterruptMode,
    InterruptOnConfig,
    Policy,
    Questions,
    Schema,
    decision_of,
    not_run,
    policies,
)
from midstream.batch import EXECUTION, Ask, Batch, Durable, Job, Output, Rules, Run
from midstream.errors import ConfigurationError
from midstream.pauses import aasking, asking
from midstream.run import inside_tool, run_id_of
from midstream.state import Halt, halt_of, preemption_of


class ToolNode(LangGraphToolNode):
    """Runs tool calls; those that need a person are settled before any other starts, and each runs once.

    The order holds for calls that come in one batch, as they do from an edge. Sent one at a time
    (`Send("tools", [call])`) each still runs once, but none waits for another.

    Args:
        tools: What this node can run, as for LangGraph's `ToolNode`.
        interrupting_tools: Names of tools that call `interrupt()` in their bodies. They run before all
            others. A name that this node does not run has no effect.
        interrupt_on: Which tools need approval, as for LangChain's `HumanInTheLoopMiddleware`: `True`, or a
            dict with `allowed_decisions` and, if wished, `description` and `when`.
        interrupt_mode: `"batched"` asks one question about all calls, `"per_call"` one about each.
        host_tools: Tools that the host runs, such as a browser: their schemas, in any form that a model can
            be given. A call of one pauses with a request of type `tool_execution`.
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
        if isinstance(interrupting_tools, str):
            raise ConfigurationError("interrupting_tools must be a list of names, not a string")

        host = _schemas(host_tools)
        if twice := sorted(host.keys() & self.tools_by_name.keys()):
            raise ConfigurationError(f"{twice} are in tools and in host_tools: leave them in one of the two")
        known: dict[str, Schema] = {**self.tools_by_name, **host}
        self._rules = Rules(
            policies=policies(interrupt_on, known),
            questions=Questions(known),
            interrupting=frozenset(interrupting_tools) & self.tools_by_name.keys(),
            host=frozenset(host),
            mode=interrupt_mode,
            durable=durable,
        )

    def _func(self, input: Any, config: RunnableConfig, runtime: Runtime[Any]) -> Any:  # noqa: A002
        calls, input_type = self._parse_input(input)
        if halt := _halt(input, config, runtime):
            outputs: list[Any] = [not_run(call, halt["reason"]) for call in calls]
            return self._combine_tool_outputs(outputs, input_type)
        if not self._needs_phases(calls, config):
            return super()._func(input, config, runtime)

        work = _Work(self, Batch(calls, self._rules), input_type, self._extract_state(input, config), runtime)
        steady_calls(config, runtime)
        with ExitStack() as stack:
            if config.get("max_concurrency") or self._rules.durable == "never":
                work.executor = stack.enter_context(get_executor_for_config(config))
            if config.get("max_concurrency"):
                stack.enter_context(current(ungated(config, work.executor)))

            work.batch.gate(work.start_gates().result())
            if not work.fresh:
                work.batch.pauses = saved_pauses(config, runtime)
            for phase in work.batch.phases:
                jobs = phase()
                futures = [work.start(job) for job in jobs]
                concurrent.futures.wait(futures)
                work.batch.take(jobs, [_result(future) for future in futures])

        return self._combine_tool_outputs(cast("list[Any]", work.batch.outputs()), input_type)

    async def _afunc(self, input: Any, config: RunnableConfig, runtime: Runtime[Any]) -> Any:  # noqa: A002
        calls, input_type = self._parse_input(input)
        if halt := _halt(input, config, runtime):
            outputs: list[Any] = [not_run(call, halt["reason"]) for call in calls]
            return self._combine_tool_outputs(outputs, input_type)
        if not self._needs_phases(calls, config):
            return await super()._afunc(input, config, runtime)

        work = _Work(self, Batch(calls, self._rules), input_type, self._extract_state(input, config), runtime)
        steady_calls(config, runtime)
        started: set[asyncio.Future[Any]] = set()
        with ExitStack() as stack:
            if config.get("max_concurrency"):
                stack.enter_context(current(ungated(config, None, started)))

            work.batch.gate(await work.astart_gates())
            if not work.fresh:
                work.batch.pauses = await asaved_pauses(config, runtime)
            for phase in work.batch.phases:
                jobs = phase()
                results = await _all([work.astart(job) for job in jobs], started)
                work.batch.take(jobs, results)

        return self._combine_tool_outputs(cast("list[Any]", work.batch.outputs()), input_type)

    def _run_one(self, call: ToolCall, input_type: Any, tool_runtime: ToolRuntime) -> Any:
        with inside_tool():
            return super()._run_one(call, input_type, tool_runtime)

    async def _arun_one(self, call: ToolCall, input_type: Any, tool_runtime: ToolRuntime) -> Any:
        with inside_tool():
            return await super()._arun_one(call, input_type, tool_runtime)

    def _needs_phases(self, calls: Sequence[ToolCall], config: RunnableConfig) -> bool:
        gated = any(self._rules.gates(call) for call in calls)
        if has_tasks(config):
            return gated or self._rules.durable == "always"
        if gated and any(self._rules.asks(call) for call in calls):
            raise RuntimeError(
                "this batch asks for approval or for the host's work, which needs a graph: "
                "add the tool node to a StateGraph and compile it with a checkpointer"
            )
        return False


class _Work:
    """Starts the jobs of one batch; what the two colours of the node share."""

    def __init__(
        self, node: ToolNode, batch: Batch, input_type: Any, state: Any, runtime: Runtime[Any]
    ) -> None:
        self.batch = batch
        self.executor: Executor | None = None
        self.fresh = False
        """Whether this run is the first to work on the batch: then nothing in it was asked before."""

        self._node = node
        self._input_type = input_type
        self._state = state
        self._runtime = runtime

    def start_gates(self) -> Future[dict[int, str]]:
        """Starts to find out which calls need approval; once, for `when` may give another answer later."""
        return cast("Future[dict[int, str]]", _task("gates", self._gates)())

    def astart_gates(self) -> Awaitable[dict[int, str]]:
        """Same as `start_gates`, but awaited."""

        async def gates() -> dict[int, str]:
            return self._gates()

        return cast("Awaitable[dict[int, str]]", _task("gates", gates)())

    def start(self, job: Job) -> Future[Any]:
        """Starts a job; its task gives the same result whenever this step is entered again."""
        if isinstance(job, Run) and self._keeps_nothing(job):
            assert self.executor is not None
            return self.executor.submit(copy_context().run, self._run, job.call, get_config())

        def body(config: RunnableConfig) -> Any:
            return self._ask(job) if isinstance(job, Ask) else self._run(job.call, config)

        def do(**_: Any) -> Any:
            return asking(body, self.batch.pauses)

        return cast("Future[Any]", _task(self._name(job), do)(**_shown(job)))

    def astart(self, job: Job) -> Awaitable[Any]:
        """Same as `start`, but awaited."""
        if isinstance(job, Run) and self._keeps_nothing(job):
            return self._arun(job.call, get_config())

        async def body(config: RunnableConfig) -> Any:
            return self._ask(job) if isinstance(job, Ask) else await self._arun(job.call, config)

        async def do(**_: Any) -> Any:
            return await aasking(body, self.batch.pauses)

        return cast("Awaitable[Any]", _task(self._name(job), do)(**_shown(job)))

    def _gates(self) -> dict[int, str]:
        self.fresh = True
        texts = {}
        for index, call in enumerate(self.batch.calls):
            policy = self.batch.rules.policies.get(call["name"])
            if policy is not None and self._is_asked(policy, call):
                texts[index] = policy.describe(call, self._state, self._runtime)
        return texts

    def _is_asked(self, policy: Policy, call: ToolCall) -> bool:
        if policy.when is None:
            return True
        tool = self._node.tools_by_name.get(call["name"])
        runtime = self._tool_runtime(call, get_config())
        return policy.when(ToolCallRequest(tool_call=call, tool=tool, state=self._state, runtime=runtime))

    def _ask(self, job: Ask) -> Any:
        answer = interrupt(job.question.value, response_schema=job.question.answer)
        if job.name == EXECUTION:
            return {"content": answer.content, "status": answer.status}
        return [decision_of(decision) for decision in getattr(answer, "decisions", (answer,))]

    def _run(self, call: ToolCall, config: RunnableConfig) -> Output:
        try:
            return cast(
                "Output", self._node._run_one(call, self._input_type, self._tool_runtime(call, config))
            )
        except ParentCommand as handoff:
            return _handed_over(handoff, config)

    async def _arun(self, call: ToolCall, config: RunnableConfig) -> Output:
        runtime = self._tool_runtime(call, config)
        try:
            return _identified(await self._node._arun_one(call, self._input_type, runtime))
        except ParentCommand as handoff:
            return _handed_over(handoff, config)

    def _tool_runtime(self, call: ToolCall, config: RunnableConfig) -> Any:
        runtime = self._runtime
        return ToolRuntime(
            state=self._state,
            tool_call_id=call["id"],
            config=config,
            context=runtime.context,
            store=runtime.store,
            stream_writer=runtime.stream_writer,
            tools=list(self._node.tools_by_name.values()),
            execution_info=runtime.execution_info,
            server_info=runtime.server_info,
        )

    def _keeps_nothing(self, job: Run) -> bool:
        rules = self.batch.rules
        return rules.durable == "never" and job.call["name"] not in rules.interrupting

    def _name(self, job: Job) -> str:
        """The task's name, which the stream shows; a model may make one up that breaks a namespace."""
        if isinstance(job, Ask):
            return job.name
        name = job.call["name"]
        return name if name in self._node.tools_by_name and not set(name) & set(":|") else "unknown_tool"


def _task(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    untyped: Any = task(name=name)
    made: Callable[..., Any] = untyped(function)
    return made


def _shown(job: Job) -> dict[str, Any]:
    """The task's input, as traces and the `tasks` stream show it."""
    return dict(job.question.value) if isinstance(job, Ask) else {"call": job.call}


def _handed_over(handoff: ParentCommand, config: RunnableConfig) -> Command[Any]:
    """Returns the command by which a graph inside a tool speaks to the graph of this node.

    LangGraph takes it at the task that the tool runs in, which has nowhere to write it to.
    """
    command: Command[Any] = handoff.args[0]
    if command.graph != config["configurable"]["checkpoint_ns"]:
        raise handoff
    return replace(command, graph=None)


def _identified(output: Any) -> Output:
    """Gives a result its id before it is kept, so that it has the same one in every run that shows it."""
    for message in output if isinstance(output, list) else (output,):
        if isinstance(message, ToolMessage) and message.id is None:
            message.id = str(uuid.uuid4())
    return cast("Output", output)


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


def _halt(input: Any, config: RunnableConfig, runtime: Runtime[Any]) -> Halt | None:  # noqa: A002
    """Returns why the run was halted, if it was; read from the channel where the input is not the state."""
    if isinstance(input, list):
        state: Any = {"preemption": channel("preemption", config)}
    elif isinstance(input, dict) and input.get("__type") == "tool_call_with_context":
        state = input["state"]
    else:
        state = input
    if not preemption_of(state).get("halt"):
        return None
    return halt_of(state, run_id_of(runtime))


def _schemas(tools: Iterable[Any]) -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    for tool in tools:
        if isinstance(tool, BaseTool):
            found[tool.name] = tool
        else:
            function = convert_to_openai_tool(tool)["function"]
            found[function["name"]] = function.get("parameters", {"type": "object"})
    return found


def _one_of(option: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise ConfigurationError(f"{option} must be one of {list(values)}, not {value!r}")
