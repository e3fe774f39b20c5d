"""What `runs.list` costs on a server with midstream: 100 runs of a thread with 1,000 messages.

Two servers run side by side, one with midstream and one without, and a stock client lists the same runs on
both in turns: once where no run was halted or sealed, and once where all of them were.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph_sdk.client import LangGraphClient

from bench.measure import Ratio, Side, in_turns
from bench.report import Check, Table, arguments, publish
from bench.svg import Bar, bars
from support.dev_server import DevServer
from support.waiting_graph import waiting_graph

RUNS, MESSAGES = 100, 1000
LISTS = 5
"""How often the runs are listed in one sample."""

WITH, WITHOUT = "with midstream", "without"
LIMIT = 1.3


async def prepared(client: LangGraphClient, *, halted: bool) -> str:
    """Returns a thread with its messages, and with runs that are scheduled for later but for one."""
    thread_id = (await client.threads.create(graph_id="waiting"))["thread_id"]
    asked: Any = {"messages": [{"role": "user", "content": "Go on."}]}
    runs = [
        (await client.runs.create(thread_id, "waiting", input=asked, after_seconds=36_000))["run_id"]
        for _ in range(RUNS - 1)
    ]
    state: Any = {"messages": [{"role": "user", "content": f"message {n}"} for n in range(MESSAGES)]}
    if halted:
        state["halted_runs"] = runs
    await client.runs.wait(thread_id, "waiting", input=state)
    return thread_id


def listing(name: str, client: LangGraphClient, thread_id: str) -> Side:
    async def run() -> None:
        for _ in range(LISTS):
            assert len(await client.runs.list(thread_id, limit=RUNS)) == RUNS

    return Side(name, run)


def fastest_ms(seconds: Sequence[float]) -> float:
    return min(seconds) / LISTS * 1e3


def picture(samples: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    def pair(taken: Mapping[str, Sequence[float]]) -> list[Bar]:
        ratio = Ratio.of(taken[WITH], taken[WITHOUT])
        return [
            Bar(WITHOUT, 1.0, is_base=True, text=f"{fastest_ms(taken[WITHOUT]):.2f} ms"),
            Bar(WITH, ratio.median, ratio.p1, ratio.p99, LIMIT, text=f"{ratio.median:.2f}"),
        ]

    return bars(
        f"{RUNS} runs of a thread in a list",
        "ratio of the time to the server without midstream (grey = 1), median over rounds; whisker: 1st to "
        "99th percentile; red: promised",
        [(what, pair(taken)) for what, taken in samples.items()],
    )


async def main(options: argparse.Namespace) -> None:
    rows, checks, samples = [], [], {}
    with DevServer(waiting_graph()) as ours, DevServer(waiting_graph(http={})) as bare:
        async with ours.client() as with_us, bare.client() as without:
            for what, halted in ((f"none of {RUNS} was halted", False), (f"all {RUNS} were halted", True)):
                sides = [
                    listing(WITH, with_us, await prepared(with_us, halted=halted)),
                    listing(WITHOUT, without, await prepared(without, halted=halted)),
                ]
                taken = await in_turns(
                    sides, rounds=options.rounds, seed=options.seed, clock=time.perf_counter
                )
                ratio = Ratio.of(taken[WITH], taken[WITHOUT])
                each = {name: fastest_ms(seconds) for name, seconds in taken.items()}
                rows.append([what, f"{each[WITHOUT]:.2f}", f"{each[WITH]:.2f}", f"{ratio.median:.2f}"])
                checks.append(Check(f"runs.list, {what}", LIMIT, ratio.median))
                samples[what] = taken
    publish(
        "run_list",
        [
            Table(
                f"{RUNS} runs of a thread with {MESSAGES:,} messages: the fastest list, and the median ratio",
                ["runs", "without, ms", "with, ms", "ratio"],
                rows,
            )
        ],
        options={"rounds": options.rounds, "seed": options.seed},
        samples=samples,
        checks=checks,
        picture=picture(samples),
    )


if __name__ == "__main__":
    asyncio.run(main(arguments(__doc__, rounds=40)))
