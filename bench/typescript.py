"""The same chunks through midstream and through `@librechat/agents`, which seals streams in TypeScript.

Both run on this machine with the same script: so many chunks of text, of whitespace, of reasoning or of a
tool call's arguments, without delay; and a word every millisecond, every 20 ms, or silence for a second. Two
languages are two speeds, so the cost of preemption is told against each side's own run without it. The
longest tool calls, for which the other side takes minutes, run there once, and a run that takes too long is
ended: then it is told how far it came. Needs npm; the first run installs the package and a Node.js of its own
into `bench/ts/node_modules`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from langgraph.checkpoint.memory import InMemorySaver

from bench.halting import SILENT_AFTER, Provider, same_process, tried
from bench.measure import Ratio, Side, in_turns, median, quantile
from bench.models import Content, ReadyModel
from bench.per_chunk import BREATH, NODE, OFF, alone, in_graph, node_side, streamed
from bench.report import Table, arguments, publish
from bench.svg import Line, lines
from midstream import Ledger, ModelNode, Preemption

HERE = Path(__file__).resolve().parent / "ts"
Sizes: TypeAlias = Mapping[Content, tuple[int, ...]]

LONG = (1_000, 5_000, 20_000)
SIZES: Sizes = {
    "text": LONG,
    "whitespace": LONG,
    "reasoning": LONG,
    "tool arguments": (1_000, 3_000, 10_000, 20_000),
}
SLOW: Sizes = {"tool arguments": (10_000, 20_000)}
"""What takes the other side minutes: it runs once with preemption off and once with it on."""

SLOW_RUN_SECONDS, QUICK_RUN_SECONDS = 240, 3
"""After so much of the processor's time such a stream is ended, and with `--quick`. What the package does
once an answer has come to its end, which takes about as long again, is let be."""

TRIES_EACH_ROUND = 5
SILENT_MS = 1_000
MINUTES = 90

OURS, THEIRS = "midstream", "@librechat/agents"
BARE, OFF_WAY, ON, WAITING = "bare", "off", "on", "waiting"
WAYS = (BARE, OFF_WAY, ON, WAITING)
GRAPHS = (OFF_WAY, ON, WAITING)

PROVIDERS = (
    Provider("a word every 1 ms", 1),
    Provider("a word every 20 ms", 20),
    Provider(f"silent for {SILENT_MS} ms", 20, SILENT_AFTER),
)


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


def ways_of(kind: Content) -> tuple[str, ...]:
    """What is measured: no answer of text lets a request wait to its end."""
    return WAYS[:-1] if kind == "text" else WAYS


def is_slow(kind: Content, size: int) -> bool:
    return size in SLOW.get(kind, ())


def sides(kind: Content, size: int) -> list[Side]:
    model = ReadyModel(size=size, content=kind)
    off, on = in_graph(model, streamed, names=[OFF, NODE])
    found = [alone(model)[0], off, on, waiting(kind, size)]
    return [Side(way, side.run, side.prepare) for way, side in zip(ways_of(kind), found, strict=False)]


def waiting(kind: Content, size: int) -> Side:
    """A request comes in as the answer begins, and nothing of it can be sealed."""
    saver, thread = InMemorySaver(), ""

    async def ask() -> None:
        await Ledger(saver, thread).aappend({"kind": "halt", "reason": "measured"})

    async def drive(graph: Any, thread_id: str) -> object:
        nonlocal thread
        thread = thread_id
        return await streamed(graph, thread_id)

    model = ReadyModel(size=size, content=kind, breath=BREATH, opening=ask)
    node = ModelNode(model, preemption=Preemption(restart_grace=None))
    return node_side(WAITING, node, model, drive, saver)


async def ours(asked: dict[str, Any], sizes_of: Sizes, rounds: int, seed: int) -> dict[str, Any]:
    """Runs the Python side; the same shape as what the other side prints."""
    found: dict[str, Any] = {"per_chunk": {}, "latency": {}}
    for kind, sizes in sizes_of.items():
        found["per_chunk"][kind] = {}
        for size in sizes:
            taken = await in_turns(sides(kind, size), rounds=rounds, seed=seed)
            found["per_chunk"][kind][str(size)] = {
                way: [each * 1e3 for each in seconds] for way, seconds in taken.items()
            }
    async with same_process() as start:
        tries = {provider: len(asked["providers"][provider.name]["moments"]) for provider in PROVIDERS}
        await tried(start, dict.fromkeys(PROVIDERS, 1), seed)
        for provider, seen in (await tried(start, tries, seed)).items():
            found["latency"][provider.name] = [each.numbers for each in seen]
    return found


def script(sizes_of: Sizes, rounds: int, seed: int, slow_seconds: float) -> dict[str, Any]:
    """What both sides are to do."""
    chance, orders = random.Random(seed), random.Random(seed)

    def asked_of(provider: Provider, tries: int) -> dict[str, Any]:
        moments = [provider.moment(chance) for _ in range(tries)]
        return {
            "gapMs": provider.gap_ms,
            "silentAfter": provider.silent_after,
            "silentMs": SILENT_MS,
            "moments": [{"after": after, "delayMs": delay * 1e3} for after, delay in moments],
        }

    def runs(kind: Content, size: int) -> dict[str, Any]:
        if is_slow(kind, size):
            order, limit_ms = [orders.sample((OFF_WAY, ON), 2)], slow_seconds * 1000
            return {"size": size, "order": order, "warmUps": 0, "limitMs": limit_ms}
        ways = ways_of(kind)
        order = [orders.sample(ways, len(ways)) for _ in range(rounds + 1)]
        return {"size": size, "order": order, "warmUps": 1, "limitMs": None}

    return {
        "scripts": {kind: [runs(kind, size) for size in sizes] for kind, sizes in sizes_of.items()},
        "providers": {each.name: asked_of(each, rounds * TRIES_EACH_ROUND) for each in PROVIDERS},
    }


def each_us(side: Mapping[str, Any], kind: Content, size: int, way: str) -> float | None:
    """Returns the microseconds of a chunk; None if this was not measured, or not to its end."""
    taken = side["per_chunk"][kind][str(size)].get(way)
    return median(taken) / size * 1e3 if taken else None


def shown_us(side: Mapping[str, Any], kind: Content, size: int, way: str) -> str:
    us = each_us(side, kind, size, way)
    if us is not None:
        return f"{us:.1f}"
    ended = side.get("ended", {}).get(kind, {}).get(str(size), {}).get(way)
    if ended is None:
        return ""
    return f"{ended['ms'] / ended['chunk'] * 1e3:.1f}, ended at chunk {ended['chunk']:,}"


def cost(found: dict[str, dict[str, Any]], sizes_of: Sizes) -> Table:
    rows = []
    for kind, sizes in sizes_of.items():
        usual = [size for size in sizes if not is_slow(kind, size)]
        for size in sizes[len(usual) - 1 :]:
            for name, side in found.items():
                taken = side["per_chunk"][kind][str(size)]
                to_off = [
                    f"{Ratio.of(taken[way], taken[OFF_WAY]).median:.2f}"
                    if taken.get(way) and taken.get(OFF_WAY)
                    else ""
                    for way in (ON, WAITING)
                ]
                each = [shown_us(side, kind, size, way) for way in WAYS]
                rows.append([kind, f"{size:,}", name, *each, *to_off])
    columns = ["content", "chunks", "package", "bare loop", "off", "on", "request waits"]
    return Table(
        f"Processor time, us per chunk; medians (after {SLOW_RUN_SECONDS} s a stream is ended)",
        [*columns, "on : off", "waits : off"],
        rows,
    )


def growth(found: dict[str, dict[str, Any]], sizes_of: Sizes) -> Table:
    rows = []
    for kind, sizes in sizes_of.items():
        for name, side in found.items():
            for way in GRAPHS:
                by_size = [(size, each_us(side, kind, size, way)) for size in sizes]
                each = [(size, us) for size, us in by_size if us is not None]
                if each:
                    (first, us_first), (last, us_last) = each[0], each[-1]
                    shown = ", ".join(f"{us:.1f}" for _, us in each)
                    grown = f"{us_last / us_first:.1f}"
                    rows.append([kind, name, way, f"{first:,} to {last:,}", shown, grown])
    columns = ["content", "package", "preemption", "chunks", "us per chunk, short to long", "growth"]
    return Table(
        "Processor time of a chunk, by the length of the answer (growth: 1 is linear)", columns, rows
    )


def latency(found: dict[str, dict[str, Any]]) -> Table:
    rows = []
    for provider in PROVIDERS:
        for name, side in found.items():
            tries = side["latency"][provider.name]
            late = [float(each["late"]) for each in tries]
            sealed = [float(each["sealed_ms"]) for each in tries]
            cells = [f"{median(late):.0f}", f"{quantile(late, 0.99):.0f}"]
            cells += [f"{median(sealed):.1f}", f"{quantile(sealed, 0.99):.1f}"]
            rows.append([provider.name, name, str(len(late)), *cells])
    columns = ["provider", "package", "tries", "chunks after: median", "p99", "sealed ms: median", "p99"]
    return Table("From the host's request, in the same process, to the seal", columns, rows)


async def main(options: argparse.Namespace) -> None:
    sizes_of, slow_seconds = SIZES, SLOW_RUN_SECONDS
    if options.quick:
        sizes_of = {kind: sizes[:2] + SLOW.get(kind, ())[-1:] for kind, sizes in SIZES.items()}
        slow_seconds = QUICK_RUN_SECONDS
    asked = script(sizes_of, options.rounds, options.seed, slow_seconds)
    found = {
        OURS: await ours(asked, sizes_of, options.rounds, options.seed),
        THEIRS: await asyncio.to_thread(theirs, asked),
    }

    def drawn(name: str, kind: Content) -> list[tuple[float, float]]:
        by_size = [(size, each_us(found[name], kind, size, ON)) for size in sizes_of[kind]]
        return [(size, us) for size, us in by_size if us is not None]

    publish(
        "typescript",
        [cost(found, sizes_of), growth(found, sizes_of), latency(found)],
        options={
            "rounds": options.rounds,
            "tries": options.rounds * TRIES_EACH_ROUND,
            "seed": options.seed,
            "sizes": sizes_of,
            "slow": SLOW,
        },
        samples=found,
        picture=lines(
            "A chunk with preemption on and nothing requested, by the length of the answer",
            "chunks",
            "microseconds of processor time per chunk, median",
            [
                Line(f"{kind}, {name}", drawn(name, kind), colour, is_dashed=name == THEIRS)
                for name in (THEIRS, OURS)
                for colour, kind in enumerate(SIZES)
            ],
        ),
    )


if __name__ == "__main__":
    asyncio.run(main(arguments(__doc__, rounds=6)))
