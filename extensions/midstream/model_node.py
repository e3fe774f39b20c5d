"""The model node: calls a chat model, and can be steered and halted while it does."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, cast

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableBindingBase
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.config import get_config
from langgraph.runtime import Runtime, get_runtime

from midstream._host import (
    input_of,
    input_version,
    is_sent,
    read_channel,
    root_step,
    saver_of,
    steps_left,
)
from midstream._run_notes import counts
from midstream.boundary import messages_of
from midstream.effects import (
    Apply,
    AskHook,
    CallModel,
    Effect,
    Flow,
    ReadLedger,
    ReadSaved,
    Rotate,
    Saved,
    WriteClaim,
    WriteHalt,
    WriteMarks,
    WriteSeal,
)
from midstream.errors import ConfigurationError
from midstream.events import Emitter
from midstream.ledger import HaltRecord, Ledger
from midstream.node_call import NodeCall
from midstream.node_update import Place, Update
from midstream.options import Preemption
from midstream.run import is_inside_tool, run_of
from midstream.seal import sealable
from midstream.state import Handled, has_channel, merge, preemption_of
from midstream.trace_metadata import add_to_trace
from midstream.visit import Visit
from midstream.watch import awatching, watching

logger = logging.getLogger("midstream")

RECENT_CHECKPOINTS = 8
"""How many checkpoints of a thread are looked at for what its last run has handled: a run that forks from an
older one has saved some of its own before its model is entered."""

Model: TypeAlias = Runnable[Any, Any]
ModelFactory: TypeAlias = Callable[[Any, Runtime[Any]], Model | Awaitable[Model]]
Prompt: TypeAlias = str | SystemMessage | Callable[[Any], str | BaseMessage | Sequence[BaseMessage]]


class ModelNode(Runnable[Any, Any]):
    """A node that calls a chat model on the state's messages and may be preempted in mid-answer.

    The node returns to itself by `Command(goto=...)`, which comes on top of its static edges. Leave it by
    LangGraph's `tools_condition`, by a static edge to `END`, or by `after_turn`.

    Args:
        model: A chat model; a runnable that ends in chat models (with bound tools, retries, fallbacks,
            configurable fields, or as the last of a sequence); or a callable of the state and the runtime
            that returns one, which may be async.
        tools: Tools to bind to the model, as for `bind_tools`.
        prompt: What comes before the messages: text, a system message, or a callable of the state that
            returns either or a list of messages.
        preemption: How the node may be preempted.
        messages_key: The state's channel of messages.

    Raises:
        ConfigurationError: The model is neither a runnable nor callable, or cannot be given tools; or an
            option is of the wrong kind.
    """

    def __init__(
        self,
        model: Model | ModelFactory,
        *,
        tools: Sequence[Any] = (),
        prompt: Prompt | None = None,
        preemption: Preemption | None = None,
        messages_key: str = "messages",
    ) -> None:
        if not isinstance(model, Runnable) and not callable(model):
            raise ConfigurationError(
                "model must be a chat model, a runnable that ends in one, or a callable that returns one, "
                f"not {model!r}"
            )
        if isinstance(tools, str) or not isinstance(tools, Sequence):
            raise ConfigurationError(f"tools must be a list of tools, not {tools!r}")
        if prompt is not None and not isinstance(prompt, str | BaseMessage) and not callable(prompt):
            raise ConfigurationError(
                f"prompt must be a text, a system message or a callable of the state, not {prompt!r}"
            )
        if preemption is not None and not isinstance(preemption, Preemption):
            raise ConfigurationError(f"preemption must be midstream.Preemption(...), not {preemption!r}")
        self._tools = list(tools)
        self._model = self._with_tools(model) if isinstance(model, Runnable) else model
        self._prompt = prompt
        self._options = preemption if preemption is not None else Preemption()
        self._messages_key = messages_key

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Update:  # noqa: A002 (the base's name)
        """Runs the node on a graph's state; returns its update."""
        return _Entry(self, input, config if config is not None else get_config()).run()

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Update:  # noqa: A002
        """Same as `invoke`, but awaited."""
        return await _Entry(self, input, config if config is not None else get_config()).arun()

    def _with_tools(self, model: Model) -> Model:
        if not self._tools:
            return model
        if isinstance(model, RunnableBindingBase):
            # Its own `bind_tools` is that of the model inside, and would leave behind what was bound before.
            return model.model_copy(update={"bound": self._with_tools(model.bound)})
        bind_tools = getattr(model, "bind_tools", None)
        if bind_tools is None:
            raise ConfigurationError(
                f"{type(model).__name__} cannot be given tools: bind them to the chat model inside it, "
                "and leave out tools=..."
            )
        try:
            bound: Model = bind_tools(self._tools)
        except NotImplementedError:
            raise ConfigurationError(f"{type(model).__name__} does not support tools") from None
        return bound

    def _choose(self, state: Any, runtime: Runtime[Any]) -> Model:
        """Returns the model of this call, with its tools."""
        if isinstance(self._model, Runnable):
            return self._model
        chosen = self._model(state, runtime)
        if isinstance(chosen, Runnable):
            return self._with_tools(chosen)
        if inspect.iscoroutine(chosen):
            chosen.close()
        raise ConfigurationError("model is an async callable, so the graph must be run by ainvoke or astream")

    async def _achoose(self, state: Any, runtime: Runtime[Any]) -> Model:
        """Same as `_choose`, but awaited."""
        if isinstance(self._model, Runnable):
            return self._model
        chosen = self._model(state, runtime)
        return self._with_tools(chosen if isinstance(chosen, Runnable) else await chosen)

    def _request(self, state: Any, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Returns what the model is sent: the prompt, whole on every call, and the messages."""
        prompt = self._prompt(state) if callable(self._prompt) else self._prompt
        if prompt is None:
            return list(messages)
        if isinstance(prompt, str):
            return [SystemMessage(prompt), *messages]
        if isinstance(prompt, BaseMessage):
            return [prompt, *messages]
        return [*prompt, *messages]


class _Steps:
    """Steps through a flow; what an effect raises is not taken for the flow's end."""

    def __init__(self, flow: Flow[Update]) -> None:
        self.flow = flow
        self.update: Update | None = None

    def next(self, result: Any) -> Effect | None:
        try:
            return self.flow.send(result)
        except StopIteration as end:
            self.update = end.value
            return None


class _Entry:
    """One entry of a node: performs what its visit asks for."""

    def __init__(self, node: ModelNode, state: Any, config: RunnableConfig) -> None:
        self._node = node
        self._state = state
        self._config = config
        self._messages = messages_of(state, node._messages_key)
        self._name = str(config.get("metadata", {}).get("langgraph_node", ""))
        self.runtime = get_runtime()
        self._saver = saver_of(config)
        info = self.runtime.execution_info
        self._thread_id = str(info.thread_id) if info is not None and info.thread_id is not None else None
        self._namespace, _, _ = (info.checkpoint_ns if info is not None else "").rpartition("|")
        self._step = root_step(config, "preemption")

    @property
    def _is_preemptible(self) -> bool:
        return (
            self._node._options.enabled
            and self._saver is not None
            and self._thread_id is not None
            and not is_inside_tool(self._config)
        )

    def run(self) -> Update:
        if not self._is_preemptible:
            model = self._node._choose(self._state, self.runtime)
            return self._plain(model.invoke(self._request(), self._config))
        visit, ledger = self._start()
        steps = _Steps(visit.flow())
        result: Any = None
        try:
            while (effect := steps.next(result)) is not None:
                if isinstance(effect, CallModel):
                    result = self._call(effect.call, ledger, visit)
                elif isinstance(effect, AskHook):
                    timeout = visit.options.hook_timeout
                    result = effect.hook.call(effect.given, timeout, may_pause=effect.may_pause)
                else:
                    self._add_to_trace(effect, visit)
                    result = self._perform(effect, ledger)
        finally:
            steps.flow.close()
        return cast("Update", steps.update)

    async def arun(self) -> Update:
        if not self._is_preemptible:
            model = await self._node._achoose(self._state, self.runtime)
            return self._plain(await model.ainvoke(self._request(), self._config))
        visit, ledger = self._start()
        steps = _Steps(visit.flow())
        result: Any = None
        try:
            while (effect := steps.next(result)) is not None:
                if isinstance(effect, CallModel):
                    result = await self._acall(effect.call, ledger, visit)
                elif isinstance(effect, AskHook):
                    timeout = visit.options.hook_timeout
                    result = await effect.hook.acall(effect.given, timeout, may_pause=effect.may_pause)
                else:
                    self._add_to_trace(effect, visit)
                    result = await self._aperform(effect, ledger)
        finally:
            steps.flow.close()
        return cast("Update", steps.update)

    def _plain(self, answer: Any) -> Update:
        return {self._node._messages_key: [self._checked(answer)]}

    def _request(self) -> list[BaseMessage]:
        return self._node._request(self._state, self._messages)

    def _start(self) -> tuple[Visit, Ledger]:
        node, thread_id = self._node, str(self._thread_id)
        sent = self._state if is_sent(self._config) and isinstance(self._state, dict) else None
        value = preemption_of(self._state)
        if sent is not None:
            value = merge(read_channel(self._config, "preemption"), value)
        elif not has_channel(self._state):
            raise ConfigurationError(
                "the graph's state has no channel 'preemption': make its schema a subclass of "
                "midstream.MidstreamState, or turn preemption off by Preemption(enabled=False)"
            )
        run = run_of(self.runtime)
        visit = Visit(
            value=value,
            messages=self._messages,
            place=Place(
                node=self._name,
                owner=self._owner(sent),
                thread_id=thread_id,
                run=run,
                # Where LangGraph does not tell, each run counts as one of new input.
                input=input_version(self._config) or run.id,
                messages_key=node._messages_key,
                steps_left=steps_left(self._config),
                step=self._step.id if self._step is not None else None,
                is_shared=self._step is not None and self._step.is_shared,
                sent=sent,
            ),
            options=node._options,
            emitter=Emitter(self.runtime.stream_writer, self._name),
        )
        return visit, Ledger(cast("BaseCheckpointSaver[Any]", self._saver), thread_id)

    def _owner(self, sent: dict[str, Any] | None) -> str:
        owner = f"{self._namespace}|{self._name}"
        if sent is None:
            return owner
        info = self.runtime.execution_info
        before = (sent.get("preemption") or {}).get("sent")
        return before or f"{owner}#{info.task_id if info is not None else ''}"

    def _checked(self, answer: Any) -> AIMessage:
        if not isinstance(answer, AIMessage):
            raise ConfigurationError(
                f"the model of a ModelNode must answer with an AIMessage, not {type(answer).__name__}: "
                "put output parsers into a node of their own"
            )
        return answer

    def _call(self, call: NodeCall, ledger: Ledger, visit: Visit) -> AIMessage:
        model = self._node._choose(self._state, self.runtime)
        with watching(visit.run, ledger, str(self._thread_id), call, visit.pace):
            answer = sealable(model, call, self._config).invoke(self._request(), self._config)
        return self._checked(answer)

    async def _acall(self, call: NodeCall, ledger: Ledger, visit: Visit) -> AIMessage:
        model = await self._node._achoose(self._state, self.runtime)
        call.call_later = asyncio.get_running_loop().call_later
        try:
            async with awatching(visit.run, ledger, str(self._thread_id), call, visit.pace):
                answer = await sealable(model, call, self._config).ainvoke(self._request(), self._config)
        finally:
            call.finished()
        return self._checked(answer)

    def _perform(self, effect: Effect, ledger: Ledger) -> Any:
        try:
            match effect:
                case ReadLedger():
                    return ledger.view()
                case ReadSaved(with_branches):
                    saver = cast("BaseCheckpointSaver[Any]", self._saver)
                    limit = RECENT_CHECKPOINTS if with_branches else 1
                    return _saved_in(list(saver.list(self._saved(), limit=limit)))
                case WriteMarks(marks):
                    return ledger.mark(marks)
                case Rotate(view):
                    return ledger.rotate(view)
                case WriteHalt(halt):
                    return ledger.record_halt(HaltRecord(**halt, at=time.time()))
                case WriteSeal(note, view):
                    return ledger.record_seal(note, view)
                case WriteClaim(claim, view):
                    return ledger.record_claim(claim, view)
                case Apply(claim, view):
                    return ledger.apply(claim, view)
        except Exception:
            return _missed(effect)

    async def _aperform(self, effect: Effect, ledger: Ledger) -> Any:
        try:
            match effect:
                case ReadLedger():
                    return await ledger.aview()
                case ReadSaved(with_branches):
                    saver = cast("BaseCheckpointSaver[Any]", self._saver)
                    limit = RECENT_CHECKPOINTS if with_branches else 1
                    return _saved_in([each async for each in saver.alist(self._saved(), limit=limit)])
                case WriteMarks(marks):
                    return await ledger.amark(marks)
                case Rotate(view):
                    return await ledger.arotate(view)
                case WriteHalt(halt):
                    return await ledger.arecord_halt(HaltRecord(**halt, at=time.time()))
                case WriteSeal(note, view):
                    return await ledger.arecord_seal(note, view)
                case WriteClaim(claim, view):
                    return await ledger.arecord_claim(claim, view)
                case Apply(claim, view):
                    return await ledger.aapply(claim, view)
        except Exception:
            return _missed(effect)

    def _add_to_trace(self, effect: Effect, visit: Visit) -> None:
        if isinstance(effect, WriteHalt | WriteSeal):
            said: dict[str, Any] = {"preemption": counts(visit.run.seals.get(visit.run.id))}
            if isinstance(effect, WriteHalt):
                said["halt_reason"] = effect.halt["reason"]
            add_to_trace(self._config, said)

    def _saved(self) -> RunnableConfig:
        # What a subgraph has saved of its own is gone with its step, unless the graph around it commits that.
        home = self._step.home if self._step is not None else None
        namespace = home if home is not None else self._namespace
        return {"configurable": {"thread_id": self._thread_id, "checkpoint_ns": namespace}}


def _saved_in(found: Sequence[CheckpointTuple]) -> Saved:
    handled: dict[str, Handled] = {}
    runs: dict[str, str] = {}
    for each in reversed(found):
        handled |= preemption_of(each.checkpoint["channel_values"]).get("handled", {})
        if (run_id := each.metadata.get("run_id")) and (name := input_of(each.checkpoint)):
            runs[str(run_id)] = name
    return Saved(handled, runs)


def _missed(effect: Effect) -> Any:
    """Lets a visit go on after a note on the ledger failed: no answer is to be lost for one.

    Without a claim an agent still does right by itself; others may take its request after a pause.
    """
    if isinstance(effect, ReadLedger):
        raise
    logger.warning("the ledger could not be kept tidy: %s", type(effect).__name__, exc_info=True)
    if isinstance(effect, Apply):
        return effect.claim["request_ids"]
    return Saved() if isinstance(effect, ReadSaved) else None
