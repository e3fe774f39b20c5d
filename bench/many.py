"""Many threads streaming at once: one server with midstream against one without.

Both servers run side by side and are loaded in turns. Each thread streams an answer at a pace that a machine
can keep up with, so what is compared is the server's own work: its processor time for each token, the gap
between two tokens as a client sees it, what it asks of its storage, and memory. With midstream each run also
looks for new requests several times a second. Then as many threads stream again, and each is halted at a
moment of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx
from langgraph_sdk.client import LangGraphClient

from bench.counting_graph import Counts
from bench.measure import median, quantile
from bench.report import Table, arguments, publish
from bench.servers import WITH, WITHOUT, cpu_seconds, resident_mb, saying, scripted, server, streamed
from bench.svg import Line, lines
from midstream_client import Midstream
from support.dev_server import DevServer

INTERVAL_MS = 250
WORDS = 40
CROWDS = (1, 10, 50, 100, 250, 500)
OURS, APP, THEIRS = "midstream", "plain graph, midstream's app", "without midstream"
WAYS = {OURS: (True, WITH), APP: (True, WITHOUT), THEIRS: (False, WITHOUT)}
"""Whether the server has midstream's app, and which graph runs on it."""

WHAT = {"cpu": "cpu_ms_per_token", "gap p99": "gap_p99_ms"}
"""What is drawn."""

CROWD_SECONDS = 300
FEWEST_HALTS = 20
FULL = 250
"""From so many threads on one round has to do: the machine is full, and each takes minutes."""

LONG_WORDS = 4 * WORDS
"""How long an answer is that so many hosts halt, so that their requests do not meet its own end."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """Some threads that streamed at the same time."""

    threads: int
    tokens: int
    cpu_ms_per_token: float
    first_token_s: float
    """Median over the threads, from the call to the first token."""

    gap_p50_ms: float
    gap_p99_ms: float
    seconds: float
    """From the first call to the last token."""

    server_mb: float
    queries: int
    """What the server asked of its storage, from the first call to the last token."""

    ledger_queries: int
    """How many of these were to midstream's ledger."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def queries_per_second(self) -> float:
        return self.queries / self.seconds

    @property
    def ledger_queries_per_second(self) -> float:
        return self.ledger_queries / self.seconds


class Loaded(NamedTuple):
    """A server that threads stream from."""

    server: DevServer
    client: LangGraphClient
    counts: Counts


async def one(client: LangGraphClient, graph: str) -> list[float]:
    thread_id = (await client.threads.create())["thread_id"]
    began = time.perf_counter()
    moments = [began]
    async for kind, _ in streamed(client, thread_id, graph, saying("Many words follow", WORDS)):
        if kind == "token":
            moments.append(time.perf_counter())
    return moments


async def crowd(loaded: Loaded, graph: str, threads: int) -> Crowd:
    server, client, counts = loaded
    before, asked, began = cpu_seconds(server.pid), counts.read(), time.perf_counter()
    async with asyncio.timeout(CROWD_SECONDS):
        streams = await asyncio.gather(*(one(client, graph) for _ in range(threads)))
    taken, used = time.perf_counter() - began, cpu_seconds(server.pid) - before
    queries, ledger_queries = (after - earlier for after, earlier in zip(counts.read(), asked, strict=True))
    gaps = [b - a for moments in streams for a, b in pairwise(moments[1:])]
    tokens = sum(len(moments) - 1 for moments in streams)
    return Crowd(
        threads=threads,
        tokens=tokens,
        cpu_ms_per_token=used / tokens * 1e3,
        first_token_s=median([moments[1] - moments[0] for moments in streams]),
        gap_p50_ms=median(gaps) * 1e3,
        gap_p99_ms=quantile(gaps, 0.99) * 1e3,
        seconds=taken,
        server_mb=resident_mb(server.pid),
        queries=queries,
        ledger_queries=ledger_queries,
    )


async def halted(client: LangGraphClient, threads: int, chance: random.Random) -> list[float | None]:
    """Returns for each of so many threads the seconds from the host's request to the word `sealed`.

    None if the request met the answer's own end, on a server that has more to do than it can.
    """
    asked = saying("Many words follow", WORDS if threads < FULL else LONG_WORDS)

    async def halt(after: int) -> float | None:
        thread_id = (await client.threads.create())["thread_id"]
        posted, tokens = 0.0, 0
        posting: asyncio.Task[object] | None = None
        async for kind, data in streamed(client, thread_id, WITH, asked):
            tokens += kind == "token"
            if tokens == after and posting is None:
                posted = time.perf_counter()
                posting = asyncio.ensure_future(Midstream(client).halt(thread_id, "measured"))
            elif kind == "event" and data["event"] == "sealed":
                assert posting is not None
                await posting
                return time.perf_counter() - posted
        assert posting is not None
        await posting
        return None

    async with asyncio.timeout(CROWD_SECONDS):
        return await asyncio.gather(*(halt(chance.randint(3, WORDS // 4)) for _ in range(threads)))


async def measured(
    crowds: Sequence[int], rounds: int, fewest_halts: int, seed: int
) -> tuple[dict[str, list[Crowd]], dict[int, list[float | None]]]:
    order = random.Random(seed)
    seals: dict[int, list[float | None]] = {threads: [] for threads in crowds}
    found: dict[str, list[Crowd]] = {way: [] for way in WAYS}
    # Without kept connections: a server closes idle ones, perhaps just as the next request goes out.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="midstream-bench-")))
        servers: dict[bool, Loaded] = {}
        for has_app in (True, False):
            path = folder / f"queries-{has_app}"
            counts = Counts(path)
            running = stack.enter_context(
                server(midstream=has_app, env=scripted(INTERVAL_MS), jobs=max(crowds), counts=path)
            )
            client = await stack.enter_async_context(running.client())
            # The SDK's own client would let only some of the streams through at a time.
            client.http.client._transport = httpx.AsyncHTTPTransport(limits=limits, retries=5)
            servers[has_app] = Loaded(running, client, counts)
        for has_app, graph in WAYS.values():
            await crowd(servers[has_app], graph, 2)
        for threads in crowds:
            for _ in range(rounds if threads < FULL else 1):
                for way in order.sample(sorted(WAYS), len(WAYS)):
                    has_app, graph = WAYS[way]
                    found[way].append(await crowd(servers[has_app], graph, threads))
            # A single thread is halted a few times more, for a p99 that means something.
            for _ in range(max(rounds, fewest_halts // threads) if threads < FULL else 1):
                seals[threads] += await halted(servers[True].client, threads, order)
            print(f"{threads} threads: done", flush=True)
    return found, seals


def table(found: dict[str, list[Crowd]], crowds: Sequence[int]) -> Table:
    rows = []
    for threads in crowds:
        pair = {way: [each for each in found[way] if each.threads == threads] for way in found}
        for way, seen in pair.items():
            ratios = [
                ours.cpu_ms_per_token / theirs.cpu_ms_per_token
                for ours, theirs in zip(seen, pair[THEIRS], strict=True)
            ]

            def typical(name: str, seen: list[Crowd] = seen) -> float:
                return median([float(getattr(each, name)) for each in seen])

            rows.append(
                [
                    str(threads),
                    way,
                    f"{typical('cpu_ms_per_token'):.3f}",
                    f"{median(ratios):.2f}",
                    f"{typical('tokens_per_second'):.0f}",
                    f"{typical('first_token_s') * 1e3:,.0f}",
                    f"{typical('gap_p50_ms'):,.0f}",
                    f"{typical('gap_p99_ms'):,.0f}",
                    f"{typical('seconds'):.1f}",
                    f"{typical('queries_per_second'):.0f}",
                    f"{typical('ledger_queries_per_second'):.0f}",
                    f"{typical('server_mb'):.0f}",
                ]
            )
    return Table(
        f"Threads at once, each {WORDS} words at {INTERVAL_MS} ms; medians",
        [
            "threads",
            "server",
            "cpu ms/token",
            "ratio",
            "tokens/s",
            "first token ms",
            "gap p50",
            "gap p99",
            "seconds",
            "queries/s",
            "to the ledger",
            "MB",
        ],
        rows,
    )


def sealed(seals: Mapping[int, Sequence[float | None]]) -> Table:
    rows = []
    for threads, found in seals.items():
        seconds = [each for each in found if each is not None]
        shown = [f"{quantile(seconds, share) * 1e3:,.0f}" if seconds else "" for share in (0.5, 0.9, 0.99)]
        rows.append([str(threads), str(len(found)), str(len(found) - len(seconds)), *shown])
    return Table(
        "Each of the threads is halted; ms from the host's request to the word `sealed`",
        ["threads", "halts", "at the answer's own end", "p50", "p90", "p99"],
        rows,
    )


async def main(options: argparse.Namespace) -> None:
    crowds, fewest = (CROWDS[:2], 2) if options.quick else (CROWDS, FEWEST_HALTS)
    found, seals = await measured(crowds, options.rounds, fewest, options.seed)

    def drawn(way: str, name: str) -> list[tuple[float, float]]:
        return [
            (threads, median([getattr(each, name) for each in found[way] if each.threads == threads]))
            for threads in crowds
        ]

    sealed_after = [
        (threads, quantile(seconds, 0.99) * 1e3)
        for threads, found in seals.items()
        if (seconds := [each for each in found if each is not None])
    ]
    samples: dict[str, Any] = {way: [asdict(each) for each in seen] for way, seen in found.items()}
    samples["seconds to the seal"] = {str(threads): seconds for threads, seconds in seals.items()}
    publish(
        "many",
        [table(found, crowds), sealed(seals)],
        options={"rounds": options.rounds, "seed": options.seed, "interval_ms": INTERVAL_MS, "words": WORDS},
        samples=samples,
        picture=lines(
            "Threads streaming at once on one server",
            "threads",
            "milliseconds: the server's processor time for a token, the gap between two, and the seal",
            [
                Line(f"{what}, {way}", drawn(way, name), colour, is_base=way == THEIRS)
                for colour, (what, name) in enumerate(WHAT.items())
                for way in (THEIRS, OURS)
            ]
            + [Line("from a halt to the seal, p99", sealed_after, 2)],
        ),
    )


if __name__ == "__main__":
    asyncio.run(main(arguments(__doc__, rounds=2)))
