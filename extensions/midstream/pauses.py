"""Lets a task pause, take whatever answer comes, and ask the same again if the answer was not valid.

A run that fails on an answer puts a thread of the server into `error`, and its questions are gone from view.
So a task that was given an invalid answer is run once more in the same run, as if no answer had come. It
pauses where it had paused, under the same id (which, as LangGraph has it, an invalid answer leaves open), and
the pause carries `errors`. LangGraph keeps it with the task's writes. Run again for another question's
answer, the task finds its errors there: nothing else needs to be kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.errors import GraphInterrupt, is_invalid_resume
from langgraph.types import Interrupt
from pydantic import ValidationError

from midstream._tasks import (
    Answers,
    Pauses,
    aspend_bare_answer,
    current,
    spend_bare_answer,
    task_id_of,
)
from midstream.approvals import AnswerError, answer_errors

T = TypeVar("T")


def asking(body: Callable[[RunnableConfig], T], pauses: Pauses, *, retried: bool) -> T:
    """Runs a task's body; returns its result, or pauses.

    Args:
        body: What may pause. It is given the config to run with. After an invalid answer it is called twice,
            so what it does before a pause is done again, as always in LangGraph.
        pauses: What this step's tasks have asked so far.
        retried: Whether an earlier attempt of the same run came here, and so had the run's bare answer.
    """
    config = get_config()
    asked = pauses.asked.get(task_id_of(config), ())
    answers = Answers(config, pauses, takes_bare=not retried)
    try:
        return body(config)
    except GraphInterrupt as pause:
        spend_bare_answer(config, pauses)
        raise _reminded(pause, asked) from None
    except ValidationError as error:
        if not is_invalid_resume(error):
            raise
        errors = answer_errors(error)

    again = answers.without_new()
    try:
        with current(again):
            return body(again)
    except GraphInterrupt as pause:
        spend_bare_answer(config, pauses)
        raise _corrected(pause, errors, answers.sent, asked) from None


async def aasking(body: Callable[[RunnableConfig], Awaitable[T]], pauses: Pauses, *, retried: bool) -> T:
    """Same as `asking`, but awaited."""
    config = get_config()
    asked = pauses.asked.get(task_id_of(config), ())
    answers = Answers(config, pauses, takes_bare=not retried)
    try:
        return await body(config)
    except GraphInterrupt as pause:
        await aspend_bare_answer(config, pauses)
        raise _reminded(pause, asked) from None
    except ValidationError as error:
        if not is_invalid_resume(error):
            raise
        errors = answer_errors(error)

    again = answers.without_new()
    try:
        with current(again):
            return await body(again)
    except GraphInterrupt as pause:
        await aspend_bare_answer(config, pauses)
        raise _corrected(pause, errors, answers.sent, asked) from None


def combined(pauses: Sequence[GraphInterrupt]) -> GraphInterrupt:
    """Returns one pause with all the questions of several."""
    return GraphInterrupt(tuple(question for pause in pauses for question in pause.args[0]))


def _reminded(pause: GraphInterrupt, asked: Sequence[Interrupt]) -> GraphInterrupt:
    """Gives the questions that are asked again the errors that they had."""
    before = {question.id: errors for question in asked if (errors := _errors(question))}
    return _with_errors(pause, before)


def _corrected(
    pause: GraphInterrupt,
    errors: list[AnswerError],
    sent: Mapping[str, Any],
    asked: Sequence[Interrupt],
) -> GraphInterrupt:
    """Gives the errors to the questions that were answered with this run and are still open.

    That is one, unless the task runs a graph in which several were answered, and not well.
    """
    before = {question.id: old for question in asked if (old := _errors(question))}
    answered = [question.id for question in pause.args[0] if question.id in sent or not sent]
    return _with_errors(pause, {**before, **dict.fromkeys(answered, errors)})


def _errors(question: Interrupt) -> list[AnswerError] | None:
    value = question.value
    return value.get("errors") if isinstance(value, dict) else None


def _with_errors(pause: GraphInterrupt, errors: Mapping[str, list[AnswerError]]) -> GraphInterrupt:
    return GraphInterrupt(
        tuple(
            _marked(question, errors[question.id]) if question.id in errors else question
            for question in pause.args[0]
        )
    )


def _marked(question: Interrupt, errors: list[AnswerError]) -> Interrupt:
    value = question.value
    # A question that is not a dict has no room for the errors: it moves one level down.
    asked = value if isinstance(value, dict) else {"value": value}
    if "errors" in asked:  # the tool's own word
        return question
    return Interrupt({**asked, "errors": errors}, question.id, response_schema=question.response_schema)
