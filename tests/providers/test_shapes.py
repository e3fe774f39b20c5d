"""The gate's truth table: what the providers' clients make of their streams, chunk by chunk, as data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessageChunk
from langchain_core.messages.ai import add_ai_message_chunks

from midstream.gate import SealGate, why_not

SHAPES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "shapes.json").read_text())


def chunk_of(facts: dict[str, Any]) -> AIMessageChunk:
    return AIMessageChunk(**{key: value for key, value in facts.items() if key != "waits_for"})


def merged(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    return add_ai_message_chunks(chunks[0], *chunks[1:])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape['provider']}: {shape['name']}")
def test_the_gate_knows_every_shape(shape: dict[str, Any]) -> None:
    gate = SealGate()
    chunks: list[AIMessageChunk] = []
    expected, by_chunk, by_message = [], [], []
    for facts in shape["chunks"]:
        chunks.append(chunk_of(facts))
        gate.push(chunk_of(facts))
        expected.append(facts["waits_for"])
        by_chunk.append(gate.waiting_for)
        by_message.append(why_not(merged(chunks)))

    assert by_message == expected
    assert by_chunk == expected


# Streams as providers send them: blocks one after the other, each with an index of its own, in some pieces.
_texts = st.text(alphabet=st.sampled_from("ab \n\t"), max_size=3)
_ids = st.sampled_from(["a", "b", "c"])


def _delta(**facts: Any) -> dict[str, Any]:
    return {"content": [facts]}


def _text(text: str, more: str) -> list[dict[str, Any]]:
    return [_delta(type="text", text=text), _delta(type="text", text=more)]


def _server_tool(name: str, kind: str) -> list[dict[str, Any]]:
    use = {"anthropic": "server_tool_use", "v1": "server_tool_call_chunk", "mcp": "mcp_tool_use"}[kind]
    return [_delta(type=use, id=name, name="f", args=""), _delta(type="input_json_delta", partial_json="{}")]


def _server_result(name: str, kind: str) -> list[dict[str, Any]]:
    facts = {
        "anthropic": {"type": "web_search_tool_result", "tool_use_id": name},
        "v1": {"type": "server_tool_result", "tool_call_id": name},
        "mcp": {"type": "mcp_tool_result", "tool_use_id": name},
        "nameless": {"type": "server_tool_result", "tool_call_id": ""},
    }[kind]
    return [_delta(**facts), _delta(type="text", text="found")]


def _built_in(name: str, statuses: list[str]) -> list[dict[str, Any]]:
    return [_delta(type="web_search_call", id=name, status=status) for status in statuses]


_kinds = st.sampled_from(["anthropic", "v1", "mcp"])
_blocks = st.one_of(
    st.builds(_text, _texts, _texts),
    st.builds(lambda text: [{"content": text}], _texts),
    st.builds(lambda text: [_delta(type="thinking", thinking=text)], _texts),
    st.builds(lambda text: [{"content": "", "additional_kwargs": {"reasoning_content": text}}], _texts),
    st.just([_delta(type="redacted_thinking", data="x")]),
    st.just([_delta(type="refusal", refusal="no")]),
    st.just([_delta(type="image_url", image_url={"url": "data:,"})]),
    st.just([_delta(type="non_standard", value={"type": "redacted_thinking", "data": "x"})]),
    st.builds(_server_tool, _ids, _kinds),
    st.builds(_server_result, _ids, st.sampled_from(["anthropic", "v1", "mcp", "nameless"])),
    st.builds(_built_in, _ids, st.sampled_from([["in_progress"], ["in_progress", "completed"], ["failed"]])),
    st.just([_delta(type="executable_code", executable_code="1", id="x")]),
    st.just([_delta(type="code_execution_result", code_execution_result="1", tool_call_id="")]),
    st.just([_delta(type="toolCall")]),
    st.just([{"content": "", "tool_call_chunks": [{"name": "f", "args": "{", "id": "call", "index": 99}]}]),
    st.just([_delta(type="tool_use", id="toolu", name="f", input={})]),
    st.just([{"content": ""}]),
    st.just([{"content": []}]),
)


def _indexed(blocks: list[list[dict[str, Any]]], has_indices: bool) -> list[dict[str, Any]]:
    """Gives each block its index, as most clients do; without one core keeps all deltas apart."""
    chunks: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        for facts in block:
            content = facts["content"]
            if content == [] and not any(chunk["content"] for chunk in chunks):
                continue  # core loses a string that is added to an empty list
            if has_indices and isinstance(content, list):
                content = [{**part, "index": index} for part in content]
            chunks.append({**facts, "content": content})
    return chunks


@given(st.builds(_indexed, st.lists(_blocks, max_size=8), st.booleans()))
def test_chunk_by_chunk_the_gate_says_what_the_rule_says_of_the_whole(chunks: list[dict[str, Any]]) -> None:
    gate = SealGate()
    seen: list[AIMessageChunk] = []
    for facts in chunks:
        gate.push(AIMessageChunk(**facts))
        seen.append(AIMessageChunk(**facts))

        assert gate.waiting_for == why_not(merged(seen))
        assert gate.is_open == (gate.waiting_for is None)
