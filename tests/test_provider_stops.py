"""A sealed answer costs nothing more: the provider stops, also behind a generator inside a generator."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from chat_models.local import local_model
from midstream import Ledger, MidstreamState, ModelNode, Preemption

TRIES = 20
STOPS_WITHIN_SECONDS = 0.3
STOPS_WITHIN_TOKENS = 4
"""It looks up between two tokens; on a busy machine one may take as long as all that it is given."""

GIVEN_UP_AFTER_SECONDS = 5.0
TOKENS_BEFORE = 8

STEER = {"kind": "steer", "messages": "Stop. Say one word."}
HALT = {"kind": "halt", "reason": "enough"}


class Pace:
    """How long the slowest token of an answer took."""

    def __init__(self) -> None:
        self._at: list[float] = []

    def token(self) -> None:
        self._at.append(time.monotonic())

    @property
    def limit(self) -> float:
        slowest = max(later - earlier for earlier, later in pairwise(self._at))
        return max(STOPS_WITHIN_SECONDS, STOPS_WITHIN_TOKENS * slowest)


class Llama:
    """llama.cpp's own word on what it is writing."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url)

    def writing(self) -> set[int]:
        """Returns its own numbers of the answers in its slots."""
        return {slot["id_task"] for slot in self._http.get("/slots").json() if slot["is_processing"]}

    def seconds_to_stop(self, answers: set[int]) -> float:
        """Returns when it was last asked and was still writing, however slow its answers are."""
        since, last = time.monotonic(), 0.0
        while (asked := time.monotonic() - since) < GIVEN_UP_AFTER_SECONDS and answers & self.writing():
            last = asked
            time.sleep(0.005)
        return last

    def close(self) -> None:
        self._http.close()


@pytest.fixture
def llama(local_model_url: str) -> Iterator[Llama]:
    llama = Llama(local_model_url)
    yield llama
    llama.close()


@pytest.fixture
def saver() -> InMemorySaver:
    return InMemorySaver()


@pytest.fixture
def graph(local_model_url: str, saver: InMemorySaver) -> Any:
    """The real model through `ChatOpenAI`, whose stream is a generator inside a generator."""
    builder = StateGraph(MidstreamState)
    # Looked at often: the ledger is written by this thread while the graph runs in another.
    node = ModelNode(local_model(local_model_url), preemption=Preemption(poll_interval=0.02))
    builder.add_node("model", node)
    builder.add_edge(START, "model")
    return builder.compile(checkpointer=saver)


def given(n: int) -> dict[str, Any]:
    return {"messages": [("user", f"Write a long story about {n} lighthouses.")]}


async def test_llama_cpp_stops_writing_a_sealed_answer_every_time(
    graph: Any, saver: InMemorySaver, llama: Llama
) -> None:
    took: list[tuple[float, float]] = []
    for n in range(TRIES):
        thread, tokens, writing, pace = str(uuid.uuid4()), 0, set[int](), Pace()
        config = {"configurable": {"thread_id": thread}}
        stream = graph.astream(given(n), config, stream_mode=["messages", "custom"])
        async for mode, data in stream:
            if mode == "messages":
                tokens += 1
                pace.token()
            if tokens == TOKENS_BEFORE and not writing:
                writing = llama.writing()
                await Ledger(saver, thread).aappend(HALT if n % 2 else STEER)
            if mode == "custom" and data["event"] == "sealed":
                took.append((llama.seconds_to_stop(writing), pace.limit))
                break
        await stream.aclose()
        assert len(writing) == 1

    assert [each for each in took if each[0] > each[1]] == []
    assert len(took) == TRIES


def test_llama_cpp_stops_for_a_graph_that_is_run_synchronously(
    graph: Any, saver: InMemorySaver, llama: Llama
) -> None:
    took: list[tuple[float, float]] = []
    for n in range(TRIES):
        thread, tokens, writing, pace = str(uuid.uuid4()), 0, set[int](), Pace()
        config = {"configurable": {"thread_id": thread}}
        for mode, data in graph.stream(given(n), config, stream_mode=["messages", "custom"]):
            if mode == "messages":
                tokens += 1
                pace.token()
            if tokens == TOKENS_BEFORE and not writing:
                writing = llama.writing()
                Ledger(saver, thread).append(HALT)
            if mode == "custom" and data["event"] == "sealed":
                took.append((llama.seconds_to_stop(writing), pace.limit))
        assert len(writing) == 1

    assert [each for each in took if each[0] > each[1]] == []
    assert len(took) == TRIES
