"""A run's own stream, read into events.

A run that is taken over by another worker says so by a second `metadata` part, with a higher `attempt`. Its
node begins again, under new message ids; of the messages that were shown, those that the state does not hold
are void.

Who joins a run that goes on is told some parts twice. Seen with langgraph-api 0.16.7: it listens, and then
tells what it has kept up to that moment. Its ids are no names (they are the time, in milliseconds), so a part
is passed over if the very same one came under the same id. Of two that are the same in one millisecond, such
a reader sees one; who has started the run, and reads it without a break, sees both.

What a tool of a batch that asks people returns is told twice, too: when its own task in the node ends, and
when the node does, which can be in a later run and say more (that a person has edited it). The first is held
back: the thread does not have it yet, and if the node pauses once more it goes on without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from midstream_client._answering import GOING, run_or_none
from midstream_client._flow import END, Call, Emit, Next, Open, StreamFlow, again
from midstream_client._rejoining import FROM_THE_FIRST, LAST_EVENT_ID, UnreachableError
from midstream_client._shown import Reader, messages_in, text_of

MODES = ("messages-tuple", "custom", "updates")

CAN_BE_JOINED: Mapping[str, Any] = {
    "stream_mode": list(MODES),
    "stream_subgraphs": True,
    "stream_resumable": True,
}
"""How a run is started so that its stream can be read, at once or later."""


TOOL_TASK = "tool_call"
"""How a `ToolNode` calls the tasks in which tools run, if the batch asks people."""

REMEMBERED = 1024
"""How many ids back a part can be told again."""


@dataclass(slots=True)
class RunReader(Reader):
    """Reads the parts of one run's stream."""

    recent: dict[str, list[Any]] = field(default_factory=dict)
    """The last parts by their ids, in order."""

    is_rejoined: bool = False
    """Whether parts may be told again."""

    last_id: str = FROM_THE_FIRST
    created_id: str | None = None
    """The run's id by the head of the server's answer, which is there before the first part."""

    def on_rejoin(self) -> None:
        self.is_rejoined = True

    def on_created(self, run: Mapping[str, Any]) -> None:
        self.created_id = str(run["run_id"])

    def begin_unnamed(self) -> StreamFlow[None]:
        """Begins the run that no part has named."""
        if not self.run_id:
            if self.created_id is None:
                raise httpx.RemoteProtocolError("the server's stream ends, and has not named its run")
            yield from self.begin(self.created_id)

    def read(self, part: Any) -> StreamFlow[None]:
        if self._is_repeated(part):
            return
        self.last_id = part.id or self.last_id
        kind, *space = str(part.event).split("|")
        namespace = tuple(space)
        data = part.data
        if kind != "metadata":
            yield from self.begin_unnamed()
        match kind:
            case "metadata" if isinstance(data, Mapping):
                yield from self._metadata(data)
            case "messages" if isinstance(data, list):
                message, about = data
                node = about.get("langgraph_node")
                if message.get("type") in ("AIMessageChunk", "ai"):
                    yield from map(Emit, self._words(message, node, namespace))
                elif message.get("type") == "tool" and _is_of_task(about):
                    self.shown.held.add(str(message.get("tool_call_id")))
                elif message.get("type") == "tool":
                    yield from map(Emit, self.shown.result(message, node, namespace))
            case "updates" if isinstance(data, Mapping):
                for node, update in data.items():
                    for message in messages_in(update):
                        yield from map(Emit, self._tools(message, node, namespace))
            case "custom":
                yield Emit(self.custom(data, namespace))
            case "error":
                said = data if isinstance(data, Mapping) else {}
                self.failure = (said.get("error"), str(said.get("message", data)))

    def _is_repeated(self, part: Any) -> bool:
        if not part.id:
            return False
        known = self.recent.setdefault(part.id, [])
        if self.is_rejoined and part in known:
            return True
        known.append(part)
        if len(self.recent) > REMEMBERED:
            del self.recent[next(iter(self.recent))]
        return False

    def _metadata(self, data: Mapping[str, Any]) -> StreamFlow[None]:
        attempt = int(data.get("attempt") or 1)
        if not self.run_id:
            yield from self.begin(str(data.get("run_id", "")), attempt)
        elif attempt > self.attempt:
            state = yield from again(Call("threads", "get_state", (self.thread_id,)))
            yield from self.retried(attempt, messages_in(state.get("values")))

    def _words(self, message: Mapping[str, Any], node: str | None, namespace: tuple[str, ...]) -> Any:
        name = message.get("id")
        is_whole = message.get("type") == "ai"
        if name is None or (is_whole and name in self.shown.texts):
            # A whole message comes after its tokens, too.
            return ()
        return self.shown.text(text_of(message.get("content")), name, node, namespace)

    def _tools(self, message: Mapping[str, Any], node: str | None, namespace: tuple[str, ...]) -> Any:
        if message.get("type") == "ai":
            for call in message.get("tool_calls") or ():
                yield from self.shown.call(call, str(message.get("id")), node, namespace)
        elif message.get("type") == "tool":
            yield from self.shown.result(message, node, namespace)


def _is_of_task(about: Mapping[str, Any]) -> bool:
    """Tells whether what a message's metadata is about comes from a task that a `ToolNode` has started."""
    path = about.get("langgraph_path")
    # A node's path begins with its trigger and name; that of what a node has started, with the node's path.
    is_inner = isinstance(path, list) and len(path) > 1 and isinstance(path[1], list)
    return is_inner and about.get("langgraph_node") == TOOL_TASK


def start(reader: RunReader, assistant_id: str, work: Mapping[str, Any]) -> StreamFlow[None]:
    """Starts a run and reads its stream."""
    # The header is for a stream that drops before its first part; where the run is started it is left out.
    how = {"headers": {LAST_EVENT_ID: FROM_THE_FIRST}, "on_run_created": reader.on_created}
    options = {**CAN_BE_JOINED, "on_disconnect": "continue", **how, **work}
    yield Open(Call("runs", "stream", (reader.thread_id, assistant_id), options), reader.on_rejoin)
    yield from _read(reader)


def join(reader: RunReader, run_id: str) -> StreamFlow[None]:
    """Reads the stream of a run that is there, from the first event that the server has kept."""
    yield from reader.begin(run_id)
    yield _joined(reader, run_id)
    yield from _read(reader)


def _joined(reader: RunReader, run_id: str) -> Open:
    """Asks for a run's stream, from the last part that was read."""
    # Without modes: the server would filter by the names of its events, which are not those of the modes, and
    # leave out the tokens.
    after = {"last_event_id": reader.last_id}
    return Open(Call("runs", "join_stream", (reader.thread_id, run_id), after), reader.on_rejoin)


def _read(reader: RunReader) -> StreamFlow[None]:
    """Reads a stream to its end.

    The SDK opens it again some times; then it is opened from here, as long as the run goes on, and once more
    when it is over.
    """
    is_going = True
    while True:
        try:
            part = yield Next()
        except UnreachableError as error:
            raise error.cause from None
        except httpx.TransportError:
            run_id = reader.run_id or reader.created_id
            if run_id is None or not is_going:
                raise
            run = yield from run_or_none(reader.thread_id, run_id)
            is_going = run is not None and run["status"] in GOING
            yield _joined(reader, run_id)
            continue
        if part is END and not reader.run_id and reader.created_id is not None:
            # It ended as if it were whole.
            yield from reader.begin_unnamed()
            yield _joined(reader, reader.run_id)
        elif part is END:
            yield from reader.begin_unnamed()
            return
        else:
            yield from reader.read(part)
