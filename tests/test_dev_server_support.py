from __future__ import annotations

from typing import Any

import pytest

from support.dev_server import DevServer

ECHO = """
from langgraph.graph import END, START, MessagesState, StateGraph


async def echo(state):
    return {"messages": [("ai", state["messages"][-1].text.upper())]}


builder = StateGraph(MessagesState).add_node("echo", echo)
graph = builder.add_edge(START, "echo").add_edge("echo", END).compile()
"""
CONFIG = {"dependencies": ["."], "graphs": {"echo": "./echo.py:graph"}}


async def test_a_real_server_runs_a_graph_and_comes_back_after_a_kill() -> None:
    with DevServer({"langgraph.json": CONFIG, "echo.py": ECHO}) as server:
        for _ in range(2):
            async with server.client() as client:
                thread = await client.threads.create()
                given: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
                state: Any = await client.runs.wait(thread["thread_id"], "echo", input=given)
            assert state["messages"][-1]["content"] == "HI"
            server.kill()
            server.restart()


def test_a_server_that_cannot_start_shows_the_end_of_its_log() -> None:
    with (
        pytest.raises(RuntimeError, match=r"(?s)its log ends:.*No module named 'no_such_module'"),
        DevServer({"langgraph.json": CONFIG, "echo.py": "import no_such_module"}),
    ):
        pass


async def test_postgres_answers_from_a_wheel(postgres_uri: str) -> None:
    import psycopg

    async with await psycopg.AsyncConnection.connect(postgres_uri) as connection:
        cursor = await connection.execute("select 1")
        assert await cursor.fetchone() == (1,)
