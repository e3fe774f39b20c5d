from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import psutil
import pytest

from support.process import QUIET, ROOT

MARK = "MIDSTREAM_DEMO_MARK"
ENDS_WITHIN_SECONDS = 20.0


@contextlib.contextmanager
def started(model: str, mark: str) -> Iterator[subprocess.Popen[str]]:
    """The demo, and nothing of it after the block, whatever the test found."""
    environment = {**os.environ, **QUIET, "MIDSTREAM_MODEL": model, MARK: mark}
    # In the tests' own environment the checkout may not be installed.
    environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / name) for name in ("extensions", "sdk_client"))
    with subprocess.Popen(
        [sys.executable, str(ROOT / "docs" / "demo.py")],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as demo:
        try:
            yield demo
        finally:
            for process in marked(mark):
                with contextlib.suppress(psutil.Error):
                    process.kill()


def marked(mark: str) -> list[psutil.Process]:
    """The demo and everything that it started and that still runs, directly or not."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def in_order(words: list[str], text: str) -> str | None:
    """Returns the first of the words that does not come after the one before it."""
    at = 0
    for word in words:
        at = text.find(word, at)
        if at < 0:
            return word
        at += len(word)
    return None


@pytest.mark.parametrize("model", ["scripted", "local"])
def test_demo_shows_a_steer_and_a_halt_and_ends_what_it_started(model: str) -> None:
    mark = str(uuid.uuid4())
    with started(model, mark) as demo:
        shown, _ = demo.communicate(timeout=110)
        assert marked(mark) == []

    assert demo.returncode == 0, shown
    steered = "1. Steer,you ,agent ,you ,accepted,sealed,injected,agent ,success,[sealed]"
    halted = "2. Halt,you ,agent ,/halt,accepted,sealed,halted,success,that is enough,[sealed]"
    assert in_order(f"{steered},{halted},Done".split(","), shown) is None, shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_demo_that_is_interrupted_ends_what_it_started(number: signal.Signals) -> None:
    mark = str(uuid.uuid4())
    with started("scripted", mark) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("agent"):
                break
        demo.send_signal(number)
        shown, _ = demo.communicate(timeout=ENDS_WITHIN_SECONDS)

        assert demo.returncode == 128 + number, shown
        deadline = time.monotonic() + ENDS_WITHIN_SECONDS
        while marked(mark) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert marked(mark) == []


def test_demo_whose_server_cannot_start_says_why() -> None:
    with started("nonsense", str(uuid.uuid4())) as demo:
        shown, _ = demo.communicate(timeout=60)

    assert demo.returncode == 1
    assert "MIDSTREAM_MODEL is 'nonsense', but must be" in shown
