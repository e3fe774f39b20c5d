"""A deployment whose one node waits, so that a test can hold a thread busy for as long as it likes."""

from __future__ import annotations

from typing import Any

GRAPH = """
import os
import time
from typing import Any

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from midstream.state import MidstreamState


class State(MidstreamState):
    wait_for: str
    ask: str
    fail: str
    handled: dict[str, Any]


def work(state: State) -> dict[str, Any]:
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
"""

AUTH = """
from typing import Any

from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None) -> str:
    who = (authorization or "").removeprefix("Bearer ")
    if who not in ("ann", "bob"):
        raise Auth.exceptions.HTTPException(status_code=401, detail="who are you?")
    return who


@auth.on.threads
async def own_threads(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> dict[str, str]:
    mine = {"owner": ctx.user.identity}
    value.setdefault("metadata", {}).update(mine)
    return mine
"""


def waiting_graph(*, http: dict[str, Any] | None = None, auth: bool = False) -> dict[str, Any]:
    """Returns the files of the deployment; `http` is added to what `langgraph.json` says of it."""
    config: dict[str, Any] = {
        "dependencies": ["."],
        "graphs": {"waiting": "./graph.py:graph"},
        "http": {"app": "midstream.server:app", **(http or {})},
    }
    if auth:
        config["auth"] = {"path": "./auth.py:auth"}
    return {"langgraph.json": config, "graph.py": GRAPH, "auth.py": AUTH}
