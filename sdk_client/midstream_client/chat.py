"""A chat: typing during an answer steers it, and it can be halted; what is asked is asked one by one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

import httpx

from midstream_client.answers import approve, edit, reject, respond
from midstream_client.client import Midstream
from midstream_client.errors import InvalidAnswerError, MidstreamError, UnknownInterruptError
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
from midstream_client.questions import Question, json_or_text, said_args
from midstream_client.transcript import Transcript

HALT_REASON = "stopped in the terminal"


class Chat:
    """A thread, what is shown of it, and what a person does."""

    def __init__(self, midstream: Midstream, assistant_id: str, thread_id: str, refresh: Callable[[], None]):
        self.transcript = Transcript()
        self.questions: list[Question] = []
        self.is_halting = False
        self._asked: tuple[PendingInterrupt, ...] = ()
        self._answers: dict[str, Any] = {}
        self._run_id: str | None = None
        self._heard: set[str] = set()
        self._answering = 0
        self._midstream = midstream
        self._assistant_id = assistant_id
        self._thread_id = thread_id
        self._refresh = refresh
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_answering(self) -> bool:
        return self._answering > 0

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

    def submit(self, text: str, begun_at: Question | None) -> str:
        """Takes a line that was typed.

        Args:
            text: The line.
            begun_at: What was asked as it was begun: who types while a question comes does not answer it.

        Returns:
            What is left in the line, or with what the next one begins.
        """
        left = ""
        if begun_at is not None and begun_at is self.question:
            left = self._decide(begun_at, text) if begun_at.options() else self._answer_typed(begun_at, text)
        elif text.strip():
            self.transcript.say("you", text)
            if self.is_answering or self.question is not None:
                self.start(self._steer(text))
            else:
                # Now and not when the task runs: a second line may be here already.
                self._answering += 1
                self.start(self._say(text))
        self._refresh()
        return left

    def _decide(self, question: Question, text: str) -> str:
        options = question.options()
        said = text.strip().lower()
        decision = options.get(said, said)
        if decision not in options.values():
            known = ", ".join(f"{key} ({word})" for key, word in options.items())
            self.note(f"answer by one of {known}, not by {text!r}")
            return ""
        if decision == "approve":
            self._settle(approve(), "approved")
            return ""
        question.decision = decision
        action = question.action
        return json.dumps(dict(action.args), ensure_ascii=False) if action and decision == "edit" else ""

    def halt(self) -> bool:
        """Halts the answer; False if there is none, or if it is being halted already."""
        if not self.is_answering or self.is_halting:
            return False
        self.is_halting = True
        if self._run_id is not None:
            self.start(self._halt(self._run_id))
        self._refresh()
        return True

    async def look(self) -> None:
        """Asks what a thread waits for that was left before."""
        self._ask(await self._midstream.interrupts(self._thread_id))

    async def _halt(self, run_id: str) -> None:
        # This run: if it has just ended, the next one is not meant.
        await self._midstream.halt(self._thread_id, HALT_REASON, run_id=run_id)

    async def _say(self, text: str) -> None:
        try:
            await self._listen(input=_said(text))
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 409:
                raise
            # Somebody else's run is there.
            await self._steer(text)
        finally:
            self._ended()

    async def _steer(self, text: str) -> None:
        sent = await self._midstream.send(self._thread_id, self._assistant_id, text)
        if sent.run_id is not None and sent.run_id not in self._heard:
            # The answer had ended in between, or is one that nobody has listened to.
            await self._listen(run_id=sent.run_id)
        elif sent.how == "waiting":
            self.note("your message is applied after the answer to what is asked")

    async def _listen(self, **what: Any) -> None:
        self._answering += 1
        try:
            async for event in self._midstream.stream(self._thread_id, self._assistant_id, **what):
                self._show(event)
        finally:
            self._ended()

    def _ended(self) -> None:
        self._answering -= 1
        if not self.is_answering:
            self.is_halting, self._run_id = False, None
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
                self.transcript.say("tool", f"{event.name}({said_args(event.args)})")
            case ToolResult():
                self.transcript.say("tool", f"{event.name}: {event.content}")
            case Retried():
                self.transcript.void(event.discarded)
                self.note(f"another worker goes on (attempt {event.attempt})")
            case Interrupted():
                self._ask(event.interrupts)
            case Error():
                self.note(f"failed: {event.error}: {event.message}")
            case Started():
                self._run_id = event.run_id
                self._heard.add(event.run_id)
                if self.is_halting:
                    # Asked for before it was known what to halt.
                    self.start(self._halt(event.run_id))
            case Done(is_cancelled=True):
                self.note("cancelled: the answer is not kept")
        self._refresh()

    def _ask(self, pending: Iterable[PendingInterrupt], answers: Mapping[str, Any] | None = None) -> None:
        """Asks what has no answer yet."""
        self._asked = tuple(pending)
        self._answers = dict(answers or {})
        self.questions = []
        for interrupt in self._asked:
            if interrupt.id in self._answers:
                continue
            for error in interrupt.errors:
                self._note_problem(error.path, error.message)
            is_decided = interrupt.kind in ("tool_approval", "batched_approval")
            actions: tuple[PendingAction | None, ...] = interrupt.actions if is_decided else (None,)
            self.questions += [Question(interrupt, action) for action in actions]
        self._show_question()

    def _show_question(self) -> None:
        for text in self.question.asks() if self.question is not None else ():
            self.note(text)

    def _note_problem(self, field: str, reason: str) -> None:
        self.note(f"not valid: {f'{field}: ' if field else ''}{reason}")

    def _answer_typed(self, question: Question, text: str) -> str:
        if question.decision is None:
            answer = question.answer(text)
            if problems := question.problems(answer):
                for problem in problems:
                    self._note_problem(*problem)
                # What is long is corrected; a word is typed anew.
                return text if isinstance(json_or_text(text), dict | list) else ""
            self._settle(answer, text)
        elif not text.strip() and question.decision != "reject":
            question.decision = None
        elif question.decision == "edit":
            args = json_or_text(text)
            if isinstance(args, dict):
                self._settle(edit(args), f"edited: {text}")
            else:
                self.note('the arguments must be a JSON object, such as {"to": "ann@example.com"}')
                return text
        elif question.decision == "reject":
            self._settle(reject(text or None), f"rejected{f': {text}' if text else ''}")
        else:
            self._settle(respond(text), f"answered: {text}")
        return ""

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
            self._answering += 1
            self.start(self._resume(self._answers))
        self._refresh()

    async def _resume(self, answers: dict[str, Any]) -> None:
        try:
            await self._listen(resume=answers)
        except InvalidAnswerError as error:
            for problem in error.problems:
                self._note_problem(problem.field, problem.reason)
                answers.pop(problem.interrupt_id, None)
            # At once, as nothing was sent: a line that is typed now is an answer, too.
            self._ask(self._asked, answers)
        except UnknownInterruptError:
            self.note("somebody else has answered; what is still open is asked again")
            await self.look()
        finally:
            self._ended()


def _said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}
