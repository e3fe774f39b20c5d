"""How time and memory grow with the length of an answer, beside core's own.

The same one-node graph is run with a plain node that loops over `model.astream` and with `ModelNode`, on
answers of 1,000 to 200,000 chunks. Memory is what is alive at the last chunk, of all that was made since the
answer began, as `tracemalloc` counts it.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from typing import Any

from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk

from bench.measure import Side, in_turns, median
from bench.models import Content, ReadyModel
from bench.per_chunk import LOOP, NODE, in_graph, invoked
from bench.report import Check, Table, arguments, publish
from bench.svg import Line, lines

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 200_000)
QUICK_SIZES = (1_000, 10_000, 100_000)
MEMORY_CHUNKS, QUICK_MEMORY_CHUNKS = 20_000, 2_000
MEMORY_ROUNDS = 3
LIMIT_GROWTH, LIMIT_MEMORY = 11.0, 2.0
CONTENTS: tuple[Content, ...] = ("text", "blocks")


class FreshModel(ReadyModel):
    """Makes its chunks while it streams, and notes how much memory is in use after the last of them."""

    bytes_at_end: int = 0

    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        for number in range(self.size):
            content: Any = f"word{number} "
            if self.content == "blocks":
                content = [{"type": "text", "text": content, "index": 0}]
            yield ChatGenerationChunk(message=AIMessageChunk(content=content))
        gc.collect()
        self.bytes_at_end = tracemalloc.get_traced_memory()[0]


async def held(model: FreshModel, side: Side) -> float:
    """Returns the bytes for each chunk that are alive as the stream ends."""
    gc.collect()
    tracemalloc.start()
    try:
        await side.run()
        return model.bytes_at_end / model.size
    finally:
        tracemalloc.stop()


async def memory(chunks: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    versions: list[tuple[str, Content, str | None]] = [
        ("text", "text", None),
        ("blocks", "blocks", None),
        ('text, output_version="v1"', "text", "v1"),
    ]
    for name, content, version in versions:
        model = FreshModel(size=chunks, content=content, output_version=version)
        sides = in_graph(model, invoked, names=[LOOP, NODE])
        for side in sides:
            await side.run()
        found[name] = {side.name: [await held(model, side) for _ in range(rounds)] for side in sides}
    return found


def picture(samples: dict[str, Any], sizes: Sequence[int]) -> str:
    def line(content: Content, name: str) -> Line:
        taken = samples[f"seconds, {content}"]
        points = [(size, median(taken[f"{size} {name}"]) * 1e3) for size in sizes]
        short = "ModelNode" if name == NODE else "plain node"
        return Line(f"{short}, {content}", points, CONTENTS.index(content), is_base=name == LOOP)

    return lines(
        "The time of an answer, by its length: as long as without midstream",
        "chunks",
        "milliseconds of processor time for the whole run, median",
        [line(content, name) for content in CONTENTS for name in (LOOP, NODE)],
    )


async def main() -> None:
    options = arguments(__doc__, rounds=9)
    sizes, chunks = (QUICK_SIZES, QUICK_MEMORY_CHUNKS) if options.quick else (SIZES, MEMORY_CHUNKS)
    samples: dict[str, Any] = {}
    checks: list[Check] = []
    rows: list[list[str]] = []

    for content in CONTENTS:
        sides = []
        for size in sizes:
            model = ReadyModel(size=size, content=content)
            for side in in_graph(model, invoked, names=[LOOP, NODE]):
                sides.append(Side(f"{size} {side.name}", side.run, side.prepare))
        taken = await in_turns(sides, rounds=options.rounds, seed=options.seed)
        samples[f"seconds, {content}"] = taken
        for name in (LOOP, NODE):
            seconds = {size: taken[f"{size} {name}"] for size in sizes}
            growth = median([far / near for far, near in zip(seconds[100_000], seconds[10_000], strict=True)])
            rows.append(
                [content, name]
                + [f"{median(seconds[size]) / size * 1e6:.2f}" for size in sizes]
                + [f"{growth:.2f}"]
            )
            if name == NODE:
                checks.append(Check(f"{content}: 100,000 chunks to 10,000", LIMIT_GROWTH, growth))
        print(f"{content}: done", flush=True)

    by_kind = await memory(chunks, 1 if options.quick else MEMORY_ROUNDS)
    samples["bytes per chunk"] = by_kind
    memory_rows = []
    for kind, by_side in by_kind.items():
        core, ours = median(by_side[LOOP]), median(by_side[NODE])
        ratio = ours / core
        memory_rows.append([kind, f"{core:.0f}", f"{ours:.0f}", f"{ours - core:.0f}", f"{ratio:.3f}"])
        checks.append(Check(f"{kind}: memory, to core's own (2 = as much again)", LIMIT_MEMORY, ratio))

    publish(
        "growth",
        [
            Table(
                f"Processor time, us per chunk by length of the answer, {options.rounds} rounds in turns",
                ["content", "node", *(f"{size:,}" for size in sizes), "100,000 : 10,000"],
                rows,
            ),
            Table(
                f"Bytes per chunk alive at the last of {chunks:,} chunks",
                ["content", "plain node", "ModelNode", "difference", "ratio"],
                memory_rows,
            ),
        ],
        options={"rounds": options.rounds, "seed": options.seed, "sizes": list(sizes)},
        samples=samples,
        checks=checks,
        picture=picture(samples, sizes),
    )


if __name__ == "__main__":
    asyncio.run(main())
