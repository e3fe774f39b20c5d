"""With `durability="exit"`, what a run leaves live is what is read again.

`Threads.run` compares the last value of a run's stream with the state that fresh objects read.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.messages import AIMessageChunk, AnyMessage, HumanMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.tools import tool
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import tools_condition
from langgraph.types import Command, interrupt
from psycopg.conninfo import make_conninfo

from fakes import ENDLESS, FakeChatModel
from midstream import ModelNode, ToolNode
from support.exit_threads import STATES, Build, FullDiskError, Graph, Kind, Saver, Threads, fan_out
from support.steering import is_sealed, said, steer

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def postgres(postgres_uri: str) -> str:
    # Nothing here survives a crash of the machine, so nobody waits for its disk.
    uri = make_conninfo(postgres_uri, options="-c synchronous_commit=off")
    with PostgresSaver.from_conn_string(uri) as saver:
        saver.setup()
    return uri


def place_of(kind: Kind, request: pytest.FixtureRequest) -> str:
    match kind:
        case "memory":
            return ""
        case "sqlite":
            return str(request.getfixturevalue("tmp_path") / "threads.sqlite")
        case "postgres":
            return cast("str", request.getfixturevalue("postgres"))


@pytest.fixture(
    params=itertools.product(
        ["memory", "sqlite", "postgres"],
        ["sync", "async"],
        # Only a `DeltaChannel` is read in the order in which the saver returns the writes.
        ["plain", "delta", "delta by id"],
    ),
    ids="-".join,
)
def threads(request: pytest.FixtureRequest) -> Threads:
    kind, colour, state = request.param
    name, _, by_task_id = state.partition(" ")
    return Threads(kind, colour, STATES[name], place_of(kind, request), by_task_id=bool(by_task_id))


def asked(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text, id=text)]}


def tool_turn(name: str, *tools: str) -> Sequence[Any]:
    """An answer that calls tools; the calls are named after their places."""
    chunks = [
        tool_call_chunk(name=each, args=json.dumps({"what": f"{each} {n}"}), id=f"{name}{n}", index=n)
        for n, each in enumerate(tools, 1)
    ]
    return [AIMessageChunk(content=name, tool_call_chunks=chunks)]


def texts(values: dict[str, Any]) -> list[str]:
    return [text for _, text in said(values["messages"])]


async def answers_of(threads: Threads, build: Build, answer: str = "yes") -> dict[str, str]:
    """An answer to each question that waits, by its id."""
    return {each.id: answer for each in (await threads.read(build)).interrupts}


async def test_a_resume_after_a_parallel_interrupt_and_later_writes(threads: Threads) -> None:
    build = fan_out(FakeChatModel(answers=[tool_turn("A", "ask", "note"), ["Well."], ["More."]]))
    await threads.run(build, asked("hello"))
    await threads.run(build, Command(resume=await answers_of(threads, build)))
    left = await threads.run(build, asked("go on"))
    assert texts(left) == ["hello", "A", "ask 1: yes", "note 2: noted", "Well.", "go on", "More."]


async def test_a_resume_that_is_addressed_by_checkpoint_id_and_another_one_of_the_same_pause(
    threads: Threads,
) -> None:
    script = [tool_turn("A", "note", "ask"), ["Well."], ["Pity."], ["More."]]
    build = fan_out(FakeChatModel(answers=script))
    await threads.run(build, asked("hello"))
    pause, answers = (await threads.read(build)).config, await answers_of(threads, build)

    first = await threads.run(build, Command(resume=answers), pause)
    first_end = (await threads.read(build)).config
    assert texts(first) == ["hello", "A", "note 1: noted", "ask 2: yes", "Well."]

    # The thread has moved past the pause, so this one is a branch.
    await threads.run(build, Command(resume=dict.fromkeys(answers, "no")), pause)
    left = await threads.run(build, asked("go on"))
    assert texts(left) == ["hello", "A", "note 1: noted", "ask 2: no", "Pity.", "go on", "More."]
    assert threads.ordered((await threads.read(build, first_end)).values) == threads.ordered(first)


async def test_parallel_tools_that_end_in_three_runs_stand_in_the_order_of_their_calls(
    threads: Threads,
) -> None:
    script = [tool_turn("A", "note", "ask", "note", "ask", "note"), ["Well."], ["More."]]
    build = fan_out(FakeChatModel(answers=script))
    await threads.run(build, asked("hello"))
    first, second = await answers_of(threads, build)
    await threads.run(build, Command(resume={second: "second"}))
    await threads.run(build, Command(resume={first: "first"}))
    left = await threads.run(build, asked("go on"))
    tools = ["note 1: noted", "ask 2: first", "note 3: noted", "ask 4: second", "note 5: noted"]
    seen = texts(left)
    assert [*seen[:2], *sorted(seen[2:7], key=lambda text: text[4:]), *seen[7:]] == [
        *("hello", "A"),
        *sorted(tools, key=lambda text: text[4:]),
        *("Well.", "go on", "More."),
    ]
    if threads.ordered(left) is left:
        assert seen[2:7] == tools


async def test_a_resume_is_made_again_after_its_checkpoint_could_not_be_saved(threads: Threads) -> None:
    script = [tool_turn("A", "ask", "note"), ["Lost."], ["Well."], ["More."]]
    build = fan_out(FakeChatModel(answers=script))
    await threads.run(build, asked("hello"))
    answers = await answers_of(threads, build)
    threads.fails_next = True
    with pytest.raises(FullDiskError):
        await threads.run(build, Command(resume=answers))
    assert await answers_of(threads, build) == answers

    await threads.run(build, Command(resume=answers))
    left = await threads.run(build, asked("go on"))
    assert texts(left) == ["hello", "A", "ask 1: yes", "note 2: noted", "Well.", "go on", "More."]


async def test_a_resume_with_an_update_of_the_messages(threads: Threads) -> None:
    build = fan_out(FakeChatModel(answers=[tool_turn("A", "ask", "note"), ["Well."], ["More."]]))
    await threads.run(build, asked("hello"))
    answers = await answers_of(threads, build)
    await threads.run(build, Command(resume=answers, update=asked("by the way")))
    left = await threads.run(build, asked("go on"))
    assert texts(left) == [
        *("hello", "A", "by the way", "ask 1: yes", "note 2: noted"),
        *("Well.", "go on", "More."),
    ]


def scripted(threads: Threads) -> FakeChatModel:
    """Is sealed, calls tools of which one pauses, is sealed again, and ends."""
    return FakeChatModel(
        answers=[
            ["Once", threads.posted(steer("shorter")), ENDLESS],
            tool_turn("A", "ask", "note"),
            ["So", threads.posted(steer("louder")), ENDLESS],
            ["THE END."],
            ["More."],
        ]
    )


def check_turn(left: dict[str, Any]) -> None:
    messages: Sequence[AnyMessage] = left["messages"]
    assert [(message.type, is_sealed(message)) for message in messages] == [
        ("human", False),
        ("ai", True),
        ("human", False),
        ("ai", False),
        ("tool", False),
        ("tool", False),
        ("ai", True),
        ("human", False),
        ("ai", False),
        ("human", False),
        ("ai", False),
    ]
    seen = texts(left)
    assert seen[0] == "hello"
    assert seen[1].startswith("Once")
    assert seen[2:6] == ["shorter", "A", "ask 1: yes", "note 2: noted"]
    assert seen[6].startswith("So")
    assert seen[7:] == ["louder", "THE END.", "go on", "More."]
    assert left["preemption"]["stats"]["seals"] == 2
    assert [each["outcome"] for each in left["preemption"]["handled"].values()] == ["sealed", "sealed"]


async def test_seals_steers_and_the_resume_of_a_tool_in_one_turn(threads: Threads) -> None:
    build = fan_out(scripted(threads))
    await threads.run(build, asked("hello"))
    paused = await threads.run(build, Command(resume=await answers_of(threads, build)))
    assert len(paused["preemption"]["turn"]["seals"]) == 2
    check_turn(await threads.run(build, asked("go on")))


@tool
def ask(what: str) -> str:
    """Asks a person."""
    return f"{what}: {interrupt(what)}"


@tool
def note(what: str) -> str:
    """Notes something."""
    return f"{what}: noted"


def stock_loop(model: FakeChatModel) -> Build:
    def build(state: type, saver: Saver) -> Graph:
        builder: StateGraph[Any] = StateGraph(cast("Any", state))
        builder.add_node("model", ModelNode(model))
        builder.add_node("tools", cast("Any", ToolNode([ask, note], interrupting_tools=["ask"])))
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", tools_condition)
        builder.add_edge("tools", "model")
        return builder.compile(checkpointer=saver)

    return build


async def test_the_same_turn_with_the_tool_node(threads: Threads) -> None:
    build = stock_loop(scripted(threads))
    await threads.run(build, asked("hello"))
    await threads.run(build, Command(resume=await answers_of(threads, build)))
    check_turn(await threads.run(build, asked("go on")))


READER = """
import asyncio, json, pickle, sys
from pathlib import Path
from fakes import FakeChatModel
from support.exit_threads import STATES, Threads, fan_out

kind, where, thread_id = sys.argv[1:]
threads = Threads(kind, "sync", STATES["delta"], where, config={"configurable": {"thread_id": thread_id}})
if kind == "memory":
    kept = threads.kept
    kept.storage, kept.writes, kept.blobs = pickle.loads(Path(where).read_bytes())
values = asyncio.run(threads.read(fan_out(FakeChatModel()))).values
print(json.dumps([[m.type, m.id, m.content] for m in values["messages"]] + [values["preemption"]]))
"""


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
async def test_another_process_reads_what_the_run_left(
    kind: Kind, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    threads = Threads(kind, "async", STATES["delta"], place_of(kind, request))
    build = fan_out(scripted(threads))
    await threads.run(build, asked("hello"))
    await threads.run(build, Command(resume=await answers_of(threads, build)))
    left = await threads.run(build, asked("go on"))

    thread_id = threads.config["configurable"]["thread_id"]
    where = kept_as_file(threads, tmp_path) if kind == "memory" else threads.where
    *messages, preemption = json.loads(read_elsewhere(kind, where, thread_id))
    assert messages == [[each.type, each.id, each.content] for each in left["messages"]]
    assert preemption == left["preemption"]


def kept_as_file(threads: Threads, folder: Path) -> str:
    """Does what the in-memory server does when it ends: keeps the dictionaries of the saver in a file."""
    kept = threads.kept
    storage = {thread: dict(spaces) for thread, spaces in kept.storage.items()}
    file = folder / "memory.pickle"
    file.write_bytes(pickle.dumps((storage, dict(kept.writes), dict(kept.blobs))))
    return str(file)


def read_elsewhere(*arguments: str) -> str:
    path = os.pathsep.join(str(ROOT / part) for part in ("extensions", "sdk_client", "tests"))
    return subprocess.run(
        [sys.executable, "-c", READER, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
