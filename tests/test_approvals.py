"""What a person is asked, and what may be answered: the same words as LangChain's own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Interrupt
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from midstream import ConfigurationError, ToolNode
from midstream.approvals import (
    Gated,
    Policy,
    Questions,
    answer_errors,
    decision_of,
    edited,
    executed,
    policies,
    refused,
    with_notice,
)


@tool
def send_email(to: str, copies: int = 1) -> str:
    """Send an email."""
    return f"sent {copies} to {to}"


@tool
def delete_file(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


@tool
def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


CALLS: list[ToolCall] = [
    {"name": "look", "args": {"at": "the sky"}, "id": "l", "type": "tool_call"},
    {"name": "send_email", "args": {"to": "ann@example.com"}, "id": "s1", "type": "tool_call"},
    {"name": "delete_file", "args": {"path": "/etc/passwd"}, "id": "d1", "type": "tool_call"},
    {"name": "delete_file", "args": {"path": "/tmp/x"}, "id": "d2", "type": "tool_call"},
    {"name": "send_email", "args": {"to": "bob", "copies": 3}, "id": "s2", "type": "tool_call"},
]

POLICIES: dict[str, dict[str, Any]] = {
    "everything allowed": {"send_email": True},
    "some decisions, a text": {
        "delete_file": {"allowed_decisions": ["approve", "reject"], "description": "Really delete it?"}
    },
    "a text made from the call": {
        "send_email": {
            "allowed_decisions": ["approve", "edit"],
            "description": lambda call, state, runtime: (
                f"{call['name']} after {len(state['messages'])} messages, "
                f"{'in' if runtime.execution_info else 'out of'} a run"
            ),
        },
    },
    "only for some calls": {
        "delete_file": {
            "allowed_decisions": ["respond"],
            "when": lambda request: request.tool_call["args"]["path"].startswith("/etc"),
        },
        "send_email": False,
    },
    "two tools": {"send_email": True, "delete_file": {"allowed_decisions": ["reject", "approve"]}},
    "each call another decision": {
        "send_email": {"allowed_decisions": ["edit"]},
        "delete_file": {"allowed_decisions": ["approve"]},
    },
}


def langchain_asks(interrupt_on: Any, mode: Any) -> list[Interrupt]:
    class Scripted(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **_: Any) -> Any:
            return self

    agent = create_agent(
        Scripted(messages=iter([AIMessage("", tool_calls=CALLS)])),
        [send_email, delete_file, look],
        middleware=[HumanInTheLoopMiddleware(interrupt_on, interrupt_mode=mode)],
        checkpointer=InMemorySaver(),
    )
    config: Any = {"configurable": {"thread_id": "1"}}
    state: Any = {"messages": [("user", "hi")]}
    return list(agent.invoke(state, config)["__interrupt__"])


def we_ask(interrupt_on: Any, mode: Any) -> list[Interrupt]:
    node = ToolNode([send_email, delete_file, look], interrupt_on=interrupt_on, interrupt_mode=mode)
    builder = StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools")
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    state: Any = {"messages": [("user", "hi"), AIMessage("", tool_calls=CALLS)]}
    return list(graph.invoke(state, config)["__interrupt__"])


def by_call(pauses: list[Interrupt]) -> list[Any]:
    return sorted((pause.value for pause in pauses), key=lambda value: str(value.get("tool_call_id")))


@pytest.mark.parametrize("mode", ["batched", "per_call"])
@pytest.mark.parametrize("interrupt_on", POLICIES.values(), ids=POLICIES)
def test_the_questions_are_langchains_own(interrupt_on: dict[str, Any], mode: str) -> None:
    ours, theirs = we_ask(interrupt_on, mode), langchain_asks(interrupt_on, mode)

    assert by_call(ours) == by_call(theirs)
    assert len({pause.id for pause in ours}) == len(ours)


@pytest.mark.parametrize("interrupt_on", POLICIES.values(), ids=POLICIES)
def test_an_answer_that_langchain_takes_is_taken(interrupt_on: dict[str, Any]) -> None:
    """In `per_call` mode both publish a schema; ours has room for the id of the call besides."""
    ours = {pause.value["tool_call_id"]: pause.response_schema for pause in we_ask(interrupt_on, "per_call")}
    theirs = {
        pause.value["tool_call_id"]: pause.response_schema
        for pause in langchain_asks(interrupt_on, "per_call")
    }

    assert ours.keys() == theirs.keys()
    for call_id in ours:
        assert decisions_in(ours[call_id]) == decisions_in(theirs[call_id])


def decisions_in(schema: Any) -> set[str]:
    return (
        set(schema["discriminator"]["mapping"])
        if "oneOf" in schema
        else {schema["properties"]["type"]["const"]}
    )


def question(call: ToolCall, *, allowed: Any = None, tools: list[BaseTool] | None = None) -> TypeAdapter[Any]:
    known = {one.name: one for one in tools or [send_email, delete_file, look]}
    policy = Policy(tuple(allowed or ("approve", "edit", "reject", "respond")))
    answer = Questions(known).approval(Gated(call, policy, "")).answer
    return TypeAdapter(answer)


SEND = CALLS[1]


@pytest.mark.parametrize(
    "answer",
    [
        {"type": "approve"},
        {"type": "approve", "tool_call_id": "s1"},
        {"type": "reject"},
        {"type": "reject", "message": "no"},
        {"type": "respond", "message": "done"},
        {"type": "edit", "edited_action": {"name": "send_email", "args": {"to": "bob"}}},
        {"type": "edit", "edited_action": {"name": "send_email", "args": {"to": "bob", "copies": 2}}},
    ],
    ids=str,
)
def test_a_decision_survives_as_it_was_sent(answer: dict[str, Any]) -> None:
    decision = decision_of(question(SEND).validate_python(answer))

    assert decision == {key: value for key, value in answer.items() if key != "tool_call_id"}


@pytest.mark.parametrize(
    ("answer", "paths"),
    [
        (None, [""]),
        ("approve", [""]),
        ({}, ["type"]),
        ({"type": "zap"}, ["type"]),
        ({"type": "approve", "tool_call_id": "s2"}, ["tool_call_id"]),
        ({"type": "respond"}, ["message"]),
        ({"type": "edit"}, ["edited_action"]),
        ({"type": "edit", "edited_action": {"name": "look", "args": {}}}, ["edited_action.name"]),
        ({"type": "edit", "edited_action": {"name": "send_email", "args": {}}}, ["edited_action.args.to"]),
        (
            {"type": "edit", "edited_action": {"name": "send_email", "args": {"to": 1, "copies": "x"}}},
            ["edited_action.args.to", "edited_action.args.copies"],
        ),
    ],
    ids=str,
)
def test_what_is_wrong_is_named_by_its_field(answer: Any, paths: list[str]) -> None:
    with pytest.raises(ValidationError) as raised:
        question(SEND).validate_python(answer)

    found = [error["path"] for error in answer_errors(raised.value)]
    assert [path for path in found if path in paths] == paths


ONE_OF = "must be one of approve, edit, reject, respond"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("approve", ": must be an object"),
        ({}, f"type: {ONE_OF}"),
        ({"type": None}, f"type: {ONE_OF}"),
        ({"type": "zap"}, f"type: {ONE_OF}"),
        ({"type": "approve", "tool_call_id": "s2"}, "tool_call_id: must be 's1'"),
        ({"type": "respond"}, "message: is missing"),
        ({"type": "respond", "message": 7}, "message: must be a text"),
        ({"type": "edit", "edited_action": []}, "edited_action: must be an object"),
        (
            {"type": "edit", "edited_action": {"name": "look", "args": {}}},
            "edited_action.name: must be 'send_email'",
        ),
        (
            {"type": "edit", "edited_action": {"name": "send_email", "args": {"to": "x", "copies": "y"}}},
            "edited_action.args.copies: must be a whole number",
        ),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_in_words_for_a_person(answer: Any, says: str) -> None:
    assert said_of(question(SEND), answer)[0] == says


def test_what_is_wrong_with_a_batch_is_said_in_words_for_a_person() -> None:
    known = {one.name: one for one in (send_email, delete_file)}
    gated = [Gated(call, Policy(("approve", "edit")), "") for call in CALLS[1:3]]
    asked = TypeAdapter(Questions(known).batched_approval(gated).answer)
    approve = {"type": "approve"}

    for bad, says in (
        ({"decisions": {"0": approve}}, "decisions: must be a list"),
        ({"decisions": [approve]}, "decisions.1: is missing"),
        ({"decisions": [approve] * 3}, "decisions: has too many entries: 3 of at most 2"),
        ({"decisions": [approve, {}]}, "decisions.1.type: must be one of approve, edit"),
        (
            {"decisions": [approve, {"type": "edit", "edited_action": {"args": {}}}]},
            "decisions.1.edited_action.name: must be one of send_email, delete_file",
        ),
    ):
        assert said_of(asked, bad) == [says]


def test_the_applications_own_words_about_an_answer_are_kept() -> None:
    class Answer(BaseModel):
        size: int = Field(default=1, multiple_of=5)
        to: str = ""
        kind: str = ""

        @field_validator("to")
        @classmethod
        def known(cls, to: str) -> str:
            raise ValueError(f"{to} is {{not}} known")

        @field_validator("kind")
        @classmethod
        def some(cls, kind: str) -> str:
            raise PydanticCustomError("too_short", "say more")

    assert said_of(TypeAdapter(Answer), {"size": 3, "to": "bob", "kind": "?"}) == [
        "size: Input should be a multiple of 5",
        "to: bob is {not} known",
        "kind: say more",
    ]


def said_of(asked: TypeAdapter[Any], answer: Any) -> list[str]:
    with pytest.raises(ValidationError) as raised:
        asked.validate_python(answer)
    return [f"{error['path']}: {error['message']}" for error in answer_errors(raised.value)]


def test_only_the_allowed_decisions_are_taken() -> None:
    asked = question(SEND, allowed=["approve", "reject"])

    asked.validate_python({"type": "reject"})
    for refused_one in ({"type": "respond", "message": "x"}, {"type": "edit", "edited_action": {}}):
        with pytest.raises(ValidationError, match="does not match any of the expected tags"):
            asked.validate_python(refused_one)


def test_a_batch_is_answered_by_position_and_in_full() -> None:
    known = {one.name: one for one in (send_email, delete_file, look)}
    gated = [
        Gated(CALLS[1], Policy(("approve", "edit")), "first"),
        Gated(CALLS[2], Policy(("reject",)), "second"),
    ]
    asked = TypeAdapter(Questions(known).batched_approval(gated).answer)

    approve, reject = {"type": "approve"}, {"type": "reject"}
    answer = asked.validate_python({"decisions": [approve, reject]})
    assert [decision_of(one) for one in answer.decisions] == [approve, reject]
    for bad, path in (
        ({"decisions": [reject, approve]}, "decisions.0.type"),
        ({"decisions": [approve]}, "decisions.1"),
        ({"decisions": [approve, reject, reject]}, "decisions"),
        ({"decision": []}, "decisions"),
        ([approve, reject], ""),
    ):
        with pytest.raises(ValidationError) as raised:
            asked.validate_python(bad)
        assert path in [error["path"] for error in answer_errors(raised.value)], bad


def test_an_edit_in_a_batch_may_name_another_tool_and_then_follows_its_schema() -> None:
    known = {one.name: one for one in (send_email, delete_file)}
    gated = Gated(CALLS[2], Policy(("edit",)), "")
    asked = TypeAdapter(Questions(known).batched_approval([gated]).answer)
    action = {"name": "send_email", "args": {"to": "ann"}}

    answer = asked.validate_python({"decisions": [{"type": "edit", "edited_action": action}]})

    call = edited(CALLS[2], decision_of(answer.decisions[0]))
    assert call == {"name": "send_email", "args": {"to": "ann"}, "id": "d1", "type": "tool_call"}
    wrong = {"name": "send_email", "args": {"path": "x"}}
    with pytest.raises(ValidationError) as raised:
        asked.validate_python({"decisions": [{"type": "edit", "edited_action": wrong}]})
    assert [error["path"] for error in answer_errors(raised.value)] == ["decisions.0.edited_action.args.to"]


def test_a_tool_known_by_its_json_schema_shows_it() -> None:
    parameters = {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}
    call: ToolCall = {"name": "browse", "args": {"url": "u"}, "id": "b", "type": "tool_call"}
    gated = Gated(call, Policy(("edit",)), "")
    answer = Questions({"browse": parameters}).approval(gated).answer

    shown = TypeAdapter(answer).json_schema()["$defs"]["Action"]["properties"]["args"]

    assert shown["properties"] == parameters["properties"]


def test_an_edit_keeps_the_arguments_as_sent_so_that_the_tool_fills_in_its_own_defaults() -> None:
    class Args(BaseModel):
        to: str = Field(min_length=1)
        tags: list[str] = Field(default_factory=list)

    @tool(args_schema=Args)
    def post(to: str, tags: list[str]) -> str:
        """Post."""
        return to

    call: ToolCall = {"name": "post", "args": {"to": "a"}, "id": "p", "type": "tool_call"}
    answer = {"type": "edit", "edited_action": {"name": "post", "args": {"to": "b"}}}

    decision = decision_of(question(call, tools=[post]).validate_python(answer))

    assert decision["edited_action"]["args"] == {"to": "b"}


def test_rejections_and_responses_become_results() -> None:
    rejected = refused(SEND, {"type": "reject", "message": "too late"})
    assert rejected is not None
    assert (rejected.status, rejected.tool_call_id, rejected.name) == ("error", "s1", "send_email")
    assert "too late" in rejected.text

    answered = refused(SEND, {"type": "respond", "message": "I sent it myself"})
    assert answered is not None
    assert (answered.status, answered.content) == ("success", "I sent it myself")
    assert answered.additional_kwargs["lc_data"] == {"decision": "respond"}

    assert refused(SEND, {"type": "approve"}) is None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "N"),
        ("result", "N\n\nresult"),
        ([{"type": "text", "text": "r"}], [{"type": "text", "text": "N"}, {"type": "text", "text": "r"}]),
        (["r"], ["N", "r"]),
        ([], [{"type": "text", "text": "N"}]),
    ],
    ids=str,
)
def test_the_notice_takes_the_shape_of_the_result(content: Any, expected: Any) -> None:
    assert with_notice(ToolMessage(content, tool_call_id="x"), "N").content == expected


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x, max_size=3)))
def test_whatever_the_host_sends_becomes_content(content: Any) -> None:
    result = executed(SEND, {"content": content, "status": "error"})

    assert result.status == "error"
    assert isinstance(result.content, str | list)


@pytest.mark.parametrize(
    ("interrupt_on", "says"),
    [
        ({"send_mail": True}, "neither in tools nor in host_tools"),
        ({"send_email": {}}, "must list some of"),
        ({"send_email": {"allowed_decisions": []}}, "must list some of"),
        ({"send_email": {"allowed_decisions": "approve"}}, "must list some of"),
        ({"send_email": {"allowed_decisions": ["aprove"]}}, "must list some of"),
        ({"send_email": {"allowed_decisions": ["approve"], "if": bool}}, "keys that mean nothing"),
        ({"send_email": "yes"}, "must be True, False or a dict"),
    ],
    ids=str,
)
def test_a_gate_that_would_stand_open_is_refused(interrupt_on: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        policies(interrupt_on, ["send_email"])


def test_a_gate_that_is_switched_off_need_not_name_a_tool() -> None:
    assert policies({"gone": False}, ["send_email"]) == {}


def test_an_edited_call_says_so_to_the_model() -> None:
    node = ToolNode([send_email], interrupt_on={"send_email": True}, interrupt_mode="per_call")
    builder = StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools")
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    graph.invoke({"messages": [AIMessage("", tool_calls=[SEND])]}, config)

    edit = {"type": "edit", "edited_action": {"name": "send_email", "args": {"to": "bob@example.com"}}}
    *_, result = graph.invoke(Command(resume=edit), config)["messages"]

    assert "edited" in result.text
    assert '{"to": "bob@example.com"}' in result.text
    assert result.text.endswith("sent 1 to bob@example.com")
