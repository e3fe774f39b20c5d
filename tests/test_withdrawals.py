"""A request is taken back in the very moment in which it is applied: one of the two is done, and told."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from fakes import FakeChatModel, calls
from midstream import NotPendingError
from midstream.server import report
from support.ledgers import withdraw
from support.steering import (
    ASKED,
    OpenLedgerSaver,
    agent,
    halt,
    ledger_of,
    look_up,
    said,
    steer,
    thread,
)


class Meeting:
    """Lets somebody act right before the next write of a verdict: between who decides and his word."""

    saver: Any
    act: Callable[[], object] | None = None

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self.saver = saver
        write = saver.put_writes

        def put_writes(config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
            if writes[0][0] == "verdict" and (act := self.act) is not None:
                self.act = None
                act()
            write(config, writes, task_id, task_path)

        saver.put_writes = put_writes  # type: ignore[method-assign]  # one door of a real saver


@pytest.fixture(params=["memory", "sqlite"])
def meeting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Meeting]:
    with ExitStack() as stack:
        if request.param == "memory":
            yield Meeting(InMemorySaver())
        else:
            yield Meeting(stack.enter_context(SqliteSaver.from_conn_string(str(tmp_path / "db"))))


def told(meeting: Meeting, config: Any) -> dict[str, str]:
    """How each request has ended, as a host reads it."""
    ledger = ledger_of(meeting.saver, config)
    found = report(ledger.view(), ledger.handled())
    assert found["pending"] == []
    return {name: each["outcome"] for name, each in found["handled"].items()}


def test_a_steer_that_is_withdrawn_just_before_it_is_applied_is_not_applied(meeting: Meeting) -> None:
    model, config = FakeChatModel(answers=[["Once", " upon", " a time."]]), thread()
    ledger = ledger_of(meeting.saver, config)
    request = ledger.append(steer("Shorter."))
    meeting.act = lambda: ledger.append(withdraw(request))

    state = agent(model, saver=meeting.saver).invoke(ASKED, config)

    assert said(state["messages"])[1:] == [("ai", "Once upon a time.")], "nor is the answer ended for it"
    assert told(meeting, config) == {request: "withdrawn"}
    ledger.append(withdraw(request))


def test_a_steer_that_is_applied_just_before_it_is_withdrawn_stays_and_the_host_hears_of_it(
    meeting: Meeting,
) -> None:
    model, config = FakeChatModel(answers=[["Once."]]), thread()
    graph, ledger = agent(model, saver=meeting.saver), ledger_of(meeting.saver, config)
    request = ledger.append(steer("Shorter."))
    meeting.act = lambda: graph.invoke(ASKED, config)

    with pytest.raises(NotPendingError) as refused:
        ledger.append(withdraw(request))

    assert refused.value.outcome == "entry"
    assert said(graph.get_state(config).values["messages"])[1:] == [("human", "Shorter."), ("ai", "Once.")]
    assert told(meeting, config) == {request: "entry"}


async def test_a_halt_that_is_withdrawn_as_the_tools_are_called_lets_them_act() -> None:
    saver, config, request = OpenLedgerSaver(), thread(), str(uuid.uuid4())
    meeting, ledger = Meeting(saver), ledger_of(saver, config)
    meeting.act = lambda: ledger.append(withdraw(request))
    whole = calls("look_up", '{"word": "cat"}')
    post = saver.posted(config, halt("Enough.", id=request))
    model = FakeChatModel(answers=[[whole[0], post, *whole[1:]], ["A ", "cat."]])

    state = await agent(model, saver=saver, tools=[look_up]).ainvoke(ASKED, config)

    assert said(state["messages"])[2:] == [("tool", "cat: a thing"), ("ai", "A cat.")]
    assert "halt" not in state["preemption"]
    assert told(meeting, config) == {request: "withdrawn"}


def test_of_two_steers_the_one_that_was_not_withdrawn_is_applied(meeting: Meeting) -> None:
    model, config = FakeChatModel(answers=[["Once."]]), thread()
    ledger = ledger_of(meeting.saver, config)
    first, second = ledger.append(steer("Shorter.")), ledger.append(steer("In verse."))
    meeting.act = lambda: ledger.append(withdraw(first))

    state = agent(model, saver=meeting.saver).invoke(ASKED, config)

    assert said(state["messages"])[1:] == [("human", "In verse."), ("ai", "Once.")]
    assert told(meeting, config) == {first: "withdrawn", second: "entry"}


def test_what_a_run_claimed_and_did_not_commit_can_be_withdrawn_when_another_step_is_there(
    meeting: Meeting,
) -> None:
    def fails(*_: Any) -> None:
        raise ConnectionError

    model, config = FakeChatModel(answers=[["Once."], ["Twice."]]), thread()
    graph, ledger = agent(model, saver=meeting.saver), ledger_of(meeting.saver, config)
    request = ledger.append(steer("Shorter."))
    put = meeting.saver.put
    meeting.act = lambda: setattr(meeting.saver, "put", fails)
    with pytest.raises(ConnectionError):
        graph.invoke(ASKED, config, durability="sync")
    meeting.saver.put = put
    with pytest.raises(NotPendingError):
        ledger.append(withdraw(request))

    # Another input throws that step away; this run is cut off before its model node reads the ledger.
    state = graph.invoke({"messages": [HumanMessage("And?")]}, config, interrupt_before=["model"])
    assert said(state["messages"])[-1] == ("human", "And?")
    ledger.append(withdraw(request))
    state = graph.invoke(None, config)

    assert said(state["messages"])[1:] == [("human", "And?"), ("ai", "Once.")]
    assert told(meeting, config) == {request: "withdrawn"}
