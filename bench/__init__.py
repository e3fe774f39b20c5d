"""Benchmarks: each is a command, `python -m bench.<name>`; `python -m bench` runs them all.

What they compare runs in one process and in turns, since the machine may be busy with other things, and what
is reported of a comparison is the ratio of two neighbours. Each prints its tables and leaves them, with every
sample, in `bench/results/<name>.json`, and as a picture in `bench/results/<name>.svg`.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

HAS_STACK = (ROOT / ".venv-distributed" / ".installed").exists()
"""Whether `make test-distributed` has set up what the servers of several processes run from."""

# The example models and the tests' server are no installed packages.
sys.path[:0] = [str(ROOT / name) for name in ("graphs", "tests") if str(ROOT / name) not in sys.path]
