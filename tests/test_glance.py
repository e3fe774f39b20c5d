"""That a process looks at the ledgers of all its streams in one query, where the saver can be asked so."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg.errors import UndefinedTable

from midstream import Ledger
from midstream import _ledger_flow as flow
from midstream.glance import Glances, glances_by_saver, glances_of
from midstream.pace import Pace
from midstream.run import Run
from midstream.watch import WatchedCall, awatching
from midstream_client.protocol import SteerRequest
from support.ledgers import steer

WITHIN_SECONDS = 20
STREAMS = 40


class CountingLock(asyncio.Lock):
    """The lock that a saver holds while it asks the database: counts how often."""

    taken = 0

    async def __aenter__(self) -> None:
        await super().__aenter__()
        self.taken += 1


class CountingLedger(Ledger):
    """Counts how often it is read."""

    reads = 0

    async def aview(self) -> Any:
        self.reads += 1
        return await super().aview()


class Told(WatchedCall):
    """A call that waits for requests."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.seen: set[str] = set()

    def look(self, view: Any) -> None:
        self.looks += 1
        self.seen |= {entry.id for entry in view.pending()}


@pytest.fixture
async def saver(postgres_tables: str) -> AsyncIterator[AsyncPostgresSaver]:
    async with AsyncPostgresSaver.from_conn_string(postgres_tables) as opened:
        yield opened


async def post_unseen(ledger: Ledger, text: str) -> str:
    """Posts as another process does: the ledger is written, and nobody here is woken."""
    request = SteerRequest.model_validate(steer(text))
    return (await ledger._arun(flow.append(ledger._thread_id, request, 1.0))).id


async def until(is_so: Any) -> None:
    async with asyncio.timeout(WITHIN_SECONDS):
        while not is_so():
            await asyncio.sleep(0.001)


def watched(ledger: Ledger, call: Told, wait: float = 0.02) -> Any:
    return awatching(Run(ledger._thread_id), ledger, ledger._thread_id, call, Pace(wait))


async def test_one_query_looks_at_all_streams_and_only_what_is_new_is_read(
    saver: AsyncPostgresSaver,
) -> None:
    lock = saver.lock = CountingLock()
    ledgers = [CountingLedger(saver, str(uuid.uuid4())) for _ in range(STREAMS)]
    old = await post_unseen(ledgers[0], "was there before")
    calls = [Told() for _ in ledgers]
    async with AsyncExitStack() as streams:
        for ledger, call in zip(ledgers, calls, strict=True):
            await streams.enter_async_context(watched(ledger, call))
        await until(lambda: all(call.looks >= 3 for call in calls))
        reads, queries, looks = (
            [each.reads for each in ledgers],
            lock.taken,
            sum(call.looks for call in calls),
        )
        await until(lambda: all(call.looks >= 8 for call in calls))
        assert [each.reads for each in ledgers] == reads
        assert lock.taken - queries < (sum(call.looks for call in calls) - looks) / 4

        new = [await post_unseen(ledgers[n], f"for {n}") for n in (0, 7)]
        await until(lambda: new[0] in calls[0].seen and new[1] in calls[7].seen)
        again = await post_unseen(ledgers[7], "and another")
        await until(lambda: again in calls[7].seen)

        before = calls[3].looks
        mine = await ledgers[3].aappend(steer("from this process"))
        await until(lambda: mine in calls[3].seen)
        assert calls[3].looks > before
    assert calls[0].seen == {old, new[0]}
    assert [call.seen for n, call in enumerate(calls) if n not in (0, 3, 7)] == [set()] * (STREAMS - 3)


async def test_a_root_that_is_replaced_and_a_thread_that_is_deleted_are_changes_too(
    saver: AsyncPostgresSaver,
) -> None:
    ledger, call = Ledger(saver, str(uuid.uuid4())), Told()
    async with watched(ledger, call):
        for n in range(40):
            name = await ledger.aappend(steer(str(n)))
            await ledger.aappend({"kind": "withdraw", "id": name})
        seen = await post_unseen(ledger, "on a later root")
        await until(lambda: seen in call.seen)
        assert (await ledger.aview()).root > 1

        await saver.adelete_thread(ledger._thread_id)
        seen = await post_unseen(ledger, "on the first root of its successor")
        await until(lambda: seen in call.seen)


Answers = list[dict[str, Any] | Exception]


def answering(ledger: Ledger, *answers: dict[str, Any] | Exception) -> Answers:
    """Has this question about a ledger answered so, time after time, and then as the last time."""
    left = list(answers)

    async def read(thread_ids: Any) -> dict[str, Any]:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    glances_by_saver()[ledger.saver] = Glances(read)
    return left


GONE = UndefinedTable('relation "checkpoint_writes" does not exist')


async def test_a_host_that_cannot_be_asked_so_any_more_is_read_as_any_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger, call = Ledger(InMemorySaver(), str(uuid.uuid4())), Told()
    answering(ledger, GONE)
    with caplog.at_level(logging.WARNING, "midstream"):
        async with watched(ledger, call):
            await until(lambda: call.looks >= 8)
            seen = await post_unseen(ledger, "hello")
            await until(lambda: seen in call.seen)
    assert [record.getMessage() for record in caplog.records] == [
        "the ledgers of all streams cannot be looked at together: each is read alone"
    ]


async def test_a_database_that_was_away_is_asked_again() -> None:
    ledger, call = CountingLedger(InMemorySaver(), str(uuid.uuid4())), Told()
    answering(ledger, ConnectionError("away"), ConnectionError("away"), {}, ConnectionError("away"), {})
    async with watched(ledger, call):
        await until(lambda: call.looks >= 9)
    assert ledger.reads == 1 + 3  # the first look, and one for each question that failed


async def test_a_read_that_fails_after_its_question_is_made_again() -> None:
    """What the question has shown to be new is known only once it was read."""

    class FailingLedger(CountingLedger):
        fails = 0

        async def aview(self) -> Any:
            if self.fails:
                self.fails -= 1
                raise ConnectionError("away")
            return await super().aview()

    ledger, call = FailingLedger(InMemorySaver(), str(uuid.uuid4())), Told()
    left = answering(ledger, {})
    async with watched(ledger, call):
        await until(lambda: call.looks >= 3)
        seen = await post_unseen(ledger, "hello")
        ledger.fails = 2
        left[:] = [{ledger._thread_id: ("root", 1)}]
        await until(lambda: seen in call.seen)
    assert ledger.fails == 0


class TenantsSaver(AsyncPostgresSaver):
    """A saver that keeps the threads of a tenant under ids of its own."""

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        name = f"tenant-{config['configurable']['thread_id']}"
        return await super().aget_tuple({"configurable": {**config["configurable"], "thread_id": name}})


async def test_only_the_stock_saver_is_asked_so_and_only_where_it_is_all_that_there_is(
    saver: AsyncPostgresSaver,
) -> None:
    glances = glances_of(Ledger(saver, "t"))
    assert glances is not None
    assert glances_of(Ledger(saver, "another")) is glances
    assert glances_of(Ledger(TenantsSaver(saver.conn), "t")) is None
    assert glances_of(Ledger(InMemorySaver(), "t")) is None


async def test_whoever_leaves_or_is_woken_is_not_waited_for_and_the_others_get_their_answer() -> None:
    asked: list[set[str]] = []
    gate = asyncio.Event()

    async def read(thread_ids: Any) -> dict[str, tuple[str, int]]:
        asked.append(set(thread_ids))
        await gate.wait()
        return {"a": ("root", 1)}

    glances = Glances(read)
    gone, woken, first, second = (glances.ask(name) for name in ("gone", "woken", "a", "b"))
    gone.cancel()
    woken.set_result(False)
    await until(lambda: asked == [{"a", "b"}])
    late = glances.ask("a")
    second.cancel()
    gate.set()
    async with asyncio.timeout(WITHIN_SECONDS):
        assert (await first, await late) == (("root", 1), ("root", 1))
    assert asked == [{"a", "b"}, {"a"}]
    assert repr(glances) == "<Glances [0 waiting]>"


async def test_a_watch_ends_at_once_while_its_question_is_under_way(saver: AsyncPostgresSaver) -> None:
    ledger, call = CountingLedger(saver, str(uuid.uuid4())), Told()
    async with watched(ledger, call, wait=0.001):
        await until(lambda: call.looks >= 3)
        reads, looks = ledger.reads, call.looks
        await saver.lock.acquire()  # the question cannot be answered now
    try:
        assert (ledger.reads, call.looks - looks in (0, 1)) == (reads, True)
    finally:
        saver.lock.release()
