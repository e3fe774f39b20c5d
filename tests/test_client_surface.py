"""The two clients are one, and importing them brings no graph along."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from midstream_client import Midstream, SyncMidstream
from midstream_client import errors as errors_module
from midstream_client.errors import MidstreamError
from support.unasync import FOLDER, sync_source

PUBLIC = sorted(name for name in vars(Midstream) if not name.startswith("_"))
ROOT = Path(__file__).resolve().parents[1]


def test_the_twins_have_the_same_methods() -> None:
    assert sorted(name for name in vars(SyncMidstream) if not name.startswith("_")) == PUBLIC
    assert PUBLIC == [
        "halt",
        "halt_reason",
        "interrupts",
        "outcome",
        "pending_requests",
        "resume",
        "send",
        "stats",
        "steer",
        "stream",
        "withdraw",
    ]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_twins_take_the_same_and_say_the_same(name: str) -> None:
    awaited, plain = getattr(Midstream, name), getattr(SyncMidstream, name)

    assert inspect.signature(awaited).parameters == inspect.signature(plain).parameters
    assert inspect.getdoc(awaited)
    assert inspect.getdoc(plain) == (inspect.getdoc(awaited) or "").replace("aclosing", "closing")
    assert inspect.iscoroutinefunction(awaited) is (name != "stream")
    assert not inspect.iscoroutinefunction(plain)


def test_the_twin_differs_by_nothing_but_the_waiting() -> None:
    """`python tests/support/unasync.py` makes it again."""
    assert (FOLDER / "sync_client.py").read_text() == sync_source()


def test_the_client_loads_neither_a_graph_nor_the_sdk() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import midstream_client"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PYTHONPATH": str(ROOT / "sdk_client")},
    )

    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "midstream_client" in loaded
    assert not loaded & {"langgraph", "langgraph_api", "langgraph_sdk", "langchain_core", "midstream"}
    # The server and the nodes import the wire, and pay for no more.
    assert "jsonschema" not in loaded


def test_the_tree_of_errors_is_the_one_that_is_drawn() -> None:
    drawn = re.findall(r"\* (\w+)", errors_module.__doc__ or "")
    leaves = [
        name
        for name, value in vars(errors_module).items()
        if isinstance(value, type) and issubclass(value, MidstreamError)
    ]

    assert drawn == leaves
