"""What random batches of tool calls do, through pauses, bad answers and `kill -9`, by what runs them.

Some calls of a batch act, some need approval, and some ask a person from their own body. The person's mind
about each call is made up; but the answers come one by one or together, in any order, and some are invalid.
The process is killed after a random effect or pause, at a moment when no write to storage is under way: what
acted *while* it was killed is nobody's fault. The next one looks at the thread and goes on.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import ToolCall
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode as StockToolNode
from langgraph.types import Command, Interrupt, interrupt
from pydantic import BaseModel

from bench.processes import child, killed_itself, shared_out
from midstream import ToolNode

OURS, OURS_EACH = "midstream.ToolNode, batched", "midstream.ToolNode, per call"
STOCK = "LangGraph's ToolNode"
LANGCHAIN, LANGCHAIN_EACH = "HumanInTheLoopMiddleware, batched", "HumanInTheLoopMiddleware, per call"
KINDS = (OURS, OURS_EACH, STOCK, LANGCHAIN, LANGCHAIN_EACH)

INVALID_SHARE = 0.25
REFUSED_SHARE = 0.25
MAX_KILLS = 2
MAX_FAILURES = 3
"""After so many runs in a row that failed though no answer was invalid, the thread counts as stuck."""

MAX_RUNS = 60

STAGGER_SECONDS = 0.006
"""The calls of a batch act one after the other, so that a kill falls between two."""

QUIET_TURNS = 100
"""How many turns of the event loop in which nothing is under way make a moment quiet."""


class Colour(BaseModel):
    colour: Literal["red", "blue"]


class Approval(BaseModel):
    type: Literal["approve", "reject"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of each node, and what happens to it."""

    calls: Sequence[ToolCall]
    refused: frozenset[str]
    """Which calls the person will not have."""

    deaths: Sequence[int]
    """After how many effects and pauses each process is killed, one after the other."""

    seed: str
    """Of the answers."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What became of one batch."""

    calls: int
    repeated: int
    """How many calls acted more than once."""

    missing: int
    """How many calls that were wanted did not act."""

    refused: int
    """How many calls acted that were refused."""

    failed_runs: int
    """How many runs ended with an error."""

    kills: int
    finished: bool


def planned(seed: int, number: int) -> Plan:
    chance = random.Random(f"{seed} {number}")
    names = ["ask"] * chance.randint(0, 2) + ["paint"] * chance.randint(1, 2)
    names += ["send"] * chance.randint(1, 3)
    chance.shuffle(names)
    calls = [ToolCall(name=name, args={"key": f"{name}{n}"}, id=f"c{n}") for n, name in enumerate(names)]
    gated = [call["args"]["key"] for call in calls if call["name"] == "paint"]
    return Plan(
        calls=calls,
        refused=frozenset(key for key in gated if chance.random() < REFUSED_SHARE),
        deaths=[chance.randint(1, len(calls)) for _ in range(chance.randint(0, MAX_KILLS))],
        seed=f"{seed} {number}",
    )


class Life:
    """One process's life: what it did is in a file that outlives it."""

    def __init__(self, log: Path, dies_after: int | None) -> None:
        self._log = log
        self._dies_after = dies_after
        self._happened = 0
        self.busy = 0
        """How many reads and writes of storage, and calls in threads, are under way."""

    def note(self, word: str) -> None:
        with self._log.open("a") as log:
            log.write(f"{word}\n")

    def act(self, key: str) -> None:
        self.note(f"acted {key}")
        self.happened()

    def happened(self) -> None:
        self._happened += 1
        if self._happened == self._dies_after:
            self._dying = asyncio.ensure_future(self._die())

    async def _die(self) -> None:
        quiet, before = 0, self._happened
        while quiet < QUIET_TURNS:
            await asyncio.sleep(0 if quiet else 0.0005)
            is_quiet = not self.busy and self._happened == before
            quiet, before = quiet + 1 if is_quiet else 0, self._happened
        os.kill(os.getpid(), signal.SIGKILL)


class WatchedExecutor(ThreadPoolExecutor):
    """Counts the calls that are under way: LangGraph decides in threads where to go after a node."""

    def __init__(self, life: Life) -> None:
        super().__init__()
        self._life = life

    def submit(self, *args: Any, **options: Any) -> Any:
        self._life.busy += 1
        loop, future = asyncio.get_running_loop(), super().submit(*args, **options)
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._ended))
        return future

    def _ended(self) -> None:
        self._life.busy -= 1


class WatchedSaver(AsyncSqliteSaver):
    """Counts what is under way."""

    life: Life

    async def aput(self, *args: Any, **options: Any) -> Any:
        self.life.busy += 1
        try:
            return await super().aput(*args, **options)
        finally:
            self.life.busy -= 1

    async def aput_writes(self, *args: Any, **options: Any) -> None:
        self.life.busy += 1
        try:
            await super().aput_writes(*args, **options)
        finally:
            self.life.busy -= 1

    async def aget_tuple(self, *args: Any, **options: Any) -> Any:
        self.life.busy += 1
        try:
            return await super().aget_tuple(*args, **options)
        finally:
            self.life.busy -= 1


class BatchModel(BaseChatModel):
    """Calls all tools at once, and is content with what they give."""

    calls: list[Any]

    @property
    def _llm_type(self) -> str:
        return "batch"

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 (the base's signature)
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **_: Any,
    ) -> ChatResult:
        is_done = isinstance(messages[-1], ToolMessage)
        said = AIMessage("Done.") if is_done else AIMessage("", tool_calls=self.calls)
        return ChatResult(generations=[ChatGeneration(message=said)])


def tools_of(life: Life, plan: Plan, *, asks_itself: bool) -> list[BaseTool]:
    """The three tools; what needs approval has to ask for it itself where the node knows of no gates."""
    places = {call["args"]["key"]: place for place, call in enumerate(plan.calls, 1)}

    async def act(key: str) -> str:
        await asyncio.sleep(places[key] * STAGGER_SECONDS)
        life.act(key)
        return f"{key} is done"

    @tool
    async def ask(key: str) -> str:
        """Ask a person for a colour, and use it."""
        interrupt({"ask": key}, response_schema=Colour)
        return await act(key)

    @tool
    async def paint(key: str) -> str:
        """Paint, if a person approves."""
        if asks_itself and interrupt({"approve": key}, response_schema=Approval).type == "reject":
            return "refused"
        return await act(key)

    @tool
    async def send(key: str) -> str:
        """Send a message."""
        return await act(key)

    return [ask, paint, send]


def graph_of(kind: str, plan: Plan, life: Life, saver: AsyncSqliteSaver) -> Any:
    """Each is the normal way to set it up."""
    tools = tools_of(life, plan, asks_itself=kind == STOCK)
    mode: Any = "per_call" if kind in (OURS_EACH, LANGCHAIN_EACH) else "batched"
    gates: Any = {"paint": {"allowed_decisions": ["approve", "reject"]}}
    if kind in (LANGCHAIN, LANGCHAIN_EACH):
        middleware: Any = HumanInTheLoopMiddleware(gates, interrupt_mode=mode)
        return create_agent(
            BatchModel(calls=list(plan.calls)), tools, middleware=[middleware], checkpointer=saver
        )

    if kind == STOCK:
        node: Any = StockToolNode(tools)
    else:
        node = ToolNode(tools, interrupting_tools=["ask"], interrupt_on=gates, interrupt_mode=mode)

    async def model(_: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("", tool_calls=list(plan.calls))]}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("model", model).add_node("tools", node)
    builder.add_edge(START, "model").add_edge("model", "tools").add_edge("tools", END)
    return builder.compile(checkpointer=saver)


def answer_to(question: Interrupt, plan: Plan, chance: random.Random, *, is_bad: bool) -> Any:
    """What the person says, or something that does not fit."""
    value = question.value

    def decision(key: str) -> dict[str, str]:
        return {"type": "reject" if key in plan.refused else "approve"}

    if "ask" in value:
        return {"colour": "mauve" if is_bad else chance.choice(["red", "blue"])}
    if "action_requests" in value:
        decisions = [decision(each["args"]["key"]) for each in value["action_requests"]]
        wrong: list[Any] = [{"decisions": []}, {"decisions": [{"type": "perhaps"}] * len(decisions)}, {}]
        return chance.choice(wrong) if is_bad else {"decisions": decisions}
    key = value["approve"] if "approve" in value else value["args"]["key"]
    return chance.choice([{"type": "perhaps"}, {}, {"typ": "approve"}]) if is_bad else decision(key)


async def live(kind: str, plan: Plan, path: Path, attempt: int) -> None:
    """One process: goes on with the thread until it is finished, stuck or killed."""
    life = Life(path.with_suffix(".log"), plan.deaths[attempt] if attempt < len(plan.deaths) else None)
    chance = random.Random(f"{plan.seed} {attempt}")
    config: Any = {"configurable": {"thread_id": "1"}}
    asyncio.get_running_loop().set_default_executor(WatchedExecutor(life))
    async with WatchedSaver.from_conn_string(str(path)) as saver:
        assert isinstance(saver, WatchedSaver)
        saver.life = life
        graph = graph_of(kind, plan, life, saver)
        failures = 0
        for _ in range(MAX_RUNS):
            state = await graph.aget_state(config)
            todo: Any = None
            bad: set[str] = set()
            if not state.values:
                todo = {"messages": [HumanMessage("Go on.")]}
            elif not state.next:
                life.note("finished")
                return
            elif state.interrupts:
                chosen = chance.sample(state.interrupts, chance.randint(1, len(state.interrupts)))
                bad = {each.id for each in chosen if chance.random() < INVALID_SHARE}
                answers = {each.id: answer_to(each, plan, chance, is_bad=each.id in bad) for each in chosen}
                todo = Command(resume=answers)
            try:
                await graph.ainvoke(todo, config)
            except Exception:
                life.note("failed")
                failures += not bad
                if failures == MAX_FAILURES:
                    return
            else:
                failures = 0
            life.happened()


def played(plan: Plan, folder: Path) -> dict[str, Batch]:
    """Plays one batch to its end through each node, in as many processes as it takes."""
    paths = {kind: folder / f"{place}.sqlite" for place, kind in enumerate(KINDS)}
    for path in paths.values():
        with SqliteSaver.from_conn_string(str(path)) as saver:
            saver.setup()
    first = {kind: child(partial(live, kind, plan, path, 0)) for kind, path in paths.items()}
    found = {}
    for kind, process in first.items():
        kills = 0
        while killed_itself(process):
            kills += 1
            process = child(partial(live, kind, plan, paths[kind], kills))
        found[kind] = told(plan, paths[kind].with_suffix(".log").read_text().split("\n"), kills)
    return found


def told(plan: Plan, words: Sequence[str], kills: int) -> Batch:
    """Counts what is in the file of a batch."""
    acted = Counter(word.removeprefix("acted ") for word in words if word.startswith("acted "))
    keys = {call["args"]["key"] for call in plan.calls}
    return Batch(
        calls=len(keys),
        repeated=sum(acted[key] > 1 for key in keys),
        missing=sum(acted[key] == 0 for key in keys - plan.refused),
        refused=sum(acted[key] > 0 for key in plan.refused),
        failed_runs=words.count("failed"),
        kills=kills,
        finished="finished" in words,
    )


def batches(tries: int, seed: int, folder: Path) -> dict[str, list[Batch]]:
    """The same batches through each node."""

    def one(number: int, folder: Path) -> dict[str, Batch]:
        return played(planned(seed, number), folder)

    found: dict[str, list[Batch]] = {kind: [] for kind in KINDS}
    for became in shared_out(one, tries, folder):
        for kind, batch in became.items():
            found[kind].append(batch)
    print("batches: done", flush=True)
    return found
