"""Runs all benchmarks, or those that are named, one after the other, each in a process of its own.

`--quick` runs them just often enough to see that they work.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time

from bench import ROOT

NAMES = (
    "per_chunk",
    "growth",
    "seal_latency",
    "redirect",
    "many",
    "faults",
    "tool_node",
    "run_list",
    "polling",
    "typescript",
)


def main() -> int:
    options = [each for each in sys.argv[1:] if each.startswith("-")]
    failed = []
    for name in [each for each in sys.argv[1:] if not each.startswith("-")] or NAMES:
        if name == "typescript" and shutil.which("npm") is None:
            print(f"\n== {name}: left out, since there is no npm", flush=True)
            continue
        if name == "polling" and not (ROOT / ".venv-distributed" / ".installed").exists():
            print(
                f"\n== {name}: left out, since `make test-distributed` has not set its servers up", flush=True
            )
            continue
        print(f"\n== {name}", flush=True)
        began = time.monotonic()
        command = [sys.executable, "-m", f"bench.{name}", *options]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
        print(f"\n({name}: {time.monotonic() - began:.0f} s)", flush=True)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
