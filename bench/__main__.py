"""Runs all benchmarks, one after the other, each in a process of its own."""

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
    failed = []
    for name in sys.argv[1:] or NAMES:
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
        if subprocess.run([sys.executable, "-m", f"bench.{name}"], cwd=ROOT, check=False).returncode:
            failed.append(name)
        print(f"\n({name}: {time.monotonic() - began:.0f} s)", flush=True)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
