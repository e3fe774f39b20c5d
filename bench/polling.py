"""What it costs that many streams look for requests of other processes, and how soon they see one.

One API process and one queue worker, on a PostgreSQL and a Redis of the benchmark's own. All streams are long
and quiet: a word a second. The same streams run with preemption and without; what differs is the looking.
Then, with all streams looking, some of them are halted, at random moments.

A machine that has much else to do adds its own waits to each look; `chrt -r 1 python -m bench.polling` lets
the benchmark go first. The servers run from the environment that `make test-distributed` sets up.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg
from langgraph_sdk.client import LangGraphClient

from bench.measure import quantile
from bench.report import Check, Table, arguments, publish
from bench.servers import cpu_seconds
from bench.svg import Bar, bars
from support.held_graph import Holds
from support.postgres import postgres
from support.server_threads import Started, post
from support.stack import Stack

SECONDS = 10
HALTED = 100
HALTED_WITHIN_SECONDS, QUICK_HALTED_WITHIN_SECONDS = 50.0, 5.0
SETTLED_AFTER_SECONDS = 5.0
LATENCY_SLACK = 0.1
PROMISED = 200, 0.2
WITH, WITHOUT = "looking", "silent"

GRAPH = """
import asyncio
import os
import time
from pathlib import Path

from langgraph.graph import END, START, StateGraph

from chat_models.scripted import ScriptedChatModel
from midstream import MidstreamState, ModelNode, Preemption

FOLDER = Path(__file__).parent.resolve()


def note(text):
    with (FOLDER / "ended").open("a") as file:
        file.write(text + "\\n")


async def measure_lag(step=0.02):
    # By how much the event loop is late with a callback that does nothing, over and over.
    loop = asyncio.get_running_loop()
    with (FOLDER / "lag").open("a", buffering=1) as file:
        while True:
            due = loop.time() + step
            await asyncio.sleep(step)
            file.write(f"{time.time()} {loop.time() - due}\\n")


measuring = None


class NotedChatModel(ScriptedChatModel):
    async def _astream(self, messages, stop=None, run_manager=None, **kwargs):
        global measuring
        measuring = measuring or asyncio.create_task(measure_lag())
        try:
            async for chunk in super()._astream(messages, stop, run_manager, **kwargs):
                yield chunk
        finally:
            # By the clock that all processes share.
            ended = time.time()
            asked = messages[-1].id
            await asyncio.to_thread(note, f"{asked} {ended}")


def agent(**options):
    builder = StateGraph(MidstreamState)
    preemption = Preemption(poll_interval=float(os.environ["POLL_INTERVAL"]), **options)
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


LINE = "0.16"
"""The langgraph-api that is measured."""

ENVIRONMENT = {"REDIS_MAX_CONNECTIONS": "1000"}
"""The runtime holds one connection for each run, of 64 by default."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many streams there are, and how they look."""

    streams: int
    interval: float
    graph: str = WITH


SHAPES = (
    Shape(200, 0.2, WITHOUT),
    Shape(40, 0.2),
    Shape(*PROMISED),
    Shape(200, 1.0),
)


QUICK_SHAPES = (Shape(10, 0.2, WITHOUT), Shape(10, 0.2))


@dataclass(frozen=True, slots=True)
class Halted:
    """One stream that was halted: seconds until its provider's stream was closed."""

    from_posting: float
    from_answer: float
    lag: float
    """By how much the worker's event loop was late meanwhile with callbacks that do nothing, in all."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was seen of one shape."""

    shape: Shape
    queries_per_second: float
    worker_cpu: float
    """Processor seconds of the worker for each second."""

    load: float
    """The load average of the machine."""

    halted: Sequence[Halted]


async def started(client: LangGraphClient, graph: str, streams: int) -> list[Started]:
    async def one() -> Started:
        thread_id, message_id = (await client.threads.create())["thread_id"], str(uuid.uuid4())
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Talk.", "id": message_id}]}
        # Somebody reads the tokens, with preemption and without.
        run = await client.runs.create(thread_id, graph, input=asked, stream_mode="messages-tuple")
        return Started(thread_id, run["run_id"], message_id)

    runs: list[Started] = []
    for _ in range(0, streams, 20):
        runs += await asyncio.gather(*(one() for _ in range(min(20, streams - len(runs)))))
    async with asyncio.timeout(180):
        while await running(client, runs) < streams:  # noqa: ASYNC110 -- nothing here tells of a worker's doings
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


async def halted(
    client: LangGraphClient, folder: Path, runs: Sequence[Started], within: float, order: random.Random
) -> list[Halted]:
    holds = Holds(folder)

    async def one(run: Started) -> tuple[float, float, float]:
        await asyncio.sleep(order.random() * within)
        posted = time.time()
        await post(client, run.thread_id, "halt", reason="measured")
        answered = time.time()
        return posted, answered, await holds.ended(run.message_id)

    moments = await asyncio.gather(*(one(run) for run in runs))
    lags = [
        (float(at), float(late))
        for at, late in map(str.split, (folder / "lag").read_text().splitlines()[:-1])
    ]
    return [
        Halted(
            end - posted,
            end - answered,
            sum(max(0.0, min(at, end) - max(at - late, posted)) for at, late in lags),
        )
        for posted, answered, end in moments
    ]


async def measured(shape: Shape, uri: str, halted_within: float, order: random.Random) -> Found:
    env = {**ENVIRONMENT, "POLL_INTERVAL": str(shape.interval)}
    with Stack(FILES, line=LINE, postgres_uri=uri, jobs=shape.streams, env=env) as stack:
        pid = stack.workers[0].pid
        async with (
            stack.client(timeout=120) as client,
            await psycopg.AsyncConnection.connect(stack.database_uri, autocommit=True) as database,
        ):
            runs = await started(client, shape.graph, shape.streams)
            await asyncio.sleep(SETTLED_AFTER_SECONDS)
            before = (await transactions(database), cpu_seconds(pid), time.perf_counter())
            await asyncio.sleep(SECONDS)
            after = (await transactions(database), cpu_seconds(pid), time.perf_counter())
            seen: list[Halted] = []
            if shape.graph == WITH:
                some = order.sample(runs, min(HALTED, len(runs)))
                seen = await halted(client, stack.folder, some, halted_within, order)
    taken = after[2] - before[2]
    found = Found(
        shape, (after[0] - before[0]) / taken, (after[1] - before[1]) / taken, os.getloadavg()[0], seen
    )
    print(row(found), flush=True)
    return found


def on_time(seen: Sequence[Halted]) -> list[float]:
    """Returns the latencies without what the worker's event loop was late by."""
    return [each.from_posting - each.lag for each in seen]


def row(found: Found) -> list[str]:
    shape = found.shape
    moments = [each.from_posting * 1e3 for each in found.halted]
    return [
        f"{shape.streams}",
        f"{shape.interval:g} s" if shape.graph == WITH else "off",
        f"{found.queries_per_second:.0f}",
        f"{found.worker_cpu * 100:.0f} %",
        *(f"{quantile(moments, share):.0f}" if moments else "" for share in (0.5, 0.9, 0.99)),
        f"{quantile([each.lag * 1e3 for each in found.halted], 0.99):.0f}" if moments else "",
        f"{quantile(on_time(found.halted), 0.99) * 1e3:.0f}" if moments else "",
        f"{found.load:.1f}",
    ]


def picture(seen: Sequence[Found]) -> str:
    def name(shape: Shape) -> str:
        looks = f"every {shape.interval:g} s" if shape.graph == WITH else "preemption off"
        return f"{shape.streams} streams, {looks}"

    def load(value: Callable[[Found], float]) -> list[Bar]:
        return [
            Bar(name(each.shape), value(each), is_base=each.shape.graph == WITHOUT, text=f"{value(each):.0f}")
            for each in seen
        ]

    def latency(found: Found) -> Bar:
        low, middle, high = (
            quantile([halt.from_posting * 1e3 for halt in found.halted], share) for share in (0.01, 0.5, 0.99)
        )
        kept = (found.shape.interval + LATENCY_SLACK) * 1e3
        return Bar(name(found.shape), middle, low, high, limit=kept, text=f"{middle:.0f} ms")

    return bars(
        "Quiet streams on one worker that look for requests of other processes",
        "grey: without looking; times: median, whisker: 1st to 99th percentile, red: the interval and 100 ms",
        [
            ("Queries a second on PostgreSQL", load(lambda found: found.queries_per_second)),
            ("The worker's processor, % of a core", load(lambda found: found.worker_cpu * 100)),
            (
                "From a host's post to the end of the stream",
                [latency(found) for found in seen if found.halted],
            ),
        ],
    )


async def main(options: argparse.Namespace) -> None:
    order = random.Random(options.seed)
    shapes: Sequence[Shape] = SHAPES
    within = HALTED_WITHIN_SECONDS
    if options.quick:
        shapes, within = QUICK_SHAPES, QUICK_HALTED_WITHIN_SECONDS
    with postgres() as uri:
        seen = [await measured(shape, uri, within, order) for _ in range(options.rounds) for shape in shapes]
    columns = ["streams", "poll_interval", "queries/s", "worker's cpu", "p50 ms", "p90", "p99"]
    columns += ["lag p99", "p99 less lag", "load"]
    table = Table(
        "Quiet streams on one worker; from a host's post to the end of the stream, across processes",
        columns,
        [row(found) for found in seen],
    )
    promised = [each for each in seen if (each.shape.streams, each.shape.interval) == PROMISED]
    latencies = [halt.from_posting for each in promised for halt in each.halted]
    checks = [
        Check(
            f"seconds from post to the end of the stream, {PROMISED[0]} streams, p99",
            PROMISED[1] + LATENCY_SLACK,
            quantile(latencies, 0.99),
        )
        for _ in promised[:1]
    ]
    publish(
        "polling",
        [table],
        options={**vars(options), "line": LINE, "halted": HALTED},
        samples={"found": [asdict(each) for each in seen]},
        checks=checks,
        picture=picture(seen),
    )


if __name__ == "__main__":
    asyncio.run(main(arguments(__doc__, rounds=1)))
