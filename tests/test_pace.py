"""How often a run looks for requests: within its bounds, sooner when somebody is there, and with manners."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream._ledger_view import Entry, View
from midstream.pace import FASTEST, LIVELY_SECONDS, Pace

NOW = 1_700_000_000.0


def asked(at: float) -> View:
    return View(root=1, entries=(Entry(id="r", kind="steer", messages=(), accepted_at=at),))


QUIET = View()

views = st.one_of(st.none(), st.just(QUIET), st.floats(-100, 100).map(lambda seconds: asked(NOW + seconds)))


@given(
    looks=st.lists(st.tuples(views, st.floats(0, 0.09), st.floats(-10, 60)), max_size=30),
    resumed=st.none() | st.floats(NOW - 10, NOW + 10),
)
def test_no_more_than_the_interval_passes_between_two_looks_whatever_happens(
    looks: list[tuple[View | None, float, float]], resumed: float | None
) -> None:
    pace = Pace(0.2, resumed)
    for view, took, passed in looks:
        wait = pace.after(view, took, NOW + passed)
        assert wait >= 0
        assert 0.2 * FASTEST - 1e-9 <= wait + took <= 0.2 + 1e-9


def test_a_quiet_stream_is_looked_after_less_and_less_down_to_the_slowest_pace() -> None:
    pace = Pace(0.2)
    waits = [pace.after(QUIET, 0, NOW) for _ in range(8)]
    assert waits[0] == pytest.approx(0.05)
    assert all(later == pytest.approx(min(sooner * 1.5, 0.2)) for sooner, later in itertools.pairwise(waits))
    assert waits[-1] == 0.2


def slowed() -> Pace:
    pace = Pace(0.2)
    for _ in range(8):
        pace.after(QUIET, 0, NOW)
    return pace


def test_after_a_request_it_is_looked_after_at_the_fastest_pace_for_a_while() -> None:
    pace = slowed()
    moments = (0, 1, LIVELY_SECONDS - 0.01, LIVELY_SECONDS + 0.01, LIVELY_SECONDS + 1)
    waits = [pace.after(asked(NOW), 0, NOW + moment) for moment in moments]
    assert waits == pytest.approx([0.05, 0.05, 0.05, 0.075, 0.1125])


def test_after_a_persons_answer_it_is_looked_after_at_the_fastest_pace_for_a_while() -> None:
    pace = Pace(0.2, resumed_at=NOW)
    waits = [pace.after(QUIET, 0, NOW + moment) for moment in (0, 0.1, 1.9, 2.1)]
    assert waits == pytest.approx([0.05, 0.05, 0.05, 0.075])


def test_a_request_of_long_ago_does_not_count() -> None:
    assert slowed().after(asked(NOW - 60), 0, NOW) == 0.2


def test_the_time_that_a_look_takes_is_part_of_the_interval() -> None:
    assert slowed().after(QUIET, 0.05, NOW) == pytest.approx(0.15)


@pytest.mark.parametrize(("took", "wait"), [(0.15, 0.15), (0.2, 0.2), (5.0, 0.2)])
def test_storage_that_is_slow_is_left_to_others_for_as_long_as_a_look_takes(took: float, wait: float) -> None:
    assert slowed().after(QUIET, took, NOW) == pytest.approx(wait)
