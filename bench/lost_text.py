"""How much of what a person saw is not in the thread, when runs are steered, halted, cancelled and killed.

A run on SQLite streams to its host, who interferes from another process at a random word. With midstream the
host posts a request. With a plain node it can only cancel the run and begin a new one with the person's word.
Runs that are to be cancelled or killed are steered first, and meet their end some words later. Then the
thread is gone on with.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from bench.paced_graph import PacedModel, agent
from bench.processes import DONE_WITHIN_SECONDS, child, ended, shared_out
from midstream import Ledger, MidstreamState, ModelNode, Preemption

FAULTS = ("steered", "halted", "cancelled", "killed")
OURS, PLAIN = "ModelNode", "plain node"
NODES = (OURS, PLAIN)

GAP_SECONDS = 0.004
WORDS = 60
STEER = {"kind": "steer", "messages": "Shorter, please."}
HALT = {"kind": "halt", "reason": "enough"}
CONFIG: Any = {"configurable": {"thread_id": "1"}}


@dataclass(frozen=True, slots=True)
class Told:
    """What became of the text of one thread."""

    seen: int
    """Characters that reached the host before the fault was over."""

    lost: int
    """How many of them are not in the thread."""

    lost_of_sealed: int
    """How many of those are of answers that were sealed."""

    seals: int
    """Sealed turns, as the state counts them."""

    seals_kept: int
    goes_on: bool
    """Whether the thread could be gone on with to a whole answer."""


def talking(node: str, saver: Any) -> Any:
    model = PacedModel(interval=GAP_SECONDS, words=WORDS)

    async def plain(state: MidstreamState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    ours = ModelNode(model, preemption=Preemption(poll_interval=0.05))
    return agent(ours if node == OURS else plain, saver)


class Run:
    """A run in a process of its own, whose words come through a pipe."""

    def __init__(self, node: str, path: Path, text: str | None) -> None:
        read, self._write = os.pipe()
        self._process = child(partial(self._stream, node, path, text))
        os.close(self._write)
        self._read = os.fdopen(read)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yields `(message id, text)` until the run is over."""
        with self._read:
            for line in self._read:
                if line.endswith("\n"):
                    message_id, text = json.loads(line)
                    yield message_id, text
        ended(self._process, DONE_WITHIN_SECONDS)

    def cancel(self) -> None:
        os.kill(self._process, signal.SIGUSR1)

    def kill(self) -> None:
        os.kill(self._process, signal.SIGKILL)

    async def _stream(self, node: str, path: Path, text: str | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, task.cancel)
        given = None if text is None else {"messages": [HumanMessage(text)]}
        try:
            async with (
                asyncio.timeout(DONE_WITHIN_SECONDS),
                AsyncSqliteSaver.from_conn_string(str(path)) as saver,
            ):
                async for chunk, _ in talking(node, saver).astream(given, CONFIG, stream_mode="messages"):
                    if chunk.type == "AIMessageChunk" and chunk.text:
                        os.write(self._write, f"{json.dumps([chunk.id, chunk.text])}\n".encode())
        except asyncio.CancelledError:
            return


def post(path: Path, request: Mapping[str, Any]) -> None:
    with SqliteSaver.from_conn_string(str(path)) as saver:
        Ledger(saver, "1").append(request)


def shown(node: str, fault: str, path: Path, chance: random.Random) -> dict[str, str]:
    """Lets the fault happen; returns what the host saw of each message."""
    first = chance.randint(5, 20)
    second = first + chance.randint(20, 45)
    seen: dict[str, str] = {}
    words = 0

    def watch(run: Run) -> None:
        nonlocal words
        for message_id, text in run:
            seen[message_id] = seen.get(message_id, "") + text
            words += 1
            if words == first:
                if node == OURS:
                    post(path, HALT if fault == "halted" else STEER)
                else:
                    run.cancel()
            elif words == second and fault == "cancelled":
                run.cancel()
            elif words == second and fault == "killed":
                run.kill()

    watch(Run(node, path, "Go on."))
    if node == PLAIN and fault != "halted":
        watch(Run(node, path, "Shorter, please."))
    return seen


def told(node: str, fault: str, path: Path, chance: random.Random) -> Told:
    with SqliteSaver.from_conn_string(str(path)) as saver:
        saver.setup()
    seen = shown(node, fault, path, chance)
    with SqliteSaver.from_conn_string(str(path)) as saver:
        is_open = bool(talking(node, saver).get_state(CONFIG).next)
    last = "".join(text for _, text in Run(node, path, None if is_open else "And?"))
    with SqliteSaver.from_conn_string(str(path)) as saver:
        state = talking(node, saver).get_state(CONFIG)

    kept = {message.id: message for message in state.values["messages"]}
    sealed = [message for message in kept.values() if _is_sealed(message)]
    lost = {name: _missing(text, kept.get(name)) for name, text in seen.items()}
    final = state.values["messages"][-1]
    return Told(
        seen=sum(map(len, seen.values())),
        lost=sum(lost.values()),
        lost_of_sealed=sum(lost.get(str(message.id), 0) for message in sealed),
        seals=state.values.get("preemption", {}).get("stats", {}).get("seals", 0),
        seals_kept=len(sealed),
        goes_on=not state.next and isinstance(final, AIMessage) and final.text == last != "",
    )


def _is_sealed(message: BaseMessage) -> bool:
    return bool(message.response_metadata.get("preemption", {}).get("sealed"))


def _missing(seen: str, kept: BaseMessage | None) -> int:
    """Counts the characters of what was seen that the thread does not have."""
    there = str(kept.text) if kept else ""
    return len(seen) - sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(seen, there, strict=False))
    )


def texts(tries: int, seed: int, folder: Path) -> dict[str, dict[str, list[Told]]]:
    """So many runs of each fault, by the node that they run on."""

    def played(fault: str, node: str, number: int, folder: Path) -> Told:
        return told(node, fault, folder / "run.sqlite", random.Random(f"{seed} {fault} {number}"))

    found: dict[str, dict[str, list[Told]]] = {}
    for fault in FAULTS:
        found[fault] = {node: shared_out(partial(played, fault, node), tries, folder) for node in NODES}
        print(f"{fault} runs: done", flush=True)
    return found
