"""Requests and their marks where a run is saved at its exit only: nothing is lost, nothing applied twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from fakes import ENDLESS, FakeChatModel
from support.exit_threads import STATES, fan_out
from support.steering import halt, is_sealed, ledger_of, said, steer, thread

ROOT = Path(__file__).resolve().parents[1]

CRASHING = """
import sys, time
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from fakes import ENDLESS, FakeChatModel
from support.exit_threads import STATES, fan_out
from support.steering import ledger_of, steer

file, state, thread_id = sys.argv[1:]
config = {"configurable": {"thread_id": thread_id}}

def wait():
    print("going on", flush=True)
    time.sleep(60)

with SqliteSaver.from_conn_string(file) as saver:
    post = lambda: ledger_of(saver, config).append(steer("Shorter!"))
    model = FakeChatModel(answers=[["Once", post, ENDLESS], ["Well", wait]])
    graph = fan_out(model)(STATES[state], saver)
    graph.invoke({"messages": [HumanMessage("Tell me more.", id="h2")]}, config, durability="exit")
"""


def asked(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text, id=text)]}


@pytest.mark.parametrize("state", STATES)
def test_a_process_that_is_killed_after_a_boundary_leaves_the_request_for_the_next_run(
    state: str, tmp_path: Path
) -> None:
    """The boundary was committed in memory only, so neither the thread nor the ledger has it as handled."""
    config, file = thread(), str(tmp_path / "threads.sqlite")
    with SqliteSaver.from_conn_string(file) as saver:
        before = fan_out(FakeChatModel(answers=[["Hi."]]))(STATES[state], saver).invoke(
            asked("hello"), config, durability="exit"
        )

    path = os.pathsep.join(str(ROOT / part) for part in ("extensions", "sdk_client", "tests"))
    with subprocess.Popen(
        [sys.executable, "-c", CRASHING, file, state, config["configurable"]["thread_id"]],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "going on\n"  # sealed, and the steer is injected
        finally:
            process.kill()

    with SqliteSaver.from_conn_string(file) as saver:
        graph = fan_out(FakeChatModel(answers=[["Short."], ["Bye."]]))(STATES[state], saver)
        assert graph.get_state(config).values == before
        [entry] = ledger_of(saver, config).requests()

        graph.invoke(asked("Tell me more."), config, durability="exit")
        assert ledger_of(saver, config).requests() == []
        left = graph.invoke(asked("bye"), config, durability="exit")
        assert said(left["messages"]) == [
            ("human", "hello"),
            ("ai", "Hi."),
            ("human", "Tell me more."),
            ("human", "Shorter!"),
            ("ai", "Short."),
            ("human", "bye"),
            ("ai", "Bye."),
        ]
        assert left["preemption"]["handled"][entry.id]["outcome"] == "entry"


def run(
    state: type, saver: InMemorySaver, config: Any, answers: Sequence[Any], text: str, durability: Any
) -> dict[str, Any]:
    graph = fan_out(FakeChatModel(answers=list(answers)))(state, saver)
    return graph.invoke(asked(text), config, durability=durability)


@pytest.mark.parametrize("state", STATES)
def test_the_next_run_marks_what_the_last_one_handled(state: str) -> None:
    """While a run goes on, what it has handled is not in storage; so it is marked by the run after it."""
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    sealed = [["Once", lambda: ledger.append(steer("Shorter!")), ENDLESS], ["Short."]]
    left = run(STATES[state], saver, config, sealed, "hello", "exit")
    [(name, ended)] = left["preemption"]["handled"].items()
    assert ended["outcome"] == "sealed"
    assert ledger.view().marks == {}
    assert ledger.requests() == []

    left = run(STATES[state], saver, config, [["More."]], "go on", "exit")
    assert ledger.view().marks == {name: ended}
    assert [text for _, text in said(left["messages"])].count("Shorter!") == 1


@pytest.mark.parametrize("durability", ["exit", "async", "sync"])
@pytest.mark.parametrize("state", STATES)
def test_a_branch_from_before_a_steer_does_not_apply_it_again(state: str, durability: str) -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    run(STATES[state], saver, config, [["Hi."]], "hello", durability)
    early = fan_out(FakeChatModel())(STATES[state], saver).get_state(config).config
    sealed = [["Once", lambda: ledger.append(steer("Shorter!")), ENDLESS], ["Short."]]
    run(STATES[state], saver, config, sealed, "a story", durability)
    run(STATES[state], saver, config, [["More."]], "go on", durability)

    left = run(STATES[state], saver, early, [["A poem."]], "a poem", durability)
    assert [text for _, text in said(left["messages"])] == ["hello", "Hi.", "a poem", "A poem."]


@pytest.mark.parametrize("durability", ["exit", "async", "sync"])
@pytest.mark.parametrize("state", STATES)
def test_a_branch_from_before_a_steer_does_not_apply_it_again_right_after_its_run(
    state: str, durability: str
) -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    run(STATES[state], saver, config, [["Hi."]], "hello", durability)
    early = fan_out(FakeChatModel())(STATES[state], saver).get_state(config).config
    sealed = [["Once", lambda: ledger.append(steer("Shorter!")), ENDLESS], ["Short."]]
    run(STATES[state], saver, config, sealed, "a story", durability)

    left = run(STATES[state], saver, early, [["A poem."]], "a poem", durability)
    assert [text for _, text in said(left["messages"])] == ["hello", "Hi.", "a poem", "A poem."]


@pytest.mark.parametrize("durability", ["exit", "async", "sync"])
@pytest.mark.parametrize("state", STATES)
def test_a_branch_from_before_a_halt_is_not_halted_by_it(state: str, durability: str) -> None:
    """Stop, and then another try from an older checkpoint: the stop has done its work."""
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    run(STATES[state], saver, config, [["Hi."]], "hello", durability)
    early = fan_out(FakeChatModel())(STATES[state], saver).get_state(config).config
    halted = [["Once", lambda: ledger.append(halt("stop")), ENDLESS]]
    left = run(STATES[state], saver, config, halted, "a story", durability)
    assert left["preemption"]["halt"]["reason"] == "stop"
    assert is_sealed(left["messages"][-1])

    left = run(STATES[state], saver, early, [["A poem."]], "a poem", durability)
    assert [text for _, text in said(left["messages"])] == ["hello", "Hi.", "a poem", "A poem."]
    assert "halt" not in left["preemption"]


@pytest.mark.parametrize("durability", ["async", "sync"])
@pytest.mark.parametrize("state", STATES)
def test_another_try_of_the_first_answer_is_not_halted_by_the_halt_of_the_one_before(
    state: str, durability: Any
) -> None:
    """The branch begins before the thread's first turn, where its state knows nothing of preemption yet."""
    saver, config = InMemorySaver(), thread()
    halted = [["Once", lambda: ledger_of(saver, config).append(halt("stop")), ENDLESS]]
    run(STATES[state], saver, config, halted, "hello", durability)

    graph = fan_out(FakeChatModel(answers=[["A poem."]]))(STATES[state], saver)
    *_, asked_only, _ = graph.get_state_history(config)
    assert asked_only.next == ("model",)
    left = graph.invoke(None, asked_only.config, durability=durability)
    assert said(left["messages"]) == [("human", "hello"), ("ai", "A poem.")]
