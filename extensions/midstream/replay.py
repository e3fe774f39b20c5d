"""What a turn of the model keeps, so that a provider takes it back.

`tidy_sealed` is for the thread, `readable` for one request to one provider. Of a sealed turn the text stays
as it was streamed, character by character. What goes is what leads nowhere, because the response that it
was a part of never completed:

* the ids of that response and of its messages (OpenAI Responses): nothing was stored under them;
* reasoning that is not whole: without its own ciphertext (Responses) or signature (Anthropic), or cut short;
* text blocks in which nothing was written yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from langchain_core.messages import AIMessage

from midstream.gate import REASONING, is_blank, unwrapped
from midstream.provider import KNOWN, Provider

SEALED_KEY = "preemption"
"""Where a sealed message says so: `response_metadata["preemption"]["sealed"]`."""


def is_sealed(message: AIMessage) -> bool:
    """Tells whether this answer was ended by midstream, also after it was stored and loaded again."""
    mark = message.response_metadata.get(SEALED_KEY)
    return isinstance(mark, Mapping) and bool(mark.get("sealed"))


def is_reasoning(block: Any) -> bool:
    """Tells whether the model thinks in this block."""
    return isinstance(block, dict) and unwrapped(block).get("type") in REASONING


def ciphertext(block: Mapping[str, Any]) -> str | None:
    """Returns the encrypted reasoning of an item of OpenAI Responses, in LangChain's format or in its own."""
    inner = unwrapped(block)
    return inner.get("encrypted_content") or (inner.get("extras") or {}).get("encrypted_content") or None


def signature(block: Mapping[str, Any]) -> str | None:
    """Returns what a provider signed its thinking with, or the thinking itself where it is encrypted."""
    inner = unwrapped(block)
    nested = inner.get("reasoning_content")
    places = (inner, inner.get("extras"), nested)
    return next(
        (
            place[key]
            for place in places
            if isinstance(place, Mapping)
            for key in ("signature", "data", "redacted_content", "redactedContent", "thought_signature")
            if place.get(key)
        ),
        None,
    )


def item_id(block: Any, *prefixes: str) -> str | None:
    """Returns the id by which OpenAI Responses knows this block, if it is one with such a prefix."""
    found = unwrapped(block).get("id") if isinstance(block, dict) else None
    return found if isinstance(found, str) and found.startswith(prefixes) else None


def own_ciphertexts(content: list[Any]) -> set[str]:
    """Returns the ids of the reasoning items that can be replayed though nobody stored them.

    LangChain's format has one block for each part of a summary; one of them carries the item's ciphertext.
    """
    return {
        name
        for block in content
        if is_reasoning(block) and ciphertext(block) and (name := item_id(block, "rs_")) and is_one_item(name)
    }


def is_one_item(name: str) -> bool:
    """Tells whether this is the id of one item: merged chunks of two have both, one after the other."""
    return name.count("rs_") == 1


def tidy_sealed(message: AIMessage) -> AIMessage:
    """Returns the answer as it goes into the thread; the same object if there is nothing to tidy."""
    message = _without_ids(message)
    changes: dict[str, Any] = {}

    hidden = message.additional_kwargs.get("reasoning")
    if isinstance(hidden, dict) and ("summary" in hidden or "encrypted_content" in hidden):
        # The oldest format of `langchain-openai` has one place for all reasoning items: it cannot be told
        # whether this is one, or two of which the ciphertexts were added to each other.
        extra = message.additional_kwargs
        changes["additional_kwargs"] = {key: value for key, value in extra.items() if key != "reasoning"}

    if isinstance(message.content, list):
        content = _whole_blocks(message.content, message.response_metadata.get("model_provider"))
        if len(content) < len(message.content):
            changes["content"] = content

    return message.model_copy(update=changes) if changes else message


def _without_ids(message: AIMessage) -> AIMessage:
    """Leaves out under which ids OpenAI Responses would have stored the answer and its text."""
    changes: dict[str, Any] = {}
    metadata = message.response_metadata
    if str(metadata.get("id") or "").startswith("resp_"):
        changes["response_metadata"] = {key: value for key, value in metadata.items() if key != "id"}
    if isinstance(message.content, list) and any(item_id(block, "msg_") for block in message.content):
        changes["content"] = [
            {key: value for key, value in block.items() if key != "id"}
            if isinstance(block, dict) and item_id(block, "msg_")
            else block
            for block in message.content
        ]
    return message.model_copy(update=changes) if changes else message


def _whole_blocks(content: list[Any], provider: str | None) -> list[Any]:
    encrypted = own_ciphertexts(content)
    kept = [block for block in content if not _is_unwritten(block)]
    while kept and is_reasoning(kept[-1]) and not (signature(kept[-1]) or ciphertext(kept[-1])):
        kept.pop()  # it was being written when the answer ended

    def is_whole(block: Any) -> bool:
        if not is_reasoning(block):
            return True
        if item := item_id(block, "rs_"):
            return item in encrypted
        return bool(signature(block)) or provider != "anthropic"

    return [block for block in kept if is_whole(block)]


def _is_unwritten(block: Any) -> bool:
    if not isinstance(block, dict):
        return not block
    told = block.get("text") or block.get("annotations") or block.get("citations")
    return block.get("type") == "text" and not told


def readable(message: AIMessage, provider: Provider, results: set[str], is_last: bool) -> AIMessage:
    """Returns the turn as this provider takes it back; the same object if it takes it as it is.

    Args:
        message: A turn of the model, by whichever provider.
        provider: Who is to read it.
        results: The ids of the calls that have a result in the request.
        is_last: Whether the request ends with it.
    """
    author = message.response_metadata.get("model_provider")
    if author in KNOWN and provider.wrote and author not in provider.wrote:
        message = _plain(message, author)
    match provider.name:
        case "openai":
            return _for_chat(message)
        case "responses":
            return _for_responses(message, provider, results)
        case "anthropic":
            return _for_anthropic(message, is_last)
        case "bedrock" | "google":
            # Clients that join neighbours would make a blank text a block of its own.
            return _with_content(_without_blank(message), lambda block: not is_blank_text(block))
        case _:
            return message


def _plain(message: AIMessage, author: str) -> AIMessage:
    """Returns another provider's turn as its text and its tool calls."""
    content: str | list[Any] = message.content
    if isinstance(content, list):
        content = [{"type": "text", "text": text} for text in _texts(content) if not is_blank(text)]
    if content == message.content and not message.additional_kwargs:
        return message
    return message.model_copy(
        update={
            "content": content,
            "additional_kwargs": {},
            "response_metadata": {"model_provider": author},
        }
    )


def _texts(content: Iterable[Any]) -> Iterator[str]:
    for block in content:
        if isinstance(block, str):
            yield block
        elif block.get("type") == "text":
            yield block.get("text") or ""
        elif block.get("type") == "refusal":
            yield block.get("refusal") or ""


def is_blank_text(block: Any) -> bool:
    if isinstance(block, str):
        return is_blank(block)
    # Google signs empty text, and citations may come without any.
    return (
        block.get("type") == "text"
        and is_blank(block.get("text"))
        and not (signature(block) or block.get("citations") or block.get("annotations"))
    )


def _with_content(message: AIMessage, keeps: Callable[[Any], bool]) -> AIMessage:
    if isinstance(message.content, str):
        return message
    content = [block for block in message.content if keeps(block)]
    return (
        message if len(content) == len(message.content) else message.model_copy(update={"content": content})
    )


# What chat completions take from the assistant, and what the client itself leaves out of a request.
_CHAT_BLOCKS: Final = frozenset(
    {"text", "refusal", "audio", "reasoning", "thinking", "reasoning_content"}
) | {
    "tool_use",
    "tool_call",
    "function_call",
    "invalid_tool_call",
}


def _for_chat(message: AIMessage) -> AIMessage:
    return _with_content(
        _with_refusal(message),
        lambda block: (
            not _is_unwritten(block) and (isinstance(block, str) or block.get("type") in _CHAT_BLOCKS)
        ),
    )


def _with_refusal(message: AIMessage) -> AIMessage:
    # The client reads a refusal beside the content, but sends only one that is in it.
    refusal = message.additional_kwargs.get("refusal")
    if not refusal or not isinstance(message.content, str) or not is_blank(message.content):
        return message
    extra = {key: value for key, value in message.additional_kwargs.items() if key != "refusal"}
    block = {"type": "refusal", "refusal": refusal}
    return message.model_copy(update={"content": [block], "additional_kwargs": extra})


_STORED_ITEMS: Final = (
    *("ws_", "fs_", "ci_", "ig_", "mcp_", "mcpl_", "mcpr_", "tsc_", "tso_", "cu_"),
    *("sh_", "apc_"),
)


def _for_responses(message: AIMessage, provider: Provider, results: set[str]) -> AIMessage:
    """Leaves out what refers to an item that the API does not have.

    The response of a sealed answer never completed, so none of its items was stored. Given in full and with
    their own ciphertext, its reasoning items are taken; its built-in calls only where nothing is stored.
    """
    message = _without_blank(_with_refusal(message))
    is_stored = provider.stores and not is_sealed(message)
    encrypted = own_ciphertexts(message.content) if isinstance(message.content, list) else set()

    def keeps(block: Any) -> bool:
        if _is_unwritten(block):
            return False
        if isinstance(block, str):
            return True
        if is_reasoning(block):
            name = unwrapped(block).get("id")
            if not name:
                return bool(ciphertext(block))
            return is_one_item(name) and (is_stored or name in encrypted)
        if unwrapped(block).get("type") == "computer_call":
            return unwrapped(block).get("call_id") in results
        if provider.stores and not is_stored:
            call = unwrapped(block).get("tool_call_id")
            return not item_id(block, *_STORED_ITEMS) and not str(call or "").startswith(_STORED_ITEMS)
        return True

    message = _with_content(message, keeps)
    if provider.stores and not is_stored:
        message = _without_ids(message)
    if isinstance(message.content, list) and not message.tool_calls:
        end = len(message.content)
        while end and is_reasoning(message.content[end - 1]):  # it has to be followed by what it led to
            end -= 1
        if end < len(message.content):
            message = message.model_copy(update={"content": message.content[:end]})

    changes: dict[str, Any] = {}
    extra = message.additional_kwargs
    hidden = extra.get("reasoning")
    is_welded = isinstance(hidden, dict) and str(hidden.get("id") or "").count("rs_") > 1
    gone = {"reasoning"} if is_welded else set()
    if provider.stores and not is_stored:
        gone.add("tool_outputs")
        if str(message.id or "").startswith("msg_"):  # the oldest format keeps the item's id there
            changes["id"] = None
    if gone & extra.keys():
        changes["additional_kwargs"] = {key: value for key, value in extra.items() if key not in gone}
    return message.model_copy(update=changes) if changes else message


def _without_blank(message: AIMessage) -> AIMessage:
    """Leaves out a text of nothing that stands beside tool calls, and would be sent as a text."""
    has_calls = message.tool_calls or message.invalid_tool_calls
    if not has_calls or not isinstance(message.content, str) or not is_blank(message.content):
        return message
    return message.model_copy(update={"content": []})


def _for_anthropic(message: AIMessage, is_last: bool) -> AIMessage:
    message = _without_blank(message)
    if isinstance(message.content, str):
        return message

    inner = [unwrapped(block) for block in message.content if isinstance(block, dict)]
    called = {block.get("id") for block in inner if block.get("type") in _SERVER_CALLS}
    answered = {_answers(block) for block in inner}
    # A turn that was paused, or that waits for the client too, is taken back with its call open.
    stop = message.response_metadata.get("stop_reason")
    may_wait = stop == "tool_use" or (stop == "pause_turn" and is_last)

    def keeps(block: Any) -> bool:
        if isinstance(block, str):
            return not is_blank(block)
        if is_reasoning(block):
            return bool(signature(block))
        if unwrapped(block).get("type") in _SERVER_CALLS:
            return may_wait or unwrapped(block).get("id") in answered
        result = _answers(unwrapped(block))
        return result is None or result in called

    return _with_content(message, keeps)


_SERVER_CALLS: Final = frozenset({"server_tool_use", "mcp_tool_use", "server_tool_call"})


def _answers(block: Mapping[str, Any]) -> str | None:
    """Returns the id of the provider-side call whose result this block is."""
    kind = str(block.get("type"))
    if kind == "server_tool_result":
        return block.get("tool_call_id")
    return block.get("tool_use_id") if kind.endswith("_tool_result") else None
