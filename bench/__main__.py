"""Runs all benchmarks, or those that are named, one by one, and writes their figures into the pages."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time

from bench import HAS_STACK, ROOT
from bench.report import QUICK

MINUTES = {
    "per_chunk": 5,
    "growth": 5,
    "seal_latency": 6,
    "redirect": 9,
    "many": 11,
    "faults": 10,
    "tool_node": 6,
    "run_list": 2,
    "polling": 8,
    "typescript": 25,
}
"""How long each takes on two cores that have nothing else to do."""


def chosen() -> argparse.Namespace:
    taken = ", ".join(f"{name} {minutes}" for name, minutes in MINUTES.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=f"Minutes on two idle cores, {sum(MINUTES.values())} in all: {taken}.",
    )
    parser.add_argument("names", nargs="*", metavar="name", help="which; all of them, if none is named")
    parser.add_argument("--seed", type=int, help="of everything that is random")
    parser.add_argument(QUICK, action="store_true", help="a look whether they work: no figures, no files")
    options = parser.parse_args()
    if unknown := set(options.names) - set(MINUTES):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(MINUTES)}")
    return options


def lacking(name: str) -> str | None:
    """Returns what a benchmark cannot run without and is not there."""
    if name == "typescript" and shutil.which("npm") is None:
        return "there is no npm"
    if name == "polling" and not HAS_STACK:
        return "`make test-distributed` has not set its servers up"
    return None


def _run(name: str, *options: str) -> int:
    command = [sys.executable, "-m", f"bench.{name}", *options]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main() -> int:
    options = chosen()
    passed_on = [QUICK] if options.quick else []
    if options.seed is not None:
        passed_on += ["--seed", str(options.seed)]
    failed = []
    for name in options.names or MINUTES:
        if reason := lacking(name):
            print(f"\n== {name}: left out, since {reason}", flush=True)
            continue
        print(f"\n== {name}", flush=True)
        began = time.monotonic()
        # Each in a process of its own: none finds what another has left in memory.
        if _run(name, *passed_on):
            failed.append(name)
        print(f"\n({name}: {time.monotonic() - began:.0f} s)", flush=True)
    if not options.quick and _run("page"):
        failed.append("page")
    if failed:
        print(f"\nfailed: {', '.join(failed)}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
