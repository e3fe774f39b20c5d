"""What the ledger says, as plain data: its writes read together, in whatever order they came."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from midstream import _run_notes as notes
from midstream._run_notes import Claim, HaltRecord, RunNote, Verdict
from midstream.state import Handled

Mark: TypeAlias = Handled


@dataclass(frozen=True, slots=True)
class Root:
    """A root as it was read: its writes as `(task id, channel, value)`."""

    n: int
    writes: tuple[tuple[str, str, Any], ...]


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


def digest_of(thread_id: str) -> str:
    """Returns what a record says of its thread.

    Copying a thread copies its ledger, and the in-memory server rewrites the thread's id wherever it finds
    it in the copied bytes; a digest it leaves alone.
    """
    return hashlib.sha256(thread_id.encode()).hexdigest()[:16]


def task_of(digest: str, *what: str) -> str:
    """Returns the task id of a write that says this."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, ":".join(("midstream", digest, *what))))


def claim_task(digest: str, claim: Claim) -> str:
    """Returns the task id of a claim that is no verdict."""
    what = [*claim["request_ids"], "", *claim["ended"]]
    return task_of(digest, "claim", claim["step"], claim["owner"], str(claim["outcome"]), *what)


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
                    name: new for name, new in value["marks"].items() if supersedes(new, marks.get(name))
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


def supersedes(new: Mark, old: Mark | None) -> bool:
    """Tells whether a mark says more than the one before."""
    # Where an agent could not claim it, a request may be withdrawn as it is applied; then it was applied.
    return old is None or (old["outcome"] == "withdrawn" != new["outcome"])


def is_carried(root: Root) -> bool:
    """Tells whether this root replaces the one before it entirely."""
    return root.n == 1 or any(channel == "carried" for _, channel, _ in root.writes)


def _entry(value: Mapping[str, Any]) -> Entry:
    fields = {name: value[name] for name in Entry.__slots__}
    return Entry(**{**fields, "messages": tuple(fields["messages"])})
