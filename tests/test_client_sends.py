"""`send` delivers each text exactly once, whatever begins and ends meanwhile."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from random import Random
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_client

from midstream_client import Midstream, NotSettledError
from midstream_client._flow import Flow
from midstream_client._sending import send
from midstream_client._steering import Server, outcome, steer
from midstream_client.requests import Sent
from support.hosted import Host, said
from support.racing_thread import THREAD, RacingThread

SENDS = 500
THREADS = 20


def sending(text: str, name: str | None, timeout: float | None = None) -> Flow[Sent]:
    return send(Server(), THREAD, "agent", text, send_id=name, run={}, timeout=timeout)


@pytest.mark.parametrize("losses", [0.0, 0.2], ids=["calls-arrive", "calls-get-lost"])
def test_every_text_is_in_the_thread_once_whatever_the_runs_do(losses: float) -> None:
    how: Counter[str] = Counter()
    rescued = cancels = rollbacks = 0
    for seed in range(SENDS):
        random = Random(seed)
        thread = RacingThread(random, losses)
        name = str(uuid.UUID(int=random.getrandbits(128)))
        for _ in range(100):
            try:
                sent = thread.perform(sending("hello", name))
                break
            except httpx.TransportError:
                # What a host does that does not know: it says the same again.
                continue
        else:
            raise AssertionError("never delivered")
        thread.settle()

        how[sent.how] += 1
        rescued += thread.rescued
        cancels += thread.cancels
        rollbacks += thread.rollbacks
        assert [text for _, text in thread.messages] == ["hello"], (seed, sent)
        if sent.how in ("steered", "started"):
            assert sent.message_ids == (thread.messages[0][0],), seed

    # Each way was taken, also the narrowest: applied by a run that had read the ledger before the withdraw.
    assert min(how["steered"], how["started"], how["waiting"]) > 0, how
    assert min(rescued, cancels, rollbacks) > 0


def test_many_texts_to_one_racing_thread_are_each_there_once() -> None:
    thread = RacingThread(Random(1), 0.0)
    for n in range(SENDS):
        thread.perform(sending(f"text {n}", None))
    thread.settle()

    assert sorted(text for _, text in thread.messages) == sorted(f"text {n}" for n in range(SENDS))


def test_a_steer_that_finds_no_safe_point_in_time_stays_and_says_so() -> None:
    class Busy(RacingThread):
        def move(self) -> None:
            """Its run neither reads the ledger nor ends."""

    thread = Busy(Random(1))
    thread._begin("r", {})
    with pytest.raises(NotSettledError, match="withdraw") as late:
        thread.perform(sending("hello", None, timeout=3.0))

    assert thread.now <= 3.0
    assert list(thread.entries) == [late.value.request_id]


async def begun(host: Host, thread_id: str) -> Any:
    """Starts a run, and returns it once its model is to come."""
    run = await host.runs.create(thread_id, "long", input=said("Hello"))
    async with asyncio.timeout(10):
        while not (await host.threads.get_state(thread_id))["next"]:
            await asyncio.sleep(0.02)
    return run


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_text_sent_after_a_cancel_starts_a_run(hosted_url: str, kind: str) -> None:
    """Such a thread is `interrupted`, with its model still to come, and there is nothing to answer."""
    host = Host(hosted_url, kind)
    thread_id = await host.thread()
    run = await begun(host, thread_id)
    async with asyncio.timeout(10):
        await host.runs.cancel(thread_id, run["run_id"])
        while (await host.threads.get(thread_id))["status"] != "interrupted":
            await asyncio.sleep(0.02)

    sent = await host.midstream.send(thread_id, "brief", "Be brief.")
    await host.is_over(thread_id)

    assert sent.how == "started"
    assert await host.messages(thread_id) == [
        ("human", "Hello"),
        ("human", "Be brief."),
        ("ai", "You said: Be brief.. word1 word2 word3"),
    ]
    assert await host.midstream.pending_requests(thread_id) == []
    await host.close()


def test_a_thread_that_is_left_busy_without_a_run_is_not_waited_for() -> None:
    class Alone(RacingThread):
        def move(self) -> None:
            """Nobody else is there."""

    thread = Alone(Random(1))
    thread._begin("r", {})
    thread.roll_back()
    receipt = thread.perform(steer(Server(), THREAD, "one"))
    assert (receipt.thread_status, thread.perform(outcome(receipt, timeout=3.0)).outcome) == (
        "busy",
        "pending",
    )

    sent = thread.perform(sending("two", None, timeout=3.0))
    thread.settle()

    assert sent.how == "started"
    assert [text for _, text in thread.messages] == ["two", "one"]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_text_sent_after_a_rollback_starts_a_run(hosted_url: str, kind: str) -> None:
    """The server leaves such a thread `busy` if nobody listens, with no run."""
    host = Host(hosted_url, kind)
    thread_id = await host.thread()
    run = await begun(host, thread_id)
    async with asyncio.timeout(10):
        await host.runs.cancel(thread_id, run["run_id"], action="rollback")
        while await host.runs.list(thread_id):
            await asyncio.sleep(0.02)

    receipt = await host.midstream.steer(thread_id, "Be kind.")
    assert (await host.midstream.outcome(receipt, timeout=10)).outcome == "pending"
    sent = await host.midstream.send(thread_id, "brief", "Be brief.", timeout=10)
    await host.is_over(thread_id)

    assert sent.how == "started"
    assert (await host.messages(thread_id))[:2] == [("human", "Be brief."), ("human", "Be kind.")]
    assert await host.midstream.pending_requests(thread_id) == []
    await host.close()


async def test_500_texts_to_answers_that_end_at_random_moments(hosted_url: str) -> None:
    """On the real server: each text once, in its order, and nothing is left unanswered."""
    posted: Counter[str] = Counter()

    async def count(request: httpx.Request) -> None:
        for kind in (b'"withdraw"', b'"steer"'):
            posted[kind.decode().strip('"')] += kind in request.content

    async def talk(number: int) -> None:
        random = Random(number)
        thread_id = (await client.threads.create())["thread_id"]
        texts = [f"{number}.{n}" for n in range(SENDS // THREADS)]
        for text in texts:
            sent = await midstream.send(thread_id, "brief", text)
            how[sent.how] += 1
            # From far within an answer to well after it.
            await asyncio.sleep(random.random() * 0.25)
        while (await client.threads.get(thread_id))["status"] == "busy":
            await asyncio.sleep(0.05)

        values: Any = (await client.threads.get_state(thread_id))["values"]
        messages = values["messages"]
        assert [each["content"] for each in messages if each["type"] == "human"] == texts
        assert messages[-1]["type"] == "ai"
        assert await midstream.pending_requests(thread_id) == []

    how: Counter[str] = Counter()
    async with get_client(url=hosted_url, api_key=None) as client, asyncio.timeout(100):
        client.http.client.event_hooks["request"].append(count)
        midstream = Midstream(client)
        await asyncio.gather(*(talk(number) for number in range(THREADS)))

    assert how.total() == SENDS
    assert min(how["steered"], how["started"], posted["withdraw"]) > 0, (how, posted)
