"""A LangGraph server with midstream, as small as its wire.

What a client sends is kept, and what it is shown is true. Its agent answers at once, in the words of
`ScriptedChatModel`, so a thread is busy only if a test says so.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx
import respx
from langchain_core.messages import AIMessage, HumanMessage

from chat_models.scripted import ScriptedChatModel
from midstream_client.protocol import MAX_PENDING

URL = "http://server.test"
SCHEMA = {"type": "object", "properties": {"choice": {"type": "string"}}, "required": ["choice"]}


@dataclass
class FakeThread:
    id: str
    status: str = "idle"
    messages: list[dict[str, Any]] = field(default_factory=list)
    interrupts: list[dict[str, Any]] = field(default_factory=list)
    pending: list[dict[str, Any]] = field(default_factory=list)
    handled: dict[str, dict[str, Any]] = field(default_factory=dict)
    halts: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)


class FakeServer:
    """Answers the routes that the client uses, by respx.

    `is_installed`: whether it runs midstream. `next_answers`: what it answers to the next calls instead.
    """

    def __init__(self, router: respx.Router, *, is_installed: bool = True) -> None:
        self.is_installed = is_installed
        self.next_answers: list[httpx.Response | Exception] = []
        self.received: list[tuple[str, str, Any]] = []
        self.threads: dict[str, FakeThread] = {}
        router.route(url__startswith=URL).mock(side_effect=self.answer)

    def answer(self, request: httpx.Request) -> httpx.Response:
        body: Any = json.loads(request.content) if request.content else None
        self.received.append((request.method, request.url.raw_path.decode(), body))
        if self.next_answers:
            said = self.next_answers.pop(0)
            if isinstance(said, Exception):
                raise said
            return said

        parts = request.url.path.strip("/").split("/")
        if parts == ["threads"]:
            made = FakeThread(str(uuid.uuid4()))
            self.threads[made.id] = made
            return httpx.Response(200, json={"thread_id": made.id, "status": made.status})
        thread = self.threads.get(parts[1])
        match [request.method, *parts[2:]]:
            case ["GET", "preemption"] if not self.is_installed:
                return httpx.Response(404, json={"detail": "Not Found"})
            case _ if thread is None:
                return httpx.Response(404, json={"detail": f"Thread with ID {parts[1]} not found"})
            case ["GET"]:
                return httpx.Response(200, json={"thread_id": thread.id, "status": thread.status})
            case ["GET", "preemption"]:
                return httpx.Response(200, json=self._report(thread))
            case ["GET", "state"]:
                return httpx.Response(200, json=self._state(thread))
            case ["POST", "state"]:
                return self._request(thread, body["values"]["preemption"])
            case ["GET", "runs"]:
                return httpx.Response(200, json=thread.runs)
            case ["POST", "runs"]:
                return httpx.Response(200, json=self._run(thread, body)[0])
            case ["POST", "runs", "stream"]:
                return sse(self._run(thread, body)[1])
            case ["GET", "runs", run_id]:
                return httpx.Response(200, json=next(run for run in thread.runs if run["run_id"] == run_id))
            case ["GET", "runs", _, "join"]:
                return httpx.Response(200, json={})
        return httpx.Response(405)

    def _report(self, thread: FakeThread) -> dict[str, Any]:
        return {
            "thread_status": thread.status,
            "pending": thread.pending,
            "handled": thread.handled,
            "halts": thread.halts,
        }

    def _state(self, thread: FakeThread) -> dict[str, Any]:
        task = {"id": "t", "name": "tools", "interrupts": thread.interrupts, "state": None}
        return {
            "values": {"messages": thread.messages, "preemption": {"handled": thread.handled}},
            "tasks": [task] if thread.interrupts else [],
            "interrupts": thread.interrupts,
        }

    def _request(self, thread: FakeThread, said: dict[str, Any]) -> httpx.Response:
        name = said["id"]
        known = {each["id"] for each in thread.pending}
        if said["kind"] == "withdraw":
            ended = thread.handled.get(name, {}).get("outcome")
            if name in known:
                thread.pending = [each for each in thread.pending if each["id"] != name]
                thread.handled[name] = {"outcome": "withdrawn", "accepted_at": time.time()}
            elif ended != "withdrawn":
                return refused(409 if ended else 404, "cannot be withdrawn", name, ended)
        elif any(
            each["id"] == name and each.get("messages") != said.get("messages") for each in thread.pending
        ):
            return refused(409, f"the thread has another request with the id {name!r}", name)
        elif name not in known and name not in thread.handled:
            if len(thread.pending) >= MAX_PENDING:
                return refused(429, f"{MAX_PENDING} are pending: withdraw some", name)
            thread.pending.append({"run_id": None, "node": None, **said, "accepted_at": time.time()})
        receipt = {"id": name, "status": "accepted", "thread_status": thread.status}
        return httpx.Response(200, json={"checkpoint": {"thread_id": thread.id}, "preemption": receipt})

    def _run(self, thread: FakeThread, body: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
        run: dict[str, Any] = {"run_id": str(uuid.uuid4()), "metadata": body.get("metadata") or {}}
        run["kwargs"] = {name: body[name] for name in ("input", "command") if name in body}
        parts: list[tuple[str, Any]] = [("metadata", {"run_id": run["run_id"], "attempt": 1})]
        if "command" in body:
            resume = body["command"]["resume"]
            thread.interrupts = [each for each in thread.interrupts if each["id"] not in resume]
        else:
            thread.messages += [
                {"type": "human", "id": said.get("id", str(uuid.uuid4())), "content": said["content"]}
                for said in body["input"]["messages"]
            ]
        if not thread.interrupts:
            parts += self._apply(thread, run["run_id"])
        halted = any(halt["run_id"] == run["run_id"] for halt in thread.halts)
        if not thread.interrupts and not halted:
            parts += self._speak(thread)
        thread.status = "interrupted" if thread.interrupts else "idle"
        run["status"] = "interrupted" if thread.interrupts else "success"
        thread.runs.insert(0, run)
        return run, parts

    def _apply(self, thread: FakeThread, run_id: str) -> Iterable[tuple[str, Any]]:
        for request in thread.pending:
            ids = []
            for n, message in enumerate(request.get("messages") or []):
                ids.append(str(uuid.uuid5(uuid.UUID(request["id"]), str(n))))
                thread.messages.append({"type": "human", "id": ids[-1], "content": message["content"]})
            thread.handled[request["id"]] = {
                "outcome": "entry",
                "run_id": run_id,
                "node": "model",
                "message_ids": ids,
                "accepted_at": request["accepted_at"],
            }
            event = {"type": "preemption", "node": "model", "request_ids": [request["id"]]}
            if request["kind"] == "halt":
                thread.halts.append({"run_id": run_id, "reason": request["reason"], "node": "model"})
                yield "custom", {**event, "event": "halted", "reason": request["reason"], "run_id": run_id}
            else:
                yield "custom", {**event, "event": "injected", "outcome": "entry", "message_ids": ids}
        thread.pending = []

    def _speak(self, thread: FakeThread) -> Iterable[tuple[str, Any]]:
        kinds = {"human": HumanMessage, "ai": AIMessage}
        said = [kinds[each["type"]](each["content"]) for each in thread.messages]
        turn = ScriptedChatModel(words=3).answer(said)
        name = f"ai-{len(thread.messages)}"
        about = {"langgraph_node": "model"}
        for n, word in enumerate(turn.text.split()):
            text = f" {word}" if n else word
            yield "messages", [{"type": "AIMessageChunk", "id": name, "content": text}, about]
        message = {"type": "ai", "id": name, "content": turn.text, "tool_calls": list(turn.tool_calls)}
        thread.messages.append(message)
        yield "updates", {"model": {"messages": [message]}}
        thread.interrupts = [
            {
                "id": uuid.uuid4().hex,
                "value": {"question": call["args"]["question"]},
                "response_schema": SCHEMA,
            }
            for call in turn.tool_calls
        ]


def sse(parts: Iterable[tuple[str, Any]], *, ids: bool = True, location: str | None = None) -> httpx.Response:
    """Returns an event stream of these parts."""
    text = "".join(
        f"{f'id: {n}' + chr(10) if ids else ''}event: {event}\ndata: {json.dumps(data)}\n\n"
        for n, (event, data) in enumerate(parts, 1)
    )
    headers = {"content-type": "text/event-stream"}
    if location is not None:
        headers["location"] = location
    return httpx.Response(200, headers=headers, content=text.encode())


def refused(status: int, reason: str, request_id: str, outcome: str | None = None) -> httpx.Response:
    """Returns a refusal of midstream's own."""
    about = {"id": request_id, "outcome": outcome}
    return httpx.Response(status, json={"detail": reason, "preemption": about})
