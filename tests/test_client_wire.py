"""What the client sends, how often, and what it makes of refusals and of broken connections."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import respx
from langgraph_sdk import get_sync_client
from langgraph_sdk.errors import (
    AuthenticationError,
    ConflictError,
    InternalServerError,
    PermissionDeniedError,
)

from midstream_client import MidstreamError, NotInstalledError, RequestRefusedError
from midstream_client._flow import own_headers
from support.fake_server import URL, FakeServer, FakeThread, refused
from support.hosted import Host, calls, said

NAME = "0b7c6f0e-6f1c-4d43-9a53-0d3f3d3c8a11"


@pytest.fixture(params=["async", "sync"])
async def host(request: pytest.FixtureRequest) -> AsyncIterator[Host]:
    made = Host(URL, request.param)
    yield made
    await made.close()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with respx.mock(assert_all_called=False) as router:
        yield FakeServer(router)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midstream_client._flow.RETRY_SECONDS", 0.001)


async def started(host: Host, server: FakeServer) -> str:
    """Returns a thread whose server the client knows already."""
    thread_id = await host.thread()
    await host.midstream.steer(thread_id, "first")
    server.received.clear()
    return thread_id


async def test_each_request_is_one_state_update(host: Host, server: FakeServer) -> None:
    thread_id = await started(host, server)
    await host.midstream.steer(thread_id, "x", run_id=NAME, node="writer", id=NAME)
    await host.midstream.halt(thread_id, "enough", id=NAME.replace("0b", "1b"))
    await host.midstream.withdraw(thread_id, NAME)

    path = f"/threads/{thread_id}/state"
    steer = {
        "id": NAME,
        "run_id": NAME,
        "node": "writer",
        "kind": "steer",
        "messages": [{"role": "user", "content": "x"}],
    }
    halt = {"id": NAME.replace("0b", "1b"), "kind": "halt", "reason": "enough"}
    assert server.received == [
        ("POST", path, {"values": {"preemption": steer}}),
        ("POST", path, {"values": {"preemption": halt}}),
        ("POST", path, {"values": {"preemption": {"kind": "withdraw", "id": NAME}}}),
    ]


class AskingAgain(FakeServer):
    """Its graph finds every answer wrong."""

    def _run(self, thread: FakeThread, body: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
        asked = thread.interrupts
        run, parts = super()._run(thread, body)
        thread.interrupts = asked or thread.interrupts
        return run, parts


async def test_what_is_asked_again_was_not_answered(host: Host) -> None:
    with respx.mock(assert_all_called=False) as router:
        AskingAgain(router)
        thread_id = await host.thread()
        await host.events(thread_id, "brief", input=said(calls(("ask_user", {"question": "which?"}))))
        (pending,) = await host.midstream.interrupts(thread_id)

        resumed = await host.midstream.resume(thread_id, "brief", {pending.id: {"choice": "red"}})

    assert (resumed.answered, resumed.open) == ((), (pending,))


async def test_a_broken_connection_is_tried_again_with_the_same_id(host: Host, server: FakeServer) -> None:
    thread_id = await started(host, server)
    server.next_answers = [httpx.ReadError("cut"), httpx.Response(503), httpx.Response(502)]

    receipt = await host.midstream.steer(thread_id, "x")

    assert [body["values"]["preemption"]["id"] for _, _, body in server.received] == [receipt.id] * 4


async def test_after_the_last_try_the_error_is_the_connections_own(host: Host, server: FakeServer) -> None:
    thread_id = await started(host, server)
    server.next_answers = [httpx.ReadError("gone")] * 4
    with pytest.raises(httpx.ReadError, match="gone"):
        await host.midstream.steer(thread_id, "x")
    server.next_answers = [httpx.Response(504)] * 4
    with pytest.raises(InternalServerError):
        await host.midstream.pending_requests(thread_id)


@pytest.mark.parametrize("failure", [httpx.ConnectError("refused"), httpx.ReadTimeout("late")], ids=repr)
async def test_what_the_sdk_or_the_host_has_set_a_limit_to_is_not_tried_again(
    host: Host, server: FakeServer, failure: Exception
) -> None:
    """The SDK itself tries for 7.5 s to connect, and an answer may take as long as its client says."""
    thread_id = await started(host, server)
    for call in (
        lambda: host.midstream.steer(thread_id, "x"),
        lambda: host.midstream.interrupts(thread_id),
        lambda: host.midstream.send(thread_id, "agent", "x"),
        lambda: host.events(thread_id, "agent", input={"messages": []}),
        lambda: host.events(thread_id, "agent", input={"messages": []}, protocol="threads"),
        lambda: host.events(thread_id, "agent", run_id=NAME),
    ):
        server.received.clear()
        server.next_answers = [failure]
        with pytest.raises(type(failure)):
            await call()
        assert len(server.received) == 1


async def test_a_run_that_takes_longer_than_one_answer_may_is_waited_for(
    host: Host, server: FakeServer
) -> None:
    thread_id = await host.thread()
    await host.events(thread_id, "agent", input=said(calls(("ask_user", {"question": "which?"}))))
    (pending,) = await host.midstream.interrupts(thread_id)
    server.next_answers = [
        httpx.Response(200, json=server._state(server.threads[thread_id])),
        httpx.Response(200, json={"run_id": "r1", "status": "pending"}),
        httpx.ReadTimeout("late"),
        httpx.Response(200, json={"run_id": "r1", "status": "running"}),
        httpx.Response(503),
        httpx.Response(404, json={"detail": "rolled back"}),
    ]

    resumed = await host.midstream.resume(thread_id, "agent", {pending.id: {"choice": "red"}})

    assert (resumed.run_id, resumed.status, resumed.is_cancelled) == ("r1", "interrupted", True)


async def test_a_run_is_not_started_again_after_its_answer_was_lost(host: Host, server: FakeServer) -> None:
    thread_id = await started(host, server)

    run = {"run_id": "r1", "metadata": {"midstream_send_id": NAME}, "status": "running"}
    report = {"thread_status": "idle", "pending": [], "handled": {}, "halts": []}
    server.next_answers = [
        httpx.Response(200, json=report),
        httpx.Response(200, json=[]),
        httpx.ReadError("cut"),
        httpx.Response(200, json=[run]),
    ]
    sent = await host.midstream.send(thread_id, "agent", "x", id=NAME)

    assert (sent.how, sent.run_id) == ("started", "r1")
    posted = [path for method, path, _ in server.received if method == "POST"]
    assert posted == [f"/threads/{thread_id}/runs"]


async def test_an_answer_is_not_sent_twice(host: Host, server: FakeServer) -> None:
    thread_id = await host.thread()
    await host.events(thread_id, "agent", input=said(calls(("ask_user", {"question": "which?"}))))
    (pending,) = await host.midstream.interrupts(thread_id)
    server.received.clear()
    server.next_answers = [
        httpx.Response(200, json=server._state(server.threads[thread_id])),
        httpx.ReadError("cut"),
    ]

    with pytest.raises(httpx.ReadError):
        await host.midstream.resume(thread_id, "agent", {pending.id: {"choice": "red"}})

    assert [method for method, _, _ in server.received] == ["GET", "POST"]


async def test_a_server_without_midstream_is_told_apart_before_anything_is_written(
    host: Host, server: FakeServer
) -> None:
    server.is_installed = False
    thread_id = await host.thread()
    server.received.clear()
    for call in (
        host.midstream.steer(thread_id, "x"),
        host.midstream.halt(thread_id, "x"),
        host.midstream.withdraw(thread_id, NAME),
        host.midstream.send(thread_id, "agent", "x"),
        host.midstream.pending_requests(thread_id),
    ):
        with pytest.raises(NotInstalledError, match=r"midstream\.server:app") as missing:
            await call
        assert missing.value.thread_id == thread_id

    assert {method for method, _, _ in server.received} == {"GET"}


async def test_an_answer_that_says_nothing_of_the_request_is_a_server_without_midstream(
    host: Host, server: FakeServer
) -> None:
    thread_id = await started(host, server)
    server.next_answers = [httpx.Response(200, json={"checkpoint": {}})]
    with pytest.raises(NotInstalledError):
        await host.midstream.steer(thread_id, "x")


@pytest.mark.parametrize("status", [404, 409, 413, 422, 429])
async def test_midstreams_own_refusals_have_one_error(host: Host, server: FakeServer, status: int) -> None:
    thread_id = await started(host, server)
    server.next_answers = [refused(status, "because", NAME, "sealed" if status == 409 else None)]

    with pytest.raises(RequestRefusedError, match=rf"{NAME}.*\({status}\): because") as error:
        await host.midstream.withdraw(thread_id, NAME)

    refusal = error.value
    assert (refusal.thread_id, refusal.request_id, refusal.status) == (thread_id, NAME, status)
    assert (refusal.reason, refusal.outcome) == ("because", "sealed" if status == 409 else None)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, AuthenticationError),
        (403, PermissionDeniedError),
        (409, ConflictError),
        (500, InternalServerError),
    ],
)
async def test_the_servers_own_errors_pass(
    host: Host, server: FakeServer, status: int, kind: type[Exception]
) -> None:
    thread_id = await started(host, server)
    for call in (host.midstream.steer, host.midstream.halt):
        server.next_answers = [httpx.Response(status, json={"detail": "no"})]
        with pytest.raises(kind) as error:
            await call(thread_id, "x")
        assert not isinstance(error.value, MidstreamError)


async def test_a_thread_id_is_one_segment_of_the_path(host: Host, server: FakeServer) -> None:
    with pytest.raises(httpx.HTTPStatusError):
        await host.midstream.pending_requests("../assistants")
    assert server.received[0][1] == "/threads/..%2Fassistants/preemption"


async def test_an_old_outcome_is_found_in_the_threads_state(host: Host, server: FakeServer) -> None:
    thread_id = await host.thread()
    receipt = await host.midstream.steer(thread_id, "x")
    thread = server.threads[thread_id]
    await host.events(thread_id, "agent", input=said("Hello"))
    remembered = dict(thread.handled)
    report = {"thread_status": "idle", "pending": [], "handled": {}, "halts": []}
    server.next_answers = [httpx.Response(200, json=report)]

    outcome = await host.midstream.outcome(receipt)

    assert (outcome.outcome, outcome.run_id) == ("entry", remembered[receipt.id]["run_id"])
    server.next_answers = [httpx.Response(200, json=report)]
    with pytest.raises(RequestRefusedError, match="knows no request"):
        await host.midstream.outcome(receipt.model_copy(update={"id": str(uuid.uuid4())}))


async def test_an_old_halt_is_found_in_the_runs_metadata(host: Host, server: FakeServer) -> None:
    thread_id = await host.thread()
    run = {"run_id": "r1", "status": "success", "metadata": {"halt_reason": "long ago"}}
    server.threads[thread_id].runs = [run]

    assert await host.midstream.halt_reason(thread_id, "r1") == "long ago"


def test_a_websocket_is_given_what_the_host_has_given_its_client() -> None:
    given = {"x-tenant": "acme", "authorization": "Bearer ann"}
    with get_sync_client(url=URL, api_key="key", headers=given) as client:
        assert own_headers(client.http.client.headers) == {**given, "x-api-key": "key"}
