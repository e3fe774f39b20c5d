"""What is sent of a sealed turn: to the same provider, to another one, and from another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver

from providers.anthropic_api import Messages
from providers.api import ENDLESS, SILENCE, Call, FakeAPI, Found, Search, Think
from providers.bedrock_api import Converse
from providers.conftest import APIS
from providers.openai_api import Responses
from providers.thread import Thread, roles

HERE = Path(__file__).parent


@tool
def look_up(word: str) -> str:
    """Looks a word up."""
    return f"{word}: an animal"


def call(name: str) -> Call:
    return Call("look_up", '{"word": "cat"}', name)


def rich_model(api: FakeAPI, kind: str) -> Any:
    """A model whose answers have all that its provider can put into one."""
    if kind == "anthropic":
        return api.model(thinking={"type": "adaptive"})
    if kind == "responses":
        return api.model(reasoning={"effort": "low", "summary": "auto"})
    return api.model()


def searches(kind: str) -> bool:
    return kind in ("responses", "anthropic", "google")


@pytest.mark.filterwarnings("ignore:(?s).*Output may vary each run")
@pytest.mark.parametrize("first", APIS)
async def test_a_thread_goes_on_with_every_other_provider(
    first: str, apis: dict[str, Any], thread: Thread
) -> None:
    one = apis[first]
    search: tuple[Any, ...] = (Search("cats"), Found("cats")) if searches(first) else ()
    one.says(Think("Hm.", "1"), "I look. ", call("callid001"))
    one.says(Think("So.", "2"), *search, "A cat ", thread.steer("And dogs?"), ENDLESS)
    one.says("A dog ", thread.halt(), ENDLESS)
    await thread.run(rich_model(one, first), "What is a cat?", tools=[look_up])

    for place, name in enumerate(APIS):
        other = apis[name]
        if other is not one:
            other.says(Think("Well.", "3"), "It barks. ", call(f"callid11{place}")).says("Yes.")
            await thread.run(rich_model(other, name), "And?", tools=[look_up])

            sent = str(other.received[0])
            assert "A cat " in sent
            assert "cat: an animal" in sent
            assert "Hm." not in sent  # one provider's thoughts are not another's
    one.says("Of course.")
    messages = await thread.run(rich_model(one, first), "Sure?", tools=[look_up])

    assert messages[-1].text == "Of course."
    assert [refusal for api in apis.values() for refusal in api.refused] == []


@pytest.mark.parametrize("output_version", ["v0", "responses/v1", "v1"])
@pytest.mark.parametrize("store", [True, False])
async def test_responses_each_reasoning_item_has_its_own_ciphertext(
    output_version: str, store: bool, responses: Any, thread: Thread
) -> None:
    model = responses.model(
        output_version=output_version, store=store, include=["reasoning.encrypted_content"]
    )
    found = (Search("cats"), Found("cats"))
    responses.says(Think("One.", "1"), *found, Think("Two.", "2"), "A cat ", thread.steer("Dogs?"), SILENCE)
    responses.says("A dog.").says("Bye.")

    await thread.run(model, "What is a cat?")
    messages = await thread.run(model, "Thanks.")

    assert responses.refused == []
    assert messages[1].text == "A cat "
    sent = {
        item["id"]: item["encrypted_content"]
        for item in responses.received[1]["input"]
        if item.get("type") == "reasoning"
    }
    # The oldest format has room for one item only, and core welds two of them together: none is sent.
    assert sent == ({} if output_version == "v0" else {"rs_11": "cipher-rs_11", "rs_12": "cipher-rs_12"})
    assert ("web_search_call" in str(responses.received[1])) is not store


@pytest.mark.parametrize("output_version", ["v0", "responses/v1", "v1"])
async def test_responses_a_sealed_turn_refers_to_nothing(
    output_version: str, responses: Any, thread: Thread
) -> None:
    """Neither its own items, nor its response, nor, in the next turn, by the id of the last response."""
    model = responses.model(output_version=output_version, use_previous_response_id=True)
    responses.says("Hello.")
    await thread.run(model, "Hi.")
    responses.says(Think("Hm.", "1"), Search("cats"), Found("cats"), "A cat ", thread.steer("Dogs?"), ENDLESS)
    responses.says("A dog.").says("Bye.")

    await thread.run(model, "What is a cat?")
    messages = await thread.run(model, "Thanks.")

    assert responses.refused == []
    assert [body.get("previous_response_id") for body in responses.received] == [
        None,
        "resp_1",
        "resp_1",
        "resp_3",
    ]
    sealed = next(message for message in messages if "preemption" in message.response_metadata)
    assert "id" not in sealed.response_metadata
    assert "rs_" not in str(sealed.content) + str(sealed.additional_kwargs)
    assert "msg_" not in str(sealed.content)


async def test_responses_reasoning_that_was_cut_short_is_not_kept(responses: Any, thread: Thread) -> None:
    model = responses.model(store=False, include=["reasoning.encrypted_content"])
    responses.says(Think("Hm.", "1"), "A cat ", Think("Or", "2", cut=True), thread.steer("Dogs?"), SILENCE)
    responses.says("A dog.")

    messages = await thread.run(model, "What is a cat?")

    assert messages[1].text == "A cat "
    assert [block["type"] for block in messages[1].content] == ["reasoning", "text"]
    assert responses.refused == []


@pytest.mark.parametrize("output_version", [None, "v1"])
async def test_anthropic_thinking_is_kept_with_its_signature_and_dropped_without(
    output_version: str | None, anthropic: Any, thread: Thread
) -> None:
    model = anthropic.model(thinking={"type": "adaptive"}, output_version=output_version)
    anthropic.says(Think("Hm.", "1"), "A cat ", Think("Or", "2", cut=True), thread.steer("Dogs?"), SILENCE)
    anthropic.says("A dog.")

    messages = await thread.run(model, "What is a cat?")

    assert messages[1].text == "A cat "
    assert anthropic.refused == []
    assert anthropic.received[1]["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "signature-1"},
        {"type": "text", "text": "A cat "},
    ]


async def test_anthropic_a_deliberate_prefill_is_left_alone(thread: Thread) -> None:
    with Messages(takes_prefill=True) as api:
        graph = thread.graph(api.says("1}").model())
        lead = AIMessage('{"answer": ')
        await graph.aupdate_state(thread.config, {"messages": [("user", "One?"), lead]}, as_node="__start__")
        await graph.ainvoke(None, thread.config)

        assert api.received[0]["messages"][-1] == {"role": "assistant", "content": '{"answer":'}


async def test_an_unanswered_search_of_an_old_turn_is_not_sent(anthropic: Any, thread: Thread) -> None:
    cut = AIMessage(
        [
            {"type": "text", "text": "I look. "},
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        ],
        response_metadata={"model_provider": "anthropic", "stop_reason": "max_tokens"},
    )
    graph = thread.graph(anthropic.says("Sorry.").model())
    await graph.aupdate_state(thread.config, {"messages": [("user", "Cats?"), cut]})

    await thread.run(anthropic.model(), "And?")

    assert anthropic.refused == []


IN_ANOTHER_PROCESS = """
import asyncio, sys
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from providers.anthropic_api import Messages
from providers.openai_api import Responses
from providers.thread import Thread

async def main(path, kind, url):
    async with AsyncSqliteSaver.from_conn_string(path) as saver:
        api = {"responses": Responses, "anthropic": Messages}[kind]()
        api.url = url
        graph = Thread(saver, kind).graph(api.model())
        config = {"configurable": {"thread_id": kind}}
        state = await graph.ainvoke({"messages": [("user", "Go on.")]}, config)
        print([bool(m.response_metadata.get("preemption", {}).get("sealed")) for m in state["messages"]])

for kind, url in zip(sys.argv[2::2], sys.argv[3::2]):
    asyncio.run(main(sys.argv[1], kind, url))
"""


def test_a_thread_that_is_loaded_in_another_process_goes_on(
    tmp_path: Path, responses: Responses, anthropic: Messages
) -> None:
    path = str(tmp_path / "threads.sqlite")
    with SqliteSaver.from_conn_string(path) as saver:
        for kind, api in (("responses", responses), ("anthropic", anthropic)):
            thread = Thread(saver, kind)
            search = (Search("cats"), Found("cats"))
            api.says(Think("Hm.", "1"), *search, "A cat ", thread.steer("Dogs?"), ENDLESS)
            api.says(Think("So.", "2"), "A dog ", thread.halt(), ENDLESS)
            api.says("That is all.")
            model = rich_model(api, kind)
            thread.graph(model).invoke({"messages": [("user", "What is a cat?")]}, thread.config)

    done = subprocess.run(
        [
            sys.executable,
            "-c",
            IN_ANOTHER_PROCESS,
            path,
            "responses",
            responses.url,
            "anthropic",
            anthropic.url,
        ],
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [str([False, True, False, True, False, False])] * 2
    assert (responses.refused, anthropic.refused) == ([], [])
    assert len(responses.received) == len(anthropic.received) == 3


@pytest.mark.parametrize("kind", ["mistral", "bedrock"])
async def test_each_fallback_is_sent_what_it_takes_itself(
    kind: str, apis: dict[str, Any], thread: Thread
) -> None:
    chat, other = apis["chat"], apis[kind]
    fallback = other.model().bind_tools([look_up])
    with_fallback = chat.model().bind_tools([look_up]).with_fallbacks([fallback])
    graph = thread.graph(lambda *_: with_fallback)
    messages: list[Any] = [
        ("user", "What is a cat?"),
        ("user", "I mean the animal."),
        AIMessage("I look.", tool_calls=[{"name": "look_up", "args": {"word": "cat"}, "id": "callid001"}]),
    ]
    await graph.aupdate_state(thread.config, {"messages": messages})
    chat.is_down = True
    other.says("A cat ", thread.steer("Dogs?"), ENDLESS).says("A dog.")
    found = await thread.run(with_fallback, "Well?", "Hurry.")

    assert (chat.refused, other.refused) == ([], [])
    assert roles(found) == ["human", "human", "ai", "human", "human", "ai", "human", "ai"]
    assert [message["role"] for message in chat.received[0]["messages"]] == [
        *("system", "user", "user", "assistant", "tool", "user", "user")
    ]
    sent = [message["role"] for message in other.received[0]["messages"] if message["role"] != "system"]
    assert (
        sent
        == {
            "mistral": ["user", "assistant", "tool", "assistant", "user"],
            "bedrock": ["user", "assistant", "user"],
        }[kind]
    )
    if isinstance(other, Converse):
        last = other.received[0]["messages"][-1]["content"]
        assert ["toolResult" in last[0], [block.get("text") for block in last[1:]]] == [
            True,
            ["Well?\nHurry."],
        ]
