"""`kill -9` in the acting phase: what was done and saved is not done again by the process that takes over."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.crashing import step
from support.tool_batches import Effects, once, saver_of

ROOT = Path(__file__).resolve().parents[1]
WITHIN_SECONDS = 60.0


def start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    roots = os.pathsep.join(str(ROOT / name) for name in ("extensions", "sdk_client", "tests"))
    path = os.pathsep.join(part for part in (roots, os.environ.get("PYTHONPATH")) if part)
    return subprocess.Popen(
        [sys.executable, "-m", "support.crashing", json.dumps(order)],
        env={**os.environ, "PYTHONPATH": path},
    )


async def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("saver", "asynchronous", "durability"),
    [
        ("sqlite", False, "sync"),
        ("sqlite", True, "async"),
        ("postgres", True, "sync"),
        ("postgres", False, "async"),
    ],
)
async def test_a_process_that_takes_over_repeats_nothing(
    saver: str, asynchronous: bool, durability: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    uri = request.getfixturevalue("postgres_uri") if saver == "postgres" else ""
    thread = str(uuid.uuid4())
    order: dict[str, Any] = {
        "saver": saver,
        "asynchronous": asynchronous,
        "durability": durability,
        "folder": str(tmp_path),
        "uri": uri,
        "thread": thread,
        "first": False,
        "answers": None,
        "wait": False,
    }
    pauses, _ = await step({**order, "first": True})
    answers = {key: "yes" if "ask" in value else {"type": "approve"} for key, value in pauses.items()}

    process = start({**order, "answers": answers, "wait": True})
    try:
        with saver_of(saver, tmp_path, lambda: uri) as reader:

            def kept() -> bool:
                assert process.poll() is None, "it ended by itself"
                saved = reader.get_tuple({"configurable": {"thread_id": thread}})
                writes = saved.pending_writes if saved else None
                contents = [getattr(value, "content", None) for _, _, value in writes or ()]
                return {"yes", "first", "approved"} <= set(contents)

            await wait_until(kept)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(WITHIN_SECONDS)
    assert Effects(tmp_path / "effects").counts() == once(["ask", "first", "approved"])

    _, results = await step(order)

    assert Effects(tmp_path / "effects").counts() == once(["ask", "first", "approved", "second"])
    assert results == [("call_0", "second"), ("call_1", "yes"), ("call_2", "first"), ("call_3", "approved")]
