"""Streaming answers that a host halts, by where the host is: the tries behind `bench.seal_latency`.

The host is in the same process (`Ledger.aappend`); in another one that shares a PostgreSQL with the run;
behind the HTTP of a real `langgraph dev`; or behind an API process whose runs a worker does, with PostgreSQL
and Redis between the two.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph_sdk.client import LangGraphClient

from bench.paced_graph import ToldModel, agent
from bench.servers import WITH, streamed
from midstream import Ledger, ModelNode
from midstream_client import Midstream
from support.dev_server import DevServer
from support.postgres import postgres
from support.process import ROOT
from support.stack import Stack

HALT = {"kind": "halt", "reason": "measured"}
SILENT_AFTER = 5
TRY_SECONDS = 60
LINE = "0.16"
"""The langgraph-api of the API process and the worker."""

FILES: dict[str, Any] = {
    "langgraph.json": {
        "dependencies": ["."],
        "graphs": {WITH: f"{ROOT}/bench/paced_graph.py:graph"},
        "http": {"app": "midstream.server:app"},
    }
}

Events = AsyncIterator[tuple[str, Any]]

Now = time.perf_counter
"""Linux counts it from one moment for all processes."""


@dataclass(frozen=True, slots=True)
class Provider:
    """How a model streams."""

    name: str
    gap_ms: float
    silent_after: int | None = None

    @property
    def text(self) -> str:
        """The message that makes it do so."""
        return json.dumps({"gap_ms": self.gap_ms, "silent_after": self.silent_after})

    def moment(self, chance: random.Random) -> tuple[int, float]:
        """Returns after which word, and how many seconds later, to ask for the end."""
        if self.silent_after is not None:
            return self.silent_after, 2 * self.gap_ms / 1000
        return chance.randint(3, 8), chance.uniform(0, self.gap_ms / 1000)


SILENT = Provider("silent", 20, SILENT_AFTER)
PROVIDERS = (*(Provider(f"a word every {gap} ms", gap) for gap in (5, 20, 100)), SILENT)


@dataclass(slots=True)
class Try:
    """One answer that was halted."""

    tokens: list[float] = field(default_factory=list)
    """When each word reached the host."""

    posted: float = 0.0
    """When the host sent its request."""

    accepted: float = 0.0
    """When the host was told that its request is accepted."""

    sealed: float = 0.0
    """When the host was told that the answer is sealed."""

    @property
    def late(self) -> int:
        """How many words came after the host had its answer."""
        return sum(at > self.accepted for at in self.tokens)

    @property
    def last_ms(self) -> float:
        return max(0.0, self.tokens[-1] - self.accepted) * 1e3

    @property
    def sealed_ms(self) -> float:
        return max(0.0, self.sealed - self.accepted) * 1e3

    @property
    def from_post_ms(self) -> float:
        return (self.sealed - self.posted) * 1e3

    @property
    def numbers(self) -> dict[str, float]:
        return {
            "late": self.late,
            "last_ms": self.last_ms,
            "sealed_ms": self.sealed_ms,
            "from_post_ms": self.from_post_ms,
        }


async def watched(events: Events, halt: Callable[[], Awaitable[object]], moment: tuple[int, float]) -> Try:
    """Reads one answer, and halts it at the given moment."""
    seen = Try()
    posting: asyncio.Task[None] | None = None
    after, delay = moment

    async def post() -> None:
        await asyncio.sleep(delay)
        seen.posted = Now()
        await halt()
        seen.accepted = Now()

    async with asyncio.timeout(TRY_SECONDS):
        async for kind, data in events:
            if kind == "token":
                seen.tokens.append(Now())
                if len(seen.tokens) == after and posting is None:
                    posting = asyncio.create_task(post())
            elif data.get("event") == "sealed":
                seen.sealed = Now()
        assert posting is not None, "the answer was shorter than what the host wanted to read"
        await posting
    assert seen.sealed, "the answer was not sealed"
    return seen


def halting(ledger: Ledger) -> Callable[[], Awaitable[object]]:
    return lambda: ledger.aappend(HALT)


async def of_graph(graph: Any, thread_id: str, text: str) -> Events:
    config = {"configurable": {"thread_id": thread_id}}
    asked = {"messages": [HumanMessage(text)]}
    async for mode, data in graph.astream(asked, config, stream_mode=["messages", "custom"]):
        if mode == "custom":
            yield "event", data
        elif data[0].text:
            yield "token", data[0].text


Start = Callable[[Provider], Awaitable[tuple[Events, Callable[[], Awaitable[object]]]]]
"""Begins an answer; returns what is streamed of it, and what halts it."""


@asynccontextmanager
async def same_process() -> AsyncIterator[Start]:
    saver = InMemorySaver()
    graph = agent(ModelNode(ToldModel()), saver)

    async def start(provider: Provider) -> tuple[Events, Callable[[], Awaitable[object]]]:
        thread_id = str(uuid.uuid4())
        return of_graph(graph, thread_id, provider.text), halting(Ledger(saver, thread_id))

    yield start


@asynccontextmanager
async def two_processes() -> AsyncIterator[Start]:
    with postgres() as uri:
        async with AsyncPostgresSaver.from_conn_string(uri) as saver:
            await saver.setup()
            async with _runner(uri) as ask:

                async def start(provider: Provider) -> tuple[Events, Callable[[], Awaitable[object]]]:
                    thread_id = str(uuid.uuid4())
                    return ask(thread_id, provider.text), halting(Ledger(saver, thread_id))

                yield start


@asynccontextmanager
async def dev_server() -> AsyncIterator[Start]:
    with DevServer(FILES) as server:
        async with server.client() as client:
            yield over_http(client)


@asynccontextmanager
async def api_and_worker() -> AsyncIterator[Start]:
    with postgres() as uri, Stack(FILES, line=LINE, postgres_uri=uri) as stack:
        async with stack.client() as client:
            yield over_http(client)


def over_http(client: LangGraphClient) -> Start:
    async def events(thread_id: str, text: str) -> Events:
        async for kind, data in streamed(client, thread_id, WITH, text):
            if kind != "run":
                yield kind, data

    async def start(provider: Provider) -> tuple[Events, Callable[[], Awaitable[object]]]:
        thread_id = (await client.threads.create())["thread_id"]
        return events(thread_id, provider.text), lambda: Midstream(client).halt(thread_id, "measured")

    return start


@asynccontextmanager
async def _runner(uri: str) -> AsyncIterator[Callable[[str, str], Events]]:
    """The other process, which runs a thread when it is told its id."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.halting", uri, stdin=pipe, stdout=pipe, cwd=ROOT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    write, lines = process.stdin, process.stdout

    async def ask(thread_id: str, text: str) -> Events:
        write.write(f"{json.dumps([thread_id, text])}\n".encode())
        await write.drain()
        while line := await lines.readline():
            kind, data = json.loads(line)
            if kind == "end":
                return
            yield kind, data

    try:
        yield ask
    finally:
        write.close()
        await process.wait()


async def run_on(uri: str) -> None:
    """Runs the threads whose ids come on standard input, and prints what is streamed."""
    async with AsyncPostgresSaver.from_conn_string(uri) as saver:
        graph = agent(ModelNode(ToldModel()), saver)
        while line := await asyncio.to_thread(sys.stdin.readline):
            async for kind, data in of_graph(graph, *json.loads(line)):
                print(json.dumps([kind, data]), flush=True)
            print(json.dumps(["end", None]), flush=True)


async def tried(start: Start, tries: Mapping[Provider, int], seed: int) -> dict[Provider, list[Try]]:
    """So many answers of each provider, in random order."""
    chance = random.Random(seed)
    order = [provider for provider, count in tries.items() for _ in range(count)]
    chance.shuffle(order)
    found: dict[Provider, list[Try]] = {provider: [] for provider in tries}
    for provider in order:
        events, halt = await start(provider)
        found[provider].append(await watched(events, halt, provider.moment(chance)))
    return found


if __name__ == "__main__":
    asyncio.run(run_on(sys.argv[1]))
