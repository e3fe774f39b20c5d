"""The run that a node works for, as this process knows it.

On the server every run has an id, and keeps it when another worker takes it up. An open-source graph may be
invoked without one; then the run is known by its `RunControl`, which LangGraph makes once for each run and
hands to all of its nodes and subgraphs.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from midstream import _run_notes as notes
from midstream._host import is_below_tools, root_run_id
from midstream._run_notes import RunNote
from midstream.state import Halt, halt_of

MAX_RUNS = 4096
"""How many runs are remembered in this process; a running node keeps its own in any case."""

_runs: OrderedDict[Hashable, Run] = OrderedDict()
_lock = Lock()

_inside_tool: ContextVar[bool] = ContextVar("midstream_inside_tool", default=False)


class Run:
    """What the agents of one run share: which request is whose, and one look-out for all of them."""

    def __init__(self, run_id: str, anchor: object = None) -> None:
        self.id = run_id
        self.lock = Lock()
        self.shared: dict[Hashable, Any] = {}
        """What the agents' calls share while they last, by a key of its maker's; guarded by `lock`."""

        self.began_at = time.time()
        """When this process came to know the run, by the wall clock."""

        self.halt: Halt | None = None
        """Why this run was halted, as soon as one of its agents has decided it; None while it goes on."""

        self.halted_by: str | None = None
        """The agent that decided the halt."""

        self.renewed_at = 0.0
        """When its id was last given to another run of the thread, in seconds of Unix time; 0: never."""

        self.seals: dict[str, RunNote] = {}
        """What is known of this run's seals, under its own id; guarded by `lock`."""

        self._input: str | None = None
        self._owners: dict[str, str] = {}
        self._ended: set[str] = set()
        self._known: set[Hashable] = set()
        self._ending = 0
        # Held so that the `id()` by which a run without an id is known is not given to another object.
        self._anchor = anchor

    def __repr__(self) -> str:
        return f"<Run {self.id} [{len(self._owners)} taken]>"

    def enter(self, input_name: str) -> None:
        """Forgets what was decided if the id is now that of a run of another input, as it may be by hand."""
        with self.lock:
            if self._input not in (None, input_name):
                self.halt = self.halted_by = None
                self._ended.clear()
                self.renewed_at = time.time()
            self._input = input_name

    def is_first(self, what: Hashable) -> bool:
        """Tells whether this comes up for the first time in this run."""
        with self.lock:
            is_first = what not in self._known
            self._known.add(what)
            return is_first

    def disarm(self, poll: object) -> bool:
        """Has a callable that failed not be asked again in this run; returns whether it was before."""
        return self.is_first(("disarmed", id(poll)))

    def is_armed(self, poll: object) -> bool:
        """Tells whether a callable may be asked."""
        return ("disarmed", id(poll)) not in self._known

    def take(self, owner: str, request_ids: Collection[str]) -> list[str]:
        """Gives requests to an agent; returns those that are its own now, which others will not get."""
        with self.lock:
            return [name for name in request_ids if self._owners.setdefault(name, owner) == owner]

    def free(self, owner: str, request_ids: Collection[str]) -> list[str]:
        """Returns the requests that this agent has or could take."""
        with self.lock:
            return [name for name in request_ids if self._owners.get(name, owner) == owner]

    def note_seal(self, note: RunNote, known: Mapping[str, RunNote]) -> None:
        """Takes note of a seal, and of what is on the ledger of this run."""
        with self.lock:
            notes.add(self.seals, [note, *(each for name, each in known.items() if name == self.id)])

    def know_ended(self, message_ids: Collection[str]) -> None:
        """Takes note of answers that other agents sealed or began anew in an earlier run of the turn."""
        with self.lock:
            self._ended.update(message_ids)

    def begin_seal(self, known: Collection[str], limit: int) -> bool:
        """Takes one seal or restart of the turn's budget, which the parallel agents of a run share.

        Args:
            known: The ids of those that the agent knows from its state.
            limit: How many the turn may have.
        """
        with self.lock:
            if len(self._ended.union(known)) + self._ending >= limit:
                return False
            self._ending += 1
            return True

    def finish_seal(self, message_id: str | None) -> None:
        """Says what became of a seal that was begun; None gives it back."""
        with self.lock:
            self._ending -= 1
            if message_id is not None:
                self._ended.add(message_id)


def run_of(runtime: Runtime[Any]) -> Run:
    """Returns the run that a node works for; the same object for all of its nodes in this process."""
    info, control = runtime.execution_info, runtime.control
    run_id = root_run_id() or (info.run_id if info is not None else None)
    key: Hashable
    if info is not None and run_id is not None:
        key = (info.thread_id, str(run_id))
    elif control is not None:
        key = id(control)
    else:
        return Run(str(uuid.uuid4()))

    with _lock:
        run = _runs.get(key)
        if run is None:
            name = key[1] if isinstance(key, tuple) else str(uuid.uuid4())
            run = _runs[key] = Run(name, control)
        _runs.move_to_end(key)
        while len(_runs) > MAX_RUNS:
            _runs.popitem(last=False)
        return run


def run_id_of(runtime: Runtime[Any]) -> str:
    """Returns the run's id; for a run that was given none, one that stays the same while it lasts."""
    return run_of(runtime).id


def halt_in(state: Any, runtime: Runtime[Any]) -> Halt | None:
    """Returns the halt of this run: in the node's state, or decided by another agent of this process."""
    run = run_of(runtime)
    return halt_of(state, run.id) or run.halt


def is_inside_tool(config: RunnableConfig) -> bool:
    """Tells whether a node works for a tool: a subagent there leaves the thread's requests alone."""
    return _inside_tool.get() or is_below_tools(config)


@contextmanager
def inside_tool() -> Iterator[None]:
    """Marks the code within as a tool's body, for everything that it calls or starts."""
    token = _inside_tool.set(True)
    try:
        yield
    finally:
        _inside_tool.reset(token)
