"""Random batches, answers and restarts: nothing happens twice, and the thread can always go on."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from langchain_core.tools import BaseTool, tool
from langgraph.types import Command, Interrupt

from midstream import ToolNode
from support.examples import examples
from support.tool_batches import (
    BROWSER,
    DURABILITIES,
    Conversation,
    Effects,
    agent_of,
    any_saver,
    good_answer,
    graph_of,
    message,
    tools_of,
)

KINDS = ("ask", "pick", "send", "delete", "note", "browse", "research", "errand", "unknown")
ARGUMENT = {"ask": "topic", "pick": "topic", "send": "to", "delete": "path", "note": "text", "browse": "url"}


def call(kind: str, index: int) -> tuple[str, dict[str, Any]]:
    return kind, {ARGUMENT.get(kind, "topic"): f"n{index}"}


def batches(kinds: Sequence[str], size: int) -> st.SearchStrategy[list[tuple[str, dict[str, Any]]]]:
    return st.lists(st.sampled_from(kinds), min_size=1, max_size=size).map(
        lambda kinds: [call(kind, index) for index, kind in enumerate(kinds)]
    )


rules = st.fixed_dictionaries(
    {
        "interrupt_mode": st.sampled_from(["batched", "per_call"]),
        "interrupt_on": st.sampled_from(
            [
                {"delete": True},
                {"delete": True, "ask": True, "browse": {"allowed_decisions": ["approve", "reject"]}},
                {"delete": {"allowed_decisions": ["approve", "edit"], "when": lambda _: True}, "send": True},
            ]
        ),
    }
)

STALE = {"type": "approve"}
"""What is given to a question that was answered before: it must let nothing go on."""

NONSENSE: list[Any] = [None, "yes", 7, [], {}, {"type": "zap"}, {"decisions": []}, {"colour": "green"}]


def is_free(value: Any) -> bool:
    """Whether anything at all is an answer to this."""
    return isinstance(value, dict) and "ask" in value


def decision(data: st.DataObject, allowed: list[str]) -> dict[str, Any]:
    """A valid decision; the edits keep the call as it is."""
    kind = data.draw(st.sampled_from([one for one in allowed if one != "edit"]))
    return {"type": kind, "message": "because"} if kind == "respond" else {"type": kind}


def answer(data: st.DataObject, value: Any) -> Any:
    """A valid answer, of any kind that is allowed."""
    if "action_requests" in value:
        return {"decisions": [decision(data, each["allowed_decisions"]) for each in value["review_configs"]]}
    return good_answer(value)


def errand_of(effects: Effects) -> BaseTool:
    """A tool in which another agent makes two calls, one after the other, each of which needs approval."""
    gates: Any = {"interrupt_on": {"send": True, "delete": True}, "interrupt_mode": "per_call"}
    # Made here: LangChain silences warnings as it makes a tool, which is no work for several threads at once.
    node = ToolNode(tools_of(effects), **gates)

    @tool
    def errand(topic: str) -> str:
        """Let another agent send and delete."""
        calls: list[tuple[str, dict[str, Any]]] = [("send", {"to": topic}), ("delete", {"path": topic})]
        agent_of(node, calls).invoke({"messages": []})
        effects.add(f"errand {topic}")
        return "done"

    return errand


def lines_of(value: Any) -> list[str]:
    """What would happen to the world if these calls were approved."""
    requests = value.get("action_requests") or [value]
    return [f"{each['name']} {next(iter(each['args'].values()))}" for each in requests]


def is_approval(value: Any) -> bool:
    return "action_requests" in value or value.get("type") == "tool_approval"


class Story:
    """One thread from the model's message to the last result."""

    kinds: Sequence[str] = KINDS
    size = 6
    ways: Sequence[str] = ("by id", "bare", "with a stale id", "go on")

    def __init__(self, data: st.DataObject, folder: Path, *, asynchronous: bool) -> None:
        self.data = data
        self.folder = folder
        self.effects = Effects(folder / "effects")
        self.calls = data.draw(batches(self.kinds, self.size), label="calls")
        self.rules: dict[str, Any] = data.draw(rules, label="rules")
        durability = data.draw(st.sampled_from(DURABILITIES), label="durability")
        self.talk = Conversation(graph_of(self.node(), None), asynchronous, durability)
        self.answered: dict[str, Any] = {}
        self.asked_about = {
            f"{name} {next(iter(arguments.values()))}"
            for kind, arguments in self.calls
            for name in {"errand": ("send", "delete"), "delete": ("delete",)}.get(kind, ())
        }
        """What may not happen without an approval."""

        self.let_go: set[str] = set()
        """What was approved: by an answer that was given to the question about it."""

        self.told: dict[str, list[str]] = {}
        """What was answered to each question without a type."""

    def node(self) -> ToolNode:
        return ToolNode(
            [*tools_of(self.effects), errand_of(self.effects)],
            interrupting_tools=["ask", "pick", "research", "errand"],
            host_tools=[BROWSER],
            **self.rules,
        )

    @property
    def pauses(self) -> list[Interrupt]:
        """A question of an agent inside a tool is shown twice, under one id."""
        return list({pause.id: pause for pause in self.talk.pauses}.values())

    async def tell(self) -> None:
        steps: list[Any] = [message(*self.calls)]
        while steps:
            async with any_saver("sqlite", self.folder, str, asynchronous=self.talk.asynchronous) as saver:
                # As a new process would find it.
                self.talk.graph = graph_of(self.node(), saver)
                same_process = self.data.draw(st.integers(1, 4), label="steps until a restart")
                for _ in range(same_process):
                    await self.talk.say(steps.pop())
                    self.check()
                    if not self.talk.pauses:
                        break
                    steps.append(self.next_step())
        self.check_end()

    def next_step(self) -> Any:
        pauses = self.pauses
        few = len(self.answered) > 12  # then it comes to an end
        chosen = pauses if few else self.data.draw(subsets(pauses), label="asked")
        answers = {pause.id: self.one_answer(pause, valid=few) for pause in chosen}
        self.answered |= {f"{len(self.answered)} {key}": key for key in answers}

        how = "by id" if few else self.data.draw(st.sampled_from(self.ways))
        event(how)
        if how == "bare" and len(pauses) == 1 and (bare := next(iter(answers.values()))) is not None:
            self.note(pauses, answers)
            return Command(resume=bare)
        if how == "go on":
            return None
        self.note(pauses, answers)
        if how == "with a stale id":
            old = [key for key in self.answered.values() if key not in {pause.id for pause in pauses}]
            return Command(resume={**dict.fromkeys(old, STALE), **answers})
        return Command(resume=answers)

    def note(self, pauses: list[Interrupt], answers: dict[str, Any]) -> None:
        """Remembers what the answers that are really sent let go on."""
        for pause in pauses:
            if pause.id not in answers:
                continue
            given = answers[pause.id]
            if is_free(pause.value):
                self.told.setdefault(pause.value["ask"], []).append(str(given))
            elif is_approval(pause.value) and isinstance(given, dict):
                decisions = given.get("decisions", [given])
                if len(decisions) == len(lines_of(pause.value)):
                    approved = [one.get("type") == "approve" for one in decisions]
                    self.let_go |= {
                        line for line, yes in zip(lines_of(pause.value), approved, strict=True) if yes
                    }

    def one_answer(self, pause: Interrupt, *, valid: bool) -> Any:
        if not valid and not is_free(pause.value) and self.data.draw(st.booleans(), label="nonsense"):
            return self.data.draw(st.sampled_from(NONSENSE))
        if is_free(pause.value):
            return f"answer {len(self.answered)} to {pause.value['ask']}"
        return answer(self.data, pause.value)

    def check(self) -> None:
        counts = self.effects.counts()
        works = counts.pop("research work", 0)
        assert works <= sum(kind == "research" for kind, _ in self.calls)
        assert not [line for line, count in counts.items() if count > 1], counts
        for pause in self.pauses:
            if is_approval(pause.value):
                self.asked_about |= set(lines_of(pause.value))
        assert self.asked_about & counts.keys() <= self.let_go, "something ran that nobody approved"

    def check_end(self) -> None:
        results = self.talk.results
        assert [one.tool_call_id for one in results] == [f"call_{i}" for i in range(len(self.calls))]
        done = self.effects.counts()
        for (kind, arguments), result in zip(self.calls, results, strict=True):
            line = f"{kind} {next(iter(arguments.values()))}"
            if kind in ("browse", "unknown"):
                continue
            skipped = "lc_source" in result.additional_kwargs
            if kind == "ask" and not skipped:
                topic = arguments["topic"]
                assert result.text in {f"{topic}: {told}" for told in self.told[topic]}, self.told
            assert done.get(line, 0) == (0 if skipped else 1), (line, result)


class BareStory(Story):
    """Few questions, one after the other, each approved without an id and then left for a run."""

    kinds = ("errand", "ask")
    size = 2
    ways = ("bare", "go on")

    def one_answer(self, pause: Interrupt, *, valid: bool) -> Any:
        return super().one_answer(pause, valid=valid) if is_free(pause.value) else good_answer(pause.value)


def subsets(pauses: list[Interrupt]) -> st.SearchStrategy[list[Interrupt]]:
    return st.lists(st.sampled_from(pauses), min_size=1, unique_by=lambda pause: pause.id)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_nothing_happens_twice_and_the_thread_can_always_go_on(
    asynchronous: bool, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(Story(data, Path(folder), asynchronous=asynchronous).tell())


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_answer_without_an_id_reaches_no_other_question(asynchronous: bool, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(BareStory(data, Path(folder), asynchronous=asynchronous).tell())
