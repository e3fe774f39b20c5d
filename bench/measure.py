"""Comparing two ways to do one thing on a machine that has other things to do.

All ways are taken in turns, in a new random order each round, and only neighbours in time are compared. The
figure is the median over rounds of the ratio within a round: a machine that slows down slows both.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import stdev


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True, slots=True)
class Side:
    """One way to do the thing."""

    name: str
    run: Callable[[], Awaitable[object]]
    prepare: Callable[[], None] = lambda: None
    """Called before each run, untimed."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How one side compares with another, over all rounds."""

    median: float
    error: float
    """The median's standard error: what the machine's unrest makes of a true 1 is within twice that."""

    p1: float
    p99: float

    @classmethod
    def of(cls, ours: Sequence[float], base: Sequence[float]) -> Ratio:
        ratios = [mine / other for mine, other in zip(ours, base, strict=True)]
        # 1.25: how much less certain the median of a normal distribution is than its mean.
        error = 1.25 * stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
        return cls(median(ratios), error, quantile(ratios, 0.01), quantile(ratios, 0.99))


async def in_turns(
    sides: Sequence[Side],
    *,
    rounds: int,
    seed: int,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """Returns each side's seconds, one number a round.

    Args:
        sides: What is compared.
        rounds: How often each of them is run, after one run that does not count.
        seed: Of the order within the rounds.
        clock: The processor's time of this process by default: the work of others is not in it.
    """
    order = random.Random(seed)
    taken: dict[str, list[float]] = {side.name: [] for side in sides}
    for turn in range(rounds + 1):
        if turn == 1:
            gc.collect()
            gc.freeze()  # what is there by now need not be looked through before each run
        for side in order.sample(sides, len(sides)):
            side.prepare()
            gc.collect()
            began = clock()
            await side.run()
            seconds = clock() - began
            if turn:
                taken[side.name].append(seconds)
    return taken
