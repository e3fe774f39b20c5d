"""Answers to interrupts: made, put in their place, and checked before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError

from midstream_client.errors import AnswerProblem, InvalidAnswerError, UnknownInterruptError
from midstream_client.interrupts import PendingAction, PendingInterrupt

Decision: TypeAlias = dict[str, Any]
"""What a person says of one tool call, in LangChain's words."""

Answer: TypeAlias = Any
"""What `resume` takes for one interrupt. For a batched approval: decisions by tool call id, a list of them by
position, one decision if one call waits, or LangChain's `{"decisions": [...]}`. For all else the value that
the graph's `interrupt()` returns."""


def approve() -> Decision:
    """Runs the call as it is."""
    return {"type": "approve"}


def edit(args: Mapping[str, Any], *, name: str | None = None) -> Decision:
    """Runs the call with other arguments, which replace all of its own.

    Args:
        args: The arguments.
        name: Another tool, where the question allows one; the call's own if not given.
    """
    action: dict[str, Any] = {"args": dict(args)}
    if name is not None:
        action["name"] = name
    return {"type": "edit", "edited_action": action}


def reject(message: str | None = None) -> Decision:
    """Does not run the call, and tells the model why."""
    return {"type": "reject"} if message is None else {"type": "reject", "message": message}


def respond(message: str) -> Decision:
    """Does not run the call, and gives the model this as its result."""
    return {"type": "respond", "message": message}


def tool_result(content: Any, *, status: Literal["success", "error"] = "success") -> dict[str, Any]:
    """Is the result of a call that the host has executed."""
    return {"content": content, "status": status}


def place(
    thread_id: str, answers: Mapping[str, Answer], pending: Sequence[PendingInterrupt]
) -> dict[str, Any]:
    """Returns the answers as the graph takes them, by interrupt id.

    Raises:
        UnknownInterruptError: One of the ids is not pending.
        InvalidAnswerError: One of the answers is not what its interrupt asks for.
    """
    known = {interrupt.id: interrupt for interrupt in pending}
    if unknown := [name for name in answers if name not in known]:
        raise UnknownInterruptError(thread_id, unknown, list(known))

    placed: dict[str, Any] = {}
    problems: list[AnswerProblem] = []
    for name, answer in answers.items():
        try:
            placed[name] = _placed(known[name], answer)
            problems.extend(_problems(known[name], placed[name]))
        except _Misplaced as misplaced:
            problems.append(AnswerProblem(name, misplaced.field, misplaced.reason))
    if problems:
        raise InvalidAnswerError(thread_id, problems)
    return placed


class _Misplaced(Exception):  # noqa: N818 -- a signal within this module
    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason


def _placed(interrupt: PendingInterrupt, answer: Answer) -> Any:
    if interrupt.kind == "tool_approval":
        return _named(answer, interrupt.actions[0])
    if interrupt.kind != "batched_approval":
        return answer

    decisions = _by_position(interrupt.actions, answer)
    if not isinstance(decisions, Sequence) or isinstance(decisions, str):
        return {"decisions": decisions}
    named = [
        _named(decision, interrupt.actions[at]) if at < len(interrupt.actions) else decision
        for at, decision in enumerate(decisions)
    ]
    others = {key: value for key, value in answer.items() if key != "decisions"} if _is_whole(answer) else {}
    return {**others, "decisions": named}


def _is_whole(answer: Answer) -> bool:
    return isinstance(answer, Mapping) and "decisions" in answer


def _by_position(actions: Sequence[PendingAction], answer: Answer) -> Any:
    if _is_whole(answer):
        return answer["decisions"]
    if isinstance(answer, list | tuple):
        return list(answer)
    if not isinstance(answer, Mapping):
        raise _Misplaced(
            "", f"must be a dict of decisions by tool call id, or a list of them, not {answer!r}"
        )
    if isinstance(answer.get("type"), str):
        if len(actions) != 1:
            raise _Misplaced("", f"is one decision, but {len(actions)} calls wait for one: {_said(actions)}")
        return [dict(answer)]

    by_call = {action.tool_call_id: action for action in actions if action.tool_call_id is not None}
    if len(by_call) < len(actions):
        raise _Misplaced(
            "", f"the thread does not say which call is which: give a list of {len(actions)} decisions"
        )
    if unknown := [name for name in answer if name not in by_call]:
        raise _Misplaced(str(unknown[0]), f"is none of the calls that wait: {_said(actions)}")
    if missing := [name for name in by_call if name not in answer]:
        raise _Misplaced(missing[0], "has no decision; all calls of one question are decided together")
    return [answer[name] for name in by_call]


def _said(actions: Sequence[PendingAction]) -> str:
    return ", ".join(f"{action.tool_call_id} ({action.name})" for action in actions)


def _named(decision: Any, action: PendingAction) -> Any:
    """Fills the tool's name into an edit that leaves it out."""
    if isinstance(decision, Mapping) and isinstance(edited := decision.get("edited_action"), Mapping):
        return {**decision, "edited_action": {"name": action.name, **edited}}
    return decision


def _problems(interrupt: PendingInterrupt, answer: Any) -> Iterator[AnswerProblem]:
    if interrupt.response_schema is None:
        found = _against_actions(interrupt, answer)
    else:
        found = _against_schema(interrupt.response_schema, answer)
    for path, reason in found:
        yield AnswerProblem(interrupt.id, path, reason)


def _against_actions(interrupt: PendingInterrupt, answer: Any) -> Iterator[tuple[str, str]]:
    """Checks decisions where the graph gave no schema, as LangChain's middleware gives none."""
    if interrupt.kind == "batched_approval":
        decisions = answer["decisions"]
        if not isinstance(decisions, list):
            yield "decisions", f"must be a list, not {decisions!r}"
        elif len(decisions) != len(interrupt.actions):
            yield "decisions", f"must be {len(interrupt.actions)}, one for each call, not {len(decisions)}"
        else:
            for at, (decision, action) in enumerate(zip(decisions, interrupt.actions, strict=True)):
                yield from _against_action(f"decisions.{at}", decision, action)
    elif interrupt.kind == "tool_approval":
        yield from _against_action("", answer, interrupt.actions[0])


def _against_action(path: str, decision: Any, action: PendingAction) -> Iterator[tuple[str, str]]:
    if not isinstance(decision, Mapping):
        yield path, f"must be a decision such as approve(), not {decision!r}"
        return
    kind = decision.get("type")
    if kind not in action.allowed_decisions:
        yield _join(path, "type"), f"must be one of {list(action.allowed_decisions)}, not {kind!r}"
    elif kind == "edit":
        edited = decision.get("edited_action")
        if not isinstance(edited, Mapping) or not isinstance(edited.get("args"), Mapping):
            yield _join(path, "edited_action.args"), "must be the call's arguments"
    elif kind == "respond" and not isinstance(decision.get("message"), str):
        yield _join(path, "message"), "must be text"


def _against_schema(schema: Mapping[str, Any], answer: Any) -> Iterator[tuple[str, str]]:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        # A graph that asks with a broken schema judges the answer itself.
        return
    for error in Draft202012Validator(schema).iter_errors(answer):
        for cause in _causes(error):
            yield _field(cause), cause.message


def _field(error: ValidationError) -> str:
    path = ".".join(map(str, error.absolute_path))
    if str(error.validator) == "required" and isinstance(error.validator_value, list):
        missing = next((name for name in error.validator_value if error.message.startswith(repr(name))), "")
        return _join(path, missing) if missing else path
    return path


def _causes(error: ValidationError) -> Iterator[ValidationError]:
    """Yields what is wrong in the branch that an answer means: the one whose fixed words it has."""
    if str(error.validator) not in ("oneOf", "anyOf") or not error.context:
        yield error
        return
    by_branch: dict[Any, list[ValidationError]] = {}
    for inner in error.context:
        by_branch.setdefault(inner.schema_path[0], []).append(inner)
    meant = [
        found
        for found in by_branch.values()
        if not any(_is_of_word(inner) or _lacks_word(inner) for inner in found)
    ]
    if len(meant) == 1:
        for inner in meant[0]:
            yield from _causes(inner)
        return
    yield _no_branch(error, by_branch)


def _is_of_word(error: ValidationError) -> bool:
    return str(error.validator) in ("const", "enum")


def _lacks_word(error: ValidationError) -> bool:
    """Tells whether a property is missing that has to be one fixed word."""
    if error.validator != "required" or not isinstance(error.schema, Mapping):
        return False
    given = error.instance if isinstance(error.instance, Mapping) else {}
    properties = error.schema.get("properties") or {}
    return any(
        "const" in (properties.get(name) or {}) and name not in given
        for name in error.schema.get("required") or ()
    )


def _no_branch(error: ValidationError, by_branch: Mapping[Any, list[ValidationError]]) -> ValidationError:
    """Returns one error that says which words would have been allowed."""
    wrong = [inner for found in by_branch.values() for inner in found if inner.validator in ("const", "enum")]
    words = [inner.validator_value for inner in wrong if inner.validator == "const"]
    paths = {tuple(inner.absolute_path) for inner in wrong}
    if len(paths) == 1 and len(words) == len(by_branch):
        return ValidationError(
            f"must be one of {words}, not {wrong[0].instance!r}",
            path=paths.pop(),
        )
    return error


def _join(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field
