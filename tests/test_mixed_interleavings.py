"""Hooks, tools, restarts and questions in one thread, in whatever order and cut off wherever."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import tools_condition
from langgraph.types import Command, interrupt

from fakes import Answer, Call, FakeChatModel, InlineHandler, calls
from midstream import (
    BoundaryHook,
    BoundaryInput,
    BoundaryOutput,
    Ledger,
    MidstreamState,
    ModelNode,
    NotPendingError,
    Preemption,
    ToolNode,
)
from support.examples import examples

MAX_SEALS = 2
MAX_REQUESTS = 8
ZERO = {"seals": 0, "restarts": 0, "empty_boundaries": 0}


WORKED: list[str] = []
"""What the tool has done, by names that are told only once."""


@tool
async def work(name: str) -> str:
    """Works."""
    await asyncio.sleep(0)
    WORKED.append(name)
    return "worked"


@tool
async def ask(name: str) -> str:
    """Asks a person."""
    return str(interrupt(f"May I {name}?"))


async def naps(n: int) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


class Agent:
    """A thread of one agent with hooks and tools; a subclass says what they do."""

    def __init__(self, model: FakeChatModel, **options: Any) -> None:
        self.model = model
        self.saver = InMemorySaver()
        self.thread_id = str(uuid.uuid4())
        self.ledger = Ledger(self.saver, self.thread_id)
        self.handler = InlineHandler()
        self.config: RunnableConfig = {
            "configurable": {"thread_id": self.thread_id},
            "callbacks": [self.handler],
            "recursion_limit": 200,
        }
        hooks = [BoundaryHook(self.hook, at={"seal", "tools", "end"})]
        options = {"poll_interval": 0.01, "max_seals": MAX_SEALS, "boundary_hooks": hooks, **options}
        builder: Any = StateGraph(MidstreamState)
        builder.add_node("model", ModelNode(model, tools=[work, ask], preemption=Preemption(**options)))
        builder.add_node("tools", ToolNode([work, ask], interrupting_tools=["ask"]))
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", tools_condition)
        builder.add_edge("tools", "model")
        self.graph = builder.compile(checkpointer=self.saver)

    async def hook(self, given: BoundaryInput) -> BoundaryOutput | None:
        raise NotImplementedError


# Cut off at every await


class Reader(FakeChatModel):
    """Goes by what is in the thread, so that it does the same after a crash."""

    posts: Any = None

    def _start(self, messages: list[BaseMessage], options: dict[str, Any]) -> tuple[Call, Answer]:
        call, _ = super()._start(messages, options)
        texts = {message.text for message in messages}

        async def nap() -> None:
            await asyncio.sleep(0)

        async def post(text: str) -> None:
            await self.posts(text)

        if "Shorter." not in texts:
            return call, ["Once", lambda: post("Shorter."), *[nap, " upon"] * 8]
        if not any(isinstance(message, ToolMessage) for message in messages):
            return call, calls("ask", '{"name": "go"}')
        if "Again." not in texts:
            return call, [lambda: post("Again."), *[nap] * 8, "Then."]
        return call, [nap, "Fine."]


class CutOff(Agent):
    """One turn with a seal, a question, a restart and a hook at each boundary."""

    def __init__(self) -> None:
        super().__init__(Reader(posts=self.post), restart_grace=0.0)
        self.posted: list[str] = []

    async def post(self, text: str) -> None:
        name = str(uuid.uuid5(uuid.NAMESPACE_OID, text))
        await self.ledger.aappend({"kind": "steer", "id": name, "messages": text})
        self.posted.append(text)

    async def hook(self, given: BoundaryInput) -> BoundaryOutput | None:
        await asyncio.sleep(0)
        return BoundaryOutput(additional_context="It is late.") if given.kind == "seal" else None

    async def drive(self, n: int) -> bool:
        """Goes on until the turn is over, cut off at the n-th turn of the loop; returns whether it was."""
        left, given = n, FIRST
        while True:
            run = asyncio.ensure_future(self.graph.ainvoke(given, self.config, durability="sync"))
            while left and not run.done():
                await asyncio.sleep(0)
                left -= 1
                if not left:
                    run.cancel()
            await asyncio.wait([run], timeout=10)
            if not run.cancelled():
                run.result()
            saved = await self.graph.aget_state(self.config)
            open_questions = [each for each in saved.tasks if each.interrupts and each.result is None]
            if open_questions:
                given = Command(resume={each.interrupts[0].id: "yes" for each in open_questions})
            elif saved.tasks:  # a task that has finished is not `next` any more, but waits for the step's end
                given = None
            elif saved.values:
                return left == 0

    async def check(self) -> None:
        state = (await self.graph.aget_state(self.config)).values
        messages, value = state["messages"], state["preemption"]
        texts = Counter(message.text for message in messages)
        assert messages[0].text == "Tell."
        assert messages[-1].text == "Fine."
        assert [texts[text] for text in ("Tell.", "Shorter.", "Again.")] == [1, 1, 1]
        assert texts["It is late."] == len(value["turn"]["seals"])
        asked = [call["id"] for each in messages if isinstance(each, AIMessage) for call in each.tool_calls]
        assert [each.tool_call_id for each in messages if isinstance(each, ToolMessage)] == asked
        assert self.handler.left_open in (0, 1)
        assert value.get("before", ZERO) == ZERO, "all of it is one turn"
        assert len(value["turn"]["seals"]) + len(value["turn"]["restarts"]) <= MAX_SEALS
        assert await self.ledger.arequests() == []


FIRST: Any = {"messages": [HumanMessage("Tell.", id="h1")]}


async def test_a_turn_with_hooks_tools_and_questions_goes_on_wherever_it_was_cut_off() -> None:
    """At every third turn of the loop: nearly each await is met, and the test is quick."""
    cuts = left_open = 0
    while await (agent := CutOff()).drive(1 + 3 * cuts):
        await agent.check()
        left_open += agent.handler.left_open
        cuts += 1
    await agent.check()
    assert cuts > 30
    assert left_open <= 2 * agent.handler.starts, "two moments of each call are core's"

    state = (await agent.graph.aget_state(agent.config)).values
    assert state["preemption"]["stats"] == {"seals": 1, "restarts": 1, "empty_boundaries": 0}
    assert agent.handler.starts == len(agent.handler.ends)


# In random order

_words = st.sampled_from(["word ", "more ", "words ", " ", "", ("reasoning", "hm")])
_operations = st.one_of(
    st.tuples(st.sampled_from(["steer", "steer", "halt"]), st.integers(0, 8)),
    st.tuples(st.just("withdraw"), st.integers(0, 3)),
    st.tuples(st.just("naps"), st.integers(1, 6)),
)
_ends = st.sampled_from(["The end.", "work", "ask", "work and ask"])
_answers = st.tuples(st.lists(st.one_of(_words, _operations), max_size=8), _ends)
_wishes = st.sampled_from(["nothing", "nothing", "says", "explains", "stops", "asks", "fails"])


class Random(Agent):
    """Answers, hooks and a host as the scripts say; when these are at their end, all is plain."""

    def __init__(self, answers: list[Any], wishes: list[str], restart: bool, durability: Any) -> None:
        self.durability = durability
        self.accepted: list[dict[str, Any]] = []
        self.withdrawn: list[str] = []
        self.wishes = iter(wishes)
        self.streamed: dict[str, str] = defaultdict(str)
        self.at_seal: dict[str, str] = {}
        self.kept: list[str] = []
        self.names: list[str] = []
        script: list[Answer] = [[*map(self.step, steps), *self.end(end)] for steps, end in answers]
        super().__init__(FakeChatModel(answers=script), restart_grace=0.0 if restart else None)

    def step(self, step: Any) -> Any:
        if isinstance(step, str):
            return step
        what, which = step
        if what == "reasoning":
            return AIMessageChunk(content="", additional_kwargs={"reasoning_content": which})
        return lambda: self.perform(what, which)

    def end(self, end: str) -> list[Any]:
        chunks: list[Any] = []
        for index, name in enumerate(["work", "ask"]):
            if name in end:
                self.names.append(str(uuid.uuid4()))
                args = f'{{"name": "{self.names[-1]}"}}'
                for chunk in calls(name, args, call_id=self.names[-1]):
                    chunk.tool_call_chunks[0]["index"] = index
                    chunks.append(chunk)
        return chunks or [end]

    async def perform(self, what: str, which: int) -> None:
        if what == "naps":
            await naps(which)
        elif what == "withdraw":
            if which < len(self.accepted):
                name = self.accepted[which]["id"]
                try:
                    await self.ledger.aappend({"kind": "withdraw", "id": name})
                    self.withdrawn.append(name)
                except NotPendingError:
                    return
        elif len(self.accepted) < MAX_REQUESTS:
            said = {"messages": f"Steer {len(self.accepted)}"} if what == "steer" else {"reason": "Enough."}
            request = {"kind": what, "id": str(uuid.uuid4()), **said}
            await self.ledger.aappend(request)
            self.accepted.append(request)
            await naps(which)  # time to be seen in, or too little

    async def hook(self, given: BoundaryInput) -> BoundaryOutput | None:
        await asyncio.sleep(0)
        match next(self.wishes, "nothing"):
            case "says":
                return BoundaryOutput(messages=["Louder."])
            case "explains":
                return BoundaryOutput(additional_context="It is late.")
            case "stops":
                return BoundaryOutput(prevent_continuation=True, stop_reason="Policy.")
            case "asks":
                return BoundaryOutput(messages=[interrupt("What now?")])
            case "fails":
                raise LookupError("no such policy")
        return None

    async def run(self, given: Any) -> Any:
        """Runs the graph once, and returns what it left."""
        modes = ["messages", "custom", "values"]
        halted_at = None
        async for mode, event in self.graph.astream(
            given, self.config, stream_mode=modes, durability=self.durability
        ):
            if mode == "messages":
                if isinstance(event[0], AIMessageChunk):
                    self.streamed[str(event[0].id)] += event[0].text
            elif mode == "values":
                ids = [message.id for message in event.get("messages", [])]
                assert ids[: len(self.kept)] == self.kept, "what was in the thread stays there, in its order"
                assert len(set(ids)) == len(ids)
                self.kept = ids
            elif event["event"] == "sealed":
                self.at_seal[event["message_id"]] = self.streamed[event["message_id"]]
            elif event["event"] == "halted":
                halted_at = self.handler.starts
        assert halted_at in (None, self.handler.starts), "no model speaks after a halt"
        return await self.graph.aget_state(self.config)

    async def turn(self, text: str) -> None:
        """Runs the graph until nobody is asked anything any more."""
        left = await self.run({"messages": [HumanMessage(text, id=text)]})
        while left.interrupts:
            left = await self.run(Command(resume={each.id: "yes" for each in left.interrupts}))
        turn = left.values["preemption"]["turn"]
        assert len(turn["seals"]) + len(turn["restarts"]) <= MAX_SEALS

    async def check(self) -> None:
        state = (await self.graph.aget_state(self.config)).values
        messages, value = state["messages"], state["preemption"]
        handled, view = value.get("handled", {}), await self.ledger.aview()
        texts = Counter(message.text for message in messages if message.type == "human")

        assert view.pending(handled) == []
        for n, request in enumerate(self.accepted):
            is_handled = request["id"] in handled
            assert is_handled != (request["id"] in view.withdrawn)
            assert is_handled != (request["id"] in self.withdrawn)
            if request["kind"] == "steer":
                assert texts[f"Steer {n}"] == int(is_handled)
        assert {each.id: each.text for each in messages if each.id in self.at_seal} == self.at_seal
        assert len(self.at_seal) == value["stats"]["seals"]
        assert self.handler.starts == len(self.handler.ends)

        results = Counter(each.tool_call_id for each in messages if isinstance(each, ToolMessage))
        asked = [call["id"] for each in messages if isinstance(each, AIMessage) for call in each.tool_calls]
        assert max(results.values(), default=1) == 1
        assert results.keys() == set(asked)
        assert max(Counter(name for name in WORKED if name in self.names).values(), default=1) == 1


@pytest.mark.parametrize("restart", [False, True], ids=["no restarts", "restarts at once"])
@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    answers=st.lists(_answers, min_size=1, max_size=5),
    wishes=st.lists(_wishes, max_size=5),
    durability=st.sampled_from(["sync", "async", "exit"]),
)
def test_whatever_is_asked_meanwhile_each_request_ends_once_and_each_tool_runs_once(
    answers: list[Any], wishes: list[str], durability: str, restart: bool
) -> None:
    async def story() -> None:
        async with asyncio.timeout(30):
            agent = Random(answers, wishes, restart, durability)
            # What is left over waits for the next runs: a halt lets only what came before it be said.
            for n in range(len(answers) + MAX_REQUESTS):
                await agent.turn(f"Question {n}.")
                if len(agent.model.calls) >= len(answers) and not await agent.ledger.arequests():
                    break
            await agent.check()

    asyncio.run(story())
