"""What the ledger remembers of the runs of its thread: that one was halted, and how often it was sealed.

A note is some 150 bytes. The newest `KEPT_RUNS` of each kind are on the newest root, which is read often;
older ones are moved to pages on root 0, which is read only when somebody asks for runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypedDict

KEPT_RUNS = 32
"""How many halts, and how many runs that were sealed, are kept on the newest root."""

ARCHIVE = 0
"""The root of the pages."""

SAID = frozenset(("halt_reason", "preemption"))
"""What a run's metadata says by these notes, and by nothing else."""


class HaltRecord(TypedDict):
    """That a run was halted; small, so that a list of runs can be told from it."""

    run_id: str
    reason: str
    node: str

    at: float
    """Unix time, in seconds."""


class RunNote(TypedDict):
    """How often a run was sealed."""

    run_id: str

    at: float
    """Unix time of the last one, in seconds."""

    seals: list[str]
    """Digests of the ids of the sealed messages."""

    empty_boundaries: list[str]
    """Of those after which there was nothing to go on with."""


class Claim(TypedDict):
    """That an agent has taken requests, or ended answers, in a step that the root graph has not committed.

    Only its own state says so until then, and the others do not see that, nor does a run that resumes them.
    """

    step: str
    """The root graph's checkpoint that the step was begun from: in any other step the claim is void."""

    owner: str
    """The agent, who may take them again."""

    request_ids: list[str]
    outcome: str | None
    """How the requests end; None while that is open."""

    ended: list[str]
    """The ids of the answers that were sealed or begun anew."""

    at: float
    """Unix time, in seconds."""


class Verdict(TypedDict):
    """What was decided about a request: it is applied, or it is withdrawn."""

    id: str
    """The request."""

    n: int
    """How many verdicts there were before: those of claims whose step came to nothing."""

    claim: Claim | None
    """By what it is applied; None: it is withdrawn."""


class Page(NamedTuple):
    """Notes of runs, by run id."""

    halts: Mapping[str, HaltRecord]
    runs: Mapping[str, RunNote]


def seal_note(run_id: str, message_id: str, at: float, *, is_empty: bool = False) -> RunNote:
    """Returns a note of one seal."""
    name = hashlib.sha256(message_id.encode()).hexdigest()[:8]
    return RunNote(run_id=run_id, at=at, seals=[name], empty_boundaries=[name] if is_empty else [])


def _joined(one: RunNote, other: RunNote) -> RunNote:
    return RunNote(
        run_id=one["run_id"],
        at=max(one["at"], other["at"]),
        seals=sorted({*one["seals"], *other["seals"]}),
        empty_boundaries=sorted({*one["empty_boundaries"], *other["empty_boundaries"]}),
    )


def add(runs: dict[str, RunNote], notes: Iterable[RunNote]) -> None:
    """Takes notes into account, in any order and however often."""
    for note in notes:
        known = runs.get(note["run_id"])
        runs[note["run_id"]] = _joined(known, note) if known else note


def is_known(note: RunNote, runs: Mapping[str, RunNote]) -> bool:
    """Tells whether a note says nothing new."""
    known = runs.get(note["run_id"])
    return (
        known is not None
        and {*note["seals"]} <= {*known["seals"]}
        and {*note["empty_boundaries"]} <= {*known["empty_boundaries"]}
    )


def split(halts: Collection[HaltRecord], runs: Mapping[str, RunNote]) -> tuple[Page, Page]:
    """Returns what goes into the archive, and what stays; both oldest first."""

    def by_time(notes: Iterable[Any]) -> list[Any]:
        return sorted(notes, key=lambda note: (note["at"], note["run_id"]))

    old_halts, old_runs = by_time(halts), by_time(runs.values())
    return _page(old_halts[:-KEPT_RUNS], old_runs[:-KEPT_RUNS]), _page(
        old_halts[-KEPT_RUNS:], old_runs[-KEPT_RUNS:]
    )


def _page(halts: Iterable[HaltRecord], runs: Iterable[RunNote]) -> Page:
    return Page({each["run_id"]: each for each in halts}, {each["run_id"]: each for each in runs})


def counts(note: RunNote | None) -> dict[str, int]:
    """Returns what a run's metadata says under `preemption`."""
    return {
        "seals": len(note["seals"]) if note else 0,
        "empty_boundaries": len(note["empty_boundaries"]) if note else 0,
    }


def metadata_of(page: Page) -> dict[str, dict[str, Any]]:
    """Returns what the metadata of each run says that was sealed or halted, by run id."""
    said: dict[str, dict[str, Any]] = {name: {"preemption": counts(note)} for name, note in page.runs.items()}
    for name, halt in page.halts.items():
        if name not in said:
            said[name] = {"preemption": counts(None)}
        said[name]["halt_reason"] = halt["reason"]
    return said
