"""The last hop before a provider: makes a request valid, whatever its thread went through.

`repair` looks at the messages of one call, for the provider that serves this very call, so that a fallback
repairs anew. State keeps the truth. In this order, each step once through the list:

1. Turns of the model: what this provider does not take back goes (another provider's own blocks, reasoning
   without a signature or ciphertext, references to what was never stored); a turn with nothing left in it is
   not sent. Of another provider's turn the text and the tool calls remain. Nor is an empty turn of the user's
   sent; and where the system may speak at the beginning alone, a later word of it is said by the user.
2. Tools: each call is followed by exactly one result. Calls that a run left open are answered as cancelled,
   calls with broken arguments by an error; results without a call and second results go. Of calls
   that share an id all but the first get another one, and so do their results, in the order of the calls.
3. The ends: a thread that begins with a turn of the model (a greeting) is begun by the user where it has to
   be, and one that ends in such a turn is asked to continue.
4. Alternation, for those who need it and whose client does not see to it: neighbours of one role become one
   turn. Tool results are never folded into text.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolCall,
    ToolMessage,
)

from midstream.gate import is_blank, unwrapped
from midstream.provider import Provider
from midstream.replay import is_blank_text, is_reasoning, readable

CONTINUE: Final = "Continue."
"""What a thread that ends in a turn of the model is asked."""

BEGIN: Final = "Begin."
"""What the user says before a thread that begins with a turn of the model."""

ACKNOWLEDGED: Final = "Understood."
"""The turn of the model that Mistral wants between a tool's result and the next user turn."""

CANCELLED: Final = (
    "This call was cancelled: no result of it was kept. It may have acted; check before you repeat it."
)
"""The result of a call that has none. It may have acted before its run was cancelled, or failed."""


def repair(messages: list[BaseMessage], provider: Provider) -> list[BaseMessage]:
    """Returns the messages as the provider takes them; the same list object if nothing was wrong.

    Idempotent, and linear in the size of the messages.
    """
    broken: dict[str, InvalidToolCall] = {}
    turns: list[BaseMessage] = []
    is_known = bool(provider.wrote)
    results = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    has_begun = False
    ids = _Ids(provider)
    for place, message in enumerate(messages):
        turn = message
        if isinstance(turn, SystemMessage):
            if has_begun and provider.leads_with_system:
                turn = HumanMessage(turn.content, id=turn.id, additional_kwargs=turn.additional_kwargs)
        else:
            has_begun = True
        if isinstance(turn, HumanMessage) and is_known and _says_nothing(turn):
            continue
        if isinstance(turn, AIMessage):
            is_last = place == len(messages) - 1
            turn = _named_calls(readable(turn, provider, results, is_last), place)
            turn = ids.told_apart(_whole_calls(turn, broken), place)
            if _is_empty(turn):
                continue
        if isinstance(turn, ToolMessage):
            turn = ids.of_its_call(turn)
        turns.append(turn)

    turns = _answered(turns, broken)
    if provider.begins_with_user:
        first = next((n for n, turn in enumerate(turns) if not isinstance(turn, SystemMessage)), None)
        if first is not None and isinstance(turns[first], AIMessage):
            turns.insert(first, HumanMessage(BEGIN))
    if provider.asks_to_continue and turns and _is_left_open(turns[-1], provider):
        turns.append(HumanMessage(CONTINUE))
    if provider.alternates or provider.answers_tools:
        turns = _alternating(turns, provider)

    is_same = len(turns) == len(messages) and all(map(operator.is_, turns, messages))
    return messages if is_same else turns


def _named_calls(message: AIMessage, place: int) -> AIMessage:
    """Returns the message with ids for the calls that came without one, which no result can answer."""
    if all(call["id"] for call in message.tool_calls):
        return message
    calls = [
        call if call["id"] else ToolCall(**{**call, "id": f"unnamed_{place}_{n}"})
        for n, call in enumerate(message.tool_calls)
    ]
    content = message.content
    if isinstance(content, list):  # the clients write the calls anew that their content does not have
        content = [block for block in content if not _is_nameless_call(block)]
    return message.model_copy(update={"content": content, "tool_calls": calls})


def _is_nameless_call(block: Any) -> bool:
    return _is_call(block) and not (block.get("call_id") or block.get("id"))


def _is_call(block: Any) -> bool:
    kinds = ("tool_use", "tool_call", "function_call", "custom_tool_call")
    return isinstance(block, dict) and block.get("type") in kinds


class _Ids:
    """The ids of a thread's tool calls, from its first turn to its last."""

    def __init__(self, provider: Provider) -> None:
        self._is_unique = provider.has_unique_calls
        self._used: set[str] = set()
        self._waiting: dict[str, list[str]] = {}
        """By the id that a result names, what the newest calls of that id are called, the last one first."""

    def told_apart(self, message: AIMessage, place: int) -> AIMessage:
        """Returns the message with another id for each call whose id another call has."""
        names = [str(call["id"]) for call in message.tool_calls]
        used = self._used if self._is_unique else set()
        waiting: dict[str, list[str]] = {}
        for n, name in enumerate(names):
            waiting.setdefault(name, []).insert(0, f"again_{place}_{n}" if name in used else name)
            used.add(name)
        self._waiting |= waiting
        new = {name: list(reversed(mine)) for name, mine in waiting.items()}
        if all(mine == [name] for name, mine in new.items()):
            return message

        told = {name: iter(mine) for name, mine in new.items()}
        calls = [ToolCall(**{**call, "id": next(told[str(call["id"])])}) for call in message.tool_calls]
        content = message.content
        if isinstance(content, list):  # the clients write the calls anew that their content does not have
            blocks = {name: iter(mine) for name, mine in new.items()}
            content = [block for block in content if not _is_renamed(block, blocks)]
        return message.model_copy(update={"content": content, "tool_calls": calls})

    def of_its_call(self, result: ToolMessage) -> ToolMessage:
        """Returns the result with the id of the call that it answers, the first that waits for one."""
        waiting = self._waiting.get(result.tool_call_id)
        name = waiting.pop() if waiting else result.tool_call_id
        return result if name == result.tool_call_id else result.model_copy(update={"tool_call_id": name})


def _is_renamed(block: Any, told: Mapping[str, Iterator[str]]) -> bool:
    """Tells whether a block is a call that has another id now; `told` are the ids that are still to come."""
    if not _is_call(block):
        return False
    name = str(block.get("call_id") or block.get("id"))
    return name in told and next(told[name], None) != name


def _whole_calls(message: AIMessage, broken: dict[str, InvalidToolCall]) -> AIMessage:
    """Returns the message with its invalid calls as calls without arguments, which every API can parse."""
    if not message.invalid_tool_calls:
        return message
    calls = [*message.tool_calls]
    for invalid in message.invalid_tool_calls:
        if (name := invalid.get("id")) and invalid.get("name"):
            broken[name] = invalid
            calls.append(ToolCall(type="tool_call", name=str(invalid["name"]), args={}, id=name))
    content = message.content
    if isinstance(content, list):
        content = [
            {**block, "arguments": "{}"}
            if isinstance(block, dict) and "arguments" in block and block.get("call_id") in broken
            else block
            for block in content
        ]
    return message.model_copy(update={"content": content, "tool_calls": calls, "invalid_tool_calls": []})


def _says_nothing(message: HumanMessage) -> bool:
    content = [message.content] if isinstance(message.content, str) else message.content
    return all(map(is_blank_text, content))


def _is_empty(message: AIMessage) -> bool:
    extra = message.additional_kwargs
    if message.tool_calls or any(
        extra.get(key) for key in ("tool_calls", "function_call", "audio", "tool_outputs", "refusal")
    ):
        return False
    content = [message.content] if isinstance(message.content, str) else message.content
    return all(is_blank_text(block) or is_reasoning(block) for block in content)


def _answered(turns: list[BaseMessage], broken: Mapping[str, InvalidToolCall]) -> list[BaseMessage]:
    owners: dict[str, int] = {}
    results: dict[int, dict[str, ToolMessage]] = {}
    for place, turn in enumerate(turns):
        if isinstance(turn, AIMessage):
            owners.update(dict.fromkeys(_call_ids(turn), place))
        elif isinstance(turn, ToolMessage) and (owner := owners.get(turn.tool_call_id)) is not None:
            results.setdefault(owner, {}).setdefault(turn.tool_call_id, turn)

    answered: list[BaseMessage] = []
    for place, turn in enumerate(turns):
        if isinstance(turn, ToolMessage):
            continue
        answered.append(turn)
        if isinstance(turn, AIMessage):
            known = results.get(place, {})
            answered += known.values()
            answered += [
                _not_run(turn, call, broken)
                for call in turn.tool_calls
                if call["id"] and call["id"] not in known
            ]
    return answered


def _call_ids(message: AIMessage) -> Iterator[str]:
    """Yields the ids that a tool's result may answer, also of calls that LangChain does not parse."""
    for call in message.tool_calls:
        if call["id"]:
            yield call["id"]
    hidden = message.additional_kwargs.get("tool_outputs")
    for part in (message.content, hidden):
        for block in part if isinstance(part, list) else ():
            if isinstance(block, dict):
                inner = unwrapped(block)
                name = inner.get("call_id") or (inner.get("id") if inner.get("type") == "tool_use" else None)
                if name:
                    yield name


def _not_run(message: AIMessage, call: ToolCall, broken: Mapping[str, InvalidToolCall]) -> ToolMessage:
    said: str | list[Any] = CANCELLED
    if (invalid := broken.get(str(call["id"]))) is not None:
        said = f"This call was not run, because its arguments could not be read: {invalid['args']}"
    if isinstance(message.content, list) and any(
        isinstance(block, dict)
        and unwrapped(block).get("type") == "custom_tool_call"
        and unwrapped(block).get("call_id") == call["id"]
        for block in message.content
    ):
        said = [{"type": "custom_tool_call_output", "output": said}]
    return ToolMessage(said, tool_call_id=str(call["id"]), name=call["name"], status="error")


def _is_left_open(last: BaseMessage, provider: Provider) -> bool:
    """Tells whether the model has to be asked to continue after its own last turn.

    A turn that the application wrote itself, to lead the model's answer, is left as the last one where the
    API can take it so.
    """
    if not isinstance(last, AIMessage):
        return False
    if provider.name == "mistral":
        return not last.additional_kwargs.get("prefix")
    if provider.name == "google" or last.additional_kwargs.get("source") == "hook":
        return True
    return bool(last.response_metadata) and last.response_metadata.get("stop_reason") != "pause_turn"


def _alternating(turns: Sequence[BaseMessage], provider: Provider) -> list[BaseMessage]:
    runs: list[list[BaseMessage]] = []
    for turn in turns:
        last = runs[-1][-1] if runs else None
        if last is not None and provider.alternates and _are_one(last, turn):
            runs[-1].append(turn)
            continue
        if provider.answers_tools and isinstance(last, ToolMessage) and isinstance(turn, HumanMessage):
            runs.append([AIMessage(ACKNOWLEDGED)])
        runs.append([turn])
    return [_merged(run, provider) for run in runs]


def _are_one(last: BaseMessage, turn: BaseMessage) -> bool:
    return any(isinstance(last, role) and isinstance(turn, role) for role in (HumanMessage, AIMessage))


def _merged(run: Sequence[BaseMessage], provider: Provider) -> BaseMessage:
    """Returns neighbours of one role as one: the first's id, the last's `additional_kwargs`."""
    if len(run) == 1:
        return run[0]
    first, last = run[0], run[-1]
    # Where one of them is in the provider's own format, or in nobody's, the whole is: others' is text by now.
    own = [each for each in run if each.response_metadata.get("model_provider") in provider.wrote]
    own = own or [each for each in run if "model_provider" not in each.response_metadata]
    changes: dict[str, Any] = {
        "content": _joined([message.content for message in run]),
        "additional_kwargs": last.additional_kwargs,
        "response_metadata": (own or run)[-1].response_metadata,
    }
    if isinstance(last, AIMessage):
        changes["tool_calls"] = [call for turn in run for call in getattr(turn, "tool_calls", ())]
    return first.model_copy(update=changes)


def _joined(contents: Sequence[str | list[Any]]) -> str | list[Any]:
    told = [content for content in contents if not (isinstance(content, str) and is_blank(content))]
    texts = [content for content in told if isinstance(content, str)]
    if len(texts) == len(told):
        return "\n\n".join(texts)
    blocks: list[Any] = []
    for content in told:
        blocks += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return blocks
