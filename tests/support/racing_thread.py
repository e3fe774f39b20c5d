"""A thread whose runs begin, read the ledger, commit, end, are cancelled and rolled back between calls.

Each moment of a run that a client can fall between is a move of its own, and so is every way in which an
answer gets lost. What it does with requests is the server's rule: a run applies what was pending when it
read the ledger, also if it was withdrawn since, and the state has the last word.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
from langgraph_sdk.errors import ConflictError, NotFoundError

from midstream_client._flow import Call, Clock, Flow, Pause, T

THREAD = str(uuid.UUID(int=7))
REQUEST = httpx.Request("POST", "http://server.test")


@dataclass
class Run:
    id: str
    taken: dict[str, str] | None = None
    """Requests that it has read and not committed."""

    has_committed: bool = False


@dataclass
class RacingThread:
    random: Random
    losses: float = 0.0
    """How often a call or its answer gets lost."""

    messages: list[tuple[str, str]] = field(default_factory=list)
    """Id and text."""

    entries: dict[str, str] = field(default_factory=dict)
    withdrawn: set[str] = field(default_factory=set)
    handled: dict[str, list[str]] = field(default_factory=dict)
    run: Run | None = None
    is_paused: bool = False
    is_cancelled: bool = False
    """Whether its last run was, so that it is `interrupted` and asks nothing."""

    is_left_busy: bool = False
    """Whether its last run was rolled back: it has no run, and the server goes on to call it `busy`."""

    cancels: int = 0
    rollbacks: int = 0
    runs: list[dict[str, Any]] = field(default_factory=list)
    now: float = 0.0
    rescued: int = 0
    """Withdraws that came while a run had the request in its hands."""

    def perform(self, flow: Flow[T]) -> T:
        """Drives a flow to its end."""
        error: Exception | None = None
        result: Any = None
        try:
            while True:
                step = flow.send(result) if error is None else flow.throw(error)
                error = None
                for _ in range(self.random.randrange(4)):
                    self.move()
                try:
                    result = self._answer(step)
                except Exception as failure:
                    error = failure
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def settle(self) -> None:
        """Lets all runs end; a last one applies what still waits."""
        self.is_paused = False
        while self.run is not None:
            self._go_on(self.run)
        last = self.run = Run("last")
        last.taken = self._pending()
        while self.run is not None:
            self._go_on(self.run)

    def move(self) -> None:
        if self.is_paused:
            self.is_paused = self.random.random() < 0.5
        elif self.run is not None:
            self._go_on(self.run)
        elif self.random.random() < (0.01 if self.is_left_busy else 0.3):
            self._begin(str(uuid.UUID(int=self.random.getrandbits(128))), {})

    def _begin(self, run_id: str, metadata: dict[str, Any]) -> None:
        self.run = Run(run_id)
        self.is_cancelled = self.is_left_busy = False
        self.runs.append({"run_id": run_id, "metadata": metadata})

    def _go_on(self, run: Run) -> None:
        if run.id != "last" and self.random.random() < 0.05:
            # Cancelled: what it has read, and not committed, still waits.
            self.run, self.is_cancelled = None, True
            self.cancels += 1
        elif run.id != "last" and not run.has_committed and self.random.random() < 0.05:
            self.roll_back()
        elif run.taken is not None:
            for name, text in run.taken.items():
                message_id = str(uuid.uuid5(uuid.UUID(name), "0"))
                self._put(message_id, text)
                self.handled[name] = [run.id, message_id]
                self.rescued += name in self.withdrawn
            run.taken, run.has_committed = None, True
        elif self.random.random() < 0.5 and run.id != "last":
            run.taken = self._pending()
        else:
            self.run = None
            self.is_paused = self.random.random() < 0.05

    def roll_back(self) -> None:
        """Takes back the run that is there, as if it had never been."""
        del self.runs[-1]
        self.run, self.is_left_busy = None, True
        self.rollbacks += 1

    def _put(self, message_id: str, text: str) -> None:
        """Adds a message as `add_messages` does: one of a known id takes the old one's place."""
        if all(known != message_id for known, _ in self.messages):
            self.messages.append((message_id, text))

    def _pending(self) -> dict[str, str]:
        done = self.withdrawn | self.handled.keys()
        return {name: text for name, text in self.entries.items() if name not in done}

    @property
    def status(self) -> str:
        if self.run is not None or self.is_left_busy:
            return "busy"
        return "interrupted" if self.is_paused or self.is_cancelled else "idle"

    def _answer(self, step: Any) -> Any:
        match step:
            case Pause(seconds):
                self.now += seconds
                return None
            case Clock():
                return self.now
        if self.random.random() < self.losses / 2:
            raise httpx.ConnectError("lost on its way")
        answer = self._called(step)
        if self.random.random() < self.losses / 2:
            raise httpx.ReadError("the answer was lost")
        return answer

    def _called(self, call: Call) -> Any:
        match call.part, call.method:
            case "http", "get":
                return self._report()
            case "threads", "update_state":
                return self._request(call.args[1]["preemption"])
            case "threads", "get_state":
                asked = [{"id": "i", "value": "go on?"}] if self.is_paused else []
                return {"values": {}, "tasks": [{"name": "model", "interrupts": asked}]}
            case "runs", "create":
                return self._create(call.options)
            case "runs", "list":
                going = self.run.id if self.run is not None else None
                return [
                    {**run, "status": "running" if run["run_id"] == going else "success"}
                    for run in self.runs[::-1]
                ]
        raise AssertionError(f"nobody calls {call}")

    def _report(self) -> dict[str, Any]:
        ended: dict[str, Any] = {name: {"outcome": "withdrawn"} for name in self.withdrawn}
        for name, (run_id, message_id) in self.handled.items():
            ended[name] = {"outcome": "entry", "run_id": run_id, "message_ids": [message_id]}
        pending = [{"id": name, "kind": "steer", "accepted_at": 0.0} for name in self._pending()]
        return {"thread_status": self.status, "pending": pending, "handled": ended, "halts": []}

    def _request(self, said: dict[str, Any]) -> dict[str, Any]:
        name = said["id"]
        if said["kind"] == "withdraw":
            if name in self.handled:
                raise _refusal(ConflictError, 409, name, "entry")
            if name not in self.entries:
                raise _refusal(NotFoundError, 404, name, None)
            self.withdrawn.add(name)
        else:
            self.entries.setdefault(name, said["messages"][0]["content"])
        return {"preemption": {"id": name, "status": "accepted", "thread_status": self.status}}

    def _create(self, options: Any) -> dict[str, Any]:
        if self.run is not None:
            raise _refusal(ConflictError, 409, None, None)
        self._begin(str(uuid.UUID(int=self.random.getrandbits(128))), options["metadata"])
        assert self.run is not None
        self.run.has_committed = True
        (message,) = options["input"]["messages"]
        self._put(message["id"], message["content"])
        return {"run_id": self.runs[-1]["run_id"]}


def _refusal(kind: Any, status: int, name: str | None, outcome: str | None) -> Exception:
    body: dict[str, Any] = {"detail": "no"}
    if name is not None:
        body["preemption"] = {"id": name, "outcome": outcome}
    error: Exception = kind("no", response=httpx.Response(status, request=REQUEST), body=body)
    return error
