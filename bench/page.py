"""Writes the figures into the pages, from `results/`: `python -m bench.page`, after a benchmark.

In docs/performance.md the command and the tables of each section that names a benchmark; in README.md what
was measured, and what was lost through faults. The words around them are written by hand, to be read again.
"""

# ruff: noqa: RUF001 -- ratios are written with the sign that reads "times"

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from bench import ROOT
from bench.report import RESULTS

Results: TypeAlias = Mapping[str, Mapping[str, Any]]
"""What is in each file of results, by the benchmark's name."""

PROMISED = ("promised", "at most", "measured", "kept")
LINE_LENGTH = 116


def read() -> Results:
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table whose numbers stand on the right."""
    cells = list(zip(*rows, strict=True))
    rules = [
        "---:" if place and all(re.match(r"-?\d[\d.,]*( %| ±.*)?$|$", cell) for cell in column) else "---"
        for place, column in enumerate(cells)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, rules, *rows))


def tables(results: Mapping[str, Any]) -> list[tuple[str | None, str]]:
    """Returns the tables of one benchmark, each with its title."""
    found: list[tuple[str | None, str]] = [
        (f"{table['title']}:", markdown(table["columns"], table["rows"])) for table in results["tables"]
    ]
    if results["checks"]:
        rows = [
            [each["what"], f"{each['limit']:g}", f"{each['measured']:.4g}", "yes" if each["kept"] else "no"]
            for each in results["checks"]
        ]
        found.append((None, markdown(PROMISED, rows)))
    return found


def performance(text: str, results: Results) -> str:
    """Returns docs/performance.md with these results.

    Raises:
        ValueError: A section has more tables, or fewer, than the benchmark.
    """
    return "".join(_section(each, results) for each in re.split(r"(?m)^(?=## )", text))


def _section(text: str, results: Results) -> str:
    named = re.match(r"## .*: `bench\.(\w+)`\n", text)
    if named is None:
        return text
    name = named[1]
    blocks, made = text.split("\n\n"), tables(results[name])
    places = [place for place, block in enumerate(blocks) if block.startswith("| ")]
    if len(places) != len(made):
        raise ValueError(
            f"bench.{name} has {len(made)} tables, and its section {len(places)}: add or remove some"
        )
    for place, (title, table) in zip(places, made, strict=True):
        blocks[place] = table + ("\n" if blocks[place].endswith("\n") else "")
        if title is not None and blocks[place - 1].endswith(":"):
            blocks[place - 1] = title
    return "\n\n".join(
        f"`{results[name]['command']}`" if re.fullmatch(r"`[^`]*python -m bench\.[^`]*`", block) else block
        for block in blocks
    )


def _row(results: Results, name: str, *starts: str, table: int = 0) -> list[str]:
    """Returns the cells of the first row that begins so."""
    rows = results[name]["tables"][table]["rows"]
    return next(row for row in rows if all(map(str.startswith, row, starts)))


def _checks(results: Results, name: str, part: str) -> list[float]:
    """Returns what was measured of the promised figures in whose words this is."""
    return [each["measured"] for each in results[name]["checks"] if re.search(part, each["what"])]


def _span(values: Sequence[float], form: str = ".2f") -> str:
    low, high = (format(pick(values), form) for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def _redirecting(results: Results) -> str:
    steer, *others, waiting = (
        _row(results, "redirect", "scripted", way)
        for way in ("steer", "interrupt", "rollback", "cancel", "enqueue")
    )
    lost = "nothing" if steer[5] == "0" else f"{steer[5]} tokens"
    taken = _span([float(row[2]) for row in others], ",.0f")
    return (
        f"{steer[2]} ms, {lost} lost; `interrupt`, `rollback`, cancel and new run: {taken} ms and the half "
        f"answer lost; waiting: {float(waiting[2]):,.0f} ms"
    )


def _chunk(results: Results) -> str:
    (alone,), (streamed,) = (
        _checks(results, "per_chunk", f"^Graph, {way}, text: ModelNode$")
        for way in ("ainvoke", 'stream_mode="messages"')
    )
    return f'{alone:.2f}× in a graph\'s `ainvoke`, {streamed:.2f}× with `stream_mode="messages"`'


def _growth(results: Results) -> str:
    (text, text_alone), (blocks, blocks_alone) = (
        [float(_row(results, "growth", content, node)[-1]) for node in ("ModelNode", "plain")]
        for content in ("text", "blocks")
    )
    return (
        f"text {text:.1f}× (core alone: {text_alone:.1f}×); content blocks, which core itself merges ever "
        f"more slowly, {blocks:.1f}× (core alone: {blocks_alone:.1f}×)"
    )


def _memory(results: Results) -> str:
    _, core, _, more, _ = _row(results, "growth", "text", table=1)
    return f"{more} bytes beside core's {int(core):,}"


def _last_chunk(results: Results) -> str:
    (chunks,) = _checks(results, "seal_latency", "chunks after acceptance")
    return "one chunk" if chunks == 1 else f"{chunks:g} chunks"


def _silent(results: Results) -> str:
    row = _row(results, "seal_latency", "same process", "silent")
    return f"{row[8]} ms (median {row[7]} ms)"


def _elsewhere(results: Results) -> str:
    rows = [row for row in results["seal_latency"]["tables"][0]["rows"] if row[0].startswith("API")]
    middle, worst = ([float(row[place]) for row in rows] for place in (-2, -1))
    return f"{_span(worst, '.0f')} ms (median {_span(middle, '.0f')} ms)"


def _ungated(results: Results) -> str:
    rows = results["tool_node"]["tables"][0]["rows"]
    error = max(float(row[2].partition(" ± ")[2]) for row in rows)
    return f"{_span(_checks(results, 'tool_node', 'no gate'))}×, each uncertain by {error:.2f} or less"


def _gated(results: Results) -> str:
    every, by_condition = (_checks(results, "tool_node", part) for part in ("gated, to", "gated by"))
    return f"{_span(every)}×; with a `when`, which costs one task for its batch, {_span(by_condition)}×"


def _polled(results: Results) -> str:
    off, on = (_row(results, "polling", "200", how) for how in ("off", "0.2 s"))
    queries = int(on[2]) - int(off[2])
    processor = int(on[3].removesuffix(" %")) - int(off[3].removesuffix(" %"))
    return f"{on[6]} ms; {queries} queries/s and {processor} % of a core for the looking"


def _listed(results: Results) -> str:
    none, every = _checks(results, "run_list", "")
    return f"{none:.2f}×, and {every:.2f}× if all were halted"


MEASURED: Mapping[str, Callable[[Results], str]] = {
    "redirecting an answer": _redirecting,
    "a streamed chunk": _chunk,
    "the same, preemption disabled": lambda results: (
        f"{_span(_checks(results, 'per_chunk', 'preemption disabled'))}×"
    ),
    "100,000 chunks": _growth,
    "memory for a chunk": _memory,
    "from acceptance": _last_chunk,
    "the same with a provider": _silent,
    "from a host's post": _elsewhere,
    "a batch of tool calls": _ungated,
    "a gated batch": _gated,
    "a halt posted to another process": _polled,
    "`runs.list`": _listed,
}
"""What README.md's table says is measured, by how its rows begin."""

FAULTS = re.compile(r"\*\*Faults injected, and what was lost:\*\*.*?(?=\n\n)", re.DOTALL)


def readme(text: str, results: Results) -> str:
    """Returns README.md with these results.

    Raises:
        ValueError: Something was lost, which is to be said by hand; or a row is not there.
    """
    for start, say in MEASURED.items():
        row = re.compile(rf"(?m)^(?P<before>\| {re.escape(start)}[^|]*\|[^|]*\| )[^|]*(?P<after> \|[^|]*\|)$")
        text, count = row.subn(rf"\g<before>{say(results)}\g<after>", text)
        if count != 1:
            raise ValueError(f"{count} rows of README.md begin with {start!r}, not one")
    text, count = FAULTS.subn(_faults(results), text)
    if count != 1:
        raise ValueError("README.md does not say what was lost through faults")
    return text


def _faults(results: Results) -> str:
    broken = [each["what"] for each in results["faults"]["checks"] if not each["kept"]]
    if broken:
        raise ValueError(f"bench.faults found what README.md denies: {broken}")
    ours, stock, batched, each = (
        _row(results, "faults", node)
        for node in (
            "midstream.ToolNode, batched",
            "LangGraph",
            "HumanInTheLoopMiddleware, batched",
            "HumanInTheLoopMiddleware, per",
        )
    )
    death = [int(cell) for cell in results["faults"]["tables"][2]["rows"][0]]
    kept = [row for row in results["faults"]["tables"][1]["rows"] if row[1] == "ModelNode"]
    runs = sum(int(row[2]) for row in kept if row[0] in ("steered", "halted"))
    said = (
        f"**Faults injected, and what was lost:** {int(ours[2]):,} tool calls in {int(ours[1]):,} batches "
        f"with pauses, wrong answers and {ours[3]} kills: none acted twice or not at all, no run failed. "
        f"(The same batches through LangGraph's own node: {int(stock[4]):,} acted twice; through "
        f"`HumanInTheLoopMiddleware`, which fails the run at a wrong answer: {each[4]}, and in its batched "
        f"mode {batched[8]} threads that no answer could free any more.) {death[0]} × `kill -9` of a steered "
        f"run on SQLite: {death[2]} of {death[1]} steers applied once, {death[8]} of {death[7]} sealed turns "
        f"kept. {runs} steered and halted runs: every character that was seen is kept. `bench.faults`."
    )
    return textwrap.fill(said, LINE_LENGTH, break_on_hyphens=False)


PAGES: Mapping[str, Callable[[str, Results], str]] = {"docs/performance.md": performance, "README.md": readme}


def main() -> None:
    results = read()
    for name, write in PAGES.items():
        path = ROOT / name
        before = path.read_text()
        after = write(before, results)
        path.write_text(after)
        print(f"{name}: {'written' if after != before else 'as it was'}")


if __name__ == "__main__":
    main()
