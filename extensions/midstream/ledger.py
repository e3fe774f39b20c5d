"""The thread's own list of requests, kept in its checkpoint storage.

The ledger lives in the checkpoint namespace `preemption` of its thread. Root `n` is a checkpoint whose id
follows from `n`, so that two processes that both make it make the same row; everything else is a pending
write on a root, and a write's task id follows from what it says, so that writing it again changes nothing.
Whoever writes looks afterwards whether its root is still the newest one, and writes again if not.

A root that has gathered much that is settled is replaced: put root `n+1`, read root `n` again, write on
`n+1` what still counts, and at last a write `carried`. A reader that finds no `carried` on the newest root
reads the one before too. A request is therefore never out of sight, wherever a process dies: a writer saw
its root as the newest one after it had written, so whoever replaces the root reads it after that.

The operations are generators over plain data, which ask for `Step`s and are sent the answers; `Ledger`
performs the steps on a saver, either by its sync or by its async methods. See `_ledger_flow`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    empty_checkpoint,
)

from midstream import _claims, wakeup
from midstream import _ledger_flow as flow
from midstream._ledger_flow import Accepted
from midstream._ledger_view import Entry, Mark, Root, View
from midstream._run_notes import Claim, HaltRecord, Page, RunNote
from midstream.errors import ConfigurationError
from midstream.state import Handled, preemption_of
from midstream.telemetry import tell
from midstream_client.protocol import Request, WithdrawRequest, parse_request

__all__ = ["NAMESPACE", "Accepted", "Entry", "HaltRecord", "Ledger", "Mark", "View", "root_id"]

NAMESPACE = "preemption"
"""The reserved checkpoint namespace."""

_SUFFIX = "-0000-6000-8000-000000000000"

T = TypeVar("T")


def root_id(n: int) -> str:
    """Returns the checkpoint id of root `n`: a valid UUID, and sorted as `n` is."""
    return f"{n:08x}{_SUFFIX}"


class Ledger:
    """The requests of one thread.

    Any number of ledgers may be made for one thread, in any number of processes; they hold nothing
    themselves. All methods are safe to repeat: a caller that was cancelled, or whose storage failed, finds
    the change made or not made, and does it again with the same ids to be sure.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], thread_id: str) -> None:
        self._saver = saver
        self._thread_id = str(thread_id)

    def __repr__(self) -> str:
        return f"<Ledger of thread {self._thread_id!r}>"

    @property
    def saver(self) -> BaseCheckpointSaver[Any]:
        return self._saver

    def append(self, request: Request | Mapping[str, Any]) -> str:
        """Puts a request on the ledger, wakes a run that waits in this process, and returns the id.

        An id that is there already is left as it is.

        Raises:
            pydantic.ValidationError: The request is not of the wire's shape.
            LedgerFullError: Too many requests are pending.
            NotPendingError: A withdraw names a request that is not, or no longer, pending.
            RequestConflictError: Another request has this id.
        """
        return self.accept(request).id

    async def aappend(self, request: Request | Mapping[str, Any]) -> str:
        """Same as `append`, but awaited."""
        return (await self.aaccept(request)).id

    def accept(self, request: Request | Mapping[str, Any]) -> Accepted:
        """Same as `append`, but says on which root the request is."""
        wanted, began = parse_request(request), time.time()
        accepted = self._run(self._accepting(wanted, began))
        wakeup.notify(self._thread_id)
        self._tell(wanted, began)
        return accepted

    async def aaccept(self, request: Request | Mapping[str, Any]) -> Accepted:
        """Same as `accept`, but awaited."""
        wanted, began = parse_request(request), time.time()
        accepted = await self._arun(self._accepting(wanted, began))
        wakeup.notify(self._thread_id)
        self._tell(wanted, began)
        return accepted

    def _accepting(self, request: Request, now: float) -> flow.Flow[Accepted]:
        if isinstance(request, WithdrawRequest):
            return _claims.withdraw(self._thread_id, request.id)
        return flow.append(self._thread_id, request, now)

    def _tell(self, request: Request, began: float) -> None:
        tell(
            "accepted",
            began=began,
            thread_id=self._thread_id,
            request_id=request.id,
            kind=request.kind,
            run_id=getattr(request, "run_id", None),
            node=getattr(request, "node", None),
        )

    def requests(self) -> list[Entry]:
        """Returns the pending requests in order of acceptance."""
        return self._run(flow.pending(self._thread_id))

    async def arequests(self) -> list[Entry]:
        """Same as `requests`, but awaited."""
        return await self._arun(flow.pending(self._thread_id))

    def view(self) -> View:
        """Returns what the ledger says now; one read of the saver."""
        return self._run(flow.look(self._thread_id))

    async def aview(self) -> View:
        """Same as `view`, but awaited."""
        return await self._arun(flow.look(self._thread_id))

    def handled(self) -> Mapping[str, Handled]:
        """Returns the handled requests in the newest state of the thread's graph."""
        return self._perform(flow.ReadState())  # type: ignore[no-any-return]

    async def ahandled(self) -> Mapping[str, Handled]:
        """Same as `handled`, but awaited."""
        return await self._aperform(flow.ReadState())  # type: ignore[no-any-return]

    def mark(self, marks: Mapping[str, Mark]) -> None:
        """Notes how requests ended; call it only when that is committed in the graph's state."""
        self._run(flow.mark(self._thread_id, marks))

    async def amark(self, marks: Mapping[str, Mark]) -> None:
        """Same as `mark`, but awaited."""
        await self._arun(flow.mark(self._thread_id, marks))

    def record_halt(self, record: HaltRecord) -> None:
        """Notes that a run was halted; the first record of a run stays."""
        self._run(flow.record_halt(self._thread_id, record))

    async def arecord_halt(self, record: HaltRecord) -> None:
        """Same as `record_halt`, but awaited."""
        await self._arun(flow.record_halt(self._thread_id, record))

    def record_seal(self, note: RunNote, view: View) -> None:
        """Notes that a run was sealed, where `view` does not know yet."""
        self._run(flow.record_seal(self._thread_id, note, view))

    async def arecord_seal(self, note: RunNote, view: View) -> None:
        """Same as `record_seal`, but awaited."""
        await self._arun(flow.record_seal(self._thread_id, note, view))

    def record_claim(self, claim: Claim, view: View) -> None:
        """Notes what an agent has taken, or ended, before the thread's graph has committed it."""
        self._run(_claims.record(self._thread_id, claim, view))

    async def arecord_claim(self, claim: Claim, view: View) -> None:
        """Same as `record_claim`, but awaited."""
        await self._arun(_claims.record(self._thread_id, claim, view))

    def apply(self, claim: Claim, view: View) -> list[str]:
        """Claims requests that an agent is about to apply; returns the ids of those that are its own.

        The others were withdrawn, or taken by another agent, since `view` was read.
        """
        return self._run(_claims.apply(self._thread_id, claim, view))

    async def aapply(self, claim: Claim, view: View) -> list[str]:
        """Same as `apply`, but awaited."""
        return await self._arun(_claims.apply(self._thread_id, claim, view))

    def runs(self) -> Page:
        """Returns what is known of the thread's runs, however old: at most three reads of the saver."""
        return self._run(flow.runs(self._thread_id))

    async def aruns(self) -> Page:
        """Same as `runs`, but awaited."""
        return await self._arun(flow.runs(self._thread_id))

    def rotate(self, view: View) -> None:
        """Replaces the root if enough of it is settled, or completes a replacement that was cut short."""
        self._run(flow.rotate(self._thread_id, view))

    async def arotate(self, view: View) -> None:
        """Same as `rotate`, but awaited."""
        await self._arun(flow.rotate(self._thread_id, view))

    def _run(self, steps: flow.Flow[T]) -> T:
        answer: Any = None
        try:
            while True:
                answer = self._perform(steps.send(answer))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def _arun(self, steps: flow.Flow[T]) -> T:
        answer: Any = None
        try:
            while True:
                answer = await self._aperform(steps.send(answer))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def _perform(self, step: flow.Step) -> Any:
        saver = self._saver
        match step:
            case flow.Read(n):
                return self._root(saver.get_tuple(self._config(n)))
            case flow.ReadState():
                return self._state(saver.get_tuple(self._main()))
            case flow.ReadNewest():
                return _id(saver.get_tuple(self._main()))
            case flow.Put(n):
                return saver.put(self._config(), _checkpoint(n), _metadata(n), {})
            case flow.Write(n, task_id, channel, value):
                return saver.put_writes(self._config(n), [(channel, value)], task_id)

    async def _aperform(self, step: flow.Step) -> Any:
        saver = self._saver
        match step:
            case flow.Read(n):
                return self._root(await saver.aget_tuple(self._config(n)))
            case flow.ReadState():
                return self._state(await saver.aget_tuple(self._main()))
            case flow.ReadNewest():
                return _id(await saver.aget_tuple(self._main()))
            case flow.Put(n):
                return await saver.aput(self._config(), _checkpoint(n), _metadata(n), {})
            case flow.Write(n, task_id, channel, value):
                return await saver.aput_writes(self._config(n), [(channel, value)], task_id)

    def _config(self, n: int | None = None) -> RunnableConfig:
        configurable = {"thread_id": self._thread_id, "checkpoint_ns": NAMESPACE}
        if n is not None:
            configurable["checkpoint_id"] = root_id(n)
        return {"configurable": configurable}

    def _main(self) -> RunnableConfig:
        return {"configurable": {"thread_id": self._thread_id, "checkpoint_ns": ""}}

    def _root(self, found: CheckpointTuple | None) -> Root | None:
        if found is None:
            return None
        name = str(found.checkpoint["id"])
        if not name.endswith(_SUFFIX):
            raise ConfigurationError(
                f"a subgraph uses the checkpoint namespace {NAMESPACE!r} of thread {self._thread_id!r}: "
                "midstream keeps its ledger there, so give the subgraph's node another name"
            )
        return Root(int(name[:8], 16), tuple(found.pending_writes or ()))

    def _state(self, found: CheckpointTuple | None) -> Mapping[str, Handled]:
        return preemption_of(found.checkpoint["channel_values"] if found else None).get("handled", {})


def _id(found: CheckpointTuple | None) -> str | None:
    return str(found.checkpoint["id"]) if found is not None else None


def _checkpoint(n: int) -> Checkpoint:
    checkpoint = empty_checkpoint()
    checkpoint["id"] = root_id(n)
    return checkpoint


def _metadata(n: int) -> CheckpointMetadata:
    return {"source": "update", "step": n, "parents": {}}
