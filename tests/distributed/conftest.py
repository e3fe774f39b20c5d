from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from support.held_graph import DEPLOYMENT, Holds
from support.stack import Stack

LINES = os.environ.get("MIDSTREAM_LINES", "0.11,0.16").split(",")
"""The lines of langgraph-api that the tests run on."""

_faults: Counter[str] = Counter()


@pytest.fixture(scope="session", params=LINES)
def whole_stack(request: pytest.FixtureRequest, postgres_uri: str) -> Iterator[Stack]:
    """Two API processes and two workers, on one PostgreSQL and one Redis."""
    with Stack(DEPLOYMENT, line=request.param, postgres_uri=postgres_uri, apis=2, workers=2) as running:
        yield running


@pytest.fixture
def stack(whole_stack: Stack) -> Stack:
    """The same, with all of its processes alive."""
    whole_stack.restore()
    return whole_stack


@pytest.fixture
def holds(stack: Stack) -> Holds:
    return Holds(stack.folder)


@pytest.fixture
def faults(stack: Stack) -> Iterator[Counter[str]]:
    """Counts the faults that were injected, by kind; only those of tests that lost nothing get this far."""
    counted: Counter[str] = Counter()
    yield counted
    _faults.update({f"langgraph-api {stack.line}: {kind}": times for kind, times in counted.items()})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _faults:
        terminalreporter.section("faults injected")
        for kind, times in sorted(_faults.items()):
            terminalreporter.write_line(f"{times:4}  {kind}")
