"""The real server, with midstream and without."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from langgraph_sdk.client import LangGraphClient

from bench.counting_graph import VARIABLE
from support.dev_server import DevServer
from support.process import ROOT

WITH, WITHOUT = "agent", "plain"
"""The two graphs."""


def server(
    *, midstream: bool = True, env: Mapping[str, str], jobs: int = 10, counts: Path | None = None
) -> DevServer:
    """Returns a server with both graphs, or, without midstream, with the plain one alone.

    Args:
        midstream: Whether it has midstream's app and graph.
        env: Added to its environment.
        jobs: How many runs it works on at once.
        counts: Where it counts its queries, for `Counts`.
    """
    graphs = {WITHOUT: f"{ROOT}/bench/plain_graph.py:graph"}
    if counts is not None:
        graphs["counting"] = f"{ROOT}/bench/counting_graph.py:graph"
        env = {**env, VARIABLE: str(counts)}
    config: dict[str, Any] = {"dependencies": ["."], "graphs": graphs}
    if midstream:
        graphs[WITH] = f"{ROOT}/graphs/agent.py:graph"
        config["http"] = {"app": "midstream.server:app"}
    return DevServer({"langgraph.json": config}, env=env, jobs=jobs)


def scripted(interval_ms: int) -> dict[str, str]:
    """Returns the environment of a server whose model needs this long for a word."""
    return {"MIDSTREAM_MODEL": "scripted", "MIDSTREAM_SCRIPTED_INTERVAL_MS": str(interval_ms)}


def saying(text: str, words: int) -> str:
    """Returns a message to which the scripted model answers so."""
    return json.dumps({"turns": [{"say": text, "words": words}]})


def cpu_seconds(pid: int) -> float:
    """Returns the processor time that a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Returns the memory that a process holds now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def streamed(
    client: LangGraphClient, thread_id: str, graph: str, text: str, **options: Any
) -> AsyncIterator[tuple[str, Any]]:
    """Runs a graph; yields `("run", id)`, `("token", (message id, text))` and `("event", custom data)`."""
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    modes: Any = ["messages-tuple", "custom"]
    async for part in client.runs.stream(thread_id, graph, input=asked, stream_mode=modes, **options):
        if part.event == "metadata":
            yield "run", part.data["run_id"]
        elif part.event == "custom":
            yield "event", part.data
        elif part.event == "messages":
            message = part.data[0]
            if message["type"] in ("AIMessageChunk", "ai") and message["content"]:
                yield "token", (message["id"], message["content"])
        elif part.event == "error":
            raise RuntimeError(f"the run failed: {part.data}")
