"""Boundary hooks at a run's last steps, after unusual tools, and as they fail."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Annotated, Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from fakes import ENDLESS, FakeChatModel, calls
from midstream import BoundaryHook, BoundaryInput, BoundaryOutput, Preemption
from support.steering import ASKED, agent, ledger_of, look_up, said, steer, thread

Told = list[tuple[str, str]]


def hooks(told: Told, output: BoundaryOutput | None = None, *, at: Any = ("tools", "end")) -> Preemption:
    """Options with a hook that keeps where it was asked, and what was said last."""

    def hook(given: BoundaryInput) -> BoundaryOutput | None:
        told.append((given.kind, given.messages[-1].text))
        return output

    return Preemption(boundary_hooks=[BoundaryHook(hook, at=at)])


# A run's last steps


@pytest.mark.parametrize("limit", range(2, 9))
async def test_hooks_are_asked_up_to_the_last_steps_and_else_the_log_says_what_to_do(
    limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    told: Told = []
    graph = agent(FakeChatModel(answers=[["The end."]]), saver=InMemorySaver(), preemption=hooks(told))

    state = await graph.ainvoke(ASKED, {**thread(), "recursion_limit": limit})

    assert said(state["messages"])[1:] == [("ai", "The end.")]
    is_told = told == [("end", "The end.")]
    is_logged = "hooks at the turn's end are not asked: the run has" in caplog.text
    assert (is_told, is_logged) in [(True, False), (False, True)]
    assert is_told or limit < 4
    assert caplog.text.count("give it a higher recursion_limit") == int(is_logged)


@pytest.mark.parametrize("limit", range(4, 12))
async def test_what_a_hook_says_is_said_or_the_log_says_why_not(
    limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    """And a run never fails at its limit because a hook has spoken."""
    told: Told = []
    preemption = hooks(told, BoundaryOutput(messages=["Louder."]), at={"tools"})
    model = FakeChatModel(answers=[calls("look_up", '{"word": "cat"}'), ["A cat."]])
    graph = agent(model, saver=InMemorySaver(), tools=[look_up], preemption=preemption)

    state = await graph.ainvoke(ASKED, {**thread(), "recursion_limit": limit})

    assert told == [("tools", "cat: a thing")]
    assert state["messages"][-1].text == "A cat."
    is_said = ("human", "Louder.") in said(state["messages"])
    assert is_said == ("is passed over" not in caplog.text)
    assert is_said or limit < 7


def rounds(count: int) -> list[Any]:
    return [calls("look_up", '{"word": "cat"}', call_id=f"c{n}") for n in range(count)]


@pytest.mark.parametrize(
    ("at", "answers", "limits"),
    [
        ("tools", [*rounds(3), ["Done."]], range(8, 12)),
        ("end", [["Hm."], *rounds(2), ["Done."]], range(3, 10)),
    ],
)
async def test_a_run_that_a_hook_has_made_longer_is_halted_where_its_steps_end(
    at: str, answers: list[Any], limits: range
) -> None:
    """What the hook says is said, because nobody knows then how many tools the model will call."""
    ends: list[tuple[str | None, str]] = []
    for limit in limits:
        words = iter([BoundaryOutput(additional_context="Louder.")])
        hook = BoundaryHook(lambda _, words=words: next(words, None), at={at})  # type: ignore[misc,arg-type]
        model = FakeChatModel(answers=answers)
        preemption = Preemption(boundary_hooks=[hook])
        graph = agent(model, saver=InMemorySaver(), tools=[look_up], preemption=preemption)

        state = await graph.ainvoke(ASKED, {**thread(), "recursion_limit": limit})

        halt = state["preemption"].get("halt")
        ends.append((halt and halt["reason"], state["messages"][-1].text))

    halted, done = ("recursion_limit", "cat: a thing"), (None, "Done.")
    if at == "tools":
        assert ends == [halted, done, done, done]
    else:
        assert ends == [*[(None, "Hm.")] * 3, halted, halted, done, done]


async def test_a_hook_may_end_a_run_that_has_no_steps_left() -> None:
    told: Told = []
    preemption = hooks(told, BoundaryOutput(prevent_continuation=True, stop_reason="Enough."), at={"tools"})
    model = FakeChatModel(answers=[calls("look_up", '{"word": "cat"}'), ["never"]])
    graph = agent(model, saver=InMemorySaver(), tools=[look_up], preemption=preemption)

    state = await graph.ainvoke(ASKED, {**thread(), "recursion_limit": 4})

    assert state["preemption"]["halt"]["reason"] == "Enough."
    assert state["messages"][-1].type == "tool"


async def test_a_request_that_comes_at_the_last_step_is_left_to_the_next_run() -> None:
    told: Told = []
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["The end.", lambda: ledger.append(steer("Louder."))], ["Louder!"]])
    graph = agent(model, saver=saver, preemption=hooks(told))

    state = await graph.ainvoke(ASKED, {**config, "recursion_limit": 4})

    assert said(state["messages"])[1:] == [("ai", "The end.")]
    assert told == [("end", "The end.")]
    state = await graph.ainvoke({"messages": [HumanMessage("And?")]}, config)
    assert said(state["messages"])[2:] == [("human", "And?"), ("human", "Louder."), ("ai", "Louder!")]


# Tools that say more than their results


@tool
def speak(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Answers, and says something in a person's name."""
    return Command(
        update={"messages": [ToolMessage("spoken", tool_call_id=tool_call_id), HumanMessage("I say so.")]}
    )


async def test_hooks_are_asked_after_tools_that_end_in_a_persons_words() -> None:
    told: Told = []
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[calls("speak"), ["Fine."]])
    preemption = hooks(told, BoundaryOutput(messages=["Louder."]), at={"tools"})
    graph = agent(model, saver=saver, tools=[speak], preemption=preemption)

    await graph.ainvoke(ASKED, config, interrupt_after=["tools"])
    await ledger.aappend(steer("Shorter."))
    state = await graph.ainvoke(None, config)

    assert told == [("tools", "I say so.")]
    assert said(state["messages"])[3:] == [
        ("human", "I say so."),
        ("human", "Shorter."),
        ("human", "Louder."),
        ("ai", "Fine."),
    ]
    assert [each["outcome"] for each in state["preemption"]["handled"].values()] == ["tool_boundary"]


async def test_an_answer_to_a_hook_reaches_it_also_after_a_tool_has_spoken() -> None:
    def hook(given: BoundaryInput) -> BoundaryOutput:
        return BoundaryOutput(messages=[interrupt("What now?")])

    model = FakeChatModel(answers=[calls("speak"), ["Fine."]])
    options = Preemption(boundary_hooks=[BoundaryHook(hook, at={"tools"})])
    graph, config = agent(model, saver=InMemorySaver(), tools=[speak], preemption=options), thread()
    paused = await graph.ainvoke(ASKED, config)
    assert [each.value for each in paused["__interrupt__"]] == ["What now?"]

    state = await graph.ainvoke(Command(resume="Rhyme."), config)

    assert said(state["messages"])[2:] == [
        ("tool", "spoken"),
        ("human", "I say so."),
        ("human", "Rhyme."),
        ("ai", "Fine."),
    ]


# How hooks are called, and how they fail


async def waits(started: asyncio.Event, ended: asyncio.Event) -> None:
    started.set()
    try:
        await asyncio.Event().wait()
    finally:
        ended.set()


async def answers(given: BoundaryInput) -> BoundaryOutput:
    await asyncio.sleep(0)
    return BoundaryOutput(messages=[f"on {threading.current_thread().name}"])


class Answers:
    async def __call__(self, given: BoundaryInput) -> BoundaryOutput:
        return await answers(given)


@functools.wraps(answers)
def decorated(given: BoundaryInput) -> Any:
    return answers(given)


def seal_hook(hook: Any, **options: Any) -> Any:
    """A thread whose answer is sealed for the hook's sake alone, and its graph."""
    model = FakeChatModel(answers=[["Once", ENDLESS], ["Fine."]])
    polls = iter([True])
    preemption = Preemption(boundary_hooks=[hook], should_preempt=lambda: next(polls, False), **options)
    return agent(model, saver=InMemorySaver(), preemption=preemption)


@pytest.mark.parametrize(
    "hook",
    [answers, Answers(), lambda given: answers(given), functools.partial(answers), decorated],
    ids=["function", "object", "lambda", "partial", "decorated"],
)
async def test_an_async_hook_runs_on_the_loop_of_the_run_however_it_is_wrapped(hook: Any) -> None:
    state = await seal_hook(hook).ainvoke(ASKED, thread())

    assert said(state["messages"])[2:] == [("human", "on MainThread"), ("ai", "Fine.")]


@pytest.mark.parametrize("is_late", [True, False], ids=["late", "cancelled"])
async def test_an_async_hook_behind_a_lambda_is_ended_with_its_time_and_with_the_run(is_late: bool) -> None:
    started, ended = asyncio.Event(), asyncio.Event()
    graph = seal_hook(lambda _: waits(started, ended), hook_timeout=0.05 if is_late else 60)

    run = asyncio.create_task(graph.ainvoke(ASKED, thread()))
    async with asyncio.timeout(10):
        await started.wait()
        if not is_late:
            run.cancel()
        await asyncio.wait([run])

    assert ended.is_set()
    assert run.cancelled() == (not is_late)


def raises(error: BaseException) -> Any:
    def hook(given: BoundaryInput) -> None:
        raise error

    return hook


def raises_later(error: BaseException) -> Any:
    async def hook(given: BoundaryInput) -> None:
        await asyncio.sleep(0)
        raise error

    return hook


@pytest.mark.parametrize("is_sync", [False, True], ids=["async graph", "sync graph"])
@pytest.mark.parametrize("made", [raises, raises_later])
@pytest.mark.parametrize("error", [asyncio.CancelledError(), TimeoutError("the policy server")], ids=repr)
async def test_a_hook_that_fails_by_itself_is_told_from_a_run_that_ends_and_from_a_late_hook(
    error: BaseException, made: Any, is_sync: bool, caplog: pytest.LogCaptureFixture
) -> None:
    graph = seal_hook(made(error))

    if is_sync:
        state = await asyncio.to_thread(graph.invoke, ASKED, thread())
    else:
        state = await graph.ainvoke(ASKED, thread())

    assert state["preemption"]["halt"]["reason"] == "preempt_incomplete"
    assert "hook failed and is passed over" in caplog.text
    assert "took more than" not in caplog.text


async def test_a_run_that_is_cancelled_while_its_hook_ends_badly_is_cancelled() -> None:
    started = asyncio.Event()

    async def hook(given: BoundaryInput) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise asyncio.CancelledError("and in its own words") from None

    run = asyncio.create_task(seal_hook(hook).ainvoke(ASKED, thread()))
    async with asyncio.timeout(10):
        await started.wait()
        run.cancel()
        await asyncio.wait([run])

    assert run.cancelled()


async def pulse() -> bool:
    return False


@pytest.mark.parametrize("poll", [RuntimeError("no pulse"), asyncio.CancelledError(), pulse])
async def test_should_preempt_that_fails_is_not_asked_again_in_its_run(
    poll: Any, caplog: pytest.LogCaptureFixture
) -> None:
    polled: list[int] = []

    def should_preempt() -> Any:
        polled.append(1)
        if isinstance(poll, BaseException):
            raise poll
        return poll()

    model = FakeChatModel(answers=[["Let me see.", *calls("look_up", '{"word": "cat"}')], ["A", " cat."]])
    preemption = Preemption(should_preempt=should_preempt, boundary_hooks=[lambda _: None])
    graph, config = agent(model, saver=InMemorySaver(), tools=[look_up], preemption=preemption), thread()

    state = await graph.ainvoke(ASKED, config)

    assert state["messages"][-1].text == "A cat."
    assert polled == [1]
    assert caplog.text.count("should_preempt failed and is not asked again in this run") == 1
    await graph.ainvoke({"messages": [HumanMessage("And a dog?")]}, config)
    assert polled == [1, 1]


@pytest.mark.parametrize(
    "one",
    ["Louder.", HumanMessage("Louder."), {"role": "user", "content": "Louder."}],
    ids=["text", "message", "dict"],
)
async def test_one_message_does_for_a_list_of_one(one: Any) -> None:
    state = await seal_hook(lambda _: BoundaryOutput(messages=one)).ainvoke(ASKED, thread())

    assert said(state["messages"])[2:] == [("human", "Louder."), ("ai", "Fine.")]


async def test_hooks_that_give_their_messages_one_id_do_not_replace_each_others_words() -> None:
    def hook(given: BoundaryInput) -> BoundaryOutput:
        return BoundaryOutput(messages=[HumanMessage("One.", id="x"), HumanMessage("Two.", id="x")])

    state = await seal_hook(hook).ainvoke(ASKED, thread())

    assert said(state["messages"])[2:] == [("human", "One."), ("human", "Two."), ("ai", "Fine.")]
    assert state["messages"][2].id == "x"
