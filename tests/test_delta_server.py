"""The default agent with `MIDSTREAM_STATE=delta` on a real server, saved at the exit of its runs."""

from __future__ import annotations

from typing import Any

from langgraph_sdk.client import LangGraphClient

from support.dev_server import DevServer, example_graphs

ENV = {
    "MIDSTREAM_MODEL": "scripted",
    "MIDSTREAM_STATE": "delta",
    "MIDSTREAM_SCRIPTED_WORDS": "60",
    "MIDSTREAM_SCRIPTED_INTERVAL_MS": "20",
}


async def said(client: LangGraphClient, thread: str, text: str, steer: str | None = None) -> dict[str, Any]:
    """Runs a turn and steers it at its tenth token; returns the last values of the stream."""
    values: dict[str, Any] = {}
    tokens = 0
    asked: Any = {"messages": [{"role": "user", "content": text}]}
    async for part in client.runs.stream(
        thread,
        "agent",
        input=asked,
        stream_mode=["values", "messages-tuple"],
        durability="exit",
    ):
        data: Any = part.data
        if part.event == "values":
            values = data
        elif part.event == "messages" and data[0]["type"] != "human":
            tokens += 1
            if tokens == 10 and steer is not None:
                request = {"kind": "steer", "messages": steer}
                await client.threads.update_state(thread, {"preemption": request})
        assert part.event != "error", data
    return values


async def test_a_steered_thread_is_the_same_live_read_again_and_after_a_restart_of_the_server() -> None:
    with DevServer(example_graphs(), env=ENV) as server:
        async with server.client() as client:
            thread: str = (await client.threads.create())["thread_id"]
            first = await said(client, thread, "hello", steer="shorter")
            assert [message["type"] for message in first["messages"]] == ["human", "ai", "human", "ai"]
            assert first["preemption"]["stats"]["seals"] == 1
            assert (await client.threads.get_state(thread))["values"] == first

        server.restart()
        async with server.client() as client:
            assert (await client.threads.get_state(thread))["values"] == first
            second = await said(client, thread, "go on")
            assert second["messages"][:4] == first["messages"]
            assert [message["type"] for message in second["messages"][4:]] == ["human", "ai"]
            assert (await client.threads.get_state(thread))["values"] == second
