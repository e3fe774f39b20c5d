"""Twenty steers at the same time, from four processes, on one thread over a shared PostgreSQL."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from fakes import SILENCE, Answer, Call, FakeChatModel
from midstream import Preemption
from support.forking import Forking
from support.steering import ASKED, agent, ledger_of, steer, thread

PROCESSES = 4
EACH = 5
ALL = PROCESSES * EACH


class UntilSteered(FakeChatModel):
    """Says a word and falls silent, until it was steered so many times."""

    times: int = ALL

    def _start(self, messages: list[BaseMessage], options: dict[str, Any]) -> tuple[Call, Answer]:
        call, _ = super()._start(messages, options)
        return call, ["Done."] if len(steers_in(messages)) >= self.times else ["Part", SILENCE]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Forking]:
    with Forking("support.posting") as forks:
        yield forks


def steers_in(messages: list[BaseMessage]) -> list[str]:
    return [str(m.additional_kwargs["request_id"]) for m in messages if "request_id" in m.additional_kwargs]


def batches() -> list[list[dict[str, Any]]]:
    return [
        [steer(f"Process {p}, steer {n}.", id=str(uuid.uuid4())) for n in range(EACH)]
        for p in range(PROCESSES)
    ]


def ids_of(requests: list[dict[str, Any]]) -> list[str]:
    return [request["id"] for request in requests]


async def events_of(graph: Any, config: RunnableConfig) -> list[dict[str, Any]]:
    return [event async for event in graph.astream(ASKED, config, stream_mode="custom")]


async def post_all(hosts: Forking, uri: str, config: RunnableConfig, posts: list[Any]) -> None:
    about = {"uri": uri, "thread_id": config["configurable"]["thread_id"]}
    codes = await asyncio.to_thread(hosts.run, "post", *({**about, "requests": each} for each in posts))
    assert codes == [0] * PROCESSES


async def test_steers_from_four_processes_are_applied_once_each_while_a_run_streams(
    hosts: Forking, postgres_uri: str
) -> None:
    config = thread()
    posts = batches()
    async with AsyncPostgresSaver.from_conn_string(postgres_uri) as saver:
        await saver.setup()
        model = UntilSteered()
        graph = agent(model, saver=saver, preemption=Preemption(max_seals=ALL, poll_interval=0.02))

        run = asyncio.create_task(events_of(graph, {**config, "recursion_limit": 200}))
        await post_all(hosts, postgres_uri, config, posts)
        events = await asyncio.wait_for(run, 60)

        state = (await graph.aget_state(config)).values
        assert await ledger_of(saver, config).arequests() == []

    applied = steers_in(state["messages"])
    assert sorted(applied) == sorted(itertools.chain(*map(ids_of, posts)))
    # What one host posts one after the other is applied in that order, ...
    for post in posts:
        assert [each for each in applied if each in ids_of(post)] == ids_of(post)
    # ... and what one boundary applies, in the order of acceptance.
    handled = state["preemption"]["handled"]
    together = [event["request_ids"] for event in events if event["event"] == "injected"]
    assert list(itertools.chain(*together)) == applied
    for ids in together:
        assert ids == sorted(ids, key=lambda each: (handled[each]["accepted_at"], each))
    assert state["messages"][-1].text == "Done."
    assert state["preemption"]["stats"]["empty_boundaries"] == 0


async def test_steers_that_wait_for_a_run_are_applied_in_the_order_of_acceptance(
    hosts: Forking, postgres_uri: str
) -> None:
    config = thread()
    posts = batches()
    async with AsyncPostgresSaver.from_conn_string(postgres_uri) as saver:
        await saver.setup()
        await post_all(hosts, postgres_uri, config, posts)
        accepted = [entry.id for entry in await ledger_of(saver, config).arequests()]

        state = await agent(UntilSteered(), saver=saver).ainvoke(ASKED, config)

    assert sorted(accepted) == sorted(itertools.chain(*map(ids_of, posts)))
    assert steers_in(state["messages"]) == accepted
    for post in posts:
        assert [each for each in accepted if each in ids_of(post)] == ids_of(post)


async def test_the_same_steers_from_four_impatient_hosts_are_applied_once(
    hosts: Forking, postgres_uri: str
) -> None:
    config = thread()
    same = batches()[0]
    async with AsyncPostgresSaver.from_conn_string(postgres_uri) as saver:
        await saver.setup()
        model = UntilSteered(times=EACH)
        graph = agent(model, saver=saver, preemption=Preemption(max_seals=ALL, poll_interval=0.02))

        run = asyncio.create_task(graph.ainvoke(ASKED, {**config, "recursion_limit": 200}))
        await post_all(hosts, postgres_uri, config, [same] * PROCESSES)
        state = await asyncio.wait_for(run, 60)

        assert await ledger_of(saver, config).arequests() == []

    assert steers_in(state["messages"]) == ids_of(same)
