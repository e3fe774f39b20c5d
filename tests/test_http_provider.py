"""A real provider client, `ChatOpenAI`, on a stub of its HTTP stream: a seal ends the request itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain.chat_models import init_chat_model
from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from support.steering import ASKED, agent, is_sealed, ledger_of, said, steer, thread


class StubProvider:
    """Streams two words for a first question and then nothing more, and a whole answer for a second one."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.spoke = asyncio.Event()
        self.hung_up = asyncio.Event()
        self.url = ""
        self._open: set[asyncio.StreamWriter] = set()

    def hang_up(self) -> None:
        """Ends the connections that are open; from Python 3.12 on a server waits for them as it closes."""
        for writer in self._open:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while head := await self._read_head(reader):
                length = int(head.get("content-length", "0"))
                self.requests.append(json.loads(await reader.readexactly(length)))
                await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _read_head(self, reader: asyncio.StreamReader) -> dict[str, str]:
        head: dict[str, str] = {}
        while (line := (await reader.readline()).decode().strip()) or not head:
            if not line:
                return {}
            name, _, value = line.partition(":")
            head[name.lower()] = value.strip()
        return head

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_first = len(self.requests) == 1
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for word in ("Once", " upon") if is_first else ("A", " cat."):
            self._event(writer, {"delta": {"role": "assistant", "content": word}, "finish_reason": None})
        await writer.drain()
        if is_first:
            self.spoke.set()
            await reader.read()  # returns when the client hangs up
            self.hung_up.set()
            raise ConnectionResetError
        self._event(writer, {"delta": {}, "finish_reason": "stop"})
        self._chunk(writer, "data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    def _event(self, writer: asyncio.StreamWriter, choice: dict[str, Any]) -> None:
        chunk = {
            "id": "c1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "stub-1",
            "choices": [{"index": 0, **choice}],
        }
        self._chunk(writer, f"data: {json.dumps(chunk)}\n\n")

    def _chunk(self, writer: asyncio.StreamWriter, text: str) -> None:
        data = text.encode()
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


@asynccontextmanager
async def stub_provider() -> AsyncIterator[StubProvider]:
    provider = StubProvider()
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        provider.url = f"http://{host}:{port}/v1"
        try:
            yield provider
        finally:
            provider.hang_up()


def chat_openai(url: str) -> ChatOpenAI:
    return ChatOpenAI(model="stub-1", base_url=url, api_key="none", max_retries=0)  # type: ignore[arg-type]


def configurable(url: str) -> Any:
    return init_chat_model(
        configurable_fields=("model", "model_provider"), base_url=url, api_key="none", max_retries=0
    )


def configurable_and_bound(url: str) -> Any:
    return configurable(url).bind(temperature=0.5).with_retry(stop_after_attempt=1)


@pytest.mark.parametrize("make", [chat_openai, configurable, configurable_and_bound])
async def test_a_seal_hangs_up_on_a_silent_provider_and_goes_on_with_a_new_request(make: Any) -> None:
    saver, config = InMemorySaver(), thread(model="stub-1", model_provider="openai")
    ledger, usage = ledger_of(saver, config), UsageMetadataCallbackHandler()
    async with stub_provider() as provider:
        graph = agent(make(provider.url), saver=saver)
        run = asyncio.create_task(graph.ainvoke(ASKED, {**config, "callbacks": [usage]}))
        await asyncio.wait_for(provider.spoke.wait(), 10)
        await ledger.aappend(steer("Be brief."))
        await asyncio.wait_for(provider.hung_up.wait(), 10)
        state = await asyncio.wait_for(run, 10)

    kinds = said(state["messages"])
    assert [kind for kind, _ in kinds] == ["human", "ai", "human", "ai"]
    assert kinds[1][1] in ("Once", "Once upon")
    assert kinds[2:] == [("human", "Be brief."), ("ai", "A cat.")]
    assert is_sealed(state["messages"][1])
    assert [message["content"] for message in provider.requests[1]["messages"]] == [
        "Tell me a story.",
        kinds[1][1],
        "Be brief.",
    ]
    assert usage.usage_metadata["stub-1"]["total_tokens"] > 0
