"""One message's tool calls on their way to results: what is asked, what runs next, what comes out.

Plain decisions over plain data. The tool node runs the jobs, sync or async, and hands back what they gave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, cast

from langchain_core.messages import ToolCall, ToolMessage
from langgraph.errors import GraphInterrupt
from langgraph.types import Command

from midstream.approvals import (
    Decision,
    Gated,
    InterruptMode,
    Policy,
    Question,
    Questions,
    edit_notice,
    edited,
    executed,
    not_run,
    refused,
    with_notice,
)
from midstream.pauses import combined

Output: TypeAlias = ToolMessage | Command[Any] | list[Command[Any] | ToolMessage]
Durable: TypeAlias = Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True)
class Ask:
    """A job that asks about calls, and gives the answer."""

    indexes: tuple[int, ...]
    question: Question
    of_host: bool = False
    """Whether the host is asked to run the call; otherwise a person is asked to approve."""

    @property
    def shown(self) -> dict[str, Any]:
        """What traces show of it."""
        return dict(self.question.value)


@dataclass(frozen=True, slots=True)
class Run:
    """A job that runs a call, and gives its output."""

    index: int
    call: ToolCall


Job: TypeAlias = Ask | Run


@dataclass(frozen=True)
class Rules:
    """What a tool node was told about its tools."""

    policies: Mapping[str, Policy]
    questions: Questions
    interrupting: frozenset[str]
    """Names of tools that this node runs and that pause in their bodies."""

    host: frozenset[str]
    mode: InterruptMode
    durable: Durable

    @cached_property
    def gated(self) -> frozenset[str]:
        """Names of tools whose calls may have to wait for somebody."""
        return frozenset((*self.policies, *self.interrupting, *self.host))

    def asks(self, call: ToolCall) -> bool:
        """Tells whether the node itself asks somebody about a call of this name."""
        return call["name"] in self.policies or call["name"] in self.host


@dataclass(slots=True)
class Batch:
    """The calls, by their position, and what is known of each."""

    calls: Sequence[ToolCall]
    rules: Rules
    _gated: dict[int, Gated] | None = None
    """The calls that need approval; None before that is known."""

    _decisions: dict[int, Decision] = field(default_factory=dict)
    _outputs: dict[int, Output] = field(default_factory=dict)

    @property
    def has_conditions(self) -> bool:
        """Whether what is asked depends on a function, whose word has to be kept."""
        return any(
            policy.when is not None or callable(policy.description)
            for call in self.calls
            if (policy := self.rules.policies.get(call["name"])) is not None
        )

    @property
    def single(self) -> Sequence[Job]:
        """The one job of a batch whose only call runs at once; it needs no task beside the node's own."""
        if len(self.calls) != 1 or self._gated or self.calls[0]["name"] in self.rules.host:
            return ()
        if self._gated is None and self.calls[0]["name"] in self.rules.policies:
            return ()
        return (Run(0, self.calls[0]),)

    def keeps_nothing_of(self, job: Run) -> bool:
        """Whether this call is not a task."""
        return self.rules.durable == "never" and job.call["name"] not in self.rules.interrupting

    def gate(self, descriptions: Mapping[int, str]) -> None:
        """Takes in which calls need approval, each with the text that is shown for it."""
        self._gated = {
            index: Gated(self.calls[index], self.rules.policies[self.calls[index]["name"]], text)
            for index, text in sorted(descriptions.items())
        }

    @property
    def phases(self) -> tuple[Callable[[], list[Job]], ...]:
        """The jobs of each phase, to be asked for once the phase before is done."""
        return (self._settling, self._pausing, self._acting)

    def take(self, jobs: Sequence[Job], results: Sequence[Any]) -> None:
        """Takes in what each job gave: its result, or what it raised.

        Raises:
            Exception: The first error, in the order of the calls.
            GraphInterrupt: Every question of the phase that has no answer yet.
        """
        raised = [result for result in results if isinstance(result, BaseException)]
        for error in raised:
            if not isinstance(error, GraphInterrupt):
                raise error
        if raised:
            raise combined([error for error in raised if isinstance(error, GraphInterrupt)])

        for job, result in zip(jobs, results, strict=True):
            if isinstance(job, Run):
                self._outputs[job.index] = result
            elif job.of_host:
                self._outputs[job.indexes[0]] = executed(self._effective(job.indexes[0]), result)
            else:
                self._decide(job.indexes, result)

    @property
    def is_open(self) -> bool:
        """Whether there are calls without an output."""
        return bool(self._open())

    def halt_for(self, reason: str | None) -> None:
        """Answers the calls that are still open, so that none of them runs; not if there is no reason."""
        for index in self._open() if reason is not None else ():
            self._outputs[index] = not_run(self.calls[index], str(reason))
            self._decisions.pop(index, None)

    def outputs(self) -> list[Output]:
        """Returns the output of each call, in the order of the calls."""
        return [self._noted(index, self._outputs[index]) for index in range(len(self.calls))]

    def _settling(self) -> list[Job]:
        """Approvals, and the tools that pause without one."""
        jobs: list[Job] = []
        waiting = self._gated or {}
        if waiting and self.rules.mode == "batched":
            question = self.rules.questions.batched_approval(list(waiting.values()))
            jobs.append(Ask(tuple(waiting), question))
        for index, call in enumerate(self.calls):
            if gated := waiting.get(index):
                if self.rules.mode == "per_call":
                    jobs.append(Ask((index,), self.rules.questions.approval(gated)))
            elif call["name"] in self.rules.interrupting:
                jobs.append(Run(index, call))
        return jobs

    def _pausing(self) -> list[Job]:
        """Tools that pause and were approved first."""
        return [
            self._job(index)
            for index in self._open()
            if self._effective(index)["name"] in self.rules.interrupting or self._waits_alone(index)
        ]

    def _acting(self) -> list[Job]:
        """All the rest, together."""
        return [self._job(index) for index in self._open()]

    def _waits_alone(self, index: int) -> bool:
        # Where calls are not kept, none may be done before the last pause.
        return self.rules.durable == "never" and self._effective(index)["name"] in self.rules.host

    def _open(self) -> list[int]:
        return [index for index in range(len(self.calls)) if index not in self._outputs]

    def _job(self, index: int) -> Job:
        call = self._effective(index)
        if call["name"] in self.rules.host:
            return Ask((index,), self.rules.questions.execution(call), of_host=True)
        return Run(index, call)

    def _effective(self, index: int) -> ToolCall:
        call, decision = self.calls[index], self._decisions.get(index)
        return edited(call, decision) if decision else call

    def _decide(self, indexes: Sequence[int], decisions: Sequence[Decision]) -> None:
        for index, decision in zip(indexes, decisions, strict=True):
            self._decisions[index] = decision
            if (answer := refused(self.calls[index], decision)) is not None:
                self._outputs[index] = answer

    def _noted(self, index: int, output: Output) -> Output:
        decision = self._decisions.get(index)
        if decision is None or decision["type"] != "edit":
            return output
        notice = edit_notice(self._effective(index))
        return cast("Output", _annotated(output, self.calls[index], notice))


def _annotated(output: Any, call: ToolCall, notice: str) -> Any:
    """Puts the notice on the call's result, wherever that is in the output."""
    if isinstance(output, ToolMessage):
        return with_notice(output, notice) if output.tool_call_id == call["id"] else output
    if isinstance(output, list):
        return [_annotated(one, call, notice) for one in output]
    if isinstance(output, Command):
        if isinstance(output.update, dict):
            update = {
                key: _annotated(value, call, notice) if isinstance(value, list) else value
                for key, value in output.update.items()
            }
            return replace(output, update=cast("Any", update))
        if isinstance(output.update, list):
            return replace(output, update=_annotated(output.update, call, notice))
    return output
