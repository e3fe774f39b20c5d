"""Answers to interrupts: made, put in their place, and checked before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from midstream_client.errors import AnswerProblem, InvalidAnswerError, UnknownInterruptError
from midstream_client.interrupts import PendingAction, PendingInterrupt

Decision: TypeAlias = dict[str, Any]
"""What a person says of one tool call, in LangChain's words."""

Answer: TypeAlias = Any
"""What `resume` takes for one interrupt. For a batched approval: decisions by tool call id, a list of them by
position, one decision if one call waits, or LangChain's `{"decisions": [...]}`. For an approval of one call:
a decision, or `{tool_call_id: decision}`. For all else the value that the graph's `interrupt()` returns."""


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
        return _named(_of_one_call(interrupt.actions[0], answer), interrupt.actions[0])
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


def _of_one_call(action: PendingAction, answer: Answer) -> Answer:
    """Returns the decision on a call that is asked about by itself."""
    if isinstance(answer, Mapping) and "type" in answer:
        return answer
    if isinstance(answer, Mapping) and list(answer) == [action.tool_call_id]:
        return answer[action.tool_call_id]
    if isinstance(answer, Mapping):
        reason = "one decision on this call, such as approve(), not a dict of "
        raise _Misplaced(
            "", f"must be {reason}{', '.join(map(repr, answer)) or 'nothing'}: {_said([action])}"
        )
    raise _Misplaced("", f"must be a decision such as approve(), not {answer!r}: {_said([action])}")


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
        # Imported here: the server and the nodes, which use the wire alone, do not need the library.
        from midstream_client._schema import against_schema

        found = against_schema(interrupt.response_schema, answer)
    for path, reason in found:
        yield AnswerProblem(interrupt.id, path, reason, _call_at(path, interrupt))


def _call_at(path: str, interrupt: PendingInterrupt) -> str | None:
    """Returns the call that a path such as `decisions.1.type` is about."""
    first, _, rest = path.partition(".")
    place = rest.partition(".")[0]
    if first != "decisions" or not place.isdecimal() or int(place) >= len(interrupt.actions):
        return None
    return interrupt.actions[int(place)].tool_call_id


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


def _join(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field
