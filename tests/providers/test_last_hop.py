"""The pass over a request: what it leaves alone, and that whatever a thread went through is accepted."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolMessage,
)
from langchain_core.tools import tool

from midstream import SealControl, sealable
from midstream.last_hop import ACKNOWLEDGED, BEGIN, CANCELLED, CONTINUE, repair
from midstream.provider import (
    ANTHROPIC,
    BEDROCK,
    CONVERSE,
    GOOGLE,
    MISTRAL,
    OPENAI,
    OTHER,
    RESPONSES,
    Provider,
    provider_of,
)
from providers.conftest import APIS
from support.examples import examples

PROVIDERS = [OPENAI, RESPONSES, ANTHROPIC, GOOGLE, CONVERSE, BEDROCK, MISTRAL, OTHER]
WRITERS = [None, "anthropic", "openai", "mistralai"]
by_name = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda each: each.name)


def calls(*names: str) -> list[dict[str, Any]]:
    return [{"name": "look_up", "args": {}, "id": name} for name in names]


def said(messages: list[BaseMessage]) -> list[tuple[str, str]]:
    return [(message.type, message.text) for message in messages]


@by_name
def test_a_valid_request_is_the_same_list(provider: Provider) -> None:
    messages: list[BaseMessage] = [
        SystemMessage("Be kind."),
        HumanMessage("What is a cat?"),
        AIMessage("I look. ", tool_calls=calls("1", "2")),
        ToolMessage("an animal", tool_call_id="2"),
        ToolMessage("a cat", tool_call_id="1"),
        AIMessage("An animal."),
        HumanMessage("Thanks."),
    ]

    assert repair(messages, provider) is messages


def test_neighbours_of_one_role_become_one_turn_where_roles_alternate() -> None:
    messages: list[BaseMessage] = [
        HumanMessage("One.", id="h1", additional_kwargs={"source": "user"}),
        HumanMessage("Two.", id="h2", additional_kwargs={"source": "steer"}),
        AIMessage("A", id="a1"),
        AIMessage("B", id="a2", tool_calls=calls("1")),
        ToolMessage("an animal", tool_call_id="1"),
        HumanMessage([{"type": "text", "text": "Three."}], id="h3"),
        HumanMessage("Four.", id="h4"),
    ]

    merged: list[Any] = [*repair(messages, MISTRAL)]

    assert said(merged) == [
        ("human", "One.\n\nTwo."),
        ("ai", "A\n\nB"),
        ("tool", "an animal"),
        ("ai", ACKNOWLEDGED),
        ("human", "Three.Four."),
    ]
    assert [message.id for message in merged] == ["h1", "a1", None, None, "h3"]
    assert merged[0].additional_kwargs == {"source": "steer"}
    assert merged[1].tool_calls[0]["id"] == "1"
    assert [message.text for message in messages[:2]] == ["One.", "Two."]
    for provider in (OPENAI, ANTHROPIC, GOOGLE, CONVERSE):  # they, or their clients, take them apart
        assert repair(messages, provider) is messages


@by_name
def test_open_calls_are_answered_and_what_answers_no_call_is_not_sent(provider: Provider) -> None:
    invalid = InvalidToolCall(type="invalid_tool_call", name="look_up", args="{", id="3", error="no JSON")
    messages: list[BaseMessage] = [
        HumanMessage("What is a cat?"),
        AIMessage("I look.", tool_calls=calls("1", "2"), invalid_tool_calls=[invalid]),
        ToolMessage("an animal", tool_call_id="2"),
        HumanMessage("Well?"),
        ToolMessage("again", tool_call_id="2"),
        ToolMessage("nobody asked", tool_call_id="9"),
    ]

    repaired = repair(messages, provider)

    results = [message for message in repaired if isinstance(message, ToolMessage)]
    assert [message.tool_call_id for message in results] == ["2", "1", "3"]
    assert [message.text for message in results[:2]] == ["an animal", CANCELLED]
    assert "{" in results[2].text
    assert [message.status for message in results] == ["success", "error", "error"]
    assert repaired[-1].text == "Well?"
    assert repair(repaired, provider) is repaired


def test_an_id_that_is_used_again_belongs_to_the_newest_call() -> None:
    messages: list[BaseMessage] = [
        HumanMessage("One."),
        AIMessage("", tool_calls=calls("1")),
        ToolMessage("first", tool_call_id="1"),
        AIMessage("", tool_calls=calls("1")),
        ToolMessage("second", tool_call_id="1"),
    ]

    assert repair(messages, OPENAI) is messages


@by_name
def test_calls_of_one_id_are_told_apart_where_they_have_to_be(provider: Provider) -> None:
    twice = AIMessage("I look.", tool_calls=calls("1", "1"))
    messages: list[BaseMessage] = [
        HumanMessage("One."),
        twice,
        ToolMessage("first", tool_call_id="1"),
        ToolMessage("second", tool_call_id="1"),
        ToolMessage("one too many", tool_call_id="1"),
        AIMessage("", tool_calls=calls("1", "2")),
        ToolMessage("fourth", tool_call_id="2"),
        ToolMessage("third", tool_call_id="1"),
    ]

    repaired = repair(messages, provider)

    third = "again_5_0" if provider.has_unique_calls else "1"
    assert [[call["id"] for call in each.tool_calls] for each in repaired if isinstance(each, AIMessage)] == [
        ["1", "again_1_1"],
        [third, "2"],
    ]
    assert [(each.tool_call_id, each.text) for each in repaired if isinstance(each, ToolMessage)] == [
        ("1", "first"),
        ("again_1_1", "second"),
        ("2", "fourth"),
        (third, "third"),
    ]
    assert [call["id"] for call in twice.tool_calls] == ["1", "1"], "state keeps the truth"
    assert repair(repaired, provider) is repaired


@pytest.mark.parametrize("kind", APIS)
def test_calls_of_one_id_that_are_in_the_content_too_are_accepted(kind: str, apis: dict[str, Any]) -> None:
    api = apis[kind]
    block = {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {}}
    by = {"model_provider": "anthropic"}
    messages: list[BaseMessage] = [HumanMessage("Look.")]
    for n in range(2):
        ids = ["toolu_1"] * (2 - n)
        content: list[Any] = [{"type": "text", "text": "So."}, *([block] * len(ids))]
        messages.append(AIMessage(content, tool_calls=calls(*ids), response_metadata=by))
        messages += [ToolMessage(f"an animal, {n}", tool_call_id=each) for each in ids]

    sealable(api.says("Yes.").model().bind_tools([look_up]), SealControl()).invoke(messages)

    assert api.refused == []


@by_name
@pytest.mark.parametrize("writers", list(itertools.product(WRITERS, repeat=2)))
def test_neighbours_of_any_writers_are_repaired_once_and_for_all(
    provider: Provider, writers: tuple[str | None, str | None]
) -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    messages: list[BaseMessage] = [HumanMessage("What is a cat?")]
    for writer in writers:
        about = {"model_provider": writer} if writer else {}
        content: list[Any] = [thought, {"type": "text", "text": "An animal."}]
        messages.append(AIMessage(content, response_metadata=about))
    messages.append(HumanMessage("Go on."))

    repaired = repair(messages, provider)

    assert repair(repaired, provider) is repaired


@by_name
def test_a_thread_that_begins_with_the_model_is_begun_by_the_user_where_it_has_to_be(
    provider: Provider,
) -> None:
    messages: list[BaseMessage] = [
        SystemMessage("Be kind."),
        AIMessage("Hello! How can I help?"),
        HumanMessage("What is a cat?"),
    ]

    repaired = repair(messages, provider)

    if provider.begins_with_user:
        assert said(repaired[1:2]) == [("human", BEGIN)]
        assert repaired[2:] == messages[1:]
        assert repair(repaired, provider) is repaired
    else:
        assert repaired is messages


@pytest.mark.parametrize("greeting", ["text", "call"])
@pytest.mark.parametrize("kind", APIS)
def test_a_thread_that_begins_with_the_model_is_accepted(
    kind: str, greeting: str, apis: dict[str, Any]
) -> None:
    first = [AIMessage("Hello! How can I help?")]
    if greeting == "call":
        first = [AIMessage("", tool_calls=calls("callid_01"))]
    messages = [*first, HumanMessage("What is a cat?")]

    sealable(apis[kind].says("Yes.").model().bind_tools([look_up]), SealControl()).invoke(messages)

    assert apis[kind].refused == []


def test_a_result_of_a_call_that_langchain_does_not_parse_is_kept() -> None:
    click = {"type": "computer_call", "id": "cu_1", "call_id": "c1", "action": {}, "status": "completed"}
    shot = ToolMessage(
        [{"type": "input_image", "image_url": "data:,"}],
        tool_call_id="c1",
        additional_kwargs={"type": "computer_call_output"},
    )
    by = {"model_provider": "openai"}
    messages: list[BaseMessage] = [HumanMessage("Click."), AIMessage([click], response_metadata=by), shot]

    assert repair(messages, RESPONSES) is messages
    assert said(repair(messages[:2], RESPONSES)) == [("human", "Click.")]


def test_a_custom_call_that_was_cancelled_is_answered_in_its_own_form() -> None:
    block = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "look_up", "input": "x"}
    answer = AIMessage([block], tool_calls=calls("c1"), response_metadata={"model_provider": "openai"})

    repaired = repair([HumanMessage("Look."), answer], RESPONSES)

    assert repaired[-1].content == [{"type": "custom_tool_call_output", "output": CANCELLED}]


def test_a_refusal_is_sent_to_who_can_read_one() -> None:
    no = AIMessage(
        "", additional_kwargs={"refusal": "I cannot."}, response_metadata={"model_provider": "openai"}
    )
    messages: list[BaseMessage] = [HumanMessage("Do it."), no, HumanMessage("Please.")]

    assert repair(messages, OPENAI)[1].content == [{"type": "refusal", "refusal": "I cannot."}]
    assert repair(messages, RESPONSES)[1].content == [{"type": "refusal", "refusal": "I cannot."}]


def test_a_blank_text_beside_a_call_is_not_joined_to_the_turn_before(apis: dict[str, Any]) -> None:
    api = apis["bedrock"]
    said = AIMessage([{"type": "text", "text": "Hi."}])
    asked = AIMessage(" ", tool_calls=calls("callid_1"))

    model = api.model().bind_tools([look_up])
    api.says("Yes.")
    sealable(model, SealControl()).invoke([HumanMessage("Hello."), said, asked])

    assert api.refused == []


@by_name
def test_a_later_word_of_the_system_is_said_where_it_may_be(provider: Provider) -> None:
    messages: list[BaseMessage] = [
        SystemMessage("You help."),
        HumanMessage("Tell."),
        AIMessage("Once"),
        SystemMessage("Be brief.", id="s2"),
        HumanMessage(""),
        HumanMessage("Go on."),
    ]

    repaired = repair(messages, provider)

    said = [(message.type, message.text) for message in repaired]
    assert said[0] == ("system", "You help.")
    if provider.alternates:
        assert said[3:] == [("human", "Be brief.\n\nGo on.")]
    elif provider.leads_with_system:
        assert said[3:] == [("human", "Be brief."), ("human", "Go on.")]
    elif provider is OTHER:
        assert repaired is messages
    else:
        assert said[3:] == [("system", "Be brief."), ("human", "Go on.")]


@pytest.mark.parametrize("kind", APIS)
def test_what_a_hook_says_as_the_model_is_no_lead_of_the_applications(
    kind: str, apis: dict[str, Any]
) -> None:
    by_hook = AIMessage("I should be brief.", additional_kwargs={"source": "hook", "hook": "remind"})

    sealable(apis[kind].says("Yes.").model(), SealControl()).invoke([HumanMessage("Hello."), by_hook])

    assert apis[kind].refused == []


@by_name
def test_a_thread_that_ends_with_the_model_is_asked_to_continue(provider: Provider) -> None:
    by = {"model_provider": next(iter(provider.wrote), "somebody")}
    messages: list[BaseMessage] = [HumanMessage("Tell."), AIMessage("Once ", response_metadata=by)]

    repaired = repair(messages, provider)

    assert [message.text for message in repaired[2:]] == ([] if provider is OTHER else [CONTINUE])


def test_a_paused_turn_goes_back_as_it_is() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    by = {"model_provider": "anthropic", "stop_reason": "pause_turn"}
    paused = AIMessage([{"type": "text", "text": "I look."}, search], response_metadata=by)
    messages: list[BaseMessage] = [HumanMessage("Search."), paused]

    assert repair(messages, ANTHROPIC) is messages
    later = repair([*messages, HumanMessage("And?")], ANTHROPIC)
    assert later[1].content == [{"type": "text", "text": "I look."}]


def test_each_client_follows_the_rules_of_the_api_that_it_calls(apis: dict[str, Any]) -> None:
    found = {name: provider_of(api.model(), {}).name for name, api in apis.items()}

    assert found == {
        "chat": "openai",
        "responses": "responses",
        "anthropic": "anthropic",
        "google": "google",
        "mistral": "mistral",
        "bedrock": "bedrock",
    }
    chat = apis["chat"].model(use_responses_api=None)
    assert provider_of(chat, {"tools": [{"type": "web_search"}]}).name == "responses"
    assert provider_of(apis["responses"].model(store=False), {}).stores is False


def test_the_pass_is_linear() -> None:
    def seconds(turns: int) -> float:
        messages: list[BaseMessage] = []
        for turn in range(turns):
            messages += [HumanMessage("One."), HumanMessage("Two.")]
            messages += [
                AIMessage([{"type": "text", "text": "A"}], tool_calls=calls(f"c{turn}")),
                HumanMessage("!"),
            ]
        best = 9.0
        for _ in range(3):
            since = time.perf_counter()
            repair(messages, MISTRAL)
            best = min(best, time.perf_counter() - since)
        return best

    assert seconds(2000) < 40 * seconds(200)  # ten times as much; a square would be a hundred times


@tool
def look_up(word: str = "") -> str:
    """Looks a word up."""
    return word


_texts = st.sampled_from(["", " ", "\n", "Hi.", "So. "])
_ids = st.sampled_from(["callid_1", "callid_2", "toolu_03"])
_authors = st.sampled_from(["openai", "anthropic", "google_genai", "bedrock_converse", "mistralai", None])
_sealed = st.booleans()


def _native(author: str | None, text: str) -> list[Any]:
    """What that provider's turns have in them besides text."""
    blocks: dict[str | None, list[Any]] = {
        "openai": [
            {"type": "reasoning", "id": "rs_9", "summary": []},
            {"type": "web_search_call", "id": "ws_9", "status": "completed", "action": {}},
        ],
        "anthropic": [
            {"type": "thinking", "thinking": "Hm."},
            {"type": "server_tool_use", "id": "srvtoolu_9", "name": "web_search", "input": {}},
        ],
        "google_genai": [{"type": "thinking", "thinking": "Hm."}],
        "bedrock_converse": [{"type": "reasoning_content", "reasoning_content": {"text": "Hm."}}],
        "mistralai": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}],
    }
    text_block = {"type": "text", "text": text, "index": 1}
    return [*blocks.get(author, []), text_block]


def _ai(
    text: str, ids: list[str], author: str | None, is_rich: bool, is_broken: bool, sealed: bool
) -> AIMessage:
    metadata: dict[str, Any] = {"model_provider": author} if author else {}
    if sealed or author == "openai":  # nothing of the fake's past was ever stored
        metadata["preemption"] = {"sealed": True}
    broken = [InvalidToolCall(type="invalid_tool_call", name="look_up", args="{", id="broken_9", error=None)]
    return AIMessage(
        _native(author, text) if is_rich and author else text,
        tool_calls=calls(*ids),
        invalid_tool_calls=broken if is_broken else [],
        response_metadata=metadata,
    )


_turns = st.lists(
    st.one_of(
        st.builds(HumanMessage, st.sampled_from(["Hello.", "Go on.", "", " "])),
        st.builds(SystemMessage, st.just("Be brief.")),
        st.builds(_ai, _texts, st.lists(_ids, max_size=2), _authors, st.booleans(), st.booleans(), _sealed),
        st.builds(lambda name: ToolMessage("an animal", tool_call_id=name), _ids),
    ),
    max_size=7,
)
_firsts = st.sampled_from([HumanMessage("Hello."), AIMessage("Hello! How can I help?")])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", APIS)
@settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(first=_firsts, turns=_turns)
def test_whatever_a_thread_went_through_the_request_is_accepted(
    kind: str, first: BaseMessage, turns: list[BaseMessage], apis: dict[str, Any]
) -> None:
    api = apis[kind]
    if not hasattr(api, "bound"):
        api.bound = api.model().bind_tools([look_up])
    messages = [first, *turns]
    if not getattr(messages[-1], "response_metadata", True):
        messages.append(HumanMessage("Hm?"))  # else it is the application's own lead
    before = [message.model_copy(deep=True) for message in messages]

    api.reset()
    sealable(api.says("Yes.").bound, SealControl()).invoke(messages)

    assert api.refused == []
    assert messages == before
    for provider in PROVIDERS:
        repaired = repair(messages, provider)
        assert repair(repaired, provider) is repaired
