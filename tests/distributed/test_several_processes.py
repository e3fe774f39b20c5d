"""Steer, halt and resume where no process that takes a request runs a graph, and there are two of each."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from langgraph_sdk.client import LangGraphClient

from support.held_graph import Holds
from support.server_threads import (
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


async def test_a_steer_by_one_api_process_seals_what_streams_through_the_other(
    stack: Stack,
) -> None:
    async with stack.client(0) as here, stack.client(1) as there:
        thread_id = (await here.threads.create())["thread_id"]
        events, run_ids, steered = [], set(), None
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me a story."}]}
        async for part in here.runs.stream(
            thread_id, "long", input=asked, stream_mode=["messages-tuple", "custom"]
        ):
            if part.event == "metadata":
                run_ids.add(part.data["run_id"])
            elif part.event == "custom":
                events.append(part.data["event"])
            elif part.event == "messages" and "word20" in part.data[0]["content"] and steered is None:
                steered = await post(there, thread_id, "steer", messages="Be brief.")

        assert steered is not None
        messages = await messages_of(there, thread_id)
        assert types(messages) == ["human", "ai", "human", "ai"]
        assert messages[1]["content"].startswith("You said: Tell me a story.. word1 ")
        assert not messages[1]["content"].endswith("word150")
        assert messages[3]["content"].startswith("You said: Be brief.. word1 ")
        assert applied(messages) == {steered: 1}
        assert events == ["sealed", "injected"]
        assert len(run_ids) == 1
        assert await outcome_of(there, thread_id, steered) == "sealed"
        assert await report(here, thread_id) == await report(there, thread_id)


async def test_a_halt_ends_a_run_in_another_process_well_and_both_api_processes_know_why(
    stack: Stack, holds: Holds
) -> None:
    async with stack.client(0) as here, stack.client(1) as there:
        run = await start(here, "hold:halted")
        holds.go("halted")
        await holds.at("halted")
        await post(there, run.thread_id, "halt", reason="the person left")

        assert await finished(here, run.thread_id, run.run_id) == "success"
        for client in (here, there):
            (halt,) = (await report(client, run.thread_id))["halts"]
            assert (halt["run_id"], halt["reason"]) == (run.run_id, "the person left")
            metadata: Any = (await client.runs.get(run.thread_id, run.run_id))["metadata"]
            assert metadata["halt_reason"] == "the person left"
            assert metadata["preemption"] == {"seals": 1, "empty_boundaries": 0}
            (listed,) = await client.runs.list(run.thread_id)
            assert listed["metadata"] == metadata
        assert types(await messages_of(here, run.thread_id)) == ["human", "ai"]


async def test_only_the_halted_run_of_a_thread_has_a_halt_reason_whichever_process_is_asked(
    stack: Stack, holds: Holds
) -> None:
    async with stack.client(0) as here, stack.client(1) as there:
        halted = await start(here, "hold:listed")
        holds.go("listed")
        await holds.at("listed")
        await post(there, halted.thread_id, "halt", reason="enough")
        await finished(here, halted.thread_id, halted.run_id)
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Go on."}]}
        whole = await there.runs.create(halted.thread_id, "brief", input=asked)
        assert await finished(here, halted.thread_id, whole["run_id"]) == "success"

        for client in (here, there):
            listed: Any = await client.runs.list(halted.thread_id)
            reasons = {each["run_id"]: each["metadata"].get("halt_reason") for each in listed}
            assert reasons == {halted.run_id: "enough", whole["run_id"]: None}
            assert ["halt_reason" in each["metadata"] for each in listed].count(True) == 1


async def test_twenty_steers_through_two_api_processes_are_each_applied_once_in_one_order(
    stack: Stack, holds: Holds
) -> None:
    name, boundary = uuid.uuid4().hex, uuid.uuid4().hex
    async with stack.client(0) as here, stack.client(1) as there:
        run = await start(here, f"hold:{name}", "brief")
        await holds.at(name)

        async def steer(n: int, more: str = "") -> str:
            return await post((here, there)[n % 2], run.thread_id, "steer", messages=f"Number {n}.{more}")

        # At this boundary the run stays until all of them are posted, however long that takes.
        first = await steer(0, f" boundary:{boundary}")
        await holds.at(boundary)
        sent = [first, *await asyncio.gather(*(steer(n) for n in range(1, 20)))]
        before = [entry["id"] for entry in (await report(there, run.thread_id))["pending"]]
        assert sorted(before) == sorted(sent)
        holds.go(name)
        holds.go(boundary)

        assert await finished(here, run.thread_id, run.run_id) == "success"
        messages = await messages_of(there, run.thread_id)
        assert applied(messages) == dict.fromkeys(sent, 1)
        assert list(applied(messages)) == before


async def paused(client: LangGraphClient, thread_id: str) -> dict[str, dict[str, object]]:
    """Returns the questions that a thread waits for, by id."""
    state = await client.threads.get_state(thread_id)
    return {each["id"]: each["value"] for task in state["tasks"] for each in task["interrupts"]}


async def test_two_questions_are_answered_one_by_one_through_two_api_processes_and_each_tool_runs_once(
    stack: Stack, holds: Holds
) -> None:
    name = uuid.uuid4().hex
    calls = [
        call("act", name=name),
        call("send_email", to=name),
        call("ask_user", question="Which?"),
    ]
    async with stack.client(0) as here, stack.client(1) as there:
        run = await start(here, script({"say": "Let me.", "tool_calls": calls}, {"say": "Done."}), "brief")
        assert await finished(here, run.thread_id, run.run_id) in ("success", "interrupted")
        questions = await paused(there, run.thread_id)
        assert len(questions) == 2
        assert (holds.effects(name), holds.effects(f"email-{name}")) == (0, 0)
        steered = await post(here, run.thread_id, "steer", messages="And be brief.")

        for client, answer in ((there, {"choice": "this"}), (here, {"type": "approve"})):
            wanted = "question" if "choice" in answer else "tool_call_id"
            (asked,) = (
                key for key, value in (await paused(client, run.thread_id)).items() if wanted in value
            )
            resumed = await client.runs.create(run.thread_id, "brief", command={"resume": {asked: answer}})
            assert await finished(client, run.thread_id, resumed["run_id"]) in ("success", "interrupted")

        assert await paused(here, run.thread_id) == {}
        assert (holds.effects(name), holds.effects(f"email-{name}")) == (1, 1)
        messages = await messages_of(there, run.thread_id)
        assert [each["tool_call_id"] for each in messages if each["type"] == "tool"] == [
            each["id"] for each in calls
        ]
        assert applied(messages) == {steered: 1}


async def test_an_answer_that_does_not_fit_is_asked_again_and_fails_nothing(
    stack: Stack, holds: Holds
) -> None:
    name = uuid.uuid4().hex
    calls = [call("act", name=name), call("send_email", to=name)]
    async with stack.client(0) as here, stack.client(1) as there:
        run = await start(here, script({"say": "Let me.", "tool_calls": calls}, {"say": "Done."}), "brief")
        await finished(here, run.thread_id, run.run_id)
        (first,) = await paused(here, run.thread_id)

        resumed = await there.runs.create(run.thread_id, "brief", command={"resume": {first: "certainly"}})
        await finished(there, run.thread_id, resumed["run_id"])
        ((again, question),) = (await paused(here, run.thread_id)).items()
        assert (await here.threads.get(run.thread_id))["status"] == "interrupted"
        assert question["errors"]
        assert holds.effects(name) == 0

        resumed = await here.runs.create(
            run.thread_id, "brief", command={"resume": {again: {"type": "reject"}}}
        )
        assert await finished(here, run.thread_id, resumed["run_id"]) == "success"
        assert (holds.effects(name), holds.effects(f"email-{name}")) == (1, 0)


async def test_ordinary_updates_and_refusals_are_the_same_on_every_process(stack: Stack) -> None:
    async with stack.client(0) as here, stack.client(1) as there:
        run = await start(here, "hello", "brief")
        await finished(here, run.thread_id, run.run_id)
        message = {"role": "user", "content": "noted", "id": "m1"}
        await there.threads.update_state(run.thread_id, {"messages": [message]})
        assert said(await messages_of(here, run.thread_id))[-1] == ("human", "noted")
        for client in (here, there):
            answer = await client.http.client.post(
                f"/threads/{run.thread_id}/state", json={"values": {"preemption": {"kind": "stir"}}}
            )
            assert answer.status_code == 422
            assert "must be one of 'steer', 'halt', 'withdraw'" in answer.json()["detail"]
