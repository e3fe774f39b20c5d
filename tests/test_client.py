"""The host's client: what it sends, what it makes of the answer, and a real server."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import respx
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import (
    BadRequestError,
    ConflictError,
    NotFoundError,
    RateLimitError,
    UnprocessableEntityError,
)
from pydantic import ValidationError

import midstream_client
from midstream_client import Midstream, MidstreamError, NotInstalledError, UserMessage
from support.dev_server import DevServer

URL = "http://server.test"
THREAD_ID = "6f1f54b4-2f0c-4f6e-8f6e-000000000001"
ID = "0b6f3a52-6f0e-4a7e-9f53-0f1f2d3c4b5a"
RUN_ID = "7d9d7f0e-53a7-4f0e-9f53-0f1f2d3c4b5a"
STATE = f"{URL}/threads/{THREAD_ID}/state"


@pytest.fixture
async def client() -> AsyncIterator[LangGraphClient]:
    async with get_client(url=URL, api_key=None) as opened:
        yield opened


@pytest.fixture
def midstream(client: LangGraphClient) -> Midstream:
    return Midstream(client)


@pytest.fixture
def route() -> Iterator[respx.Route]:
    """The only thing that the server has: the thread's state."""

    def accept(request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content)["values"]["preemption"]
        receipt = {"id": asked["id"], "status": "accepted", "thread_status": "busy"}
        return httpx.Response(200, json={"checkpoint": {}, "preemption": receipt})

    with respx.mock(assert_all_called=False) as server:
        yield server.post(STATE).mock(side_effect=accept)


def sent(route: respx.Route) -> Any:
    return json.loads(route.calls.last.request.content)


async def test_a_steer_is_a_stock_state_update(midstream: Midstream, route: respx.Route) -> None:
    receipt = await midstream.steer(THREAD_ID, "Shorter, please.", run_id=RUN_ID, node="writer", id=ID)

    assert sent(route) == {
        "values": {
            "preemption": {
                "id": ID,
                "kind": "steer",
                "messages": [{"role": "user", "content": "Shorter, please."}],
                "run_id": RUN_ID,
                "node": "writer",
            }
        }
    }
    assert (receipt.id, receipt.status, receipt.thread_status) == (ID, "accepted", "busy")
    assert route.call_count == 1


@pytest.mark.parametrize(
    "messages",
    [
        [UserMessage(content="one"), {"role": "user", "content": "two"}],
        [{"role": "human", "content": "one"}, {"content": "two"}],
        ({"role": "user", "content": "one"}, UserMessage(content="two")),
    ],
    ids=["models and dicts", "other words", "a tuple"],
)
async def test_messages_may_be_given_in_several_ways(
    midstream: Midstream, route: respx.Route, messages: Any
) -> None:
    await midstream.steer(THREAD_ID, messages)
    said = sent(route)["values"]["preemption"]["messages"]
    assert said == [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]


async def test_each_request_has_an_id_of_its_own(midstream: Midstream, route: respx.Route) -> None:
    receipts = [await midstream.steer(THREAD_ID, "again") for _ in range(3)]
    assert len({uuid.UUID(receipt.id) for receipt in receipts}) == 3


async def test_a_halt_and_a_withdraw_say_only_what_they_must(
    midstream: Midstream, route: respx.Route
) -> None:
    await midstream.halt(THREAD_ID, "enough", id=ID)
    assert sent(route) == {"values": {"preemption": {"id": ID, "kind": "halt", "reason": "enough"}}}

    await midstream.withdraw(THREAD_ID, ID)
    assert sent(route) == {"values": {"preemption": {"id": ID, "kind": "withdraw"}}}


async def test_what_can_be_seen_to_be_wrong_is_not_sent(midstream: Midstream, route: respx.Route) -> None:
    for call in (
        midstream.steer(THREAD_ID, " "),
        midstream.steer(THREAD_ID, []),
        midstream.steer(THREAD_ID, [{"role": "assistant", "content": "x"}]),
        midstream.steer(THREAD_ID, "x", run_id="7"),
        midstream.halt(THREAD_ID, ""),
        midstream.withdraw(THREAD_ID, "7"),
    ):
        with pytest.raises(ValidationError):
            await call
    assert route.call_count == 0


async def test_a_server_without_midstream_is_named_with_the_way_out(
    midstream: Midstream, route: respx.Route
) -> None:
    route.side_effect = None
    route.return_value = httpx.Response(200, json={"checkpoint": {"thread_id": THREAD_ID}})
    with pytest.raises(NotInstalledError, match=r"midstream\.server:app") as refused:
        await midstream.steer(THREAD_ID, "hello")
    assert refused.value.thread_id == THREAD_ID
    assert isinstance(refused.value, MidstreamError)

    # What a stock server says while an answer is streaming.
    route.return_value = httpx.Response(409, json={"detail": "Thread x has in-flight runs: []"})
    with pytest.raises(NotInstalledError) as refused:
        await midstream.halt(THREAD_ID, "enough")
    assert isinstance(refused.value.__cause__, ConflictError)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, BadRequestError),
        (404, NotFoundError),
        (422, UnprocessableEntityError),
        (429, RateLimitError),
    ],
)
async def test_the_servers_refusals_pass_unchanged(
    midstream: Midstream, route: respx.Route, status: int, error: type[Exception]
) -> None:
    route.side_effect = None
    route.return_value = httpx.Response(status, json={"detail": "the server's own words"})
    for call in (midstream.steer(THREAD_ID, "x"), midstream.withdraw(THREAD_ID, ID)):
        with pytest.raises(error, match="the server's own words"):
            await call


async def test_a_withdraw_that_comes_too_late_says_so(midstream: Midstream, route: respx.Route) -> None:
    route.side_effect = None
    route.return_value = httpx.Response(409, json={"detail": "it has ended as 'sealed'"})
    with pytest.raises(ConflictError, match="has ended as 'sealed'"):
        await midstream.withdraw(THREAD_ID, ID)


def test_options_are_named() -> None:
    for name in ("steer", "halt"):
        parameters = inspect.signature(getattr(Midstream, name)).parameters
        options = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
        assert options == ["run_id", "node", "id"]


def test_the_client_loads_nothing_of_the_servers_side() -> None:
    code = (
        "import sys, midstream_client\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('langgraph', 'langgraph_api', 'midstream')])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_what_is_exported_is_there() -> None:
    assert sorted(midstream_client.__all__) == midstream_client.__all__
    assert all(hasattr(midstream_client, name) for name in midstream_client.__all__)


async def test_on_a_real_server(waiting_server: DevServer) -> None:
    async with waiting_server.client() as client:
        midstream = Midstream(client)
        thread: Any = await client.threads.create(graph_id="waiting")
        thread_id = thread["thread_id"]

        receipt = await midstream.steer(thread_id, "hello")
        stop = await midstream.halt(thread_id, "enough")
        assert (receipt.status, receipt.thread_status) == ("accepted", "idle")
        assert await midstream.withdraw(thread_id, receipt.id) == receipt
        report: Any = await client.http.get(f"/threads/{thread_id}/preemption")
        assert [entry["id"] for entry in report["pending"]] == [stop.id]
        with pytest.raises(NotFoundError, match="knows no request"):
            await midstream.withdraw(thread_id, str(uuid.uuid4()))
        with pytest.raises(NotFoundError):
            await midstream.steer(str(uuid.uuid4()), "hello")


async def test_on_a_real_server_without_midstream(server_without_midstream: DevServer) -> None:
    async with server_without_midstream.client() as client:
        thread: Any = await client.threads.create(graph_id="waiting")
        thread_id = thread["thread_id"]
        gate = server_without_midstream.folder / f"gate-{thread_id}"
        run = await client.runs.create(thread_id, "waiting", input={"wait_for": str(gate)})
        with pytest.raises(NotInstalledError, match="does not run midstream"):
            await Midstream(client).steer(thread_id, "hello")
        gate.touch()
        await client.runs.join(thread_id, run["run_id"])
