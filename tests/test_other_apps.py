"""`PreemptionMiddleware` in apps of other people, on real servers."""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.dev_server import DevServer
from support.ledgers import steer
from support.other_apps import APPS, deployment

UI = {"origin": "https://ui.example"}


@pytest.fixture(scope="module", params=APPS)
def theirs(request: pytest.FixtureRequest) -> Iterator[tuple[DevServer, str]]:
    """A server with such an app, and the prefix of its routes."""
    if "fastapi" in request.param and importlib.util.find_spec("fastapi") is None:
        pytest.skip("fastapi is not installed")
    with DevServer(deployment(request.param)) as running:
        yield running, APPS[request.param][1].get("mount_prefix", "")


async def test_their_routes_middleware_lifespan_and_cors_work_beside_ours(
    theirs: tuple[DevServer, str],
) -> None:
    server, prefix = theirs
    async with httpx.AsyncClient(base_url=server.url + prefix, headers=UI, timeout=20) as http:
        hello = await http.get("/hello")
        assert (hello.json(), hello.headers["x-stamp"]) == ({"opened": True}, "theirs")

        thread_id = (await http.post("/threads", json={"metadata": {"graph_id": "waiting"}})).json()[
            "thread_id"
        ]
        path = f"/threads/{thread_id}"
        accepted = await http.post(f"{path}/state", json={"values": {"preemption": steer("hello")}})
        assert accepted.status_code == 200, accepted.text
        assert accepted.json()["preemption"]["status"] == "accepted"
        refused = await http.post(f"{path}/state", json={"values": {"preemption": {}}})
        assert (refused.status_code, "preemption.kind" in refused.json()["detail"]) == (422, True)
        report = await http.get(f"{path}/preemption")
        assert [entry["messages"][0]["content"] for entry in report.json()["pending"]] == ["hello"]

        later: dict[str, Any] = {"assistant_id": "waiting", "input": {}, "after_seconds": 3600}
        run_id = (await http.post(f"{path}/runs", json=later)).json()["run_id"]
        note = {"assistant_id": "waiting", "input": {"halted_runs": [run_id]}}
        assert (await http.post(f"{path}/runs/wait", json=note)).status_code == 200
        run = await http.get(f"{path}/runs/{run_id}", headers={"accept-encoding": "gzip"})
        assert run.json()["metadata"]["halt_reason"] == "halt 0"

        for answer in (accepted, refused, report, run):
            assert answer.headers["access-control-allow-origin"] == "https://ui.example"
            assert answer.headers["x-stamp"] == "theirs"
        stranger = await http.get(f"{path}/preemption", headers={"origin": "https://evil.example"})
        assert stranger.headers.get("access-control-allow-origin") != "https://evil.example"
        missing = await http.get(f"/threads/{uuid.uuid4()}/preemption")
        assert missing.status_code == 404


def test_their_lifespan_ends_with_the_server(theirs: tuple[DevServer, str]) -> None:
    server, _ = theirs
    server.stop()
    assert (server.folder / "closed").exists()
