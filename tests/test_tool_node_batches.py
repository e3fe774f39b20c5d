"""Every shape of a batch, on every saver, in every durability, sync and async: each effect happens once."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolNode as StockToolNode
from langgraph.types import Command

from midstream import ToolNode
from support.tool_batches import (
    BROWSER,
    DURABILITIES,
    SAVERS,
    Conversation,
    Durability,
    Effects,
    any_saver,
    good_answer,
    graph_of,
    message,
    tools_of,
)


@dataclass(frozen=True)
class Shape:
    """A batch, and what has happened to the world once every question is answered."""

    calls: list[tuple[str, dict[str, Any]]]
    effects: dict[str, int]
    stock: dict[str, int] | None = None
    """What the stock node does to the world; None where it cannot run the batch at all."""

    fails: int = 0
    """How many runs end with an error."""

    options: dict[str, Any] = field(default_factory=dict)


ASK, ASK_B = ("ask", {"topic": "a"}), ("ask", {"topic": "b"})
PICK = ("pick", {"topic": "p"})
SEND, SEND_B = ("send", {"to": "ann"}), ("send", {"to": "bob"})
DELETE = ("delete", {"path": "x"})
NOTE = ("note", {"text": "n"})
FAIL = ("fail_once", {"name": "f"})
BROWSE = ("browse", {"url": "u"})
RESEARCH = ("research", {"topic": "r"})

SHAPES = {
    "interrupter first": Shape(
        [ASK, SEND, SEND_B],
        {"ask a": 1, "send ann": 1, "send bob": 1},
        stock={"ask a": 1, "send ann": 2, "send bob": 2},
    ),
    "interrupter last": Shape(
        [SEND, SEND_B, ASK],
        {"ask a": 1, "send ann": 1, "send bob": 1},
        stock={"ask a": 1, "send ann": 2, "send bob": 2},
    ),
    "interrupter in the middle, command sibling": Shape(
        [SEND, ASK, NOTE],
        {"ask a": 1, "send ann": 1, "note n": 1},
        stock={"ask a": 1, "send ann": 2, "note n": 2},
    ),
    "interrupter alone": Shape([PICK], {"pick p": 1}, stock={"pick p": 1}),
    "two interrupters": Shape([ASK, SEND, PICK], {"ask a": 1, "pick p": 1, "send ann": 1}),
    "interrupter and approval": Shape([DELETE, ASK, SEND], {"ask a": 1, "delete x": 1, "send ann": 1}),
    "approval, then a question of the tool itself": Shape(
        [ASK, SEND, DELETE],
        {"ask a": 1, "delete x": 1, "send ann": 1},
        options={"interrupt_on": {"delete": True, "ask": True}},
    ),
    "two approvals": Shape(
        [DELETE, SEND, NOTE],
        {"delete x": 1, "send ann": 1, "note n": 1},
        options={"interrupt_on": {"delete": True, "send": True}},
    ),
    "approval and host tool": Shape([BROWSE, DELETE, SEND], {"delete x": 1, "send ann": 1}),
    "host tool alone": Shape([BROWSE], {}),
    "error sibling": Shape(
        [SEND, FAIL, ASK],
        {"ask a": 1, "send ann": 1, "try f": 2},
        stock={"ask a": 1, "send ann": 3, "try f": 3},
        fails=1,
    ),
    "agent as a tool": Shape(
        [SEND, RESEARCH],
        {"send ann": 1, "research work": 1, "research r": 1},
        stock={"send ann": 2, "research work": 1, "research r": 1},
    ),
    "everything": Shape(
        [SEND, RESEARCH, DELETE, ASK, BROWSE, PICK, NOTE, SEND_B],
        {
            "send ann": 1,
            "send bob": 1,
            "research work": 1,
            "research r": 1,
            "delete x": 1,
            "ask a": 1,
            "pick p": 1,
            "note n": 1,
        },
    ),
}

RULES: dict[str, Any] = {
    "interrupting_tools": ["ask", "pick", "research"],
    "interrupt_on": {"delete": True},
    "host_tools": [BROWSER],
}


@pytest.fixture
def uri(request: pytest.FixtureRequest) -> Callable[[], str]:
    """The database's address, which is started only for the tests that ask for it."""
    return lambda: str(request.getfixturevalue("postgres_uri"))


async def settled(conversation: Conversation, given: Any, *, one_by_one: bool) -> int:
    """Answers until nothing is asked, and goes on after errors. Returns how many runs failed."""
    failed = 0
    for _ in range(20):
        try:
            await conversation.say(given)
        except ConnectionError:
            failed, given = failed + 1, None
            continue
        if not conversation.pauses:
            return failed
        pauses = conversation.pauses[-1:] if one_by_one else conversation.pauses
        given = Command(resume={pause.id: good_answer(pause.value) for pause in pauses})
    raise AssertionError(f"still asked after 20 runs: {conversation.asked}")


@pytest.mark.parametrize("saver", SAVERS)
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
async def test_each_effect_happens_once(
    shape: Shape,
    asynchronous: bool,
    durability: Durability,
    saver: str,
    tmp_path: Path,
    uri: Callable[[], str],
) -> None:
    effects = Effects(tmp_path / "effects")
    node = ToolNode(tools_of(effects), **{**RULES, **shape.options})

    async with any_saver(saver, tmp_path, uri, asynchronous=asynchronous) as checkpointer:
        graph = graph_of(node, checkpointer)
        conversation = Conversation(graph, asynchronous, durability, thread=str(uuid.uuid4()))
        failed = await settled(conversation, message(*shape.calls), one_by_one=durability == "sync")

    assert effects.counts() == shape.effects
    assert failed == shape.fails
    assert [(one.tool_call_id, one.status) for one in conversation.results] == [
        (f"call_{index}", "success") for index in range(len(shape.calls))
    ]


def others_first(shape: Shape) -> Callable[..., Any]:
    """Lets a tool that pauses wait for those beside it, which the stock node may else drop unstarted."""
    pausing = sum(name in RULES["interrupting_tools"] for name, _ in shape.calls)
    done = threading.Semaphore(0)

    def wrap(request: Any, execute: Any) -> Any:
        if request.tool_call["name"] in RULES["interrupting_tools"]:
            for _ in range(len(shape.calls) - pausing):
                assert done.acquire(timeout=10)
            return execute(request)
        try:
            return execute(request)
        finally:
            done.release()

    return wrap


@pytest.mark.parametrize(
    "shape",
    [shape for shape in SHAPES.values() if shape.stock],
    ids=[name for name, shape in SHAPES.items() if shape.stock],
)
async def test_the_stock_node_repeats_what_had_happened_before_the_pause(
    shape: Shape, tmp_path: Path
) -> None:
    """Beside the table above: what it would be without this node."""
    effects = Effects(tmp_path / "effects")
    node = StockToolNode(tools_of(effects), wrap_tool_call=others_first(shape))
    conversation = Conversation(graph_of(node, InMemorySaver()), asynchronous=False)

    await settled(conversation, message(*shape.calls), one_by_one=False)

    assert effects.counts() == shape.stock


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    "order",
    list(permutations([SEND, ASK, DELETE, NOTE])),
    ids=lambda order: "-".join(name for name, _ in order),
)
async def test_the_order_of_the_calls_changes_nothing(
    order: tuple[Any, ...], asynchronous: bool, tmp_path: Path
) -> None:
    effects = Effects(tmp_path / "effects")
    node = ToolNode(tools_of(effects), **RULES)
    conversation = Conversation(graph_of(node, InMemorySaver()), asynchronous)

    await conversation.say(message(*order))

    assert effects.counts() == {}
    assert len(conversation.pauses) == 2
    answers = {pause.id: good_answer(pause.value) for pause in conversation.pauses}
    await conversation.answer(answers)
    assert effects.counts() == {"ask a": 1, "delete x": 1, "send ann": 1, "note n": 1}
    assert {one.content for one in conversation.results} == {
        "a: yes",
        "deleted x",
        "sent to ann",
        "noted n",
    }
    assert conversation.state["notes"] == ["n"]
