"""What a host in error or in bad faith can send: the server stays up, small, and clear about it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from langgraph_sdk.client import LangGraphClient

from midstream_client.protocol import MAX_PENDING
from support.dev_server import DevServer
from support.ledgers import halt, steer, withdraw
from support.raw_http import Connection

MANY = int(os.environ.get("MIDSTREAM_ABUSE_REQUESTS", "10000"))
THREADS = int(os.environ.get("MIDSTREAM_ABUSE_THREADS", "2000"))
FUZZ_SECONDS = float(os.environ.get("MIDSTREAM_FUZZ_SECONDS", "30" if os.environ.get("CI") else "10"))
FUZZ_SEED = int(os.environ.get("MIDSTREAM_FUZZ_SEED", "0"))
AT_ONCE = 32


@pytest.fixture
async def http(waiting_server: DevServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=waiting_server.url, timeout=30) as opened:
        yield opened


@pytest.fixture
async def client(waiting_server: DevServer) -> AsyncIterator[LangGraphClient]:
    async with waiting_server.client() as opened:
        yield opened


def resident_mb(server: DevServer) -> float:
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def new_thread(http: httpx.AsyncClient) -> str:
    thread_id: str = (await http.post("/threads", json={"metadata": {"graph_id": "waiting"}})).json()[
        "thread_id"
    ]
    return thread_id


async def post(http: httpx.AsyncClient, thread_id: str, request: Any) -> httpx.Response:
    return await http.post(f"/threads/{thread_id}/state", json={"values": {"preemption": request}})


async def main_namespace(client: LangGraphClient, thread_id: str) -> Any:
    thread: Any = await client.threads.get(thread_id)
    thread.pop("updated_at")
    return thread, await client.threads.get_history(thread_id)


@pytest.mark.timeout(400)  # so many take a busy machine minutes
async def test_ten_thousand_requests_on_one_thread_leave_it_small(
    http: httpx.AsyncClient, client: LangGraphClient, waiting_server: DevServer
) -> None:
    """One in four is withdrawn again, so that the ledger is written all the while."""
    thread_id = await new_thread(http)
    await client.threads.update_state(thread_id, {"messages": []}, as_node="work")
    before = await main_namespace(client, thread_id)
    counts: dict[int, int] = {}
    path = f"/threads/{thread_id}/state"

    async def some(count: int) -> None:
        waiting: list[str] = []
        async with Connection(waiting_server.url) as wire:
            for n in range(count):
                request = steer(f"{n} " + "x" * 200) if n % 4 or not waiting else withdraw(waiting.pop())
                status, answer = await wire.post(path, {"values": {"preemption": request}})
                counts[status] = counts.get(status, 0) + 1
                if status == 200 and request["kind"] == "steer":
                    waiting.append(answer["preemption"]["id"])

    await some(200)
    memory = resident_mb(waiting_server)
    slowest = 0.0

    async def other_traffic(done: asyncio.Event) -> None:
        nonlocal slowest
        while not done.is_set():
            began = time.monotonic()
            assert (await http.get("/ok")).status_code == 200
            slowest = max(slowest, time.monotonic() - began)
            await asyncio.sleep(0.05)

    done = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(other_traffic(done))
        async with asyncio.TaskGroup() as posts:
            for _ in range(8):
                posts.create_task(some((MANY - 200) // 8))
        done.set()

    assert counts.keys() == {200, 429}
    assert sum(counts.values()) == MANY
    report = (await http.get(f"/threads/{thread_id}/preemption")).json()
    # Eight at once may each have seen room for one more.
    assert MAX_PENDING <= len(report["pending"]) < MAX_PENDING + 8
    assert len(report["handled"]) <= 200
    assert await main_namespace(client, thread_id) == before
    assert slowest < 2
    assert resident_mb(waiting_server) - memory < 100


async def test_thousands_of_threads_are_steered_at_once(
    http: httpx.AsyncClient, waiting_server: DevServer
) -> None:
    memory = resident_mb(waiting_server)
    numbers, threads = iter(range(THREADS)), dict[int, str]()

    async def some() -> None:
        async with Connection(waiting_server.url) as wire:
            for n in numbers:
                _, thread = await wire.post("/threads", {"metadata": {"graph_id": "waiting"}})
                threads[n] = thread["thread_id"]
                update = {"values": {"preemption": steer(f"for {n}")}}
                status, _ = await wire.post(f"/threads/{threads[n]}/state", update)
                assert status == 200

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    for n in random.Random(0).sample(range(THREADS), 10):
        report = (await http.get(f"/threads/{threads[n]}/preemption")).json()
        assert [entry["messages"][0]["content"] for entry in report["pending"]] == [f"for {n}"]
    # A thread itself takes some 20 KB of the in-memory server.
    assert resident_mb(waiting_server) - memory < 50 + THREADS * 0.1


async def test_a_body_that_never_ends_costs_nothing_but_its_connection(
    http: httpx.AsyncClient, waiting_server: DevServer
) -> None:
    """Forty callers who say a word and then fall silent, and one who does not stop talking."""
    thread_id = await new_thread(http)
    host, port = waiting_server.url.removeprefix("http://").split(":")
    head = (
        f"POST /threads/{thread_id}/state HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        'content-length: 60000\r\n\r\n{"values": {"preemption": {"kind": "steer", "messages": "'
    ).encode()
    silent = [socket.create_connection((host, int(port))) for _ in range(40)]
    try:
        for each in silent:
            each.sendall(head)

        async def endless() -> AsyncIterator[bytes]:
            yield b'{"values": {"preemption": {"kind": "steer", "messages": "'
            for _ in range(4000):
                yield b"x" * 16_384

        memory = resident_mb(waiting_server)
        answer = await http.post(f"/threads/{thread_id}/state", content=endless())
        assert (answer.status_code, "at most 65536 bytes" in answer.text) == (413, True)
        assert (await post(http, thread_id, steer("hello"))).status_code == 200
        assert resident_mb(waiting_server) - memory < 30
    finally:
        for each in silent:
            each.close()

    report = (await http.get(f"/threads/{thread_id}/preemption")).json()
    assert [entry["messages"][0]["content"] for entry in report["pending"]] == ["hello"]


TEXTS = {
    "emoji": "👩‍👩‍👧 🏳️‍🌈",
    "right to left": "\u202e\u05e9\u05dc\u05d5\u05dd\u202c",
    "a NUL": "a\0b",
    "control characters": "\x01\x1b[31m\x7f\u2028",
    "combining": "Z̸̧͎͍a̵l̴g̷o",
    "beyond the plane": "\U0010ffff\ufffe",
}


@pytest.mark.parametrize("name", TEXTS)
async def test_any_text_comes_back_as_it_was_said(http: httpx.AsyncClient, name: str) -> None:
    text, thread_id = TEXTS[name], await new_thread(http)
    request_id = str(uuid.uuid4())

    assert (await post(http, thread_id, steer(text, id=request_id, node=text))).status_code == 200
    assert (await post(http, thread_id, halt(text))).status_code == 200

    pending = (await http.get(f"/threads/{thread_id}/preemption")).json()["pending"]
    assert pending[0]["messages"] == [{"role": "user", "content": text}]
    assert (pending[0]["node"], pending[1]["reason"]) == (text, text)
    assert (await post(http, thread_id, withdraw(request_id))).status_code == 200


async def test_half_a_character_is_no_text(http: httpx.AsyncClient) -> None:
    """A lone surrogate is JSON to some parsers; the server's refuses it, and says so in its own words."""
    thread_id = await new_thread(http)
    for field in ("messages", "id", "run_id", "node", "reason", "kind"):
        request = {**steer("x"), field: "\ud800"}
        body = json.dumps({"values": {"preemption": request}}).encode()
        answer = await http.post(f"/threads/{thread_id}/state", content=body)
        assert (answer.status_code, answer.json()) == (422, {"detail": "Invalid JSON in request body"})


IDS = ["7", "", " ", "0" * 36, "null", "../../x", "%00", "☃", "a" * 5000, str(uuid.UUID(int=0)) + "0"]


@pytest.mark.parametrize("name", IDS, ids=lambda name: repr(name[:12]))
async def test_an_id_of_another_kind_is_refused_in_words(http: httpx.AsyncClient, name: str) -> None:
    thread_id = await new_thread(http)
    for request in (steer("x", id=name), steer("x", run_id=name), withdraw(name)):
        answer = await post(http, thread_id, request)
        assert (answer.status_code, answer.json()["detail"].startswith("preemption.")) == (422, True)
    for url in ("preemption", "runs", f"runs/{uuid.uuid4()}"):
        answer = await http.get(httpx.URL(str(http.base_url), path=f"/threads/{name}/{url}"))
        assert answer.status_code in (404, 405, 422), answer.text


# Fuzz

words = st.sampled_from(
    ["steer", "halt", "withdraw", "user", "assistant", "text", "", " ", "☃\0", "preemption"]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | words
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | words, inner, max_size=3)
    ),
    max_leaves=10,
)
ids = st.uuids().map(str) | st.uuids().map(lambda each: each.hex.upper()) | words
blocks = st.fixed_dictionaries({"type": words}, optional={"text": st.text(max_size=9) | anything})
wire_messages = st.fixed_dictionaries(
    {"content": st.text(max_size=9) | st.lists(blocks | anything, max_size=2)},
    optional={"role": words, "id": anything},
)
requests = st.fixed_dictionaries(
    {"kind": st.sampled_from(["steer", "halt", "withdraw"]) | anything},
    optional={
        "id": ids | anything,
        "messages": st.text(max_size=9) | st.lists(wire_messages, max_size=3) | anything,
        "reason": st.text(max_size=9) | anything,
        "run_id": ids | anything,
        "node": words | anything,
        "extra": anything,
    },
)
said = st.text(min_size=1, max_size=9)
addressed = {"id": st.uuids().map(str), "run_id": st.none() | st.uuids().map(str), "node": st.none() | said}
good_requests = st.one_of(
    st.fixed_dictionaries({"kind": st.just("steer"), "messages": said}, optional=addressed),
    st.fixed_dictionaries({"kind": st.just("halt"), "reason": said}, optional=addressed),
)
updates = st.fixed_dictionaries(
    {"values": st.fixed_dictionaries({"preemption": requests | anything}, optional={"messages": anything})},
    optional={"as_node": anything, "checkpoint": anything, "checkpoint_id": anything, "metadata": anything},
)
bodies = (updates | good_requests.map(lambda each: {"values": {"preemption": each}})).map(
    lambda value: json.dumps(value).encode()
)


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """A body with some bytes changed, put in, or left out."""
    body = bytearray(draw(bodies))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(body) - 1)))
        body[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(body)


def test_no_body_is_a_servers_error_or_a_change_of_the_thread(waiting_server: DevServer) -> None:
    """`MIDSTREAM_FUZZ_SEED` chooses the bodies, `MIDSTREAM_FUZZ_SECONDS` how long new ones are made."""
    with httpx.Client(base_url=waiting_server.url, timeout=20) as http:

        def new() -> str:
            thread_id: str = http.post("/threads", json={"metadata": {"graph_id": "waiting"}}).json()[
                "thread_id"
            ]
            http.post(f"/threads/{thread_id}/state", json={"values": {"messages": []}, "as_node": "work"})
            return thread_id

        def shown(thread_id: str) -> Any:
            thread = http.get(f"/threads/{thread_id}").json()
            thread.pop("updated_at")
            return thread, http.get(f"/threads/{thread_id}/history").json()

        state: dict[str, Any] = {"thread": new(), "taken": 0}
        before = shown(state["thread"])
        statuses: dict[int, int] = {}
        ends = time.monotonic() + FUZZ_SECONDS

        def is_ours(body: bytes) -> bool:
            try:
                values = json.loads(body)["values"]
            except (ValueError, TypeError, KeyError):
                return False
            return isinstance(values, dict) and "preemption" in values

        @seed(FUZZ_SEED)
        @settings(
            max_examples=10**6,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(body=bodies | mangled() | st.binary(max_size=40))
        def fuzz(body: bytes) -> None:
            nonlocal before
            if time.monotonic() > ends:
                raise _Over
            answer = http.post(f"/threads/{state['thread']}/state", content=body)
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
            if not is_ours(body):  # the server's own matter; it may be a good update of the state
                before = shown(state["thread"]) if answer.status_code == 200 else before
                return
            assert answer.status_code < 500, (body, answer.text)
            if answer.status_code == 200:
                assert answer.json()["preemption"]["status"] == "accepted", body
                state["taken"] += 1
            else:
                assert isinstance(answer.json()["detail"], str), body
            if answer.status_code == 200 or sum(statuses.values()) % 20 == 0:
                assert shown(state["thread"]) == before, body
            if state["taken"] == MAX_PENDING:
                state.update(thread=new(), taken=0)
                before = shown(state["thread"])

        with contextlib.suppress(_Over):
            fuzz()
        print("seed", FUZZ_SEED, "bodies by status", statuses)
        assert statuses.keys() >= {200, 422}


class _Over(Exception):  # noqa: N818 -- not a failure
    """The time is up."""
