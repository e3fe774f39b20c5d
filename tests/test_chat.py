"""What a chat does in moments that a person at a terminal seldom meets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from langgraph_sdk.errors import ConflictError

from midstream_client.chat import Chat
from midstream_client.errors import AnswerProblem, InvalidAnswerError, UnknownInterruptError
from midstream_client.events import Done, Event, Started, Token
from midstream_client.interrupts import PendingAction, PendingInterrupt
from midstream_client.requests import Sent


class FakeHost:
    """What a chat calls of `Midstream`; a test says what is streamed, and when."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self.calls: list[tuple[str, Any]] = []
        self.sent: asyncio.Queue[Sent] = asyncio.Queue()
        self.pending: list[PendingInterrupt] = []

    async def stream(self, thread_id: str, assistant_id: str, **what: Any) -> AsyncIterator[Event]:
        self.calls.append(("stream", what))
        while True:
            event = await self.events.get()
            if isinstance(event, Exception):
                raise event
            yield event
            if isinstance(event, Done):
                return

    async def interrupts(self, thread_id: str) -> list[PendingInterrupt]:
        return self.pending

    async def halt(self, thread_id: str, reason: str, *, run_id: str | None = None) -> None:
        self.calls.append(("halt", run_id))

    async def send(self, thread_id: str, assistant_id: str, text: str) -> Sent:
        self.calls.append(("send", text))
        return await self.sent.get()


class Person:
    """A chat, and time for it to do what it has been told."""

    def __init__(self) -> None:
        self.host = FakeHost()
        self.chat = Chat(self.host, "agent", "t", lambda: None)  # type: ignore[arg-type]  # as much as it calls

    def types(self, text: str) -> str:
        """Returns what is left in the line."""
        return self.chat.submit(text, self.chat.question)

    def is_told(self) -> str:
        return self.chat.transcript.text(columns=120).splitlines()[-1]

    async def happens(self, *events: Event | Exception) -> None:
        for event in events:
            self.host.events.put_nowait(event)
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def person() -> AsyncIterator[Person]:
    found = Person()
    yield found
    await found.chat.close()


REQUEST = httpx.Request("POST", "http://server.test")
STORY = {"input": {"messages": [{"role": "user", "content": "A story."}]}}


async def test_a_halt_names_its_run_so_that_it_never_stops_the_next_one(person: Person) -> None:
    person.types("A story.")
    await person.happens()
    assert person.chat.halt()
    await person.happens()
    assert person.host.calls == [("stream", STORY)]

    # Pressed before the run was there.
    await person.happens(Started("r"))
    assert person.host.calls == [("stream", STORY), ("halt", "r")]
    await person.happens(Done("r", "success"))
    assert not person.chat.halt()


async def test_a_run_of_somebody_else_is_steered_and_listened_to(person: Person) -> None:
    person.types("A story.")
    await person.happens(ConflictError("busy", response=httpx.Response(409, request=REQUEST), body=None))
    person.host.sent.put_nowait(Sent("s", "steered", "theirs", ("m",)))
    await person.happens(Started("theirs"), Token("Well.", "m1", "model"), Done("theirs", "success"))

    assert person.host.calls == [("stream", STORY), ("send", "A story."), ("stream", {"run_id": "theirs"})]
    assert person.chat.transcript.text() == "you    A story.\nagent  Well."
    assert not person.chat.is_answering


async def test_a_run_that_was_heard_to_its_end_is_not_told_again(person: Person) -> None:
    person.types("A story.")
    await person.happens(Started("r"), Token("Once", "m1", "model"))
    person.types("Shorter.")
    await person.happens(Done("r", "success"))
    person.host.sent.put_nowait(Sent("s", "steered", "r", ("m",)))
    await person.happens()

    assert person.host.calls == [("stream", STORY), ("send", "Shorter.")]
    person.host.sent.put_nowait(Sent("s", "started", "next", ("m",)))
    person.types("Again.")
    await person.happens(Done("r2", "interrupted", is_cancelled=True))
    assert "cancelled: the answer is not kept" in person.chat.transcript.text()
    await person.chat.close()


async def test_what_somebody_else_has_answered_is_not_asked_again(person: Person) -> None:
    person.host.pending = [
        PendingInterrupt("i", "which?", "question"),
        PendingInterrupt("j", "when?", "question"),
    ]
    await person.chat.look()
    person.host.pending = person.host.pending[1:]
    person.types("red")
    person.types("now")
    await person.happens(UnknownInterruptError("t", ["i"], ["j"]))

    assert person.host.calls == [("stream", {"resume": {"i": "red", "j": "now"}})]
    assert person.chat.question is not None
    assert person.chat.question.interrupt.id == "j"
    assert not person.chat.is_answering


EMAIL = PendingAction("send_email", {"to": "bob"}, None, ("approve", "edit", "reject", "respond"), "c1")
SHORT = {
    "type": "object",
    "properties": {"choice": {"type": "string", "minLength": 2}},
    "required": ["choice"],
}


async def test_what_is_no_answer_is_said_at_once_and_the_next_key_begins_a_new_line(person: Person) -> None:
    person.host.pending = [
        PendingInterrupt("i", "which?", "question", SHORT),
        PendingInterrupt("j", {}, "batched_approval", actions=(EMAIL,)),
    ]
    await person.chat.look()

    assert person.types("b") == ""
    assert person.is_told() == "·      not valid: choice: 'b' is too short"
    # What is long stays, to be corrected.
    assert person.types('{"choice": 3}') == '{"choice": 3}'
    assert person.is_told() == "·      not valid: choice: 3 is not of type 'string'"
    assert person.types("blue") == ""
    assert person.types("x") == ""
    assert person.is_told() == (
        "·      answer by one of a (approve), e (edit), r (reject), s (respond), not by 'x'"
    )
    assert person.types("a") == ""
    await person.happens()
    answers = {"i": {"choice": "blue"}, "j": [{"type": "approve"}]}
    assert person.host.calls == [("stream", {"resume": answers})]


async def test_who_does_not_want_to_edit_goes_back_to_the_question(person: Person) -> None:
    person.host.pending = [PendingInterrupt("j", {}, "tool_approval", actions=(EMAIL,))]
    await person.chat.look()
    for letter, prefilled, prompt in (
        ("e", '{"to": "bob"}', "the arguments, as JSON (empty: back)"),
        ("s", "", "the answer (empty: back)"),
    ):
        assert person.types(letter) == prefilled
        assert person.chat.status() == prompt
        assert person.types(" ") == ""
        assert person.chat.status() == "[a] approve [e] edit [r] reject [s] respond"
    person.types("r")
    person.types("")
    await person.happens()
    assert person.host.calls == [("stream", {"resume": {"j": {"type": "reject"}}})]


async def test_what_the_thread_does_not_take_is_asked_again_and_the_rest_is_kept(person: Person) -> None:
    person.host.pending = [PendingInterrupt("i", "a?", "question"), PendingInterrupt("j", "b?", "question")]
    await person.chat.look()
    person.types("one")
    person.types("two")
    problems = [AnswerProblem("i", "", "must be red"), AnswerProblem("i", "a.b", "must be blue")]
    await person.happens(InvalidAnswerError("t", problems))
    assert "not valid: must be red\n·      not valid: a.b: must be blue" in person.chat.transcript.text()
    person.types("red")
    await person.happens()

    assert person.host.calls[-1] == ("stream", {"resume": {"j": "two", "i": "red"}})
