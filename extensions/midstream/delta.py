"""Messages as a `DeltaChannel`: a checkpoint keeps what is new, and a reader reduces the writes once more.

What is reduced twice has to come out the same both times. So the host makes messages of whatever was written,
and gives them ids, before it saves a write; but it does so only for its own reducer, which is no match for
`add_messages`: a removed message that is written again changes its place, an unknown one is removed without a
word, chunks stay chunks, and before langgraph 1.2.23 "remove all" removes nothing. `MessagesDelta` therefore
carries the host's reducer as a name tag, and reduces by `add_messages`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from langchain_core.messages import (
    BaseMessage,
    BaseMessageChunk,
    RemoveMessage,
    convert_to_messages,
    message_chunk_to_message,
    messages_from_dict,
)
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import PendingWrite
from langgraph.graph.message import add_messages

from midstream._host import is_overwrite, messages_delta_reducer


def add_message_writes(state: Sequence[Any], writes: Sequence[Any]) -> list[BaseMessage]:
    """Returns what `add_messages` makes of writes, one after the other; linear where they append."""
    merged = _as_messages(list(state))
    ids = {message.id for message in merged}
    for write in writes:
        new = _as_messages(write)
        new_ids = {message.id for message in new}
        is_append = None not in new_ids and len(new_ids) == len(new) and ids.isdisjoint(new_ids)
        if is_append and not any(isinstance(message, RemoveMessage) for message in new):
            merged += new
            ids |= new_ids
        else:
            merged = cast("list[BaseMessage]", add_messages(cast("Any", merged), cast("Any", new)))
            ids = {message.id for message in merged}
    return merged


def _as_messages(write: Any) -> list[BaseMessage]:
    saved = [_restored(each) for each in (write if isinstance(write, list) else [write])]
    return [
        message_chunk_to_message(message) if isinstance(message, BaseMessageChunk) else message
        for message in convert_to_messages(saved)
    ]


def _restored(saved: Any) -> Any:
    """Makes a message of its saved fields, which are all that the server's own readers get of it.

    `convert_to_messages` is for what a person writes: it puts usage and all else that is less common into
    `additional_kwargs`.
    """
    if isinstance(saved, dict) and {"type", "additional_kwargs", "response_metadata"} <= saved.keys():
        return messages_from_dict([{"type": saved["type"], "data": saved}])[0]
    return saved


class MessagesDelta(DeltaChannel[Any]):
    """A `DeltaChannel` of messages that is equal to `add_messages`, live and when it is read again.

    Args:
        reducer: Left out; it is here because the host makes copies of a channel by its positional arguments.
        typ: As for `DeltaChannel`.
        snapshot_frequency: After how many updates a checkpoint keeps the whole list.
    """

    __slots__ = ()

    def __init__(
        self,
        reducer: Callable[[Any, Sequence[Any]], Any] = messages_delta_reducer,
        typ: type[Any] | None = None,
        *,
        snapshot_frequency: int = 100,
    ) -> None:
        super().__init__(reducer, typ, snapshot_frequency=snapshot_frequency)

    def update(self, values: Sequence[Any]) -> bool:
        if not values or any(is_overwrite(value) for value in values):
            return super().update(values)
        self.value = add_message_writes(self.value if self.is_available() else [], values)
        return True

    def replay_writes(self, writes: Sequence[PendingWrite]) -> None:
        start = max((n for n, write in enumerate(writes, 1) if is_overwrite(write[2])), default=0)
        super().replay_writes(writes[:start])
        if start < len(writes):
            self.value = add_message_writes(self.value, [value for _, _, value in writes[start:]])
