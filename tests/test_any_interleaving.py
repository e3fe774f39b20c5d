"""Hosts that steer, halt and take back at random moments: each request ends, once, and it can be read how."""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage

from fakes import FakeChatModel, InlineHandler, calls
from midstream import NotPendingError, Preemption
from support.steering import OpenLedgerSaver, agent, halt, is_sealed, ledger_of, look_up, steer, thread

HOSTS = 3
EACH = 3
RUNS = 3


class Rambler(FakeChatModel):
    """Says something else each time: words, thoughts, calls; with pauses of any length."""

    dice: Any = None

    def _start(self, messages: Any, options: Any) -> Any:
        call, _ = super()._start(messages, options)
        roll: random.Random = self.dice

        async def pause() -> None:
            await ticks(roll.randrange(12))

        thought = AIMessageChunk(content=[{"type": "thinking", "thinking": "hm", "index": 0}])
        answer: list[Any] = [pause]
        for _ in range(roll.randrange(1, 5)):
            answer += [roll.choice(["word ", "word ", "", thought]), pause]
        calls_tool = roll.random() < 0.3 and len(messages) < 30
        answer += calls("look_up", '{"word": "cat"}', call_id=str(uuid.uuid4())) if calls_tool else ["end."]
        return call, answer


async def host(ledger: Any, roll: random.Random, posted: dict[str, dict[str, Any]], back: set[str]) -> None:
    for _ in range(EACH):
        await ticks(roll.randrange(40))
        name = str(uuid.uuid4())
        request = halt("Stop.", id=name) if roll.random() < 0.25 else steer(f"Steer {name}.", id=name)
        posted[name] = request
        await ledger.aappend(request)
        if roll.random() < 0.3:
            await ledger.aappend(request)  # an impatient host
        if roll.random() < 0.3:
            await ticks(roll.randrange(10))
            try:
                await ledger.aappend({"kind": "withdraw", "id": name})
                back.add(name)
            except NotPendingError:
                pass


async def ticks(n: int) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("is_cancelled", [False, True], ids=["runs end", "runs are cancelled"])
async def test_every_request_ends_once_and_no_message_is_lost(seed: int, is_cancelled: bool) -> None:
    roll = random.Random(seed)
    saver, config = OpenLedgerSaver(), thread()
    ledger = ledger_of(saver, config)
    graph = agent(
        Rambler(dice=roll),
        saver=saver,
        tools=[look_up],
        preemption=Preemption(max_seals=roll.choice([0, 1, 8]), poll_interval=0.01),
    )
    posted: dict[str, dict[str, Any]] = {}
    back: set[str] = set()
    handler = InlineHandler()
    hosts = [asyncio.create_task(host(ledger, roll, posted, back)) for _ in range(HOSTS)]
    seen: list[str] = []
    kept: list[str] = []

    async def run(n: int) -> None:
        given = {"messages": [HumanMessage(f"Question {n}.")]}
        settings: Any = {**config, "recursion_limit": 200, "callbacks": [handler]}
        stream: Any = graph.astream(given, settings, stream_mode=["custom", "values"])
        async for mode, part in stream:
            if mode == "custom" and part["event"] in ("injected", "halted", "expired"):
                seen.extend(part["request_ids"])
            elif mode == "values":
                ids = [message.id for message in part.get("messages", [])]
                assert ids[: len(kept)] == kept, "what was in the thread stays there, in its order"
                kept[:] = ids

    n_cancelled = 0
    for n in range(RUNS):
        task = asyncio.create_task(run(n))
        if is_cancelled:
            await asyncio.wait(
                [task, asyncio.create_task(ticks(roll.randrange(400)))], return_when="FIRST_COMPLETED"
            )
            task.cancel()
        await asyncio.wait([task], timeout=20)
        assert task.done()
        n_cancelled += task.cancelled()
        if not task.cancelled():
            task.result()
        elif roll.random() < 0.7:
            settings: Any = {**config, "recursion_limit": 200, "callbacks": [handler]}
            state = await graph.ainvoke(None, settings)
            kept[:] = [message.id for message in state["messages"]]
    await asyncio.gather(*hosts)
    for n in range(RUNS, RUNS + 12):  # halts that are left stop one run each
        if not await ledger.arequests():
            break
        await asyncio.wait_for(run(n), 20)

    assert await ledger.arequests() == []
    assert 0 <= handler.left_open <= n_cancelled
    state = (await graph.aget_state(config)).values
    handled, messages = state["preemption"]["handled"], state["messages"]
    steered = [m.additional_kwargs["request_id"] for m in messages if "request_id" in m.additional_kwargs]
    steers = {name for name, request in posted.items() if request["kind"] == "steer"}
    assert len(steered) == len(set(steered))
    assert set(handled) | back == set(posted)
    assert not set(handled) & back, (
        "what was taken back is not applied, and what is applied is not taken back"
    )
    assert set(steered) == steers & set(handled)
    if is_cancelled:  # what was told and not saved is told again, and a resumed run has told nobody
        return
    assert sorted(seen) == sorted(handled), "each is told exactly once"
    assert all(
        handled[name]["outcome"] in ("sealed", "tool_boundary", "turn_end", "entry") for name in handled
    )
    assert all(m.text.strip() for m in messages if is_sealed(m))
    for left, right in itertools.pairwise(messages):
        assert (left.type, right.type) != ("ai", "ai"), "two turns of the model side by side"
        assert bool(getattr(left, "tool_calls", None)) == (right.type == "tool") or left.type == "tool"
