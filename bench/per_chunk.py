"""What midstream costs for each streamed chunk while nobody interferes.

A model streams chunks that were made in advance, without delay. The plain ways to read it are compared with
`ModelNode`: the model alone, the whole graph, with a handler for `stream_mode="messages"` (what the server
attaches) and on the newer event protocol; with strings and with content blocks; with an event loop that gets
a turn now and then, so that the look-out for requests really looks; and with a request that cannot be met.
"""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.messages.ai import add_ai_message_chunks
from langgraph.checkpoint.memory import InMemorySaver

from bench.measure import Ratio, Side, in_turns, median
from bench.models import ReadyModel
from bench.paced_graph import agent
from bench.report import Check, Table, arguments, publish
from bench.svg import Bar, bars
from midstream import Ledger, ModelNode, Preemption, SealControl, sealable

CHUNKS = 20_000
BREATH = 100

ASK = [HumanMessage("Go on.", id="ask")]
AGAIN = "the same again, for the noise"
LOOP, CALL = "plain node: async for over astream", "plain node: await ainvoke"
MERGE = "plain node: astream, keeps and merges"
NODE, OFF = "ModelNode", "ModelNode, preemption disabled"
ARMED = "ModelNode, a request that cannot be met"
POLLED = "ModelNode, should_preempt polled"

LIMIT_NODE, LIMIT_OFF = 1.10, 1.02

Drive = Callable[[Any, str], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Group:
    """Ways to do one thing, and with which of them the node is compared."""

    name: str
    sides: Sequence[Side]
    against: Sequence[tuple[str, str, float | None]]
    """Which side, its base, and the promised ratio or None."""


async def invoked(graph: Any, thread_id: str) -> object:
    return await graph.ainvoke({"messages": ASK}, _config(thread_id))


async def streamed(graph: Any, thread_id: str) -> object:
    async for _ in graph.astream({"messages": ASK}, _config(thread_id), stream_mode="messages"):
        pass
    return None


async def protocol(graph: Any, thread_id: str) -> object:
    stream = await graph.astream_events({"messages": ASK}, _config(thread_id), version="v3")
    async for _ in stream:
        pass
    return None


def _config(thread_id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread_id}}


def alone(model: ReadyModel) -> list[Side]:
    """The model without a graph."""

    async def loop() -> None:
        async for _ in model.astream(ASK):
            pass

    async def seen() -> None:
        await sealable(model, SealControl()).ainvoke(ASK)

    async def iterated() -> None:
        async for _ in sealable(model, SealControl()).astream(ASK):
            pass

    return [
        Side("bare astream loop", loop, model.refill),
        Side("sealable, ainvoke", seen, model.refill),
        Side("sealable, astream loop", iterated, model.refill),
    ]


def in_graph(model: ReadyModel, drive: Drive, *, names: Sequence[str]) -> list[Side]:
    """The model in a graph of one node with a saver."""

    async def loop(state: Any) -> Any:
        last = AIMessageChunk(content="")
        async for chunk in model.astream(state["messages"]):
            last = chunk
        return {"messages": [AIMessage(last.content, id=last.id)]}

    async def merge(state: Any) -> Any:
        chunks = [chunk async for chunk in model.astream(state["messages"])]
        return {"messages": [add_ai_message_chunks(chunks[0], *chunks[1:])]}

    async def call(state: Any) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    polled = Preemption(should_preempt=lambda: False, boundary_hooks=[lambda _: None])
    nodes: dict[str, Any] = {
        LOOP: loop,
        MERGE: merge,
        CALL: call,
        AGAIN: call,
        NODE: ModelNode(model),
        OFF: ModelNode(model, preemption=Preemption(enabled=False)),
        POLLED: ModelNode(model, preemption=polled),
    }
    return [node_side(name, nodes[name], model, drive) for name in names]


def node_side(
    name: str, node: Any, model: ReadyModel, drive: Drive, saver: InMemorySaver | None = None
) -> Side:
    graph = agent(node, saver or InMemorySaver())

    async def run() -> object:
        return await drive(graph, str(uuid.uuid4()))

    return Side(name, run, model.refill)


def armed(size: int) -> list[Side]:
    """A request comes in as the answer begins, and a tool call in it forbids the seal until its end."""
    model = ReadyModel(size=size, calls_tool=True, breath=BREATH)
    saver = InMemorySaver()
    thread = ""

    async def ask() -> None:
        await Ledger(saver, thread).aappend({"kind": "steer", "messages": "Shorter, please."})

    async def drive(graph: Any, thread_id: str) -> object:
        nonlocal thread
        thread = thread_id
        return await invoked(graph, thread_id)

    asked = model.model_copy(update={"opening": ask})
    plain = in_graph(model, invoked, names=[LOOP, NODE])
    return [*plain, node_side(ARMED, ModelNode(asked), asked, drive, saver)]


def groups(size: int) -> list[Group]:
    text, blocks = ReadyModel(size=size), ReadyModel(size=size, content="blocks")
    airy = ReadyModel(size=size, breath=BREATH)
    kept: list[tuple[str, str, float | None]] = [
        (NODE, LOOP, LIMIT_NODE),
        (OFF, CALL, LIMIT_OFF),
    ]
    plain = [LOOP, CALL, NODE, OFF]
    return [
        Group(
            "Model alone, text",
            alone(text),
            [
                ("sealable, ainvoke", "bare astream loop", LIMIT_NODE),
                ("sealable, astream loop", "bare astream loop", None),
            ],
        ),
        Group(
            "Graph, ainvoke, text",
            in_graph(text, invoked, names=[LOOP, MERGE, CALL, AGAIN, NODE, OFF, POLLED]),
            [*kept, (MERGE, LOOP, None), (AGAIN, CALL, None), (POLLED, LOOP, None)],
        ),
        Group("Graph, ainvoke, content blocks", in_graph(blocks, invoked, names=plain), kept),
        Group(
            f"Graph, ainvoke, text, the event loop runs every {BREATH} chunks",
            in_graph(airy, invoked, names=plain),
            kept,
        ),
        Group('Graph, stream_mode="messages", text', in_graph(text, streamed, names=plain), kept),
        Group('Graph, stream_mode="messages", blocks', in_graph(blocks, streamed, names=plain), kept),
        Group(
            "Graph, newer event protocol, text",
            in_graph(text, protocol, names=[CALL, NODE, OFF]),
            [(NODE, CALL, LIMIT_NODE), (OFF, CALL, LIMIT_OFF)],
        ),
        Group(
            "Graph, ainvoke, an answer with a tool call",
            armed(size),
            [(NODE, LOOP, LIMIT_NODE), (ARMED, LOOP, None)],
        ),
    ]


async def main() -> None:
    options = arguments(__doc__, rounds=40)
    warnings.filterwarnings("ignore", message=".*v3 streaming protocol.*")
    samples: dict[str, dict[str, list[float]]] = {}
    rows: list[list[str]] = []
    checks: list[Check] = []
    drawn: list[tuple[str, list[Bar]]] = []

    for group in groups(CHUNKS):
        taken = await in_turns(group.sides, rounds=options.rounds, seed=options.seed)
        samples[group.name] = taken
        compared = {name: (base, limit) for name, base, limit in group.against}
        picture: list[Bar] = []
        for name, seconds in taken.items():
            each = median(seconds) / CHUNKS * 1e6
            if name not in compared:
                rows.append([group.name, name, f"{each:.2f}", "", "", "", "", ""])
                picture.append(Bar(name, 1.0, is_base=True, text=f"{each:.2f} us"))
                continue
            base, limit = compared[name]
            ratio = Ratio.of(seconds, taken[base])
            shown = [f"{value:.3f}" for value in (ratio.median, ratio.error, ratio.p1, ratio.p99)]
            rows.append([group.name, name, f"{each:.2f}", *shown, base.removeprefix("plain node: ")])
            plain = name in (MERGE, AGAIN)
            shown_as = f"{ratio.median:.3f}"
            picture.append(Bar(name, ratio.median, ratio.p1, ratio.p99, limit, plain, shown_as))
            if limit is not None:
                checks.append(Check(f"{group.name}: {name}", limit, ratio.median))
        drawn.append((group.name, picture))
        print(f"{group.name}: done", flush=True)

    table = Table(
        f"Processor time per chunk, {CHUNKS:,} chunks without delay, {options.rounds} rounds in turns",
        ["what", "way", "us/chunk", "ratio", "+-", "p1", "p99", "to"],
        rows,
    )
    publish(
        "per_chunk",
        [table],
        options={"rounds": options.rounds, "seed": options.seed, "chunks": CHUNKS},
        samples=samples,
        checks=checks,
        picture=bars(
            "Cost of a chunk while nobody interferes",
            "ratio of processor time to the plain way (grey = 1), median over rounds; whisker: 1st to 99th "
            "percentile; red: promised",
            drawn,
        ),
    )


if __name__ == "__main__":
    asyncio.run(main())
