"""What it costs that 200 streams look for requests of other processes, and how soon they see one.

One API process and one queue worker, on a PostgreSQL and a Redis of the benchmark's own. All streams are long
and quiet: a word a second. The same streams run with preemption and without, in turns; what differs is the
looking. Then, with all streams looking, every one of them is steered once, at a random moment.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
from langgraph_sdk.client import LangGraphClient

from bench.measure import median, quantile
from bench.postgres import postgres
from bench.report import Check, Table, arguments, publish
from bench.servers import cpu_seconds
from support.held_graph import Holds
from support.server_threads import Started, post
from support.stack import Stack

STREAMS = 200
SECONDS = 8
POLL_INTERVAL = 0.2
LATENCY_SLACK = 0.1
STEERED_WITHIN_SECONDS = 15.0
SETTLED_AFTER_SECONDS = 3.0
WITH, WITHOUT = "looking", "silent"

GRAPH = f"""
import asyncio
import time
from pathlib import Path

from langgraph.graph import END, START, StateGraph

from chat_models.scripted import ScriptedChatModel
from midstream import MidstreamState, ModelNode, Preemption

FOLDER = Path(__file__).parent.resolve()


def note(text):
    with (FOLDER / "ended").open("a") as file:
        file.write(text + "\\n")


class NotedChatModel(ScriptedChatModel):
    async def _astream(self, messages, stop=None, run_manager=None, **kwargs):
        try:
            async for chunk in super()._astream(messages, stop, run_manager, **kwargs):
                yield chunk
        finally:
            # By the clock that all processes share.
            ended = time.time()
            asked = messages[-1].id
            await asyncio.to_thread(note, f"{{asked}} {{ended}}")


def agent(**options):
    builder = StateGraph(MidstreamState)
    preemption = Preemption(poll_interval={POLL_INTERVAL}, **options)
    model = NotedChatModel(words=600, interval_ms=1000)
    builder.add_node("model", ModelNode(model, preemption=preemption))
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    return builder.compile()


looking = agent()
silent = agent(enabled=False)
"""

FILES: dict[str, Any] = {
    "graph.py": GRAPH,
    "langgraph.json": {
        "dependencies": ["."],
        "graphs": {WITH: "./graph.py:looking", WITHOUT: "./graph.py:silent"},
        "http": {"app": "midstream.server:app"},
    },
}


ENVIRONMENT = {"REDIS_MAX_CONNECTIONS": "1000"}
"""The runtime holds one connection for each run, of 64 by default."""


@dataclass(frozen=True, slots=True)
class Span:
    """Some seconds of all streams."""

    queries_per_second: float
    worker_cpu: float
    """Processor seconds of the worker for each second."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Steered:
    """One stream that was steered: seconds until its provider's stream was closed."""

    from_posting: float
    from_answer: float


async def started(client: LangGraphClient, graph: str, streams: int) -> list[Started]:
    async def one() -> Started:
        thread_id, message_id = (await client.threads.create())["thread_id"], str(uuid.uuid4())
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Talk.", "id": message_id}]}
        # Somebody reads the tokens, with preemption and without.
        run = await client.runs.create(thread_id, graph, input=asked, stream_mode="messages-tuple")
        return Started(thread_id, run["run_id"], message_id)

    runs: list[Any] = []
    for _ in range(0, streams, 20):
        runs += await asyncio.gather(*(one() for _ in range(min(20, streams - len(runs)))))
    async with asyncio.timeout(180):
        while (n := await running(client, runs)) < streams:
            print(n, flush=True)
            await asyncio.sleep(2)
    return runs


async def running(client: LangGraphClient, runs: Sequence[Started]) -> int:
    """Returns how many of the runs a worker has taken up."""
    found = await asyncio.gather(*(client.runs.get(run.thread_id, run.run_id) for run in runs))
    return sum(run["status"] == "running" for run in found)


async def transactions(database: psycopg.AsyncConnection[Any]) -> int:
    query = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
    await database.execute("select pg_stat_force_next_flush()")
    row = await (await database.execute(query)).fetchone()
    assert row is not None
    return int(row[0])


async def span(stack: Stack, seconds: float) -> Span:
    pid = stack.workers[0].pid
    async with await psycopg.AsyncConnection.connect(stack.database_uri, autocommit=True) as database:
        before = (await transactions(database), cpu_seconds(pid), time.perf_counter())
        await asyncio.sleep(seconds)
        after = (await transactions(database), cpu_seconds(pid), time.perf_counter())
    taken = after[2] - before[2]
    return Span((after[0] - before[0]) / taken, (after[1] - before[1]) / taken, taken)


async def steered(
    client: LangGraphClient, holds: Holds, runs: Sequence[Started], order: random.Random
) -> list[Steered]:
    async def one(run: Started) -> Steered:
        await asyncio.sleep(order.random() * STEERED_WITHIN_SECONDS)
        posted = time.time()
        await post(client, run.thread_id, "halt", reason="measured")
        answered = time.time()
        at = await holds.ended(run.message_id)
        return Steered(at - posted, at - answered)

    return list(await asyncio.gather(*(one(run) for run in runs)))


async def measured(options: argparse.Namespace, uri: str) -> tuple[dict[str, list[Span]], list[Steered]]:
    order = random.Random(options.seed)
    spans: dict[str, list[Span]] = {WITH: [], WITHOUT: []}
    latencies: list[Steered] = []
    for _ in range(options.rounds):
        for graph in [WITH]:
            with Stack(
                FILES, line=options.line, postgres_uri=uri, jobs=options.streams, env=ENVIRONMENT
            ) as stack:
                async with stack.client(timeout=120) as client:
                    runs = await started(client, graph, options.streams)
                    await asyncio.sleep(SETTLED_AFTER_SECONDS)
                    spans[graph].append(await span(stack, options.seconds))
                    print(f"{graph}: {spans[graph][-1]}", flush=True)
                    if graph == WITH:
                        latencies += await steered(client, Holds(stack.folder), runs[:60], order)
    return spans, latencies


def tables(spans: dict[str, list[Span]], latencies: Sequence[Steered], streams: int) -> list[Table]:
    costs = [
        [
            graph,
            f"{median([each.queries_per_second for each in seen]):.0f}",
            f"{median([each.worker_cpu for each in seen]) * 100:.0f} %",
        ]
        for graph, seen in spans.items()
        if seen
    ]
    moments = [
        (name, sorted(getattr(each, name) * 1e3 for each in latencies))
        for name in ("from_posting", "from_answer")
    ]
    return [
        Table(f"{streams} quiet streams on one worker", ["graph", "queries/s", "worker's cpu"], costs),
        Table(
            "milliseconds until the stream was closed",
            ["", "p50", "p90", "p99", "max"],
            [
                [name, *(f"{quantile(seen, share):.0f}" for share in (0.5, 0.9, 0.99, 1.0))]
                for name, seen in moments
            ],
        ),
    ]


async def main(options: argparse.Namespace) -> None:
    with postgres() as uri:
        spans, latencies = await measured(options, uri)
    publish(
        "polling",
        tables(spans, latencies, options.streams),
        options=vars(options),
        samples={
            **{name: [asdict(each) for each in seen] for name, seen in spans.items()},
            "latencies": [asdict(each) for each in latencies],
        },
        checks=[
            Check(
                "seconds from the host's post to the end of the stream, across processes, p99",
                POLL_INTERVAL + LATENCY_SLACK,
                quantile([each.from_posting for each in latencies], 0.99),
            )
        ],
    )


if __name__ == "__main__":
    options = arguments(__doc__, rounds=1)
    options.streams, options.seconds = STREAMS, SECONDS
    options.line = os.environ.get("MIDSTREAM_LINES", "0.16").rpartition(",")[2]
    options.streams = int(os.environ.get("MIDSTREAM_STREAMS", STREAMS))
    asyncio.run(main(options))
