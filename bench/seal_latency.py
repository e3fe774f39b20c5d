"""How soon an answer ends after a host has asked for it.

The host is told that its request is accepted; from that moment it is counted how many chunks still come, and
how long the last of them, and the word that the answer is sealed, take. The model streams a word every 20 ms,
or has gone silent. The host is in the same process (`Ledger.aappend`), behind the HTTP of a real
`langgraph dev`, or in another process that shares a PostgreSQL with the run.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph

from bench.measure import median, quantile
from bench.models import PacedModel, ReadyModel
from bench.postgres import postgres
from bench.report import Check, Table, arguments, publish
from bench.svg import Bar, bars
from midstream import Ledger, MidstreamState, ModelNode, SealControl, sealable
from midstream_client import Midstream
from support.dev_server import DevServer
from support.process import ROOT

GAP = 0.02
HALT = {"kind": "halt", "reason": "measured"}
SILENT_AFTER = 5
COLUMNS = (
    *("where the host is", "tries", "chunks after: median", "p99", "most"),
    *("last token ms: median", "p99", "sealed ms: median", "p99"),
)
LENGTHS = (100, 1_000, 10_000, 100_000)

Now = time.perf_counter
"""Linux counts it from one moment for all processes."""


@dataclass(slots=True)
class Try:
    """One answer that was halted."""

    tokens: list[float] = field(default_factory=list)
    """When each word reached the host."""

    accepted: float = 0.0
    """When the host was told that its request is accepted."""

    sealed: float = 0.0
    """When the host was told that the answer is sealed."""

    @property
    def late(self) -> int:
        """How many words came after the host had its answer."""
        return sum(at > self.accepted for at in self.tokens)

    @property
    def last_ms(self) -> float:
        return max(0.0, self.tokens[-1] - self.accepted) * 1e3

    @property
    def sealed_ms(self) -> float:
        return max(0.0, self.sealed - self.accepted) * 1e3


def halting(ledger: Ledger) -> Callable[[], Awaitable[object]]:
    return lambda: ledger.aappend(HALT)


def agent(model: PacedModel, saver: BaseCheckpointSaver[Any]) -> Any:
    builder = StateGraph(MidstreamState)
    builder.add_node("model", ModelNode(model))
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    return builder.compile(checkpointer=saver)


async def watched(
    events: AsyncIterator[tuple[str, Any]],
    halt: Callable[[], Awaitable[object]],
    moments: random.Random,
    silent: bool,
) -> Try:
    """Reads one answer, and halts it after some words and a part of the gap between two."""
    seen = Try()
    posting: asyncio.Task[None] | None = None
    after = SILENT_AFTER if silent else moments.randint(5, 12)
    delay = 2 * GAP if silent else moments.uniform(0, GAP)

    async def post() -> None:
        await asyncio.sleep(delay)
        await halt()
        seen.accepted = Now()

    async for kind, data in events:
        if kind == "token":
            seen.tokens.append(Now())
            if len(seen.tokens) == after and posting is None:
                posting = asyncio.create_task(post())
        elif data.get("event") == "sealed":
            seen.sealed = Now()
    assert posting is not None
    await posting
    assert seen.sealed, "the answer was not sealed"
    return seen


async def of_graph(graph: Any, thread_id: str) -> AsyncIterator[tuple[str, Any]]:
    config = {"configurable": {"thread_id": thread_id}}
    asked = {"messages": [HumanMessage("Go on.")]}
    async for mode, data in graph.astream(asked, config, stream_mode=["messages", "custom"]):
        if mode == "custom":
            yield "event", data
        elif data[0].text:
            yield "token", data[0].text


async def same_process(tries: int, moments: random.Random, *, silent: bool) -> list[Try]:
    saver = InMemorySaver()
    graph = agent(PacedModel(interval=GAP, silent_after=SILENT_AFTER if silent else None), saver)
    found = []
    for _ in range(tries):
        thread_id = str(uuid.uuid4())
        ledger = Ledger(saver, thread_id)
        events = of_graph(graph, thread_id)
        found.append(await watched(events, halting(ledger), moments, silent))
    return found


async def over_http(tries: int, moments: random.Random) -> list[Try]:
    env = {"MIDSTREAM_MODEL": "scripted", "MIDSTREAM_SCRIPTED_WORDS": "500"}
    env["MIDSTREAM_SCRIPTED_INTERVAL_MS"] = str(int(GAP * 1000))
    files = {
        "langgraph.json": {
            "dependencies": ["."],
            "graphs": {"agent": f"{ROOT}/graphs/agent.py:graph"},
            "http": {"app": "midstream.server:app"},
        }
    }
    found = []
    with DevServer(files, env=env) as server:
        async with server.client() as client:
            steering = Midstream(client)

            async def events(thread_id: str) -> AsyncIterator[tuple[str, Any]]:
                asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Go on."}]}
                modes: Any = ["messages-tuple", "custom"]
                async for part in client.runs.stream(thread_id, "agent", input=asked, stream_mode=modes):
                    if part.event == "custom":
                        yield "event", part.data
                    elif part.event == "messages" and part.data[0]["content"]:
                        yield "token", part.data[0]["content"]

            for _ in range(tries):
                thread_id = (await client.threads.create())["thread_id"]

                async def halt(thread_id: str = thread_id) -> None:
                    await steering.halt(thread_id, "measured")

                found.append(await watched(events(thread_id), halt, moments, False))
    return found


async def two_processes(tries: int, moments: random.Random) -> list[Try]:
    with postgres() as uri:
        async with AsyncPostgresSaver.from_conn_string(uri) as saver:
            await saver.setup()
            async with runner(uri) as ask:
                found = []
                for _ in range(tries):
                    thread_id = str(uuid.uuid4())
                    ledger = Ledger(saver, thread_id)
                    events = ask(thread_id)
                    found.append(await watched(events, halting(ledger), moments, False))
                return found


@asynccontextmanager
async def runner(uri: str) -> AsyncIterator[Callable[[str], AsyncIterator[tuple[str, Any]]]]:
    """The other process, which runs a thread when it is told its id."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.seal_latency", "--run-on", uri, stdin=pipe, stdout=pipe, cwd=ROOT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    write, lines = process.stdin, process.stdout

    async def ask(thread_id: str) -> AsyncIterator[tuple[str, Any]]:
        write.write(f"{thread_id}\n".encode())
        await write.drain()
        while line := await lines.readline():
            kind, data = json.loads(line)
            if kind == "end":
                return
            yield kind, data

    try:
        yield ask
    finally:
        write.close()
        await process.wait()


async def run_on(uri: str) -> None:
    """Runs the threads whose ids come on standard input, and prints what is streamed."""
    async with AsyncPostgresSaver.from_conn_string(uri) as saver:
        graph = agent(PacedModel(interval=GAP), saver)
        while thread_id := (await asyncio.to_thread(sys.stdin.readline)).strip():
            async for kind, data in of_graph(graph, thread_id):
                print(json.dumps([kind, data]), flush=True)
            print(json.dumps(["end", None]), flush=True)


async def by_length(rounds: int) -> dict[int, dict[str, list[float]]]:
    """Milliseconds from the last of so many chunks to the merged answer: sealed, and ended by itself."""
    found: dict[int, dict[str, list[float]]] = {}
    for size in LENGTHS:
        sealed = [await _ended(size, SealControl()) for _ in range(rounds)]
        found[size] = {"sealed": sealed, "ended by itself": [await _ended(size, None) for _ in range(rounds)]}
    return found


async def _ended(size: int, control: SealControl | None) -> float:
    last = 0.0

    async def ask() -> None:
        nonlocal last
        last = time.process_time()
        if control is not None:
            control.request()
            await asyncio.Event().wait()

    model = ReadyModel(size=size + 1, opening=ask, opens_after=size)
    model.refill()
    gc.collect()
    if control is not None:
        await sealable(model, control).ainvoke([HumanMessage("Go on.")])
        assert control.sealed
    else:
        async for _ in model.astream([HumanMessage("Go on.")]):
            pass
    return (time.process_time() - last) * 1e3


def row(name: str, tries: Sequence[Try]) -> list[str]:
    late, last = [float(each.late) for each in tries], [each.last_ms for each in tries]
    sealed = [each.sealed_ms for each in tries]
    cells = [f"{f(late):.0f}" for f in (median, _p99, max)]
    cells += [f"{f(numbers):.1f}" for numbers in (last, sealed) for f in (median, _p99)]
    return [name, str(len(tries)), *cells]


def _p99(values: Sequence[float]) -> float:
    return quantile(values, 0.99)


async def main(options: argparse.Namespace) -> None:
    moments = random.Random(options.seed)
    few = max(1, options.rounds // 2)
    found = {
        "same process, a word every 20 ms": await same_process(options.rounds, moments, silent=False),
        "same process, provider silent": await same_process(options.rounds, moments, silent=True),
        "langgraph dev over HTTP, 20 ms": await over_http(few, moments),
        "two processes on PostgreSQL, 20 ms": await two_processes(few, moments),
    }
    lengths = await by_length(9)

    same, silent, *_ = found.values()
    checks = [
        Check("same process: chunks after acceptance, p99", 1, _p99([float(each.late) for each in same])),
        Check("same process, silent provider: ms to the seal, p99", 50, _p99([e.sealed_ms for e in silent])),
    ]
    publish(
        "seal_latency",
        [
            Table(
                "From the host's answer `accepted` to the end of the stream",
                COLUMNS,
                [row(name, tries) for name, tries in found.items()],
            ),
            Table(
                "Processor time from the last chunk to the merged answer, by its length (model alone)",
                ["chunks", "sealed, ms", "ended by itself, ms"],
                [
                    [f"{size:,}", *(f"{median(ms):.2f}" for ms in ends.values())]
                    for size, ends in lengths.items()
                ],
            ),
        ],
        options={"tries": options.rounds, "seed": options.seed, "gap_ms": GAP * 1e3, "poll_interval_ms": 200},
        samples={
            "tries": {
                name: [{"late": e.late, "last_ms": e.last_ms, "sealed_ms": e.sealed_ms} for e in tries]
                for name, tries in found.items()
            },
            "seal_ms_by_chunks": {str(size): taken for size, taken in lengths.items()},
        },
        checks=checks,
        picture=bars(
            "From `accepted` to the sealed answer",
            "milliseconds, median; whisker: 1st to 99th percentile; a word every 20 ms, or a silent provider",
            [
                (
                    "",
                    [
                        Bar(
                            name,
                            median(numbers := [each.sealed_ms for each in tries]),
                            quantile(numbers, 0.01),
                            _p99(numbers),
                            limit=50.0 if tries is silent else None,
                        )
                        for name, tries in found.items()
                    ],
                )
            ],
        ),
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run-on"]:
        asyncio.run(run_on(sys.argv[2]))
    else:
        asyncio.run(main(arguments(__doc__, rounds=200)))
