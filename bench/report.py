"""What a benchmark leaves behind: tables on the screen, and a JSON file and a picture in `results/`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"

QUICK = "--quick"

PACKAGES = (
    "langgraph",
    "langgraph-api",
    "langgraph-sdk",
    "langchain-core",
    "langchain",
    "langchain-openai",
    "xllamacpp",
)


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it is printed."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        widths = [max(len(row[i]) for row in [self.columns, *self.rows]) for i in range(len(self.columns))]

        def line(cells: Sequence[str]) -> str:
            first, *others = zip(cells, widths, strict=True)
            return "  ".join(
                [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
            ).rstrip()

        rule = "  ".join("-" * width for width in widths)
        return "\n".join([self.title, line(self.columns), rule, *map(line, self.rows)])


@dataclass(frozen=True, slots=True)
class Check:
    """A figure that was promised, and what was measured."""

    what: str
    limit: float
    measured: float

    @property
    def is_kept(self) -> bool:
        return self.measured <= self.limit


def arguments(about: str | None, *, rounds: int, quick: int = 1, seed: int = 7) -> argparse.Namespace:
    """Returns the command's arguments, which are the same for every benchmark.

    Args:
        about: The benchmark's docstring.
        rounds: How often each side runs.
        quick: How often with `--quick`.
        seed: Of everything that is random.
    """
    parser = argparse.ArgumentParser(description=(about or "").partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=None, help=f"how often each side runs ({rounds})")
    parser.add_argument("--seed", type=int, default=seed, help=f"of everything that is random ({seed})")
    parser.add_argument(QUICK, action="store_true", help="a look whether it works: no figures, no files")
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = quick if options.quick else rounds
    return options


def publish(
    name: str,
    tables: Sequence[Table],
    *,
    options: Mapping[str, Any],
    samples: Mapping[str, Any],
    checks: Sequence[Check] = (),
    picture: str | None = None,
) -> None:
    """Prints the tables and the checks, and writes the two files, except with `--quick`.

    Args:
        name: The benchmark's module.
        tables: What is printed.
        options: What the run was made with: rounds, seed, sizes.
        samples: The measured numbers behind the tables.
        checks: The promised figures.
        picture: An SVG.
    """
    for table in tables:
        print(f"\n{table}", flush=True)
    if checks:
        rows = [
            [each.what, f"{each.limit:g}", f"{each.measured:.4g}", "yes" if each.is_kept else "NO"]
            for each in checks
        ]
        print(f"\n{Table('Promised', ['figure', 'at most', 'measured', 'kept'], rows)}", flush=True)

    if QUICK in sys.argv:
        return
    RESULTS.mkdir(exist_ok=True)
    facts = {
        "command": _command(name),
        "options": dict(options),
        "machine": _machine(),
        "checks": [{**asdict(each), "kept": each.is_kept} for each in checks],
        "tables": [asdict(table) for table in tables],
        "samples": _rounded(samples),
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    if picture is not None:
        (RESULTS / f"{name}.svg").write_text(picture)


def _command(name: str) -> str:
    """Returns how this process was begun, with `chrt -r 1` if it goes before all else."""
    goes_first = hasattr(os, "SCHED_RR") and os.sched_getscheduler(0) == os.SCHED_RR
    return shlex.join(
        [*(["chrt", "-r", "1"] if goes_first else []), "python", "-m", f"bench.{name}", *sys.argv[1:]]
    )


def _machine() -> dict[str, Any]:
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "packages": packages,
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return value
