"""A chat's text in a terminal's columns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream_client.transcript import Transcript, columns_of, wrapped


@given(st.text(alphabet="ab \t猫é🎈́", max_size=60), st.integers(2, 12))
def test_no_line_is_too_long_and_nothing_is_lost(text: str, width: int) -> None:
    lines = list(wrapped(text, width))

    assert all(columns_of(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [""]),
        ("one two three", ["one two", "three"]),
        ("  two words", ["  two", "words"]),
        ("onelongword", ["onelongw", "ord"]),
        ("a onelongword", ["a", "onelongw", "ord"]),
        ("猫猫猫猫猫", ["猫猫猫猫", "猫"]),
        ("é 🎈 é", ["é 🎈 é"]),
    ],
)
def test_words_stay_whole_where_they_can(text: str, lines: list[str]) -> None:
    assert list(wrapped(text, 8)) == lines


def test_what_an_agent_says_is_no_command_to_the_terminal() -> None:
    transcript = Transcript()
    transcript.say("tool", "\x1b]0;title\x07\x1b[2Jdone\r\n\tmore")
    transcript.token("\x9b31mred", "m")

    assert transcript.text() == "tool   ]0;title[2Jdone\n           more\nagent  31mred"
