"""An answer that has shown nothing yet is begun anew to apply a request, and one that has is not."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from fakes import ENDLESS, SILENCE, CountingHandler, FakeChatModel, calls
from midstream import Ledger, MidstreamState, ModelNode, Preemption

ASKED: Any = {"messages": [HumanMessage("Tell me a story.", id="h1")]}
STEER = {"kind": "steer", "messages": "Shorter."}


def block(**fields: Any) -> AIMessageChunk:
    return AIMessageChunk(content=[fields])


class Run:
    """One run of one agent: the host posts its requests as soon as the provider says so."""

    def __init__(self, answers: list[Any], **options: Any) -> None:
        self.saver = InMemorySaver()
        self.thread_id = str(uuid.uuid4())
        self.ledger = Ledger(self.saver, self.thread_id)
        self.model = FakeChatModel(answers=answers)
        self.events: list[dict[str, Any]] = []
        self.handler = CountingHandler()
        builder = StateGraph(MidstreamState)
        builder.add_node("model", ModelNode(self.model, preemption=Preemption(**options)))
        builder.add_edge(START, "model")
        self.graph = builder.compile(checkpointer=self.saver)

    async def post(self) -> None:
        await self.ledger.aappend(STEER)

    async def run(self, *handlers: Any) -> dict[str, Any]:
        config: RunnableConfig = {
            "configurable": {"thread_id": self.thread_id},
            "callbacks": [self.handler, *handlers],
        }
        async with asyncio.timeout(20):
            async for event in self.graph.astream(ASKED, config, stream_mode="custom"):
                self.events.append(event)
        return dict((await self.graph.aget_state(config)).values)


def story(*steps: Any, **options: Any) -> Run:
    """A run whose first answer plays these steps after the host has posted a steer."""
    run = Run([], **{"restart_grace": 0.05, **options})

    async def post() -> None:
        await run.post()

    run.model.answers = [[post, *steps], ["Fine."]]
    return run


NOTHING_SEEN = {
    "silence from the start": [SILENCE],
    "white space": ["  ", "\n", SILENCE],
    "reasoning": [block(type="reasoning", reasoning="Hm.", index=0), SILENCE],
    "thinking": [block(type="thinking", thinking="Hm.", index=0), SILENCE],
    "redacted thinking": [block(type="redacted_thinking", data="x", index=0), SILENCE],
    "reasoning beside the content": [
        AIMessageChunk(content="", additional_kwargs={"reasoning_content": "Hm."}),
        SILENCE,
    ],
    "empty text": [block(type="text", text="", index=0), SILENCE],
    "text as it begins": [block(type="text", text="", annotations=[], id="msg_1", index=0), SILENCE],
}

SOMETHING_SEEN = {
    "a provider's tool": [block(type="server_tool_use", id="s1", name="web_search", input={}, index=0)],
    "an image": [block(type="image", url="https://example.org/a.png", index=0)],
    "a kind of block that is not known": [block(type="hologram", data="x", index=0)],
    "a citation": [block(type="text", text="", citations=[{"cited_text": "a"}], index=0)],
    "an annotation": [block(type="text", text=" ", annotations=[{"url": "https://example.org"}], index=0)],
    "a tool call": [calls("look_up")[0]],
}


@pytest.mark.parametrize("steps", NOTHING_SEEN.values(), ids=NOTHING_SEEN)
async def test_an_answer_that_shows_nothing_is_begun_anew(steps: list[Any]) -> None:
    run = story(*steps)
    state = await run.run()

    assert [(m.type, m.text) for m in state["messages"]] == [
        ("human", "Tell me a story."),
        ("human", "Shorter."),
        ("ai", "Fine."),
    ]
    assert run.model.calls[1].texts == ["Tell me a story.", "Shorter."]
    assert state["preemption"]["stats"] == {"seals": 0, "restarts": 1, "empty_boundaries": 0}
    assert [each["outcome"] for each in state["preemption"]["handled"].values()] == ["entry"]
    assert [event["event"] for event in run.events] == ["waiting", "restarted", "injected"]
    assert run.events[1]["message_id"] not in [message.id for message in state["messages"]]
    assert (run.handler.starts, len(run.handler.ends), run.handler.errors) == (2, 2, [])
    assert [name for name, _ in run.model.calls[0].closed] == ["inner", "outer"]


@pytest.mark.parametrize("steps", SOMETHING_SEEN.values(), ids=SOMETHING_SEEN)
async def test_an_answer_that_shows_something_runs_on(steps: list[Any]) -> None:
    """The grace has passed twice over before the answer goes on, and nothing was thrown away."""
    run = Run([], restart_grace=0.01)
    looked = asyncio.Event()

    async def wait() -> None:
        asyncio.get_running_loop().call_later(0.05, looked.set)
        await looked.wait()

    run.model.answers = [[*steps, run.post, wait, block(type="text", text="Seen.", index=1)], ["Fine."]]
    state = await run.run()

    assert state["preemption"]["stats"]["restarts"] == 0
    assert state["messages"][1].type == "ai"
    assert state["messages"][1].content != []


async def test_no_grace_means_never() -> None:
    run = Run([], restart_grace=None)
    looked = asyncio.Event()

    async def wait() -> None:
        asyncio.get_running_loop().call_later(0.05, looked.set)
        await looked.wait()

    run.model.answers = [[run.post, wait, "Once", ENDLESS], ["Fine."]]
    state = await run.run()
    assert state["preemption"]["stats"] == {"seals": 1, "restarts": 0, "empty_boundaries": 0}


async def test_what_was_thrown_away_is_still_counted() -> None:
    usage = UsageMetadataCallbackHandler()
    run = story(block(type="reasoning", reasoning="A long thought. " * 20, index=0), SILENCE)
    named = AIMessageChunk(content=[], response_metadata={"model_name": "fake"})
    run.model.answers = [[named, *answer] for answer in run.model.answers]
    await run.run(usage)

    dropped = run.handler.ends[0]
    assert dropped.response_metadata["preemption"] == {"restarted": True}
    assert dropped.response_metadata["estimated"] == ["input_tokens", "output_tokens"]
    assert dropped.usage_metadata is not None
    assert dropped.usage_metadata["input_tokens"] > 0
    assert dropped.usage_metadata["output_tokens"] > 50
    assert usage.usage_metadata["fake"]["output_tokens"] == dropped.usage_metadata["output_tokens"]


async def test_a_restart_counts_against_the_budget() -> None:
    run = Run([], restart_grace=0.01, max_seals=1)
    run.model.answers = [[run.post, SILENCE], [run.post, "Once", " more", ". "], ["Fine."]]
    state = await run.run()

    assert state["preemption"]["stats"] == {"seals": 0, "restarts": 1, "empty_boundaries": 0}
    assert [m.text for m in state["messages"]][2:] == ["Once more. ", "Shorter.", "Fine."]
    assert {"budget"} == {event["reason"] for event in run.events if event["event"] == "waiting"} - {
        "no_text"
    }
    outcomes = sorted(each["outcome"] for each in state["preemption"]["handled"].values())
    assert outcomes == ["entry", "turn_end"]


async def test_a_request_that_is_withdrawn_in_the_grace_leaves_the_answer_alone() -> None:
    run = Run([], restart_grace=0.2)
    request = {**STEER, "id": str(uuid.uuid4())}
    looked = asyncio.Event()

    async def post_and_withdraw() -> None:
        await run.ledger.aappend(request)
        await run.ledger.aappend({"kind": "withdraw", "id": request["id"]})
        asyncio.get_running_loop().call_later(0.3, looked.set)
        await looked.wait()

    run.model.answers = [[post_and_withdraw, "Once upon a time."]]
    state = await run.run()
    assert [m.text for m in state["messages"]] == ["Tell me a story.", "Once upon a time."]


async def test_a_halt_ends_a_call_that_shows_nothing() -> None:
    run = Run([], restart_grace=0.01)

    async def post() -> None:
        await run.ledger.aappend({"kind": "halt", "reason": "Enough."})

    run.model.answers = [[post, SILENCE]]
    state = await run.run()
    assert [m.text for m in state["messages"]] == ["Tell me a story."]
    assert state["preemption"]["halt"]["reason"] == "Enough."
    assert len(run.model.calls) == 1
