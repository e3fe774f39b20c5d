"""What an operator sees: logs, counters and spans, and the metadata of the LangSmith run."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fakes import ENDLESS, FakeChatModel
from midstream import Ledger, telemetry
from support.dev_server import DevServer
from support.hosted import DEPLOYMENT
from support.langsmith import Collector
from support.steering import ASKED, agent, halt, ledger_of, steer, thread

WITHIN_SECONDS = 30


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # The real provider can be set only once in a process.
    monkeypatch.setattr("opentelemetry.trace.get_tracer", provider.get_tracer)
    return exporter


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if hasattr(record, "preemption")]


async def test_each_step_of_a_request_is_one_line_and_one_span(
    caplog: pytest.LogCaptureFixture, spans: InMemorySpanExporter
) -> None:
    caplog.set_level(logging.INFO, logger="midstream")
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    ids: list[str] = []

    async def post(request: dict[str, Any]) -> None:
        ids.append(await ledger.aappend(request))

    model = FakeChatModel(
        answers=[
            ["Once", lambda: post(steer("Shorter!")), ENDLESS],
            ["Well", lambda: post(halt("the user left")), ENDLESS],
        ]
    )
    await agent(model, saver=saver).ainvoke(ASKED, config)

    lines = told(caplog)
    assert [line["preemption"] for line in lines] == [
        "accepted",
        "sealed",
        "boundary",
        "accepted",
        "sealed",
        "boundary",
        "halted",
    ]
    assert {line["thread_id"] for line in lines} == {config["configurable"]["thread_id"]}
    assert [line.get("request_id") or line["request_ids"] for line in lines] == [
        ids[0],
        [ids[0]],
        [ids[0]],
        ids[1],
        [ids[1]],
        [ids[1]],
        [ids[1]],
    ]
    assert lines[0]["kind"] == "steer"
    assert lines[2]["outcome"] == "sealed"
    assert lines[6]["reason"] == "the user left"
    assert all(line["duration_ms"] >= 0 for line in lines)
    assert {line["node"] for line in lines if line["preemption"] != "accepted"} == {"model"}
    assert "reason='the user left'" in caplog.records[-1].getMessage()

    assert [span.name for span in spans.get_finished_spans()] == [
        f"midstream.{line['preemption']}" for line in lines
    ]
    sealed = spans.get_finished_spans()[1]
    assert sealed.attributes is not None
    assert sealed.attributes["midstream.request_ids"] == (ids[0],)
    assert sealed.start_time is not None
    assert sealed.end_time is not None
    assert 0 <= sealed.end_time - sealed.start_time < WITHIN_SECONDS * 1e9


def test_telling_never_fails(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no exporter")

    monkeypatch.setattr("opentelemetry.trace.get_tracer", broken)
    telemetry.tell("halted", reason="a\nb\ud800☃", name="a field that a record has already")
    assert isinstance(Ledger(InMemorySaver(), "t").append(steer("x")), str)


def test_without_the_optional_packages_there_are_the_logs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger="midstream")
    monkeypatch.setattr(telemetry, "trace", None)
    monkeypatch.setattr(telemetry, "prometheus_client", None)
    telemetry._counts.cache_clear()
    try:
        telemetry.tell("halted", reason="enough", run_id=None)
    finally:
        telemetry._counts.cache_clear()
    [line] = told(caplog)
    assert line["message"] == "halted reason=enough"
    assert "run_id" not in line


# A server


@pytest.fixture(scope="module")
def observed() -> Iterator[tuple[DevServer, Collector]]:
    """A server that logs in JSON, and traces to a LangSmith of the test's own."""
    with Collector() as collector:
        env = {
            "LANGSMITH_TRACING": "true",
            "LANGSMITH_ENDPOINT": collector.url,
            "LANGSMITH_API_KEY": "of-a-test",
            "LOG_JSON": "true",
        }
        with DevServer(DEPLOYMENT, env=env) as server:
            yield server, collector


def logged(server: DevServer) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in server.log_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("logger") == "midstream" and "preemption" in line]


async def counted(server: DevServer) -> dict[str, float]:
    async with httpx.AsyncClient(base_url=server.url) as http:
        text = (await http.get("/metrics")).text
    found = re.findall(r"^(midstream_\S+) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found if "_created" not in name and "_bucket" not in name}


async def test_a_servers_own_logs_metrics_and_traces_show_what_was_done(
    observed: tuple[DevServer, Collector],
) -> None:
    server, collector = observed
    said: Any = {"messages": [{"role": "user", "content": "Tell me."}]}
    posts: list[dict[str, Any]] = [steer("Shorter!"), halt("the person left")]
    async with server.client() as client, asyncio.timeout(WITHIN_SECONDS):
        thread_id = (await client.threads.create())["thread_id"]
        seen_ids: set[str] = set()
        run_id = ""
        async for part in client.runs.stream(thread_id, "agent", input=said, stream_mode="messages-tuple"):
            if part.event == "metadata":
                run_id = part.data["run_id"]
            is_word = part.event == "messages" and part.data[0]["content"]
            # The first word of each answer.
            if is_word and posts and part.data[0]["type"] != "human" and part.data[0]["id"] not in seen_ids:
                seen_ids.add(part.data[0]["id"])
                await client.threads.update_state(thread_id, {"preemption": posts.pop(0)})
        async with httpx.AsyncClient(base_url=server.url) as http:
            path = f"/threads/{thread_id}/state"
            assert (await http.post(path, json={"values": {"preemption": {}}})).status_code == 422
        plain = await client.runs.create(thread_id, "brief", input=said)
        await client.runs.join(thread_id, plain["run_id"])
        own: Any = (await client.runs.get(thread_id, run_id))["metadata"]
        while (traced := collector.ended(run_id)) is None or collector.ended(plain["run_id"]) is None:
            await asyncio.sleep(0.05)

    noted = {"halt_reason": "the person left", "preemption": {"seals": 2, "empty_boundaries": 0}}
    assert {name: own[name] for name in noted} == noted
    metadata = traced["extra"]["metadata"]
    assert {name: metadata.get(name) for name in noted} == noted
    assert not noted.keys() & (collector.ended(plain["run_id"]) or {})["extra"]["metadata"].keys()
    assert (
        sum("halt_reason" in run.get("extra", {}).get("metadata", {}) for run in collector.runs.values()) == 1
    )

    lines = logged(server)
    assert [line["preemption"] for line in lines] == [
        *["accepted", "sealed", "boundary"] * 2,
        "halted",
        "refused",
    ]
    assert {line["thread_id"] for line in lines} == {thread_id}
    assert {line["run_id"] for line in lines if line["preemption"] in ("sealed", "halted")} == {run_id}
    assert lines[-1]["why"] == "invalid"
    assert await counted(server) == {
        'midstream_requests_total{kind="steer"}': 1,
        'midstream_requests_total{kind="halt"}': 1,
        'midstream_refusals_total{reason="invalid"}': 1,
        'midstream_seals_total{how="sealed"}': 2,
        'midstream_boundaries_total{outcome="sealed"}': 2,
        "midstream_halts_total": 1,
        "midstream_seal_latency_seconds_count": 2,
        "midstream_seal_latency_seconds_sum": pytest.approx(0.2, abs=0.2),
    }
