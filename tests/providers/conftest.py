from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from providers.anthropic_api import Messages
from providers.api import FakeAPI
from providers.bedrock_api import Converse
from providers.google_api import GenerateContent
from providers.mistral_api import Mistral
from providers.openai_api import ChatCompletions, Responses
from providers.thread import Thread

APIS: dict[str, type[FakeAPI]] = {
    "chat": ChatCompletions,
    "responses": Responses,
    "anthropic": Messages,
    "google": GenerateContent,
    "mistral": Mistral,
    "bedrock": Converse,
}


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> Iterator[FakeAPI]:
    """Each provider's strict server in turn."""
    with APIS[request.param]() as api:
        yield api


@pytest.fixture
def thread() -> Thread:
    return Thread(InMemorySaver(), str(uuid.uuid4()))


@pytest.fixture
def responses() -> Iterator[Any]:
    with Responses() as api:
        yield api


@pytest.fixture
def anthropic() -> Iterator[Any]:
    with Messages() as api:
        yield api


@pytest.fixture
def chat() -> Iterator[Any]:
    with ChatCompletions() as api:
        yield api


@pytest.fixture
def mistral() -> Iterator[Any]:
    with Mistral() as api:
        yield api


@pytest.fixture
def bedrock() -> Iterator[Any]:
    with Converse() as api:
        yield api


@pytest.fixture
def google() -> Iterator[Any]:
    with GenerateContent() as api:
        yield api
