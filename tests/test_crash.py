"""A process is killed in mid-run, and another goes on from what it has saved."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from fakes import FakeChatModel
from support.dying import REQUEST, agent_in, async_saver_at, saver_at
from support.forking import Forking
from support.steering import ASKED, agent, is_sealed, ledger_of, said, thread

MAX_WRITES = 40

WAYS = pytest.mark.parametrize("is_async", [False, True], ids=["threads", "event loop"])


@pytest.fixture(scope="module")
def forks() -> Iterator[Forking]:
    with Forking("support.dying") as forks:
        yield forks


@pytest.fixture
def sqlite_uri(tmp_path: Path) -> str:
    return str(tmp_path / "threads.sqlite")


def killed(forks: Forking, **job: Any) -> int:
    """Runs the agent in a process; returns its exit code, or the negative number of a signal."""
    (code,) = forks.run("run", job)
    return code


class Aftermath:
    """What the thread held when the process was dead, and what it holds after a run went on from there."""

    before: list[BaseMessage]
    after: list[BaseMessage]
    was_accepted: bool
    preemption: dict[str, Any]
    pending: list[Any]


def go_on(uri: str, config: RunnableConfig) -> Aftermath:
    with saver_at(uri) as saver:
        seen, ledger = Aftermath(), ledger_of(saver, config)
        graph = agent(FakeChatModel(answers=[["A cat."]] * 3), saver=saver)
        saved = graph.get_state(config)
        seen.before = saved.values.get("messages", [])
        seen.was_accepted = bool(ledger.requests()) or REQUEST in ledger.handled()

        state = graph.invoke(None if saved.values else ASKED, config)

        seen.after, seen.preemption = state["messages"], state["preemption"]
        seen.pending = ledger.requests()
        return seen


async def ago_on(uri: str, config: RunnableConfig) -> Aftermath:
    async with async_saver_at(uri) as saver:
        seen, ledger = Aftermath(), ledger_of(saver, config)
        graph = agent(FakeChatModel(answers=[["A cat."]] * 3), saver=saver)
        saved = await graph.aget_state(config)
        seen.before = saved.values.get("messages", [])
        seen.was_accepted = bool(await ledger.arequests()) or REQUEST in await ledger.ahandled()

        state = await graph.ainvoke(None if saved.values else ASKED, config)

        seen.after, seen.preemption = state["messages"], state["preemption"]
        seen.pending = await ledger.arequests()
        return seen


def after_a_restart(uri: str, config: RunnableConfig, *, is_async: bool) -> Aftermath:
    return asyncio.run(ago_on(uri, config)) if is_async else go_on(uri, config)


@WAYS
def test_killed_after_the_seal_was_saved_the_partial_answer_is_there_and_the_steer_is_applied_once(
    forks: Forking, sqlite_uri: str, is_async: bool
) -> None:
    config = thread()
    ended = killed(
        forks, uri=sqlite_uri, config=config, moment="sealed", durability="sync", is_async=is_async
    )
    assert ended == -signal.SIGKILL

    seen = after_a_restart(sqlite_uri, config, is_async=is_async)

    assert [message.type for message in seen.before] == ["human", "ai"]
    assert is_sealed(seen.before[1])
    assert seen.after[:2] == seen.before
    assert said(seen.after[2:]) == [("human", "Be brief."), ("ai", "A cat.")]
    assert seen.preemption["handled"][REQUEST]["outcome"] == "sealed"
    assert seen.preemption["stats"]["seals"] == 1
    assert seen.pending == []


@WAYS
def test_killed_between_acceptance_and_seal_the_steer_is_applied_once(
    forks: Forking, sqlite_uri: str, is_async: bool
) -> None:
    config = thread()
    ended = killed(
        forks, uri=sqlite_uri, config=config, moment="accepted", durability="sync", is_async=is_async
    )
    assert ended == -signal.SIGKILL

    seen = after_a_restart(sqlite_uri, config, is_async=is_async)

    assert said(seen.after) == [("human", "Tell me a story."), ("human", "Be brief."), ("ai", "A cat.")]
    assert seen.preemption["handled"][REQUEST]["outcome"] == "entry"
    assert seen.pending == []


@WAYS
def test_killed_after_the_steer_was_saved_it_is_not_applied_again(
    forks: Forking, sqlite_uri: str, is_async: bool
) -> None:
    config = thread()
    ended = killed(
        forks, uri=sqlite_uri, config=config, moment="injected", durability="sync", is_async=is_async
    )
    assert ended == -signal.SIGKILL

    seen = after_a_restart(sqlite_uri, config, is_async=is_async)

    assert [message.type for message in seen.before] == ["human", "ai", "human"]
    assert seen.after[:3] == seen.before
    assert said(seen.after[3:]) == [("ai", "A cat.")]
    assert seen.pending == []


@WAYS
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_killed_after_any_write_an_accepted_steer_is_applied_exactly_once(
    forks: Forking, sqlite_uri: str, is_async: bool, durability: str
) -> None:
    """Every write of the run in turn, those of the graph and those of the ledger."""
    for n in range(1, MAX_WRITES):
        config = thread()
        ended = killed(
            forks, uri=sqlite_uri, config=config, moment=n, durability=durability, is_async=is_async
        )
        if ended == 0:
            break
        assert ended == -signal.SIGKILL

        seen = after_a_restart(sqlite_uri, config, is_async=is_async)

        kept = [message for message in seen.before if message.id in {each.id for each in seen.after}]
        assert len(kept) == len(seen.before), f"write {n}: something that was saved is gone"
        texts = [text for _, text in said(seen.after)]
        assert texts.count("Tell me a story.") == 1, f"write {n}"
        assert texts.count("Be brief.") == int(seen.was_accepted), f"write {n}: {texts}"
        assert texts[-1] == "A cat.", f"write {n}: {texts}"
        assert seen.pending == [], f"write {n}"
        assert "halt" not in seen.preemption, f"write {n}: {seen.preemption['halt']}"
    else:
        pytest.fail("the run never came to its end")
    assert n > 3


@pytest.mark.parametrize("brings", ["nothing", "new input"])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_subgraph_killed_after_any_write_applies_an_accepted_steer_exactly_once(
    forks: Forking, sqlite_uri: str, durability: str, brings: str
) -> None:
    """What it had come to is gone on with, or is thrown away by the input that the next run brings."""
    for n in range(1, MAX_WRITES):
        config = thread()
        job = {"uri": sqlite_uri, "config": config, "moment": n, "durability": durability}
        ended = killed(forks, **job, is_async=True, is_subgraph=True)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL

        async with async_saver_at(sqlite_uri) as saver:
            ledger = ledger_of(saver, config)
            was_accepted = bool((await ledger.aview()).entries)
            graph = agent_in(FakeChatModel(answers=[["A cat."]] * 3), saver, is_subgraph=True)
            saved = await graph.aget_state(config)
            goes_on = brings == "nothing" and saved.values
            state = await graph.ainvoke(None if goes_on else ASKED, config)

            texts = [text for _, text in said(state["messages"])]
            assert texts.count("Be brief.") == int(was_accepted), f"write {n}: {texts}"
            assert texts[-1] == "A cat.", f"write {n}: {texts}"
            assert await ledger.arequests() == [], f"write {n}"
    else:
        pytest.fail("the run never came to its end")
    assert n > 3


@WAYS
@pytest.mark.parametrize("moment", ["accepted", "sealed"])
def test_killed_over_postgres_the_steer_is_applied_once(
    forks: Forking, postgres_uri: str, is_async: bool, moment: str
) -> None:
    config = thread()
    ended = killed(
        forks, uri=postgres_uri, config=config, moment=moment, durability="sync", is_async=is_async
    )
    assert ended == -signal.SIGKILL

    seen = after_a_restart(postgres_uri, config, is_async=is_async)

    assert [message.type for message in seen.after if not is_sealed(message)] == ["human", "human", "ai"]
    assert any(map(is_sealed, seen.after)) == (moment == "sealed")
    assert said(seen.after)[-2:] == [("human", "Be brief."), ("ai", "A cat.")]
    assert seen.pending == []
