"""The same chunks through midstream and through `@librechat/agents`, which seals streams in TypeScript.

Both run on this machine with the same script: so many chunks of text, of whitespace, of reasoning or of a
tool call's arguments, without delay; and a word every millisecond, every 20 ms, or silence for a second. Two
languages are two speeds, so the cost of preemption is told against each side's own run without it. Needs npm;
the first run installs the package and a Node.js of its own into `bench/ts/node_modules`.
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

LONG, SHORT = (1_000, 5_000, 20_000), (1_000, 2_000, 4_000)
SIZES: Sizes = {
    "text": LONG,
    "whitespace": LONG,
    "reasoning": LONG,
    # Of these, 4,000 take the other side ten seconds, and 20,000 minutes.
    "tool arguments": SHORT,
}
SILENT_MS = 1_000
MINUTES = 30

OURS, THEIRS = "midstream", "@librechat/agents"
BARE, OFF_WAY, ON, WAITING = "bare", "off", "on", "waiting"
WAYS = (BARE, OFF_WAY, ON, WAITING)

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


async def ours(asked: dict[str, Any], sizes_of: Sizes, seed: int) -> dict[str, Any]:
    """Runs the Python side; the same shape as what the other side prints."""
    found: dict[str, Any] = {"per_chunk": {}, "latency": {}}
    for kind, sizes in sizes_of.items():
        found["per_chunk"][kind] = {}
        for size in sizes:
            rounds = len(asked["scripts"][kind]["order"]) - 1
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


def script(sizes_of: Sizes, tries: int, rounds: int, seed: int) -> dict[str, Any]:
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

    few = max(1, tries // 4)
    return {
        "scripts": {
            kind: {
                "sizes": sizes,
                "order": [orders.sample(ways, len(ways)) for _ in range(max(1, rounds // slow) + 1)],
            }
            for kind, sizes in sizes_of.items()
            for ways, slow in [(ways_of(kind), 4 if SIZES[kind] == SHORT else 1)]
        },
        "providers": {
            each.name: asked_of(each, tries if each.silent_after is None else few) for each in PROVIDERS
        },
    }


def cost(found: dict[str, dict[str, Any]], sizes_of: Sizes) -> Table:
    rows = []
    for kind, (*_, size) in sizes_of.items():
        for name, side in found.items():
            taken = side["per_chunk"][kind][str(size)]
            each = [f"{median(taken[way]) / size * 1e3:.1f}" if way in taken else "" for way in WAYS]
            to_off = [
                f"{Ratio.of(taken[way], taken[OFF_WAY]).median:.2f}" if way in taken else ""
                for way in (ON, WAITING)
            ]
            rows.append([kind, f"{size:,}", name, *each, *to_off])
    columns = ["content", "chunks", "package", "bare loop", "off", "on", "request waits"]
    return Table("Processor time, us per chunk; medians", [*columns, "on : off", "waits : off"], rows)


def growth(found: dict[str, dict[str, Any]], sizes_of: Sizes) -> Table:
    rows = []
    for kind, sizes in sizes_of.items():
        for name, side in found.items():
            for way in (OFF_WAY, ON, WAITING):
                by_size = side["per_chunk"][kind]
                if way in by_size[str(sizes[0])]:
                    each = [median(by_size[str(size)][way]) / size * 1e3 for size in sizes]
                    shown = ", ".join(f"{us:.1f}" for us in each)
                    rows.append([kind, name, way, f"{sizes[-1]:,}", shown, f"{each[-1] / each[0]:.1f}"])
    columns = ["content", "package", "preemption", "up to", "us per chunk, short to long", "growth"]
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
    tries = options.rounds * 5
    sizes_of: Sizes = {kind: sizes[:2] for kind, sizes in SIZES.items()} if options.quick else SIZES
    asked = script(sizes_of, tries, options.rounds, options.seed)
    found = {OURS: await ours(asked, sizes_of, options.seed), THEIRS: await asyncio.to_thread(theirs, asked)}

    def drawn(name: str, kind: Content, way: str) -> list[tuple[float, float]]:
        by_size = found[name]["per_chunk"][kind]
        return [(int(size), median(taken[way]) / int(size) * 1e3) for size, taken in by_size.items()]

    publish(
        "typescript",
        [cost(found, sizes_of), growth(found, sizes_of), latency(found)],
        options={"rounds": options.rounds, "tries": tries, "seed": options.seed, "sizes": LONG},
        samples=found,
        picture=lines(
            "A chunk while a request waits, by the length of the answer",
            "chunks",
            "microseconds of processor time per chunk, median; text: preemption on, and nothing requested",
            [
                Line(
                    f"{kind}, {name}",
                    drawn(name, kind, WAITING if WAITING in ways_of(kind) else ON),
                    colour,
                    is_dashed=name == THEIRS,
                )
                for name in (THEIRS, OURS)
                for colour, kind in enumerate(SIZES)
            ],
        ),
    )


if __name__ == "__main__":
    asyncio.run(main(arguments(__doc__, rounds=12)))
