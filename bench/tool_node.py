"""What the tool node costs for each call of a batch, beside LangGraph's own node and one `Send` per call.

Tools that do nothing run in a compiled graph with a saver in memory. Without a gate in the batch the parent's
path serves, and should cost the same. With a gate each call is a task of its own; so it is in a graph that
sends every call to the tool node by itself, which is how LangChain's agents keep finished calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode as StockToolNode
from langgraph.types import Send

from bench.measure import Ratio, Side, in_turns, median
from bench.report import Check, Table, arguments, publish
from bench.svg import Bar, bars
from midstream import ToolNode

STOCK, SENT = "one batch, stock", "a Send per call, stock"
UNGATED, GATED, CONDITION = "one batch, no gate", "one batch, gated", "one batch, gated by `when`"

SIZES = (1, 8, 64)
REPEATS = {1: 40, 8: 12, 64: 2}
"""How many batches are timed as one, so that each sample takes about as long."""

LIMIT_UNGATED = 1.03
LIMIT_GATED = 1.0


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
def other() -> str:
    """Not called."""
    return "done"


def batch(size: int, name: str) -> dict[str, Any]:
    calls = [{"name": name, "args": {}, "id": f"call_{i}", "type": "tool_call"} for i in range(size)]
    return {"messages": [AIMessage("", id="ai", tool_calls=calls)]}


def in_one(node: Any) -> Any:
    builder = StateGraph(State).add_node("tools", node)
    return builder.add_edge(START, "tools").compile(checkpointer=InMemorySaver())


def one_by_one(node: Any) -> Any:
    def each(state: State) -> list[Send]:
        message: Any = state["messages"][-1]
        return [Send("tools", [call]) for call in message.tool_calls]

    builder = StateGraph(State).add_node("tools", node)
    return builder.add_conditional_edges(START, each, ["tools"]).compile(checkpointer=InMemorySaver())


def sides(size: int, *, asynchronous: bool) -> list[Side]:
    name = "ainstant" if asynchronous else "instant"
    tools = [instant, ainstant, other]
    # Gates that let everything pass: what it costs to wait for a person is not the question here.
    policy: Any = {name: {"allowed_decisions": ["approve"], "when": lambda _: False}}
    graphs: dict[str, Callable[[], Any]] = {
        STOCK: lambda: in_one(StockToolNode(tools)),
        UNGATED: lambda: in_one(ToolNode(tools, interrupt_on={"other": True}, interrupting_tools=["other"])),
        GATED: lambda: in_one(ToolNode(tools, interrupting_tools=[name])),
        CONDITION: lambda: in_one(ToolNode(tools, interrupt_on=policy)),
        SENT: lambda: one_by_one(StockToolNode(tools)),
    }
    given = batch(size, name)

    def side(way: str, make: Callable[[], Any]) -> Side:
        graph: Any = None

        def prepare() -> None:
            nonlocal graph
            graph = make()

        async def run() -> None:
            for turn in range(REPEATS[size]):
                config = {"configurable": {"thread_id": str(turn)}}
                if asynchronous:
                    await graph.ainvoke(given, config)
                else:
                    graph.invoke(given, config)

        return Side(way, run, prepare)

    return [side(way, make) for way, make in graphs.items()]


def report(samples: Mapping[str, Mapping[str, list[float]]], options: Mapping[str, Any]) -> None:
    """Works out the ratios, prints them and leaves them in `results/`."""
    rows: list[list[str]] = []
    checks: list[Check] = []
    drawn: list[tuple[str, list[Bar]]] = []

    for what, taken in samples.items():
        size = int(what.split()[1])
        picture: list[Bar] = []
        for way, seconds in taken.items():
            each = median(seconds) / REPEATS[size] / size * 1e6
            to_stock, to_sent = Ratio.of(seconds, taken[STOCK]), Ratio.of(seconds, taken[SENT])
            shown = [f"{value:.3f}" for value in (to_stock.median, to_stock.p1, to_stock.p99)]
            rows.append([what, way, f"{each:.0f}", *shown, f"{to_sent.median:.3f}"])
            if way == STOCK:
                picture.append(Bar(way, 1.0, is_base=True, text=f"{each:.0f} us"))
            else:
                limit = LIMIT_UNGATED if way == UNGATED else None
                picture.append(Bar(way, to_stock.median, to_stock.p1, to_stock.p99, limit))
        for way, base, limit in ((UNGATED, STOCK, LIMIT_UNGATED), (GATED, SENT, LIMIT_GATED)):
            checks.append(Check(f"{what}: {way}, to {base}", limit, Ratio.of(taken[way], taken[base]).median))
        drawn.append((what, picture))

    table = Table(
        f"Processor time per call, instant tools, {options['rounds']} rounds in turns",
        ["what", "way", "us/call", "to stock", "p1", "p99", "to a Send per call"],
        rows,
    )
    publish(
        "tool_node",
        [table],
        options={**options, "repeats": REPEATS},
        samples=samples,
        checks=checks,
        picture=bars(
            "Cost of a tool call",
            "ratio of processor time to one batch of the stock node (grey = 1), median over rounds; whisker: "
            "1st to 99th percentile; red: promised",
            drawn,
        ),
    )


async def main() -> None:
    options = arguments(__doc__, rounds=40)
    samples: dict[str, dict[str, list[float]]] = {}
    for asynchronous in (True, False):
        for size in SIZES:
            what = f"{'async' if asynchronous else 'sync'}, {size} call{'s' if size > 1 else ''}"
            samples[what] = await in_turns(
                sides(size, asynchronous=asynchronous), rounds=options.rounds, seed=options.seed
            )
            print(f"{what}: done", flush=True)
    report(samples, {"rounds": options.rounds, "seed": options.seed})


if __name__ == "__main__":
    asyncio.run(main())
