"""Runs a steered agent in a process that is killed (`kill -9`) at a chosen write of its saver."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph

from fakes import ENDLESS, SILENCE, FakeChatModel
from midstream import MidstreamState
from support.steering import ASKED, agent, is_sealed, ledger_of, steer

REQUEST = "7f0e3c54-3a5f-4a83-9a52-5a41c0cf4f0e"

Moment = Literal["accepted", "sealed", "injected"]


class Dying:
    """A saver that kills its own process right after one of its writes.

    `moment` is the write that puts a request on the ledger, or the one that commits the sealed turn or the
    injected message; else it is the write of that number.
    """

    moment: Moment | int = 0
    count = 0

    def _is_over(self, written: Any) -> None:
        self.count += 1
        if self.moment in (self.count, _moment_of(written)):
            os.kill(os.getpid(), signal.SIGKILL)

    def put(self, config: Any, checkpoint: Any, *args: Any) -> Any:
        result = super().put(config, checkpoint, *args)  # type: ignore[misc]
        self._is_over(checkpoint)
        return result

    def put_writes(self, config: Any, writes: Any, *args: Any) -> None:
        super().put_writes(config, writes, *args)  # type: ignore[misc]
        self._is_over(writes)

    async def aput(self, config: Any, checkpoint: Any, *args: Any) -> Any:
        result = await super().aput(config, checkpoint, *args)  # type: ignore[misc]
        self._is_over(checkpoint)
        return result

    async def aput_writes(self, config: Any, writes: Any, *args: Any) -> None:
        await super().aput_writes(config, writes, *args)  # type: ignore[misc]
        self._is_over(writes)


def _moment_of(written: Any) -> Moment | None:
    if not isinstance(written, dict):
        return "accepted" if any(channel == "request" for channel, _ in written) else None
    messages = written["channel_values"].get("messages") or []
    if messages and is_sealed(messages[-1]):
        return "sealed"
    return "injected" if messages and messages[-1].additional_kwargs else None


class DyingSqlite(Dying, SqliteSaver): ...


class DyingAsyncSqlite(Dying, AsyncSqliteSaver): ...


class DyingPostgres(Dying, PostgresSaver): ...


class DyingAsyncPostgres(Dying, AsyncPostgresSaver): ...


@contextmanager
def saver_at(uri: str) -> Iterator[BaseCheckpointSaver[Any]]:
    kind: Any = DyingPostgres if "://" in uri else DyingSqlite
    with kind.from_conn_string(uri) as saver:
        saver.setup()
        yield saver


@asynccontextmanager
async def async_saver_at(uri: str) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    kind: Any = DyingAsyncPostgres if "://" in uri else DyingAsyncSqlite
    async with kind.from_conn_string(uri) as saver:
        await saver.setup()
        yield saver


def agent_in(model: Any, saver: BaseCheckpointSaver[Any], *, is_subgraph: bool) -> Any:
    """The agent, alone or as a subgraph."""
    if not is_subgraph:
        return agent(model, saver=saver)
    builder = StateGraph(MidstreamState)
    inner: Any = None
    builder.add_node("agent", agent(model, saver=inner))
    builder.add_edge(START, "agent")
    return builder.compile(checkpointer=saver)


def run(
    uri: str,
    config: RunnableConfig,
    moment: Moment | int,
    durability: Any,
    is_async: bool,
    is_subgraph: bool = False,
) -> None:
    if is_async:
        return asyncio.run(_arun(uri, config, moment, durability, is_subgraph))
    with saver_at(uri) as saver:
        saver.moment = moment  # type: ignore[attr-defined]
        request = steer("Be brief.", id=REQUEST)
        model = FakeChatModel(
            answers=[
                ["Once", lambda: ledger_of(saver, config).append(request), ENDLESS],
                ["A cat."],
            ]
        )
        agent_in(model, saver, is_subgraph=is_subgraph).invoke(ASKED, config, durability=durability)
    return None


async def _arun(
    uri: str, config: RunnableConfig, moment: Moment | int, durability: Any, is_subgraph: bool
) -> None:
    async with async_saver_at(uri) as saver:
        saver.moment = moment  # type: ignore[attr-defined]
        request = steer("Be brief.", id=REQUEST)
        model = FakeChatModel(
            answers=[
                ["Once", lambda: ledger_of(saver, config).aappend(request), SILENCE],
                ["A cat."],
            ]
        )
        graph = agent_in(model, saver, is_subgraph=is_subgraph)
        await graph.ainvoke(ASKED, config, durability=durability)
