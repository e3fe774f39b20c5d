"""When an answer may end early: the rule on a whole message, and the same rule chunk by chunk.

An accumulated message is sealable when a provider would take it back as a finished assistant turn:

1. it has text that is not white space (thinking and reasoning do not count);
2. no tool call for the client was begun, and none is invalid;
3. every tool that the provider runs itself has given its result.

`why_not` says it for a message and is the definition. `SealGate` says it after each chunk at the cost of
that chunk alone; a property test holds the two together on every prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from langchain_core.messages import AIMessage

WaitReason: TypeAlias = Literal["no_text", "reasoning", "tool_call", "invalid_tool_call", "provider_tool"]
"""What a seal waits for."""

_REASONING = frozenset({"thinking", "reasoning", "redacted_thinking", "reasoning_content", "thinking_delta"})

# Blocks by which the providers' own formats, and LangChain's two, begin a call that the client has to run.
# `input_json_delta` is not among them: it continues a call of either kind, which was begun before.
_CLIENT_CALLS = frozenset(
    {
        "tool_use",
        "tool_call",
        "tool_call_chunk",
        "invalid_tool_call",
        "function_call",
        "custom_tool_call",
        "computer_call",
        "shell_call",
        "apply_patch_call",
        "mcp_approval_request",
    }
)

# Calls that the provider answers itself, with an id on both sides.
_PROVIDER_CALLS = frozenset({"server_tool_use", "server_tool_call", "server_tool_call_chunk", "mcp_tool_use"})
_PROVIDER_RESULTS = frozenset({"server_tool_result", "mcp_tool_result"})


def _call_id(block: Mapping[str, Any]) -> str | None:
    return block.get("id") or None


def _result_id(block: Mapping[str, Any]) -> str | None:
    return block.get("tool_call_id") or block.get("tool_use_id") or None


def _is_provider_result(kind: str) -> bool:
    return kind in _PROVIDER_RESULTS or (kind.endswith("_tool_result") and kind != "tool_result")


class SealGate:
    """Tells, after each chunk, whether the answer so far may end here.

    Each `push` costs the size of its delta. The gate keeps no text.
    """

    __slots__ = (
        "_answered",
        "_called",
        "_has_client_call",
        "_has_invalid_call",
        "_has_other",
        "_has_reasoning",
        "_has_text",
    )

    def __init__(self) -> None:
        self._has_text = False
        self._has_reasoning = False
        self._has_client_call = False
        self._has_invalid_call = False
        self._has_other = False
        self._called: set[str] = set()
        self._answered: set[str] = set()

    def __repr__(self) -> str:
        return f"<SealGate {self.waiting_for or 'open'}>"

    def push(self, chunk: AIMessage) -> None:
        """Takes the next delta of the answer, an `AIMessageChunk` or a whole `AIMessage`."""
        content = chunk.content
        if type(content) is str:
            if not self._has_text and content and not content.isspace():
                self._has_text = True
        elif content:
            self._push_blocks(content)

        # `tool_call_chunks` first: a streamed call's arguments parse as an invalid call until they are whole.
        if getattr(chunk, "tool_call_chunks", None) or chunk.tool_calls:
            self._has_client_call = True
        elif chunk.invalid_tool_calls:
            self._has_invalid_call = True
        if chunk.additional_kwargs:
            self._push_extra(chunk.additional_kwargs)

    def _push_blocks(self, blocks: Iterable[str | dict[Any, Any]]) -> None:
        for block in blocks:
            if isinstance(block, str):
                if block and not block.isspace():
                    self._has_text = True
                continue
            kind = block.get("type") or ("text" if "text" in block else "")
            if kind == "text":
                text = block.get("text")
                if text and not text.isspace():
                    self._has_text = True
            elif kind in _REASONING:
                self._has_reasoning = True
            elif kind in _CLIENT_CALLS:
                self._has_client_call = True
            elif kind in _PROVIDER_CALLS:
                self._has_other = True
                if name := _call_id(block):
                    self._called.add(name)
            else:
                self._has_other = True
                if _is_provider_result(kind) and (name := _result_id(block)):
                    self._answered.add(name)

    def _push_extra(self, extra: Mapping[str, Any]) -> None:
        if extra.get("tool_calls") or extra.get("function_call"):
            self._has_client_call = True
        if extra.get("reasoning_content") or extra.get("reasoning"):
            self._has_reasoning = True

    @property
    def waiting_for(self) -> WaitReason | None:
        """What is missing for a seal, or None when the answer may end here."""
        if self._has_client_call:
            return "tool_call"
        if self._has_invalid_call:
            return "invalid_tool_call"
        if not self._called <= self._answered:
            return "provider_tool"
        if not self._has_text:
            return "reasoning" if self._has_reasoning else "no_text"
        return None

    @property
    def is_blank(self) -> bool:
        """Whether nothing was said that a person could see: silence, white space and known reasoning only.

        A block of a kind that is not known counts as seen.
        """
        return not (self._has_text or self._has_client_call or self._has_invalid_call or self._has_other)

    @property
    def is_open(self) -> bool:
        """Whether the answer may end here."""
        return (
            self._has_text
            and not self._has_client_call
            and not self._has_invalid_call
            and self._called <= self._answered
        )


def why_not(message: AIMessage) -> WaitReason | None:
    """Returns what is missing for this accumulated message to be sealed, or None when nothing is."""
    blocks: list[dict[str, Any]] = []
    texts: list[str] = []
    for block in [message.content] if isinstance(message.content, str) else message.content:
        if isinstance(block, str):
            texts.append(block)
        elif (block.get("type") or "text") == "text":
            texts.append(block.get("text") or "")
        else:
            blocks.append(block)
    kinds = {str(block["type"]) for block in blocks}
    extra = message.additional_kwargs

    if (
        message.tool_calls
        or getattr(message, "tool_call_chunks", None)
        or kinds & _CLIENT_CALLS
        or extra.get("tool_calls")
        or extra.get("function_call")
    ):
        return "tool_call"
    if message.invalid_tool_calls:
        return "invalid_tool_call"
    called = {_call_id(block) for block in blocks if block["type"] in _PROVIDER_CALLS}
    answered = {_result_id(block) for block in blocks if _is_provider_result(block["type"])}
    if called - answered - {None}:
        return "provider_tool"
    if not "".join(texts).strip():
        has_reasoning = kinds & _REASONING or extra.get("reasoning_content") or extra.get("reasoning")
        return "reasoning" if has_reasoning else "no_text"
    return None
