from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

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
def faults() -> Counter[str]:
    """Counts the faults that a test injects, by kind; those of a test that fails are not summed up."""
    return Counter()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    stack: Any = item.funcargs.get("stack")
    counted: Any = item.funcargs.get("faults", {})
    if call.when == "call" and stack is not None:
        if report.passed:
            _faults.update({f"langgraph-api {stack.line}: {kind}": n for kind, n in counted.items()})
        else:
            report.sections.append(("what the processes printed last", stack.log_tails))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _faults:
        terminalreporter.section("faults injected")
        for kind, times in sorted(_faults.items()):
            terminalreporter.write_line(f"{times:4}  {kind}")
