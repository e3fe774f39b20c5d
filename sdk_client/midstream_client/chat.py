"""A chat in the terminal: typing during an answer steers it, Ctrl-C halts it, approvals are asked for."""

from __future__ import annotations

import asyncio
import json
import textwrap
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import BufferControl, FormattedTextControl, HSplit, Layout, VSplit, Window
from prompt_toolkit.lexers import Lexer

from midstream_client.answers import approve, edit, reject, respond, tool_result
from midstream_client.client import Midstream
from midstream_client.errors import InvalidAnswerError, MidstreamError
from midstream_client.events import (
    Done,
    Error,
    Event,
    Halted,
    Injected,
    Interrupted,
    Retried,
    Sealed,
    Started,
    Token,
    ToolCall,
    ToolResult,
    Waiting,
)
from midstream_client.interrupts import PendingAction, PendingInterrupt

if TYPE_CHECKING:
    from langgraph_sdk.client import LangGraphClient

HALT_REASON = "stopped in the terminal"
KEYS = {"a": "approve", "e": "edit", "r": "reject", "s": "respond"}
MARGIN = 7
STYLES = {"you": "ansigreen bold", "agent": "ansicyan", "tool": "ansimagenta", "·": "ansiyellow"}


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


class SpeakerLexer(Lexer):
    """Colours a line's speaker."""

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        lines = document.lines

        def line(number: int) -> StyleAndTextTuples:
            text = lines[number] if number < len(lines) else ""
            speaker = text[:MARGIN].strip()
            return [(STYLES.get(speaker, ""), text[:MARGIN]), ("", text[MARGIN:])]

        return line


@dataclass(slots=True)
class Question:
    """Something that a person is being asked, and what the answer is made of."""

    interrupt: PendingInterrupt
    action: PendingAction | None = None
    decision: str | None = None
    """The decision whose text is being typed."""

    def options(self) -> dict[str, str]:
        """Returns the decisions that a key stands for."""
        if self.action is None or self.decision is not None:
            return {}
        return {key: word for key, word in KEYS.items() if word in self.action.allowed_decisions}

    def prompt(self) -> str:
        if options := self.options():
            return " ".join(f"[{key}] {word}" for key, word in options.items())
        if self.decision is not None:
            return {
                "edit": "the arguments, as JSON",
                "reject": "why not (may be empty)",
                "respond": "the answer",
            }[self.decision]
        if self.interrupt.kind == "tool_execution":
            return f"the result of {self.interrupt.tool_name}"
        return "the answer, as JSON or text"


class Chat:
    """A thread, what is shown of it, and what a person does."""

    def __init__(self, midstream: Midstream, assistant_id: str, thread_id: str, refresh: Callable[[], None]):
        self.transcript = Transcript()
        self.questions: list[Question] = []
        self.is_answering = False
        self.is_halting = False
        self._answers: dict[str, Any] = {}
        self._midstream = midstream
        self._assistant_id = assistant_id
        self._thread_id = thread_id
        self._refresh = refresh
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def question(self) -> Question | None:
        return self.questions[0] if self.questions else None

    def status(self) -> str:
        if self.question is not None:
            return self.question.prompt()
        if self.is_halting:
            return "halting · Ctrl-C leaves"
        if self.is_answering:
            return "answering · type to steer · Ctrl-C halts"
        return "type a message · Ctrl-C twice or Ctrl-D leaves"

    def note(self, text: str) -> None:
        self.transcript.say("·", text)
        self._refresh()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Does something beside the screen; what goes wrong is shown."""

        async def shown() -> None:
            try:
                await work
            except (MidstreamError, httpx.HTTPError) as error:
                self.note(f"{type(error).__name__}: {error}")

        task = asyncio.get_running_loop().create_task(shown())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def submit(self, text: str) -> None:
        """Takes a line that was typed."""
        if self.question is not None:
            self._answer_typed(text)
        elif text.strip():
            self.transcript.say("you", text)
            if self.is_answering:
                self.start(self._steer(text))
            else:
                # Now and not when the task runs: a second line may be here already.
                self.is_answering = True
                self.start(self._listen(input=_said(text)))
        self._refresh()

    def decide(self, key: str) -> str:
        """Takes a key as a decision; returns the text to begin with, where the decision needs one."""
        question = self.question
        assert question is not None
        assert question.action is not None
        decision = question.options()[key]
        if decision == "approve":
            self._settle(approve(), "approved")
            return ""
        question.decision = decision
        self._refresh()
        return json.dumps(dict(question.action.args), ensure_ascii=False) if decision == "edit" else ""

    def halt(self) -> bool:
        """Halts the answer; False if there is none, or if it is being halted already."""
        if not self.is_answering or self.is_halting:
            return False
        self.is_halting = True
        self.start(self._halt())
        self._refresh()
        return True

    async def look(self) -> None:
        """Asks what a thread waits for that was left before."""
        self._ask(await self._midstream.interrupts(self._thread_id))

    async def _halt(self) -> None:
        await self._midstream.halt(self._thread_id, HALT_REASON)

    async def _steer(self, text: str) -> None:
        sent = await self._midstream.send(self._thread_id, self._assistant_id, text)
        if sent.how == "started":
            # The answer had ended in between.
            await self._listen(run_id=sent.run_id)
        elif sent.how == "waiting":
            self.note("your message is applied after the answer to what is asked")

    async def _listen(self, **what: Any) -> None:
        self.is_answering, self.is_halting = True, False
        try:
            async for event in self._midstream.stream(self._thread_id, self._assistant_id, **what):
                self._show(event)
        finally:
            self.is_answering, self.is_halting = False, False
            self._refresh()

    def _show(self, event: Event) -> None:
        match event:
            case Token():
                self.transcript.token(event.text, event.message_id)
            case Waiting():
                self.note(f"waiting: {event.reason.replace('_', ' ')}")
            case Sealed():
                self.note("sealed: the half answer is a turn of its own")
            case Injected():
                self.note("injected: your message is in the conversation")
            case Halted():
                self.note(f"halted: {event.reason}")
            case ToolCall():
                self.transcript.say("tool", f"{event.name}({_args(event.args)})")
            case ToolResult():
                self.transcript.say("tool", f"{event.name}: {event.content}")
            case Retried():
                self.transcript.void(event.discarded)
                self.note(f"another worker goes on (attempt {event.attempt})")
            case Interrupted():
                self._ask(event.interrupts)
            case Error():
                self.note(f"failed: {event.error}: {event.message}")
            case Started() | Done():
                pass
        self._refresh()

    def _ask(self, pending: Iterable[PendingInterrupt], answers: Mapping[str, Any] | None = None) -> None:
        """Asks what has no answer yet."""
        self._answers = dict(answers or {})
        self.questions = []
        for interrupt in pending:
            if interrupt.id in self._answers:
                continue
            for error in interrupt.errors:
                self.note(f"not valid: {error.path}: {error.message}")
            is_decided = interrupt.kind in ("tool_approval", "batched_approval")
            actions: tuple[PendingAction | None, ...] = interrupt.actions if is_decided else (None,)
            self.questions += [Question(interrupt, action) for action in actions]
        self._show_question()

    def _show_question(self) -> None:
        question = self.question
        if question is None:
            return
        if question.action is not None:
            self.note(f"{question.action.name}({_args(question.action.args)})?")
        elif question.interrupt.actions:
            action = question.interrupt.actions[0]
            self.note(f"run {action.name}({_args(action.args)}) and give its result")
        else:
            self.note(f"asks: {json.dumps(question.interrupt.value, ensure_ascii=False)}")

    def _answer_typed(self, text: str) -> None:
        question = self.question
        assert question is not None
        if question.options():
            return
        if question.decision is None:
            answer = tool_result(text) if question.interrupt.kind == "tool_execution" else _json_or_text(text)
            self._settle(answer, text)
        elif question.decision == "edit":
            args = _json_or_text(text)
            if isinstance(args, dict):
                self._settle(edit(args), f"edited: {text}")
            else:
                self.note('the arguments must be a JSON object, such as {"to": "ann@example.com"}')
        elif question.decision == "reject":
            self._settle(reject(text or None), f"rejected{f': {text}' if text else ''}")
        elif text.strip():
            self._settle(respond(text), f"answered: {text}")

    def _settle(self, answer: Any, said: str) -> None:
        question = self.questions.pop(0)
        self.transcript.say("you", said)
        name = question.interrupt.id
        if question.interrupt.kind == "batched_approval":
            self._answers.setdefault(name, []).append(answer)
        else:
            self._answers[name] = answer
        if self.questions:
            self._show_question()
        else:
            self.start(self._resume(self._answers))
        self._refresh()

    async def _resume(self, answers: dict[str, Any]) -> None:
        try:
            await self._listen(resume=answers)
        except InvalidAnswerError as error:
            for problem in error.problems:
                self.note(f"not valid: {problem.field}: {problem.reason}")
                answers.pop(problem.interrupt_id, None)
            self._ask(await self._midstream.interrupts(self._thread_id), answers)
            self._refresh()


async def run(client: LangGraphClient, assistant_id: str, thread_id: str | None) -> str:
    """Runs the chat until the person leaves; returns the transcript."""
    if thread_id is None:
        thread_id = str((await client.threads.create())["thread_id"])
    screen = Screen(Midstream(client), assistant_id, thread_id)
    return await screen.run()


class Screen:
    """The chat on a terminal: the transcript, a line of state, and a line to type in."""

    def __init__(self, midstream: Midstream, assistant_id: str, thread_id: str) -> None:
        self.chat = Chat(midstream, assistant_id, thread_id, self._refresh)
        self._thread_id = thread_id
        self._is_leaving = False
        self._shown = Buffer(read_only=True)
        self._typed = Buffer(multiline=False, accept_handler=self._accept)
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
        return self._application.output.get_size().columns

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

        for key in KEYS:
            keys.add(key, filter=Condition(lambda key=key: self._decides(key)))(self._decide)  # type: ignore[misc]
        return keys

    def _decides(self, key: str) -> bool:
        question = self.chat.question
        return question is not None and key in question.options()

    def _decide(self, event: KeyPressEvent) -> None:
        self._typed.text = self.chat.decide(event.key_sequence[0].key)
        self._typed.cursor_position = len(self._typed.text)

    def _accept(self, buffer: Buffer) -> bool:
        self._is_leaving = False
        self.chat.submit(buffer.text)
        return False

    def _refresh(self) -> None:
        text = self.chat.transcript.text(self._columns())
        self._shown.set_document(Document(text, len(text)), bypass_readonly=True)
        self._application.invalidate()


def _said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def _args(args: Any) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in dict(args).items())


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
