"""The chat on a terminal: the transcript, a line of state, and a line to type in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import BufferControl, FormattedTextControl, HSplit, Layout, VSplit, Window
from prompt_toolkit.lexers import Lexer

from midstream_client.chat import Chat
from midstream_client.client import Midstream
from midstream_client.questions import Question
from midstream_client.transcript import MARGIN

if TYPE_CHECKING:
    from langgraph_sdk.client import LangGraphClient

STYLES = {"you": "ansigreen bold", "agent": "ansicyan", "tool": "ansimagenta", "·": "ansiyellow"}


async def run(client: LangGraphClient, assistant_id: str, thread_id: str | None) -> str:
    """Runs the chat until the person leaves; returns the transcript."""
    if thread_id is None:
        thread_id = str((await client.threads.create())["thread_id"])
    screen = Screen(Midstream(client), assistant_id, thread_id)
    return await screen.run()


class Screen:
    """A chat, drawn, and the keys that drive it."""

    def __init__(self, midstream: Midstream, assistant_id: str, thread_id: str) -> None:
        self.chat = Chat(midstream, assistant_id, thread_id, self._refresh)
        self._thread_id = thread_id
        self._is_leaving = False
        self._is_begun = False
        self._begun_at: Question | None = None
        """What was asked as the line was begun."""

        self._shown = Buffer(read_only=True)
        self._typed = Buffer(
            multiline=False, accept_handler=self._accept, on_text_changed=self._note_beginning
        )
        self._application: Application[None] = Application(
            layout=self._layout(), key_bindings=self._keys(), full_screen=True
        )

    async def run(self) -> str:
        self.chat.note(f"thread {self._thread_id}")
        self.chat.start(self.chat.look())
        try:
            await self._application.run_async()
        finally:
            await self.chat.close()
        return self.chat.transcript.text(self._columns())

    def _columns(self) -> int:
        # A buffer's lines are drawn with a space at the end, which would take a row of its own.
        return self._application.output.get_size().columns - 1

    def _layout(self) -> Layout:
        shown = Window(BufferControl(self._shown, lexer=SpeakerLexer(), focusable=False), wrap_lines=True)
        state = Window(FormattedTextControl(lambda: f" {self._status()}"), height=1, style="reverse")
        mark = Window(FormattedTextControl("> "), width=2, height=1)
        typed = Window(BufferControl(self._typed), height=1)
        return Layout(HSplit([shown, state, VSplit([mark, typed])]), focused_element=typed)

    def _status(self) -> str:
        return "Ctrl-C again to leave" if self._is_leaving else self.chat.status()

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("c-c")
        def _(event: KeyPressEvent) -> None:
            if self.chat.halt():
                return
            if self._is_leaving or self.chat.is_halting:
                event.app.exit()
            self._is_leaving = True

        @keys.add("c-d")
        def _(event: KeyPressEvent) -> None:
            event.app.exit()

        return keys

    def _note_beginning(self, buffer: Buffer) -> None:
        if not self._is_begun:
            self._begun_at = self.chat.question
        self._is_begun = bool(buffer.text)

    def _accept(self, buffer: Buffer) -> bool:
        self._is_leaving = False
        left = self.chat.submit(buffer.text, self._begun_at if buffer.text else self.chat.question)
        if left:
            buffer.document = Document(left, len(left))
            self._begun_at = self.chat.question
        self._is_begun = bool(left)
        return self._is_begun

    def _refresh(self) -> None:
        text = self.chat.transcript.text(self._columns())
        self._shown.set_document(Document(text, len(text)), bypass_readonly=True)
        self._application.invalidate()


class SpeakerLexer(Lexer):
    """Colours a line's speaker."""

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        lines = document.lines

        def line(number: int) -> StyleAndTextTuples:
            text = lines[number] if number < len(lines) else ""
            speaker = text[:MARGIN].strip()
            return [(STYLES.get(speaker, ""), text[:MARGIN]), ("", text[MARGIN:])]

        return line
