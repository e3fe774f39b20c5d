"""Answers of a given format are never ended early: by the words that each client really uses for it."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.runnables import Runnable, RunnableSequence
from pydantic import BaseModel

from midstream import SealControl, sealable
from midstream.provider import is_structured
from providers.api import FakeAPI
from providers.thread import Thread


class Cat(BaseModel):
    """A cat."""

    name: str


SCHEMA = {"title": "Cat", "type": "object", "properties": {"name": {"type": "string"}}}


def bound_in(structured: Runnable[Any, Any]) -> Any:
    """Returns the model of `with_structured_output`, with what is bound to it."""
    parts = structured.steps if isinstance(structured, RunnableSequence) else [structured]
    return next(part for part in parts if hasattr(part, "bound"))


METHODS = {
    "chat": ["function_calling", "json_mode", "json_schema"],
    "responses": ["function_calling", "json_mode", "json_schema"],
    "anthropic": ["function_calling", "json_schema"],
    "google": ["function_calling", "json_mode", "json_schema"],
    "mistral": ["function_calling", "json_mode", "json_schema"],
    "bedrock": ["function_calling", "json_schema", "prompt_prefill"],
}


@pytest.mark.parametrize(
    ("kind", "method"), [(kind, method) for kind, methods in METHODS.items() for method in methods]
)
def test_with_structured_output_is_recognised(kind: str, method: str, apis: dict[str, Any]) -> None:
    api = apis[kind]
    bound = bound_in(api.model().with_structured_output(Cat, method=method))

    seen: Any = sealable(bound, SealControl())

    assert "ls_structured_output_format" in bound.kwargs
    assert getattr(seen.bound, "_midstream_structured") is True  # noqa: B009
    if method in ("json_mode", "json_schema"):
        assert is_structured(bound.bound, bound.kwargs)


@pytest.mark.parametrize(
    "call",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": Cat},
        {"text": {"format": {"type": "json_schema", "name": "cat", "schema": SCHEMA}}},
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
        {"response_mime_type": "application/json"},
        {"response_mime_type": "text/x.enum"},
        {"response_json_schema": SCHEMA},
        {"generation_config": {"response_mime_type": "application/json"}},
        {"output_config": {"textFormat": {"type": "json_schema", "structure": {}}}},
        {"extra_body": {"guided_json": SCHEMA}},
        {"extra_body": {"grammar": "root ::= object"}},
        {"format": "json"},
        {"extra_body": {"response_format": {"type": "json_object"}}},
        {"extra_body": {"extra_body": {"generationConfig": {"responseMimeType": "application/json"}}}},
        {"extra_body": {"text": {"format": {"type": "json_schema", "schema": SCHEMA}}}},
        {"additional_model_request_fields": {"output_config": {"format": {"type": "json_schema"}}}},
        {"additionalModelRequestFields": {"outputFormat": {"type": "json_schema", "schema": SCHEMA}}},
        {"generationConfig": {"responseSchema": SCHEMA}},
        {"responseMimeType": "application/json"},
        {"responseJsonSchema": SCHEMA},
        {"responseFormat": {"type": "json_object"}},
    ],
    ids=str,
)
def test_a_format_is_recognised_in_the_call_and_on_the_model(call: dict[str, Any], chat: Any) -> None:
    assert is_structured(chat.model(), call)
    assert is_structured(chat.model(**(call if "extra_body" in call else {"model_kwargs": call})), {})


@pytest.mark.parametrize(
    "call",
    [
        {},
        {"response_format": {"type": "text"}},
        {"text": {"verbosity": "low"}},
        {"text": {"format": {"type": "text"}}},
        {"output_config": {"effort": "high"}},
        {"response_mime_type": "text/plain"},
        {"extra_body": {"top_k": 3}},
        {"extra_body": {"response_format": {"type": "text"}}},
        {"generationConfig": {"responseMimeType": "text/plain", "temperature": 0}},
        {"additional_model_request_fields": {"thinking": {"type": "enabled"}}},
        {"tools": [], "tool_choice": "auto"},
    ],
    ids=str,
)
def test_ordinary_text_is_not_taken_for_a_format(call: dict[str, Any], api: FakeAPI) -> None:
    assert not is_structured(api.model(), call)


def test_a_format_that_is_a_field_of_the_model_is_recognised(apis: dict[str, Any]) -> None:
    assert is_structured(apis["google"].model(response_mime_type="application/json"), {})
    assert is_structured(apis["anthropic"].model(output_config={"format": {"type": "json_schema"}}), {})
    assert not is_structured(apis["anthropic"].model(output_config={"effort": "high"}), {})


async def test_a_structured_answer_runs_to_its_end_and_the_request_is_applied_then(
    chat: Any, thread: Thread
) -> None:
    model = chat.model().bind(response_format={"type": "json_object"})
    chat.says('{"name": ', thread.steer("Dogs."), *["\n"] * 20, '"Tom"}').says('{"name": "Rex"}')

    messages = await thread.run(model, "Name a cat.")

    assert [message.text.split() for message in messages[1:]] == [
        ['{"name":', '"Tom"}'],
        ["Dogs."],
        ['{"name":', '"Rex"}'],
    ]
    assert "preemption" not in messages[1].response_metadata
