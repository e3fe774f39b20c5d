"""A person at the terminal: what they press, and what their screen shows."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator

import pytest
from langgraph_sdk import get_sync_client

from support.hosted import calls, said
from support.terminal import Terminal

READY = "type a message · Ctrl-C twice or Ctrl-D leaves"


class Person(Terminal):
    """Somebody who chats with one of the agents."""

    def __init__(self, url: str, assistant: str, *more: str) -> None:
        command = [
            sys.executable,
            "-m",
            "midstream_client.cli",
            "chat",
            "--url",
            url,
            "--assistant",
            assistant,
        ]
        super().__init__([*command, *more], env=os.environ)
        self.wait_for("thread ")

    def sees(self) -> list[str]:
        """The screen, without how far a stream has come, and without the ids that are new each time."""
        text = re.sub(r"thread \S+", "thread …", self.text())
        text = re.sub(r"word\d+(\s+word\d+)*", "words", text)
        text = re.sub(r"\{\"turns\".*?\}\]\}", "(script)", text, flags=re.DOTALL)
        return [line for line in text.splitlines() if line and line != "agent  words"]

    @property
    def thread_id(self) -> str:
        found = re.search(r"thread (\S+)", self.text())
        assert found is not None
        return found[1]


@pytest.fixture
def chat(hosted_url: str) -> Iterator[Person]:
    with Person(hosted_url, "long") as person:
        yield person


def test_typing_during_an_answer_steers_it_and_ctrl_c_halts_it(chat: Person, hosted_url: str) -> None:
    chat.wait_for(READY)
    chat.type("Tell me a story.")
    chat.wait_for("word5")
    assert chat.sees()[-2:] == [" answering · type to steer · Ctrl-C halts", ">"]

    chat.type("Shorter, please.")
    chat.wait_for("You said: Shorter, please.. word1 word2")
    chat.press("\x03")
    chat.wait_for(READY)

    assert chat.sees() == [
        "·      thread …",
        "you    Tell me a story.",
        "agent  You said: Tell me a story.. words",
        "you    Shorter, please.",
        "·      sealed: the half answer is a turn of its own",
        "·      injected: your message is in the conversation",
        "agent  You said: Shorter, please.. words",
        "·      sealed: the half answer is a turn of its own",
        "·      halted: stopped in the terminal",
        f" {READY}",
        ">",
    ]
    with get_sync_client(url=hosted_url, api_key=None) as client:
        values = client.threads.get_state(chat.thread_id)["values"]
        assert isinstance(values, dict)
        kinds = [message["type"] for message in values["messages"]]
        (run,) = client.runs.list(chat.thread_id)
    assert kinds == ["human", "ai", "human", "ai"]
    assert (run["status"], values["preemption"]["halt"]["run_id"]) == ("success", run["run_id"])

    # The partial answer is there, so the conversation goes on from it; and twice leaves.
    chat.press("\x03")
    chat.wait_for("Ctrl-C again to leave")
    chat.press("\x03")
    assert chat.wait_for_end() == 0
    # What was said stays in the terminal.
    assert "·      halted: stopped in the terminal" in chat.lines()


def test_ctrl_c_twice_leaves_an_answer_that_cannot_be_halted_yet(hosted_url: str) -> None:
    with Person(hosted_url, "long") as chat:
        chat.wait_for(READY)
        chat.type("Tell me a story.")
        chat.wait_for("answering")
        chat.press("\x03\x03")
        assert chat.wait_for_end() == 0


def test_an_approval_is_one_letter(hosted_url: str) -> None:
    with Person(hosted_url, "brief") as chat:
        chat.wait_for(READY)
        chat.type(
            calls(
                ("send_email", {"to": "ann", "body": "hi"}),
                ("send_email", {"to": "bob", "body": "hi"}),
                ("send_email", {"to": "eve", "body": "hi"}),
                then="All done.",
            )
        )
        chat.wait_for("send_email(to='ann', body='hi')?")
        assert chat.sees()[-2:] == [" [a] approve [e] edit [r] reject [s] respond", ">"]
        chat.type("x")
        chat.wait_for("answer by one of a (approve), e (edit), r (reject), s (respond)")
        chat.type("approve")

        chat.wait_for("send_email(to='bob', body='hi')?")
        chat.type("e")
        chat.wait_for('> {"to": "bob", "body": "hi"}')
        assert chat.sees()[-2] == " the arguments, as JSON (empty: back)"
        chat.press("\x7f" * len('"hi"}'))
        chat.type('"hello"}')

        chat.wait_for("send_email(to='eve', body='hi')?")
        chat.type("r")
        chat.wait_for("why not (may be empty)")
        chat.type("not eve")

        chat.wait_for("All done.")
        chat.wait_for(READY)
        seen = chat.sees()
        asked = seen.index("·      send_email(to='ann', body='hi')?")
        assert seen[asked : asked + 8] == [
            "·      send_email(to='ann', body='hi')?",
            "·      answer by one of a (approve), e (edit), r (reject), s (respond), not",
            "       by 'x'",
            "you    approved",
            "·      send_email(to='bob', body='hi')?",
            'you    edited: {"to": "bob", "body": "hello"}',
            "·      send_email(to='eve', body='hi')?",
            "you    rejected: not eve",
        ]
        assert "sent to ann" in chat.text()
        assert "sent to bob" in chat.text()
        assert seen[-3:] == ["agent  All done.", f" {READY}", ">"]


def test_who_types_while_a_question_comes_does_not_answer_it(hosted_url: str) -> None:
    with Person(hosted_url, "agent") as chat:
        chat.wait_for(READY)
        call = {"name": "send_email", "args": {"to": "ann", "body": "hi"}, "id": "c1"}
        turns = [{"say": "Let me.", "words": 40, "tool_calls": [call]}, {"say": "Done."}]
        chat.type(json.dumps({"turns": turns}))
        chat.wait_for("word1")
        chat.press("Also ")
        chat.wait_for("[a] approve")
        chat.type("a postcard")
        chat.wait_for("your message is applied after the answer to what is asked")
        assert "you    Also a postcard" in chat.sees()
        assert "approved" not in chat.text()

        chat.type("r")
        chat.wait_for("why not (may be empty)")
        chat.type("")
        chat.wait_for("you    rejected")
        chat.wait_for("You said: Also a postcard")


def test_a_wrong_answer_is_asked_for_again_and_the_right_ones_are_kept(hosted_url: str) -> None:
    with Person(hosted_url, "brief") as chat:
        chat.wait_for(READY)
        chat.type(
            calls(
                ("ask_user", {"question": "which?"}),
                ("send_email", {"to": "ann", "body": "hi"}),
                ("browse", {"url": "http://example.com"}),
            )
        )
        chat.wait_for("?")
        for _ in range(2):
            chat.wait_for_any("[a] approve", 'the answer: {"choice": text}')
            if "[a] approve" in chat.text():
                chat.type("a")
                chat.wait_for("you    approved")
            else:
                chat.type('{"choice": 3}')
                chat.wait_for("not valid: choice: 3 is not of type 'string'")
                chat.press("\x7f" * len('{"choice": 3}'))
                chat.type("red")
                chat.wait_for("you    red")

        chat.wait_for("the result of browse")
        chat.type("a page")
        chat.wait_for("agent  Done.")
        chat.wait_for(READY)
        assert chat.text().count("you    approved") == 1
        assert "tool   browse: a page" in chat.text()


def test_a_thread_that_was_left_waiting_asks_again(hosted_url: str) -> None:
    with get_sync_client(url=hosted_url, api_key=None) as client:
        thread_id = client.threads.create()["thread_id"]
        asked = said(calls(("send_email", {"to": "ann", "body": "hi"})))
        client.runs.wait(thread_id, "brief", input=asked)

    with Person(hosted_url, "brief", "--thread", thread_id) as chat:
        chat.wait_for("[a] approve")
        chat.type("s")
        chat.wait_for("the answer")
        chat.type("no need")
        chat.wait_for("tool   send_email: no need")
        chat.wait_for(READY)
        chat.press("\x04")
        assert chat.wait_for_end() == 0


def test_what_goes_wrong_is_said_and_the_chat_goes_on(hosted_url: str) -> None:
    with Person(hosted_url, "nobody") as chat:
        chat.wait_for(READY)
        chat.type("Hello")
        chat.wait_for("Invalid assistant: 'nobody'")
        chat.wait_for(READY)


def test_a_long_line_stands_in_the_rows_that_it_needs(hosted_url: str) -> None:
    with Person(hosted_url, "nobody") as chat:
        chat.wait_for(READY)
        chat.type("x" * 200)
        chat.wait_for("Invalid assistant")
        rows = chat.text().splitlines()
        first = next(at for at, row in enumerate(rows) if row.startswith("you    x"))
        assert [len(row.strip("you ")) for row in rows[first : first + 3]] == [70, 70, 60]
