"""A stream from its start to `Done`, on whichever protocol.

What is streamed is not trusted alone. Who joins late, or again, may be shown interrupts that are answered
already, or miss the last words; so when it has ended, the thread's state says what waits, and what was not
shown yet.

The newer protocol can do less. Where it cannot do what is asked, the run's own stream takes its place: the
server does not have it, or refuses (its commands have no errors of the SDK's); the thread is busy (it takes
5 s to say so); the run has a `context`; or the run that is joined was started on the other protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import httpx

from midstream_client import _run_streaming, _thread_streaming
from midstream_client._answering import GOING, ended, interrupts, placed, run_or_none
from midstream_client._flow import Call, Emit, Flow, Pause, StreamFlow, again
from midstream_client._run_streaming import RunReader
from midstream_client._shown import Reader, messages_in
from midstream_client._thread_streaming import ThreadReader
from midstream_client.answers import Answer
from midstream_client.errors import InvalidRequestError, ThreadPausedError
from midstream_client.events import Done, Error, Interrupted
from midstream_client.interrupts import interrupts_of

Protocol: TypeAlias = Literal["runs", "threads", "websocket"]
"""How a stream comes: `runs`, by the run's own stream; `threads`, by the newer protocol of
`client.threads.stream`; `websocket`, the same by a websocket."""

SETTLES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds between looks at a run whose stream is over."""

EVENTS_ONLY = frozenset({"lifecycle", "tools"})
"""Stream modes that only runs of the newer protocol have."""


def check(protocol: str, **work: Any) -> None:
    """Raises unless the protocol is one, and exactly one kind of work is given."""
    if protocol not in get_args(Protocol):
        words = ", ".join(get_args(Protocol))
        raise InvalidRequestError({"protocol": f"must be one of {words}, not {protocol!r}"})
    given = [name for name, value in work.items() if value is not None]
    if len(given) != 1:
        reason = f"give exactly one of {', '.join(f'{name}=' for name in work)}"
        raise InvalidRequestError({given[1] if given else "input": reason})


def stream(
    thread_id: str,
    assistant_id: str,
    *,
    protocol: Protocol,
    input: Mapping[str, Any] | None,  # noqa: A002 (the SDK's own word)
    resume: Mapping[str, Answer] | None,
    run_id: str | None,
    run: Mapping[str, Any],
) -> StreamFlow[None]:
    """Streams a new run with this input or these answers, or joins the one that is named."""
    reader: Reader
    if run_id is not None:
        known = yield from again(Call("runs", "get", (thread_id, run_id)))
        if EVENTS_ONLY & set((known.get("kwargs") or {}).get("stream_mode") or ()):
            reader = ThreadReader(thread_id)
            yield from _thread_streaming.read(reader, run_id, is_websocket=protocol == "websocket")
        else:
            reader = RunReader(thread_id)
            yield from _run_streaming.join(reader, run_id)
        yield from finish(reader, is_joined=True)
        return

    work = yield from _work(thread_id, input, resume)
    started = None
    if protocol != "runs":
        started = yield from _thread_streaming.start(thread_id, assistant_id, work, run)
    if started is None:
        reader = RunReader(thread_id)
        yield from _run_streaming.start(reader, assistant_id, {**run, **work})
    else:
        reader = ThreadReader(thread_id)
        yield from _thread_streaming.read(reader, started, is_websocket=protocol == "websocket")
    yield from finish(reader)


def _work(
    thread_id: str, given: Mapping[str, Any] | None, answers: Mapping[str, Answer] | None
) -> Flow[dict[str, Any]]:
    """Returns what a new run has to do, in the words of `runs.create`."""
    if answers is not None:
        return {"command": {"resume": (yield from placed(thread_id, answers))}}
    # New input would give every pending interrupt of the thread another id.
    if pending := (yield from interrupts(thread_id)):
        raise ThreadPausedError(thread_id, [each.id for each in pending])
    return {"input": given}


def finish(reader: Reader, *, is_joined: bool = False) -> StreamFlow[None]:
    """Shows what the stream left out, and how the run has ended."""
    thread_id, run_id = reader.thread_id, reader.run_id
    run = yield from _settled(reader)
    try:
        state = yield from again(Call("threads", "get_state", (thread_id,)))
    except httpx.HTTPStatusError:
        if reader.failure is None:
            raise
        # A run that fails on its input can leave a thread that the server cannot read.
        state = {}
    yield from map(Emit, reader.shown.rest(messages_in(state.get("values"))))

    pending = tuple(interrupts_of(state))
    if pending and is_joined and (yield from _newest(thread_id)) != run_id:
        # What a later run asks.
        pending = ()
    if reader.failure is not None and run is not None and run["status"] in ("success", *GOING):
        # The stream is told of it first.
        run = {**run, "status": "error"}
    status, is_cancelled = ended(run, pending)
    # Of a run that is cancelled, langgraph-api 0.13 tells a failure, too.
    if (reader.failure is not None and not is_cancelled) or status == "error":
        yield Emit(Error(run_id, *(yield from _failure(reader))))
    elif pending:
        yield Emit(Interrupted(run_id, pending))
    yield Emit(Done(run_id, status, reader.halt_reason or _halt_in(state, run_id), is_cancelled))


def _newest(thread_id: str) -> Flow[str | None]:
    runs = yield from again(Call("runs", "list", (thread_id,), {"limit": 1}))
    return str(runs[0]["run_id"]) if runs else None


def _settled(reader: Reader) -> Flow[Mapping[str, Any] | None]:
    """Returns the run, once it is told of its own end: the stream is told first."""
    if not reader.run_id:
        return {"status": "success"}
    for wait in SETTLES:
        run = yield from run_or_none(reader.thread_id, reader.run_id)
        if run is None or run["status"] not in GOING or reader.failure is not None:
            break
        yield Pause(wait)
    return run


def _failure(reader: Reader) -> Flow[tuple[str, str]]:
    """Returns the name and the message of what made a run fail."""
    name, message = reader.failure or (None, "")
    if name is None:
        # The newer protocol tells the message alone; the thread has both, until its next run.
        thread = yield from again(Call("threads", "get", (reader.thread_id,)))
        said = thread.get("error")
        if isinstance(said, Mapping) and said.get("message") == message:
            name = said.get("error")
    return name or "Error", message or "the run has failed"


def _halt_in(state: Mapping[str, Any], run_id: str) -> str | None:
    values = state.get("values")
    halt = ((values.get("preemption") or {}).get("halt") or {}) if isinstance(values, Mapping) else {}
    return str(halt["reason"]) if run_id and halt.get("run_id") == run_id else None
