"""What the tool node costs for each call of a batch, beside LangGraph's own node and one `Send` per call.

Tools that do nothing run in a compiled graph with a saver, in memory or on PostgreSQL. Without a gate in the
batch the parent's path serves, and should cost the same. With a gate each call is a task of its own; so it is
in a graph that sends every call to the tool node by itself, which is how LangChain's agents keep finished
calls. Where calls ask a person, the whole batch is timed: until the questions are there, and again until all
are answered and everything is done.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode as StockToolNode
from langgraph.types import Command, Interrupt, Send, interrupt

from bench.measure import Ratio, Side, in_turns, median
from bench.report import Check, Table, arguments, publish
from bench.svg import Bar, bars
from bench.tool_faults import Approval
from midstream import ToolNode
from support.postgres import postgres

STOCK, SENT = "one batch, stock", "a Send per call, stock"
UNGATED, GATED, CONDITION = "one batch, no gate", "one batch, gated", "one batch, gated by `when`"
ALWAYS = 'one batch, durable="always"'
ITSELF, BATCHED, EACH = "one batch, tools ask", "one batch, asked for all", "one batch, asked for each"

SIZES = (1, 8, 64)
PAUSES = ((1, 1), (8, 1), (8, 4), (64, 1), (64, 4))
"""How many calls, and how many of them ask."""

REPEATS = {1: 12, 8: 4, 64: 1}
"""How many batches are timed as one: short samples and many, for neighbours are compared."""

COLUMNS = {
    False: {
        STOCK: "stock, us a call",
        UNGATED: "no gate",
        GATED: "gated",
        CONDITION: "by `when`",
        ALWAYS: '`durable="always"`',
        SENT: "a `Send` each",
    },
    True: {
        SENT: "a `Send` each, us a call",
        STOCK: "stock",
        ITSELF: "tools ask",
        BATCHED: "batched",
        EACH: "per call",
    },
}
"""By whether there are questions: the ways of the table. The others are compared with the first."""

LIMIT_UNGATED = 1.03
LIMIT_GATED = 1.0

MEMORY, POSTGRES = "memory", "PostgreSQL"


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


@tool
def instant() -> str:
    """Do nothing."""
    return "done"


@tool
async def ainstant() -> str:
    """Do nothing, in the event loop."""
    return "done"


@tool
async def approved() -> str:
    """Do nothing, once it is approved."""
    return "done"


@tool
async def asking() -> str:
    """Do nothing, once a person has approved; asks itself."""
    interrupt({"approve": "?"}, response_schema=Approval)
    return "done"


@tool
def other() -> str:
    """Not called."""
    return "done"


TOOLS = [instant, ainstant, approved, asking, other]


@dataclass(frozen=True, slots=True)
class Setting:
    """A batch, and where it runs."""

    size: int
    pauses: int = 0
    saver: str = MEMORY
    is_async: bool = True

    @property
    def name(self) -> str:
        calls = f"{self.size} call{'s' if self.size > 1 else ''}"
        colour = "async" if self.is_async else "sync"
        asked = f", {self.pauses} of them ask{'s' if self.pauses == 1 else ''}" if self.pauses else ""
        return f"{colour}, {self.saver}, {calls}{asked}"

    @property
    def repeats(self) -> int:
        return max(1, REPEATS[self.size] // (4 if self.pauses else 1))


def settings() -> list[Setting]:
    unasked = [
        Setting(size, saver=saver, is_async=is_async)
        for is_async, saver in ((True, MEMORY), (False, MEMORY), (True, POSTGRES))
        for size in SIZES
    ]
    asked = [Setting(size, pauses, saver) for saver in (MEMORY, POSTGRES) for size, pauses in PAUSES]
    return [*unasked, *asked]


def batch(setting: Setting, asks: str) -> dict[str, Any]:
    names = [asks] * setting.pauses + ["ainstant" if setting.is_async else "instant"] * setting.size
    calls = [
        {"name": name, "args": {}, "id": f"call_{i}", "type": "tool_call"}
        for i, name in enumerate(names[: setting.size])
    ]
    return {"messages": [AIMessage("", id="ai", tool_calls=calls)]}


def in_one(node: Any, saver: Any) -> Any:
    builder = StateGraph(State).add_node("tools", node)
    return builder.add_edge(START, "tools").compile(checkpointer=saver)


def one_by_one(node: Any, saver: Any) -> Any:
    def each(state: State) -> list[Send]:
        message: Any = state["messages"][-1]
        return [Send("tools", [call]) for call in message.tool_calls]

    builder = StateGraph(State).add_node("tools", node)
    return builder.add_conditional_edges(START, each, ["tools"]).compile(checkpointer=saver)


def unasked(is_async: bool) -> dict[str, Callable[[Any], Any]]:
    """The ways of a batch that nobody is asked about."""
    name = "ainstant" if is_async else "instant"
    # Gates that let everything pass: what it costs to wait for a person is not the question here.
    policy: Any = {name: {"allowed_decisions": ["approve"], "when": lambda _: False}}
    nodes: dict[str, Any] = {
        UNGATED: partial(ToolNode, interrupt_on={"other": True}, interrupting_tools=["other"]),
        GATED: partial(ToolNode, interrupting_tools=[name]),
        CONDITION: partial(ToolNode, interrupt_on=policy),
        ALWAYS: partial(ToolNode, durable="always"),
    }
    ours = {way: partial(_made, in_one, node) for way, node in nodes.items()}
    return {
        STOCK: partial(_made, in_one, StockToolNode),
        **ours,
        SENT: partial(_made, one_by_one, StockToolNode),
    }


def asked() -> dict[str, tuple[str, Callable[[Any], Any]]]:
    """The ways of a batch with questions: the tool that asks or is asked about, and the graph."""
    gates: Any = {"approved": {"allowed_decisions": ["approve", "reject"]}}
    each = partial(ToolNode, interrupt_on=gates, interrupt_mode="per_call")
    return {
        STOCK: ("asking", partial(_made, in_one, StockToolNode)),
        ITSELF: ("asking", partial(_made, in_one, partial(ToolNode, interrupting_tools=["asking"]))),
        BATCHED: ("approved", partial(_made, in_one, partial(ToolNode, interrupt_on=gates))),
        EACH: ("approved", partial(_made, in_one, each)),
        SENT: ("asking", partial(_made, one_by_one, StockToolNode)),
    }


def _made(shape: Callable[[Any, Any], Any], node: Callable[..., Any], saver: Any) -> Any:
    return shape(node(TOOLS), saver)


def answer(question: Interrupt) -> Any:
    requests = question.value.get("action_requests")
    return {"decisions": [{"type": "approve"} for _ in requests]} if requests else {"type": "approve"}


def sides(setting: Setting, saver: Any) -> list[Side]:
    """The ways to run one batch; without a saver, each gets a new one in memory every time."""

    def side(way: str, asks: str, make: Callable[[Any], Any]) -> Side:
        graph: Any = None
        given = batch(setting, asks)

        def prepare() -> None:
            nonlocal graph
            graph = make(saver or InMemorySaver())

        async def run() -> None:
            for _ in range(setting.repeats):
                config = {"configurable": {"thread_id": str(uuid.uuid4())}}
                if not setting.is_async:
                    graph.invoke(given, config)
                    continue
                seen = await graph.ainvoke(given, config)
                while questions := seen.get("__interrupt__"):
                    answers = {each.id: answer(each) for each in questions}
                    seen = await graph.ainvoke(Command(resume=answers), config)

        return Side(way, run, prepare)

    if setting.pauses:
        return [side(way, asks, make) for way, (asks, make) in asked().items()]
    return [side(way, "", make) for way, make in unasked(setting.is_async).items()]


def us_a_call(setting: Setting, seconds: Sequence[float]) -> float:
    return median(seconds) / setting.repeats / setting.size * 1e6


def table(title: str, samples: Mapping[str, Mapping[str, list[float]]], *, has_questions: bool) -> Table:
    base, *ways = COLUMNS[has_questions]
    rows = []
    for setting in settings():
        if bool(setting.pauses) == has_questions:
            taken = samples[setting.name]
            ratios = [Ratio.of(taken[way], taken[base]) for way in ways]
            cells = [f"{ratio.median:.3f} ± {ratio.error:.2f}" for ratio in ratios]
            rows.append([setting.name, f"{us_a_call(setting, taken[base]):.0f}", *cells])
    return Table(title, ["calls", *COLUMNS[has_questions].values()], rows)


def report(samples: Mapping[str, Mapping[str, list[float]]], options: argparse.Namespace) -> None:
    """Works out the ratios, prints them and leaves them in `results/`."""
    checks: list[Check] = []
    drawn: list[tuple[str, list[Bar]]] = []

    for setting in settings():
        taken = samples[setting.name]
        base = SENT if setting.pauses else STOCK
        picture: list[Bar] = []
        for way, seconds in taken.items():
            each = us_a_call(setting, seconds)
            ratio = Ratio.of(seconds, taken[base])
            if way == base:
                picture.append(Bar(way, 1.0, is_base=True, text=f"{each:.0f} us a call"))
            else:
                limit = {UNGATED: LIMIT_UNGATED}.get(way)
                picture.append(
                    Bar(way, ratio.median, ratio.p1, ratio.p99, limit, is_base=way in (STOCK, SENT))
                )
        drawn.append((setting.name, picture))
        promised = [
            (UNGATED, STOCK, LIMIT_UNGATED),
            (GATED, SENT, LIMIT_GATED),
            (CONDITION, SENT, LIMIT_GATED),
        ]
        for way, base, limit in promised if not setting.pauses else ():
            measured = Ratio.of(taken[way], taken[base]).median
            checks.append(Check(f"{setting.name}: {way}, to {base}", limit, measured))

    rounds = f"{options.rounds} rounds in turns"
    publish(
        "tool_node",
        [
            table(
                f"Processor time of a call, instant tools, {rounds}; ratios to LangGraph's node",
                samples,
                has_questions=False,
            ),
            table(
                "The same for batches with questions, until all are answered and all is done; ratios to one "
                "`Send` per call",
                samples,
                has_questions=True,
            ),
        ],
        options={"rounds": options.rounds, "seed": options.seed, "repeats": REPEATS},
        samples=samples,
        checks=checks,
        picture=bars(
            "Cost of a tool call",
            "ratio of processor time to the bar with a time, median over rounds; whisker: 1st to 99th "
            "percentile; red: promised; grey: LangGraph's own node",
            drawn,
        ),
    )


async def main(options: argparse.Namespace) -> None:
    samples: dict[str, dict[str, list[float]]] = {}
    async with AsyncExitStack() as stack:
        saver = await stack.enter_async_context(
            AsyncPostgresSaver.from_conn_string(stack.enter_context(postgres()))
        )
        await saver.setup()
        for setting in settings():
            ways = sides(setting, saver if setting.saver == POSTGRES else None)
            samples[setting.name] = await in_turns(ways, rounds=options.rounds, seed=options.seed)
            print(f"{setting.name}: done", flush=True)
    report(samples, options)


if __name__ == "__main__":
    asyncio.run(main(arguments(__doc__, rounds=50)))
