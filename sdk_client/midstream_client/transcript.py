"""What was said in a chat, as it stands in a terminal."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

MARGIN = 7
"""How many columns a speaker takes."""


@dataclass(slots=True)
class Transcript:
    """What was said, as blocks of a speaker and a text."""

    blocks: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Speaker, text, and the id of the message if the text is an answer's."""

    def say(self, speaker: str, text: str) -> None:
        self.blocks.append((speaker, text, None))

    def token(self, text: str, message_id: str) -> None:
        """Adds to an answer, which stands last unless something was said meanwhile."""
        if self.blocks and self.blocks[-1][2] == message_id:
            speaker, before, _ = self.blocks[-1]
            self.blocks[-1] = (speaker, before + text, message_id)
        else:
            self.blocks.append(("agent", text.lstrip(), message_id))

    def void(self, message_ids: tuple[str, ...]) -> None:
        self.blocks = [block for block in self.blocks if block[2] not in message_ids]

    def text(self, columns: int = 80) -> str:
        """Returns it as it stands in a terminal of this width."""
        width = max(columns - MARGIN, 20)
        lines = []
        for speaker, text, _ in self.blocks:
            broken = [line for part in text.split("\n") for line in textwrap.wrap(part, width) or [""]]
            lines.append(f"{speaker:<{MARGIN}}{broken[0]}")
            lines += [" " * MARGIN + line for line in broken[1:]]
        return "\n".join(lines)
