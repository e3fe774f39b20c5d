"""Real clients over HTTP: an answer is ended, and the strict server takes what is sent afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool

from midstream.last_hop import CANCELLED
from providers.api import ENDLESS, MUTE, SILENCE, Call, FakeAPI, Found, Search, Think
from providers.bedrock_api import Converse
from providers.thread import Thread, roles


async def test_a_steered_answer_goes_on_and_the_request_is_accepted(api: FakeAPI, thread: Thread) -> None:
    api.says("Once ", "upon a time ", thread.steer("Cats."), ENDLESS).says("A cat ", "purrs.")

    messages = await thread.run(api.model(), "Tell me a story.")

    assert roles(messages) == ["human", "ai", "human", "ai"]
    assert messages[1].response_metadata["preemption"]["sealed"] is True
    assert [messages[1].text, messages[3].text] == thread.shown
    assert messages[1].text.startswith("Once ")
    assert messages[3].text == "A cat purrs."
    assert (len(api.received), api.refused) == (2, [])
    await asyncio.to_thread(api.wait_until_hung_up)


async def test_a_silent_provider_is_ended_at_once(api: FakeAPI, thread: Thread) -> None:
    if isinstance(api, Converse):
        pytest.skip("its client only has a blocking stream, which nothing can interrupt while it waits")
    api.says("Once upon a time", thread.steer("Cats."), SILENCE).says("A cat.")

    messages = await thread.run(api.model(), "Tell me a story.")

    assert [message.text for message in messages[1:]] == ["Once upon a time", "Cats.", "A cat."]
    assert api.refused == []
    await asyncio.to_thread(api.wait_until_hung_up)


@pytest.mark.parametrize("shown", ["no status", "no word", "reasoning", "white space"])
async def test_an_answer_that_shows_nothing_is_begun_anew(shown: str, api: FakeAPI, thread: Thread) -> None:
    if isinstance(api, Converse):
        pytest.skip("its client only has a blocking stream, which nothing can interrupt while it waits")
    steer = thread.steer("Cats.")
    begins = {
        "no status": (MUTE, steer),
        "no word": (steer, SILENCE),
        "reasoning": (Think("Hm.", cut=True), steer, SILENCE),
        "white space": (" \n", steer, SILENCE),
    }
    api.says(*begins[shown]).says("A cat ", "purrs.")

    messages = await thread.run(api.model(), "Tell me a story.", restart_grace=0.05)

    assert [message.text for message in messages] == ["Tell me a story.", "Cats.", "A cat purrs."]
    assert [len(thread.happened(event)) for event in ("restarted", "sealed", "injected")] == [1, 0, 1]
    assert (len(api.received), api.refused) == (2, [])
    await asyncio.to_thread(api.wait_until_hung_up)


def test_without_an_event_loop_the_stream_is_closed_as_well(api: FakeAPI, thread: Thread) -> None:
    api.says("Once ", thread.steer("Cats."), ENDLESS).says("A cat.")

    state = thread.graph(api.model()).invoke({"messages": [("user", "Tell me a story.")]}, thread.config)

    assert roles(state["messages"]) == ["human", "ai", "human", "ai"]
    assert api.refused == []
    api.wait_until_hung_up()


async def test_two_seals_in_one_turn_with_reasoning_before_each(api: FakeAPI, thread: Thread) -> None:
    api.says(Think("Hm.", "1"), "Once ", thread.steer("Cats."), ENDLESS)
    api.says(Think("So.", "2"), "A cat ", thread.steer("Dogs."), ENDLESS)
    api.says("A dog barks.")

    messages = await thread.run(api.model(), "Tell me a story.")

    assert roles(messages) == ["human", "ai", "human", "ai", "human", "ai"]
    assert [message.text for message in messages if message.type == "ai"] == thread.shown
    assert api.refused == []


@pytest.mark.parametrize("again", [1, 2])
async def test_a_halted_thread_goes_on_without_new_input(api: FakeAPI, thread: Thread, again: int) -> None:
    api.says("Once ", "upon a time \n", thread.halt(), ENDLESS)
    halted = await thread.run(api.model(), "Tell me a story.")
    assert roles(halted) == ["human", "ai"]

    for _ in range(again):
        api.says("there was a cat.")
        messages = await thread.run(api.model())
    api.says("You are welcome.")
    messages = await thread.run(api.model(), "Thanks.")

    # Nothing that a request needed is in the thread.
    assert roles(messages) == ["human", "ai", *["ai"] * again, "human", "ai"]
    assert api.refused == []


async def test_steers_that_come_while_tools_run_follow_their_results(api: FakeAPI, thread: Thread) -> None:
    @tool
    def look_up(word: str) -> str:
        """Looks a word up."""
        thread.steer("Only cats.")()
        thread.steer("And be quick.")()
        return f"{word}: an animal"

    api.says(Call("look_up", '{"word": "cat"}', "callid001")).says("A cat is an animal.")

    messages = await thread.run(api.model(), "What is a cat?", tools=[look_up])

    assert roles(messages) == ["human", "ai", "tool", "human", "human", "ai"]
    assert api.refused == []
    # A tool's result is never text of somebody's turn.
    assert str(api.received[-1]).count("cat: an animal") == 1


async def test_calls_that_a_cancelled_run_left_open_are_answered(api: FakeAPI, thread: Thread) -> None:
    started = asyncio.Event()

    @tool
    async def wait(seconds: int) -> str:
        """Waits."""
        started.set()
        await asyncio.sleep(seconds)
        return "done"

    api.says("I wait. ", Call("wait", '{"seconds": 60}', "callid001")).says("Never mind.")
    run = asyncio.create_task(thread.run(api.model(), "Wait.", tools=[wait]))
    await asyncio.wait_for(started.wait(), 10)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    messages = await thread.run(api.model(), "Stop that.", tools=[wait])

    assert roles(messages) == ["human", "ai", "human", "ai"]  # the state says what happened
    assert api.refused == []
    assert CANCELLED in str(api.received[-1])


async def test_a_call_that_acted_in_a_run_that_failed_is_not_said_to_have_done_nothing(
    api: FakeAPI, thread: Thread
) -> None:
    sent = asyncio.Event()

    @tool
    async def send_email(to: str) -> str:
        """Sends an email."""
        sent.set()
        return "sent"

    @tool
    async def fail(why: str) -> str:
        """Fails."""
        await sent.wait()
        raise RuntimeError(why)

    tools = [send_email, fail]
    api.says(Call("send_email", '{"to": "ann"}', "callid001"), Call("fail", '{"why": "x"}', "callid002"))
    api.says("I check.")
    with pytest.raises(RuntimeError):
        await thread.run(api.model(), "Write to Ann.", tools=tools)

    await thread.run(api.model(), "Did you?", tools=tools)

    assert api.refused == []
    assert str(api.received[-1]).count("It may have acted; check before you repeat it.") == 2


async def test_a_call_with_broken_arguments_is_answered(api: FakeAPI, thread: Thread) -> None:
    if type(api).__name__ == "GenerateContent":
        pytest.skip("its calls do not come as text")

    @tool
    def look_up(word: str) -> str:
        """Looks a word up."""
        return word

    api.says("Hm. ", Call("look_up", 'word = "cat"', "callid001")).says("A cat.")
    broken = await thread.run(api.model(), "What is a cat?", tools=[look_up])
    assert broken[1].invalid_tool_calls

    messages = await thread.run(api.model(), "Try again.", tools=[look_up])

    assert roles(messages) == ["human", "ai", "human", "ai"]
    assert api.refused == []
    assert "could not be read" in str(api.received[-1])


async def test_an_answer_that_said_nothing_is_not_sent(api: FakeAPI, thread: Thread) -> None:
    api.says(" ").says("I am here.")
    await thread.run(api.model(), "Hello?")

    messages = await thread.run(api.model(), "Are you there?")

    assert roles(messages) == ["human", "ai", "human", "ai"]
    assert api.refused == []


async def test_a_request_that_is_not_streamed_is_repaired_too(
    thread: Thread, chat: Any, mistral: Any
) -> None:
    for api in (chat, mistral):
        lost = AIMessage("", tool_calls=[{"name": "look_up", "args": {}, "id": "call-1"}])
        graph = thread.graph(api.model(disable_streaming=True))
        await graph.aupdate_state(thread.config, {"messages": [("user", "Look it up."), lost]})

        messages = await thread.run(api.says("Well. ").model(disable_streaming=True), "And?")

        assert messages[-1].text == "Well. "
        assert api.refused == []
        assert not api.received[-1].get("stream")


@pytest.mark.parametrize("kind", ["responses", "anthropic", "google"])
async def test_an_answer_is_not_ended_between_a_search_and_its_result(
    kind: str, thread: Thread, request: pytest.FixtureRequest
) -> None:
    api = request.getfixturevalue(kind)
    tools = {
        "responses": [{"type": "web_search"}],
        "anthropic": [{"type": "web_search_20250305", "name": "web_search"}],
        "google": [{"code_execution": {}}],
    }[kind]
    model = api.model().bind_tools(tools)
    api.says("I look. ", Search("cats"), thread.steer("Be brief."), " ", Found("cats"), "Found. ", ENDLESS)
    api.says("Cats purr.")

    with pytest.warns() if kind == "google" else _nothing():
        messages = await thread.run(model, "Search for cats.")

    # The steer came in the middle of the search; with text after it, everything is there to be replayed.
    assert roles(messages) == ["human", "ai", "human", "ai"]
    assert thread.shown[0] == messages[1].text
    assert api.refused == []


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


async def test_a_result_that_comes_late_or_twice_is_sent_once(api: FakeAPI, thread: Thread) -> None:
    call = {"name": "look_up", "args": {}, "id": "callid001"}
    past = [
        ("user", "Look it up."),
        AIMessage("", tool_calls=[call]),
        ("user", "Still there?"),
        ToolMessage("an animal", tool_call_id="callid001"),
        AIMessage("An animal."),
        ToolMessage("an animal, again", tool_call_id="callid001"),
        ToolMessage("who asked?", tool_call_id="callid999"),
    ]

    @tool
    def look_up() -> str:
        """Looks a word up."""
        return ""

    graph = thread.graph(api.model(), tools=[look_up])
    await graph.aupdate_state(thread.config, {"messages": past}, as_node="tools")

    await thread.run(api.says("Well.").model(), "And?", tools=[look_up])

    assert api.refused == []
    assert "an animal" in str(api.received[-1])
    assert "again" not in str(api.received[-1])
    assert "who asked?" not in str(api.received[-1])
