"""The deployment that the host's side is tested against, and one name for both clients."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import Any, get_args

from langgraph_sdk import get_client, get_sync_client

from midstream_client import Midstream, SyncMidstream
from midstream_client._streaming import Protocol

GRAPHS = '''
from pathlib import Path

from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import tools_condition
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from langgraph_runtime_inmem.retry import RetryableException
from pydantic import BaseModel
from typing_extensions import TypedDict

from chat_models.scripted import ScriptedChatModel
from midstream import MidstreamState, ModelNode, PreemptionTransformer, ToolNode


class Choice(BaseModel):
    choice: str


@tool
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@tool
def send_email(to: str, body: str) -> str:
    """Sends an email."""
    with Path("outbox.txt").open("a") as outbox:
        outbox.write(f"{to}: {body}\\n")
    return f"sent to {to}"


@tool
def ask_user(question: str) -> str:
    """Asks the person."""
    return str(interrupt({"question": question}, response_schema=Choice))


browse = {
    "name": "browse",
    "description": "Opens a page in the person's browser.",
    "input_schema": {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]},
}


def agent(words: int, interval_ms: float, mode: str = "batched"):
    tools = [add, send_email, ask_user]
    model = ScriptedChatModel(words=words, interval_ms=interval_ms)
    node = ToolNode(
        tools,
        interrupting_tools=["ask_user"],
        interrupt_on={"send_email": True},
        interrupt_mode=mode,
        host_tools=[browse],
    )
    builder = StateGraph(MidstreamState)
    builder.add_node("model", ModelNode(model, tools=tools))
    builder.add_node("tools", node)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(transformers=[PreemptionTransformer])


def typed_node(state: MidstreamState):
    answer = interrupt("typed?", response_schema=Choice)
    return {"messages": [("ai", f"typed {answer.choice}")]}


def plain_node(state: MidstreamState):
    answer = interrupt("plain?")
    if answer == "bad":
        raise ValueError("cannot stand that")
    return {"messages": [("ai", f"plain {answer}")]}


fragile_builder = StateGraph(MidstreamState)
fragile_builder.add_node("typed", typed_node)
fragile_builder.add_node("plain", plain_node)
fragile_builder.add_edge(START, "typed")
fragile_builder.add_edge(START, "plain")
fragile = fragile_builder.compile()

class FlakyChatModel(ScriptedChatModel):
    """Says its second answer half, once; then its worker is taken for lost, and another attempt is made."""

    async def _astream(self, messages, stop=None, run_manager=None, **kwargs):
        asked = messages[0].content
        is_second = any(isinstance(message, ToolMessage) for message in messages)
        told = 0
        async for chunk in super()._astream(messages, stop, run_manager, **kwargs):
            yield chunk
            told += 1
            if told == 5 and is_second and asked not in FAILED:
                FAILED.add(asked)
                raise RetryableException("lost")


FAILED = set()
flaky_builder = StateGraph(MidstreamState)
flaky_builder.add_node("model", ModelNode(FlakyChatModel(words=5, interval_ms=5), tools=[add]))
flaky_builder.add_node("tools", ToolNode([add]))
flaky_builder.add_edge(START, "model")
flaky_builder.add_conditional_edges("model", tools_condition)
flaky_builder.add_edge("tools", "model")
flaky = flaky_builder.compile(transformers=[PreemptionTransformer])

class Tone(TypedDict, total=False):
    tone: str


def noise(state: MidstreamState, runtime: Runtime[Tone]):
    for data in ("text", {"at": 1}, dict(runtime.context) if runtime.context else None):
        runtime.stream_writer(data)


noisy_builder = StateGraph(MidstreamState, context_schema=Tone)
noisy_builder.add_node("noise", noise)
noisy_builder.add_node("model", ModelNode(ScriptedChatModel(words=3, interval_ms=5)))
noisy_builder.add_edge(START, "noise")
noisy_builder.add_edge("noise", "model")
noisy = noisy_builder.compile(transformers=[PreemptionTransformer])

agent_graph = agent(40, 20)
brief = agent(3, 5)
long = agent(400, 25)
per_call = agent(5, 5, "per_call")
'''

DEPLOYMENT: dict[str, Any] = {
    "graphs.py": GRAPHS,
    "langgraph.json": {
        "dependencies": ["."],
        "graphs": {
            "agent": "./graphs.py:agent_graph",
            "brief": "./graphs.py:brief",
            "long": "./graphs.py:long",
            "per_call": "./graphs.py:per_call",
            "fragile": "./graphs.py:fragile",
            "flaky": "./graphs.py:flaky",
            "noisy": "./graphs.py:noisy",
        },
        "http": {"app": "midstream.server:app"},
    },
}


def calls(*tool_calls: tuple[str, dict[str, Any]], then: str = "Done.") -> str:
    """Returns what to say to the scripted model so that it calls these tools at once."""
    made = [{"name": name, "args": args, "id": f"call_{n}"} for n, (name, args) in enumerate(tool_calls)]
    return json.dumps({"turns": [{"say": "Let me.", "tool_calls": made}, {"say": then}]})


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


class Host:
    """A host on either client: its calls are awaited, whichever it is.

    `host.threads.create()` and `host.midstream.steer(...)` are what they are on the SDK and on ours; the sync
    ones run in a thread.
    """

    def __init__(self, url: str, kind: str) -> None:
        self.url, self.kind = url, kind
        make: Any = {"async": (get_client, Midstream), "sync": (get_sync_client, SyncMidstream)}[kind]
        self.client = make[0](url=url, api_key=None)
        self.midstream = Awaited(make[1](self.client))
        self.threads = Awaited(self.client.threads)
        self.runs = Awaited(self.client.runs)

    async def close(self) -> None:
        closed = self.client.http.client.aclose if hasattr(self.client, "aclose") else self.client.close
        await _awaited(closed())

    async def thread(self) -> str:
        return str((await self.threads.create())["thread_id"])

    async def messages(self, thread_id: str) -> list[tuple[str, str]]:
        state = await self.threads.get_state(thread_id)
        return [(message["type"], _text(message["content"])) for message in state["values"]["messages"]]

    async def is_over(self, thread_id: str) -> None:
        """Waits until the thread has no run."""
        async with asyncio.timeout(30):
            while (await self.threads.get(thread_id))["status"] == "busy":
                await asyncio.sleep(0.02)

    async def events(self, thread_id: str, assistant_id: str, **what: Any) -> list[Any]:
        return [event async for event in self.midstream.stream(thread_id, assistant_id, **what)]


Story = Callable[[Host, str], Coroutine[Any, Any, None]]


def on_every_way(story: Story) -> Callable[[str], Coroutine[Any, Any, None]]:
    """Makes a test of a story that is told on both clients and each protocol, all at the same time."""

    async def test(hosted_url: str) -> None:
        async def told(host: Host, protocol: str) -> None:
            try:
                await story(host, protocol)
            except BaseException as error:
                error.add_note(f"by {protocol}, {host.kind}")
                raise

        hosts = [Host(hosted_url, kind) for kind in ("async", "sync")]
        try:
            async with asyncio.TaskGroup() as group:
                for host in hosts:
                    for protocol in get_args(Protocol):
                        group.create_task(told(host, protocol))
        finally:
            for host in hosts:
                await host.close()

    test.__name__, test.__doc__ = story.__name__, story.__doc__
    return test


class Awaited:
    """Any object with its calls made awaitable and its generators async."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def call(*args: Any, **options: Any) -> Any:
            if inspect.iscoroutinefunction(method):
                return method(*args, **options)
            if name in ("stream", "join_stream"):
                return _iterated(method(*args, **options))
            return asyncio.to_thread(method, *args, **options)

        return call


async def _iterated(source: Any) -> AsyncIterator[Any]:
    if isinstance(source, AsyncIterator):
        async for item in source:
            yield item
        return
    while (item := await asyncio.to_thread(next, source, None)) is not None:
        yield item


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(block.get("text", "")) for block in content if isinstance(block, Mapping))


__all__ = ["DEPLOYMENT", "Host", "Iterator", "calls", "on_every_way", "said"]
