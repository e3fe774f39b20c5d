"""Processes that are quick to start: a child that has imported everything forks for each of them.

Run as a program it reads jobs from its standard input, one JSON object a line, and prints how they ended.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

LASTS_AT_MOST_SECONDS = 30


class Forking:
    """The child, seen from the test; a context manager."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __enter__(self) -> Forking:
        paths = [str(ROOT / name) for name in ("extensions", "sdk_client", "graphs", "tests")]
        self._child = subprocess.Popen(
            [sys.executable, "-m", "support.forking", self._module],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.communicate()

    def run(self, function: str, *calls: dict[str, Any]) -> list[int]:
        """Calls a function of the module in a process for each of `calls`, all at the same time.

        Returns their exit codes; the negative number of a signal that ended one.
        """
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        print(json.dumps({"function": function, "calls": calls}), file=self._child.stdin, flush=True)
        codes: list[int] = json.loads(self._child.stdout.readline())
        return codes


class Start:
    """Where the forks of one job wait for each other."""

    barrier: Any = None

    def wait(self) -> None:
        self.barrier.wait()


START = Start()


def main(module_name: str) -> None:
    module = importlib.import_module(module_name)
    # The module that the others import, not the one that runs as a program.
    start = importlib.import_module("support.forking").START
    for line in sys.stdin:
        job = json.loads(line)
        start.barrier = multiprocessing.get_context("fork").Barrier(len(job["calls"]))
        children = [_fork(getattr(module, job["function"]), call) for call in job["calls"]]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)


def _fork(function: Any, call: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    signal.alarm(LASTS_AT_MOST_SECONDS)
    try:
        function(**call)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
