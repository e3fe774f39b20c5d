"""The main job on a real server, by nothing but the stock SDK: to steer and to halt a streaming answer."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from langgraph_sdk.client import LangGraphClient

from support.dev_server import DevServer, example_graphs

STORY = "Write a long story about a lighthouse keeper named Jameson."
STEER = "Actually, stop the story and tell me in one sentence what a cat is."
TOKENS_BEFORE = 20
"""How much of the answer streams before a request is posted."""

TIMEOUT_SECONDS = 90.0


@pytest.fixture(scope="module")
def scripted_server() -> Iterator[DevServer]:
    env = {
        "MIDSTREAM_MODEL": "scripted",
        "MIDSTREAM_SCRIPTED_WORDS": "80",
        "MIDSTREAM_SCRIPTED_INTERVAL_MS": "20",
    }
    with DevServer(example_graphs(), env=env, jobs=60) as server:
        yield server


@pytest.fixture(scope="module")
def local_server(local_model_url: str) -> Iterator[DevServer]:
    env = {"MIDSTREAM_MODEL": "local", "MIDSTREAM_LOCAL_URL": local_model_url}
    with DevServer(example_graphs(), env=env) as server:
        yield server


@pytest.fixture(params=["scripted", "local"])
def server(request: pytest.FixtureRequest) -> DevServer:
    """Not async: a running event loop could not make the async fixture of the real model."""
    running: DevServer = request.getfixturevalue(f"{request.param}_server")
    return running


@pytest.fixture
async def client(server: DevServer) -> AsyncIterator[LangGraphClient]:
    async with server.client() as client:
        yield client


@dataclass
class Watched:
    """One run as a host saw it."""

    thread_id: str
    run_ids: list[str] = field(default_factory=list)
    story: list[tuple[str, str]] = field(default_factory=list)
    """Tokens, joined while nothing else comes between, a person's messages and the events of preemption."""

    receipt: dict[str, Any] = field(default_factory=dict)

    def saw_token(self, text: str) -> None:
        if self.story and self.story[-1][0] == "tokens":
            text = self.story.pop()[1] + text
        self.story.append(("tokens", text))

    def saw_event(self, event: dict[str, Any]) -> None:
        self.story.append((event["event"], event.get("reason", "")))


async def watched(client: LangGraphClient, text: str, request: dict[str, Any] | None = None) -> Watched:
    """Streams one run on a thread of its own, and posts the request in mid-answer."""
    thread: str = (await client.threads.create())["thread_id"]
    seen, tokens = Watched(thread), 0
    async for part in client.runs.stream(
        thread, "agent", input=human(text), stream_mode=["messages-tuple", "custom"]
    ):
        data: Any = part.data
        match part.event:
            case "metadata":
                seen.run_ids.append(data["run_id"])
            case "messages" if data[0]["type"] == "human":
                seen.story.append(("human", text_of(data[0])))
            case "messages" if token := text_of(data[0]):
                tokens += 1
                seen.saw_token(token)
                if tokens == TOKENS_BEFORE and request is not None:
                    seen.receipt = await post(client, thread, request)
            case "custom":
                seen.saw_event(data)
            case "error":
                pytest.fail(f"the run failed: {data}")
    return seen


async def post(client: LangGraphClient, thread: str, request: dict[str, Any]) -> dict[str, Any]:
    answer: Any = await client.threads.update_state(thread, {"preemption": request})
    receipt: dict[str, Any] = answer["preemption"]
    return receipt


def steer(text: str) -> dict[str, Any]:
    return {"id": str(uuid.uuid4()), "kind": "steer", "messages": [{"role": "user", "content": text}]}


def human(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


async def values(client: LangGraphClient, thread: str) -> dict[str, Any]:
    state: Any = await client.threads.get_state(thread)
    found: dict[str, Any] = state["values"]
    return found


async def said(client: LangGraphClient, thread: str) -> list[tuple[str, str]]:
    return [(message["type"], text_of(message)) for message in (await values(client, thread))["messages"]]


async def outcome(client: LangGraphClient, seen: Watched) -> tuple[str, str]:
    """How the run and the thread stand after the stream has ended."""
    (run_id,) = seen.run_ids
    await client.runs.join(seen.thread_id, run_id)
    run = await client.runs.get(seen.thread_id, run_id)
    thread = await client.threads.get(seen.thread_id)
    return run["status"], thread["status"]


async def test_a_steer_changes_an_answer_in_mid_sentence_in_the_same_run(client: LangGraphClient) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        unsteered = await watched(client, STORY)
        seen = await watched(client, STORY, steer(STEER))

        assert seen.receipt["thread_status"] == "busy"
        assert await outcome(client, seen) == ("success", "idle")
        assert len(await client.runs.list(seen.thread_id)) == 1

        [(_, would_have_said)] = unsteered.story
        conversation = await said(client, seen.thread_id)
        (_, sealed), (_, answer) = conversation[1], conversation[3]
        assert conversation == [("human", STORY), ("ai", sealed), ("human", STEER), ("ai", answer)]
        assert would_have_said.startswith(sealed)
        assert len(sealed) < len(would_have_said)
        assert answer

        # The stream told it in the order in which it happened, and nothing twice.
        assert seen.story == [
            ("tokens", sealed),
            ("sealed", ""),
            ("injected", ""),
            ("human", STEER),
            ("tokens", answer),
        ]


async def test_history_shows_the_sealed_turn_in_a_checkpoint_of_its_own(client: LangGraphClient) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        seen = await watched(client, STORY, steer(STEER))
        _, sealed = seen.story[0]
        history = await client.threads.get_history(seen.thread_id, limit=50)

        of_its_own = [
            state
            for state in history
            if [text_of(message) for message in state["values"].get("messages", [])] == [STORY, sealed]  # type: ignore[union-attr]
        ]
        assert [state["next"] for state in of_its_own] == [["model"]]
        message = of_its_own[0]["values"]["messages"][-1]  # type: ignore[call-overload]
        assert message["response_metadata"]["preemption"]["sealed"] is True


async def test_a_halt_ends_the_run_well_and_keeps_what_was_said(client: LangGraphClient) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        seen = await watched(client, STORY, {"kind": "halt", "reason": "the person left"})

        assert await outcome(client, seen) == ("success", "idle")
        (_, sealed), *events = seen.story
        assert events == [("sealed", ""), ("halted", "the person left")]
        assert await said(client, seen.thread_id) == [("human", STORY), ("ai", sealed)]
        halt = (await values(client, seen.thread_id))["preemption"]["halt"]
        assert halt == {"run_id": seen.run_ids[0], "reason": "the person left", "node": "model"}


async def test_a_halted_thread_goes_on_with_the_next_input(client: LangGraphClient) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        seen = await watched(client, STORY, {"kind": "halt", "reason": "enough"})
        final: Any = await client.runs.wait(seen.thread_id, "agent", input=human("What is a dog?"))

        assert [message["type"] for message in final["messages"]] == ["human", "ai", "human", "ai"]
        assert text_of(final["messages"][-1])


async def test_a_steer_on_an_idle_thread_waits_for_the_next_run(scripted_server: DevServer) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), scripted_server.client() as client:
        thread: str = (await client.threads.create())["thread_id"]
        receipt = await post(client, thread, steer("be brief"))
        assert receipt["thread_status"] == "idle"

        await client.runs.wait(thread, "agent", input=human("hi"))
        assert [text for kind, text in await said(client, thread) if kind == "human"] == ["hi", "be brief"]


@pytest.mark.parametrize("transport", ["sse", "websocket"])
@pytest.mark.parametrize("kind", ["steer", "halt"])
async def test_the_newer_protocol_shows_everything_in_its_order(
    client: LangGraphClient, kind: str, transport: Literal["sse", "websocket"]
) -> None:
    request = steer(STEER) if kind == "steer" else {"kind": "halt", "reason": "enough"}
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        client.threads.stream(assistant_id="agent", transport=transport) as stream,
    ):
        started = await stream.run.start(input=human(STORY))
        seen, tokens = Watched(stream.thread_id, [started["run_id"]]), 0
        extension = asyncio.create_task(events_of_extension(stream))

        async for event in stream.events:
            match event:
                case {"method": "messages", "params": {"data": {"delta": {"text": str(token)}}}}:
                    tokens += 1
                    seen.saw_token(token)
                    if tokens == TOKENS_BEFORE:
                        seen.receipt = await post(client, stream.thread_id, request)
                case {"method": "custom", "params": {"data": {"name": "preemption", "payload": payload}}}:
                    seen.saw_event(payload)
                case {"method": "lifecycle", "params": {"namespace": [], "data": {"event": "completed"}}}:
                    break
                case {"method": "lifecycle", "params": {"data": {"event": "failed"}}}:
                    pytest.fail(f"the run failed: {event}")

        assert await outcome(client, seen) == ("success", "idle")
        conversation = [text for _, text in await said(client, stream.thread_id)]
        if kind == "steer":
            _, sealed, _, answer = conversation
            assert conversation == [STORY, sealed, STEER, answer]
            assert seen.story == [("tokens", sealed), ("sealed", ""), ("injected", ""), ("tokens", answer)]
            assert await extension == ["sealed", "injected"]
        else:
            _, sealed = conversation
            assert seen.story == [("tokens", sealed), ("sealed", ""), ("halted", "enough")]
            assert await extension == ["sealed", "halted"]


async def events_of_extension(stream: Any) -> list[str]:
    """Reads `thread.extensions["preemption"]` to the end of the run."""
    return [item["payload"]["event"] async for item in stream.extensions["preemption"]]


async def test_fifty_threads_at_once_each_get_exactly_their_own_steer(scripted_server: DevServer) -> None:
    async def one(client: LangGraphClient, n: int) -> tuple[list[tuple[str, str]], Watched, tuple[str, str]]:
        seen = await watched(client, f"story {n}", steer(f"change {n}"))
        return await said(client, seen.thread_id), seen, await outcome(client, seen)

    async with asyncio.timeout(TIMEOUT_SECONDS), scripted_server.client() as client:
        results = await asyncio.gather(*(one(client, n) for n in range(50)))

    for n, (conversation, seen, ended) in enumerate(results):
        (_, sealed), (_, answer) = conversation[1], conversation[3]
        assert conversation == [
            ("human", f"story {n}"),
            ("ai", sealed),
            ("human", f"change {n}"),
            ("ai", answer),
        ]
        assert sealed.startswith(f"You said: story {n}. word1 ")
        assert answer.startswith(f"You said: change {n}. word1 ")
        assert answer.endswith(" word80")
        assert not sealed.endswith(" word80")
        assert [kind for kind, _ in seen.story] == ["tokens", "sealed", "injected", "human", "tokens"]
        assert ended == ("success", "idle")


ASKING = """
import json

from chat_models.scripted import ScriptedChatModel
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt

from midstream import MidstreamState, ModelNode


@tool
def ask(question: str) -> str:
    "Ask the person."
    return interrupt({"question": question})


builder = StateGraph(MidstreamState)
builder.add_node("model", ModelNode(ScriptedChatModel(words=5, interval_ms=5), tools=[ask]))
builder.add_node("tools", ToolNode([ask]))
builder.add_edge(START, "model")
builder.add_conditional_edges("model", tools_condition)
builder.add_edge("tools", "model")
graph = builder.compile()
"""


async def test_a_steer_while_a_person_is_asked_leaves_the_question_alone() -> None:
    config = {
        "dependencies": ["."],
        "graphs": {"agent": "./asking.py:graph"},
        "http": {"app": "midstream.server:app"},
    }
    call = (
        '{"turns": [{"tool_calls": [{"name": "ask", "args": {"question": "Which?"}}]}, {"say": "Thanks."}]}'
    )

    with DevServer({"langgraph.json": config, "asking.py": ASKING}) as server:
        async with asyncio.timeout(TIMEOUT_SECONDS), server.client() as client:
            thread: str = (await client.threads.create())["thread_id"]
            await client.runs.wait(thread, "agent", input=human(call))
            before = await client.threads.get(thread)
            assert before["status"] == "interrupted"

            receipt = await post(client, thread, steer("and hurry"))

            assert receipt["thread_status"] == "interrupted"
            after = await client.threads.get(thread)
            assert (after["status"], after["interrupts"]) == ("interrupted", before["interrupts"])
            [[asked]] = after["interrupts"].values()
            await client.runs.wait(thread, "agent", command={"resume": {asked["id"]: "the red one"}})

            assert [(kind, text) for kind, text in await said(client, thread) if kind != "ai"] == [
                ("human", call),
                ("tool", "the red one"),
                ("human", "and hurry"),
            ]
            assert (await said(client, thread))[-1][1].startswith("You said: and hurry. word1")
            state: Any = await client.threads.get_state(thread)
            assert len(state["values"]["preemption"]["turn"]["runs"]) == 2
            assert (await client.threads.get(thread))["status"] == "idle"
