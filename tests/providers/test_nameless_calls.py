"""Tool calls that came without an id, as some servers that speak a known API send them."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import tool_call
from langchain_core.tools import tool

from midstream import SealControl, sealable
from midstream.last_hop import CANCELLED, repair
from midstream.provider import BEDROCK, MISTRAL, OTHER, Provider
from providers.api import FakeAPI


@tool
def look_up(word: str = "") -> str:
    """Looks a word up."""
    return word


def nameless(*words: str) -> list[Any]:
    return [tool_call(name="look_up", args={"word": word}, id=None) for word in words]


CONTENTS: dict[str, Any] = {
    "text": "I look. ",
    "nothing": "",
    "blocks": [
        {"type": "text", "text": "I look. "},
        {"type": "tool_use", "name": "look_up", "input": {"word": "cat"}, "id": None},
    ],
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_request_with_calls_that_nobody_can_name_is_accepted(content: Any, api: FakeAPI) -> None:
    messages: list[BaseMessage] = [
        HumanMessage("Cats and dogs."),
        AIMessage(content, tool_calls=nameless("cat", "dog")),
        HumanMessage("Well?"),
        AIMessage(
            "Sorry. ", tool_calls=[*nameless("cow"), tool_call(name="look_up", args={}, id="callid001")]
        ),
        ToolMessage("nothing", tool_call_id="callid001"),
    ]
    model = api.says("An animal.").model().bind_tools([look_up])

    answer = sealable(model, SealControl()).invoke(messages)

    assert api.refused == []
    assert answer.text == "An animal."
    assert str(api.received).count("look_up") >= 4  # each call is sent, besides the tool


@pytest.mark.parametrize("provider", [OTHER, MISTRAL, BEDROCK], ids=lambda each: each.name)
def test_each_call_without_an_id_is_answered_also_where_two_turns_are_neighbours(provider: Provider) -> None:
    messages: list[BaseMessage] = [
        HumanMessage("Cats and dogs."),
        AIMessage("One. ", tool_calls=nameless("cat")),
        AIMessage("Two. ", tool_calls=nameless("dog", "cow")),
        HumanMessage("Well?"),
    ]

    repaired = repair(messages, provider)

    asked = [call["id"] for each in repaired if isinstance(each, AIMessage) for call in each.tool_calls]
    answered = [(each.tool_call_id, each.text) for each in repaired if isinstance(each, ToolMessage)]
    assert answered == [(name, CANCELLED) for name in asked]
    assert len(set(asked)) == 3
    assert repair(repaired, provider) is repaired
    assert all(call["id"] is None for each in messages for call in getattr(each, "tool_calls", ()))
