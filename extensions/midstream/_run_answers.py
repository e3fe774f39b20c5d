"""The server's own answers about runs, with what the ledger knows of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson


def with_metadata(
    body: bytes, said: Mapping[str, Mapping[str, Any]], *, without_ids: bool = False
) -> bytes | None:
    """Returns an answer about runs with more in their metadata; None if it stays as it is.

    Args:
        body: A run or a list of runs.
        said: What to add, by run id.
        without_ids: Whether to leave out the runs' ids.
    """
    if not said and not without_ids:
        return None
    content = orjson.loads(body)
    changed = without_ids
    for run in content if isinstance(content, list) else [content]:
        run_id = run.pop("run_id", None) if without_ids else run.get("run_id")
        if run_id in said and "metadata" in run:
            run["metadata"] = {**(run["metadata"] or {}), **said[run_id]}
            changed = True
    return orjson.dumps(content) if changed else None
