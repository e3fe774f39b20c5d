from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import settings
from langgraph.checkpoint.postgres import PostgresSaver

import support.examples  # noqa: F401 -- registers the profiles
from support.dev_server import DevServer
from support.hosted import DEPLOYMENT
from support.postgres import postgres
from support.waiting_graph import waiting_graph

settings.load_profile("same")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The server and the SDK run on asyncio only."""
    return "asyncio"


@pytest.fixture(scope="session")
def postgres_uri() -> Iterator[str]:
    """A PostgreSQL of this test session's own."""
    with postgres() as uri:
        yield uri


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
    """A real `langgraph dev` with the graphs that the host's side is tested against, and quick crons."""
    with DevServer(DEPLOYMENT, env={"CRON_SCHEDULER_SLEEP_TIME": "1"}) as server:
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
