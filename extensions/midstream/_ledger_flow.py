"""What the ledger does, as plain data and generators: no clock, no saver, no waiting.

Each operation yields the steps that it needs and is sent what they found. What a step says is true for any
interleaving of two processes, and for the same step twice.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection, Generator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar

from midstream import _run_notes as notes
from midstream._run_notes import ARCHIVE, Claim, HaltRecord, Page, RunNote, Verdict
from midstream.errors import LedgerFullError, RequestConflictError
from midstream.state import Handled
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

Mark: TypeAlias = Handled


@dataclass(frozen=True, slots=True)
class Entry:
    """One accepted request."""

    id: str
    kind: Literal["steer", "halt"]

    accepted_at: float
    """Unix time, in seconds; later than that of every request which was there before."""

    messages: tuple[dict[str, Any], ...] = ()
    """`{"role": "user", "content": …}` each; empty for a halt."""

    reason: str | None = None
    """None for a steer."""

    run_id: str | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class View:
    """What the ledger says at one moment."""

    root: int = 0
    """The newest root; 0 if there is none yet."""

    entries: tuple[Entry, ...] = ()
    """In order of acceptance."""

    marks: Mapping[str, Mark] = field(default_factory=dict)
    """How requests ended, by id; longer than their entries are kept."""

    withdrawn: frozenset[str] = frozenset()
    halts: tuple[HaltRecord, ...] = ()
    """Oldest first."""

    runs: Mapping[str, RunNote] = field(default_factory=dict)
    """How often runs were sealed, by run id."""

    claims: tuple[Claim, ...] = ()
    """Oldest first; without those that are verdicts."""

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    """The last verdict on each request that has one, by the request's id."""

    has_archive: bool = False
    """Whether there are notes of older runs on root 0."""

    size: int = 0
    """How many writes the newest root holds."""

    carried: bool = True
    """Whether everything is on the newest root; if not, it is on the one before too."""

    foreign: frozenset[str] = frozenset()
    """Task ids on the newest root that another thread, of which this is a copy, has used."""

    def pending(self, handled: Collection[str] = ()) -> list[Entry]:
        """Returns what is neither marked, nor withdrawn, nor among `handled`, in order of acceptance."""
        done = {*self.marks, *self.withdrawn, *handled}
        return [entry for entry in self.entries if entry.id not in done]

    @property
    def settled(self) -> int:
        """How many writes of the newest root no longer count."""
        waiting = [entry.id for entry in self.pending()]
        return self.size - len(waiting) - sum(name in self.verdicts for name in waiting)

    def claims_of_others(self, step: str | None, owner: str) -> list[Claim]:
        """Returns the claims of this step that neither this agent has made, nor one in the graph so named."""
        applied = [claim for each in self.verdicts.values() if (claim := each["claim"]) is not None]
        return [
            claim
            for claim in [*self.claims, *applied]
            if claim["step"] == step
            and claim["owner"] != owner
            and not claim["owner"].startswith(f"{owner}|")
        ]


@dataclass(frozen=True, slots=True)
class Accepted:
    """That a request is on the ledger."""

    id: str
    root: int


@dataclass(frozen=True, slots=True)
class Root:
    """A root as it was read: its writes as `(task id, channel, value)`."""

    n: int
    writes: tuple[tuple[str, str, Any], ...]


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


def digest_of(thread_id: str) -> str:
    """Returns what a record says of its thread.

    Copying a thread copies its ledger, and the in-memory server rewrites the thread's id wherever it finds
    it in the copied bytes; a digest it leaves alone.
    """
    return hashlib.sha256(thread_id.encode()).hexdigest()[:16]


def task_of(digest: str, *what: str) -> str:
    """Returns the task id of a write that says this."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, ":".join(("midstream", digest, *what))))


def view_of(thread_id: str, *roots: Root) -> View:
    """Returns what these roots say together; newest root first."""
    if not roots:
        return View()

    digest = digest_of(thread_id)
    entries: dict[str, Entry] = {}
    old_marks: dict[str, Mark] = {}
    marks: dict[str, Mark] = {}
    withdrawn: set[str] = set()
    halts: dict[str, HaltRecord] = {}
    runs: dict[str, RunNote] = {}
    claims: dict[str, Claim] = {}
    verdicts: dict[str, Verdict] = {}
    has_archive = False
    for root in reversed(roots):
        for _, channel, value in root.writes:
            if value.get("thread") != digest:
                continue
            if channel == "request":
                entry = _entry(value)
                entries[entry.id] = entry
            elif channel == "withdraw":  # of ledgers of earlier versions
                withdrawn.add(value["id"])
            elif channel == "verdict":
                verdict: Verdict = value["verdict"]
                last = verdicts.get(verdict["id"])
                # Of two roots that have the same one the newer says what stands; see `_claims`.
                if last is None or verdict["n"] >= last["n"]:
                    verdicts[verdict["id"]] = verdict
            elif channel == "mark":
                marks |= {
                    name: new for name, new in value["marks"].items() if _supersedes(new, marks.get(name))
                }
            elif channel == "halt":
                halts.setdefault(value["halt"]["run_id"], value["halt"])
            elif channel == "seal":
                notes.add(runs, [value["seal"]])
            elif channel == "claim":
                claims[claim_task(digest, value["claim"])] = value["claim"]
            elif channel == "carried":
                old_marks |= value["marks"]
                halts |= {halt["run_id"]: halt for halt in value["halts"]}
                # Ledgers of earlier versions have neither.
                notes.add(runs, value.get("runs", ()))
                claims |= {claim_task(digest, claim): claim for claim in value.get("claims", ())}
                has_archive = has_archive or value.get("has_archive", False)

    newest = roots[0]
    withdrawn.update(name for name, last in verdicts.items() if last["claim"] is None)
    return View(
        root=newest.n,
        entries=tuple(sorted(entries.values(), key=lambda entry: (entry.accepted_at, entry.id))),
        marks=old_marks | marks,
        withdrawn=frozenset(withdrawn),
        halts=tuple(sorted(halts.values(), key=lambda halt: (halt["at"], halt["run_id"]))),
        runs=runs,
        verdicts=verdicts,
        claims=tuple(sorted(claims.values(), key=lambda claim: claim["at"])),
        has_archive=has_archive,
        size=len(newest.writes),
        carried=is_carried(newest),
        foreign=frozenset(task for task, _, value in newest.writes if value.get("thread") != digest),
    )


def _supersedes(new: Mark, old: Mark | None) -> bool:
    # A request that was withdrawn and applied at the same moment was applied.
    return old is None or (old["outcome"] == "withdrawn" != new["outcome"])


def is_carried(root: Root) -> bool:
    """Tells whether this root replaces the one before it entirely."""
    return root.n == 1 or any(channel == "carried" for _, channel, _ in root.writes)


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
        if name in known and _supersedes(ended, view.marks.get(name))
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


def claim_task(digest: str, claim: Claim) -> str:
    """Returns the task id of a claim that is no verdict."""
    what = [*claim["request_ids"], "", *claim["ended"]]
    return task_of(digest, "claim", claim["step"], claim["owner"], str(claim["outcome"]), *what)


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
        yield _on(n, _entry_write(thread_id, entry, ()))
        if (verdict := old.verdicts.get(entry.id)) is not None:
            yield _on(n, verdict_write(thread_id, verdict))

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
        yield _on(root, write)
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


def _entry(value: Mapping[str, Any]) -> Entry:
    fields = {name: value[name] for name in Entry.__slots__}
    return Entry(**{**fields, "messages": tuple(fields["messages"])})


def _entry_write(thread_id: str, entry: Entry, taken: Collection[str]) -> Write:
    digest = digest_of(thread_id)
    value = {"thread": digest, **asdict(entry), "messages": list(entry.messages)}
    task_id = task_of(digest, "request", entry.id) if entry.id in taken else entry.id
    return Write(0, task_id, "request", value)


def _withdrawn(entry: Entry) -> Mark:
    return Mark(outcome="withdrawn", run_id=None, node="", message_ids=[], accepted_at=entry.accepted_at)


def _on(n: int, write: Write) -> Write:
    return replace(write, n=n)
