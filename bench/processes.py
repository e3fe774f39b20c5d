"""Child processes that can be killed: copies of this one, which has imported everything already."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

DONE_WITHIN_SECONDS = 60
WORKERS = 4
"""More than there are processors: a try waits for most of its time."""

T = TypeVar("T")


def child(run: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Runs this in a new process; returns its id.

    To be called before this process has an event loop or a thread.
    """
    return forked(lambda: asyncio.run(run()))


def forked(run: Callable[[], object]) -> int:
    process = os.fork()
    if process == 0:
        code = 1
        try:
            run()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return process


def shared_out(play: Callable[[int, Path], T], tries: int, folder: Path) -> list[T]:
    """Plays the tries, which are numbered, in several processes at once; returns what became of each.

    Args:
        play: Is given the number and an empty folder, and may start processes of its own.
        tries: How many.
        folder: Where the folders are made; empty again afterwards.

    Raises:
        RuntimeError: A try failed.
    """

    def work(worker: int) -> None:
        with (folder / f"{worker}.found").open("wb") as file:
            for number in range(worker, tries, WORKERS):
                own = folder / str(number)
                own.mkdir()
                pickle.dump((number, play(number, own)), file)
                shutil.rmtree(own)

    def read(worker: int) -> Iterator[tuple[int, T]]:
        path = folder / f"{worker}.found"
        with path.open("rb") as file:
            for _ in range(worker, tries, WORKERS):
                yield pickle.load(file)
        path.unlink()

    # What is there by now need not be looked through, and so copied, in each process.
    gc.collect()
    gc.freeze()
    workers = range(min(WORKERS, tries))
    codes = [os.waitpid(process, 0)[1] for process in [forked(partial(work, worker)) for worker in workers]]
    if any(codes):
        raise RuntimeError("a try failed; what it says is above")
    found = dict(each for worker in workers for each in read(worker))
    return [found[number] for number in range(tries)]


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
