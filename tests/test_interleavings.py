"""Whatever comes in whatever order: each request ends once, and no word that was shown is lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Coroutine, Generator
from threading import Lock
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from fakes import CountingHandler, FakeChatModel, InlineHandler
from midstream import Ledger, MidstreamState, ModelNode, NotPendingError, Preemption
from midstream.ledger import View
from support.examples import examples

MAX_SEALS = 3
MODES = ["messages", "custom"]

chunks = st.one_of(
    st.sampled_from(["word ", " ", "\n", "", "more"]),
    st.just(("reasoning", "hm")),
)
operations = st.one_of(
    st.tuples(st.just("steer"), st.sampled_from([None, "a", "b"])),
    st.tuples(st.just("halt"), st.sampled_from([None, "a", "b"])),
    st.tuples(st.just("withdraw"), st.integers(0, 5)),
    st.tuples(st.just("naps"), st.integers(1, 6)),
)
scripts = st.lists(st.one_of(chunks, operations), max_size=12)


def asked(text: str) -> Any:
    return {"messages": [HumanMessage(text, id=text)]}


class Conversation:
    """Two agents on one thread, a host that posts as the scripts say, and all that is seen of it."""

    def __init__(
        self,
        script_a: list[Any],
        script_b: list[Any],
        restart: bool = False,
        saver: BaseCheckpointSaver[Any] | None = None,
    ) -> None:
        self.saver = saver if saver is not None else InMemorySaver()
        self.thread_id = str(uuid.uuid4())
        self.ledger = Ledger(self.saver, self.thread_id)
        self.handler = CountingHandler()
        self.accepted: list[dict[str, Any]] = []
        self.withdrawn: list[str] = []
        self.streamed: dict[str, str] = defaultdict(str)
        self.at_seal: dict[str, str] = {}
        builder: Any = StateGraph(MidstreamState)
        options = Preemption(max_seals=MAX_SEALS, restart_grace=0.0 if restart else None, poll_interval=0.01)
        for name, script in (("a", script_a), ("b", script_b)):
            model = FakeChatModel(answers=[[*map(self._step, script), "The end."]])
            builder.add_node(name, ModelNode(model, preemption=options))
            builder.add_edge(START, name)
            builder.add_edge(name, END)
        self.graph = builder.compile(checkpointer=self.saver)

    @property
    def config(self) -> RunnableConfig:
        return {"configurable": {"thread_id": self.thread_id}, "callbacks": [self.handler]}

    def _step(self, step: Any) -> Any:
        if isinstance(step, str):
            return step
        if step[0] == "reasoning":
            return AIMessageChunk(content="", additional_kwargs={"reasoning_content": step[1]})
        return lambda: self._perform(*step)

    async def _perform(self, what: str, which: Any) -> None:
        if what == "naps":
            for _ in range(which):
                await asyncio.sleep(0)
        elif (request := self._request(what, which)) is not None:
            with contextlib.suppress(NotPendingError):
                await self.ledger.aappend(request)
                self._accept(request)

    def _request(self, what: str, which: Any) -> dict[str, Any] | None:
        if what == "withdraw":
            known = which < len(self.accepted)
            return {"kind": "withdraw", "id": self.accepted[which]["id"]} if known else None
        name = str(uuid.uuid4())
        said = {"messages": f"Steer {name}"} if what == "steer" else {"reason": "Enough."}
        return {"kind": what, "id": name, "node": which, **said}

    def _accept(self, request: dict[str, Any]) -> None:
        if request["kind"] == "withdraw":
            self.withdrawn.append(request["id"])
        else:
            self.accepted.append(request)

    async def run(self, text: str) -> dict[str, Any]:
        async for mode, event in self.graph.astream(asked(text), self.config, stream_mode=MODES):
            self._see(mode, event)
        return dict((await self.graph.aget_state(self.config)).values)

    def _see(self, mode: str, event: Any) -> None:
        if mode == "messages":
            self.streamed[event[0].id] += event[0].text
        elif event["event"] == "sealed":
            self.at_seal[event["message_id"]] = self.streamed[event["message_id"]]

    async def play(self) -> None:
        """Runs the scripts, and until nothing waits any more; then looks at all that was left."""
        first = await self.run("First.")
        turn = first["preemption"]["turn"]
        assert len(turn["seals"]) + len(turn["restarts"]) <= MAX_SEALS
        # What is left over waits for the next runs: a halt lets only what came before it be said.
        state = first
        for n in range(len(self.accepted) + 1):
            state = await self.run(f"Next {n}.")
        check(self, state, await self.ledger.aview())


class SyncConversation(Conversation):
    """The same without an event loop: each agent has a thread of its own, and they act as threads do."""

    def __init__(self, script_a: list[Any], script_b: list[Any]) -> None:
        super().__init__(script_a, script_b)
        self._lock = Lock()

    def _step(self, step: Any) -> Any:
        plain = isinstance(step, str) or step[0] == "reasoning"
        return super()._step(step) if plain else lambda: self._act(*step)

    def _act(self, what: str, which: Any) -> None:
        if what == "naps":
            time.sleep(0)
            return
        with self._lock, contextlib.suppress(NotPendingError):
            if (request := self._request(what, which)) is not None:
                self.ledger.append(request)
                self._accept(request)

    async def run(self, text: str) -> dict[str, Any]:
        for mode, event in self.graph.stream(asked(text), self.config, stream_mode=MODES):
            self._see(mode, event)
        return dict(self.graph.get_state(self.config).values)


@pytest.mark.parametrize("restart", [False, True], ids=["no restarts", "restarts at once"])
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script_a=scripts, script_b=scripts)
def test_every_request_ends_once_and_every_word_that_was_shown_is_kept(
    script_a: list[Any], script_b: list[Any], restart: bool
) -> None:
    async def story() -> None:
        async with asyncio.timeout(30):
            await Conversation(script_a, script_b, restart).play()

    asyncio.run(story())


@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script_a=scripts, script_b=scripts)
def test_on_sqlite_too_every_request_ends_once(script_a: list[Any], script_b: list[Any]) -> None:
    async def story() -> None:
        async with asyncio.timeout(30), AsyncSqliteSaver.from_conn_string(":memory:") as saver:
            await Conversation(script_a, script_b, saver=saver).play()

    asyncio.run(story())


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script_a=scripts, script_b=scripts)
def test_without_an_event_loop_too_every_request_ends_once(script_a: list[Any], script_b: list[Any]) -> None:
    asyncio.run(SyncConversation(script_a, script_b).play())


def check(conversation: Conversation, state: dict[str, Any], view: View) -> None:
    handled = state["preemption"].get("handled", {})
    said = Counter(message.text for message in state["messages"] if message.type == "human")
    by_id = {message.id: message for message in state["messages"]}

    assert view.pending(handled) == []
    for request in conversation.accepted:
        is_handled, is_withdrawn = request["id"] in handled, request["id"] in view.withdrawn
        assert is_handled != is_withdrawn
        assert is_withdrawn == (request["id"] in conversation.withdrawn)
        if request["kind"] == "steer":
            assert said[request["messages"]] == int(is_handled)

    for message_id, text in conversation.at_seal.items():
        assert by_id[message_id].text == text
    assert len(conversation.at_seal) == state["preemption"]["stats"]["seals"]
    assert conversation.handler.starts == len(conversation.handler.ends)
    assert conversation.handler.errors == []


async def test_a_run_that_is_cancelled_at_any_await_can_be_gone_on_with() -> None:
    """A story with a seal, a boundary and two answers is cancelled at its n-th await, for every n."""
    n, is_whole = 0, False
    left_open: list[int] = []
    while not is_whole:
        n += 1
        assert n < 1000
        is_whole = await cancelled_at(n, left_open)
    assert n > 40
    assert sum(left_open) <= 2 * 2, "two moments of each of its two calls are core's"


class Awaits:
    """Counts how often a run, or a task that it started, gives way; cancels it at the n-th time.

    Turns of the loop would not do: while a thread works for the run, they are as many as there is time.
    """

    def __init__(self, n: int) -> None:
        self.left = n
        self.run: asyncio.Task[Any] | None = None

    def start(self, run: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        asyncio.get_running_loop().set_task_factory(self._task)
        self.run = asyncio.get_running_loop().create_task(run)
        return self.run

    def _task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(_Counted(work, self), loop=loop, **options)

    def gave_way(self) -> None:
        self.left -= 1
        if self.left == 0 and self.run is not None:
            asyncio.get_running_loop().call_soon(self.run.cancel)


class _Counted(Coroutine[Any, Any, Any]):
    def __init__(self, work: Coroutine[Any, Any, Any], awaits: Awaits) -> None:
        self._work, self._awaits = work, awaits

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        told = self._work.send(value)
        self._awaits.gave_way()
        return told

    def throw(self, *error: Any) -> Any:
        told = self._work.throw(*error)
        self._awaits.gave_way()
        return told

    def close(self) -> None:
        self._work.close()


async def cancelled_at(n: int, left_open: list[int]) -> bool:
    """Cancels the story at its n-th await and goes on; returns whether it was over before that."""
    saver, thread_id, handler = InMemorySaver(), str(uuid.uuid4()), InlineHandler()
    ledger = Ledger(saver, thread_id)
    request = {"kind": "steer", "id": str(uuid.uuid4()), "messages": "Shorter."}

    async def post() -> None:
        await ledger.aappend(request)

    async def nap() -> None:
        await asyncio.sleep(0)

    model = FakeChatModel(answers=[["Once", post, *[nap, " upon"] * 20], [*[nap] * 20, "Fine."]])
    builder: Any = StateGraph(MidstreamState)
    builder.add_node("model", ModelNode(model, preemption=Preemption(poll_interval=0.01)))
    builder.add_edge(START, "model")
    graph = builder.compile(checkpointer=saver)
    config: RunnableConfig = {"configurable": {"thread_id": thread_id}, "callbacks": [handler]}

    given = {"messages": [HumanMessage("Tell.", id="h1")]}
    awaits = Awaits(n)
    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.timeout(10):
            await awaits.start(graph.ainvoke(given, config, durability="sync"))
    asyncio.get_running_loop().set_task_factory(None)
    is_whole = awaits.left > 0
    assert handler.left_open in (0, 1)
    left_open.append(handler.left_open)

    model.answers = [["Fine."]] * (len(model.calls) + 10)
    if not (await graph.aget_state(config)).values:
        return is_whole  # the very first checkpoint was not written yet
    async with asyncio.timeout(10):
        state = await graph.ainvoke(None, config)
        if state is None or state["messages"][-1].type != "ai":
            state = await graph.ainvoke({"messages": [HumanMessage("And?", id="h2")]}, config)
    texts = [message.text for message in state["messages"]]
    was_posted = bool((await ledger.aview()).entries)
    assert texts[0] == "Tell."
    assert texts.count("Shorter.") == int(was_posted)
    assert texts[-1] in ("Fine.", "Once" + " upon" * 20)
    assert (await ledger.aview()).pending(state["preemption"].get("handled", {})) == []
    return is_whole
