"""A deployment in which a test holds a run at the point where it wants to kill its process.

The model says what the last message tells it to, as the scripted model of the examples does. Where a word is
`hold:<name>` it waits until the test lets `<name>` go; a tool waits by its argument, and the boundary by a
word `boundary:<name>` in the steer. Whoever waits, in whatever process, writes down first who it is.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

WITHIN_SECONDS = 90.0

GRAPH = '''
import asyncio
import os
import re
import time
from collections import deque
from pathlib import Path

from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import tools_condition
from langgraph.types import interrupt
from pydantic import BaseModel

from chat_models.scripted import ScriptedChatModel
from midstream import BoundaryInput, MidstreamState, ModelNode, Preemption, PreemptionTransformer, ToolNode

FOLDER = Path(__file__).parent.resolve()


class Choice(BaseModel):
    choice: str


def note(name: str, text: str) -> None:
    with (FOLDER / name).open("a") as file:
        file.write(text + "\\n")


async def hold(name: str) -> None:
    await asyncio.to_thread(note, f"at-{name}", str(os.getpid()))
    deadline = time.monotonic() + 120
    while not await asyncio.to_thread((FOLDER / f"go-{name}").exists):
        assert time.monotonic() < deadline, f"nobody let {name} go"
        await asyncio.sleep(0.02)


class HeldChatModel(ScriptedChatModel):
    async def _astream(self, messages, stop=None, run_manager=None, **kwargs):
        late = deque([0.0], maxlen=20)
        due = time.time() + self.interval_ms / 1000
        try:
            async for chunk in super()._astream(messages, stop, run_manager, **kwargs):
                late.append(time.time() - due)
                if held := re.fullmatch(r"\\s*hold:(\\w+)\\W*", chunk.text):
                    await hold(held[1])
                    late.clear()
                due = time.time() + self.interval_ms / 1000
                yield chunk
        finally:
            # When the provider's stream was closed, by the clock that all processes share.
            ended = time.time()
            asked = messages[-1].id
            await asyncio.to_thread(note, "late", f"{asked} {max(*late, ended - due)}")
            await asyncio.to_thread(note, "ended", f"{asked} {ended}")


async def at_boundary(given: BoundaryInput) -> None:
    for request in given.requests:
        for held in re.findall(r"boundary:(\\w+)", str(request.messages)):
            await hold(held)


@tool
async def act(name: str, wait_for: str = "") -> str:
    """Acts in the world: leaves a line in a file."""
    if wait_for:
        await hold(wait_for)
    await asyncio.to_thread(note, "effects", f"{name} {os.getpid()}")
    return f"{name} is done"


@tool
async def send_email(to: str) -> str:
    """Sends an email, once a person has agreed."""
    await asyncio.to_thread(note, "effects", f"email-{to} {os.getpid()}")
    return f"sent to {to}"


@tool
def ask_user(question: str) -> str:
    """Asks the person."""
    return str(interrupt({"question": question}, response_schema=Choice))


def agent(words: int, interval_ms: float, **options):
    tools = [act, send_email, ask_user]
    preemption = Preemption(boundary_hooks=[at_boundary], **options)
    model = HeldChatModel(words=words, interval_ms=interval_ms)
    node = ToolNode(
        tools,
        interrupting_tools=["ask_user"],
        interrupt_on={"send_email": True},
        interrupt_mode="per_call",
        durable="always",
    )
    builder = StateGraph(MidstreamState)
    builder.add_node("model", ModelNode(model, tools=tools, preemption=preemption))
    builder.add_node("tools", node)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(transformers=[PreemptionTransformer])


brief = agent(5, 5)
long = agent(150, 20)
'''

DEPLOYMENT: dict[str, Any] = {
    "graph.py": GRAPH,
    "langgraph.json": {
        "dependencies": ["."],
        "graphs": {"brief": "./graph.py:brief", "long": "./graph.py:long"},
        "http": {"app": "midstream.server:app"},
    },
}


class Holds:
    """The test's side of the points at which a run waits.

    Args:
        folder: Where the deployment was laid.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def at(self, name: str, times: int = 1) -> int:
        """Waits until a run has come to this point for the n-th time; returns the id of its process."""
        return int((await self._lines(f"at-{name}", times))[times - 1])

    def go(self, name: str) -> None:
        """Lets whoever waits at this point go on, now and later."""
        (self._folder / f"go-{name}").touch()

    def effects(self, name: str) -> int:
        """Returns how many times a tool has acted under this name."""
        path = self._folder / "effects"
        lines = path.read_text().splitlines() if path.exists() else []
        return sum(line.split()[0] == name for line in lines)

    async def ended(self, message_id: str) -> float:
        """Waits until the answer to this message has ended; returns when that was."""
        return await self._number("ended", message_id)

    async def late(self, message_id: str) -> float:
        """Returns by how many seconds the process was late with one of the last words of that answer."""
        return await self._number("late", message_id)

    async def _number(self, name: str, message_id: str) -> float:
        deadline = time.monotonic() + WITHIN_SECONDS
        while True:
            for line in await self._lines(name, 1):
                asked, number = line.split()
                if asked == message_id:
                    return float(number)
            assert time.monotonic() < deadline, f"the answer to {message_id} did not end"
            await asyncio.sleep(0.02)

    async def _lines(self, name: str, least: int) -> list[str]:
        path = self._folder / name
        deadline = time.monotonic() + WITHIN_SECONDS
        while True:
            # A line is complete with its end.
            lines = path.read_text().split(os.linesep)[:-1] if path.exists() else []
            if len(lines) >= least:
                return lines
            assert time.monotonic() < deadline, f"nobody came to {name}"
            await asyncio.sleep(0.02)
