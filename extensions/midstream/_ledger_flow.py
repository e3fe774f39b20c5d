"""What the ledger does, as plain data and generators: no clock, no saver, no waiting.

Each operation yields the steps that it needs and is sent what they found. What a step says is true for any
interleaving of two processes, and for the same step twice.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias, TypeVar

from midstream import _run_notes as notes
from midstream._ledger_view import (
    Entry,
    Mark,
    Root,
    View,
    digest_of,
    is_carried,
    supersedes,
    task_of,
    view_of,
)
from midstream._run_notes import ARCHIVE, HaltRecord, Page, RunNote, Verdict
from midstream.errors import LedgerFullError, RequestConflictError
from midstream_client.protocol import MAX_PENDING, HaltRequest, SteerRequest

MAX_SETTLED = 32
"""How many writes that no longer count a root may hold before it is replaced."""

KEPT_MARKS = 64
"""How many requests that ended are remembered when the root is replaced, newest first."""

KEPT_CLAIMS = 64
"""How many claims are kept when the root is replaced, newest last; they count for one step of the graph."""

TICK = 1e-6
"""Seconds by which a request is later than the last one that its writer saw, whatever the clocks say."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Accepted:
    """That a request is on the ledger."""

    id: str
    root: int


@dataclass(frozen=True, slots=True)
class Read:
    """Asks for root `n`, or for the newest one; answered by a `Root`, or None if there is none."""

    n: int | None = None


@dataclass(frozen=True, slots=True)
class ReadState:
    """Asks for the handled requests in the newest state of the thread's graph."""


@dataclass(frozen=True, slots=True)
class ReadNewest:
    """Asks for the id of the newest checkpoint of the thread's graph; answered by None if there is none."""


@dataclass(frozen=True, slots=True)
class Put:
    """Asks for root `n` to be there."""

    n: int


@dataclass(frozen=True, slots=True)
class Write:
    """Asks for a write on root `n`; the first one of a task id stays."""

    n: int
    task_id: str
    channel: str
    value: dict[str, Any]


Step: TypeAlias = Read | ReadState | ReadNewest | Put | Write
Flow: TypeAlias = Generator[Step, Any, T]


def look(thread_id: str) -> Flow[View]:
    """Reads the ledger."""
    newest: Root | None = yield Read()
    if newest is None:
        return View()
    if is_carried(newest):
        return view_of(thread_id, newest)
    before: Root | None = yield Read(newest.n - 1)
    return view_of(thread_id, newest, before) if before else view_of(thread_id, newest)


def pending(thread_id: str) -> Flow[list[Entry]]:
    """Reads what is pending, knowing what the graph handled and did not mark yet."""
    view = yield from look(thread_id)
    if not view.pending():
        return []
    handled = yield ReadState()
    return view.pending(handled)


def append(thread_id: str, request: SteerRequest | HaltRequest, now: float) -> Flow[Accepted]:
    """Puts a request on the ledger; one that is there already is left as it is, so that a host may retry."""
    view = yield from look(thread_id)
    if request.id in view.marks:
        return Accepted(request.id, view.root)
    entry = next((known for known in view.entries if known.id == request.id), None)
    if entry is None:
        yield from _refuse_if_full(thread_id, view)
        last = view.entries[-1].accepted_at if view.entries else 0.0
        entry = _accept(request, max(now, last + TICK))
    elif entry != _accept(request, entry.accepted_at):
        raise RequestConflictError(thread_id, request.id)
    elif view.carried:
        return Accepted(request.id, view.root)
    # An entry that is only on a root about to go is written again: nobody else may be left to do it.

    root = yield from settle(view.root, _entry_write(thread_id, entry, view.foreign))
    return Accepted(request.id, root)


def mark(thread_id: str, marks: Mapping[str, Mark]) -> Flow[None]:
    """Notes how requests ended, where the ledger does not know yet."""
    view = yield from look(thread_id)
    known = {entry.id for entry in view.entries} | view.marks.keys()
    new = {
        name: ended
        for name, ended in marks.items()
        if name in known and supersedes(ended, view.marks.get(name))
    }
    if new:
        digest = digest_of(thread_id)
        outcomes = [f"{name}={new[name]['outcome']}" for name in sorted(new)]
        write = Write(0, task_of(digest, "mark", *outcomes), "mark", {"thread": digest, "marks": new})
        yield from settle(view.root, write)


def record_halt(thread_id: str, record: HaltRecord) -> Flow[None]:
    """Notes that a run was halted, where the ledger does not know yet."""
    view = yield from look(thread_id)
    if any(known["run_id"] == record["run_id"] for known in view.halts):
        return
    digest = digest_of(thread_id)
    value = {"thread": digest, "halt": dict(record)}
    yield from settle(view.root, Write(0, task_of(digest, "halt", record["run_id"]), "halt", value))


def record_seal(thread_id: str, note: RunNote, view: View) -> Flow[None]:
    """Notes that a run was sealed, where the ledger, as it was seen last, does not know yet."""
    if notes.is_known(note, view.runs):
        return
    digest = digest_of(thread_id)
    what = [note["run_id"], *note["seals"], "", *note["empty_boundaries"]]
    write = Write(0, task_of(digest, "seal", *what), "seal", {"thread": digest, "seal": dict(note)})
    yield from settle(view.root, write)


def verdict_write(thread_id: str, verdict: Verdict) -> Write:
    """Returns the write of a verdict: the n-th one on a request is whichever was written first."""
    digest = digest_of(thread_id)
    task_id = task_of(digest, "verdict", verdict["id"], str(verdict["n"]))
    return Write(0, task_id, "verdict", {"thread": digest, "verdict": dict(verdict)})


def runs(thread_id: str) -> Flow[Page]:
    """Reads what the ledger knows of the thread's runs, however old."""
    view = yield from look(thread_id)
    halts: dict[str, HaltRecord] = {halt["run_id"]: halt for halt in view.halts}
    noted = dict(view.runs)
    archive: Root | None = (yield Read(ARCHIVE)) if view.has_archive else None
    digest = digest_of(thread_id)
    for _, _, value in archive.writes if archive else ():
        if value.get("thread") == digest:
            halts |= {halt["run_id"]: halt for halt in value["halts"]}
            notes.add(noted, value["runs"])
    return Page(halts, noted)


def rotate(thread_id: str, view: View) -> Flow[None]:
    """Replaces the root if enough of it is settled; completes a replacement that was cut short."""
    if not view.carried:
        yield from carry(thread_id, view.root)
    elif view.settled > MAX_SETTLED:
        yield Put(view.root + 1)
        yield from carry(thread_id, view.root + 1)


def carry(thread_id: str, n: int) -> Flow[None]:
    """Writes on root `n` what still counts of the root before."""
    before: Root | None = yield Read(n - 1)
    old = view_of(thread_id, before) if before else View()
    for entry in old.pending():
        yield on(n, _entry_write(thread_id, entry, ()))
        if (verdict := old.verdicts.get(entry.id)) is not None:
            yield on(n, verdict_write(thread_id, verdict))

    gone = {
        entry.id: _withdrawn(entry)
        for entry in old.entries
        if entry.id in old.withdrawn and entry.id not in old.marks
    }
    marks = sorted({**gone, **old.marks}.items(), key=lambda item: (item[1]["accepted_at"], item[0]))
    digest = digest_of(thread_id)
    gone_by, kept = notes.split(old.halts, old.runs)
    if gone_by.halts or gone_by.runs:
        yield from _archive(digest, gone_by)
    value = {
        "thread": digest,
        "marks": dict(marks[-KEPT_MARKS:]),
        "halts": list(kept.halts.values()),
        "runs": list(kept.runs.values()),
        "claims": list(old.claims[-KEPT_CLAIMS:]),
        "has_archive": bool(old.has_archive or gone_by.halts or gone_by.runs),
    }
    yield Write(n, task_of(digest, "carried"), "carried", value)


def _archive(digest: str, page: Page) -> Flow[None]:
    # Two that replace the same root at the same time may have read it differently: each writes its own page.
    what = [*page.halts, "", *(f"{run['run_id']}={len(run['seals'])}" for run in page.runs.values())]
    value = {"thread": digest, "halts": list(page.halts.values()), "runs": list(page.runs.values())}
    yield Put(ARCHIVE)
    yield Write(ARCHIVE, task_of(digest, "page", *what), "page", value)


def settle(root: int, write: Write) -> Flow[int]:
    """Writes on the newest root, and again until it is the newest one after the write."""
    while True:
        if root == 0:
            root = 1
            yield Put(root)
        yield on(root, write)
        newest: Root | None = yield Read()
        # None: the thread was deleted meanwhile, and stays so.
        if newest is None or newest.n == root:
            return root
        root = newest.n


def _refuse_if_full(thread_id: str, view: View) -> Flow[None]:
    if len(view.pending()) < MAX_PENDING:
        return
    handled = yield ReadState()
    waiting = view.pending(handled)
    if len(waiting) >= MAX_PENDING:
        raise LedgerFullError(thread_id, len(waiting))


def _accept(request: SteerRequest | HaltRequest, at: float) -> Entry:
    entry = Entry(request.id, request.kind, at, run_id=request.run_id, node=request.node)
    if isinstance(request, HaltRequest):
        return replace(entry, reason=request.reason)
    return replace(entry, messages=tuple(message.model_dump() for message in request.messages))


def _entry_write(thread_id: str, entry: Entry, taken: Collection[str]) -> Write:
    digest = digest_of(thread_id)
    value = {"thread": digest, **asdict(entry), "messages": list(entry.messages)}
    task_id = task_of(digest, "request", entry.id) if entry.id in taken else entry.id
    return Write(0, task_id, "request", value)


def _withdrawn(entry: Entry) -> Mark:
    return Mark(outcome="withdrawn", run_id=None, node="", message_ids=[], accepted_at=entry.accepted_at)


def on(n: int, write: Write) -> Write:
    """Returns the same write on another root."""
    return replace(write, n=n)
