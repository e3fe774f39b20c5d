"""The deployable example, on the real server, with the stock SDK client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient

from support.dev_server import DevServer
from support.process import ROOT


@pytest.fixture(scope="module")
def server() -> Iterator[DevServer]:
    config = {
        "dependencies": ["."],
        "graphs": {
            "approvals": "./approvals.py:graph",
            "once": "./once.py:graph",
            "agent": "./agent.py:graph",
        },
    }
    files = {
        "langgraph.json": config,
        "approvals.py": (ROOT / "graphs" / "approvals.py").read_text(),
        "once.py": ONCE,
        "agent.py": AGENT,
    }
    with DevServer(files) as running:
        yield running


ONCE = """
from pathlib import Path

from langgraph.graph import START, StateGraph

from midstream import ToolNode
from support.tool_batches import BROWSER, Effects, State, tools_of

node = ToolNode(
    tools_of(Effects(Path(__file__).with_name("effects"))),
    interrupting_tools=["ask", "pick"],
    interrupt_on={"send": True, "delete": True},
    host_tools=[BROWSER],
)
graph = StateGraph(State).add_node("tools", node).add_edge(START, "tools").compile()
"""

AGENT = """
from pathlib import Path

from midstream import ToolNode
from support.tool_batches import Effects, agent_of, graph_of, tools_of

node = ToolNode(
    tools_of(Effects(Path(__file__).with_name("agent_effects"))),
    interrupt_on={"send": True, "delete": True},
    interrupt_mode="per_call",
)
graph = graph_of(agent_of(node, [("send", {"to": "ann"}), ("delete", {"path": "x"})]), None)
"""


class Thread:
    """A thread of the server, as a host sees it."""

    def __init__(self, client: LangGraphClient, thread_id: str, graph: str) -> None:
        self.client = client
        self.id = thread_id
        self.graph = graph

    async def run(self, *, given: Any = None, answers: Any = None) -> None:
        command: Any = {"resume": answers} if answers is not None else None
        await self.client.runs.wait(self.id, self.graph, input=given, command=command, raise_error=False)

    async def status(self) -> str:
        return (await self.client.threads.get(self.id))["status"]

    async def questions(self) -> dict[str, Any]:
        """What is asked, by interrupt id, as the thread object itself shows it."""
        pauses: Any = (await self.client.threads.get(self.id))["interrupts"]
        return {pause["id"]: pause["value"] for found in pauses.values() for pause in found}

    async def asked(self) -> dict[str, str]:
        """Interrupt ids by what they are about."""
        return {value.get("name", value["type"]): key for key, value in (await self.questions()).items()}

    async def errors(self) -> dict[str, list[str]]:
        """The fields that each question complains about."""
        return {
            value.get("name", value["type"]): [error["path"] for error in value["errors"]]
            for value in (await self.questions()).values()
            if "errors" in value
        }

    async def results(self) -> list[tuple[str, str, str]]:
        state: Any = await self.client.threads.get_state(self.id)
        found = [one for one in state["values"]["messages"] if one["type"] == "tool"]
        return [(one["name"], one["status"], one["content"]) for one in found]


async def thread_of(client: LangGraphClient, graph: str) -> Thread:
    return Thread(client, (await client.threads.create())["thread_id"], graph)


SAY: dict[str, Any] = {"messages": [{"role": "user", "content": "Please do it all."}]}


async def test_an_invalid_answer_alone_and_beside_a_valid_one_is_asked_for_again(server: DevServer) -> None:
    async with server.client() as client:
        thread = await thread_of(client, "approvals")
        await thread.run(given=SAY)
        asked = await thread.asked()
        assert asked.keys() == {"question", "send_email", "delete_file"}
        assert await thread.status() == "interrupted"

        await thread.run(answers={asked["send_email"]: {"type": "aprove"}})
        assert await thread.status() == "interrupted"
        assert await thread.errors() == {"send_email": ["type"]}
        asked = await thread.asked()

        edit = {"name": "send_email", "args": {"to": "bob@example.com"}}
        await thread.run(
            answers={
                asked["send_email"]: {"type": "edit", "edited_action": edit},
                asked["delete_file"]: {"type": "reject", "message": "not today"},
                asked["question"]: {"chose": "today"},
            }
        )
        assert await thread.status() == "interrupted"
        assert await thread.errors() == {
            "send_email": ["edited_action.args.subject"],
            "question": ["choice"],
        }
        asked = await thread.asked()

        edit["args"] = {"to": "bob@example.com", "subject": "Notes"}
        await thread.run(
            answers={
                asked["send_email"]: {"type": "edit", "edited_action": edit},
                asked["question"]: {"choice": "today"},
            }
        )
        assert (await thread.asked()).keys() == {"read_page"}
        for answers, errors in (("no object", [""]), ({"status": "success"}, ["content"])):
            await thread.run(answers={(await thread.asked())["read_page"]: answers})
            assert await thread.status() == "interrupted"
            assert await thread.errors() == {"read_page": errors}
        await thread.run(answers={(await thread.asked())["read_page"]: {"content": "A page."}})

        assert await thread.status() == "idle"
        question, email, file, page = await thread.results()
        assert question == ("ask_user_question", "success", "today")
        assert email[:2] == ("send_email", "success")
        assert email[2].endswith("Sent 'Notes' to bob@example.com.")
        assert file[:2] == ("delete_file", "error")
        assert "not today" in file[2]
        assert page == ("read_page", "success", "A page.")


async def test_nothing_acts_twice_on_the_server(server: DevServer) -> None:
    effects = server.folder / "effects"
    calls = [
        {"name": name, "args": args, "id": f"call_{index}", "type": "tool_call"}
        for index, (name, args) in enumerate(
            [
                ("send", {"to": "ann"}),
                ("delete", {"path": "x"}),
                ("ask", {"topic": "a"}),
                ("browse", {"url": "u"}),
                ("note", {"text": "n"}),
            ]
        )
    ]
    given: dict[str, Any] = {"messages": [{"role": "assistant", "content": "", "tool_calls": calls}]}
    async with server.client() as client:
        thread = await thread_of(client, "once")
        await thread.run(given=given)
        questions = await thread.questions()
        batch = next(key for key, value in questions.items() if "action_requests" in value)
        ask = next(key for key in questions if key != batch)

        await thread.run(answers={batch: {"decisions": [{"type": "approve"}]}, ask: "yes"})
        assert await thread.status() == "interrupted"
        assert effects.read_text().splitlines() == ["ask a"]

        await thread.run(answers={batch: {"decisions": [{"type": "approve"}, {"type": "approve"}]}})
        [page] = await thread.questions()
        await thread.run(answers={page: "?"})
        [page] = await thread.questions()
        await thread.run(answers={page: {"content": "opened"}})

        assert await thread.status() == "idle"
        assert sorted(effects.read_text().splitlines()) == ["ask a", "delete x", "note n", "send ann"]
        assert [name for name, _, _ in await thread.results()] == ["send", "delete", "ask", "browse", "note"]


async def test_a_script_chooses_the_calls(server: DevServer) -> None:
    calls = [{"name": "delete_file", "args": {"path": "/tmp/x"}}]
    script = {"turns": [{"tool_calls": calls}, {"say": "Gone."}]}
    async with server.client() as client:
        thread = await thread_of(client, "approvals")
        await thread.run(given={"messages": [{"role": "user", "content": json.dumps(script)}]})

        assert await thread.status() == "idle"
        assert await thread.results() == [("delete_file", "success", "Deleted /tmp/x.")]


async def test_an_approval_without_an_id_approves_nothing_in_a_later_run(server: DevServer) -> None:
    effects = server.folder / "agent_effects"
    async with server.client() as client:
        thread = await thread_of(client, "agent")
        await thread.run(given={"messages": []})
        for answers in ({"type": "approve"}, None, None):
            await thread.run(answers=answers)
            [question] = (await thread.questions()).values()
            assert question["name"] == "delete"
            assert effects.read_text() == "send ann\n"

        await thread.run(answers={"type": "approve"})
        assert await thread.status() == "idle"
        assert effects.read_text() == "send ann\ndelete x\n"
