"""The ledger's decisions alone: every interleaving of a few actors, over the plainest of stores."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream import NotPendingError, _claims
from midstream import _ledger_flow as flow
from midstream._ledger_view import Entry, Root, View
from midstream._run_notes import Claim, HaltRecord
from midstream_client.protocol import SteerRequest
from support.examples import examples
from support.ledgers import marked, steer

THREAD = "t"
SETTLED = flow.MAX_SETTLED
"""Settled requests; with their mark one more write than a root may hold."""


class Store:
    """What every saver promises: roots by number, and the first write of a task id stays."""

    def __init__(self, roots: Mapping[int, Mapping[str, tuple[str, Any]]] | None = None) -> None:
        self.roots = {n: dict(writes) for n, writes in (roots or {}).items()}

    def perform(self, step: flow.Step) -> Any:
        match step:
            case flow.Put(n):
                self.roots.setdefault(n, {})
                return None
            case flow.Write(n, task_id, channel, value):
                self.roots.setdefault(n, {}).setdefault(task_id, (channel, value))
                return None
            case flow.ReadState():
                return {}
            case flow.Read(n):
                n = n if n is not None else max(self.roots, default=0)
                if n not in self.roots:
                    return None
                # Savers give writes back in the order of their task ids.
                return Root(n, tuple((task, *write) for task, write in sorted(self.roots[n].items())))

    def run(self, steps: flow.Flow[Any]) -> Any:
        actor = Actor(self, steps)
        while not actor.is_done:
            actor.step()
        return actor.result

    def view(self) -> View:
        view: View = self.run(flow.look(THREAD))
        return view


class Actor:
    """A process in the middle of an operation."""

    def __init__(self, store: Store, steps: flow.Flow[Any]) -> None:
        self.is_done = False
        self.result: Any = None
        self._store = store
        self._steps = steps
        self._next: flow.Step | None = None
        self._advance(None)

    def step(self) -> None:
        assert self._next is not None
        self._advance(self._store.perform(self._next))

    def _advance(self, answer: Any) -> None:
        try:
            self._next = self._steps.send(answer)
        except StopIteration as stop:
            self.is_done, self.result = True, stop.value
        except NotPendingError as error:
            self.is_done, self.result = True, error


def request_id(number: int) -> str:
    return str(uuid.UUID(int=number))


def wanted(text: str, number: int) -> SteerRequest:
    return SteerRequest.model_validate(steer(text, id=request_id(number)))


def accept(store: Store, number: int) -> Entry:
    store.run(flow.append(THREAD, wanted(str(number), number), float(number)))
    return next(entry for entry in store.view().entries if entry.id == request_id(number))


A, B, LATE = 101, 102, 103


def _prepared(n_settled: int) -> Store:
    store = Store()
    settled = [accept(store, number) for number in range(1, n_settled + 1)]
    store.run(flow.mark(THREAD, marked(*settled)))
    accept(store, A)
    accept(store, B)
    return store


RIPE = _prepared(SETTLED)
"""Two pending requests on a root that is ripe for replacement."""

PLAIN = _prepared(0)
"""The same two on a root that stays."""


def append_late(store: Store) -> flow.Flow[Any]:
    return flow.append(THREAD, wanted("late", LATE), 1.0)


def withdraw_b(store: Store) -> flow.Flow[Any]:
    return _claims.withdraw(THREAD, request_id(B))


def apply_b(store: Store) -> flow.Flow[Any]:
    """An agent that has read the ledger as everybody begins, and claims only now."""
    claim = Claim(step="s", owner="model", request_ids=[request_id(B)], outcome="entry", ended=[], at=1.0)
    return _claims.apply(THREAD, claim, store.view())


def mark_a(store: Store) -> flow.Flow[Any]:
    return flow.mark(THREAD, marked(next(e for e in store.view().entries if e.id == request_id(A))))


def rotate(store: Store) -> flow.Flow[Any]:
    return flow.rotate(THREAD, store.view())


def look_and_rotate(store: Store) -> flow.Flow[Any]:
    view = yield from flow.look(THREAD)
    yield from flow.rotate(THREAD, view)


def halt_run(store: Store) -> flow.Flow[Any]:
    return flow.record_halt(THREAD, HaltRecord(run_id="r", reason="enough", node="model", at=1.0))


OPERATIONS: dict[str, Callable[[Store], flow.Flow[Any]]] = {
    "append": append_late,
    "append again": append_late,
    "withdraw": withdraw_b,
    "withdraw again": withdraw_b,
    "apply": apply_b,
    "apply again": apply_b,
    "mark": mark_a,
    "halt": halt_run,
    "rotate": rotate,
    "look and rotate": look_and_rotate,
}


def play(names: Sequence[str], choices: Iterator[int], begin: Store = RIPE) -> Store:
    """Lets actors take turns as chosen, where the choice beyond the last one is that nobody goes on."""
    store = Store(begin.roots)
    actors = {name: Actor(store, OPERATIONS[name](store)) for name in names}
    while live := [name for name, actor in actors.items() if not actor.is_done]:
        choice = next(choices, 0)
        if choice >= len(live):
            break
        actors[live[choice]].step()

    check(store, actors, begin)
    # Whoever comes next finds it as it was, completes what was left behind, and it stays.
    for _ in range(3):
        store.run(look_and_rotate(store))
        check(store, actors, begin)
    assert store.view().carried
    return store


def check(store: Store, actors: dict[str, Actor], begin: Store) -> None:
    view = store.view()
    done = {name for name, actor in actors.items() if actor.is_done}
    pending = [entry.id for entry in view.pending()]
    assert len(pending) == len(set(pending))

    if "mark" not in actors:
        assert request_id(A) in pending
    if "mark" in done:
        assert request_id(A) not in pending
        assert view.marks[request_id(A)]["outcome"] == "sealed"
    applied = [actors[name].result for name in done & {"apply", "apply again"}]
    withdrawn = [actors[name].result for name in done & {"withdraw", "withdraw again"}]
    if not actors.keys() & {"withdraw", "withdraw again"}:
        assert request_id(B) in pending
    if any(isinstance(result, flow.Accepted) for result in withdrawn):
        assert request_id(B) not in pending
        assert not any(applied)
        assert not any(isinstance(result, NotPendingError) for result in withdrawn)
    if any(applied):
        assert request_id(B) in pending
        assert all(applied), "who comes again for an agent has what it had"
        assert all(isinstance(result, NotPendingError) for result in withdrawn)
        assert view.verdicts[request_id(B)]["claim"] is not None
    if done & {"append", "append again"}:
        assert request_id(LATE) in pending
    if "halt" in done:
        assert [halt["run_id"] for halt in view.halts] == ["r"]
    settled = {entry.id for entry in begin.view().entries} - {request_id(A), request_id(B)}
    assert settled.isdisjoint(pending)
    assert settled <= view.marks.keys()


class Exhaustive:
    """Choices that, played again and again, go through every path: an odometer that grows by itself."""

    def __init__(self, width: int) -> None:
        self.path: list[int] = []
        self._width = width

    def __iter__(self) -> Iterator[int]:
        at = 0
        while True:
            if at == len(self.path):
                self.path.append(0)
            yield self.path[at]
            at += 1

    def advance(self) -> bool:
        while self.path:
            self.path[-1] += 1
            if self.path[-1] < self._width:
                return True
            self.path.pop()
        return False


@pytest.mark.parametrize("other", ["append", "mark", "halt"])
def test_two_actors_in_every_order_and_dying_anywhere_lose_nothing(other: str) -> None:
    choices = Exhaustive(width=3)
    played = 1
    play(["rotate", other], iter(choices))
    while choices.advance():
        play(["rotate", other], iter(choices))
        played += 1
    assert played > 100


@pytest.mark.parametrize("other", ["withdraw", "withdraw again", "apply again"])
def test_a_request_is_applied_or_withdrawn_wherever_two_get_in_each_others_way(other: str) -> None:
    """Each goes so far, then the other, then the first again, and the other to its end."""
    won = set()
    for first, second, again in itertools.product(range(8), range(8), range(8)):
        turns = [0] * first + [1] * second + [0] * again + [1] * 20
        store = play(["apply", other], iter(turns), PLAIN)
        won.add(request_id(B) in [entry.id for entry in store.view().pending()])
    assert won == ({True} if other == "apply again" else {True, False})


def test_who_posts_again_for_a_dead_writer_does_not_trust_a_root_that_is_about_to_go() -> None:
    store = Store(RIPE.roots)
    writer, rotator = Actor(store, append_late(store)), Actor(store, rotate(store))
    writer.step()  # It has looked, and is about to write on the old root.
    rotator.step()  # The new root is there.
    rotator.step()  # What is carried over is decided.
    writer.step()  # The request is on the old root only, and its writer is dead.

    again = store.run(append_late(store))
    while not rotator.is_done:
        rotator.step()

    assert again.root == 2
    assert request_id(LATE) in [entry.id for entry in store.view().pending()]


@settings(max_examples=examples(300), deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=2, max_size=7, unique=True),
    choices=st.lists(st.integers(0, 6), max_size=60),
)
def test_many_actors_in_any_order_lose_nothing(names: list[str], choices: list[int]) -> None:
    play(names, iter(choices))
