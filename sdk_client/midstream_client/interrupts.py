"""What a thread waits for, read from its state: the thread object leaves it out after a failed run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["tool_approval", "batched_approval", "tool_execution", "question"]
"""`tool_approval`: one call waits for a decision. `batched_approval`: several do, in one interrupt.
`tool_execution`: the host is to run a tool. `question`: anything else that a graph asks."""

DECISIONS = ("approve", "edit", "reject", "respond")


@dataclass(frozen=True, slots=True)
class PendingAction:
    """A tool call that waits for a decision, or for the host to execute it."""

    name: str
    args: Mapping[str, Any]
    description: str | None = None
    allowed_decisions: tuple[str, ...] = ()
    """Empty where the host executes the call."""

    tool_call_id: str | None = None
    """None where neither the question nor the thread says it."""


@dataclass(frozen=True, slots=True)
class AnswerError:
    """What the server found wrong with the answer before."""

    path: str
    message: str


@dataclass(frozen=True, slots=True)
class PendingInterrupt:
    """One question that a thread waits in."""

    id: str
    value: Any
    """As the graph asked it."""

    kind: Kind
    response_schema: Mapping[str, Any] | None = None
    """The JSON schema that an answer must satisfy; None if the graph gave none."""

    node: str | None = None
    actions: tuple[PendingAction, ...] = ()
    """The tool calls that it is about; empty for a `question`."""

    errors: tuple[AnswerError, ...] = field(default=())
    """Not empty if the question comes again, because its answer was not valid."""

    @property
    def tool_name(self) -> str | None:
        """The tool, where the question is about one call."""
        return self.actions[0].name if len(self.actions) == 1 else None

    @property
    def tool_call_id(self) -> str | None:
        """The call, where the question is about one."""
        return self.actions[0].tool_call_id if len(self.actions) == 1 else None


@dataclass(frozen=True, slots=True)
class Resumed:
    """What became of answers."""

    run_id: str
    status: str
    """The run's, in the server's words; `interrupted` if it has paused again, `pending` or `running` if it
    was not waited for."""

    answered: tuple[str, ...]
    """Ids; without those that a graph has asked again, which are open."""

    open: tuple[PendingInterrupt, ...]
    """What the thread waits in now; among it, with `errors`, what a graph has asked again."""

    is_cancelled: bool = False
    """Whether the run is `interrupted` because somebody cancelled it, or took it back."""


def interrupts_of(state: Mapping[str, Any]) -> list[PendingInterrupt]:
    """Reads a thread's state; in the order of the thread's tasks."""
    calls = list(_open_calls(state))
    found: dict[str, PendingInterrupt] = {}
    for node, interrupt in _asked(state):
        if interrupt["id"] not in found:
            found[interrupt["id"]] = _pending(interrupt, node, calls)
    return list(found.values())


def _asked(state: Mapping[str, Any]) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    known = set()
    for task in state.get("tasks") or ():
        for interrupt in task.get("interrupts") or ():
            known.add(interrupt.get("id"))
            if interrupt.get("id") and not _is_spent(task, interrupt):
                yield task.get("name"), interrupt
    for interrupt in state.get("interrupts") or ():
        if interrupt.get("id") and interrupt["id"] not in known:
            yield None, interrupt


def _is_spent(task: Mapping[str, Any], interrupt: Mapping[str, Any]) -> bool:
    """Tells whether an interrupt was answered, and its node has failed after that.

    Seen with langgraph 1.2.24: the state still shows it, but its answer is kept, so that another one never
    reaches the node. Only an answer that the interrupt's own schema refuses is not kept.
    """
    error = task.get("error")
    return bool(error) and not (interrupt.get("response_schema") and "validation error" in str(error))


def _pending(
    interrupt: Mapping[str, Any], node: str | None, calls: Sequence[Mapping[str, Any]]
) -> PendingInterrupt:
    value = interrupt.get("value")
    schema = interrupt.get("response_schema")
    kind = _kind(value)
    return PendingInterrupt(
        id=str(interrupt["id"]),
        value=value,
        kind=kind,
        response_schema=schema,
        node=node,
        actions=_actions(kind, value, schema, calls),
        errors=tuple(
            AnswerError(str(each.get("path", "")), str(each.get("message", "")))
            for each in (value.get("errors") if isinstance(value, Mapping) else None) or ()
            if isinstance(each, Mapping)
        ),
    )


def _kind(value: Any) -> Kind:
    if isinstance(value, Mapping):
        if value.get("type") in ("tool_approval", "tool_execution"):
            return value["type"]  # type: ignore[no-any-return]  # one of the two
        if isinstance(value.get("action_requests"), list) and isinstance(value.get("review_configs"), list):
            return "batched_approval"
    return "question"


def _actions(
    kind: Kind, value: Any, schema: Mapping[str, Any] | None, calls: Sequence[Mapping[str, Any]]
) -> tuple[PendingAction, ...]:
    if kind == "question":
        return ()
    if kind == "batched_approval":
        allowed = [tuple(each.get("allowed_decisions") or ()) for each in value["review_configs"]]
        ids = _call_ids(value["action_requests"], schema, calls)
        return tuple(
            PendingAction(
                name=str(action["name"]),
                args=action.get("args") or {},
                description=action.get("description"),
                allowed_decisions=allowed[at] if at < len(allowed) else DECISIONS,
                tool_call_id=ids[at],
            )
            for at, action in enumerate(value["action_requests"])
        )
    action = PendingAction(
        name=str(value.get("name", "")),
        args=value.get("args") or {},
        description=value.get("description"),
        allowed_decisions=_allowed(schema) if kind == "tool_approval" else (),
        tool_call_id=value.get("tool_call_id"),
    )
    return (action,)


def _allowed(schema: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Returns the decisions that a schema lets pass; all, if it does not say."""
    if schema is None:
        return DECISIONS
    found = [kind for branch in branches(schema, schema) if (kind := _const(branch, "type"))]
    return tuple(kind for kind in found if kind in DECISIONS) or DECISIONS


def _call_ids(
    actions: Sequence[Mapping[str, Any]],
    schema: Mapping[str, Any] | None,
    calls: Sequence[Mapping[str, Any]],
) -> list[str | None]:
    """Returns each action's tool call: as its schema pins it, else by name and arguments, in order."""
    pinned = _pinned(schema)
    if len(pinned) == len(actions) and all(pinned):
        return list(pinned)

    left = list(calls)
    ids: list[str | None] = []
    for action in actions:
        match = next(
            (
                call
                for call in left
                if call.get("name") == action.get("name")
                and (call.get("args") or {}) == (action.get("args") or {})
            ),
            None,
        )
        if match is not None:
            left.remove(match)
        ids.append(match.get("id") if match is not None else None)
    return ids


def _pinned(schema: Mapping[str, Any] | None) -> list[str | None]:
    if schema is None:
        return []
    decisions = (schema.get("properties") or {}).get("decisions") or {}
    return [
        next((pin for branch in branches(each, schema) if (pin := _const(branch, "tool_call_id"))), None)
        for each in decisions.get("prefixItems") or ()
    ]


def branches(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the object schemas that a schema offers, with references into `root` resolved."""
    schema = resolved(schema, root)
    options = [*(schema.get("oneOf") or ()), *(schema.get("anyOf") or ())]
    if not options:
        yield schema
    for option in options:
        yield from branches(option, root)


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a schema itself, or the one in `root` that it refers to."""
    ref = schema.get("$ref")
    if not isinstance(ref, str) or not ref.startswith("#/"):
        return schema
    target: Any = root
    for part in ref[2:].split("/"):
        target = target.get(part, {}) if isinstance(target, Mapping) else {}
    return target if isinstance(target, Mapping) else {}


def _const(schema: Mapping[str, Any], name: str) -> str | None:
    """Returns the one value that a schema allows for a property, also where the property may be null."""
    said = (schema.get("properties") or {}).get(name) or {}
    for option in (said, *(said.get("anyOf") or ())):
        if isinstance(option.get("const"), str):
            return str(option["const"])
        if isinstance(option.get("enum"), list) and len(option["enum"]) == 1:
            return str(option["enum"][0])
    return None


def _open_calls(state: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the tool calls without a result of the last answer, in the thread and in its subgraphs."""
    values = state.get("values")
    for messages in values.values() if isinstance(values, Mapping) else ():
        if isinstance(messages, list):
            yield from _calls_in([each for each in messages if isinstance(each, Mapping)])
    for task in state.get("tasks") or ():
        if isinstance(inner := task.get("state"), Mapping):
            yield from _open_calls(inner)


def _calls_in(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    answered = {each.get("tool_call_id") for each in messages if each.get("type") == "tool"}
    for message in reversed(messages):
        if calls := message.get("tool_calls"):
            return [call for call in calls if call.get("id") not in answered]
    return []
