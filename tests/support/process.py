"""A server process: it answers on a port of its own, and can be killed and started again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]

STARTS_WITHIN_SECONDS = 120.0
STOPS_WITHIN_SECONDS = 10.0
LOG_TAIL_LINES = 60

QUIET = {
    "LANGGRAPH_CLI_NO_ANALYTICS": "1",
    "LANGGRAPH_NO_VERSION_CHECK": "true",
    "LANGSMITH_TRACING": "false",
    "LOG_COLOR": "false",
    "PYTHONUNBUFFERED": "1",
}
"""Nothing leaves the machine, and the log is complete when the process is killed."""


class ServerProcess:
    """One process and what it starts, which are a group of their own.

    Args:
        name: What it is called, and its log.
        command: Wherever `{port}` stands in it, the port is put.
        folder: Where it runs, and where its log is.
        env: The whole environment, to which `PORT` is added.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.url = ""
        self._command = command
        self._folder = folder
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<ServerProcess {self.name} [{'alive' if self.is_alive else 'dead'}]>"

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process, which is the leader of its group."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    def start(self) -> None:
        """Starts the process and returns once it answers.

        Raises:
            RuntimeError: It ended, or did not answer in time; the message holds the end of its log.
        """
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [part.replace("{port}", str(port)) for part in self._command],
                cwd=self._folder,
                env={**self._env, "PORT": str(port)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._await_ok(self._process)

    def kill(self) -> None:
        """Ends the process and what it started at once, as a crash does (`kill -9`)."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait(STOPS_WITHIN_SECONDS)

    def stop(self) -> None:
        """Ends the process in good order, or by force if it takes too long, and whatever it leaves behind."""
        if self._process is not None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOPS_WITHIN_SECONDS)
            self.kill()

    def freeze(self) -> None:
        """Stops the process where it stands; what is killed while it is frozen has done nothing more."""
        self._signal(signal.SIGSTOP)

    def log_text(self) -> str:
        """Returns all that the process has printed, over all its starts."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _await_ok(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + STARTS_WITHIN_SECONDS
        while time.monotonic() < deadline:
            if (code := process.poll()) is not None:
                raise RuntimeError(f"{self.name} ended with code {code}; its log ends:\n{self.log_tail()}")
            try:
                if httpx.get(f"{self.url}/ok", timeout=2).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise RuntimeError(f"{self.name} did not answer in time; its log ends:\n{self.log_tail()}")

    def log_tail(self) -> str:
        return "\n".join(self.log_text().splitlines()[-LOG_TAIL_LINES:])

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def passed_on() -> dict[str, str]:
    """This environment without a developer's own LangSmith, and with the source roots made findable."""
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("LANGSMITH_", "LANGCHAIN_"))
    }
    roots = [str(ROOT / name) for name in ("extensions", "sdk_client", "graphs", "tests")]
    inherited = [str(Path(part).resolve()) for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
    env["PYTHONPATH"] = os.pathsep.join([*roots, *(part for part in inherited if part not in roots)])
    return env


def lay(files: Path | Mapping[str, Any], folder: Path) -> None:
    """Fills a folder: with texts (or JSON values) by relative path, or with what another folder holds."""
    if isinstance(files, Path):
        ignore = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")
        shutil.copytree(files, folder, dirs_exist_ok=True, ignore=ignore)
        return
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
