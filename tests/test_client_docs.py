"""What docs/client.md shows works."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import get_client

import midstream_client
from midstream_client import Midstream

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "client.md").read_text()
INSTALLS_WITHIN_SECONDS = 60


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_three_calls_work_from_javascript(hosted_url: str, tmp_path: Path) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not there: the JavaScript of docs/client.md was not run")
    (tmp_path / "package.json").write_text('{"private": true, "type": "module"}')
    install = [npm, "install", "--no-audit", "--no-fund", "--loglevel=error", "@langchain/langgraph-sdk@^1"]
    try:
        subprocess.run(
            install, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=INSTALLS_WITHIN_SECONDS
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"npm could not install @langchain/langgraph-sdk, so the JavaScript was not run: {error}")
    (script,) = blocks("js")
    (tmp_path / "host.js").write_text(script)

    done = subprocess.run(
        [node, "host.js"],
        cwd=tmp_path,
        env={**os.environ, "LANGGRAPH_URL": hosted_url, "ASSISTANT": "long"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stderr == ""
    # The halt comes about when the answer gets its first word: it waits for one, or none is begun.
    lines = [line.strip() for line in done.stdout.splitlines() if not line.startswith("waiting")]
    if lines[3:4] == ["sealed"]:
        del lines[3]
    assert lines == [
        "steered busy",
        "sealed",
        "injected",
        "halted enough",
        "accepted idle",
        "withdrawn true",
    ]


class Screen:
    """Keeps what the page's chat draws."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.closed: list[str] = []
        self.ended: list[tuple[str, str | None, bool]] = []

    def add(self, message_id: str, text: str) -> None:
        self.texts[message_id] = self.texts.get(message_id, "") + text

    async def shows(self, text: str) -> None:
        while not any(text in shown for shown in self.texts.values()):
            await asyncio.sleep(0.01)

    def close(self, message_id: str) -> None:
        self.closed.append(message_id)

    def done(self, *how: Any) -> None:
        self.ended.append(how)


async def test_the_chat_of_the_page_is_a_chat(hosted_url: str) -> None:
    (chat,) = [block for block in blocks("python") if "async def says" in block]
    client = get_client(url=hosted_url, api_key=None)
    screen = Screen()
    page: dict[str, Any] = {"midstream": Midstream(client), "screen": screen}
    exec(chat.replace('"agent"', '"long"'), page)
    thread_id = (await client.threads.create())["thread_id"]

    async with asyncio.timeout(30):
        first = asyncio.create_task(page["says"](thread_id, "A story."))
        await screen.shows("A story.. word1")
        await page["says"](thread_id, "Shorter.")
        await screen.shows("Shorter.. word1")
        await page["midstream"].halt(thread_id, "enough")
        await first
    await client.aclose()

    assert len(screen.texts) == 2
    assert screen.closed == list(screen.texts)
    assert screen.ended == [("success", "enough", False)]


def test_the_pages_python_names_what_there_is() -> None:
    used = set()
    for block in blocks("python"):
        body = "\n".join(f"    {line}" for line in block.splitlines())
        for node in ast.walk(ast.parse(f"async def page():\n{body}")):
            if isinstance(node, ast.ImportFrom) and node.module == "midstream_client":
                assert {alias.name for alias in node.names} <= set(midstream_client.__all__)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "midstream":
                used.add(node.attr)

    public = {name for name in vars(Midstream) if not name.startswith("_")}
    assert used == public


def test_the_page_lists_every_error() -> None:
    listed = set(re.findall(r"^\| `(\w+Error)` \|", PAGE, re.MULTILINE))
    raised = {name for name in midstream_client.__all__ if name.endswith("Error")}

    assert listed == raised - {"MidstreamError", "AnswerError"}
