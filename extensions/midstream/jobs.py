"""Starts the jobs of a batch, each as a LangGraph task of its own.

LangGraph prepares a task's function anew for each call, unless it finds the function in its module. So the
functions stand here, and what they are to do reaches them by a context variable, which flows into the task.
A function has the same name in both colours: the name is part of the task's id, and a thread that was paused
by `invoke` may be resumed by `ainvoke`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from contextvars import ContextVar, copy_context
from dataclasses import replace
from inspect import isawaitable, iscoroutine
from typing import Any, cast

from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.errors import ParentCommand
from langgraph.func import task
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest, ToolRuntime
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt

from midstream._tasks import Pauses, task_id_of
from midstream.approvals import Policy, decision_of
from midstream.batch import Ask, Batch, Job, Output, Run
from midstream.pauses import aasking, asking
from midstream.run import inside_tool

_at_hand: ContextVar[tuple[Work, Job | None]] = ContextVar("midstream_job")


class Work:
    """What the jobs of one batch need, whichever colour they run in."""

    def __init__(
        self,
        node: LangGraphToolNode,
        batch: Batch,
        input_type: Any,
        state: Any,
        runtime: Runtime[Any],
    ) -> None:
        self.executor: Executor | None = None
        """Where the sync calls run that are no tasks."""

        self.pauses: Pauses | None = None
        """What was asked before; None where no answer can be."""

        self.was_answered = False
        """Whether something that had been asked was answered in this run."""

        info = runtime.execution_info
        self._retried = info is not None and info.node_attempt > 1

        self._node = node
        self._batch = batch
        self._input_type = input_type
        self._state = state
        self._runtime = runtime

    def gates(self) -> Future[dict[int, str]]:
        """Starts to find out which calls need approval; once, for `when` may say something else later."""
        _at_hand.set((self, None))
        return cast("Future[dict[int, str]]", _GATES())

    def agates(self) -> Awaitable[dict[int, str]]:
        """Same as `gates`, but awaited."""
        _at_hand.set((self, None))
        return cast("Awaitable[dict[int, str]]", _AGATES())

    def start(self, job: Job) -> Future[Any]:
        """Starts a job; its task gives the same result whenever this step is entered again."""
        if isinstance(job, Run) and self._batch.keeps_nothing_of(job):
            assert self.executor is not None
            return self.executor.submit(copy_context().run, self._run, job.call, get_config())
        _at_hand.set((self, job))
        return cast("Future[Any]", _QUESTION(job.shown) if isinstance(job, Ask) else _TOOL_CALL(job.call))

    def astart(self, job: Job) -> Awaitable[Any]:
        """Same as `start`, but awaited."""
        if isinstance(job, Run) and self._batch.keeps_nothing_of(job):
            return self._arun(job.call, get_config())
        _at_hand.set((self, job))
        return cast(
            "Awaitable[Any]", _AQUESTION(job.shown) if isinstance(job, Ask) else _ATOOL_CALL(job.call)
        )

    def here(self, job: Job) -> Any:
        """Does a job, or pauses, in the task that this code runs in."""

        def body(config: RunnableConfig) -> Any:
            return self._ask(job) if isinstance(job, Ask) else self._run(job.call, config)

        if self.pauses is None:
            return body(get_config())
        result = asking(body, self.pauses, retried=self._retried)
        self._note_answer()
        return result

    async def ahere(self, job: Job) -> Any:
        """Same as `here`, but awaited."""

        async def body(config: RunnableConfig) -> Any:
            return self._ask(job) if isinstance(job, Ask) else await self._arun(job.call, config)

        if self.pauses is None:
            return await body(get_config())
        result = await aasking(body, self.pauses, retried=self._retried)
        self._note_answer()
        return result

    def _note_answer(self) -> None:
        if self._was_asked():
            self.was_answered = True

    def _was_asked(self) -> bool:
        return self.pauses is not None and bool(self.pauses.asked.get(task_id_of(get_config())))

    def descriptions(self) -> dict[int, str]:
        """Returns the text for each call that needs approval."""
        texts = {}
        for index, call in enumerate(self._batch.calls):
            policy = self._batch.rules.policies.get(call["name"])
            if policy is not None and self._is_asked(policy, call):
                texts[index] = policy.describe(call, self._state, self._runtime)
        return texts

    def _is_asked(self, policy: Policy, call: ToolCall) -> bool:
        if policy.when is None:
            return True
        tool = self._node.tools_by_name.get(call["name"])
        runtime = self._tool_runtime(call, get_config())
        request = ToolCallRequest(tool_call=call, tool=tool, state=self._state, runtime=runtime)
        asked: Any = policy.when(request)
        if isawaitable(asked):
            if iscoroutine(asked):
                asked.close()
            raise TypeError(f"`when` of {call['name']!r} must be a plain function: nothing awaits this one")
        return bool(asked)

    def _ask(self, job: Ask) -> Any:
        asked = job.question.value
        # What the host was asked before it may have done, whatever a newer schema says of it.
        checks = job.of_host and not self._was_asked()
        if checks and (misfit := self._batch.rules.questions.misfit(asked["name"], asked["args"])):
            return {"content": misfit, "status": "error"}

        answer = interrupt(asked, response_schema=job.question.answer)
        if job.of_host:
            return {"content": answer.content, "status": answer.status}
        return [decision_of(decision) for decision in getattr(answer, "decisions", (answer,))]

    def _run(self, call: ToolCall, config: RunnableConfig) -> Output:
        runtime = self._tool_runtime(call, config)
        try:
            with inside_tool():
                return self._node._run_one(call, self._input_type, runtime)
        except ParentCommand as handoff:
            return _handed_over(handoff, config)

    async def _arun(self, call: ToolCall, config: RunnableConfig) -> Output:
        runtime = self._tool_runtime(call, config)
        try:
            with inside_tool():
                return await self._node._arun_one(call, self._input_type, runtime)
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


def _handed_over(handoff: ParentCommand, config: RunnableConfig) -> Command[Any]:
    """Returns the command by which a graph inside a tool speaks to the graph of this node.

    LangGraph takes it at the task that the tool runs in, which has nowhere to write it to.
    """
    command: Command[Any] = handoff.args[0]
    if command.graph != config["configurable"]["checkpoint_ns"]:
        raise handoff
    return replace(command, graph=None)


def _gates() -> dict[int, str]:
    work, _ = _at_hand.get()
    return work.descriptions()


async def _agates() -> dict[int, str]:
    work, _ = _at_hand.get()
    return work.descriptions()


def _question(asked: Any) -> Any:  # noqa: ARG001  # shown in traces
    work, job = _at_hand.get()
    return work.here(cast("Job", job))


async def _aquestion(asked: Any) -> Any:  # noqa: ARG001
    work, job = _at_hand.get()
    return await work.ahere(cast("Job", job))


def _tool_call(call: ToolCall) -> Any:  # noqa: ARG001
    work, job = _at_hand.get()
    return work.here(cast("Job", job))


async def _atool_call(call: ToolCall) -> Any:  # noqa: ARG001
    work, job = _at_hand.get()
    return await work.ahere(cast("Job", job))


def _task(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    untyped: Any = task(name=name)
    made: Callable[..., Any] = untyped(function)
    return made


_GATES, _AGATES = _task("gates", _gates), _task("gates", _agates)
_QUESTION, _AQUESTION = _task("question", _question), _task("question", _aquestion)
_TOOL_CALL, _ATOOL_CALL = _task("tool_call", _tool_call), _task("tool_call", _atool_call)
