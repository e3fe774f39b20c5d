"""The same chunks through midstream and through `@librechat/agents`, which seals streams in TypeScript.

Both run on this machine with the same script: so many chunks, of text or of content blocks, without delay or
20 ms apart, or silent for a second. Two languages are two speeds, so the cost of preemption is told against
each side's own run without it. Needs npm; the first run installs the package and a Node.js of its own into
`bench/ts/node_modules`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.measure import Ratio, Side, in_turns, median, quantile
from bench.models import ReadyModel
from bench.per_chunk import NODE, OFF, alone, in_graph, streamed
from bench.report import Table, arguments, publish
from bench.seal_latency import GAP, SILENT_AFTER, Try, same_process
from bench.svg import Bar, bars

HERE = Path(__file__).resolve().parent / "ts"
CHUNKS = 20_000
SIZES = (1_000, 10_000, 100_000)
SILENT_MS = 1_000
MINUTES = 20

OURS, THEIRS = "midstream", "@librechat/agents"
WAYS = ("bare", "off", "on")


def installed() -> Path:
    """Returns the Node.js that the package runs on, after installing both if they are not there."""
    node = HERE / "node_modules" / ".bin" / "node"
    if not node.exists():
        npm = shutil.which("npm")
        if npm is None:
            sys.exit("bench.typescript needs npm, which comes with Node.js: https://nodejs.org")
        print("installing @librechat/agents into bench/ts/node_modules, once ...", flush=True)
        subprocess.run(
            [npm, "install", "--no-audit", "--no-fund", "--no-package-lock"],
            cwd=HERE,
            check=True,
            timeout=900,
        )
    return node


def theirs(asked: dict[str, Any]) -> dict[str, Any]:
    """Runs the TypeScript side."""
    done = subprocess.run(
        [str(installed()), "--expose-gc", "run.mjs"],
        cwd=HERE,
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=MINUTES * 60,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def sides(model: ReadyModel) -> list[Side]:
    bare = alone(model)[0]
    off, on = in_graph(model, streamed, names=[OFF, NODE])
    named = zip(WAYS, (bare, off, on), strict=True)
    return [Side(way, side.run, side.prepare) for way, side in named]


async def ours(asked: dict[str, Any], seed: int) -> dict[str, Any]:
    """Runs the Python side; the same shape as what the other side prints."""
    found: dict[str, Any] = {"per_chunk": {}, "growth": {}}
    for kind in asked["kinds"]:
        model = ReadyModel(size=asked["chunks"], content=kind)
        taken = await in_turns(sides(model), rounds=asked["rounds"], seed=seed)
        found["per_chunk"][kind] = {way: [each * 1e3 for each in seconds] for way, seconds in taken.items()}
    for size in asked["sizes"]:
        taken = await in_turns(sides(ReadyModel(size=size))[2:], rounds=asked["growthRounds"], seed=seed)
        found["growth"][str(size)] = [each * 1e3 for each in taken["on"]]
    moments = random.Random(seed)
    found["latency"] = _shown(await same_process(len(asked["moments"]), moments, silent=False))
    found["silent"] = _shown(await same_process(asked["silentTries"], moments, silent=True))
    return found


def _shown(tries: Sequence[Try]) -> list[dict[str, float]]:
    return [{"late": e.late, "last_ms": e.last_ms, "sealed_ms": e.sealed_ms} for e in tries]


def script(tries: int, rounds: int, seed: int) -> dict[str, Any]:
    moments, orders = random.Random(seed), random.Random(seed)
    return {
        "kinds": ["text", "blocks"],
        "chunks": CHUNKS,
        "rounds": rounds,
        "order": [orders.sample(WAYS, len(WAYS)) for _ in range(rounds + 1)],
        "sizes": SIZES,
        "growthRounds": max(1, rounds // 3),
        "gapMs": GAP * 1e3,
        "silentAfter": SILENT_AFTER,
        "silentMs": SILENT_MS,
        "silentTries": max(1, tries // 4),
        "moments": [
            {"after": moments.randint(5, 12), "delayMs": moments.uniform(0, GAP * 1e3)} for _ in range(tries)
        ],
    }


def cost(found: dict[str, dict[str, Any]]) -> Table:
    rows = []
    for kind in ("text", "blocks"):
        for name, side in found.items():
            taken = side["per_chunk"][kind]
            each = [f"{median(taken[way]) / CHUNKS * 1e3:.2f}" for way in WAYS]
            ratio = Ratio.of(taken["on"], taken["off"])
            to_bare = Ratio.of(taken["on"], taken["bare"])
            rows.append([kind, name, *each, f"{ratio.median:.2f}", f"{to_bare.median:.2f}"])
    columns = ["content", "package", "bare loop", "preemption off", "preemption on", "on : off", "on : bare"]
    return Table(
        f"Processor time, us per chunk, {CHUNKS:,} chunks, nothing requested; medians", columns, rows
    )


def growth(found: dict[str, dict[str, Any]]) -> Table:
    rows = []
    for name, side in found.items():
        taken = {size: median(side["growth"][str(size)]) for size in SIZES}
        rows.append(
            [name, *(f"{taken[size]:.0f}" for size in SIZES), f"{taken[SIZES[-1]] / taken[SIZES[-2]]:.1f}"]
        )
    columns = ["package", *(f"{size:,}" for size in SIZES), f"{SIZES[-1]:,} : {SIZES[-2]:,}"]
    return Table(
        "Processor time of a whole answer with preemption on, ms, by its chunks; medians", columns, rows
    )


def latency(found: dict[str, dict[str, Any]]) -> Table:
    rows = []
    for what, key in (("a word every 20 ms", "latency"), (f"silent for {SILENT_MS} ms", "silent")):
        for name, side in found.items():
            late = [float(each["late"]) for each in side[key]]
            sealed = [float(each["sealed_ms"]) for each in side[key]]
            cells = [f"{median(late):.0f}", f"{quantile(late, 0.99):.0f}"]
            rows.append(
                [what, name, str(len(late)), *cells, f"{median(sealed):.1f}", f"{quantile(sealed, 0.99):.1f}"]
            )
    columns = ["provider", "package", "tries", "chunks after: median", "p99", "sealed ms: median", "p99"]
    return Table("From the host's request, in the same process, to the seal", columns, rows)


async def main(options: argparse.Namespace) -> None:
    tries = options.rounds * 5
    asked = script(tries, options.rounds, options.seed)
    found = {OURS: await ours(asked, options.seed), THEIRS: await asyncio.to_thread(theirs, asked)}

    def picture(key: str, base: str) -> list[Bar]:
        made = []
        for name, side in found.items():
            ratio = Ratio.of(side["per_chunk"][key]["on"], side["per_chunk"][key][base])
            made.append(Bar(name, ratio.median, ratio.p1, ratio.p99, is_base=name == THEIRS))
        return made

    publish(
        "typescript",
        [cost(found), growth(found), latency(found)],
        options={"rounds": options.rounds, "tries": tries, "seed": options.seed, "chunks": CHUNKS},
        samples=found,
        picture=bars(
            "Preemption in Python and in TypeScript",
            "ratios of processor time, each to its own side; medians, whisker: 1st to 99th percentile",
            [
                (f"{kind}: preemption on, to {words}", picture(kind, base))
                for kind in ("text", "blocks")
                for base, words in (
                    ("off", "the same run without it"),
                    ("bare", "a bare loop over the stream"),
                )
            ],
        ),
    )


if __name__ == "__main__":
    asyncio.run(main(arguments(__doc__, rounds=20)))
