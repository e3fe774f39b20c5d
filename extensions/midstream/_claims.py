"""Who takes a request: an agent that applies it, or its host that takes it back, and never both.

As an agent applies a request, and as a host withdraws it, each writes a *verdict* on the ledger. The n-th
verdict on a request has a task id of its own, of which the first write stays, in every saver; so of two that
write it at the same moment, in whatever processes, one is first, and both see which. A claim counts in the
one step of the graph that it names: if that step came to nothing, the next verdict is open again.

A root may be replaced meanwhile. Whoever finds a newer root after his write looks first whether he was the
first on the old one, and writes on the new one only then. So a verdict that was the first on a root while it
was the newest one is never another one on the next: the replacement copies it, or it was not there to be
seen, and then what the newer root says stands.
"""

from __future__ import annotations

from collections.abc import Mapping

from midstream import _ledger_flow as ledger
from midstream._ledger_flow import Accepted, Flow, Put, Read, ReadNewest, ReadState, Write
from midstream._ledger_view import Root, View, claim_task, digest_of
from midstream._run_notes import Claim, Verdict
from midstream.errors import NotPendingError
from midstream.state import Handled


def record(thread_id: str, claim: Claim, view: View) -> Flow[None]:
    """Notes what an agent has taken, or ended, in a step that is not committed."""
    digest = digest_of(thread_id)
    write = Write(0, claim_task(digest, claim), "claim", {"thread": digest, "claim": dict(claim)})
    yield from ledger.settle(view.root, write)


def apply(thread_id: str, claim: Claim, view: View) -> Flow[list[str]]:
    """Claims requests that an agent is about to apply; returns the ids of those that are its own."""
    for name in claim["request_ids"]:
        last = view.verdicts.get(name)
        if not _is_by(last, claim):
            mine: Claim = {**claim, "request_ids": [name]}
            yield from _decide(thread_id, Verdict(id=name, n=_next(last), claim=mine), view)
    after = yield from _whole(thread_id)
    waiting = {entry.id for entry in after.pending()}
    return [
        name for name in claim["request_ids"] if name in waiting and _is_by(after.verdicts.get(name), claim)
    ]


def withdraw(thread_id: str, request_id: str) -> Flow[Accepted]:
    """Takes a request back, if nobody applies it.

    Raises:
        NotPendingError: It is not, or no longer, pending.
    """
    while True:
        view = yield from _whole(thread_id)
        ended = view.marks.get(request_id)
        if ended is not None and ended["outcome"] == "withdrawn":
            return Accepted(request_id, view.root)
        last = view.verdicts.get(request_id)
        claim = last["claim"] if last is not None else None
        newest: str | None = (yield ReadNewest()) if claim is not None else None
        # Read after the name of the newest step: what was committed until then is in it.
        handled: Mapping[str, Handled] = (yield ReadState()) if ended is None else {}
        ended = ended or handled.get(request_id)
        if ended is not None or all(entry.id != request_id for entry in view.entries):
            raise NotPendingError(thread_id, request_id, ended["outcome"] if ended else None)
        if request_id in view.withdrawn:
            break
        if claim is not None and (newest is None or claim["step"] >= newest):
            raise NotPendingError(thread_id, request_id, claim["outcome"])
        yield from _decide(thread_id, Verdict(id=request_id, n=_next(last), claim=None), view)

    # Nobody else replaces the root of a thread that is not run.
    yield from ledger.rotate(thread_id, view)
    return Accepted(request_id, view.root)


def _next(last: Verdict | None) -> int:
    return last["n"] + 1 if last is not None else 0


def _is_by(verdict: Verdict | None, claim: Claim) -> bool:
    mine = verdict["claim"] if verdict is not None else None
    return mine is not None and (mine["step"], mine["owner"]) == (claim["step"], claim["owner"])


def _is_same(one: Verdict, other: Verdict) -> bool:
    return _is_by(one, other["claim"]) if other["claim"] is not None else one["claim"] is None


def _decide(thread_id: str, verdict: Verdict, view: View) -> Flow[None]:
    """Writes a verdict, until it is on the newest root or somebody else was first."""
    write = ledger.verdict_write(thread_id, verdict)
    root = view.root
    while True:
        if root == 0:
            root = 1
            yield Put(root)
        yield ledger.on(root, write)
        newest: Root | None = yield Read()
        if newest is None or newest.n == root:
            return
        old: Root | None = yield Read(root)
        first = next((value for task, _, value in old.writes if task == write.task_id), None) if old else None
        if first is not None and not _is_same(first["verdict"], verdict):
            return
        root = newest.n


def _whole(thread_id: str) -> Flow[View]:
    """Reads the ledger, with nothing left on a root that is about to go."""
    while not (view := (yield from ledger.look(thread_id))).carried:
        yield from ledger.carry(thread_id, view.root)
    return view
