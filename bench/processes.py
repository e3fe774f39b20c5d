"""Child processes that can be killed: copies of this one, which has imported everything already."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

DONE_WITHIN_SECONDS = 60


def child(run: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Runs this in a new process; returns its id.

    To be called before this process has an event loop or a thread.
    """
    process = os.fork()
    if process == 0:
        code = 1
        try:
            asyncio.run(run())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return process


def ended(process: int, seconds: float) -> int | None:
    """Waits for a child; returns its exit code, or None if it lives on."""
    deadline = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.002)


def kill(process: int) -> bool:
    """Ends a child as a crash does; returns whether it was alive."""
    if ended(process, 0) is not None:
        return False
    os.kill(process, signal.SIGKILL)
    ended(process, DONE_WITHIN_SECONDS)
    return True


def killed_itself(process: int) -> bool:
    """Waits until a child is done; returns whether it died of `kill -9`.

    Raises:
        RuntimeError: It failed, or was not done in time.
    """
    code = ended(process, DONE_WITHIN_SECONDS)
    if code is None:
        kill(process)
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError(f"a run did not come to its end: {code}")
    return code != 0
