"""What is lost and what happens twice when things go wrong.

Two faults, many random tries. *Answers*: batches of tool calls, of which some ask a person and others act;
the answers come one by one or together, in any order, and some are invalid. LangGraph's own `ToolNode` takes
the same batches. *Death*: a run on SQLite is steered twice from another process and killed with `kill -9` at
random moments, three times, and begun again each time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode as StockToolNode
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from bench.models import PacedModel
from bench.report import Check, Table, arguments, publish
from bench.svg import Bar, bars
from midstream import Ledger, MidstreamState, ModelNode, Preemption, ToolNode

OURS, STOCK = "midstream.ToolNode", "LangGraph's ToolNode"
INVALID_SHARE = 0.25
MAX_ANSWERS = 40

KILLS = 3
STEERS = ("first", "second")
COLUMNS = {
    "kills": "kills",
    "steers": "accepted",
    "applied": "applied",
    "by a later run": "waited",
    "lost": "lost",
    "repeated": "repeated",
    "out of order": "out_of_order",
    "sealed turns": "seals",
    "kept": "seals_kept",
}
GAP = 0.005
WORDS = 200
DONE_WITHIN_SECONDS = 60


class Colour(BaseModel):
    colour: Literal["red", "blue"]


@dataclass(frozen=True, slots=True)
class Batch:
    """What became of one batch."""

    calls: int
    repeated: int
    """How many calls acted more than once."""

    missing: int
    """How many calls did not act."""

    failed_runs: int
    """How many resumes ended with an error."""

    finished: bool


def tools_of(acted: Counter[str]) -> list[BaseTool]:
    @tool
    def ask(topic: str) -> str:
        """Ask a person for a colour, and paint."""
        answer = interrupt({"ask": topic}, response_schema=Colour)
        acted[f"ask {topic}"] += 1
        return f"{topic}: {answer.colour}"

    @tool
    def send(to: str) -> str:
        """Send a message."""
        acted[f"send {to}"] += 1
        return f"sent to {to}"

    return [ask, send]


async def batch(kind: str, chance: random.Random) -> Batch:
    acted: Counter[str] = Counter()
    tools = tools_of(acted)
    # Each is the normal way to set it up; the stock one knows of no gates.
    node: Any = ToolNode(tools, interrupting_tools=["ask"]) if kind == OURS else StockToolNode(tools)
    builder = StateGraph(MessagesState)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    builder.add_edge("tools", END)
    graph = builder.compile(checkpointer=InMemorySaver())

    calls: list[dict[str, Any]] = [
        {"name": "ask", "args": {"topic": f"t{n}"}} for n in range(chance.randint(1, 3))
    ]
    calls += [{"name": "send", "args": {"to": f"p{n}"}} for n in range(chance.randint(1, 3))]
    chance.shuffle(calls)
    asked: list[AnyMessage] = [
        HumanMessage("Paint."),
        AIMessage(
            "", tool_calls=[{**call, "id": f"c{n}", "type": "tool_call"} for n, call in enumerate(calls)]
        ),
    ]
    config: Any = {"configurable": {"thread_id": str(uuid.uuid4())}}

    failed = 0
    todo: Any = {"messages": asked}
    for _ in range(MAX_ANSWERS):
        try:
            await graph.ainvoke(todo, config)
        except Exception:
            failed += 1
        state = await graph.aget_state(config)
        if not state.next:
            break
        open_ = [each.id for each in state.interrupts]
        chosen = chance.sample(open_, chance.randint(1, len(open_))) if open_ else []
        # After an error nothing is asked any more: all that a host can do is to run the thread again.
        todo = Command(resume={name: _answer(chance) for name in chosen}) if chosen else None

    wanted = {f"ask {call['args']['topic']}" for call in calls if call["name"] == "ask"}
    wanted |= {f"send {call['args']['to']}" for call in calls if call["name"] == "send"}
    return Batch(
        calls=len(calls),
        repeated=sum(acted[name] > 1 for name in wanted),
        missing=sum(acted[name] == 0 for name in wanted),
        failed_runs=failed,
        finished=not (await graph.aget_state(config)).next,
    )


def _answer(chance: random.Random) -> dict[str, str]:
    return {"colour": "mauve" if chance.random() < INVALID_SHARE else chance.choice(["red", "blue"])}


async def answers(tries: int, seed: int) -> dict[str, list[Batch]]:
    return {
        kind: [await batch(kind, random.Random(f"{seed} {number}")) for number in range(tries)]
        for kind in (OURS, STOCK)
    }


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


def agent(saver: Any) -> Any:
    model = PacedModel(interval=GAP, words=WORDS)
    builder = StateGraph(MidstreamState)
    builder.add_node("model", ModelNode(model, preemption=Preemption(poll_interval=0.05)))
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    return builder.compile(checkpointer=saver)


async def run(path: Path, thread_id: str, follow_up: bool) -> None:
    """Runs the thread, or goes on with it, to its end; or says something more to one that has ended."""
    config: Any = {"configurable": {"thread_id": thread_id}}
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        graph = agent(saver)
        state = await graph.aget_state(config)
        if not state.values:
            await graph.ainvoke({"messages": [HumanMessage("Go on.", id="ask")]}, config, durability="sync")
        elif state.next:
            await graph.ainvoke(None, config, durability="sync")
        elif follow_up:
            await graph.ainvoke({"messages": [HumanMessage("And?", id="more")]}, config, durability="sync")


def child(path: Path, thread_id: str, *, follow_up: bool = False) -> int:
    """Runs the thread in a copy of this process, which has imported everything; returns its id."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            asyncio.run(run(path, thread_id, follow_up))
            code = 0
        finally:
            os._exit(code)
    return process


def ended(process: int, seconds: float) -> int | None:
    """Waits for a child; returns its exit code, or None if it lives on."""
    deadline = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.005)


def death(path: Path, chance: random.Random) -> Death:
    thread_id, kills = str(uuid.uuid4()), 0
    steers = [chance.uniform(0.05, 0.5) for _ in STEERS]
    with SqliteSaver.from_conn_string(str(path)) as saver:
        saver.setup()

    process = child(path, thread_id)
    began = time.monotonic()
    todo = sorted(zip(steers, STEERS, strict=True))
    texts = [text for _, text in todo]
    for _ in range(KILLS):
        until = time.monotonic() + chance.uniform(0.05, 0.5)
        while time.monotonic() < until:
            if todo and time.monotonic() - began >= todo[0][0]:
                steer(path, thread_id, todo.pop(0)[1])
            time.sleep(0.002)
        if ended(process, 0) is None:
            os.kill(process, signal.SIGKILL)
            ended(process, DONE_WITHIN_SECONDS)
            kills += 1
        process = child(path, thread_id)
    for _, text in todo:
        steer(path, thread_id, text)
    finish(process)
    # A steer that was accepted as the run ended waits for the next one.
    waiting = len(pending(path, thread_id))
    if waiting:
        finish(child(path, thread_id, follow_up=True))
    return found_in(path, thread_id, texts, kills, waiting)


def finish(process: int) -> None:
    code = ended(process, DONE_WITHIN_SECONDS)
    if code is None:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    assert code == 0, f"the run did not come to its end: {code}"


def pending(path: Path, thread_id: str) -> list[str]:
    with SqliteSaver.from_conn_string(str(path)) as saver:
        return [str(entry.messages[0]["content"]) for entry in Ledger(saver, thread_id).requests()]


def steer(path: Path, thread_id: str, text: str) -> None:
    with SqliteSaver.from_conn_string(str(path)) as saver:
        Ledger(saver, thread_id).append({"kind": "steer", "messages": text})


def found_in(path: Path, thread_id: str, texts: Sequence[str], kills: int, waited: int) -> Death:
    with SqliteSaver.from_conn_string(str(path)) as saver:
        values = agent(saver).get_state({"configurable": {"thread_id": thread_id}}).values
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


def main(options: argparse.Namespace) -> None:
    # Before there is an event loop or a thread: the children are copies of this process.
    with tempfile.TemporaryDirectory(prefix="midstream-bench-") as folder:
        chance = random.Random(options.seed)
        deaths = [death(Path(folder) / f"{n}.sqlite", chance) for n in range(options.rounds)]
    batches = asyncio.run(answers(options.rounds * 5, options.seed))

    answer_rows = []
    for kind, found in batches.items():
        numbers = (
            sum(each.calls for each in found),
            sum(each.repeated for each in found),
            sum(each.missing for each in found),
            sum(each.failed_runs for each in found),
            sum(not each.finished for each in found),
        )
        answer_rows.append([kind, str(len(found)), *map(str, numbers)])
    names = (
        *("accepted", "applied", "waited", "lost", "repeated"),
        *("seals", "seals_kept", "kills", "out_of_order"),
    )
    total = {name: sum(int(getattr(each, name)) for each in deaths) for name in names}
    checks = [
        Check(
            "tool calls that acted twice or not at all", 0, sum(b.repeated + b.missing for b in batches[OURS])
        ),
        Check("runs that an answer put into error", 0, sum(b.failed_runs for b in batches[OURS])),
        Check(
            "steers lost, repeated or out of order through kill -9",
            0,
            total["lost"] + total["repeated"] + total["out_of_order"],
        ),
        Check("sealed turns lost through kill -9", 0, total["seals"] - total["seals_kept"]),
    ]
    publish(
        "faults",
        [
            Table(
                f"Batches of calls with questions among them, {INVALID_SHARE:.0%} of the answers invalid",
                [
                    "tool node",
                    "batches",
                    "calls",
                    "acted twice",
                    "never acted",
                    "runs in error",
                    "unfinished",
                ],
                answer_rows,
            ),
            Table(
                f"Runs on SQLite, steered twice, killed with -9 up to {KILLS} times: sums over {len(deaths)}",
                list(COLUMNS),
                [[str(total[name]) for name in COLUMNS.values()]],
            ),
        ],
        options={"rounds": options.rounds, "seed": options.seed},
        samples={
            "answers": {kind: [asdict(each) for each in found] for kind, found in batches.items()},
            "deaths": [asdict(each) for each in deaths],
        },
        checks=checks,
        picture=bars(
            "Tool calls that acted more than once",
            f"of all calls in {len(batches[OURS])} batches with questions among them, some answered wrongly",
            [
                (
                    "",
                    [
                        Bar(kind, sum(each.repeated for each in found), is_base=kind == STOCK)
                        for kind, found in batches.items()
                    ],
                )
            ],
        ),
    )


if __name__ == "__main__":
    main(arguments(__doc__, rounds=40))
