from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.state import CompiledStateGraph

from support.tool_batches import Conversation, graph_of, message

ROOT = Path(__file__).resolve().parents[1]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_first_code_of_the_readme_builds_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    names: dict[str, Any] = {}
    exec(blocks("python")[0], names)

    graph = names["graph"]
    assert isinstance(graph, CompiledStateGraph)
    assert set(graph.nodes) == {"__start__", "model", "tools"}


def test_the_readme_s_hook_is_asked_and_answers() -> None:
    (shown,) = (block for block in blocks("python") if "BoundaryHook" in block)
    names: dict[str, Any] = {}
    exec(shown, names)

    (hook,) = names["options"].boundary_hooks
    assert (hook.name, hook.at) == ("remind", {"seal"})


async def test_the_readme_s_tool_node_asks_what_the_readme_says() -> None:
    (shown,) = (block for block in blocks("python") if "host_tools=" in block)
    names: dict[str, Any] = {}
    exec(shown, names)
    calls = [
        ("ask_user", {"question": "When?"}),
        ("send_email", {"to": "ann@example.com", "subject": "Notes"}),
        ("read_page", {"selector": "main"}),
    ]
    talk = Conversation(graph_of(names["tools"], InMemorySaver()))

    await talk.say(message(*calls))
    assert [value["type"] for value in talk.asked] == ["question", "tool_approval"]
    question, approval = talk.pauses
    edit = {"type": "edit", "edited_action": {"name": "send_email", "args": {"subject": "Notes"}}}
    await talk.answer({approval.id: edit, question.id: {"choice": "tomorrow"}})
    assert [error["path"] for error in talk.asked[0]["errors"]] == ["edited_action.args.to"]

    await talk.answer({approval.id: {"type": "reject", "message": "why"}})
    assert [value["type"] for value in talk.asked] == ["tool_execution"]
    await talk.answer({talk.pauses[0].id: {"content": "A page.", "status": "success"}})
    assert [(one.name, one.status) for one in talk.results] == [
        ("ask_user", "success"),
        ("send_email", "error"),
        ("read_page", "success"),
    ]


def test_the_readme_s_server_configuration_is_that_of_the_checkout_in_short() -> None:
    (shown,) = (json.loads(block) for block in blocks("json"))
    ours = json.loads((ROOT / "langgraph.json").read_text())

    assert shown["http"] == ours["http"]
    assert shown.keys() <= ours.keys()


PAGES = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_points_to_is_there(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    files = re.findall(r"(?<![\w./])(?:tests|graphs|bench|docs|extensions|sdk_client)/[\w./]*\w", text)

    assert [link for link in links if not (page.parent / link).exists()] == []
    assert [file for file in files if not (ROOT / file).exists()] == []
