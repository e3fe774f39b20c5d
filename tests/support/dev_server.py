"""A real `langgraph dev` in a process of its own, which a test can kill and start again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from packaging.version import Version

from support.process import QUIET, ROOT, ServerProcess, lay, passed_on

PYTHON = os.environ.get("MIDSTREAM_SERVER_PYTHON", sys.executable)
"""Of the environment with the server: `make test-line` runs the tests against another langgraph-api's."""


def _server_version() -> Version:
    if sys.executable == PYTHON:
        return Version(version("langgraph-api"))
    code = "from importlib.metadata import version; print(version('langgraph-api'))"
    return Version(subprocess.check_output([PYTHON, "-c", code], text=True).strip())


shows_schemas = pytest.mark.skipif(
    _server_version() < Version("0.16"), reason="langgraph-api shows no response_schema before 0.16"
)


class DevServer(ServerProcess):
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
        command = [PYTHON, "-m", "langgraph_cli", "dev", "--no-browser", "--no-reload"]
        command += ["--host", "127.0.0.1", "--port", "{port}", "--n-jobs-per-worker", str(jobs)]
        super().__init__("langgraph dev", command, self.folder, {**passed_on(), **QUIET, **(env or {})})
        lay(files, self.folder)

    def __enter__(self) -> DevServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def client(self, **options: Any) -> LangGraphClient:
        """Returns a stock SDK client of this server, to be used in `async with`: unclosed, it warns."""
        return get_client(url=self.url, api_key=None, **options)

    def restart(self) -> None:
        """Starts the server again on the same folder, after `stop` or `kill`; `url` changes."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stops the server and removes its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def example_graphs() -> dict[str, str]:
    """Returns the files of this checkout that a server needs: `langgraph.json` and the example graphs."""
    paths = [ROOT / "langgraph.json", *(ROOT / "graphs").rglob("*.py")]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}
