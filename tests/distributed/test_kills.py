"""`kill -9` of a worker or of an API process, at the points where something could be lost or done twice.

Each point is reached, not waited for: the run, or the test by freezing the process, stands still there.
`MIDSTREAM_FAULTS` says how often each fault is injected.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import Counter
from typing import Any

import httpx
import psycopg
import pytest
from langgraph_sdk.client import LangGraphClient

from support.held_graph import Holds
from support.server_threads import (
    Started,
    applied,
    call,
    finished,
    messages_of,
    outcome_of,
    post,
    report,
    said,
    script,
    start,
    types,
)
from support.stack import Stack

TIMES = int(os.environ.get("MIDSTREAM_FAULTS", "1"))
again = pytest.mark.parametrize("n", range(TIMES))


async def steered_to_the_end(
    client: LangGraphClient, run: Started, request_id: str, *, text: str
) -> list[tuple[str, str]]:
    """Waits for the run, and holds it to what is true of each steer: applied once, and the run went on."""
    assert await finished(client, run.thread_id, run.run_id) == "success"
    messages = await messages_of(client, run.thread_id)
    assert applied(messages) == {request_id: 1}
    assert types(messages) == ["human", "ai", "human", "ai"]
    assert messages[2]["content"] == text
    assert messages[3]["content"].startswith(f"You said: {text}. word1 ")
    assert await outcome_of(client, run.thread_id, request_id) == "sealed"
    assert (await client.threads.get(run.thread_id))["status"] == "idle"
    return said(messages)


@again
async def test_a_request_that_the_killed_worker_had_not_seen_is_applied_as_the_other_takes_over(
    stack: Stack, holds: Holds, faults: Counter[str], n: int
) -> None:
    name = uuid.uuid4().hex
    async with stack.client() as client:
        run = await start(client, f"Tell me hold:{name} a story")
        worker = stack.worker_of(await holds.at(name))
        worker.freeze()  # The request is accepted while nobody can see it.
        request_id = await post(client, run.thread_id, "steer", messages="Brief", run_id=run.run_id)
        stack.lose(worker)
        faults["worker killed between acceptance and seal"] += 1

        # Nothing was committed, so there is no answer to end: the model is called with the request at once.
        assert await finished(client, run.thread_id, run.run_id) == "success"
        messages = await messages_of(client, run.thread_id)
        assert applied(messages) == {request_id: 1}
        assert types(messages) == ["human", "human", "ai"]
        assert messages[2]["content"].startswith("You said: Brief. word1 ")
        ended = (await report(client, run.thread_id))["handled"][request_id]
        assert (ended["outcome"], ended["run_id"]) == ("entry", run.run_id)


@again
async def test_a_run_that_another_worker_took_over_is_steered_like_any_other(
    stack: Stack, holds: Holds, faults: Counter[str], n: int
) -> None:
    name = uuid.uuid4().hex
    async with stack.client() as client:
        run = await start(client, f"Tell me hold:{name} a story")
        worker = stack.worker_of(await holds.at(name))
        lost = stack.lose(worker)
        faults["worker killed in mid-answer"] += 1

        assert await holds.at(name, times=2) != lost
        request_id = await post(client, run.thread_id, "steer", messages="Brief", run_id=run.run_id)
        holds.go(name)
        (_, partial, *_) = await steered_to_the_end(client, run, request_id, text="Brief")
        assert partial[1].startswith("You said: Tell me")


@again
async def test_a_worker_killed_between_the_seal_and_the_boundary_keeps_the_partial_answer(
    stack: Stack, holds: Holds, faults: Counter[str], n: int
) -> None:
    name, boundary = uuid.uuid4().hex, uuid.uuid4().hex
    async with stack.client() as client:
        run = await start(client, f"Tell me hold:{name} a story")
        holds.go(name)
        await holds.at(name)
        text = f"Brief boundary:{boundary}"
        request_id = await post(client, run.thread_id, "steer", messages=text)

        # A hook is asked on committed state: whoever stands in it has sealed, and not gone on.
        worker = stack.worker_of(await holds.at(boundary))
        partial = said(await messages_of(client, run.thread_id))
        assert [kind for kind, _ in partial] == ["human", "ai"]
        lost = stack.lose(worker)
        faults["worker killed between the seal's commit and the boundary"] += 1
        holds.go(boundary)

        assert await holds.at(boundary, times=2) != lost
        whole = await steered_to_the_end(client, run, request_id, text=text)
        assert whole[:2] == partial


@again
async def test_a_worker_killed_between_the_boundary_and_the_continuation_applies_the_request_once(
    stack: Stack, holds: Holds, faults: Counter[str], n: int
) -> None:
    name, continued = uuid.uuid4().hex, uuid.uuid4().hex
    async with stack.client() as client:
        run = await start(client, f"Tell me hold:{name} a story")
        holds.go(name)
        await holds.at(name)
        text = f"Brief hold:{continued} please"
        request_id = await post(client, run.thread_id, "steer", messages=text)

        # The model is at the first words of its answer to the steer, which is committed.
        worker = stack.worker_of(await holds.at(continued))
        before = said(await messages_of(client, run.thread_id))
        assert [kind for kind, _ in before] == ["human", "ai", "human"]
        lost = stack.lose(worker)
        faults["worker killed between the boundary's commit and the continuation"] += 1
        holds.go(continued)

        assert await holds.at(continued, times=2) != lost
        whole = await steered_to_the_end(client, run, request_id, text=text)
        assert whole[:3] == before


@again
async def test_a_halt_that_the_killed_worker_had_not_seen_halts_the_run_in_the_other(
    stack: Stack, holds: Holds, faults: Counter[str], n: int
) -> None:
    name = uuid.uuid4().hex
    async with stack.client() as client:
        run = await start(client, f"Tell me hold:{name} a story")
        worker = stack.worker_of(await holds.at(name))
        worker.freeze()
        await post(client, run.thread_id, "halt", reason="enough")
        stack.lose(worker)
        faults["worker killed between acceptance and halt"] += 1
        holds.go(name)

        assert await finished(client, run.thread_id, run.run_id) == "success"
        (halt,) = (await report(client, run.thread_id))["halts"]
        assert (halt["run_id"], halt["reason"]) == (run.run_id, "enough")
        metadata: Any = (await client.runs.get(run.thread_id, run.run_id))["metadata"]
        assert metadata["halt_reason"] == "enough"
        assert types(await messages_of(client, run.thread_id))[:1] == ["human"]
        assert "human" not in types(await messages_of(client, run.thread_id))[1:]


async def kept_results(stack: Stack, thread_id: str, least: int) -> None:
    """Waits until the results of this many tools are in storage."""
    query = (
        "select count(distinct task_id) from checkpoint_writes "
        "where thread_id = %s and checkpoint_ns = '' and channel = '__return__'"
    )
    async with asyncio.timeout(60):
        async with await psycopg.AsyncConnection.connect(stack.database_uri, autocommit=True) as database:
            while True:
                row = await (await database.execute(query, (thread_id,))).fetchone()
                if row is not None and row[0] >= least:
                    return
                await asyncio.sleep(0.05)


@again
async def test_a_worker_killed_between_two_tools_of_a_batch_runs_each_of_them_once(
    stack: Stack, holds: Holds, faults: Counter[str], n: int
) -> None:
    first, second, email = (uuid.uuid4().hex for _ in range(3))
    calls = [call("act", name=second, wait_for=second), call("send_email", to=email), call("act", name=first)]
    async with stack.client() as client:
        run = await start(client, script({"say": "Let me.", "tool_calls": calls}, {"say": "Done."}), "brief")
        await finished(client, run.thread_id, run.run_id)
        state = await client.threads.get_state(run.thread_id)
        ((approval,),) = ([each["id"] for each in task["interrupts"]] for task in state["tasks"])
        resumed = await client.runs.create(
            run.thread_id, "brief", command={"resume": {approval: {"type": "approve"}}}
        )
        worker = stack.worker_of(await holds.at(second))
        steered = await post(client, run.thread_id, "steer", messages="Brief")
        await kept_results(stack, run.thread_id, least=2)
        lost = stack.lose(worker)
        faults["worker killed between two tools of a batch"] += 1
        assert [holds.effects(each) for each in (first, f"email-{email}", second)] == [1, 1, 0]
        holds.go(second)

        assert await holds.at(second, times=2) != lost
        assert await finished(client, run.thread_id, resumed["run_id"]) == "success"
        assert [holds.effects(each) for each in (first, f"email-{email}", second)] == [1, 1, 1]
        messages = await messages_of(client, run.thread_id)
        answered = [each["tool_call_id"] for each in messages if each["type"] == "tool"]
        assert answered == [each["id"] for each in calls]
        assert applied(messages) == {steered: 1}
        assert await outcome_of(client, run.thread_id, steered) == "tool_boundary"


@again
async def test_an_api_process_killed_right_after_it_accepted_has_accepted(
    stack: Stack, holds: Holds, faults: Counter[str], n: int
) -> None:
    name = uuid.uuid4().hex
    async with stack.client(0) as dying, stack.client(1) as other:
        run = await start(dying, f"Tell me hold:{name} a story")
        holds.go(name)
        await holds.at(name)
        request_id = await post(dying, run.thread_id, "steer", messages="Brief")
        stack.lose(stack.apis[0])
        faults["API process killed right after acceptance"] += 1

        await steered_to_the_end(other, run, request_id, text="Brief")


@again
async def test_an_api_process_killed_while_it_accepts_leaves_a_request_that_may_be_posted_again(
    stack: Stack, holds: Holds, faults: Counter[str], n: int
) -> None:
    name, request_id = uuid.uuid4().hex, str(uuid.uuid4())
    async with stack.client(0) as dying, stack.client(1) as other:
        run = await start(dying, f"Tell me hold:{name} a story")
        await holds.at(name)
        posting = asyncio.create_task(post(dying, run.thread_id, "steer", messages="Brief", id=request_id))
        # Somewhere between the first byte and the answer; a little later each time.
        await asyncio.wait([posting], timeout=0.005 + 0.01 * n)
        stack.lose(stack.apis[0])
        faults["API process killed while it accepts"] += 1
        await asyncio.gather(posting, return_exceptions=True)
        assert not posting.cancelled()
        assert isinstance(posting.exception(), httpx.TransportError | None)

        assert await post(other, run.thread_id, "steer", messages="Brief", id=request_id) == request_id
        holds.go(name)
        await steered_to_the_end(other, run, request_id, text="Brief")
