"""Which run a node works for, and whether it works inside a tool.

On the server every run has an id. An open-source graph may be invoked without one; then the run is known
by its `RunControl`, which LangGraph makes once for each run and hands to all of its nodes and subgraphs.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

from langgraph.runtime import RunControl, Runtime

MAX_UNNAMED = 1024
"""How many runs without an id are remembered in this process."""

_unnamed: OrderedDict[int, tuple[RunControl, str]] = OrderedDict()
_lock = Lock()

_inside_tool: ContextVar[bool] = ContextVar("midstream_inside_tool", default=False)


def run_id_of(runtime: Runtime[Any]) -> str:
    """Returns the run's id; for a run that was given none, one that stays the same while it lasts."""
    info = runtime.execution_info
    if info is not None and info.run_id is not None:
        return str(info.run_id)
    control = runtime.control
    if control is None:
        return str(uuid.uuid4())

    with _lock:
        # The entry holds the control itself, so that its `id` cannot be given to another.
        _, name = _unnamed.setdefault(id(control), (control, str(uuid.uuid4())))
        _unnamed.move_to_end(id(control))
        while len(_unnamed) > MAX_UNNAMED:
            _unnamed.popitem(last=False)
        return name


def is_inside_tool() -> bool:
    """Tells whether this code runs in a tool's body: a subagent there leaves the thread's requests alone."""
    return _inside_tool.get()


@contextmanager
def inside_tool() -> Iterator[None]:
    """Marks the code within as a tool's body, for everything that it calls or starts."""
    token = _inside_tool.set(True)
    try:
        yield
    finally:
        _inside_tool.reset(token)
