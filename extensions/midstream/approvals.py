"""What a person or the host is asked about a tool call, what may be answered, and what follows from it.

The wire formats are LangChain's own, so that its user interfaces work: a `HITLRequest` for all calls of a
batch or a `ToolApprovalRequest` for each. Ours are `ToolExecutionRequest`, by which the host is told to run a
tool, and `errors`, which a question carries when it comes again because its answer was not valid.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Annotated, Any, Literal, NotRequired, TypeAlias, TypedDict, Union, cast, get_args

from langchain_core.messages import ToolCall, ToolMessage
from langgraph.prebuilt.tool_node import (
    TOOL_INVOCATION_ERROR_TEMPLATE,
    ToolCallRequest,
    msg_content_output,
)
from langgraph.runtime import Runtime
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    JsonValue,
    ValidationError,
    create_model,
)

from midstream.arguments import Check, Schema, args_type, model_check
from midstream.errors import ConfigurationError
from midstream.wording import worded

DecisionType: TypeAlias = Literal["approve", "edit", "reject", "respond"]
InterruptMode: TypeAlias = Literal["batched", "per_call"]

DECISIONS: tuple[DecisionType, ...] = get_args(DecisionType)
DESCRIPTION_PREFIX = "Tool execution requires approval"


class ActionRequest(TypedDict):
    """A call that waits for a decision."""

    name: str
    args: dict[str, Any]
    description: NotRequired[str]


class ReviewConfig(TypedDict):
    """Which decisions may be made about a call."""

    action_name: str
    allowed_decisions: list[DecisionType]


class AnswerError(TypedDict):
    """What was wrong with an answer."""

    path: str
    """The field, such as `decisions.0.edited_action.args.to`; empty for the answer as a whole."""

    message: str


class HITLRequest(TypedDict):
    """All calls of a batch that wait for a decision; answered by `{"decisions": [...]}`, by position."""

    action_requests: list[ActionRequest]
    review_configs: list[ReviewConfig]
    errors: NotRequired[list[AnswerError]]


class ToolApprovalRequest(TypedDict):
    """One call that waits for a decision; answered by that decision."""

    type: Literal["tool_approval"]
    tool_call_id: str
    name: str
    args: dict[str, Any]
    description: str
    errors: NotRequired[list[AnswerError]]


class ToolExecutionRequest(TypedDict):
    """One call that the host is to execute; answered by `{"content": ..., "status": ...}`."""

    type: Literal["tool_execution"]
    tool_call_id: str
    name: str
    args: dict[str, Any]
    errors: NotRequired[list[AnswerError]]


DescriptionFactory: TypeAlias = Callable[[ToolCall, Any, Runtime[Any]], str]


class InterruptOnConfig(TypedDict):
    """How calls of one tool are approved."""

    allowed_decisions: list[DecisionType]
    description: NotRequired[str | DescriptionFactory]
    """Shown to the person. A function is given the call, the state and the runtime."""

    when: NotRequired[Callable[[ToolCallRequest], bool]]
    """Whether this call is asked about. Called once for each call; its answer is kept with the pause."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`InterruptOnConfig`, checked."""

    allowed: tuple[DecisionType, ...]
    description: str | DescriptionFactory | None = None
    when: Callable[[ToolCallRequest], bool] | None = None

    def describe(self, call: ToolCall, state: Any, runtime: Runtime[Any]) -> str:
        """Returns the text that is shown to the person."""
        if callable(self.description):
            return self.description(call, state, runtime)
        if self.description is not None:
            return self.description
        return f"{DESCRIPTION_PREFIX}\n\nTool: {call['name']}\nArgs: {call['args']}"


def policies(
    interrupt_on: Mapping[str, bool | InterruptOnConfig] | None, known: Iterable[str]
) -> dict[str, Policy]:
    """Returns the policy of each tool that needs approval.

    Raises:
        ConfigurationError: A gate would be open: it names no tool that is known, lists no decision or one
            that does not exist, or has a key that means nothing.
    """
    if interrupt_on is not None and not isinstance(interrupt_on, Mapping):
        raise ConfigurationError(
            f"interrupt_on must be a dict, such as {{'send_email': True}}, not {interrupt_on!r}"
        )
    found = {}
    names = set(known)
    for name, config in (interrupt_on or {}).items():
        if config is False:
            continue
        if name not in names:
            raise ConfigurationError(
                f"interrupt_on names {name!r}, which is neither in tools nor in host_tools: "
                f"name one of {sorted(names)}, or leave it out"
            )
        found[name] = Policy(DECISIONS) if config is True else _policy(name, config)
    return found


def _policy(name: str, config: Any) -> Policy:
    if not isinstance(config, Mapping):
        raise ConfigurationError(f"interrupt_on[{name!r}] must be True, False or a dict, not {config!r}")
    if unknown := set(config) - {"allowed_decisions", "description", "when", "args_schema"}:
        raise ConfigurationError(f"interrupt_on[{name!r}] has keys that mean nothing: {sorted(unknown)}")

    allowed = config.get("allowed_decisions")
    if not allowed or isinstance(allowed, str) or not set(allowed) <= set(DECISIONS):
        raise ConfigurationError(
            f"interrupt_on[{name!r}]['allowed_decisions'] must list some of {list(DECISIONS)}, "
            f"not {allowed!r}"
        )
    for key in ("when", "description"):
        if _is_async(config.get(key)):
            raise ConfigurationError(
                f"interrupt_on[{name!r}][{key!r}] must be a plain function: nothing would await this one"
            )
    return Policy(tuple(dict.fromkeys(allowed)), config.get("description"), config.get("when"))


def _is_async(function: Any) -> bool:
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


@dataclass(frozen=True, slots=True)
class Gated:
    """A call that waits for a decision, and everything that its question is made of."""

    call: ToolCall
    policy: Policy
    description: str


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and the type that an answer must have."""

    value: Mapping[str, Any]
    answer: Any


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Approve(_Answer):
    type: Literal["approve"]


class _Reject(_Answer):
    type: Literal["reject"]
    message: str | None = None


class _Respond(_Answer):
    type: Literal["respond"]
    message: str


class _Executed(_Answer):
    content: JsonValue
    status: Literal["success", "error"] = "success"


def _pinned(model: type[BaseModel], call: ToolCall) -> type[BaseModel]:
    """Adds an optional `tool_call_id`, which must be this call's where it is given."""
    pin = (cast("Any", Literal[call["id"]]), None)
    return create_model(model.__name__.strip("_"), __base__=model, tool_call_id=pin)


class Questions:
    """Makes the questions about calls of these tools."""

    def __init__(self, tools: Mapping[str, Schema]) -> None:
        self._tools = tools
        self._actions: dict[str, type[BaseModel]] = {}
        self._checks: dict[str, Check] = {}

    def approval(self, gated: Gated) -> Question:
        """Returns the question about one call; an edit of it keeps the tool."""
        call = gated.call
        value = ToolApprovalRequest(
            type="tool_approval",
            tool_call_id=cast("str", call["id"]),
            name=call["name"],
            args=call["args"],
            description=gated.description,
        )
        return Question(value, self._decision(gated, [call["name"]]))

    def batched_approval(self, batch: Sequence[Gated]) -> Question:
        """Returns one question about several calls; an edit may put another of the tools in place."""
        value = HITLRequest(
            action_requests=[
                ActionRequest(name=one.call["name"], args=one.call["args"], description=one.description)
                for one in batch
            ],
            review_configs=[
                ReviewConfig(action_name=one.call["name"], allowed_decisions=list(one.policy.allowed))
                for one in batch
            ],
        )
        each = tuple(self._decision(one, list(self._tools)) for one in batch)
        decisions: Any = tuple[each]  # type: ignore[valid-type]  # one type for each position
        return Question(value, create_model("HITLResponse", __base__=_Answer, decisions=(decisions, ...)))

    def execution(self, call: ToolCall) -> Question:
        """Returns the request that the host run this call."""
        value = ToolExecutionRequest(
            type="tool_execution",
            tool_call_id=cast("str", call["id"]),
            name=call["name"],
            args=call["args"],
        )
        return Question(value, _pinned(_Executed, call))

    def misfit(self, name: str, args: dict[str, Any]) -> str | None:
        """Returns what the model is told, as of a local tool, of arguments that the tool cannot take."""
        if name not in self._checks:
            self._checks[name] = model_check(self._tools[name])
        found = [f"{'.'.join(map(str, path))}: {message}" for path, message in self._checks[name](args)]
        if not found:
            return None
        error = "\n".join(found)
        return TOOL_INVOCATION_ERROR_TEMPLATE.format(tool_name=name, tool_kwargs=args, error=error)

    def _decision(self, gated: Gated, names: Sequence[str]) -> Any:
        models: dict[DecisionType, type[BaseModel]] = {
            "approve": _Approve,
            "reject": _Reject,
            "respond": _Respond,
        }
        if "edit" in gated.policy.allowed:
            models["edit"] = self._edit(names)
        # With the discriminator an answer is held only to the branch that it names: one error, not one of
        # each.
        return _one_of([_pinned(models[kind], gated.call) for kind in gated.policy.allowed], "type")

    def _edit(self, names: Sequence[str]) -> type[BaseModel]:
        action = _one_of([self._action(name) for name in names], "name")
        kind = cast("Any", Literal["edit"])
        return create_model("Edit", __base__=_Answer, type=(kind, ...), edited_action=(action, ...))

    def _action(self, name: str) -> type[BaseModel]:
        if name not in self._actions:
            pin, args = cast("Any", Literal[name]), args_type(self._tools.get(name))
            self._actions[name] = create_model("Action", __base__=_Answer, name=(pin, ...), args=(args, ...))
        return self._actions[name]


def _one_of(models: Sequence[type[BaseModel]], field: str) -> Any:
    if len(models) == 1:
        return models[0]
    # Where the field is missing, pydantic does not tell what it might be; where it is null, it does.
    present = BeforeValidator(lambda value: {field: None, **value} if isinstance(value, dict) else value)
    return Annotated[Union[tuple(models)], Discriminator(field), present]  # noqa: UP007  # made at run time


def answer_errors(error: ValidationError) -> list[AnswerError]:
    """Returns what was wrong with an answer, by the path of the field."""
    return [
        AnswerError(path=".".join(map(str, _field(loc))), message=message)
        for loc, message in map(worded, error.errors())
    ]


def _field(loc: tuple[int | str, ...]) -> list[int | str]:
    """Leaves out the names of union branches, which pydantic puts between the fields of a decision."""
    field: list[int | str] = []
    for part in loc:
        at_decision = not field or (field[0] == "decisions" and len(field) == 2)
        at_action = bool(field) and field[-1] == "edited_action"
        if (at_decision and part in DECISIONS) or (at_action and part not in ("name", "args")):
            continue
        field.append(part)
    return field


Decision: TypeAlias = dict[str, Any]
"""An answer about one call, checked: `{"type": "approve" | "edit" | "reject" | "respond", ...}`."""


def decision_of(answer: Any) -> Decision:
    """Returns a checked answer as plain data."""
    decision: Decision = {"type": answer.type}
    if (message := getattr(answer, "message", None)) is not None:
        decision["message"] = message
    if (action := getattr(answer, "edited_action", None)) is not None:
        decision["edited_action"] = {"name": action.name, "args": action.args}
    return decision


def refused(call: ToolCall, decision: Decision) -> ToolMessage | None:
    """Returns the result of a call that was rejected or answered for; None if it is to run."""
    kind = decision["type"]
    if kind == "respond":
        content = decision["message"]
    elif kind == "reject":
        reason = decision.get("message")
        content = f"A person rejected this call of {call['name']!r}; it did not run. " + (
            f"Their reason: {reason}" if reason else "Do not repeat it unless you are asked to."
        )
    else:
        return None

    return ToolMessage(
        content=content,
        name=call["name"],
        tool_call_id=call["id"],
        status="success" if kind == "respond" else "error",
        # The marks that LangChain's own middleware leaves.
        additional_kwargs={"lc_source": "hitl_interrupt_decision", "lc_data": {"decision": kind}},
    )


def edited(call: ToolCall, decision: Decision) -> ToolCall:
    """Returns the call as it is to run."""
    if decision["type"] != "edit":
        return call
    action = decision["edited_action"]
    return cast("ToolCall", {**call, "name": action["name"], "args": action["args"]})


def edit_notice(call: ToolCall) -> str:
    """Returns what the model is told with the result of an edited call."""
    args = json.dumps(call["args"], ensure_ascii=False, default=str)
    return (
        f"A person edited this call: it was {call['name']} with {args}, in place of the arguments above. "
        "That is what they want, so do not run the first version."
    )


def with_notice(message: ToolMessage, notice: str) -> ToolMessage:
    """Returns a copy of a result that begins with the notice."""
    content = message.content
    if isinstance(content, str):
        text = f"{notice}\n\n{content}" if content else notice
        return message.model_copy(update={"content": text})
    first: str | dict[str, Any] = {"type": "text", "text": notice}
    if content and all(isinstance(block, str) for block in content):
        first = notice
    return message.model_copy(update={"content": [first, *content]})


def executed(call: ToolCall, answer: Mapping[str, Any]) -> ToolMessage:
    """Returns the result of a call that the host ran."""
    return ToolMessage(
        content=cast("Any", msg_content_output(answer["content"])),
        name=call["name"],
        tool_call_id=call["id"],
        status=answer["status"],
    )


def not_run(call: ToolCall, reason: str) -> ToolMessage:
    """Returns the result of a call of a run that was halted."""
    return ToolMessage(
        content=f"not run: halted ({reason})",
        name=call["name"],
        tool_call_id=call["id"],
        status="error",
    )
