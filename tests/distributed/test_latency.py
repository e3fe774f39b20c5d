"""How late a worker sees what an API process has accepted: what is promised, and what the machine adds."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from langgraph_sdk.client import LangGraphClient

from midstream import Preemption
from support.held_graph import Holds
from support.server_threads import finished, post, start
from support.stack import Stack

POLL_SECONDS = Preemption().poll_interval
PROMISED_SECONDS = POLL_SECONDS + 0.1
TRIES, AT_ONCE = 32, 4
FEW = 3
"""How many may be late: what a machine does to one of several processes is not all seen by the others."""

QUIET_SECONDS = (0.5, 0.9)
"""How long an answer streams before it is halted: so long that its run looks at the slowest pace."""


@dataclass(frozen=True, slots=True)
class Try:
    """One answer that was halted."""

    taken: float
    """Seconds from before the host's post until the worker had closed the provider's stream."""

    noise: float
    """Seconds by which the worker was late with a word, and a read of the state took, meanwhile."""

    def __repr__(self) -> str:
        return f"<Try {self.taken * 1e3:.0f} ms, noise {self.noise * 1e3:.0f} ms>"

    @property
    def without_noise(self) -> float:
        return self.taken - self.noise


class Reads:
    """How long it takes an API process to read a thread's state, all the while."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []

    @contextlib.asynccontextmanager
    async def going_on(self, client: LangGraphClient, thread_id: str) -> AsyncIterator[None]:
        async def read() -> None:
            while True:
                began = time.time()
                await client.threads.get_state(thread_id)
                self._seen.append((began, time.time()))
                await asyncio.sleep(0.02)

        reading = asyncio.create_task(read())
        try:
            yield
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    def longest(self, begin: float, end: float) -> float:
        return max((till - at for at, till in self._seen if at < end and till > begin), default=0.0)


async def test_what_one_process_accepts_another_applies_within_the_poll_interval_and_a_tenth_of_a_second(
    stack: Stack, holds: Holds
) -> None:
    chance, reads = random.Random(stack.line), Reads()
    async with stack.client(0) as here, stack.client(1) as there:
        idle = await start(there, "hello", "brief")
        await finished(there, idle.thread_id, idle.run_id)

        async def halted() -> Try:
            name = uuid.uuid4().hex
            run = await start(here, f"hold:{name}")
            await holds.at(name)
            holds.go(name)
            await asyncio.sleep(chance.uniform(*QUIET_SECONDS))
            posted = time.time()
            await post(here, run.thread_id, "halt", reason="measured")
            ended = await holds.ended(run.message_id)
            assert await finished(there, run.thread_id, run.run_id) == "success"
            metadata: Any = (await there.runs.get(run.thread_id, run.run_id))["metadata"]
            assert metadata["preemption"]["seals"] == 1, "the answer was over before it could be halted"
            late = await holds.late(run.message_id)
            return Try(ended - posted, late + reads.longest(posted, ended))

        async def some() -> list[Try]:
            return [await halted() for _ in range(TRIES // AT_ONCE)]

        async with reads.going_on(here, idle.thread_id):
            tries = [
                each for found in await asyncio.gather(*(some() for _ in range(AT_ONCE))) for each in found
            ]

    tries.sort(key=lambda each: each.taken)
    late = [each for each in tries if each.without_noise > PROMISED_SECONDS]
    assert len(late) <= FEW, tries
    assert median(each.without_noise for each in tries) <= POLL_SECONDS, tries
