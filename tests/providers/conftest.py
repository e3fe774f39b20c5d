from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
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


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, FakeAPI]]:
    """The strict servers, each started once."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(kind()) for name, kind in APIS.items()}


@pytest.fixture
def apis(servers: dict[str, FakeAPI]) -> dict[str, Any]:
    """All of them, as new."""
    for api in servers.values():
        api.reset()
    return servers


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest, apis: dict[str, Any]) -> Any:
    """Each in turn."""
    return apis[request.param]


@pytest.fixture
def thread() -> Thread:
    return Thread(InMemorySaver(), str(uuid.uuid4()))


@pytest.fixture
def responses(apis: dict[str, Any]) -> Any:
    return apis["responses"]


@pytest.fixture
def anthropic(apis: dict[str, Any]) -> Any:
    return apis["anthropic"]


@pytest.fixture
def chat(apis: dict[str, Any]) -> Any:
    return apis["chat"]


@pytest.fixture
def mistral(apis: dict[str, Any]) -> Any:
    return apis["mistral"]


@pytest.fixture
def google(apis: dict[str, Any]) -> Any:
    return apis["google"]
