"""A run trips at each of its awaits in turn, and goes on from what it has saved, in the same process."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver

from fakes import SILENCE, CountingHandler, FakeChatModel
from midstream import Preemption, wakeup
from support.steering import ASKED, agent, halt, ledger_of, said, steer, thread

MAX_AWAITS = 60


class TrippingSaver(InMemorySaver):
    """A saver that suspends at each operation, and at one of them has its caller cancelled, or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.trip_at = 0
        self.trips: Any = None
        self.count = 0

    async def _await(self) -> None:
        self.count += 1
        if self.count == self.trip_at:
            self.trips()
        await asyncio.sleep(0)

    async def aget_tuple(self, config: Any) -> Any:
        await self._await()
        return await super().aget_tuple(config)

    async def aput(self, *args: Any) -> Any:
        await self._await()
        result = await super().aput(*args)
        await self._await()
        return result

    async def aput_writes(self, *args: Any) -> None:
        await self._await()
        await super().aput_writes(*args)
        await self._await()


def fail() -> None:
    raise ConnectionError("the database is away")


class Story:
    """One steered run on a thread of its own."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.saver = TrippingSaver()
        self.config = RunnableConfig(**thread(), run_id=uuid.uuid4())
        self.ledger = ledger_of(self.saver, self.config)
        self.counter = CountingHandler()
        self.request = request
        self.was_posted = False
        model = FakeChatModel(
            answers=[["Once", self.post, SILENCE], ["A cat."], ["A cat."]], callbacks=[self.counter]
        )
        self.graph = agent(model, saver=self.saver, preemption=Preemption(max_seals=2))

    async def post(self) -> None:
        await self.ledger.aappend(self.request)
        self.was_posted = True

    async def is_on_the_ledger(self) -> bool:
        return bool(await self.ledger.arequests()) or self.request["id"] in await self.ledger.ahandled()

    async def trip(self, n: int, way: str) -> bool:
        """Runs the graph until its n-th await of the saver; returns whether it came so far."""
        before = asyncio.all_tasks()
        run = asyncio.create_task(self.graph.ainvoke(ASKED, self.config, durability="sync"))
        self.saver.trip_at, self.saver.trips = n, run.cancel if way == "cancelled" else fail
        await asyncio.wait([run], timeout=10)
        assert run.done()
        if left := asyncio.all_tasks() - before:
            await asyncio.wait(left, timeout=5)
        assert asyncio.all_tasks() == before
        assert wakeup._subscribers == {}
        if not run.cancelled():
            run.exception()
        return self.saver.count >= n

    async def go_on(self) -> dict[str, Any]:
        saved = await self.graph.aget_state(self.config)
        state: dict[str, Any] = await self.graph.ainvoke(None if saved.values else ASKED, self.config)
        return state


@pytest.mark.parametrize("way", ["cancelled", "failed"])
@pytest.mark.parametrize("kind", ["steer", "halt"])
async def test_a_run_that_trips_at_any_await_goes_on_and_applies_a_request_once(way: str, kind: str) -> None:
    """As a worker that retries a run does: in the same process, with the same run id."""
    for n in range(1, MAX_AWAITS):
        name = str(uuid.uuid4())
        story = Story(steer("Be brief.", id=name) if kind == "steer" else halt("Stop.", id=name))
        if not await story.trip(n, way):
            break
        was_accepted = await story.is_on_the_ledger()

        state = await story.go_on()

        was_accepted |= story.was_posted
        texts = [text for _, text in said(state["messages"])]
        about = f"await {n}: {texts}"
        assert texts.count("Tell me a story.") == 1, about
        assert await story.ledger.arequests() == [], about
        if kind == "steer":
            assert texts.count("Be brief.") == int(was_accepted), about
            assert texts[-1] == "A cat.", about
            assert "halt" not in state["preemption"], about
        else:
            assert ("halt" in state["preemption"]) == was_accepted, about
            assert "A cat." not in texts or not was_accepted, about
        if way == "failed":  # of a call that is cancelled from outside, core tells nobody the end
            counter = story.counter
            assert counter.starts == len(counter.ends) + len(counter.errors), about
    else:
        pytest.fail("the run never came to its end")
    assert n > 10
