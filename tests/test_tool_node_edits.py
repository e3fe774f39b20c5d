"""A person's edit of a call is held to what the tool takes, and a bad one is asked again."""

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
