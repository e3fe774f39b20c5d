"""One contract for every saver, in both colours."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from pydantic import ValidationError

from midstream import (
    ConfigurationError,
    Ledger,
    LedgerFullError,
    MidstreamState,
    NotPendingError,
    RequestConflictError,
)
from midstream import _ledger_flow as flow
from midstream._ledger_view import digest_of
from midstream._run_notes import Claim
from midstream.ledger import NAMESPACE, Entry, HaltRecord, View, root_id
from midstream_client.protocol import MAX_PENDING, HaltRequest, SteerRequest
from support.ledgers import halt, marked, steer, texts, withdraw


class OnlyAsync(BaseCheckpointSaver[Any]):
    """What the server hands to its own code: the three awaited methods, and no sync ones."""

    def __init__(self, inner: BaseCheckpointSaver[Any]) -> None:
        super().__init__()
        self._inner = inner

    async def adelete_thread(self, thread_id: str) -> None:
        await self._inner.adelete_thread(thread_id)

    async def aget_tuple(self, config: Any) -> Any:
        return await self._inner.aget_tuple(config)

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        return await self._inner.aput(config, checkpoint, metadata, new_versions)

    async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        await self._inner.aput_writes(config, writes, task_id, task_path)


class Sync:
    """A ledger's sync methods under the names of the awaited ones, so that one test serves both."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._ledger, name.removeprefix("a"))

        async def call(*args: Any) -> Any:
            return method(*args)

        return call


@dataclass
class Open:
    """A saver, and the ledgers of its threads."""

    saver: BaseCheckpointSaver[Any]
    colour: str

    def ledger(self, thread_id: str) -> Any:
        ledger = Ledger(self.saver, thread_id)
        return Sync(ledger) if self.colour == "sync" else ledger


@asynccontextmanager
async def open_saver(kind: str, request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        match kind:
            case "memory-sync" | "memory-async":
                yield InMemorySaver()
            case "adapter-async":
                yield OnlyAsync(InMemorySaver())
            case "sqlite-sync":
                yield stack.enter_context(SqliteSaver.from_conn_string(str(folder / "db")))
            case "sqlite-async":
                yield await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(str(folder / "db")))
            case "postgres-sync":
                uri = request.getfixturevalue("postgres_tables")
                yield stack.enter_context(PostgresSaver.from_conn_string(uri))
            case "postgres-async":
                uri = request.getfixturevalue("postgres_tables")
                yield await stack.enter_async_context(AsyncPostgresSaver.from_conn_string(uri))


KINDS = [
    "memory-sync",
    "memory-async",
    "adapter-async",
    "sqlite-sync",
    "sqlite-async",
    "postgres-sync",
    "postgres-async",
]


@pytest.fixture(params=KINDS)
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    async with open_saver(request.param, request, tmp_path) as saver:
        yield Open(saver, request.param.rpartition("-")[2])


async def test_requests_come_back_in_order_of_acceptance(opened: Open, thread_id: str) -> None:
    ledger = opened.ledger(thread_id)
    # The first to come has the last of ids, and the other way round.
    ids = sorted((str(uuid.uuid4()) for _ in range(5)), reverse=True)

    for number, request_id in enumerate(ids[:-1]):
        assert await ledger.aappend(steer(f"no. {number}", id=request_id)) == request_id
    await ledger.aappend({"id": ids[-1], **halt("enough")})

    entries = await ledger.arequests()
    assert [entry.id for entry in entries] == ids
    assert texts(entries) == ["no. 0", "no. 1", "no. 2", "no. 3", "enough"]
    assert [entry.kind for entry in entries] == ["steer"] * 4 + ["halt"]


async def test_an_entry_keeps_all_that_the_request_said(opened: Open, thread_id: str) -> None:
    ledger = opened.ledger(thread_id)
    run_id = str(uuid.uuid4())
    blocks = [{"type": "text", "text": "naïve \u0000 ☃ 🦙"}, {"type": "image", "url": "https://x/y.png"}]
    request = SteerRequest.model_validate(
        {"messages": [{"role": "human", "content": blocks}], "run_id": run_id, "node": "writer"}
    )

    assert await ledger.aappend(request) == request.id

    [entry] = await ledger.arequests()
    assert (entry.id, entry.run_id, entry.node) == (request.id, run_id, "writer")
    assert entry.messages == ({"role": "user", "content": blocks},)
    assert entry.reason is None


async def test_an_id_that_stands_for_another_request_is_refused(opened: Open, thread_id: str) -> None:
    ledger = opened.ledger(thread_id)
    name = await ledger.aappend(steer("one"))

    for other in (steer("two", id=name), steer("one", id=name, node="model"), {**halt("stop"), "id": name}):
        with pytest.raises(RequestConflictError, match="of its own"):
            await ledger.aappend(other)
    assert await ledger.aappend(steer("one", id=name)) == name
    assert [entry.id for entry in await ledger.arequests()] == [name]


async def test_an_id_that_is_posted_again_changes_nothing(opened: Open, thread_id: str) -> None:
    ledger = opened.ledger(thread_id)
    request_id = await ledger.aappend(steer("first"))
    [entry] = await ledger.arequests()

    assert await ledger.aappend(steer("first", id=request_id)) == request_id
    assert await ledger.aappend(steer("first", id=request_id.upper())) == request_id
    assert await ledger.arequests() == [entry]

    await ledger.amark(marked(entry))
    assert await ledger.aappend(steer("fourth", id=request_id)) == request_id
    assert await ledger.arequests() == []


async def test_an_id_stays_known_when_its_entry_is_gone(opened: Open, thread_id: str) -> None:
    ledger = opened.ledger(thread_id)
    request_id = await ledger.aappend(steer("long ago"))
    await ledger.amark(marked(*await ledger.arequests()))
    await settle_many(ledger, 40)
    view = await ledger.aview()
    assert view.root > 1
    assert request_id not in [entry.id for entry in view.entries]

    await ledger.aappend(steer("again", id=request_id))

    assert await ledger.arequests() == []


async def settle_many(ledger: Any, count: int) -> None:
    """Lets a consumer take `count` requests, one at a time, as a model node does."""
    for number in range(count):
        await ledger.aappend(steer(f"settled {number}"))
        await ledger.amark(marked(*(await ledger.aview()).pending()[-1:]))
        await ledger.arotate(await ledger.aview())


async def test_what_is_marked_is_no_longer_pending(opened: Open, thread_id: str) -> None:
    ledger = opened.ledger(thread_id)
    for text in ("one", "two", "three"):
        await ledger.aappend(steer(text))
    one, two, three = await ledger.arequests()

    await ledger.amark(marked(one, three))
    size = (await ledger.aview()).size
    await ledger.amark(marked(one, three))
    await ledger.amark(marked(one))

    view = await ledger.aview()
    assert view.pending() == [two]
    assert view.pending(handled=[two.id]) == []
    assert dict(view.marks) == marked(one, three)
    assert view.size == size


async def test_a_mark_for_an_unknown_request_leaves_no_trace(opened: Open, thread_id: str) -> None:
    ledger = opened.ledger(thread_id)
    await ledger.amark(marked(Entry(str(uuid.uuid4()), "steer", 1.0)))
    assert await ledger.aview() == View()

    await ledger.aappend(steer("one"))
    before = await ledger.aview()
    await ledger.amark(marked(Entry(str(uuid.uuid4()), "steer", 1.0)))
    assert await ledger.aview() == before


async def test_a_withdrawn_request_is_never_pending_again(opened: Open, thread_id: str) -> None:
    ledger = opened.ledger(thread_id)
    request_id = await ledger.aappend(steer("never mind"))

    assert await ledger.aappend(withdraw(request_id)) == request_id
    assert await ledger.arequests() == []
    await ledger.aappend(withdraw(request_id))
    await ledger.aappend(steer("never mind", id=request_id))
    assert await ledger.arequests() == []

    await settle_many(ledger, 40)
    assert (await ledger.aview()).marks[request_id]["outcome"] == "withdrawn"
    await ledger.aappend(withdraw(request_id))
    await ledger.aappend(steer("never mind", id=request_id))
    assert await ledger.arequests() == []


async def test_only_what_is_pending_can_be_withdrawn(opened: Open, thread_id: str) -> None:
    ledger = opened.ledger(thread_id)
    with pytest.raises(NotPendingError, match="knows no request") as unknown:
        await ledger.aappend(withdraw(str(uuid.uuid4())))
    assert unknown.value.outcome is None
    assert await ledger.aview() == View()

    await ledger.aappend(steer("done"))
    [entry] = await ledger.arequests()
    await ledger.amark(marked(entry))
    with pytest.raises(NotPendingError, match="has ended as 'sealed'"):
        await ledger.aappend(withdraw(entry.id))


async def test_a_request_is_applied_or_withdrawn_by_who_is_first(opened: Open, thread_id: str) -> None:
    ledger = opened.ledger(thread_id)
    first, second = await ledger.aappend(steer("one")), await ledger.aappend(steer("two"))
    seen = await ledger.aview()
    claim = Claim(
        step="s", owner="model", request_ids=[first, second], outcome="entry", ended=[], at=time.time()
    )

    await ledger.aappend(withdraw(first))

    assert await ledger.aapply(claim, seen) == [second]
    for _ in range(2):
        with pytest.raises(NotPendingError, match="has ended as 'entry'"):
            await ledger.aappend(withdraw(second))
        assert await ledger.aapply({**claim, "owner": "another"}, seen) == []
        assert await ledger.aapply(claim, seen) == [second]
        await settle_many(ledger, 40)
    assert (await ledger.aview()).root > 1
    assert [entry.id for entry in (await ledger.aview()).pending()] == [second]


async def test_what_was_withdrawn_in_the_first_form_of_the_record_stays_so(thread_id: str) -> None:
    ledger = Ledger(InMemorySaver(), thread_id)
    request_id = await ledger.aappend(steer("go"))
    record = {"thread": digest_of(thread_id), "id": request_id}
    await ledger._arun(flow.settle(1, flow.Write(0, str(uuid.uuid4()), "withdraw", record)))

    await ledger.aappend(withdraw(request_id))

    assert await ledger.arequests() == []
    assert request_id in (await ledger.aview()).withdrawn


async def test_a_request_that_was_withdrawn_and_applied_at_once_was_applied(
    opened: Open, thread_id: str
) -> None:
    ledger = opened.ledger(thread_id)
    request_id = await ledger.aappend(steer("go"))
    [entry] = await ledger.arequests()
    await ledger.aappend(withdraw(request_id))
    await settle_many(ledger, 40)

    await ledger.amark(marked(entry))

    assert (await ledger.aview()).marks[request_id]["outcome"] == "sealed"


async def test_steering_and_withdrawing_on_an_idle_thread_does_not_pile_up(
    opened: Open, thread_id: str
) -> None:
    ledger = opened.ledger(thread_id)
    await ledger.aappend(steer("keep me"))

    for number in range(60):
        await ledger.aappend(withdraw(await ledger.aappend(steer(f"no. {number}"))))

    view = await ledger.aview()
    assert texts(view.pending()) == ["keep me"]
    assert view.size <= 40
    assert len(view.marks) <= 64


async def test_a_full_ledger_refuses_the_next_request_and_nothing_else(opened: Open, thread_id: str) -> None:
    ledger = opened.ledger(thread_id)
    ids = [await ledger.aappend(steer(f"no. {number}")) for number in range(MAX_PENDING)]
    before = await ledger.aview()

    with pytest.raises(LedgerFullError, match="withdraw them") as full:
        await ledger.aappend(steer("one too many"))
    assert (full.value.thread_id, full.value.pending) == (thread_id, MAX_PENDING)
    assert await ledger.aview() == before

    assert await ledger.aappend(steer("no. 3", id=ids[3])) == ids[3]
    await ledger.aappend(withdraw(ids[0]))
    await ledger.aappend(steer("fits again"))
    assert texts(await ledger.arequests())[-1] == "fits again"


async def test_a_bad_request_is_refused_and_leaves_no_trace(opened: Open, thread_id: str) -> None:
    ledger = opened.ledger(thread_id)
    for bad in ({"kind": "stop"}, steer(" "), halt(""), steer("x", id="7"), {"kind": "withdraw"}):
        with pytest.raises(ValidationError):
            await ledger.aappend(bad)
    assert await ledger.aview() == View()


async def test_rotation_keeps_what_counts_and_drops_the_rest(opened: Open, thread_id: str) -> None:
    ledger = opened.ledger(thread_id)
    await ledger.aappend(steer("waits"))
    waiting = await ledger.arequests()
    record = HaltRecord(run_id="r1", reason="enough", node="model", at=1.0)
    await ledger.arecord_halt(record)

    await settle_many(ledger, 70)

    view = await ledger.aview()
    assert view.root > 2
    assert view.carried
    assert view.size <= 40
    assert view.pending() == waiting
    assert view.halts == (record,)
    assert len(view.marks) > 40
    assert (await ledger.arequests()) == waiting


async def test_a_root_that_holds_nothing_settled_is_not_replaced(opened: Open, thread_id: str) -> None:
    ledger = opened.ledger(thread_id)
    await ledger.arotate(await ledger.aview())
    assert await ledger.aview() == View()

    for number in range(MAX_PENDING):
        await ledger.aappend(steer(f"no. {number}"))
    await ledger.arotate(await ledger.aview())

    assert (await ledger.aview()).root == 1


async def test_the_first_record_of_a_halt_stays(opened: Open, thread_id: str) -> None:
    ledger = opened.ledger(thread_id)
    first = HaltRecord(run_id="r1", reason="enough", node="model", at=2.0)
    other = HaltRecord(run_id="r0", reason="earlier", node="model", at=1.0)

    await ledger.arecord_halt(first)
    await ledger.arecord_halt({**first, "reason": "too late"})
    await ledger.arecord_halt(other)

    assert (await ledger.aview()).halts == (other, first)


async def test_what_the_graph_handled_but_did_not_mark_is_not_pending(opened: Open, thread_id: str) -> None:
    """A halted run has no next entry, so its marks come with the next run."""
    ledger = opened.ledger(thread_id)
    await ledger.aappend(steer("applied"))
    [entry] = await ledger.arequests()
    await ledger.aappend(steer("not yet"))

    builder = StateGraph(MidstreamState)
    builder.add_node("model", lambda _: {"preemption": {"handled": marked(entry)}})
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    graph = builder.compile(checkpointer=opened.saver)
    config: Any = {"configurable": {"thread_id": thread_id}}
    if opened.colour == "sync":
        graph.invoke({"messages": []}, config)
    else:
        await graph.ainvoke({"messages": []}, config)

    assert texts(await ledger.arequests()) == ["not yet"]
    assert texts((await ledger.aview()).pending()) == ["applied", "not yet"]
    with pytest.raises(NotPendingError, match="has ended as 'sealed'"):
        await ledger.aappend(withdraw(entry.id))
    for number in range(MAX_PENDING - 1):
        await ledger.aappend(steer(f"no. {number}"))
    with pytest.raises(LedgerFullError):
        await ledger.aappend(steer("one too many"))


async def test_the_main_line_of_the_thread_is_left_alone(opened: Open, thread_id: str) -> None:
    ledger = opened.ledger(thread_id)
    await ledger.aappend(steer("hello"))
    main: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}

    found = opened.saver.get_tuple(main) if opened.colour == "sync" else await opened.saver.aget_tuple(main)

    assert found is None


async def test_a_copied_thread_has_none_of_the_requests(opened: Open, thread_id: str) -> None:
    """A copy has the rows of its source: the same roots, with the same writes."""
    ledger = opened.ledger(thread_id)
    request_id = await ledger.aappend(steer("for the first"))
    await ledger.arecord_halt(HaltRecord(run_id="r1", reason="enough", node="model", at=2.0))
    await ledger.amark(marked(*await ledger.arequests()))
    await ledger.aappend(steer("waits on the first"))
    copy_id = str(uuid.uuid4())
    await copy_thread(opened, thread_id, copy_id)
    copy = opened.ledger(copy_id)

    assert await copy.arequests() == []
    view = await copy.aview()
    assert (dict(view.marks), view.halts, view.withdrawn) == ({}, (), frozenset())

    await copy.aappend(steer("for the copy", id=request_id))
    await copy.aappend(steer("another"))
    assert texts(await copy.arequests()) == ["for the copy", "another"]
    await settle_many(copy, 40)
    assert texts(await copy.arequests()) == ["for the copy", "another"]
    assert texts(await ledger.arequests()) == ["waits on the first"]


async def copy_thread(opened: Open, source: str, target: str) -> None:
    saver = opened.saver
    config: Any = {"configurable": {"thread_id": source, "checkpoint_ns": NAMESPACE}}
    to: Any = {"configurable": {"thread_id": target, "checkpoint_ns": NAMESPACE}}
    if opened.colour == "sync":
        found = saver.get_tuple(config)
        assert found is not None
        stored = saver.put(to, found.checkpoint, found.metadata, {})
        for task_id, channel, value in found.pending_writes or ():
            saver.put_writes(stored, [(channel, value)], task_id)
    else:
        found = await saver.aget_tuple(config)
        assert found is not None
        stored = await saver.aput(to, found.checkpoint, found.metadata, {})
        for task_id, channel, value in found.pending_writes or ():
            await saver.aput_writes(stored, [(channel, value)], task_id)


async def test_a_deleted_thread_has_no_requests(opened: Open, thread_id: str) -> None:
    ledger = opened.ledger(thread_id)
    await ledger.aappend(steer("hello"))
    if opened.colour == "sync":
        opened.saver.delete_thread(thread_id)
    else:
        await opened.saver.adelete_thread(thread_id)
    assert await ledger.aview() == View()


async def test_many_writers_on_one_loop_lose_nothing(opened: Open, thread_id: str) -> None:
    ledger = opened.ledger(thread_id)
    wanted = {f"no. {number}" for number in range(20)}

    await asyncio.gather(*(ledger.aappend(steer(text)) for text in wanted))

    entries = await ledger.arequests()
    assert set(texts(entries)) == wanted
    assert len({entry.accepted_at for entry in entries} | {entry.id for entry in entries}) >= 20


def test_a_clock_that_runs_back_does_not_change_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1000.0, 900.0, 900.0, 2000.0])
    monkeypatch.setattr("time.time", lambda: next(clock))
    ledger = Ledger(InMemorySaver(), "t")

    for text in ("one", "two", "three", "four"):
        ledger.append(steer(text))

    assert texts(ledger.requests()) == ["one", "two", "three", "four"]


def test_the_roots_are_valid_ids_in_their_order() -> None:
    names = [root_id(n) for n in (1, 2, 9, 10, 255, 256, 65536)]
    assert names == sorted(names)
    assert all(str(uuid.UUID(name)) == name and uuid.UUID(name).version == 6 for name in names)


def test_a_subgraph_in_the_ledgers_place_is_reported() -> None:
    saver = InMemorySaver()
    inner = StateGraph(MidstreamState)
    inner.add_node("step", lambda _: {})
    inner.add_edge(START, "step")
    builder = StateGraph(MidstreamState)
    builder.add_node(NAMESPACE + "_", lambda _: {})
    builder.add_node("agent", inner.compile(checkpointer=True))
    builder.add_edge(START, "agent")
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"messages": []}, {"configurable": {"thread_id": "t"}})
    assert Ledger(saver, "t").view() == View()

    # A stateful subgraph keeps its checkpoints under its node's own name.
    for (_, namespace, _), _ in list(saver.writes.items()):
        assert namespace != NAMESPACE
    saver.storage["t"][NAMESPACE] = saver.storage["t"]["agent"]
    with pytest.raises(ConfigurationError, match="give the subgraph's node another name"):
        Ledger(saver, "t").append(steer("x"))


def test_a_request_model_and_its_dict_are_the_same_request() -> None:
    request = HaltRequest(reason="enough")
    by_model, by_dict = Ledger(InMemorySaver(), "t"), Ledger(InMemorySaver(), "t")

    by_model.append(request)
    by_dict.append(request.model_dump())

    [one], [other] = by_model.requests(), by_dict.requests()
    assert (one.id, one.reason) == (other.id, other.reason) == (request.id, "enough")
    assert repr(by_model) == "<Ledger of thread 't'>"
