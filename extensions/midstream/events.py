"""What a host sees while it happens: `custom` stream events, and their channel on the newer protocol.

Every event is `{"type": "preemption", "event": <word>, "node": <name>, ...}`:

* `waiting`: a request is there and the answer cannot end yet; `reason` says what for, once each.
* `sealed`: the answer was ended; `message_id`, `request_ids`.
* `restarted`: an answer that had shown nothing was dropped; `message_id` of the dropped one, `request_ids`.
* `injected`: messages were put into the thread; `message_ids`, `request_ids`, `outcome`.
* `halted`: the run ends; `reason`, `run_id`, `request_ids`.
* `expired`: a request named a run of another turn and will never apply; `request_ids`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, ClassVar

from langgraph.stream import ProtocolEvent, StreamChannel, StreamTransformer

CHANNEL = "preemption"


class Emitter:
    """Writes a node's events to its `custom` stream, from any thread."""

    __slots__ = ("_context", "_node", "_write")

    def __init__(self, write: Callable[[Any], None], node: str) -> None:
        self._write = write
        self._node = node
        # LangGraph's writer looks up the task that it speaks for in the context.
        self._context: Context = copy_context()

    def emit(self, event: str, **facts: Any) -> None:
        payload = {"type": CHANNEL, "event": event, "node": self._node, **facts}
        self._context.copy().run(self._write, payload)


class PreemptionTransformer(StreamTransformer):
    """Puts midstream's events on `custom:preemption` of the newer thread protocol.

    With `builder.compile(transformers=[PreemptionTransformer])` the SDK shows them as
    `thread.extensions["preemption"]`; without it nobody on that protocol sees a custom event.
    """

    required_stream_modes: ClassVar[tuple[str, ...]] = ("custom",)

    def __init__(self, scope: tuple[str, ...] = ()) -> None:
        super().__init__(scope)
        self._events: StreamChannel[dict[str, Any]] = StreamChannel(CHANNEL)

    def init(self) -> dict[str, Any]:
        return {CHANNEL: self._events}

    def process(self, event: ProtocolEvent) -> bool:
        if event["method"] == "custom":
            data = event["params"]["data"]
            if isinstance(data, dict) and data.get("type") == CHANNEL:
                self._events.push(data)
        return True
