from __future__ import annotations

import asyncio
import threading

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from midstream import Ledger, LedgerFullError, wakeup
from support.ledgers import steer


def test_a_request_wakes_whoever_waits_for_its_thread_and_nobody_else() -> None:
    heard: list[str] = []
    leave = [
        wakeup.subscribe("t1", lambda: heard.append("one")),
        wakeup.subscribe("t1", lambda: heard.append("two")),
        wakeup.subscribe("t2", lambda: heard.append("other")),
    ]
    saver = InMemorySaver()

    Ledger(saver, "t1").append(steer("hello"))
    assert heard == ["one", "two"]

    leave[0]()
    leave[0]()
    Ledger(saver, "t1").append(steer("hello"))
    assert heard == ["one", "two", "two"]

    for unsubscribe in leave:
        unsubscribe()
    Ledger(saver, "t1").append(steer("hello"))
    assert heard == ["one", "two", "two"]


def test_the_request_is_there_when_the_call_comes() -> None:
    ledger = Ledger(InMemorySaver(), "t")
    seen: list[int] = []
    unsubscribe = wakeup.subscribe("t", lambda: seen.append(len(ledger.requests())))

    ledger.append(steer("hello"))

    unsubscribe()
    assert seen == [1]


def test_a_refused_request_wakes_nobody() -> None:
    ledger = Ledger(InMemorySaver(), "t")
    for _ in range(32):
        ledger.append(steer("x"))
    unsubscribe = wakeup.subscribe("t", lambda: pytest.fail("nothing was accepted"))
    with pytest.raises(LedgerFullError):
        ledger.append(steer("x"))
    unsubscribe()


async def test_a_loop_is_woken_from_another_thread() -> None:
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    unsubscribe = wakeup.subscribe("t", lambda: loop.call_soon_threadsafe(woken.set))

    thread = threading.Thread(target=Ledger(InMemorySaver(), "t").append, args=[steer("hello")])
    thread.start()
    await asyncio.wait_for(woken.wait(), 5)

    thread.join()
    unsubscribe()


def test_a_loop_that_is_closed_does_not_keep_the_others_asleep() -> None:
    closed = asyncio.new_event_loop()
    closed.close()
    heard: list[str] = []
    leave = [
        wakeup.subscribe("t", lambda: closed.call_soon_threadsafe(print)),
        wakeup.subscribe("t", lambda: heard.append("here")),
    ]

    wakeup.notify("t")

    for unsubscribe in leave:
        unsubscribe()
    assert heard == ["here"]
