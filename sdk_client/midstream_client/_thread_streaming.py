"""The newer protocol's stream of a thread, read into events.

It is not a stream of one run. Seen with langgraph-api 0.16.7 and langgraph-sdk 0.4.14:

* Who subscribes is first told the thread's past, run by run, and the SDK's own subscriptions end at the first
  run's end. So this reads the SDK's transport, and only what is of its own run; an event says which run it is
  of at the run's beginning and end, by its id.
* Words name neither their node nor, after the first, their message; nor does anything say that another worker
  has taken the run over. But a snapshot of the state comes only between steps: one that comes while a message
  is unfinished is the state that a new attempt begins from.
* A text that does not stream comes with its block's end, tool results only with snapshots, and interrupts
  without their questions: those are read from the thread's state.
* What a node writes to its `custom` stream comes as it is; what a transformer puts on a channel of its own
  comes under that name, and midstream's events both ways. Who joins later is told the first alone.
* Nobody is told that a run was rolled back, or has timed out: so a silence is a time to look.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from midstream_client._answering import GOING, run_or_none
from midstream_client._flow import (
    DROPPED,
    END,
    RETRY_SECONDS,
    Call,
    Command,
    Emit,
    Flow,
    Next,
    Pause,
    StreamFlow,
    Subscribe,
    again,
    status_of,
)
from midstream_client._patience import QUIET
from midstream_client._shown import Reader, is_preemption, messages_in

CHANNELS = ("messages", "values", "lifecycle", "custom")

MEANWHILE = 10
"""How many runs may begin on a thread while one asks which of them is its own."""

SILENCES = (1, 2, 3)
"""After how many silences in a row another stream is asked for a run that is over and was not told."""

SETTLES = (0.05, 0.1, 0.2, 0.4)
"""Seconds between looks at a run that is said to have failed."""

REOPENED = 5
"""How often in a row a stream is opened again that says nothing at all."""

DOUBLINGS = 4
"""How often the wait doubles before a stream is opened again that says nothing new."""


@dataclass(slots=True)
class ThreadReader(Reader):
    """Reads the events of one run out of its thread's."""

    is_active: bool = False
    """Whether what comes now is of the run."""

    is_over: bool = False
    is_told: bool = False
    """Whether the run's beginning or end was told."""

    silences: int = 0
    """How long the stream that is open has said nothing."""

    misses: int = 0
    """How many streams have told nothing of the run, though it is over."""

    is_missed: bool = False
    """Whether the stream that is open is one of these."""

    seen: set[str] = field(default_factory=set)
    open: dict[tuple[str, ...], list[str]] = field(default_factory=dict)
    """Unfinished messages by namespace, the newest last."""

    blocks: dict[tuple[str, Any], str] = field(default_factory=dict)
    has_state: bool = False
    told: dict[bool, Counter[str]] = field(default_factory=lambda: {False: Counter(), True: Counter()})
    """How often each event of midstream's came: by its channel, and as it is."""

    def read(self, part: Any) -> StreamFlow[None]:
        if not isinstance(part, Mapping) or "method" not in part:
            return
        if part["method"] == QUIET:
            yield from self._quiet()
            return
        self.silences = 0
        name = str(part.get("event_id") or "")
        if name and name in self.seen:
            return
        self.seen.add(name)
        params = part.get("params") or {}
        namespace = tuple(params.get("namespace") or ())
        data = params.get("data")
        if part["method"] == "lifecycle" and not namespace and isinstance(data, Mapping):
            yield from self._lifecycle(name, data)
        elif part["method"] == "custom" and self.is_active:
            yield from self._custom(data, namespace)
        elif self.is_active and isinstance(data, Mapping):
            match part["method"]:
                case "messages":
                    yield from self._message(data, params.get("node"), namespace)
                case "values":
                    yield from self._state(data, namespace)

    def _quiet(self) -> StreamFlow[None]:
        self.silences += 1
        if (yield from _is_going(self)):
            return
        if self.is_final:
            self.is_over = True
        elif self.silences >= SILENCES[self.misses]:
            self.miss()

    @property
    def is_final(self) -> bool:
        """Whether there is nothing more to ask of a run that is over."""
        return self.is_told or self.misses >= len(SILENCES)

    def miss(self) -> None:
        """Has another stream asked: a busy server may tell the past late, and may leave a run out of it."""
        self.misses += 1
        self.is_missed = True

    def _lifecycle(self, name: str, data: Mapping[str, Any]) -> StreamFlow[None]:
        kind, _, rest = name.partition(":")
        of = rest.partition(":")[0] if kind == "synth" else None
        is_begin = data.get("event") in ("started", "running")
        if of is not None and of != self.run_id:
            if is_begin and self.is_active and not self.is_over:
                # It goes on where this run was taken out, or has ended without a word.
                self.is_over = not (yield from _is_going(self))
            self.is_active = False
            return
        if of is None and not is_begin and (yield from _is_going(self)):
            # A server that names no run at its end: it was another one's.
            return
        if data.get("event") == "failed" and (yield from _is_lost_attempt(self)):
            # langgraph-api 0.13 tells of its end as if it were the run's.
            return
        self.is_active = self.is_told = True
        self.is_over = not is_begin
        if data.get("event") == "failed":
            self.failure = (None, str(data.get("error") or ""))

    def _message(
        self, data: Mapping[str, Any], node: str | None, namespace: tuple[str, ...]
    ) -> StreamFlow[None]:
        unfinished = self.open.setdefault(namespace, [])
        if data.get("event") == "message-start":
            unfinished.append(str(data.get("id")))
            return
        if not unfinished:
            return
        name = str(data.get("id") or unfinished[-1])
        match data.get("event"):
            case "content-block-delta" if data["delta"].get("type") == "text-delta":
                yield from self._text(name, data.get("index"), data["delta"]["text"], node, namespace)
            case "content-block-finish":
                content = data.get("content") or {}
                if content.get("type") == "text":
                    whole, shown = (
                        str(content.get("text", "")),
                        self.blocks.get((name, data.get("index")), ""),
                    )
                    if whole.startswith(shown):
                        yield from self._text(name, data.get("index"), whole[len(shown) :], node, namespace)
                elif content.get("type") == "tool_call":
                    yield from map(Emit, self.shown.call(content, name, node, namespace))
            case "message-finish" | "error" if name in unfinished:
                unfinished.remove(name)

    def _text(
        self, name: str, index: Any, text: str, node: str | None, namespace: tuple[str, ...]
    ) -> StreamFlow[None]:
        self.blocks[name, index] = self.blocks.get((name, index), "") + text
        yield from map(Emit, self.shown.text(text, name, node, namespace))

    def _state(self, values: Mapping[str, Any], namespace: tuple[str, ...]) -> StreamFlow[None]:
        messages = messages_in(values)
        if any(self.open.get(inner) for inner in self.open if inner[: len(namespace)] == namespace):
            self.open = {}
            yield from self.retried(self.attempt + 1, messages)
        for message in messages:
            if message.get("type") == "tool":
                if self.has_state or namespace:
                    yield from map(Emit, self.shown.result(message, None, namespace))
                else:
                    # What the thread held before.
                    self.shown.results.add(str(message.get("tool_call_id")))
        self.has_state = self.has_state or not namespace

    def _custom(self, data: Any, namespace: tuple[str, ...]) -> StreamFlow[None]:
        is_named = isinstance(data, Mapping) and "payload" in data and set(data) <= {"name", "payload"}
        said = data["payload"] if is_named else data
        if is_preemption(said):
            key = json.dumps(said, sort_keys=True, default=str)
            self.told[is_named][key] += 1
            if self.told[is_named][key] <= self.told[not is_named][key]:
                return
        yield Emit(self.custom(said, namespace))


def start(
    thread_id: str, assistant_id: str, work: Mapping[str, Any], run: Mapping[str, Any]
) -> StreamFlow[str | None]:
    """Starts a run; returns its id, or None if this protocol cannot do it: then nothing was started."""
    if "context" in run:
        return None
    thread = yield from again(Call("threads", "get", (thread_id,)))
    if thread["status"] == "busy":
        return None
    command = _command(thread, assistant_id, work, run)
    if command is None:
        return None
    try:
        said = yield command
    except httpx.HTTPStatusError as error:
        if status_of(error) in (404, 405):
            return None
        raise
    if said.get("type") == "error":
        return None
    if run_id := (said.get("result") or {}).get("run_id"):
        return str(run_id)
    # A resume does not say which run it has started, and somebody else may have started another meanwhile.
    newest = yield from again(Call("runs", "list", (thread_id,), {"limit": MEANWHILE}))
    mine = (run for run in newest if (run.get("kwargs") or {}).get("command") == work["command"])
    return str(next(mine, newest[0])["run_id"])


def _command(
    thread: Mapping[str, Any], assistant_id: str, work: Mapping[str, Any], run: Mapping[str, Any]
) -> Command | None:
    options = {name: run[name] for name in ("config", "metadata") if name in run}
    thread_id = str(thread["thread_id"])
    if "command" in work:
        about = thread.get("metadata") or {}
        if str(assistant_id) not in (about.get("assistant_id"), about.get("graph_id")):
            # It would go to the one that the thread ran last.
            return None
        answers = work["command"]["resume"]
        responses = [{"interrupt_id": name, "response": answer} for name, answer in answers.items()]
        return Command(thread_id, "input.respond", {"responses": responses, **options})
    strategy = run["multitask_strategy"]
    params = {"assistant_id": str(assistant_id), **work, "multitaskStrategy": strategy, **options}
    return Command(thread_id, "run.start", params)


def read(reader: ThreadReader, run_id: str, *, is_websocket: bool) -> StreamFlow[None]:
    """Reads the thread's events until the run is over; a stream that breaks off is opened again."""
    yield from reader.begin(run_id)
    unheard, stale = 0, 0
    while not reader.is_over:
        before, has_told = len(reader.seen), False
        lost: Exception | None = None
        reader.silences, reader.is_missed = 0, False
        # Seen on a busy server, langgraph-api 0.16.7: a websocket that is told a later run and not this one,
        # time and again. The event stream has both.
        yield Subscribe(reader.thread_id, is_websocket and not reader.misses, CHANNELS)
        while not (reader.is_over or reader.is_missed):
            try:
                part = yield Next()
            except Exception as error:
                if _is_refused(error):
                    raise
                lost = error
                break
            if part is END:
                break
            has_told = True
            yield from reader.read(part)
        if reader.is_over:
            break

        # What the next one repeats is passed over. One that tells only that is cut while the run has nothing
        # to say, and is opened again as long as the run goes on.
        unheard = 0 if has_told else unheard + 1
        stale = 0 if len(reader.seen) > before else stale + 1
        try:
            if not reader.is_missed and not (yield from _is_going(reader)):
                if reader.is_final:
                    break
                reader.miss()
        except DROPPED as error:
            # A server that is being started again. One that cannot be connected to was tried for long.
            lost = error
        if unheard > REOPENED:
            raise lost or httpx.ReadError("the thread's stream ends again and again before its run")
        yield Pause(RETRY_SECONDS * 2 ** min(stale, DOUBLINGS))


def _is_going(reader: ThreadReader) -> Flow[bool]:
    """Tells whether the run may still have something to say."""
    run = yield from run_or_none(reader.thread_id, reader.run_id)
    return run is not None and run["status"] in GOING


def _is_lost_attempt(reader: ThreadReader) -> Flow[bool]:
    """Tells whether a failure is not the run's own; who listens is told of that one first."""
    for wait in SETTLES:
        run = yield from run_or_none(reader.thread_id, reader.run_id)
        if run is None or run["status"] not in GOING:
            break
        yield Pause(wait)
    return run is not None and run["status"] in (*GOING, "success")


def _is_refused(error: Exception) -> bool:
    """Tells whether opening the stream again would fail in the same way."""
    # Imported here: who has a stream has the SDK already.
    from langgraph_sdk.stream.errors import is_non_retryable_stream_error

    return is_non_retryable_stream_error(error)
