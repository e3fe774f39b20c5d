"""What the tool node asks, and what it makes of any answer."""

from __future__ import annotations

import re
from operator import add
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from midstream import ConfigurationError, ToolNode
from support.tool_batches import BROWSER, Colour, Conversation, Effects, graph_of, message, tools_of

SEND, DELETE = ("send", {"to": "ann"}), ("delete", {"path": "x"})
ASK, PICK = ("ask", {"topic": "a"}), ("pick", {"topic": "p"})
BROWSE = ("browse", {"url": "u"})

colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path / "effects")


def conversation(effects: Effects, asynchronous: bool = True, **rules: Any) -> Conversation:
    rules = {"interrupting_tools": ["ask", "pick"], "host_tools": [BROWSER], **rules}
    return Conversation(graph_of(ToolNode(tools_of(effects), **rules), InMemorySaver()), asynchronous)


def ids(talk: Conversation) -> list[str]:
    return [pause.id for pause in talk.pauses]


def errors(talk: Conversation) -> list[list[str]]:
    """The fields that each pause complains about."""
    return [[error["path"] for error in value.get("errors", [])] for value in talk.asked]


BAD_DECISIONS = {
    "not an object": ("approve", ""),
    "no type": ({}, "type"),
    "not allowed": ({"type": "respond", "message": "x"}, "type"),
    "another call's": ({"type": "approve", "tool_call_id": "call_9"}, "tool_call_id"),
    "an edit without arguments": (
        {"type": "edit", "edited_action": {"name": "send", "args": {}}},
        "edited_action.args.to",
    ),
    "an edit to another tool": (
        {"type": "edit", "edited_action": {"name": "delete", "args": {"to": "y"}}},
        "edited_action.name",
    ),
}


@colours
@pytest.mark.parametrize(("bad", "path"), BAD_DECISIONS.values(), ids=BAD_DECISIONS)
async def test_an_invalid_decision_is_asked_for_again_and_valid_ones_beside_it_stay(
    bad: Any, path: str, asynchronous: bool, effects: Effects
) -> None:
    allowed = {"allowed_decisions": ["approve", "edit", "reject"]}
    talk = conversation(
        effects,
        asynchronous,
        interrupt_on={"send": allowed, "delete": True},
        interrupt_mode="per_call",
    )
    await talk.say(message(SEND, DELETE, ASK))
    send, delete, ask = ids(talk)

    await talk.answer({send: bad, delete: {"type": "approve"}})
    assert errors(talk) == [[path], []]
    assert [value.get("name") for value in talk.asked] == ["send", None]

    await talk.answer({ask: "yes"})
    assert errors(talk) == [[path]], "the errors outlive an answer to another question"
    assert effects.counts() == {"ask a": 1}

    await talk.answer(
        {ids(talk)[0]: {"type": "edit", "edited_action": {"name": "send", "args": {"to": "b"}}}}
    )
    assert effects.counts() == {"ask a": 1, "send b": 1, "delete x": 1}
    assert [one.tool_call_id for one in talk.results] == ["call_0", "call_1", "call_2"]


@colours
async def test_a_batch_that_is_answered_wrongly_is_asked_about_again_as_a_whole(
    asynchronous: bool, effects: Effects
) -> None:
    talk = conversation(effects, asynchronous, interrupt_on={"send": True, "delete": True})
    approve, reject = {"type": "approve"}, {"type": "reject", "message": "keep it"}
    await talk.say(message(SEND, DELETE))
    before = talk.asked

    for bad, paths in (
        ({"decisions": [approve]}, ["decisions.1"]),
        ({"decisions": [approve, approve, approve]}, ["decisions"]),
        ({"decisions": [approve, {"type": "zap"}]}, ["decisions.1.type"]),
        (["approve"], [""]),
    ):
        await talk.answer({ids(talk)[0]: bad})
        assert errors(talk) == [paths]
        assert [{key: value for key, value in talk.asked[0].items() if key != "errors"}] == before
    assert effects.counts() == {}

    await talk.answer({ids(talk)[0]: {"decisions": [approve, reject]}})
    assert effects.counts() == {"send ann": 1}
    sent, kept = talk.results
    assert (sent.status, kept.status) == ("success", "error")
    assert "keep it" in kept.text


@colours
async def test_a_tools_own_typed_question_comes_again(asynchronous: bool, effects: Effects) -> None:
    talk = conversation(effects, asynchronous)
    await talk.say(message(PICK, ASK, SEND))
    pick, ask = ids(talk)

    await talk.answer({pick: {"colour": "green"}, ask: "yes"})
    assert talk.asked == [{"pick": "p", "errors": [{"path": "colour", "message": "must be 'red' or 'blue'"}]}]
    assert talk.pauses[0].response_schema == Colour.model_json_schema()
    assert effects.counts() == {"ask a": 1}

    await talk.answer({ids(talk)[0]: {"colour": "blue"}})
    assert talk.contents[0] == ("call_0", "p: blue")
    assert effects.counts() == {"ask a": 1, "pick p": 1, "send ann": 1}


def two_questions(effects: Effects) -> Any:
    class Age(BaseModel):
        age: int

    @tool
    def register(who: str) -> str:
        """Register somebody."""
        name = interrupt("name?")
        effects.add("was told a name")
        age = interrupt("age?", response_schema=Age).age
        return f"{name}, {age}"

    return register


@colours
async def test_a_tool_with_two_questions_keeps_the_first_answer(asynchronous: bool, effects: Effects) -> None:
    node = ToolNode([two_questions(effects)], interrupting_tools=["register"])
    talk = Conversation(graph_of(node, InMemorySaver()), asynchronous)
    await talk.say(message(("register", {"who": "x"})))
    [name] = ids(talk)
    await talk.answer({name: "Ann"})
    [age] = ids(talk)

    await talk.answer({age: {"age": "old"}})
    # A question that is not an object makes room for the errors.
    assert talk.asked[0]["value"] == "age?"
    assert errors(talk) == [["age"]]

    await talk.answer({name: {"age": 1}})
    assert errors(talk) == [["age"]], "an id that was answered answers nothing else"

    await talk.answer({age: {"age": 7}})
    assert talk.contents == [("call_0", "Ann, 7")]


@colours
async def test_a_bare_answer_reaches_the_one_question_that_was_open_and_no_other(
    asynchronous: bool, effects: Effects
) -> None:
    talk = conversation(effects, asynchronous, interrupt_on={"ask": True}, interrupt_mode="per_call")
    await talk.say(message(ASK, ("research", {"topic": "r"}), ("pick", {"topic": "p"})))
    [pick] = [pause.id for pause in talk.pauses if "pick" in pause.value]
    await talk.answer({pick: {"colour": "red"}})

    await talk.say(Command(resume={"type": "approve"}))
    assert talk.asked == [{"ask": "a"}], "the tool's own question is not answered by the approval"

    await talk.answer({ids(talk)[0]: "by id"})
    assert talk.asked == [{"ask": "inner"}], "nor is one that comes later, in another run"

    await talk.say(Command(resume="bare"))
    assert talk.contents == [("call_0", "a: by id"), ("call_1", "worked, bare"), ("call_2", "p: red")]


@colours
async def test_a_bare_answer_that_is_invalid_is_spent(asynchronous: bool, effects: Effects) -> None:
    talk = conversation(effects, asynchronous)
    await talk.say(message(PICK, BROWSE))

    for nonsense in ("red", {"colour": "green"}):
        await talk.say(Command(resume=nonsense))
        assert [bool(found) for found in errors(talk)] == [True]
    await talk.say(Command(resume={"colour": "red"}))
    assert errors(talk) == [[]]
    await talk.say(Command(resume={"content": "opened"}))

    assert talk.contents == [("call_0", "p: red"), ("call_1", "opened")]


@colours
async def test_approval_comes_before_the_tools_own_question(asynchronous: bool, effects: Effects) -> None:
    talk = conversation(effects, asynchronous, interrupt_on={"ask": True}, interrupt_mode="per_call")
    await talk.say(message(ASK, SEND))
    assert [value["type"] for value in talk.asked] == ["tool_approval"]

    edit = {"type": "edit", "edited_action": {"name": "ask", "args": {"topic": "b"}}}
    await talk.answer({ids(talk)[0]: edit})
    assert talk.asked == [{"ask": "b"}]
    assert effects.counts() == {}

    await talk.answer({ids(talk)[0]: "yes"})
    assert effects.counts() == {"ask b": 1, "send ann": 1}
    assert talk.results[0].text.endswith("b: yes")


@colours
async def test_rejected_and_answered_calls_never_run(asynchronous: bool, effects: Effects) -> None:
    talk = conversation(effects, asynchronous, interrupt_on={"ask": True, "send": True, "browse": True})
    await talk.say(message(SEND, ASK, BROWSE, DELETE))
    respond = {"type": "respond", "message": "I did it"}

    await talk.answer({ids(talk)[0]: {"decisions": [{"type": "reject"}, respond, {"type": "reject"}]}})

    assert effects.counts() == {"delete x": 1}
    assert [(one.tool_call_id, one.status) for one in talk.results] == [
        ("call_0", "error"),
        ("call_1", "success"),
        ("call_2", "error"),
        ("call_3", "success"),
    ]
    assert talk.contents[1] == ("call_1", "I did it")


@colours
async def test_when_is_asked_once_and_its_answer_is_kept(asynchronous: bool, effects: Effects) -> None:
    seen = []

    def when(request: Any) -> bool:
        seen.append((request.tool_call["id"], request.tool.name, request.runtime.tool_call_id))
        return len(seen) == 1

    policy = {"allowed_decisions": ["approve", "reject"], "when": when}
    talk = conversation(effects, asynchronous, interrupt_on={"send": policy}, interrupt_mode="per_call")
    await talk.say(message(SEND, ("send", {"to": "bob"}), ASK))
    assert [value.get("tool_call_id") for value in talk.asked] == ["call_0", None]
    approval, ask = ids(talk)

    await talk.answer({ask: "yes"})
    await talk.answer({approval: {"type": "maybe"}})
    await talk.answer({ids(talk)[0]: {"type": "reject"}})

    assert seen == [("call_0", "send", "call_0"), ("call_1", "send", "call_1")]
    assert effects.counts() == {"ask a": 1, "send bob": 1}


@colours
@pytest.mark.parametrize("declared", [["pick"], []], ids=["declared", "not declared"])
async def test_when_is_asked_once_for_a_call_that_is_alone_and_then_pauses(
    declared: list[str], asynchronous: bool, effects: Effects
) -> None:
    seen = []

    def when(request: Any) -> bool:
        seen.append(request.tool_call["id"])
        return len(seen) > 1

    policy = {"allowed_decisions": ["approve"], "when": when}
    talk = conversation(effects, asynchronous, interrupting_tools=declared, interrupt_on={"pick": policy})

    await talk.say(message(PICK))
    pauses = ids(talk)
    await talk.answer({pauses[0]: {"colour": "mauve"}})
    assert (ids(talk), errors(talk)) == (pauses, [["colour"]])
    await talk.answer({pauses[0]: {"colour": "red"}})

    assert seen == ["call_0"]
    assert effects.counts() == {"pick p": 1}
    assert talk.contents == [("call_0", "p: red")]


@colours
async def test_the_host_works_while_local_tools_act_once(asynchronous: bool, effects: Effects) -> None:
    talk = conversation(effects, asynchronous, interrupt_on={"delete": True})
    await talk.say(message(BROWSE, SEND, DELETE, ("browse", {"url": "v"})))
    assert ["action_requests" in value for value in talk.asked] == [True], "a person comes first"
    assert effects.counts() == {}

    await talk.answer({ids(talk)[0]: {"decisions": [{"type": "approve"}]}})
    assert talk.asked == [
        {"type": "tool_execution", "tool_call_id": "call_0", "name": "browse", "args": {"url": "u"}},
        {"type": "tool_execution", "tool_call_id": "call_3", "name": "browse", "args": {"url": "v"}},
    ]
    assert effects.counts() == {"send ann": 1, "delete x": 1}
    first, second = ids(talk)

    await talk.answer({second: {"content": "no such page", "status": "error"}})
    for bad in (
        {"status": "success"},
        {"content": "x", "status": "great"},
        {"content": "x", "tool_call_id": "?"},
    ):
        await talk.answer({first: bad})
        assert talk.asked[0]["errors"]
    await talk.answer({first: {"content": {"title": "Page"}, "tool_call_id": "call_0"}})

    assert effects.counts() == {"send ann": 1, "delete x": 1}
    assert [(one.tool_call_id, one.status, one.content) for one in talk.results] == [
        ("call_0", "success", '{"title": "Page"}'),
        ("call_1", "success", "sent to ann"),
        ("call_2", "success", "deleted x"),
        ("call_3", "error", "no such page"),
    ]


async def test_a_schema_without_an_executor_is_never_called(effects: Effects) -> None:
    called = []

    @tool
    def browse(url: str) -> str:
        """Stands for the schema only."""
        called.append(url)
        return url

    talk = conversation(effects, host_tools=[browse], interrupting_tools=["browse", "unheard_of"])
    await talk.say(message(BROWSE, SEND))
    assert effects.counts() == {"send ann": 1}
    await talk.answer({ids(talk)[0]: {"content": "opened"}})

    assert called == []
    assert talk.contents == [("call_0", "opened"), ("call_1", "sent to ann")]


@colours
async def test_an_agent_as_a_tool_keeps_its_work_through_an_invalid_answer(
    asynchronous: bool, effects: Effects
) -> None:
    class Inner(TypedDict):
        said: Annotated[list[str], add]

    def work(state: Inner) -> Inner:
        effects.add("work")
        return {"said": []}

    def question(name: str) -> Any:
        def ask(state: Inner) -> Inner:
            answer = interrupt({"pick": name}, response_schema=Colour)
            effects.add(f"used {name}")
            return {"said": [f"{name} {answer.colour}"]}

        return ask

    inner = StateGraph(Inner).add_node(work).add_edge(START, "work")
    for name in ("left", "right"):
        inner.add_node(name, question(name)).add_edge("work", name)
    agent = inner.compile()

    @tool
    def delegate(task: str) -> str:
        """Let another agent do it."""
        return ", ".join(agent.invoke({"said": []})["said"])

    node = ToolNode([delegate], interrupting_tools=["delegate"])
    talk = Conversation(graph_of(node, InMemorySaver()), asynchronous)
    await talk.say(message(("delegate", {"task": "t"})))
    by_name = {pause.value["pick"]: pause.id for pause in talk.pauses}

    await talk.answer({by_name["left"]: {"colour": "green"}, by_name["right"]: {"colour": "red"}})
    assert [(value["pick"], bool(value.get("errors"))) for value in talk.asked] == [("left", True)]

    await talk.answer({by_name["left"]: {"colour": "blue"}})
    assert talk.contents == [("call_0", "left blue, right red")]
    assert effects.counts() == {"work": 1, "used left": 1, "used right": 1}


async def test_a_pause_inside_a_wrapper_comes_through(effects: Effects) -> None:
    async def awrap(request: Any, execute: Any) -> Any:
        answer = interrupt({"wrap": request.tool_call["id"]}, response_schema=Colour)
        effects.add(f"wrapped {answer.colour}")
        return await execute(request)

    talk = conversation(effects, interrupting_tools=["send"], awrap_tool_call=awrap, handle_tool_errors=True)
    await talk.say(message(SEND, DELETE))
    asked = {pause.value["wrap"]: pause.id for pause in talk.pauses}
    assert list(asked) == ["call_0"]

    await talk.answer({asked["call_0"]: {"colour": "green"}})
    assert errors(talk) == [["colour"]]
    await talk.answer({asked["call_0"]: {"colour": "red"}})
    assert effects.counts() == {"wrapped red": 1, "send ann": 1}
    assert talk.asked == [{"wrap": "call_1"}]
    await talk.answer({ids(talk)[0]: {"colour": "blue"}})
    assert effects.counts() == {"wrapped red": 1, "wrapped blue": 1, "send ann": 1, "delete x": 1}


async def later(request: Any) -> bool:
    return True


@tool
def browse(url: str) -> str:
    """Open a page."""
    return url


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({"interrupt_on": {"sned": True}}, "names 'sned'"),
        ({"interrupt_mode": "one_by_one"}, "interrupt_mode must be one of"),
        ({"durable": "sometimes"}, "durable must be one of"),
        ({"interrupting_tools": "ask"}, "must be a list of names"),
        ({"interrupting_tools": [None]}, "must list names, not None"),
        ({"interrupting_tools": [later]}, "must list names, not <function"),
        ({"interrupting_tools": [browse]}, "must list names, not StructuredTool"),
        ({"interrupt_on": ["send"]}, "interrupt_on must be a dict"),
        ({"interrupt_on": {"send": {"allowed_decisions": ["approve"], "when": later}}}, "plain function"),
        ({"host_tools": [{**BROWSER, "name": "send"}]}, "in tools and in host_tools"),
        ({"host_tools": [BROWSER, browse]}, "has 'browse' twice"),
        ({"host_tools": BROWSER}, "must be a list of tools"),
        ({"host_tools": ["browse"]}, "says nothing of its arguments"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else each,
)
def test_what_cannot_work_is_refused_at_once(rules: Any, says: str, effects: Effects) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        ToolNode(tools_of(effects), **rules)


async def test_a_condition_that_turns_out_to_be_async_leaves_the_gate_shut(effects: Effects) -> None:
    policy = {"allowed_decisions": ["approve"], "when": lambda request: later(request)}
    talk = conversation(effects, interrupt_on={"send": policy})
    with pytest.raises(TypeError, match="`when` of 'send' must be a plain function"):
        await talk.say(message(SEND))
    assert effects.counts() == {}


@colours
async def test_a_call_without_an_id_is_refused_before_anything_acts(
    asynchronous: bool, effects: Effects
) -> None:
    talk = conversation(effects, asynchronous, interrupt_on={"delete": True})
    given = message(SEND, DELETE)
    given["messages"][0].tool_calls[0]["id"] = None
    with pytest.raises(ValueError, match="a call of 'send' has no id"):
        await talk.say(given)
    assert effects.counts() == {}


def test_outside_a_graph_a_gate_stays_shut(effects: Effects) -> None:
    from langgraph.runtime import Runtime

    node = ToolNode(tools_of(effects), interrupt_on={"delete": True}, host_tools=[BROWSER])
    config: Any = {"configurable": {"__pregel_runtime": Runtime()}}

    assert [one.content for one in node.invoke(message(SEND), config)["messages"]] == ["sent to ann"]
    for call in (DELETE, BROWSE):
        with pytest.raises(RuntimeError, match="needs a graph"):
            node.invoke(message(SEND, call), config)
    assert effects.counts() == {"send ann": 1}


def test_a_result_is_a_tool_message(effects: Effects) -> None:
    node = ToolNode(tools_of(effects), interrupting_tools=["send"])
    state = graph_of(node, None).invoke(message(SEND))

    assert isinstance(state["messages"][-1], ToolMessage)
