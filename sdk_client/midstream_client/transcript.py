"""What was said in a chat, as it stands in a terminal."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field

MARGIN = 7
"""How many columns a speaker takes."""

CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)])
del CONTROLS[ord("\n")], CONTROLS[ord("\t")]


def harmless(text: str) -> str:
    """Returns a text that only says something: none of it is a command to the terminal."""
    return text.translate(CONTROLS).expandtabs(4)


@dataclass(slots=True)
class Transcript:
    """What was said, as blocks of a speaker and a text."""

    blocks: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Speaker, text, and the id of the message if the text is an answer's."""

    def say(self, speaker: str, text: str) -> None:
        self.blocks.append((speaker, harmless(text), None))

    def token(self, text: str, message_id: str) -> None:
        """Adds to an answer, which stands last unless something was said meanwhile."""
        if self.blocks and self.blocks[-1][2] == message_id:
            speaker, before, _ = self.blocks[-1]
            self.blocks[-1] = (speaker, before + harmless(text), message_id)
        else:
            self.blocks.append(("agent", harmless(text).lstrip(), message_id))

    def void(self, message_ids: tuple[str, ...]) -> None:
        self.blocks = [block for block in self.blocks if block[2] not in message_ids]

    def text(self, columns: int = 80) -> str:
        """Returns it as it stands in a terminal of this width."""
        width = max(columns - MARGIN, 20)
        lines = []
        for speaker, text, _ in self.blocks:
            broken = [line for part in text.split("\n") for line in wrapped(part, width)]
            lines.append(f"{speaker:<{MARGIN}}{broken[0]}")
            lines += [" " * MARGIN + line for line in broken[1:]]
        return "\n".join(lines)


def wrapped(text: str, width: int) -> Iterator[str]:
    """Yields lines of at most this many columns, at least one, broken between words where that can be."""
    line, used = "", 0
    for piece in re.findall(r"\s+|\S+", text):
        left = piece
        while used + (needed := columns_of(left)) > width:
            if line.strip():
                yield line.rstrip()
                line, used, left = "", 0, left.lstrip()
                continue
            cut = _fitting(left, width)
            yield left[:cut]
            left = left[cut:]
        line, used = line + left, used + needed
    yield line.rstrip()


def _fitting(text: str, width: int) -> int:
    """Returns how many characters fit into so many columns, at least one."""
    used = 0
    for at, character in enumerate(text):
        used += columns_of(character)
        if used > width and at:
            return at
    return max(len(text), 1)


def columns_of(text: str) -> int:
    """Returns how many columns a terminal needs: two for a wide character, none for a mark on another."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.combining(each) or unicodedata.category(each) in ("Cf", "Me", "Mn")
        else 2
        if unicodedata.east_asian_width(each) in ("W", "F")
        else 1
        for each in text
    )
