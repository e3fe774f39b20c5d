"""How soon an answer ends after a host has asked for it.

The host posts a halt at a random moment of a streaming answer, and is told that it is accepted; from that
moment it is counted how many words still come, and how long the last of them, and the word that the answer
is sealed, take. The model streams a word every 5, 20 or 100 ms, or has gone silent; for the places where the
host may be see `bench.halting`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Mapping, Sequence

from langchain_core.messages import HumanMessage

from bench import HAS_STACK
from bench.halting import (
    PROVIDERS,
    SILENT,
    Provider,
    Try,
    api_and_worker,
    dev_server,
    same_process,
    tried,
    two_processes,
)
from bench.measure import median, quantile
from bench.models import ReadyModel
from bench.report import Check, Table, arguments, publish
from bench.svg import Bar, bars
from midstream import SealControl, sealable

SAME, DEV = "same process", "langgraph dev over HTTP"
TWO, STACK = "two processes, PostgreSQL", "API + worker, PostgreSQL + Redis"
PLACES = {SAME: same_process, DEV: dev_server, TWO: two_processes, STACK: api_and_worker}
POLL_MS = 200
"""The default `poll_interval`, after which another process's request is seen at the latest."""

CHECKED = (PROVIDERS[1], SILENT)
COLUMNS = (
    *("where the host is", "provider", "tries", "chunks after: median", "p99", "last token ms: median"),
    *("p99", "sealed ms: median", "p99", "from the post ms: median", "p99"),
)
LENGTHS = (100, 1_000, 10_000, 100_000)


async def measured(rounds: int, seed: int) -> dict[str, dict[Provider, list[Try]]]:
    found = {}
    few = max(1, rounds // 4)
    for place, made in PLACES.items():
        if place == STACK and not HAS_STACK:
            print(f"{place}: left out, since `make test-distributed` has not set its servers up", flush=True)
            continue
        # What was promised is promised of many tries.
        tries = {each: rounds if place == SAME and each in CHECKED else few for each in PROVIDERS}
        async with made() as start:
            await tried(start, dict.fromkeys(PROVIDERS, 1), seed)
            found[place] = await tried(start, tries, seed)
        print(f"{place}: done", flush=True)
    return found


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


def row(place: str, provider: Provider, tries: Sequence[Try]) -> list[str]:
    late = [float(each.late) for each in tries]
    taken = [[getattr(each, name) for each in tries] for name in ("last_ms", "sealed_ms", "from_post_ms")]
    cells = [f"{f(late):.0f}" for f in (median, _p99)]
    cells += [f"{f(numbers):.1f}" for numbers in taken for f in (median, _p99)]
    return [place, provider.name, str(len(tries)), *cells]


def _p99(values: Sequence[float]) -> float:
    return quantile(values, 0.99)


def picture(found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    def bar(name: str, ms: Sequence[float]) -> Bar:
        text = f"{median(ms):.0f} ms"
        return Bar(name, median(ms), quantile(ms, 0.01), _p99(ms), text=text)

    return bars(
        "From the host's request to the sealed answer",
        "milliseconds from the post to the word `sealed`, median; whisker: 1st to 99th percentile",
        [(place, [bar(*each) for each in by.items()]) for place, by in found.items()],
        one_scale=True,
    )


async def main(options: argparse.Namespace) -> None:
    found = await measured(options.rounds, options.seed)
    lengths = await by_length(max(1, min(9, options.rounds)))

    paced, silent = (found[SAME][each] for each in CHECKED)
    checks = [
        Check(
            f"{SAME}, {CHECKED[0].name}: chunks after acceptance, p99",
            1,
            _p99([float(e.late) for e in paced]),
        ),
        Check(f"{SAME}, {SILENT.name}: ms to the seal, p99", 50, _p99([e.sealed_ms for e in silent])),
    ]
    checks += [
        Check(
            f"{place}, {provider.name}: ms from the post to the seal, p99",
            POLL_MS + 100,
            _p99([e.from_post_ms for e in tries]),
        )
        for place in (TWO, STACK)
        for provider, tries in found.get(place, {}).items()
    ]
    publish(
        "seal_latency",
        [
            Table(
                "From the host's answer `accepted`, and from its post, to the end of the stream",
                COLUMNS,
                [row(place, *each) for place, by in found.items() for each in by.items()],
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
        options={"tries": options.rounds, "seed": options.seed, "poll_interval_ms": POLL_MS},
        samples={
            "tries": {
                place: {provider.name: [each.numbers for each in tries] for provider, tries in by.items()}
                for place, by in found.items()
            },
            "seal_ms_by_chunks": {str(size): taken for size, taken in lengths.items()},
        },
        checks=checks,
        picture=picture(
            {
                place: {
                    provider.name: [each.from_post_ms for each in tries] for provider, tries in by.items()
                }
                for place, by in found.items()
            }
        ),
    )


if __name__ == "__main__":
    asyncio.run(main(arguments(__doc__, rounds=200, quick=4)))
