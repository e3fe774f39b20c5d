"""The middleware in a real `langgraph dev`, reached by the stock SDK and by plain HTTP."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_client, get_sync_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import ConflictError, NotFoundError

from support.dev_server import DevServer
from support.ledgers import halt, steer, withdraw
from support.waiting_graph import waiting_graph

APP = {"app": "midstream.server:app"}
WITHIN_SECONDS = 20


@pytest.fixture
def server(waiting_server: DevServer) -> DevServer:
    return waiting_server


@pytest.fixture
def bare(server_without_midstream: DevServer) -> DevServer:
    return server_without_midstream


@pytest.fixture
async def client(server: DevServer) -> AsyncIterator[LangGraphClient]:
    async with server.client() as opened:
        yield opened


@pytest.fixture
async def http(server: DevServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url) as opened:
        yield opened


async def new_thread(client: LangGraphClient) -> str:
    thread_id: str = (await client.threads.create(graph_id="waiting"))["thread_id"]
    return thread_id


async def run(client: LangGraphClient, thread_id: str, **state: Any) -> None:
    async with asyncio.timeout(WITHIN_SECONDS):
        await client.runs.wait(thread_id, "waiting", input=state, raise_error=False)


@dataclass
class Busy:
    """A run that waits until it is let go."""

    client: LangGraphClient
    server: DevServer
    thread_id: str
    run_id: str
    gate: str

    async def let_go(self) -> dict[str, Any]:
        """Ends the wait and returns the run as it ended."""
        (self.server.folder / self.gate).touch()
        async with asyncio.timeout(WITHIN_SECONDS):
            await self.client.runs.join(self.thread_id, self.run_id)
        ended: dict[str, Any] = dict(await self.client.runs.get(self.thread_id, self.run_id))
        return ended


async def busy(client: LangGraphClient, server: DevServer, thread_id: str) -> Busy:
    gate = f"gate-{uuid.uuid4()}"
    state = {"wait_for": str(server.folder / gate)}
    started = await client.runs.create(thread_id, "waiting", input=state)
    async with asyncio.timeout(WITHIN_SECONDS):
        while (await client.runs.get(thread_id, started["run_id"]))["status"] != "running":
            await asyncio.sleep(0.01)
        # What it began with is written beside it.
        while (await client.threads.get_state(thread_id))["next"] != ["work"]:
            await asyncio.sleep(0.01)
    return Busy(client, server, thread_id, started["run_id"], gate)


async def update(client: LangGraphClient, thread_id: str, request: Any) -> dict[str, Any]:
    answer: Any = await client.threads.update_state(thread_id, {"preemption": request})
    accepted: dict[str, Any] = answer["preemption"]
    return accepted


async def report(client: LangGraphClient, thread_id: str) -> dict[str, Any]:
    found: dict[str, Any] = await client.http.get(f"/threads/{thread_id}/preemption")
    return found


def said(report: dict[str, Any]) -> list[Any]:
    return [entry["messages"][0]["content"] for entry in report["pending"]]


async def test_a_busy_thread_takes_a_request_and_its_run_goes_on(
    client: LangGraphClient, server: DevServer
) -> None:
    thread_id = await new_thread(client)
    held = await busy(client, server, thread_id)
    before = await client.threads.get_history(thread_id)

    with pytest.raises(ConflictError, match="in-flight runs"):
        await client.threads.update_state(thread_id, {"messages": []})
    accepted = await update(client, thread_id, steer("hello"))
    stop = await update(client, thread_id, halt("enough"))

    assert accepted == {"id": accepted["id"], "status": "accepted", "thread_status": "busy"}
    pending = (await report(client, thread_id))["pending"]
    assert [entry["id"] for entry in pending] == [accepted["id"], stop["id"]]
    assert await client.threads.get_history(thread_id) == before
    assert (await held.let_go())["status"] == "success"
    assert (await client.threads.get(thread_id))["status"] == "idle"


async def test_the_answer_has_the_shape_of_a_state_update(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    ordinary = await client.threads.update_state(thread_id, {"messages": []}, as_node="work")

    answer: dict[str, Any] = dict(await client.threads.update_state(thread_id, {"preemption": steer("x")}))

    assert ordinary.keys() <= answer.keys()
    assert ordinary["checkpoint"].keys() <= answer["checkpoint"].keys()
    assert answer["checkpoint"]["checkpoint_ns"] == "preemption"
    assert answer["preemption"]["thread_status"] == "idle"


async def test_a_paused_thread_keeps_its_interrupt(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    await run(client, thread_id, ask="sure?")
    before = await client.threads.get(thread_id)
    [interrupt] = [i for task in before["interrupts"].values() for i in task]

    assert (await update(client, thread_id, steer("hello")))["thread_status"] == "interrupted"

    after = await client.threads.get(thread_id)
    assert after["interrupts"] == before["interrupts"]
    async with asyncio.timeout(WITHIN_SECONDS):
        await client.runs.wait(thread_id, "waiting", command={"resume": {interrupt["id"]: "yes"}})
    assert (await client.threads.get(thread_id))["status"] == "idle"
    assert said(await report(client, thread_id)) == ["hello"]


async def test_a_failed_thread_takes_a_request_too(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    await run(client, thread_id, fail="boom")
    assert (await update(client, thread_id, steer("hello")))["thread_status"] == "error"


async def test_a_request_changes_nothing_of_the_thread_but_when_it_was_updated(
    client: LangGraphClient,
) -> None:
    """The authorising call is an update of the thread's metadata by nothing."""
    thread_id = await new_thread(client)
    await client.threads.update(thread_id, metadata={"color": "blue"})
    await run(client, thread_id)
    before: dict[str, Any] = dict(await client.threads.get(thread_id))

    await update(client, thread_id, steer("hello"))

    after: dict[str, Any] = dict(await client.threads.get(thread_id))
    assert {name for name in after if after[name] != before.get(name)} == {"updated_at"}
    assert after["metadata"]["color"] == "blue"


async def test_an_id_is_taken_once_also_by_the_sync_client(
    client: LangGraphClient, server: DevServer
) -> None:
    thread_id = await new_thread(client)
    request = steer("hello", id=str(uuid.uuid4()))
    await update(client, thread_id, request)

    def again() -> Any:
        with get_sync_client(url=server.url, api_key=None) as sync_client:
            return sync_client.threads.update_state(thread_id, {"preemption": request})

    answer = await asyncio.to_thread(again)

    assert answer["preemption"]["id"] == request["id"]
    assert said(await report(client, thread_id)) == ["hello"]


async def test_a_request_can_be_withdrawn_once_and_only_before_it_is_applied(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    accepted = await update(client, thread_id, steer("never mind"))

    await update(client, thread_id, withdraw(accepted["id"]))
    await update(client, thread_id, withdraw(accepted["id"]))
    shown = await report(client, thread_id)
    assert shown["pending"] == []
    assert shown["handled"][accepted["id"]]["outcome"] == "withdrawn"

    with pytest.raises(NotFoundError, match="knows no request"):
        await update(client, thread_id, withdraw(str(uuid.uuid4())))


async def test_what_the_graph_has_handled_is_not_shown_as_pending(client: LangGraphClient) -> None:
    """A run that ended has not marked its last requests on the ledger: its state knows them."""
    thread_id = await new_thread(client)
    accepted = await update(client, thread_id, steer("hello"))
    handled = {"outcome": "sealed", "run_id": "r", "node": "work", "message_ids": ["m"], "accepted_at": 1.0}

    await run(client, thread_id, handled={accepted["id"]: handled})

    assert await report(client, thread_id) == {
        "thread_status": "idle",
        "pending": [],
        "handled": {accepted["id"]: handled},
        "halts": [],
    }
    with pytest.raises(ConflictError, match="has ended as 'sealed'"):
        await update(client, thread_id, withdraw(accepted["id"]))


async def test_what_was_withdrawn_while_a_run_applied_it_was_applied(client: LangGraphClient) -> None:
    """The run had read the ledger just before: the thread's state has the last word."""
    thread_id = await new_thread(client)
    name = (await update(client, thread_id, steer("hello")))["id"]
    await update(client, thread_id, withdraw(name))
    handled = {"outcome": "entry", "run_id": "r", "node": "work", "message_ids": ["m"], "accepted_at": 1.0}

    await run(client, thread_id, handled={name: handled})

    assert (await report(client, thread_id))["handled"] == {name: handled}


ID = str(uuid.uuid4())
BAD: dict[str, tuple[dict[str, Any], int, str]] = {
    "unknown kind": ({"preemption": {"kind": "stop"}}, 422, "preemption.kind: must be one of"),
    "no kind": ({"preemption": {"messages": "x"}}, 422, "preemption.kind: must be one of"),
    "no object": ({"preemption": "stop"}, 422, "preemption: must be an object"),
    "null": ({"preemption": None}, 422, "preemption: must be an object"),
    "empty": ({"preemption": steer("")}, 422, "preemption.messages.0.content: must not be empty"),
    "white space": ({"preemption": steer(" \n ")}, 422, "preemption.messages.0.content: must not be empty"),
    "no messages": ({"preemption": {"kind": "steer", "messages": []}}, 422, "preemption.messages: "),
    "another's role": (
        {"preemption": {"kind": "steer", "messages": [{"role": "assistant", "content": "x"}]}},
        422,
        "preemption.messages.0.role: Input should be 'user'",
    ),
    "no reason": ({"preemption": {"kind": "halt"}}, 422, "preemption.reason: Field required"),
    "an id of another kind": ({"preemption": steer("x", id="7")}, 422, "preemption.id: must be a UUID"),
    "withdraw of nothing": ({"preemption": {"kind": "withdraw"}}, 422, "preemption.id: Field required"),
    "an unknown field": ({"preemption": steer("x", to="all")}, 422, "preemption.to: Extra inputs"),
    "other keys": ({"preemption": steer("x"), "messages": []}, 422, "values: a request stands alone"),
    "too large": ({"preemption": steer("x" * 65_536)}, 413, "preemption: a request is at most 65536"),
    "too large, in company": (
        {"messages": ["x" * 300_000], "preemption": steer("x")},
        413,
        "preemption: a request is at most 65536",
    ),
    "unknown to withdraw": ({"preemption": withdraw(ID)}, 404, "knows no request"),
}
OPTIONS = {"checkpoint": {"checkpoint_id": ID}, "checkpoint_id": ID, "as_node": "work"}


@pytest.mark.parametrize("name", BAD)
async def test_bad_input_gets_a_clear_error_and_changes_nothing(
    client: LangGraphClient, http: httpx.AsyncClient, name: str
) -> None:
    values, status, words = BAD[name]
    thread_id = await new_thread(client)
    before = await everything(client, thread_id)

    answer = await http.post(f"/threads/{thread_id}/state", json={"values": values})

    assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text
    assert await everything(client, thread_id) == before


@pytest.mark.parametrize("option", OPTIONS)
async def test_options_of_a_state_update_have_no_meaning_for_a_request(
    client: LangGraphClient, http: httpx.AsyncClient, option: str
) -> None:
    thread_id = await new_thread(client)
    before = await everything(client, thread_id)
    body = {"values": {"preemption": steer("x")}, option: OPTIONS[option]}

    answer = await http.post(f"/threads/{thread_id}/state", json=body)

    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(f"{option}: a request is put beside the thread's state")
    assert await everything(client, thread_id) == before


async def everything(client: LangGraphClient, thread_id: str) -> Any:
    thread: Any = await client.threads.get(thread_id)
    thread.pop("updated_at")
    history = await client.threads.get_history(thread_id)
    return thread, history, await report(client, thread_id)


async def test_the_thirty_third_request_is_refused(client: LangGraphClient, http: httpx.AsyncClient) -> None:
    thread_id = await new_thread(client)
    for number in range(32):
        await update(client, thread_id, steer(str(number)))
    before = await everything(client, thread_id)

    body = {"values": {"preemption": steer("one too many")}}
    answer = await http.post(f"/threads/{thread_id}/state", json=body)

    assert (answer.status_code, "32 pending requests" in answer.json()["detail"]) == (429, True)
    assert await everything(client, thread_id) == before


@pytest.mark.parametrize("thread_id", [str(uuid.UUID(int=404)), "no-uuid", "%E2%98%83"])
@pytest.mark.parametrize("request_", [steer("x"), {"kind": "stop"}], ids=["good", "bad"])
async def test_an_unknown_thread_is_met_with_the_servers_own_words(
    http: httpx.AsyncClient, thread_id: str, request_: Any
) -> None:
    own = await http.get(f"/threads/{thread_id}")

    answer = await http.post(f"/threads/{thread_id}/state", json={"values": {"preemption": request_}})

    assert own.status_code in (404, 422)
    assert (answer.status_code, answer.content) == (own.status_code, own.content)


async def test_a_malformed_body_is_met_with_the_servers_own_words(
    client: LangGraphClient, http: httpx.AsyncClient, bare: DevServer
) -> None:
    thread_id = await new_thread(client)
    for body in (
        b'{"values": {"preemption": {"kind": "halt"',
        b"",
        b"\xff\xfe",
        b'{"values": {"preemption": NaN}}',
    ):
        answer = await http.post(f"/threads/{thread_id}/state", content=body)
        async with httpx.AsyncClient(base_url=bare.url) as stock:
            own = await stock.post(f"/threads/{thread_id}/state", content=body)
        assert (answer.status_code, answer.content) == (422, own.content)


async def test_a_copied_thread_has_none_of_the_requests(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    await run(client, thread_id)
    await update(client, thread_id, steer(f"for {thread_id}"))

    # The SDK's `threads.copy` returns nothing.
    copied: Any = await client.http.post(f"/threads/{thread_id}/copy", json=None)
    copy_id = copied["thread_id"]

    nothing: dict[str, Any] = {"pending": [], "handled": {}, "halts": []}
    assert await report(client, copy_id) == {"thread_status": "idle", **nothing}
    await update(client, copy_id, steer("for the copy"))
    assert said(await report(client, copy_id)) == ["for the copy"]
    assert said(await report(client, thread_id)) == [f"for {thread_id}"]


async def test_a_thread_that_comes_again_begins_anew(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    await update(client, thread_id, steer("hello"))

    await client.threads.delete(thread_id)
    with pytest.raises(NotFoundError):
        await update(client, thread_id, steer("hello"))
    await client.threads.create(thread_id=thread_id, graph_id="waiting")

    assert (await report(client, thread_id))["pending"] == []


async def test_other_spellings_of_a_threads_id_reach_the_same_thread(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    await update(client, thread_id.upper(), steer("hello"))
    assert said(await report(client, thread_id)) == ["hello"]


async def test_a_browser_on_another_origin_may_read_the_answer(
    client: LangGraphClient, http: httpx.AsyncClient
) -> None:
    thread_id = await new_thread(client)
    path, headers = f"/threads/{thread_id}/state", {"origin": "https://ui.example"}
    own = await http.get(f"/threads/{thread_id}", headers=headers)
    for request in (steer("x"), {"kind": "stop"}):
        answer = await http.post(path, json={"values": {"preemption": request}}, headers=headers)
        for name in ("access-control-allow-origin", "access-control-expose-headers"):
            assert answer.headers[name] == own.headers[name]


# Pass-through


def scrubbed(value: bytes | str) -> str:
    """Without what differs from one call to the next: ids, times and the port."""
    text = value.decode() if isinstance(value, bytes) else value
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<id>", text)
    text = re.sub(r"[0-9a-f]{32}", "<id>", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:.]+(\+00:00|Z)?", "<time>", text)
    text = re.sub(r"127\.0\.0\.1:\d+", "<host>", text)
    return re.sub(r"\d{10,}(\.\d+)?|\d+\.\d+", "<number>", text)


async def story(server: DevServer) -> list[Any]:
    """What a host sees that uses much of the server, and nothing of ours."""
    seen: list[Any] = []
    async with httpx.AsyncClient(base_url=server.url, timeout=WITHIN_SECONDS) as http:

        async def step(method: str, path: str, **more: Any) -> httpx.Response:
            answer = await http.request(method, path, **more)
            headers = {name: scrubbed(text) for name, text in answer.headers.items() if name != "date"}
            if "allow" in headers:  # A set's order, which differs from process to process.
                headers["allow"] = ", ".join(sorted(headers["allow"].split(", ")))
            seen.append((method, scrubbed(path), answer.status_code, headers, scrubbed(answer.content)))
            return answer

        thread = (await step("POST", "/threads", json={"metadata": {"graph_id": "waiting"}})).json()
        state = f"/threads/{thread['thread_id']}/state"
        message = {"role": "user", "content": "preemption", "id": "m1"}
        await step("POST", state, json={"values": {"messages": [message]}, "as_node": "work"})
        large = {**message, "content": 'it said: "preemption": ' + "x" * 500_000, "id": "m2"}
        await step("POST", state, json={"values": {"messages": [large]}, "as_node": "work"})
        await step("GET", state)
        await step("POST", state, json={"values": [{"messages": []}, {"preemption": {}}], "as_node": "work"})
        await step("POST", state, json={"values": {"nothing": {"preemption": 1}}})
        await step("POST", state, json={"values": None})
        await step("POST", state, content=b"{")
        await step("OPTIONS", state, headers={"origin": "https://a", "access-control-request-method": "POST"})
        await step("GET", f"/threads/{thread['thread_id']}")
        await step("POST", f"/threads/{thread['thread_id']}/history", json={})
        run = {"assistant_id": "waiting", "input": {"ask": "sure?"}, "stream_mode": ["updates", "values"]}
        await step("POST", f"/threads/{thread['thread_id']}/runs/stream", json=run)
        await step("PUT", state)
        await step("GET", "/info")
        await step("GET", "/nowhere")
    return seen


async def test_everything_else_is_as_without_us(server: DevServer, bare: DevServer) -> None:
    ours, own = await story(server), await story(bare)
    for one, other in zip(ours, own, strict=True):
        assert one == other


@pytest.mark.parametrize("transport", ["sse", "websocket"])
async def test_the_newer_protocol_passes(server: DevServer, bare: DevServer, transport: Any) -> None:
    async def seen(host: DevServer) -> list[Any]:
        async with (
            host.client() as client,
            asyncio.timeout(WITHIN_SECONDS),
            client.threads.stream(assistant_id="waiting", transport=transport) as thread,
        ):
            await thread.run.start(input={"messages": [{"role": "user", "content": "hi", "id": "m"}]})
            return [scrubbed(json.dumps(values)) async for values in thread.values]

    ours = await seen(server)
    assert ours == await seen(bare)
    assert ours


async def test_events_are_not_held_back(client: LangGraphClient, server: DevServer) -> None:
    thread_id = await new_thread(client)
    gate = server.folder / f"gate-{uuid.uuid4()}"
    events = []
    async with asyncio.timeout(WITHIN_SECONDS):
        async for event in client.runs.stream(
            thread_id, "waiting", input={"wait_for": str(gate)}, stream_mode="values"
        ):
            events.append(event.event)
            if event.event == "values":
                gate.touch()  # Only when the first values arrived may the run end.
    assert events[:2] == ["metadata", "values"]


# Other ways to deploy

WAYS: dict[str, dict[str, Any]] = {
    "as it comes": APP,
    "middleware first, auth on custom routes": {
        **APP,
        "middleware_order": "middleware_first",
        "enable_custom_route_auth": True,
    },
    "auth first": {**APP, "middleware_order": "auth_first"},
    "auth first and everywhere, mounted": {
        **APP,
        "middleware_order": "auth_first",
        "enable_custom_route_auth": True,
        "mount_prefix": "/api/v1",
    },
}


@pytest.fixture(scope="module", params=WAYS)
def guarded(request: pytest.FixtureRequest) -> Iterator[tuple[DevServer, str]]:
    """A server where ann's threads are ann's, and the prefix of its routes."""
    http = copy.deepcopy(WAYS[request.param])
    with DevServer(waiting_graph(http=http, auth=True)) as running:
        yield running, http.get("mount_prefix", "")


async def test_a_stranger_neither_writes_nor_reads(guarded: tuple[DevServer, str]) -> None:
    server, prefix = guarded
    base_url = server.url + prefix
    ann = httpx.AsyncClient(base_url=base_url, headers={"authorization": "Bearer ann"})
    bob = httpx.AsyncClient(base_url=base_url, headers={"authorization": "Bearer bob"})
    nobody = httpx.AsyncClient(base_url=base_url)
    async with ann, bob, nobody:
        thread = (await ann.post("/threads", json={"metadata": {"graph_id": "waiting"}})).json()
        path = f"/threads/{thread['thread_id']}"
        mine = await ann.post(f"{path}/state", json={"values": {"preemption": steer("hello")}})
        assert mine.status_code == 200, mine.text
        assert mine.json()["preemption"]["thread_status"] == "idle"
        request_id = mine.json()["preemption"]["id"]
        before = (await ann.get(f"{path}/preemption")).json()
        assert said(before) == ["hello"]

        for stranger, status in (bob, 404), (nobody, 401):
            own = await stranger.get(path)
            assert own.status_code == status
            for request in (steer("x"), halt("x"), withdraw(request_id)):
                answer = await stranger.post(f"{path}/state", json={"values": {"preemption": request}})
                assert (answer.status_code, answer.content) == (own.status_code, own.content)
            for answer in (
                await stranger.get(f"{path}/preemption"),
                await stranger.post(f"{path}/state", json={"values": {"preemption": {"kind": "stop"}}}),
                await stranger.post(f"{path}/state", json={"values": {"preemption": steer("x" * 70_000)}}),
            ):
                assert (answer.status_code, answer.content) == (own.status_code, own.content)

        assert (await ann.get(f"{path}/preemption")).json() == before
        assert (await ann.get(path)).json()["metadata"]["owner"] == "ann"


async def test_who_may_steer_anothers_running_thread_does_not_come_to_own_it(
    guarded: tuple[DevServer, str],
) -> None:
    server, prefix = guarded
    url = server.url + prefix

    def client_of(name: str) -> LangGraphClient:
        return get_client(url=url, api_key=None, headers={"authorization": f"Bearer {name}"})

    async with client_of("ann") as ann, client_of("admin") as admin, client_of("reader") as reader:
        thread_id = (await ann.threads.create(graph_id="waiting"))["thread_id"]
        held = await busy(ann, server, thread_id)
        assert (await update(admin, thread_id, steer("by another")))["thread_status"] == "busy"
        with pytest.raises(httpx.HTTPStatusError) as own:
            await reader.threads.update_state(thread_id, {"wait_for": ""})
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await update(reader, thread_id, steer("by one who may only look"))
        assert refused.value.response.status_code == own.value.response.status_code == 403
        assert said(await report(reader, thread_id)) == ["by another"]

        thread: Any = await ann.threads.get(thread_id)
        assert thread["metadata"]["owner"] == "ann"
        assert (await held.let_go())["status"] == "success"


@pytest.fixture(scope="module")
def guarded_bare() -> Iterator[DevServer]:
    """The same without midstream."""
    with DevServer(waiting_graph(http={}, auth=True)) as running:
        yield running


async def test_a_stranger_learns_nothing_of_anothers_runs(
    guarded: tuple[DevServer, str], guarded_bare: DevServer
) -> None:
    """Every answer that a stranger gets is, byte for byte, that of a server without us."""

    async def seen(base_url: str) -> list[Any]:
        answers: list[Any] = []
        ann, bob = (
            httpx.AsyncClient(base_url=base_url, headers={"authorization": f"Bearer {who}"}, timeout=20)
            for who in ("ann", "bob")
        )
        nobody = httpx.AsyncClient(base_url=base_url)
        async with ann, bob, nobody:
            path = f"/threads/{(await ann.post('/threads', json={})).json()['thread_id']}"
            later = {"assistant_id": "waiting", "input": {}, "after_seconds": 3600}
            run_id = (await ann.post(f"{path}/runs", json=later)).json()["run_id"]
            note = {"assistant_id": "waiting", "input": {"halted_runs": [run_id]}}
            await ann.post(f"{path}/runs/wait", json=note)
            [own] = [run for run in (await ann.get(f"{path}/runs")).json() if run["run_id"] == run_id]
            for stranger in (bob, nobody):
                for url in (f"{path}/runs", f"{path}/runs/{run_id}", f"{path}/runs?select=metadata"):
                    answer = await stranger.get(url)
                    answers.append((answer.status_code, scrubbed(answer.content)))
            await ann.delete(path)
        answers.append(own["metadata"].get("halt_reason"))
        return answers

    server, prefix = guarded
    *answers, reason = await seen(server.url + prefix)
    *without, no_reason = await seen(guarded_bare.url)

    assert (reason, no_reason) == ("halt 0", None)
    assert [status for status, _ in answers] == [404, 404, 404, 401, 401, 401]
    assert answers == without


async def test_code_within_the_server_needs_no_credentials(guarded: tuple[DevServer, str]) -> None:
    server, prefix = guarded
    ann = httpx.AsyncClient(base_url=server.url + prefix, headers={"authorization": "Bearer ann"}, timeout=20)
    async with ann:
        thread = (await ann.post("/threads", json={})).json()
        path = f"/threads/{thread['thread_id']}"
        answer = await ann.post(f"{path}/runs/wait", json={"assistant_id": "posting", "input": {"ask": ""}})

        receipt = json.loads(answer.json()["ask"])
        assert receipt["thread_status"] == "busy"
        shown = (await ann.get(f"{path}/preemption")).json()
        assert [(entry["id"], *said({"pending": [entry]})) for entry in shown["pending"]] == [
            (receipt["id"], "from within")
        ]


async def test_a_saver_of_the_deployments_own_serves_too() -> None:
    with DevServer(waiting_graph(saver=True)) as server:
        async with server.client() as client:
            thread_id = await new_thread(client)
            held = await busy(client, server, thread_id)
            accepted = await update(client, thread_id, steer("hello"))
            assert (await held.let_go())["status"] == "success"
            assert [entry["id"] for entry in (await report(client, thread_id))["pending"]] == [accepted["id"]]
        assert (server.folder / "threads.db").exists()
