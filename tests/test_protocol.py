from __future__ import annotations

import uuid
from typing import Any

import pytest
from pydantic import ValidationError

from midstream_client.protocol import (
    HaltRequest,
    Receipt,
    SteerRequest,
    UserMessage,
    WithdrawRequest,
    parse_request,
)

SOME_ID = "0b6f3a52-6f0e-4a7e-9f53-0f1f2d3c4b5a"
TEXT_BLOCK = {"type": "text", "text": "☃"}
BLANK_BLOCK = {"type": "text", "text": " "}


def test_a_plain_string_stands_for_one_user_message() -> None:
    assert parse_request({"kind": "steer", "id": SOME_ID, "messages": "Shorter, please."}) == SteerRequest(
        id=SOME_ID, messages=[UserMessage(role="user", content="Shorter, please.")]
    )


def test_langchains_own_word_for_a_user_is_taken_too() -> None:
    request = parse_request({"kind": "steer", "messages": [{"role": "human", "content": "hi"}]})
    assert isinstance(request, SteerRequest)
    assert request.messages[0].model_dump() == {"role": "user", "content": "hi"}


def test_each_request_without_an_id_gets_one_of_its_own() -> None:
    ids = {HaltRequest(reason="enough").id for _ in range(10)}
    assert len(ids) == 10
    assert all(str(uuid.UUID(request_id)) == request_id for request_id in ids)


def test_equal_ids_in_other_spellings_are_the_same_id() -> None:
    spellings = (SOME_ID.upper(), SOME_ID.replace("-", ""), f"{{{SOME_ID}}}", f"urn:uuid:{SOME_ID}")
    assert {WithdrawRequest(id=spelling).id for spelling in spellings} == {SOME_ID}


def test_a_request_survives_the_wire() -> None:
    for request in (
        SteerRequest(
            messages=[UserMessage(content=[{"type": "text", "text": "☃"}])], run_id=SOME_ID, node="n"
        ),
        HaltRequest(reason="enough"),
        WithdrawRequest(id=SOME_ID),
    ):
        assert parse_request(request.model_dump(mode="json")) == request
        assert parse_request(request.model_dump(mode="json", exclude_none=True)) == request
        assert parse_request(request) == request


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("stop", ()),
        ({}, ()),
        ({"kind": "stop"}, ()),
        ({"kind": "steer"}, ("messages",)),
        ({"kind": "steer", "messages": ""}, ("messages", 0, "content")),
        ({"kind": "steer", "messages": " \n\t"}, ("messages", 0, "content")),
        ({"kind": "steer", "messages": []}, ("messages",)),
        ({"kind": "steer", "messages": [{"content": []}]}, ("messages", 0, "content")),
        (
            {"kind": "steer", "messages": [{"content": [BLANK_BLOCK]}]},
            ("messages", 0, "content"),
        ),
        ({"kind": "steer", "messages": [{"role": "assistant", "content": "x"}]}, ("messages", 0, "role")),
        ({"kind": "steer", "messages": [{"role": "system", "content": "x"}]}, ("messages", 0, "role")),
        ({"kind": "steer", "messages": [{"role": "user", "content": "x", "id": "m"}]}, ("messages", 0, "id")),
        ({"kind": "steer", "messages": "x", "id": "7"}, ("id",)),
        ({"kind": "steer", "messages": "x", "run_id": "7"}, ("run_id",)),
        ({"kind": "steer", "messages": "x", "node": ""}, ("node",)),
        ({"kind": "steer", "messages": "x", "reason": "y"}, ("reason",)),
        ({"kind": "halt"}, ("reason",)),
        ({"kind": "halt", "reason": " "}, ("reason",)),
        ({"kind": "halt", "reason": "x" * 1025}, ("reason",)),
        ({"kind": "withdraw"}, ("id",)),
        ({"kind": "withdraw", "id": SOME_ID, "reason": "x"}, ("reason",)),
    ],
    ids=repr,
)
def test_a_malformed_request_is_refused_by_the_field(value: Any, field: tuple[Any, ...]) -> None:
    with pytest.raises(ValidationError) as refused:
        parse_request(value)
    assert field in {tuple(error["loc"][1 : len(field) + 1]) for error in refused.value.errors()}


def nested(levels: int) -> list[dict[str, Any]]:
    value: Any = "x"
    for level in range(levels - 2):
        value = [value] if level % 2 else {"k": value}
    return [{"type": "custom", "value": value}]


def test_content_may_be_deep_but_not_deeper_than_a_thread_can_store() -> None:
    SteerRequest(messages=[UserMessage(content=nested(65))])
    with pytest.raises(ValidationError, match="nested more than 64 levels"):
        SteerRequest(messages=[UserMessage(content=nested(66))])
    with pytest.raises(ValidationError, match="nested more than 64 levels"):
        SteerRequest(messages=[UserMessage(content=nested(20_000))])


def test_a_receipt_lets_a_newer_server_say_more() -> None:
    receipt = Receipt.model_validate(
        {"id": SOME_ID, "status": "accepted", "thread_status": "busy", "since_then": 1}
    )
    assert receipt.thread_status == "busy"


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ([{"type": "text", "text": None}], "is a string"),
        ([{"type": "text", "text": 5}], "is a string"),
        ([{"type": "text"}], "is a string"),
        ([{}], 'needs a "type"'),
        ([{"text": "hi"}], 'needs a "type"'),
        ([{"type": 1}], 'needs a "type"'),
        ([{"type": "tool_use", "id": "1", "name": "n", "input": {}}], "no content block of type 'tool_use'"),
        ([{"type": "reasoning", "reasoning": "hm"}], "no content block of type 'reasoning'"),
        ([{"type": "text", "text": " "}, {"type": "text", "text": "\n"}], "empty or white space"),
        ([], "empty or white space"),
    ],
)
def test_a_block_that_no_provider_takes_from_a_person_is_refused(content: Any, word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        parse_request({"kind": "steer", "messages": [{"content": content}]})


def test_blocks_that_a_person_may_send_are_taken() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    request = parse_request({"kind": "steer", "messages": [{"content": [picture]}]})
    assert request.model_dump()["messages"][0]["content"] == [picture]
