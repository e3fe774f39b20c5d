"""What becomes of steers and sealed turns when runs are killed.

A run on SQLite is steered twice from another process and killed with `kill -9` at random moments, up to three
times, and begun again each time.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from bench.paced_graph import PacedModel, agent
from bench.processes import child, kill, killed_itself, shared_out
from midstream import Ledger, ModelNode, Preemption

KILLS = 3
STEERS = ("first", "second")
GAP_SECONDS = 0.005
WORDS = 200


@dataclass(frozen=True, slots=True)
class Death:
    """What became of a run that was killed."""

    accepted: int
    applied: int
    repeated: int
    """Steers that are in the thread more than once."""

    lost: int
    """Steers that are not in the thread."""

    waited: int
    """Steers that were accepted as the run ended, and applied by the next one."""

    out_of_order: bool
    seals: int
    """Sealed turns, as the state counts them."""

    seals_kept: int
    """Sealed turns in the thread."""

    kills: int
    """Kills that met a living run."""


def steered(saver: Any) -> Any:
    model = PacedModel(interval=GAP_SECONDS, words=WORDS)
    return agent(ModelNode(model, preemption=Preemption(poll_interval=0.05)), saver)


async def run(path: Path, thread_id: str, *, follow_up: bool) -> None:
    """Runs the thread, or goes on with it, to its end; or says something more to one that has ended."""
    config: Any = {"configurable": {"thread_id": thread_id}}
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        graph = steered(saver)
        state = await graph.aget_state(config)
        if not state.values:
            await graph.ainvoke({"messages": [HumanMessage("Go on.", id="ask")]}, config, durability="sync")
        elif state.next:
            await graph.ainvoke(None, config, durability="sync")
        elif follow_up:
            await graph.ainvoke({"messages": [HumanMessage("And?", id="more")]}, config, durability="sync")


def death(path: Path, chance: random.Random) -> Death:
    thread_id, kills = str(uuid.uuid4()), 0
    steers = [chance.uniform(0.05, 0.5) for _ in STEERS]
    with SqliteSaver.from_conn_string(str(path)) as saver:
        saver.setup()

    process = child(partial(run, path, thread_id, follow_up=False))
    began = time.monotonic()
    todo = sorted(zip(steers, STEERS, strict=True))
    texts = [text for _, text in todo]
    for _ in range(KILLS):
        until = time.monotonic() + chance.uniform(0.05, 0.5)
        while time.monotonic() < until:
            if todo and time.monotonic() - began >= todo[0][0]:
                steer(path, thread_id, todo.pop(0)[1])
            time.sleep(0.002)
        kills += kill(process)
        process = child(partial(run, path, thread_id, follow_up=False))
    for _, text in todo:
        steer(path, thread_id, text)
    killed_itself(process)
    # A steer that was accepted as the run ended waits for the next one.
    waiting = len(pending(path, thread_id))
    if waiting:
        killed_itself(child(partial(run, path, thread_id, follow_up=True)))
    return found_in(path, thread_id, texts, kills, waiting)


def pending(path: Path, thread_id: str) -> list[str]:
    with SqliteSaver.from_conn_string(str(path)) as saver:
        return [str(entry.messages[0]["content"]) for entry in Ledger(saver, thread_id).requests()]


def steer(path: Path, thread_id: str, text: str) -> None:
    with SqliteSaver.from_conn_string(str(path)) as saver:
        Ledger(saver, thread_id).append({"kind": "steer", "messages": text})


def found_in(path: Path, thread_id: str, texts: Sequence[str], kills: int, waited: int) -> Death:
    with SqliteSaver.from_conn_string(str(path)) as saver:
        values = steered(saver).get_state({"configurable": {"thread_id": thread_id}}).values
    injected = [
        str(message.text)
        for message in values["messages"]
        if isinstance(message, HumanMessage) and message.additional_kwargs.get("source") == "steer"
    ]
    sealed = [
        message
        for message in values["messages"]
        if message.response_metadata.get("preemption", {}).get("sealed")
    ]
    return Death(
        accepted=len(texts),
        applied=len(set(injected)),
        repeated=sum(injected.count(text) > 1 for text in texts),
        lost=sum(text not in injected for text in texts),
        waited=waited,
        out_of_order=injected != [text for text in texts if text in injected],
        seals=values.get("preemption", {}).get("stats", {}).get("seals", 0),
        seals_kept=len(sealed),
        kills=kills,
    )


def deaths(tries: int, seed: int, folder: Path) -> list[Death]:
    """So many runs that are killed."""

    def one(number: int, folder: Path) -> Death:
        return death(folder / "run.sqlite", random.Random(f"{seed} {number}"))

    found = shared_out(one, tries, folder)
    print("killed and steered runs: done", flush=True)
    return found
