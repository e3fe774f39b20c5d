"""What the stories on a server of several processes share: runs, requests and what became of them."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Any

from langgraph_sdk.client import LangGraphClient

WITHIN_SECONDS = 90.0
"""Time for a lost worker to be missed, for another to take its run over, and for a busy machine."""


@dataclass(frozen=True, slots=True)
class Started:
    """A run that was started, and the message that it answers."""

    thread_id: str
    run_id: str
    message_id: str


async def start(client: LangGraphClient, text: str, graph: str = "long") -> Started:
    """Starts a run on a thread of its own."""
    thread_id = (await client.threads.create())["thread_id"]
    message_id = str(uuid.uuid4())
    message = {"role": "user", "content": text, "id": message_id}
    asked: dict[str, Any] = {"messages": [message]}
    run = await client.runs.create(thread_id, graph, input=asked)
    return Started(thread_id, run["run_id"], message_id)


def script(*turns: dict[str, Any]) -> str:
    """Returns the message by which the scripted model says and calls all this."""
    return json.dumps({"turns": list(turns)})


def call(tool: str, **args: Any) -> dict[str, Any]:
    return {"name": tool, "args": args, "id": f"call_{uuid.uuid4().hex}"}


async def post(client: LangGraphClient, thread_id: str, kind: str, **request: Any) -> str:
    """Posts a request by the stock SDK; returns its id."""
    answer: Any = await client.threads.update_state(thread_id, {"preemption": {"kind": kind, **request}})
    assert answer["preemption"]["status"] == "accepted"
    return str(answer["preemption"]["id"])


async def report(client: LangGraphClient, thread_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = await client.http.get(f"/threads/{thread_id}/preemption")
    return answer


async def outcome_of(client: LangGraphClient, thread_id: str, request_id: str) -> str | None:
    ended: str | None = (await report(client, thread_id))["handled"].get(request_id, {}).get("outcome")
    return ended


async def finished(client: LangGraphClient, thread_id: str, run_id: str) -> str:
    """Waits until a run is over; returns its status."""
    deadline = time.monotonic() + WITHIN_SECONDS
    while (status := (await client.runs.get(thread_id, run_id))["status"]) in ("pending", "running"):
        assert time.monotonic() < deadline, f"the run is still {status}"
        await asyncio.sleep(0.1)
    return str(status)


async def messages_of(client: LangGraphClient, thread_id: str) -> list[dict[str, Any]]:
    state: Any = await client.threads.get_state(thread_id)
    return list(state["values"]["messages"])


def said(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(message["type"], message["content"]) for message in messages]


def types(messages: list[dict[str, Any]]) -> list[str]:
    return [message["type"] for message in messages]


def applied(messages: list[dict[str, Any]]) -> Counter[str]:
    """Returns how often each request is in the thread."""
    return Counter(
        message["additional_kwargs"]["request_id"]
        for message in messages
        if message.get("additional_kwargs", {}).get("source") == "steer"
    )
