"""What a person or the model gives a tool is held to what it takes, before anything runs with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel, Field, field_validator, model_validator

from midstream import ToolNode
from support.tool_batches import BROWSER, Conversation, Effects, graph_of, message

colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
modes = pytest.mark.parametrize("mode", ["per_call", "batched"])


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path / "effects")


def by_json_schema(effects: Effects, **more: Any) -> BaseTool:
    """A tool as an MCP server describes it."""

    def read(path: str) -> str:
        effects.add(f"read {path}")
        return path

    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], **more}
    return StructuredTool.from_function(read, name="edited", description="Read.", args_schema=schema)


class Mail(BaseModel):
    to: str
    copies: int = Field(default=1, alias="copyCount")

    @field_validator("to")
    @classmethod
    def has_an_at(cls, to: str) -> str:
        if to == "nobody":
            raise KeyError(to)  # which pydantic does not make an error of its own
        if "@" not in to:
            raise ValueError("not an address")
        return to

    @model_validator(mode="after")
    def few(self) -> Mail:
        if self.copies > 3:
            raise ValueError("too many")
        return self


def by_model(effects: Effects) -> BaseTool:
    @tool("edited", args_schema=Mail)
    def mail(to: str, copies: int = 1) -> str:
        """Send."""
        effects.add(f"mail {to}")
        return to

    return mail


def by_signature(effects: Effects) -> BaseTool:
    @tool("edited")
    def note(text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
        """Write down."""
        effects.add(f"note {text} {tool_call_id}")
        return text

    return note


CASES: dict[str, tuple[Any, dict[str, Any], list[tuple[dict[str, Any], str]], str]] = {
    "JSON schema": (
        by_json_schema,
        {"path": "p"},
        [({"wrong": 1}, ""), ({"path": 1}, "path"), ({"path": "p", "more": 1}, "more")],
        "read p",
    ),
    "pydantic validators": (
        by_model,
        {"to": "a@b"},
        [
            ({"to": "zz"}, "to"),
            ({"to": "nobody"}, ""),
            ({"to": "a@b", "copyCount": 4}, ""),
            ({"to": "a@b", "bcc": "c@d"}, "bcc"),
            ({}, "to"),
        ],
        "mail a@b",
    ),
    "injected argument": (
        by_signature,
        {"text": "t"},
        [({"text": "t", "tool_call_id": "call_9"}, "tool_call_id"), ({"text": 1}, "text")],
        "note t call_0",
    ),
}


@modes
@colours
@pytest.mark.parametrize("errors", [True, False], ids=["errors handled", "errors raised"])
@pytest.mark.parametrize(("make", "good", "misfits", "effect"), CASES.values(), ids=CASES)
async def test_an_edit_that_the_tool_cannot_take_is_asked_again_and_a_good_one_works(
    make: Any,
    good: dict[str, Any],
    misfits: list[tuple[dict[str, Any], str]],
    effect: str,
    errors: bool,
    asynchronous: bool,
    mode: Any,
    effects: Effects,
) -> None:
    node = ToolNode(
        [make(effects)], interrupt_on={"edited": True}, interrupt_mode=mode, handle_tool_errors=errors
    )
    talk = Conversation(graph_of(node, InMemorySaver()), asynchronous)
    await talk.say(message(("edited", good)))

    prefix = "edited_action.args" if mode == "per_call" else "decisions.0.edited_action.args"
    for misfit, field in misfits:
        await talk.answer({talk.pauses[0].id: edit(misfit, mode)})
        paths = [error["path"] for error in talk.asked[0]["errors"]]
        assert paths == [f"{prefix}.{field}" if field else prefix], misfit
        assert effects.counts() == {}

    await talk.answer({talk.pauses[0].id: edit(good, mode)})
    assert effects.counts() == {effect: 1}
    assert talk.results[0].status == "success"


def edit(args: dict[str, Any], mode: str, name: str = "edited") -> Any:
    decision = {"type": "edit", "edited_action": {"name": name, "args": args}}
    return decision if mode == "per_call" else {"decisions": [decision]}


@modes
@colours
async def test_an_edit_of_a_host_tools_call_is_held_to_its_schema(mode: Any, asynchronous: bool) -> None:
    node = ToolNode([], host_tools=[BROWSER], interrupt_on={"browse": True}, interrupt_mode=mode)
    talk = Conversation(graph_of(node, InMemorySaver()), asynchronous)
    await talk.say(message(("browse", {"url": "u"})))

    for misfit in ({}, {"url": 7}, {"url": "v", "more": 1}):
        await talk.answer({talk.pauses[0].id: edit(misfit, mode, "browse")})
        assert talk.asked[0]["errors"], misfit

    await talk.answer({talk.pauses[0].id: edit({"url": "v"}, mode, "browse")})
    assert talk.asked[0]["type"] == "tool_execution"
    assert talk.asked[0]["args"] == {"url": "v"}


@pytest.mark.parametrize(
    "more", [{"additionalProperties": True}, {"anyOf": [{"required": ["path"]}]}], ids=["stated", "composed"]
)
async def test_a_schema_that_leaves_room_for_more_arguments_takes_them(more: Any, effects: Effects) -> None:
    def read(**arguments: Any) -> str:
        effects.add(f"read {sorted(arguments)}")
        return ""

    path = {"type": "object", "properties": {"path": {"type": "string"}}}
    schema = {**path, **more}
    reader = StructuredTool.from_function(read, name="edited", description="Read.", args_schema=schema)
    node = ToolNode([reader], interrupt_on={"edited": True}, interrupt_mode="per_call")
    talk = Conversation(graph_of(node, InMemorySaver()))
    await talk.say(message(("edited", {"path": "p"})))
    await talk.answer({talk.pauses[0].id: edit({"path": "p", "more": 1}, "per_call")})

    assert effects.counts() == {"read ['more', 'path']": 1}


REFERRING: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "definitions": (
        {
            "$defs": {"a/b": {"type": "string", "minLength": 1}},
            "properties": {"to": {"$ref": "#/$defs/a~1b"}},
        },
        {"to": {"type": "string", "minLength": 1}},
        "",
    ),
    "older definitions, described": (
        {
            "definitions": {"to": {"type": "string"}},
            "properties": {"to": {"$ref": "#/definitions/to", "description": "Who."}},
        },
        {"to": {"type": "string", "description": "Who."}},
        7,
    ),
    "narrowed": (
        {
            "$defs": {"to": {"type": "string"}},
            "properties": {"to": {"$ref": "#/$defs/to", "maxLength": 3}},
        },
        {"to": {"allOf": [{"type": "string"}, {"maxLength": 3}]}},
        "anna",
    ),
    "itself": (
        {
            "properties": {
                "to": {"type": ["string", "object"], "properties": {"to": {"$ref": "#/properties/to"}}}
            }
        },
        {
            "to": {
                "type": ["string", "object"],
                "properties": {"to": {"type": ["string", "object"], "properties": {"to": {}}}},
            }
        },
        {"to": {"to": {"to": 7}}},
    ),
    "too much": (
        {
            "$defs": {
                str(n): {
                    "properties": {side: {"$ref": f"#/$defs/{(n + 1) % 20}"} for side in ("left", "right")}
                }
                for n in range(20)
            },
            "properties": {"to": {"type": "string"}, "tree": {"$ref": "#/$defs/0"}},
        },
        None,
        7,
    ),
}


@modes
@colours
@pytest.mark.parametrize(("schema", "shown", "misfit"), REFERRING.values(), ids=REFERRING)
async def test_a_schema_with_references_is_shown_without_and_checked_with_them(
    schema: Any, shown: Any, misfit: Any, asynchronous: bool, mode: Any, effects: Effects
) -> None:
    """MCP servers describe nested arguments so."""

    def send(to: str) -> str:
        effects.add(f"send {to}")
        return to

    described = {"type": "object", **schema}
    tool = StructuredTool.from_function(send, name="edited", description="Send.", args_schema=described)
    node = ToolNode([tool], interrupt_on={"edited": True}, interrupt_mode=mode)
    talk = Conversation(graph_of(node, InMemorySaver()), asynchronous)

    await talk.say(message(("edited", {"to": "ann"})))
    asked: Any = talk.pauses[0].response_schema
    assert asked["$defs"]["Action"]["properties"]["args"].get("properties") == shown

    await talk.answer({talk.pauses[0].id: edit({"to": misfit}, mode)})
    assert talk.asked[0]["errors"]
    await talk.answer({talk.pauses[0].id: edit({"to": "bob"}, mode)})
    assert effects.counts() == {"send bob": 1}


async def test_what_an_edit_says_is_true_of_a_call_that_failed(effects: Effects) -> None:
    @tool("edited")
    def fails(text: str) -> str:
        """Fail."""
        raise RuntimeError("broken")

    node = ToolNode(
        [fails], interrupt_on={"edited": True}, interrupt_mode="per_call", handle_tool_errors=True
    )
    talk = Conversation(graph_of(node, InMemorySaver()))
    await talk.say(message(("edited", {"text": "a"})))
    await talk.answer({talk.pauses[0].id: edit({"text": "b"}, "per_call")})

    [result] = talk.results
    assert result.status == "error"
    assert result.text.startswith('A person edited this call: it was edited with {"text": "b"}')


def picture_tool() -> BaseTool:
    class Size(BaseModel):
        wide: int

    class Picture(BaseModel):
        size: Size
        to: str = Field(min_length=1)

    def never(**_: Any) -> str:
        raise AssertionError("the host runs it")

    return StructuredTool.from_function(never, name="browse", description="Draw.", args_schema=Picture)


HOSTED: dict[str, tuple[Any, dict[str, Any], dict[str, Any], str]] = {
    "JSON schema": (BROWSER, {"zz": 1}, {"url": "u", "zz": 1}, ": 'url' is a required property"),
    "pydantic": (picture_tool(), {"to": "", "size": {}}, {"to": "x", "size": {"wide": 3}}, "size.wide: "),
}


@colours
@pytest.mark.parametrize("errors", [True, False], ids=["errors handled", "errors raised"])
@pytest.mark.parametrize(("hosted", "misfit", "good", "says"), HOSTED.values(), ids=HOSTED)
async def test_the_host_is_asked_for_no_call_that_its_tool_cannot_take(
    hosted: Any,
    misfit: dict[str, Any],
    good: dict[str, Any],
    says: str,
    errors: bool,
    asynchronous: bool,
    effects: Effects,
) -> None:
    node = ToolNode([by_signature(effects)], host_tools=[hosted], handle_tool_errors=errors)
    talk = Conversation(graph_of(node, InMemorySaver()), asynchronous)

    await talk.say(message(("browse", misfit), ("edited", {"text": "t"}), ("browse", good)))
    assert [(value["tool_call_id"], value["args"]) for value in talk.asked] == [("call_2", good)]

    await talk.answer({talk.pauses[0].id: {"content": "opened"}})
    assert [one.status for one in talk.results] == ["error", "success", "success"]
    assert says in talk.results[0].text
    assert "Please fix the error and try again" in talk.results[0].text, "in the words for a local tool"
    assert effects.counts() == {"note t call_1": 1}


@colours
async def test_a_person_may_mend_a_call_that_the_host_could_not_take(asynchronous: bool) -> None:
    node = ToolNode([], host_tools=[BROWSER], interrupt_on={"browse": True}, interrupt_mode="per_call")
    talk = Conversation(graph_of(node, InMemorySaver()), asynchronous)
    await talk.say(message(("browse", {"zz": 1}), ("browse", {"zz": 2})))
    first, second = talk.pauses

    await talk.answer({first.id: edit({"url": "u"}, "per_call", "browse"), second.id: {"type": "approve"}})
    assert [(value["tool_call_id"], value["args"]) for value in talk.asked] == [("call_0", {"url": "u"})]

    await talk.answer({talk.pauses[0].id: {"content": "opened"}})
    assert [one.status for one in talk.results] == ["success", "error"]


@colours
async def test_what_the_host_was_asked_stays_asked_under_a_stricter_schema(asynchronous: bool) -> None:
    saver = InMemorySaver()
    lax = {**BROWSER, "parameters": {"type": "object"}}
    talk = Conversation(graph_of(ToolNode([], host_tools=[lax]), saver), asynchronous)
    await talk.say(message(("browse", {"zz": 1})))

    later = Conversation(graph_of(ToolNode([], host_tools=[BROWSER]), saver), asynchronous)
    await later.answer({talk.pauses[0].id: {"content": "opened"}})

    assert later.contents == [("call_0", "opened")]


@pytest.mark.parametrize(
    "url",
    [
        {"$ref": "http://127.0.0.1:9/nowhere.json"},
        {"$ref": "#/$defs/nowhere"},
        {"type": "string", "pattern": r"^\p{L}+$"},
    ],
    ids=["another host", "nowhere", "another language's pattern"],
)
@pytest.mark.filterwarnings("always")
async def test_a_schema_that_cannot_be_checked_by_is_the_hosts_own_affair(
    url: Any, recwarn: pytest.WarningsRecorder
) -> None:
    hosted = {**BROWSER, "parameters": {"type": "object", "properties": {"url": url}}}
    node = ToolNode([], host_tools=[hosted], interrupt_on={"browse": True}, interrupt_mode="per_call")
    talk = Conversation(graph_of(node, InMemorySaver()))
    await talk.say(message(("browse", {"url": "u"})))

    await talk.answer({talk.pauses[0].id: edit({"url": "v"}, "per_call", "browse")})

    assert [(value["type"], value["args"]) for value in talk.asked] == [("tool_execution", {"url": "v"})]
    assert [str(each.message) for each in recwarn] == [], "nothing is fetched"
