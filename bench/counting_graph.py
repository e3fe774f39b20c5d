"""Makes a `langgraph dev` count what it asks of its storage: a server that loads this file does so.

Its storage is the in-memory saver, and a query is a call of it: a checkpoint read or written, a list, a set
of pending writes. The counts are in a file that the benchmark maps too, so to read them asks nothing of the
server. The server loads this file by its path, so it stands on nothing else of the benchmarks.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

VARIABLE = "MIDSTREAM_BENCH_QUERIES"
"""The environment's name for the file."""

LEDGER = "preemption"
"""The namespace of midstream's ledger, which a server without midstream does not know."""

QUERIES = ("get_tuple", "list", "put", "put_writes")


class Counts:
    """Two counts that processes share: all queries, and those to the ledger; one process counts.

    Args:
        path: The file; made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            self._shared = memoryview(mmap.mmap(file.fileno(), 16)).cast("Q")
        self._lock = Lock()

    def add(self, *, to_ledger: bool) -> None:
        # `langgraph dev` has an event loop for the API and another for the runs.
        with self._lock:
            self._shared[0] += 1
            self._shared[1] += to_ledger

    def read(self) -> tuple[int, int]:
        """Returns both."""
        return self._shared[0], self._shared[1]


def counted(query: Callable[..., Any], counts: Counts) -> Callable[..., Any]:
    def count(saver: Any, config: Any, *args: Any, **options: Any) -> Any:
        of = (config or {}).get("configurable", {})
        counts.add(to_ledger=of.get("checkpoint_ns") == LEDGER)
        return query(saver, config, *args, **options)

    return count


if VARIABLE in os.environ:
    counts = Counts(Path(os.environ[VARIABLE]))
    for name in QUERIES:
        setattr(InMemorySaver, name, counted(getattr(InMemorySaver, name), counts))

builder = StateGraph(MessagesState)
builder.add_node("nothing", lambda _: {})
builder.add_edge(START, "nothing")
builder.add_edge("nothing", END)
graph = builder.compile()
