"""Boundary hooks: what they are told, what they may ask for, and what they can never cost."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt

from fakes import ENDLESS, FakeChatModel, calls
from midstream import (
    BoundaryHook,
    BoundaryInput,
    BoundaryOutput,
    ConfigurationError,
    Ledger,
    MidstreamState,
    ModelNode,
    Preemption,
)

ASKED: Any = {"messages": [HumanMessage("Tell me a story.", id="h1")]}


@tool
def look_up(word: str) -> str:
    """Looks a word up."""
    return f"{word}: a thing"


class Story:
    """One thread of one agent, and what a host posts to it."""

    def __init__(self, answers: list[Any], *, tools: list[Any] | None = None, **options: Any) -> None:
        self.saver = InMemorySaver()
        self.config: RunnableConfig = {"configurable": {"thread_id": str(uuid.uuid4())}}
        self.model = FakeChatModel(answers=[self._bind(answer) for answer in answers])
        builder = StateGraph(MidstreamState)
        builder.add_node("model", ModelNode(self.model, tools=tools or (), preemption=Preemption(**options)))
        builder.add_edge(START, "model")
        if tools:
            builder.add_node("tools", ToolNode(tools))
            builder.add_conditional_edges("model", tools_condition)
            builder.add_edge("tools", "model")
        else:
            builder.add_edge("model", END)
        self.graph: CompiledStateGraph[Any, Any, Any, Any] = builder.compile(checkpointer=self.saver)

    def _bind(self, answer: list[Any]) -> list[Any]:
        return [step.__get__(self) if getattr(step, "on_story", False) else step for step in answer]

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.saver, self.config["configurable"]["thread_id"])

    async def run(self, given: Any = ASKED) -> dict[str, Any]:
        async with asyncio.timeout(20):
            return dict(await self.graph.ainvoke(given, self.config))

    def texts(self, state: dict[str, Any]) -> list[tuple[str, str]]:
        return [(message.type, message.text) for message in state["messages"]]


def posts(request: dict[str, Any]) -> Callable[[Story], Any]:
    """A step of a script at which the host posts a request."""

    async def step(self: Story) -> None:
        await self.ledger.aappend(request)

    step.on_story = True  # type: ignore[attr-defined]
    return step


STEER = {"kind": "steer", "messages": "Shorter."}
HALT = {"kind": "halt", "reason": "Enough."}


async def test_a_seal_hook_sees_the_committed_partial_and_adds_to_the_conversation() -> None:
    told: list[BoundaryInput] = []

    async def hook(given: BoundaryInput) -> BoundaryOutput:
        told.append(given)
        return BoundaryOutput(messages=["Mind the budget."], additional_context="It is late.")

    story = Story([["Once", posts(STEER), ENDLESS], ["Fine."]], boundary_hooks=[hook])
    state = await story.run()

    assert story.texts(state) == [
        ("human", "Tell me a story."),
        ("ai", state["messages"][1].text),
        ("human", "Shorter."),
        ("human", "Mind the budget."),
        ("human", "It is late."),
        ("ai", "Fine."),
    ]
    (given,) = told
    assert given.kind == "seal"
    assert given.sealed == state["messages"][1]
    assert [message.text for message in given.messages] == ["Tell me a story.", state["messages"][1].text]
    assert [(request.kind, request.messages[0]["content"]) for request in given.requests] == [
        ("steer", "Shorter.")
    ]
    assert (given.node, given.seals_used, given.halt_reason) == ("model", 1, None)
    assert given.thread_id == story.config["configurable"]["thread_id"]
    hooked = state["messages"][3]
    assert hooked.additional_kwargs["source"] == "hook"
    assert "hook" in hooked.additional_kwargs["hook"]


async def test_a_hook_is_asked_only_where_it_is_registered() -> None:
    moments: list[tuple[str, str]] = []

    def watcher(name: str) -> Callable[[BoundaryInput], None]:
        def hook(given: BoundaryInput) -> None:
            moments.append((name, given.kind))

        return hook

    story = Story(
        [calls("look_up", '{"word": "sea"}'), ["So", posts(STEER), ENDLESS], ["Done."]],
        tools=[look_up],
        boundary_hooks=[
            watcher("plain"),
            BoundaryHook(watcher("tools"), at={"tools"}),
            BoundaryHook(watcher("all"), at=frozenset({"seal", "tools", "end"})),
            BoundaryHook(watcher("end"), at="end"),  # type: ignore[arg-type]
        ],
    )
    state = await story.run()

    assert state["messages"][-1].text == "Done."
    assert moments == [
        ("tools", "tools"),
        ("all", "tools"),
        ("plain", "seal"),
        ("all", "seal"),
        ("all", "end"),
        ("end", "end"),
    ]


async def test_a_hook_at_the_end_may_have_the_model_go_on() -> None:
    said = iter([BoundaryOutput(messages=["And the moral?"]), None])
    story = Story(
        [["The end."], ["Be kind."]],
        boundary_hooks=[BoundaryHook(lambda _: next(said), at=frozenset({"end"}))],
    )
    state = await story.run()

    assert [text for _, text in story.texts(state)] == [
        "Tell me a story.",
        "The end.",
        "And the moral?",
        "Be kind.",
    ]


async def test_a_hook_at_the_end_is_told_the_halt_reason() -> None:
    told: list[str | None] = []

    def hook(given: BoundaryInput) -> BoundaryOutput:
        told.append(given.halt_reason)
        return BoundaryOutput(messages=["never said"])

    story = Story(
        [["Once", posts(HALT), ENDLESS]], boundary_hooks=[BoundaryHook(hook, at=frozenset({"end"}))]
    )
    state = await story.run()

    assert told == ["Enough."]
    assert len(state["messages"]) == 2
    assert state["preemption"]["halt"]["reason"] == "Enough."


@pytest.mark.parametrize("stop_reason", ["Policy.", None])
async def test_preventing_continuation_keeps_what_was_sealed_and_injected(stop_reason: str | None) -> None:
    def gatekeeper(given: BoundaryInput) -> BoundaryOutput:
        return BoundaryOutput(messages=["Stopped."], prevent_continuation=True, stop_reason=stop_reason)

    story = Story([["Once", posts(STEER), ENDLESS]], boundary_hooks=[gatekeeper])
    state = await story.run()

    assert [text for _, text in story.texts(state)][2:] == ["Shorter.", "Stopped."]
    reason = state["preemption"]["halt"]["reason"]
    assert reason == "Policy." if stop_reason else reason.startswith("prevented by ")
    assert (await story.graph.aget_state(story.config)).next == ()
    assert len(story.model.calls) == 1


async def test_what_is_empty_does_not_count() -> None:
    """A seal after which nothing is left to say halts as incomplete; blank messages are nothing."""

    def blank(given: BoundaryInput) -> BoundaryOutput:
        return BoundaryOutput(
            messages=["", "  \n", HumanMessage([{"type": "text", "text": " "}])], additional_context=" "
        )

    story = Story([["Once", ENDLESS]], boundary_hooks=[blank], should_preempt=lambda: True)
    state = await story.run()

    assert len(state["messages"]) == 2
    assert state["preemption"]["halt"]["reason"] == "preempt_incomplete"
    assert state["preemption"]["stats"] == {"seals": 1, "restarts": 0, "empty_boundaries": 1}


async def test_a_failing_or_late_hook_is_named_in_the_log_and_costs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails(given: BoundaryInput) -> None:
        raise LookupError("no such policy")

    async def late(given: BoundaryInput) -> None:
        await asyncio.Event().wait()

    def wrong(given: BoundaryInput) -> Any:
        return "not a BoundaryOutput"

    def garbled(given: BoundaryInput) -> BoundaryOutput:
        return BoundaryOutput(messages=[{"no": "message"}])

    story = Story(
        [["Once", posts(STEER), ENDLESS], ["Fine."]],
        boundary_hooks=[fails, late, wrong, garbled],
        hook_timeout=0.5,
    )
    with caplog.at_level(logging.WARNING, logger="midstream"):
        state = await story.run()

    assert [text for _, text in story.texts(state)][2:] == ["Shorter.", "Fine."]
    for name in ("fails failed", "late took more than 0.5 s", "wrong failed", "garbled failed"):
        assert name in caplog.text


async def test_cancelling_the_run_cancels_the_hook() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def hook(given: BoundaryInput) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    story = Story([["Once", posts(STEER), ENDLESS], ["Fine."]], boundary_hooks=[hook])
    run = asyncio.create_task(story.run())
    async with asyncio.timeout(10):
        await started.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await ended.wait()

    saved = await story.graph.aget_state(story.config)
    assert [message.type for message in saved.values["messages"]] == ["human", "ai"]
    # The next run goes on from there, and the request that the seal was made for is applied once.
    story.model.answers[1:] = [["Fine."]]
    ended.clear()
    retried = asyncio.create_task(story.run(None))
    async with asyncio.timeout(10):
        await started.wait()
        retried.cancel()
        with pytest.raises(asyncio.CancelledError):
            await retried


async def test_an_interrupt_in_a_hook_pauses_the_run_and_resumes_it() -> None:
    def ask(given: BoundaryInput) -> BoundaryOutput:
        return BoundaryOutput(messages=[interrupt("What now?")])

    story = Story([["Once", posts(STEER), ENDLESS], ["Fine."]], boundary_hooks=[ask])
    paused = await story.run()
    assert [each.value for each in paused["__interrupt__"]] == ["What now?"]
    assert next(text for _, text in story.texts(paused)) == "Tell me a story."

    state = await story.run(Command(resume="Rhyme."))
    assert [text for _, text in story.texts(state)][2:] == ["Shorter.", "Rhyme.", "Fine."]


def test_hooks_of_both_colours_serve_a_sync_graph(caplog: pytest.LogCaptureFixture) -> None:
    """They run on a thread of their own there, so that a late one can be left behind."""
    threads: list[str] = []
    gate = threading.Event()

    async def coloured(given: BoundaryInput) -> BoundaryOutput:
        threads.append(threading.current_thread().name)
        return BoundaryOutput(messages=["From async."])

    def plain(given: BoundaryInput) -> BoundaryOutput:
        return BoundaryOutput(messages=["From sync."])

    def late(given: BoundaryInput) -> BoundaryOutput:
        gate.wait(10)
        return BoundaryOutput(messages=["Too late."])

    saver, thread_id = InMemorySaver(), str(uuid.uuid4())
    ledger = Ledger(saver, thread_id)
    model = FakeChatModel(answers=[["Once", lambda: ledger.append(STEER), ENDLESS], ["Fine."]])
    hooks: list[Any] = [coloured, plain, late]
    builder = StateGraph(MidstreamState)
    builder.add_node("model", ModelNode(model, preemption=Preemption(boundary_hooks=hooks, hook_timeout=1.0)))
    builder.add_edge(START, "model")
    config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
    state = builder.compile(checkpointer=saver).invoke(ASKED, config)
    gate.set()

    assert [message.text for message in state["messages"]][2:] == [
        "Shorter.",
        "From async.",
        "From sync.",
        "Fine.",
    ]
    assert threads[0].startswith("midstream-hook")
    assert "late took more than 1.0 s" in caplog.text


async def test_should_preempt_counts_only_with_a_hook_that_can_fire() -> None:
    polled: list[int] = []

    def poll() -> bool:
        polled.append(1)
        return True

    alone = Story([["Once upon", " a time"]], should_preempt=poll)
    assert (await alone.run())["messages"][-1].text == "Once upon a time"
    elsewhere = Story(
        [["Once upon", " a time"]],
        should_preempt=poll,
        boundary_hooks=[BoundaryHook(lambda _: None, at=frozenset({"tools"}))],
    )
    assert (await elsewhere.run())["messages"][-1].text == "Once upon a time"
    assert polled == []


async def test_should_preempt_is_polled_once_a_chunk_and_stays_in_force_until_it_can_be_honoured() -> None:
    polled: list[int] = []

    def poll() -> bool:
        polled.append(1)
        return len(polled) > 1 and len(seen) == 0

    seen: list[BoundaryInput] = []

    def hook(given: BoundaryInput) -> BoundaryOutput:
        seen.append(given)
        return BoundaryOutput(messages=["Go on."])

    story = Story([["  ", "\n", " ", "Once", ENDLESS], ["Fine."]], should_preempt=poll, boundary_hooks=[hook])
    state = await story.run()

    assert [text for _, text in story.texts(state)][1:] == ["  \n Once", "Go on.", "Fine."]
    assert len(polled) == 5  # four chunks of the first answer, one of the second
    assert story.model.calls[0].produced == 4


async def test_should_preempt_that_raises_is_disarmed_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    polled: list[int] = []

    def poll() -> bool:
        polled.append(1)
        raise RuntimeError("no pulse")

    story = Story(
        [["Once", " upon", " a time"]], should_preempt=poll, boundary_hooks=[lambda _: BoundaryOutput()]
    )
    state = await story.run()

    assert state["messages"][-1].text == "Once upon a time"
    assert len(polled) == 1
    assert caplog.text.count("should_preempt failed") == 1


async def fails(given: Any) -> Any:
    raise AssertionError


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"max_seals": -1}, "max_seals"),
        ({"max_seals": True}, "max_seals"),
        ({"max_seals": 2.0}, "max_seals"),
        ({"max_seals": "8"}, "max_seals"),
        ({"poll_interval": 0}, "poll_interval"),
        ({"restart_grace": -1}, "restart_grace"),
        ({"hook_timeout": None}, "hook_timeout"),
        ({"should_preempt": 1}, "should_preempt"),
        ({"boundary_hooks": ["ask"]}, "boundary hook"),
        ({"enabled": "no"}, "enabled must be True or False"),
        ({"restart_grace": float("nan")}, "restart_grace must be a finite number"),
        ({"poll_interval": float("inf")}, "poll_interval must be a finite number"),
        ({"hook_timeout": float("nan")}, "hook_timeout must be a finite number"),
        ({"hook_timeout": 1e300}, "hook_timeout must be a finite number"),
        ({"restart_grace": True}, "restart_grace"),
        ({"boundary_hooks": fails}, r"boundary_hooks must be a list, such as \[fails\]"),
        ({"boundary_hooks": BoundaryHook(fails)}, r"boundary_hooks must be a list, such as \[hook\]"),
        ({"boundary_hooks": "fails"}, "boundary_hooks must be a list"),
        ({"boundary_hooks": None}, "boundary_hooks must be a list"),
        ({"should_preempt": fails}, "should_preempt must be a plain function"),
        ({"token_counter": fails}, "token_counter must be a plain function"),
        ({"token_counter": None}, "token_counter must be callable"),
    ],
)
def test_an_option_that_cannot_work_is_refused_at_once(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        Preemption(**options)


@pytest.mark.parametrize("at", [{"seel"}, frozenset(), "se", 5, None, [["seal"]], ("seal", 5)], ids=repr)
def test_a_hook_is_registered_for_boundaries_that_exist(at: Any) -> None:
    with pytest.raises(ConfigurationError, match="'seal', 'tools' and 'end'"):
        BoundaryHook(lambda _: None, at=at)


async def test_a_message_of_a_hook_never_takes_the_place_of_another() -> None:
    """The reducer replaces a message whose id is there already, so a hook's gets a new one."""

    def hook(given: BoundaryInput) -> BoundaryOutput:
        return BoundaryOutput(messages=[HumanMessage("Replace?", id="h1")])

    story = Story([["Once", posts(STEER), ENDLESS], ["Fine."]], boundary_hooks=[hook])
    state = await story.run()

    assert next(text for _, text in story.texts(state)) == "Tell me a story."
    assert [text for _, text in story.texts(state)][2:] == ["Shorter.", "Replace?", "Fine."]
    assert isinstance(state["messages"][-1], AIMessage)


async def test_what_a_hook_says_is_no_new_human_input() -> None:
    """A run that resumes after it goes on with the same turn: its budget is not given anew."""

    @tool
    def confirm() -> str:
        """Asks a person."""
        return str(interrupt("Sure?"))

    def hook(given: BoundaryInput) -> BoundaryOutput:
        return BoundaryOutput(messages="Mind the budget.")

    story = Story(
        [
            ["Once", posts(STEER), ENDLESS],
            calls("confirm"),
            ["Then", posts({**STEER, "messages": "Even shorter."}), " more", " and", " more."],
            ["Fine."],
        ],
        tools=[confirm],
        boundary_hooks=[hook],
        max_seals=1,
    )
    await story.run()
    state = await story.run(Command(resume="yes"))

    assert state["preemption"]["stats"]["seals"] == 1
    assert len(state["preemption"]["turn"]["runs"]) == 2
    texts = [text for _, text in story.texts(state)]
    assert texts[2:4] == ["Shorter.", "Mind the budget."]
    assert texts[-3:] == ["Then more and more.", "Even shorter.", "Fine."]


async def test_an_answer_to_a_hook_reaches_it_also_after_a_hook_has_spoken() -> None:
    def hook(given: BoundaryInput) -> BoundaryOutput:
        if given.seals_used == 1:
            return BoundaryOutput(additional_context="It is late.")
        return BoundaryOutput(messages=[str(interrupt("What now?"))])

    story = Story(
        [
            ["Once", posts(STEER), ENDLESS],
            ["Twice", posts({**STEER, "messages": "Again."}), ENDLESS],
            ["Fine."],
        ],
        boundary_hooks=[hook],
    )
    await story.run()
    state = await story.run(Command(resume="Rhyme."))

    assert [text for _, text in story.texts(state)][-3:] == ["Again.", "Rhyme.", "Fine."]
