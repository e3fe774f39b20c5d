"""What is lost and what happens twice when things go wrong.

Three faults, many random tries: batches of tool calls through pauses, bad answers and `kill -9`, by the node
that runs them (`bench.tool_faults`); text that a person saw and the thread does not have, of runs that are
steered, halted, cancelled and killed (`bench.lost_text`); and steers of runs that are killed again and again
(`bench.deaths`).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.deaths import KILLS, Death, deaths
from bench.lost_text import FAULTS, Told, texts
from bench.lost_text import OURS as OUR_NODE
from bench.report import Check, Table, arguments, publish
from bench.svg import Bar, bars
from bench.tool_faults import INVALID_SHARE, KINDS, OURS, OURS_EACH, Batch, batches

DEATH_COLUMNS = {
    "kills": "kills",
    "steers": "accepted",
    "applied": "applied",
    "by a later run": "waited",
    "lost": "lost",
    "repeated": "repeated",
    "out of order": "out_of_order",
    "sealed turns": "seals",
    "kept": "seals_kept",
}
BATCH_COLUMNS = {
    "calls": "calls",
    "kills": "kills",
    "acted twice": "repeated",
    "never acted": "missing",
    "acted though refused": "refused",
    "runs in error": "failed_runs",
}
TEXT_COLUMNS = {
    "characters seen": "seen",
    "lost": "lost",
    "lost of sealed": "lost_of_sealed",
    "sealed turns": "seals",
    "kept": "seals_kept",
    "gone on with": "goes_on",
}


def total(each: Sequence[object], name: str) -> int:
    return sum(int(getattr(one, name)) for one in each)


def tables(
    by_node: Mapping[str, Sequence[Batch]],
    by_fault: Mapping[str, Mapping[str, Sequence[Told]]],
    killed: Sequence[Death],
) -> list[Table]:
    return [
        Table(
            f"Batches of tool calls with questions among them, {INVALID_SHARE:.0%} of the answers invalid",
            ["tool node", "batches", *BATCH_COLUMNS, "stuck"],
            [
                [
                    kind,
                    str(len(found)),
                    *(str(total(found, name)) for name in BATCH_COLUMNS.values()),
                    str(len(found) - total(found, "finished")),
                ]
                for kind, found in by_node.items()
            ],
        ),
        Table(
            "Text of runs on SQLite, in characters",
            ["fault", "node", "runs", *TEXT_COLUMNS],
            [
                [fault, node, str(len(found)), *(str(total(found, name)) for name in TEXT_COLUMNS.values())]
                for fault, by in by_fault.items()
                for node, found in by.items()
            ],
        ),
        Table(
            f"Runs on SQLite, steered twice, killed with -9 up to {KILLS} times: sums over {len(killed)}",
            list(DEATH_COLUMNS),
            [[str(total(killed, name)) for name in DEATH_COLUMNS.values()]],
        ),
    ]


def checks(
    by_node: Mapping[str, Sequence[Batch]],
    by_fault: Mapping[str, Mapping[str, Sequence[Told]]],
    killed: Sequence[Death],
) -> list[Check]:
    ours = [*by_node[OURS], *by_node[OURS_EACH]]
    told = {fault: by[OUR_NODE] for fault, by in by_fault.items()}
    all_told = [each for found in told.values() for each in found]
    wrong = sum(total(ours, name) for name in ("repeated", "missing", "refused"))
    seals = total(all_told, "seals") + total(killed, "seals")
    kept = total(all_told, "seals_kept") + total(killed, "seals_kept")
    lost = sum(total(killed, name) for name in ("lost", "repeated", "out_of_order"))
    return [
        Check("tool calls that acted twice, not at all, or though refused", 0, wrong),
        Check(
            "batches with a run in error, or stuck", 0, sum(b.failed_runs > 0 or not b.finished for b in ours)
        ),
        Check(
            "characters lost of steered and halted runs",
            0,
            total([*told["steered"], *told["halted"]], "lost"),
        ),
        Check("characters lost of sealed answers", 0, total(all_told, "lost_of_sealed")),
        Check("sealed turns lost", 0, seals - kept),
        Check("threads that could not be gone on with", 0, len(all_told) - total(all_told, "goes_on")),
        Check("steers lost, repeated or out of order through kill -9", 0, lost),
    ]


def picture(
    by_node: Mapping[str, Sequence[Batch]], by_fault: Mapping[str, Mapping[str, Sequence[Told]]]
) -> str:
    calls, tries = total(by_node[OURS], "calls"), len(by_node[OURS])
    text = []
    for fault in FAULTS:
        for node, found in by_fault[fault].items():
            share = total(found, "lost") / max(1, total(found, "seen")) * 100
            text.append(Bar(f"{fault}, {node}", share, is_base=node != OUR_NODE, text=f"{share:.0f} %"))
    ours = (OURS, OURS_EACH)
    return bars(
        "When things go wrong",
        "the same random batches and faults for each; grey: without midstream",
        [
            (
                f"Tool calls that acted twice, of {calls:,} with pauses, bad answers and kills",
                [Bar(kind, total(by_node[kind], "repeated"), is_base=kind not in ours) for kind in KINDS],
            ),
            (
                f"Threads that no answer could free any more, of {tries:,}",
                [
                    Bar(kind, tries - total(by_node[kind], "finished"), is_base=kind not in ours)
                    for kind in KINDS
                ],
            ),
            ("Text that the person saw and the thread does not have", text),
        ],
    )


def main(options: argparse.Namespace) -> None:
    # A `kill -9` is no power cut: what is in memory that processes share outlives it, and costs no disk.
    shared = Path("/dev/shm")
    # Before there is an event loop or a thread: the children are copies of this process.
    with tempfile.TemporaryDirectory(
        prefix="midstream-bench-", dir=shared if shared.is_dir() else None
    ) as name:
        by_node = batches(options.rounds, options.seed, Path(name))
        by_fault = texts(max(1, options.rounds // 20), options.seed, Path(name))
        killed = deaths(max(1, options.rounds // 25), options.seed, Path(name))
    publish(
        "faults",
        tables(by_node, by_fault, killed),
        options={"rounds": options.rounds, "seed": options.seed},
        samples={
            "batches": {kind: [asdict(each) for each in found] for kind, found in by_node.items()},
            "texts": {
                fault: {node: [asdict(each) for each in found] for node, found in by.items()}
                for fault, by in by_fault.items()
            },
            "deaths": [asdict(each) for each in killed],
        },
        checks=checks(by_node, by_fault, killed),
        picture=picture(by_node, by_fault),
    )


if __name__ == "__main__":
    main(arguments(__doc__, rounds=1000, quick=5))
