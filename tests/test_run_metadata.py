"""What a host that never heard of midstream reads of a run: stock `runs.get` and `runs.list`."""

from __future__ import annotations

import asyncio
import copy
import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph_sdk import get_client, get_sync_client
from langgraph_sdk.client import LangGraphClient

from fakes import ENDLESS, FakeChatModel
from midstream import Ledger, Preemption
from midstream._run_answers import with_metadata
from midstream._run_notes import KEPT_RUNS, metadata_of, seal_note
from midstream.ledger import HaltRecord
from midstream.server import PreemptionMiddleware
from support.dev_server import DevServer
from support.examples import examples
from support.ledgers import halt, steer
from support.steering import ASKED, agent, ledger_of, thread
from support.thread_server import THREAD_ID, call

WITHIN_SECONDS = 30
NEVER_HALTED: dict[str, Any] = {"seals": 0, "empty_boundaries": 0}


@pytest.fixture
async def client(hosted_url: str) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=hosted_url, api_key=None) as opened:
        yield opened


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


async def post(client: LangGraphClient, thread_id: str, request: Any) -> None:
    await client.threads.update_state(thread_id, {"preemption": request})


async def streamed(client: LangGraphClient, thread_id: str, *requests: Any) -> str:
    """Runs an answer during which these are posted, one after each word; returns the run's id."""
    left, run_id = list(requests), ""
    async with asyncio.timeout(WITHIN_SECONDS):
        async for part in client.runs.stream(
            thread_id, "agent", input=said("Tell me."), stream_mode=["messages-tuple", "custom"]
        ):
            if part.event == "metadata":
                run_id = part.data["run_id"]
            is_word = part.event == "messages" and part.data[0]["content"]
            if left and is_word and part.data[0]["type"] == "AIMessageChunk":
                await post(client, thread_id, left.pop(0))
    assert not left
    return run_id


async def halted(client: LangGraphClient, thread_id: str, reason: str) -> str:
    """Runs an answer that a waiting halt ends before it begins; returns the run's id."""
    await post(client, thread_id, halt(reason))
    run = await client.runs.create(thread_id, "brief", input=said("Go on."))
    async with asyncio.timeout(WITHIN_SECONDS):
        await client.runs.join(thread_id, run["run_id"])
    return run["run_id"]


async def test_a_halted_run_says_so_in_its_metadata_and_others_do_not(
    client: LangGraphClient, hosted_url: str
) -> None:
    thread_id = (await client.threads.create())["thread_id"]
    plain = await client.runs.create(thread_id, "brief", input=said("Hi."), metadata={"mine": 1})
    await client.runs.join(thread_id, plain["run_id"])
    stopped = await streamed(client, thread_id, halt("the person left"))
    steered = await streamed(client, thread_id, steer("Shorter!"))

    found: dict[str, Any] = {run["run_id"]: dict(run) for run in await client.runs.list(thread_id)}
    assert list(found) == [steered, stopped, plain["run_id"]]
    for run_id, run in found.items():
        assert dict(await client.runs.get(thread_id, run_id)) == dict(run)
    assert found[stopped]["status"] == "success"
    of_stopped: Any = found[stopped]["metadata"]
    assert of_stopped["halt_reason"] == "the person left"
    assert of_stopped["preemption"] == {"seals": 1, "empty_boundaries": 0}
    assert of_stopped["graph_id"] == "agent"
    of_steered: Any = found[steered]["metadata"]
    assert "halt_reason" not in of_steered
    assert of_steered["preemption"] == {"seals": 1, "empty_boundaries": 0}
    of_plain: Any = found[plain["run_id"]]["metadata"]
    assert of_plain["mine"] == 1
    assert not {"halt_reason", "preemption"} & of_plain.keys()
    again = await client.runs.create(thread_id, "brief", input=said("Again."), metadata=of_stopped)
    await client.runs.join(thread_id, again["run_id"])
    of_again: Any = (await client.runs.get(thread_id, again["run_id"]))["metadata"]
    assert not {"halt_reason", "preemption"} & of_again.keys()
    assert of_again["client_halt_reason"] == "the person left"

    def synchronously() -> Any:
        with get_sync_client(url=hosted_url, api_key=None) as other:
            return other.runs.list(thread_id)

    assert (await asyncio.to_thread(synchronously))[1:] == list(found.values())


async def test_a_run_that_a_cron_began_is_steered_and_halted_like_any_other(client: LangGraphClient) -> None:
    thread_id = (await client.threads.create())["thread_id"]
    cron: Any = await client.crons.create_for_thread(
        thread_id,
        "agent",
        schedule="* * * * * *",
        input=said("Tick."),
        metadata={"mine": 1},
        multitask_strategy="reject",
    )
    async with asyncio.timeout(WITHIN_SECONDS):
        while not (runs := await client.runs.list(thread_id)):
            await asyncio.sleep(0.02)
        await client.crons.delete(cron["cron_id"])
        await post(client, thread_id, steer("Shorter!"))
        await post(client, thread_id, halt("no more"))
        await client.runs.join(thread_id, runs[0]["run_id"])

    [run] = await client.runs.list(thread_id)
    metadata: Any = run["metadata"]
    assert (run["status"], metadata["mine"], metadata["halt_reason"]) == ("success", 1, "no more")
    state: Any = await client.threads.get_state(thread_id)
    shown: Any = await client.http.get(f"/threads/{thread_id}/preemption")
    assert shown["pending"] == []
    assert sum(message["content"] == "Shorter!" for message in state["values"]["messages"]) == 1


async def test_pages_and_columns_are_as_asked_for(client: LangGraphClient) -> None:
    thread_id = (await client.threads.create())["thread_id"]
    runs = [await halted(client, thread_id, f"halt {n}") for n in range(3)]

    page: Any = await client.runs.list(thread_id, limit=2, offset=1)
    assert [(run["run_id"], run["metadata"]["halt_reason"]) for run in page] == [
        (runs[1], "halt 1"),
        (runs[0], "halt 0"),
    ]
    both: Any = await client.runs.list(thread_id, select=["run_id", "metadata"], limit=1)
    assert [run.keys() for run in both] == [{"run_id", "metadata"}]
    assert both[0]["metadata"]["halt_reason"] == "halt 2"
    alone: Any = await client.runs.list(thread_id, select=["metadata"], limit=1)
    assert [run.keys() for run in alone] == [{"metadata"}]
    assert alone[0]["metadata"]["halt_reason"] == "halt 2"
    without: Any = await client.runs.list(thread_id, select=["run_id", "status"], limit=1)
    assert without == [{"run_id": runs[2], "status": "success"}]
    assert await client.runs.list(thread_id, status="pending") == []
    single: Any = await client.http.get(f"/threads/{thread_id}/runs/{runs[0]}", params={"select": "metadata"})
    assert single == dict(await client.runs.get(thread_id, runs[0]))
    assert single["run_id"] == runs[0]


async def test_a_rollback_takes_the_run_and_what_was_steered_and_the_ledger_still_knows(
    client: LangGraphClient,
) -> None:
    thread_id, request = (await client.threads.create())["thread_id"], steer("Shorter!", id=str(uuid.uuid4()))

    async def ended() -> Any:
        report: Any = await client.http.get(f"/threads/{thread_id}/preemption")
        return report["handled"].get(request["id"])

    rolled_back = await client.runs.create(thread_id, "long", input=said("Tell me."))
    await post(client, thread_id, request)
    async with asyncio.timeout(WITHIN_SECONDS):
        while (outcome := await ended()) is None:
            await asyncio.sleep(0.02)
        await client.runs.wait(
            thread_id, "brief", input=said("Something else."), multitask_strategy="rollback"
        )
        await post(client, thread_id, request)  # a host that has not heard yet

    assert outcome["run_id"] == rolled_back["run_id"]
    assert await ended() == outcome
    [run] = await client.runs.list(thread_id)
    assert run["run_id"] != rolled_back["run_id"]
    values: Any = (await client.threads.get_state(thread_id))["values"]
    assert [message["type"] for message in values["messages"]] == ["human", "ai"]
    assert values["messages"][0]["content"] == "Something else."


def state(**values: Any) -> Any:
    return values


async def scheduled(client: LangGraphClient, thread_id: str, count: int) -> list[str]:
    """Makes runs that will not begin before the test is over; returns their ids."""
    runs = [
        await client.runs.create(thread_id, "waiting", input=said("Go on."), after_seconds=3600)
        for _ in range(count)
    ]
    return [run["run_id"] for run in runs]


async def test_the_oldest_of_many_halted_runs_still_says_so(waiting_server: DevServer) -> None:
    async with waiting_server.client() as client:
        thread_id = (await client.threads.create(graph_id="waiting"))["thread_id"]
        runs = await scheduled(client, thread_id, 3 * KEPT_RUNS)
        await client.runs.wait(thread_id, "waiting", input=state(halted_runs=runs))

        found = {
            run["run_id"]: run["metadata"] or {} for run in await client.runs.list(thread_id, limit=1000)
        }

        assert [found[run_id].get("halt_reason") for run_id in runs] == [
            f"halt {n}" for n in range(len(runs))
        ]
        assert len(found) == len(runs) + 1
        await client.threads.delete(thread_id)


async def test_a_list_of_runs_costs_about_what_it_costs_without_us(
    waiting_server: DevServer, server_without_midstream: DevServer
) -> None:
    """A generous bound, for a machine that has other things to do; `python -m bench.run_list` measures."""
    messages = [{"role": "user", "content": f"message {n}"} for n in range(1000)]

    async def prepared(on: LangGraphClient) -> str:
        thread_id = (await on.threads.create(graph_id="waiting"))["thread_id"]
        runs = await scheduled(on, thread_id, 99)
        await on.runs.wait(thread_id, "waiting", input=state(messages=messages, halted_runs=runs))
        return thread_id

    async def seconds(on: LangGraphClient, thread_id: str) -> float:
        began = time.perf_counter()
        assert len(await on.runs.list(thread_id, limit=100)) == 100
        return time.perf_counter() - began

    async with waiting_server.client() as with_us, server_without_midstream.client() as without:
        ours, own = await prepared(with_us), await prepared(without)
        ratios = sorted([await seconds(with_us, ours) / await seconds(without, own) for _ in range(31)])
        for client, thread_id in ((with_us, ours), (without, own)):
            await client.threads.delete(thread_id)
    assert ratios[15] < 2.6, ratios


# The middleware alone


class Runs:
    """A server of one thread whose runs it lists, in whatever form a test wants."""

    def __init__(self, *runs: dict[str, Any], single: bool = False) -> None:
        self.content: Any = runs[0] if single else list(runs)
        self.headers: list[tuple[bytes, bytes]] = []
        self.status = 200
        self.pieces = 1
        self.asked: list[tuple[bytes, dict[bytes, bytes]]] = []

    @property
    def body(self) -> bytes:
        return json.dumps(self.content).encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append((scope["query_string"], dict(scope["headers"])))
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": self.status, "headers": headers + self.headers})
        size = -(-len(self.body) // self.pieces)
        for n in range(self.pieces):
            part = self.body[n * size : (n + 1) * size]
            await send({"type": "http.response.body", "body": part, "more_body": n < self.pieces - 1})


RUN = str(uuid.uuid4())
LIST = f"/threads/{THREAD_ID}/runs"


def keeping(server: Any, *, fails: bool = False) -> tuple[PreemptionMiddleware, Ledger]:
    saver = InMemorySaver()
    ledger = Ledger(saver, THREAD_ID)

    async def get_saver() -> Any:
        if fails:
            raise ConnectionError("no storage")
        return saver

    ledger.record_halt(HaltRecord(run_id=RUN, reason="enough ☃", node="model", at=1.0))
    return PreemptionMiddleware(server, get_saver=get_saver), ledger


@pytest.mark.parametrize("pieces", [1, 3])
async def test_the_answer_is_whole_and_says_its_own_length(pieces: int) -> None:
    server = Runs({"run_id": RUN, "metadata": {"a": 1}}, {"run_id": "other", "metadata": {}})
    server.pieces = pieces
    server.headers = [(b"x-pagination-total", b"2"), (b"access-control-allow-origin", b"*"), (b"etag", b"x")]
    app, _ = keeping(server)

    status, headers, body, _ = await call(app, "GET", LIST, headers=[(b"accept-encoding", b"gzip")])

    assert status == 200
    assert json.loads(body) == [
        {
            "run_id": RUN,
            "metadata": {"a": 1, "halt_reason": "enough ☃", "preemption": NEVER_HALTED},
        },
        {"run_id": "other", "metadata": {}},
    ]
    assert headers == {
        "content-type": "application/json",
        "x-pagination-total": "2",
        "access-control-allow-origin": "*",
        "content-length": str(len(body)),
    }
    assert server.asked == [(b"", {})]


async def test_an_answer_does_not_wait_for_what_the_server_does_after_it() -> None:
    server, arrived = Runs({"run_id": RUN, "metadata": {}}), asyncio.Event()

    async def busy(scope: Any, receive: Any, send: Any) -> None:
        await server(scope, receive, send)
        await asyncio.wait_for(arrived.wait(), WITHIN_SECONDS)

    async def told(message: Any) -> None:
        if message["type"] == "http.response.body" and not message["more_body"]:
            assert b"halt_reason" in message["body"]
            arrived.set()

    async def asked() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    app, _ = keeping(busy)
    scope = {"type": "http", "method": "GET", "path": LIST, "query_string": b"", "headers": []}
    await app(scope, asked, told)
    assert arrived.is_set()


UNTOUCHED: dict[str, dict[str, Any]] = {
    "an error": {"status": 404},
    "a compressed answer": {"headers": [(b"content-encoding", b"gzip")]},
    "an answer in a row of pieces": {"status": 206, "pieces": 4},
    "storage that fails": {},
}


@pytest.mark.parametrize("name", UNTOUCHED)
async def test_whatever_goes_wrong_with_our_part_the_servers_own_answer_arrives(name: str) -> None:
    servers = []
    for _ in range(2):
        server = Runs({"run_id": RUN, "metadata": {"a": 1}})
        vars(server).update(UNTOUCHED[name])
        servers.append(server)
    app, _ = keeping(servers[0], fails=name == "storage that fails")

    assert await call(app, "GET", LIST) == await call(servers[1], "GET", LIST)


ODD = ["halt_reason", {"run_id": RUN, "halt_reason": None}]


async def test_a_run_without_metadata_and_an_answer_that_is_no_run_stay_as_they_are() -> None:
    for content in ({"run_id": RUN}, {"detail": RUN}, [], [{"run_id": "other", "metadata": {}}], None, ODD):
        server = Runs({}, single=True)
        server.content = content
        app, _ = keeping(server)
        _, _, body, _ = await call(app, "GET", f"{LIST}/{RUN}")
        assert json.loads(body) == content


@pytest.mark.parametrize("method", ["POST", "DELETE", "HEAD"])
async def test_other_methods_of_the_same_routes_are_not_held_back(method: str) -> None:
    server = Runs({"run_id": RUN, "metadata": {}})
    server.pieces = 3
    app, _ = keeping(server)
    assert await call(app, method, LIST) == await call(server, method, LIST)


# The ledger's notes


def test_notes_of_runs_outlive_any_number_of_roots() -> None:
    saver = InMemorySaver()
    ledger = Ledger(saver, THREAD_ID)
    for n in range(150):
        ledger.record_halt(HaltRecord(run_id=f"run {n}", reason=f"halt {n}", node="model", at=float(n)))
        for k in range(n % 3):
            ledger.record_seal(seal_note(f"run {n}", f"m {n} {k}", float(n), is_empty=k == 1), ledger.view())
        ledger.rotate(ledger.view())

    view = ledger.view()
    assert len(view.halts) <= 2 * KEPT_RUNS + 1
    assert len(view.runs) <= 2 * KEPT_RUNS + 1
    assert metadata_of(ledger.runs()) == {
        f"run {n}": {
            "halt_reason": f"halt {n}",
            "preemption": {"seals": n % 3, "empty_boundaries": int(n % 3 == 2)},
        }
        for n in range(150)
    }


def test_pruning_a_thread_to_its_latest_keeps_what_waits_and_the_newest_notes(postgres_tables: str) -> None:
    with PostgresSaver.from_conn_string(postgres_tables) as saver:
        thread_id = str(uuid.uuid4())
        ledger = Ledger(saver, thread_id)
        for n in range(80):
            ledger.record_halt(HaltRecord(run_id=f"run {n}", reason="x", node="model", at=float(n)))
            ledger.rotate(ledger.view())
        waiting = ledger.append(steer("hello"))
        assert len(metadata_of(ledger.runs())) == 80

        saver.prune([thread_id], strategy="keep_latest")

        assert [entry.id for entry in ledger.requests()] == [waiting]
        kept = metadata_of(ledger.runs())
        assert kept.keys() >= {f"run {n}" for n in range(80 - KEPT_RUNS, 80)}
        assert kept.keys() < {f"run {n}" for n in range(80)}
        ledger.append(steer("and another"))
        assert len(ledger.requests()) == 2


def test_a_note_that_is_taken_again_counts_once() -> None:
    ledger = Ledger(InMemorySaver(), THREAD_ID)
    note = seal_note("run", "message", 1.0)
    before = ledger.view()
    for _ in range(3):
        ledger.record_seal(note, before)  # as one who has not seen the others
    for _ in range(40):
        ledger.append(steer("x"))
        ledger.append({"kind": "withdraw", "id": ledger.requests()[0].id})
    ledger.record_seal(note, ledger.view())
    assert metadata_of(ledger.runs()) == {"run": {"preemption": {"seals": 1, "empty_boundaries": 0}}}


async def test_a_seal_with_nothing_to_go_on_with_is_an_empty_boundary() -> None:
    saver, config = InMemorySaver(), thread()
    options = Preemption(boundary_hooks=[lambda boundary: None], should_preempt=lambda: True)
    graph = agent(FakeChatModel(answers=[["Once", ENDLESS]]), saver=saver, preemption=options)

    halted_state = (await graph.ainvoke(ASKED, config))["preemption"]["halt"]

    assert metadata_of(await ledger_of(saver, config).aruns()) == {
        halted_state["run_id"]: {
            "halt_reason": "preempt_incomplete",
            "preemption": {"seals": 1, "empty_boundaries": 1},
        }
    }


async def test_seals_of_parallel_agents_of_a_run_add_up() -> None:
    """Two agents seal in one run, each for its own request; their notes are those of the run."""
    ledger = Ledger(InMemorySaver(), THREAD_ID)
    before = ledger.view()
    await asyncio.gather(
        *(ledger.arecord_seal(seal_note("run", f"message {n}", float(n)), before) for n in range(2))
    )
    assert metadata_of(ledger.runs()) == {"run": {"preemption": {"seals": 2, "empty_boundaries": 0}}}


def test_the_ledger_of_another_thread_and_of_an_earlier_version_is_read_as_it_is() -> None:
    saver = InMemorySaver()
    ledger = Ledger(saver, THREAD_ID)
    ledger.record_halt(HaltRecord(run_id="run", reason="x", node="model", at=1.0))
    assert metadata_of(ledger.runs()) == {"run": {"halt_reason": "x", "preemption": NEVER_HALTED}}
    assert metadata_of(Ledger(saver, str(uuid.uuid4())).runs()) == {}


def test_the_servers_answer_is_only_written_anew_where_something_is_added() -> None:
    body = b'[ {"run_id": "a", "metadata": null} ]'
    assert with_metadata(body, {}) is None
    added = with_metadata(body, {"a": {"halt_reason": "x"}})
    assert added == b'[{"run_id":"a","metadata":{"halt_reason":"x"}}]'


@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_client_gave_a_run_under_our_names_is_shown_under_another(fails: bool) -> None:
    """A run that nobody halted has no halt reason, and nobody's words are lost."""
    given: dict[str, Any] = {
        "halt_reason": "mine",
        "client_halt_reason": {"a": 1},
        "preemption": [],
        "b": None,
    }
    server = Runs(
        {"run_id": "other", "metadata": given},
        {"run_id": RUN, "metadata": {"halt_reason": "mine"}},
        {"run_id": "third", "metadata": {"client_preemption": 1}},
    )
    app, _ = keeping(server, fails=fails)

    *_, body, _ = await call(app, "GET", LIST)

    ours = {} if fails else {"halt_reason": "enough ☃", "preemption": NEVER_HALTED}
    assert [run["metadata"] for run in json.loads(body)] == [
        {
            "client_client_halt_reason": "mine",
            "client_halt_reason": {"a": 1},
            "client_preemption": [],
            "b": None,
        },
        {"client_halt_reason": "mine", **ours},
        {"client_preemption": 1},
    ]


names = st.sampled_from(["a", "b"])
texts = st.sampled_from(
    ["", "x", "}", "{", '{"run_id":"a"', "\\", '"', "},", '},"multitask_strategy":', '"kwargs":{']
)
lookalikes = st.recursive(
    texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["run_id", "metadata", "kwargs", "multitask_strategy", "halt_reason", 'a"kwargs', "}"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
"""What a host may have put into a run, in whatever likeness of a run."""

rows = st.fixed_dictionaries(
    {
        "run_id": names,
        "thread_id": texts,
        "metadata": st.none()
        | st.dictionaries(st.sampled_from(["k", "halt_reason"]), lookalikes, max_size=2),
        "status": texts | st.none() | st.integers(-(2**63), 2**64 - 1),
        "kwargs": st.dictionaries(texts, lookalikes, max_size=3) | lookalikes,
        "multitask_strategy": st.just("enqueue") | texts,
    }
)
FIELDS = ["run_id", "thread_id", "metadata", "status", "kwargs", "multitask_strategy"]


@given(
    content=rows | st.lists(rows, max_size=3),
    columns=st.just(FIELDS) | st.permutations(FIELDS),
    count=st.just(6) | st.integers(1, 6),
)
@settings(max_examples=examples(300), deadline=None)
def test_however_an_answer_is_written_anew_it_says_the_same(
    content: Any, columns: list[str], count: int
) -> None:
    """All runs of a list have the same columns, in one order, whichever that is."""
    said: dict[str, Any] = {"a": {"halt_reason": "x", "preemption": {"seals": 1}}, "c": {"halt_reason": "y"}}

    def selected(row: dict[str, Any]) -> dict[str, Any]:
        return {name: row[name] for name in columns[:count]}

    content = [selected(row) for row in content] if isinstance(content, list) else selected(content)
    expected = copy.deepcopy(content)
    for row in expected if isinstance(expected, list) else [expected]:
        given: Any = row.get("metadata") or {}
        if "halt_reason" in given:
            given["client_halt_reason"] = given.pop("halt_reason")
        if row.get("run_id") in said and "metadata" in row:
            row["metadata"] = {**given, **said[row["run_id"]]}

    answer = with_metadata(json.dumps(content, separators=(",", ":")).encode(), said)
    assert json.loads(answer or json.dumps(content)) == expected


def test_what_a_run_was_started_with_stays_as_the_server_spelled_it() -> None:
    """It is most of a long list, and is not read: with a number that no parser would give back so."""
    body = (
        b'[{"run_id":"a","metadata":{},"kwargs":{"input":{"n":1.10,"kwargs":{}}},"multitask_strategy":"x"}]'
    )
    added = with_metadata(body, {"a": {"halt_reason": "x"}})
    assert added == body.replace(b'"metadata":{}', b'"metadata":{"halt_reason":"x"}')


async def test_a_bare_http_client_gets_a_true_content_length(hosted_url: str) -> None:
    async with httpx.AsyncClient(base_url=hosted_url) as http, get_client(url=hosted_url) as client:
        thread_id = (await client.threads.create())["thread_id"]
        run_id = await halted(client, thread_id, "enough")
        for encoding in ("gzip", "identity"):
            answer = await http.get(
                f"/threads/{thread_id}/runs",
                headers={"accept-encoding": encoding, "origin": "https://ui.example"},
            )
            assert answer.headers["access-control-allow-origin"] in ("*", "https://ui.example")
            assert answer.json()[0]["run_id"] == run_id
            if "content-encoding" not in answer.headers:
                assert int(answer.headers["content-length"]) == len(answer.content)
