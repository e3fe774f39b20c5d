"""In which words a person is asked, and what is made of what they type."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from midstream_client.interrupts import PendingInterrupt
from midstream_client.questions import Question, shape


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    nights: int
    cities: list[str] = []


class Trip(BaseModel):
    colour: Colour
    inner: Inner | None = None
    is_paid: bool


class Tree(BaseModel):
    value: float
    children: list[Tree] = []


class Choice(BaseModel):
    choice: str


class Name(BaseModel):
    choice: str = Field(min_length=2)


def asking(kind: Any, value: Any = "which?") -> Question:
    schema = None if kind is None else TypeAdapter(kind).json_schema()
    return Question(PendingInterrupt("i", value, "question", schema))


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Choice, '{"choice": text}'),
        (Literal["yes", "no"], '"yes" | "no"'),
        (Colour, '"red" | "blue"'),
        (bool, "true | false"),
        (int | None, "whole number | null"),
        (list[Choice], '[{"choice": text}, …]'),
        (dict[str, Any], "{…}"),
        (Any, "anything"),
        (
            Trip,
            '{"colour": "red" | "blue", "inner"?: {"nights": whole number, "cities"?: [text, …]} | null, '
            '"is_paid": true | false}',
        ),
    ],
)
def test_a_schema_is_told_as_the_answers_that_it_allows(kind: Any, told: str) -> None:
    assert shape(TypeAdapter(kind).json_schema()) == told
    assert list(asking(kind).asks()) == ["asks: which?", f"answer with: {told}"]


def test_a_schema_that_refers_to_itself_has_an_end() -> None:
    assert "…" in shape(TypeAdapter(Tree).json_schema())


def test_the_line_of_state_says_what_fits_into_it() -> None:
    assert asking(Choice).prompt() == 'the answer: {"choice": text}'
    assert asking(Trip).prompt() == "the answer, as JSON of the shape above"
    assert asking(None).prompt() == "the answer, as JSON or text"
    assert list(asking(None, {"question": "wöhin?"}).asks()) == ['asks: {"question": "wöhin?"}']


@pytest.mark.parametrize(
    ("kind", "typed", "meant"),
    [
        (None, "red", "red"),
        (None, "3", 3),
        (str, "3", "3"),
        (str, "true", "true"),
        (int, "3", 3),
        (Literal["yes", "no"], "yes", "yes"),
        (Choice, '{"choice": "red"}', {"choice": "red"}),
        (Choice, "red", {"choice": "red"}),
        (Choice, "3", {"choice": "3"}),
        pytest.param(Choice, '{"choice": 3}', {"choice": 3}, id="what is not valid is not made so"),
        pytest.param(Trip, "red", "red", id="of several fields"),
        pytest.param(int, "many", "many", id="no meaning is allowed"),
    ],
)
def test_what_is_typed_means_what_the_schema_allows(kind: Any, typed: str, meant: Any) -> None:
    assert asking(kind).answer(typed) == meant


@pytest.mark.parametrize(
    ("kind", "typed", "wrong"),
    [
        (Name, "b", [("choice", "'b' is too short")]),
        (Name, "3", [("choice", "'3' is too short")]),
        (Name, '{"choice": 3}', [("choice", "3 is not of type 'string'")]),
        (Choice, "b", []),
        (int, "many", [("", "'many' is not of type 'integer'")]),
        (None, "many", []),
    ],
)
def test_what_is_not_allowed_is_wrong_in_the_way_that_was_meant(
    kind: Any, typed: str, wrong: list[tuple[str, str]]
) -> None:
    question = asking(kind)
    assert question.problems(question.answer(typed)) == wrong
