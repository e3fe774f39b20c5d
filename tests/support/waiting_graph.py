"""A deployment whose one node waits, so that a test can hold a thread busy for as long as it likes."""

from __future__ import annotations

from typing import Any

GRAPH = """
import json
import os
import time
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from langgraph_sdk import get_client

from midstream._host import saver_of
from midstream.ledger import HaltRecord, Ledger
from midstream.state import MidstreamState


class State(MidstreamState):
    wait_for: str
    ask: str
    fail: str
    handled: dict[str, Any]
    halted_runs: list[str]


def work(state: State, config: RunnableConfig) -> dict[str, Any]:
    ledger = Ledger(saver_of(config), config["configurable"]["thread_id"])
    for n, run_id in enumerate(state.get("halted_runs") or ()):
        ledger.record_halt(HaltRecord(run_id=run_id, reason=f"halt {n}", node="work", at=time.time()))
        ledger.rotate(ledger.view())
    deadline = time.monotonic() + 60
    while (path := state.get("wait_for")) and not os.path.exists(path):
        assert time.monotonic() < deadline, "nobody let the node go"
        time.sleep(0.01)
    if state.get("fail"):
        raise RuntimeError(state["fail"])
    if question := state.get("ask"):
        interrupt(question)
    return {"preemption": {"handled": state.get("handled") or {}}}


builder = StateGraph(State)
builder.add_node("work", work)
builder.add_edge(START, "work")
builder.add_edge("work", END)
graph = builder.compile()


async def post(state: State, runtime: Runtime) -> dict[str, Any]:
    # A call from within the server, which needs no credentials.
    answer = await get_client().threads.update_state(
        runtime.execution_info.thread_id,
        {"preemption": {"kind": "steer", "messages": "from within"}},
    )
    return {"ask": json.dumps(answer["preemption"])}


poster = StateGraph(State)
poster.add_node("post", post)
poster.add_edge(START, "post")
poster.add_edge("post", END)
posting = poster.compile()
"""

SAVER = """
from contextlib import asynccontextmanager

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver


@asynccontextmanager
async def saver():
    async with AsyncSqliteSaver.from_conn_string("threads.db") as opened:
        yield opened
"""

AUTH = """
from typing import Any

from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None) -> str:
    who = (authorization or "").removeprefix("Bearer ")
    if who not in ("ann", "bob", "admin", "reader"):
        raise Auth.exceptions.HTTPException(status_code=401, detail="who are you?")
    return who


@auth.on.threads
async def own_threads(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> dict[str, str] | None:
    mine = {"owner": ctx.user.identity}
    value.setdefault("metadata", {}).update(mine)
    if ctx.user.identity == "admin" or (ctx.user.identity == "reader" and ctx.action == "read"):
        return None
    return mine
"""


def waiting_graph(
    *, http: dict[str, Any] | None = None, auth: bool = False, saver: bool = False
) -> dict[str, Any]:
    """Returns the files of the deployment; `http` is what `langgraph.json` says of it."""
    config: dict[str, Any] = {
        "dependencies": ["."],
        "graphs": {"waiting": "./graph.py:graph", "posting": "./graph.py:posting"},
    }
    config["http"] = {"app": "midstream.server:app"} if http is None else http
    if auth:
        config["auth"] = {"path": "./auth.py:auth"}
    if saver:
        config["checkpointer"] = {"path": "./saver.py:saver"}
    return {"langgraph.json": config, "graph.py": GRAPH, "auth.py": AUTH, "saver.py": SAVER}
