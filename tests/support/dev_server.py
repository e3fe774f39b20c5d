"""A real `langgraph dev` in a process of its own, which a test can kill and start again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

ROOT = Path(__file__).resolve().parents[2]

STARTS_WITHIN_SECONDS = 90.0
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


class DevServer:
    """`langgraph dev` on a free port of the loopback, in a temporary folder.

    Args:
        files: What the folder holds: texts (or JSON values) by relative path, or a folder to copy. Either
            has a `langgraph.json`.
        env: Added to the environment of this process, which is passed on.
        jobs: How many runs the server works on at once.
    """

    def __init__(
        self,
        files: Path | Mapping[str, Any],
        *,
        env: Mapping[str, str] | None = None,
        jobs: int = 10,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="midstream-dev-"))
        self.log = self.folder / "server.log"
        self.env = {**_passed_on(), **QUIET, **(env or {})}
        self.jobs = jobs
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None
        _lay(files, self.folder)

    def __enter__(self) -> DevServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The server's process, which is the leader of its group."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    def client(self, **options: Any) -> LangGraphClient:
        """Returns a stock SDK client of this server, to be used in `async with`: unclosed, it warns."""
        return get_client(url=self.url, api_key=None, **options)

    def start(self) -> None:
        """Starts the server and returns once it answers.

        Raises:
            RuntimeError: It ended, or did not answer in time; the message holds the end of its log.
        """
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "langgraph_cli", "dev", "--no-browser", "--no-reload"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--n-jobs-per-worker", str(self.jobs)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._await_ok()

    def kill(self) -> None:
        """Ends the server and what it started at once, as a crash does (`kill -9`)."""
        self._signal(signal.SIGKILL)
        self._wait(STOPS_WITHIN_SECONDS)

    def stop(self) -> None:
        """Ends the server in good order, or by force if it takes too long."""
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        if not self._wait(STOPS_WITHIN_SECONDS):
            self._signal(signal.SIGKILL)
            self._wait(STOPS_WITHIN_SECONDS)
        # Whatever the server left behind in its group.
        self._signal(signal.SIGKILL)

    def restart(self) -> None:
        """Starts the server again on the same folder, after `stop` or `kill`; `url` changes."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stops the server and removes its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log_text(self) -> str:
        """Returns all that the server has printed, over all its starts."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _await_ok(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + STARTS_WITHIN_SECONDS
        while time.monotonic() < deadline:
            if (code := self._process.poll()) is not None:
                raise RuntimeError(f"langgraph dev ended with code {code}; its log ends:\n{self._tail()}")
            try:
                if httpx.get(f"{self.url}/ok", timeout=2).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        waited = f"{STARTS_WITHIN_SECONDS:.0f} s"
        raise RuntimeError(f"langgraph dev did not answer within {waited}; its log ends:\n{self._tail()}")

    def _tail(self) -> str:
        return "\n".join(self.log_text().splitlines()[-LOG_TAIL_LINES:])

    def _signal(self, number: int) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _wait(self, seconds: float) -> bool:
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def example_graphs() -> dict[str, str]:
    """Returns the files of this checkout that a server needs: `langgraph.json` and the example graphs."""
    paths = [ROOT / "langgraph.json", *(ROOT / "graphs").rglob("*.py")]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def _passed_on() -> dict[str, str]:
    """This environment without a developer's own LangSmith, and with the source roots made findable."""
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("LANGSMITH_", "LANGCHAIN_"))
    }
    roots = [str(ROOT / name) for name in ("extensions", "sdk_client", "graphs", "tests")]
    inherited = [str(Path(part).resolve()) for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
    env["PYTHONPATH"] = os.pathsep.join([*roots, *(part for part in inherited if part not in roots)])
    return env


def _lay(files: Path | Mapping[str, Any], folder: Path) -> None:
    if isinstance(files, Path):
        ignore = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")
        shutil.copytree(files, folder, dirs_exist_ok=True, ignore=ignore)
        return
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
