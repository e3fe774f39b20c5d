"""How many examples a test of random ones tries.

The same ones each time, so that what passes here passes in CI; `--hypothesis-profile search` takes new ones.
"""

from __future__ import annotations

import os

from hypothesis import settings

TIMES = int(os.environ.get("MIDSTREAM_EXAMPLES", "1"))
"""How many times as many as usual."""

settings.register_profile("same", derandomize=True, print_blob=True)
settings.register_profile("search", derandomize=False, print_blob=True)


def examples(count: int) -> int:
    """Returns the number of examples to try where usually this many are enough."""
    return count * TIMES
