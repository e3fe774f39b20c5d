from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph.state import CompiledStateGraph

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


def test_the_readme_s_server_configuration_is_that_of_the_checkout_in_short() -> None:
    (shown,) = (json.loads(block) for block in blocks("json"))
    ours = json.loads((ROOT / "langgraph.json").read_text())

    assert shown["http"] == ours["http"]
    assert shown.keys() <= ours.keys()


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())

    assert [target for target in targets if not (ROOT / target).exists()] == []
