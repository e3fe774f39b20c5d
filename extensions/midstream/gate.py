"""When an answer may end early: the rule on a whole message, and the same rule chunk by chunk.

An accumulated message is sealable when a provider would take it back as a finished assistant turn:

1. it has text that is not white space (thinking, reasoning, refusals and images do not count);
2. no tool call for the client was begun, and none is invalid;
3. every tool that the provider runs itself has given its result. Calls and results are matched by id where
   they have ids, and counted where they have none, as with Google; code execution is counted on its own.

`why_not` says it for a message and is the definition. `SealGate` says it after each chunk at the cost of
that chunk alone; a property test holds the two together on every prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

from langchain_core.messages import AIMessage

WaitReason: TypeAlias = Literal["no_text", "reasoning", "tool_call", "invalid_tool_call", "provider_tool"]
"""What a seal waits for."""

_Kind: TypeAlias = Literal[
    "text", "reasoning", "client", "call", "result", "whole", "code", "output", "other"
]
_Begun: TypeAlias = tuple[_Kind, str | None]

REASONING: Final = frozenset(
    {"thinking", "reasoning", "redacted_thinking", "reasoning_content", "thinking_delta", "signature_delta"}
)
"""The types of the blocks in which a model thinks."""

# `input_json_delta` is of no kind: it continues a call of either side, which was begun before.
_KINDS: Final[dict[str, _Kind]] = {
    "text": "text",
    "text_delta": "text",
    "output_text": "text",
    **dict.fromkeys(REASONING, "reasoning"),
    # What the client has to run, as the providers' own formats and LangChain's two begin it.
    "tool_use": "client",
    "tool_call": "client",
    "tool_call_chunk": "client",
    "invalid_tool_call": "client",
    "function_call": "client",
    "custom_tool_call": "client",
    "computer_call": "client",
    "shell_call": "client",
    "local_shell_call": "client",
    "apply_patch_call": "client",
    "mcp_approval_request": "client",
    # What the provider answers by another block.
    "server_tool_use": "call",
    "server_tool_call": "call",
    "server_tool_call_chunk": "call",
    "mcp_tool_use": "call",
    "toolCall": "call",
    "server_tool_result": "result",
    "tool_result": "result",
    "toolResponse": "result",
    "executable_code": "code",
    "code_execution_result": "output",
    # What the provider answers in the block itself, and says so by its status.
    "web_search_call": "whole",
    "file_search_call": "whole",
    "code_interpreter_call": "whole",
    "image_generation_call": "whole",
    "mcp_call": "whole",
    "mcp_list_tools": "whole",
    "tool_search_call": "whole",
}

# What a block of text has that nobody sees.
_UNSEEN: Final = frozenset({"type", "text", "index", "id", "extras", "signature", "thought_signature"})

# Statuses of two deltas of one block are merged by concatenation, so the end decides.
_ENDED: Final = ("completed", "failed", "incomplete", "cancelled")


def unwrapped(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the provider's own block where LangChain has wrapped it as one that it does not know."""
    value = block.get("value") if block.get("type") == "non_standard" else None
    return value if isinstance(value, Mapping) else block


def is_blank(text: str | None) -> bool:
    """Tells whether there is nothing to see in this text."""
    return not text or text.isspace()


def _kind_of(block: Mapping[str, Any]) -> _Kind:
    name = block.get("type")
    if not name:
        return "text" if "text" in block or block.keys() <= {"index", "id"} else "other"
    if name == "non_standard":
        kind = _kind_of(unwrapped(block)) if isinstance(block.get("value"), Mapping) else "other"
        return "other" if kind == "text" else kind
    if name == "tool_search_call" and block.get("execution") == "client":
        return "client"
    return _KINDS.get(name) or ("result" if name.endswith("_tool_result") else "other")


def _name_of(kind: _Kind, block: Mapping[str, Any]) -> str | None:
    """Returns the id of the call that a block makes or answers."""
    block = unwrapped(block)
    if kind == "result":
        return block.get("tool_call_id") or block.get("tool_use_id") or block.get("toolUseId") or None
    return block.get("id") or None


def _status_of(block: Mapping[str, Any]) -> str | None:
    return unwrapped(block).get("status") or None


def _hidden_blocks(extra: Mapping[str, Any]) -> list[dict[str, Any]]:
    # Where `langchain-openai` keeps the built-in calls of Responses in its oldest format.
    found = extra.get("tool_outputs")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


class SealGate:
    """Tells, after each chunk, whether the answer so far may end here.

    Each `push` costs the size of its delta. The gate keeps no text.
    """

    __slots__ = (
        "_answered",
        "_begun",
        "_codes",
        "_has_client_call",
        "_has_invalid_call",
        "_has_other",
        "_has_reasoning",
        "_has_text",
        "_nameless",
        "_open",
    )

    def __init__(self) -> None:
        self._has_text = False
        self._has_reasoning = False
        self._has_client_call = False
        self._has_invalid_call = False
        self._has_other = False
        self._open: set[str] = set()
        self._answered: set[str] = set()
        self._nameless = 0
        """Calls less results, of those that have no id."""

        self._codes = 0
        """Executable code less its results."""

        self._begun: dict[int | str, _Begun] = {}
        """By index, the kind and id that a block began with: later deltas are merged into it."""

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
        if extra := chunk.additional_kwargs:
            if extra.get("tool_calls") or extra.get("function_call"):
                self._has_client_call = True
            if extra.get("reasoning_content") or extra.get("reasoning"):
                self._has_reasoning = True
            if hidden := _hidden_blocks(extra):
                self._push_blocks(hidden)
            if any(extra[key] for key in extra.keys() - {"reasoning_content", "reasoning"}):
                self._has_other = True

    def _push_blocks(self, blocks: Iterable[str | dict[Any, Any]]) -> None:
        for block in blocks:
            if isinstance(block, str):
                if not self._has_text and not is_blank(block):
                    self._has_text = True
                continue
            kind = own = _kind_of(block)
            begun = None
            if (index := block.get("index")) is not None:
                begun = self._begun.get(index)
                if begun is None:
                    self._begun[index] = (kind, _name_of(kind, block))
                elif block.get("id") and begun[1] and begun[1] != block["id"]:
                    begun = None  # core does not merge blocks of different ids
                else:
                    kind = begun[0]
            if kind == "text":
                if self._has_text:
                    pass
                elif not is_blank(block.get("text")):
                    self._has_text = True
                elif any(block[key] for key in block.keys() - _UNSEEN):
                    self._has_other = True  # such as a citation, which is shown without a text of its own
                if own == "call":
                    self._has_other = True
                    self._push_call(own, block, None)
            elif kind == "reasoning":
                self._has_reasoning = True
            elif kind == "client":
                self._has_client_call = True
            else:
                self._has_other = True
                if kind != "other":
                    self._push_call(kind, block, begun)

    def _push_call(
        self, kind: _Kind, block: Mapping[str, Any], begun: tuple[_Kind, str | None] | None
    ) -> None:
        name = _name_of(kind, block)
        if kind == "whole":
            status = _status_of(block)
            name = name or (begun[1] if begun else None)
            if name and (status or not begun):
                self._settle(name, status is None or status.endswith(_ENDED))
        elif begun is not None and name is None:
            return
        elif kind == "code":
            self._codes += begun is None
        elif kind == "output":
            self._codes -= begun is None
        elif name is not None:
            self._settle(name, kind == "result")
        else:
            self._nameless += 1 if kind == "call" else -1

    def _settle(self, name: str, is_answered: bool) -> None:
        if is_answered:
            self._answered.add(name)
            self._open.discard(name)
        elif name not in self._answered:
            self._open.add(name)

    @property
    def waiting_for(self) -> WaitReason | None:
        """What is missing for a seal, or None when the answer may end here."""
        if self._has_client_call:
            return "tool_call"
        if self._has_invalid_call:
            return "invalid_tool_call"
        if len(self._open) + self._nameless > 0 or self._codes > 0:
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
        return self._has_text and self.waiting_for is None


def why_not(message: AIMessage) -> WaitReason | None:
    """Returns what is missing for this accumulated message to be sealed, or None when nothing is."""
    content = [message.content] if isinstance(message.content, str) else message.content
    extra = message.additional_kwargs
    texts = [each for each in content if isinstance(each, str)]
    blocks = [each for each in content if isinstance(each, dict)] + _hidden_blocks(extra)

    kinds = [_kind_of(block) for block in blocks]
    texts += [block.get("text") or "" for block, kind in zip(blocks, kinds, strict=True) if kind == "text"]

    if (
        message.tool_calls
        or getattr(message, "tool_call_chunks", None)
        or "client" in kinds
        or extra.get("tool_calls")
        or extra.get("function_call")
    ):
        return "tool_call"
    if message.invalid_tool_calls:
        return "invalid_tool_call"
    if _unanswered(blocks, kinds):
        return "provider_tool"
    if is_blank("".join(texts)):
        has_reasoning = "reasoning" in kinds or extra.get("reasoning_content") or extra.get("reasoning")
        return "reasoning" if has_reasoning else "no_text"
    return None


def _unanswered(blocks: list[dict[str, Any]], kinds: list[_Kind]) -> bool:
    called: set[str | None] = set()
    answered: set[str | None] = set()
    nameless = 0
    for block, kind in zip(blocks, kinds, strict=True):
        # Google's v1 content gives a text and the code after it one index, so that core merges them.
        if kind == "text" and "name" in block and "args" in block:
            kind = "call"
        if kind not in ("call", "result", "whole"):
            continue
        name = _name_of(kind, block)
        if kind == "whole":
            status = _status_of(block)
            (answered if status is None or status.endswith(_ENDED) else called).add(name)
        elif name is not None:
            (called if kind == "call" else answered).add(name)
        else:
            nameless += 1 if kind == "call" else -1
    is_code_open = kinds.count("code") > kinds.count("output")
    return is_code_open or len(called - answered - {None}) + nameless > 0
