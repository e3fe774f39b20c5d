"""That a process looks at the ledgers of all its streams in one query, where the saver can be asked so."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg.errors import UndefinedTable

from midstream import Ledger, wakeup
from midstream import _ledger_flow as flow
from midstream.glance import Glances, glances_of
from midstream.pace import Pace
from midstream.run import Run
from midstream.watch import WatchedCall, awatching
from midstream_client.protocol import parse_request
from support.ledgers import steer

WITHIN_SECONDS = 20
STREAMS = 40


class CountingSaver(AsyncPostgresSaver):
    """Counts how often a ledger is read, and how often the database is asked for anything."""

    reads = 0
    queries = 0

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        self.reads += 1
        return await super().aget_tuple(config)

    @asynccontextmanager
    async def _cursor(self, *, pipeline: bool = False) -> AsyncIterator[Any]:
        self.queries += 1
        async with super()._cursor(pipeline=pipeline) as cursor:
            yield cursor


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
async def saver(postgres_tables: str) -> AsyncIterator[CountingSaver]:
    async with CountingSaver.from_conn_string(postgres_tables) as opened:
        assert isinstance(opened, CountingSaver)
        yield opened


async def post_unseen(ledger: Ledger, text: str) -> str:
    """Posts as another process does: the ledger is written, and nobody here is woken."""
    request = parse_request(steer(text))
    return (await ledger._arun(flow.append(ledger._thread_id, request, 1.0))).id


async def until(is_so: Any) -> None:
    async with asyncio.timeout(WITHIN_SECONDS):
        while not is_so():
            await asyncio.sleep(0.001)


def watched(ledger: Ledger, call: Told, wait: float = 0.02) -> Any:
    return awatching(Run(ledger._thread_id), ledger, ledger._thread_id, call, Pace(wait))


async def test_one_query_looks_at_all_streams_and_only_what_is_new_is_read(saver: CountingSaver) -> None:
    ledgers = [Ledger(saver, str(uuid.uuid4())) for _ in range(STREAMS)]
    old = await post_unseen(ledgers[0], "was there before")
    calls = [Told() for _ in ledgers]
    async with AsyncExitStack() as streams:
        for ledger, call in zip(ledgers, calls, strict=True):
            await streams.enter_async_context(watched(ledger, call))
        await until(lambda: all(call.looks >= 3 for call in calls))
        reads, queries, looks = saver.reads, saver.queries, sum(call.looks for call in calls)
        await until(lambda: all(call.looks >= 8 for call in calls))
        assert saver.reads == reads
        assert saver.queries - queries < (sum(call.looks for call in calls) - looks) / 4

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
    saver: CountingSaver,
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


class ElsewhereSaver(AsyncPostgresSaver):
    """A saver of somebody's own making, which has no such table."""

    def __init__(self) -> None:
        self.inner = InMemorySaver()

    def __getattribute__(self, name: str) -> Any:
        if name in ("aget_tuple", "aput", "aput_writes"):
            return getattr(object.__getattribute__(self, "inner"), name)
        return object.__getattribute__(self, name)

    @asynccontextmanager
    async def _cursor(self, *, pipeline: bool = False) -> AsyncIterator[Any]:
        raise UndefinedTable('relation "checkpoint_writes" does not exist')
        yield


async def test_a_saver_that_cannot_be_asked_so_is_read_as_any_other(caplog: pytest.LogCaptureFixture) -> None:
    ledger, call = Ledger(ElsewhereSaver(), str(uuid.uuid4())), Told()
    with caplog.at_level(logging.WARNING, "midstream"):
        async with watched(ledger, call):
            await until(lambda: call.looks >= 5)
            seen = await post_unseen(ledger, "hello")
            await until(lambda: seen in call.seen)
    assert [record.getMessage() for record in caplog.records] == [
        "the ledgers of all streams cannot be looked at together: each is read alone"
    ]
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


async def test_a_watch_ends_at_once_while_its_question_is_under_way(saver: CountingSaver) -> None:
    ledger, call = Ledger(saver, str(uuid.uuid4())), Told()
    async with watched(ledger, call, wait=0.001):
        await until(lambda: call.looks >= 3)
        reads = saver.reads
        async with saver.lock:  # the question cannot be answered now
            await asyncio.sleep(0.03)
            wakeup.notify(ledger._thread_id)
    assert saver.reads <= reads + 1
