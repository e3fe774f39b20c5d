"""Uses every public form of the client once; `make check` holds it to its types, and nothing runs it."""

from __future__ import annotations

from contextlib import aclosing, closing
from typing import assert_type

from langgraph_sdk import get_client, get_sync_client

from midstream_client import (
    Decision,
    InvalidAnswerError,
    InvalidRequestError,
    Midstream,
    MidstreamError,
    NotInstalledError,
    NotSettledError,
    PendingInterrupt,
    PendingRequest,
    Receipt,
    RequestOutcome,
    RequestRefusedError,
    Resumed,
    Sent,
    Stats,
    SyncMidstream,
    ThreadPausedError,
    UnknownInterruptError,
    UserMessage,
    approve,
    edit,
    reject,
    respond,
    tool_result,
)
from midstream_client.events import (
    Custom,
    Done,
    Error,
    Event,
    Expired,
    Halted,
    Injected,
    Interrupted,
    Restarted,
    Retried,
    Sealed,
    Started,
    Token,
    ToolCall,
    ToolResult,
    Waiting,
)


async def awaited() -> None:
    midstream = Midstream(get_client(url="http://localhost:2024"))

    assert_type(await midstream.steer("t", "hello"), Receipt)
    await midstream.steer("t", [{"role": "user", "content": "hello"}], run_id="r", node="n", id="i")
    await midstream.steer("t", [UserMessage(content=[{"type": "text", "text": "hello"}])])
    receipt = await midstream.halt("t", "enough", run_id="r", node="n", id="i")
    assert_type(await midstream.withdraw("t", receipt.id), Receipt)
    assert_type(await midstream.outcome(receipt), RequestOutcome)
    assert_type((await midstream.outcome(receipt, timeout=1.5)).message_ids, tuple[str, ...])
    assert_type(await midstream.pending_requests("t"), list[PendingRequest])
    assert_type(await midstream.send("t", "agent", "hello"), Sent)
    await midstream.send("t", "agent", "hello", id="i", timeout=3, config={}, context={}, metadata={})
    assert_type(await midstream.interrupts("t"), list[PendingInterrupt])
    assert_type(await midstream.resume("t", "agent", {"i": approve()}), Resumed)
    resumed = await midstream.resume("t", "agent", {"i": 1}, wait=False, config={}, context={}, metadata={})
    assert_type((resumed.status, resumed.is_cancelled), tuple[str, bool])
    await midstream.resume("t", "agent", {"i": 1}, multitask_strategy="enqueue")
    assert_type(await midstream.halt_reason("t", "r"), str | None)
    assert_type(await midstream.stats("t"), Stats)

    async for event in midstream.stream("t", "agent", input={"messages": []}):
        assert_type(event, Event)
        print(shown(event))
    async with aclosing(midstream.stream("t", "agent", resume={"i": {"c": approve()}})) as events:
        assert_type(await anext(events), Event)
    midstream.stream("t", "agent", run_id="r", config={}, context={}, metadata={})
    midstream.stream("t", "agent", input={}, protocol="threads", multitask_strategy="interrupt")


def plain() -> None:
    midstream = SyncMidstream(get_sync_client(url="http://localhost:2024"))

    assert_type(midstream.steer("t", "hello", run_id="r", node="n", id="i"), Receipt)
    receipt = midstream.halt("t", "enough", run_id="r", node="n", id="i")
    assert_type(midstream.withdraw("t", receipt.id), Receipt)
    assert_type(midstream.outcome(receipt, timeout=1.5), RequestOutcome)
    assert_type(midstream.pending_requests("t"), list[PendingRequest])
    assert_type(midstream.send("t", "agent", "hello", id="i", timeout=3, config={}), Sent)
    assert_type(midstream.interrupts("t"), list[PendingInterrupt])
    assert_type(midstream.resume("t", "agent", {"i": approve()}, wait=False), Resumed)
    assert_type(midstream.halt_reason("t", "r"), str | None)
    assert_type(midstream.stats("t"), Stats)

    for event in midstream.stream("t", "agent", input={"messages": []}):
        print(shown(event))
    with closing(midstream.stream("t", "agent", resume={"i": [approve()]})) as events:
        assert_type(next(events), Event)


def shown(event: Event) -> str:
    match event:
        case Started():
            return f"{event.run_id} {event.attempt}"
        case Token():
            return f"{event.text} {event.message_id} {event.node} {event.namespace}"
        case Waiting():
            return event.reason
        case Sealed():
            return event.message_id
        case Restarted():
            return f"{event.message_id}"
        case Injected():
            return f"{event.message_ids} {event.outcome}"
        case Halted():
            return event.reason
        case Expired():
            return f"{event.request_ids}"
        case ToolCall():
            return f"{event.name} {event.args}"
        case ToolResult():
            return f"{event.tool_call_id} {event.content} {event.status}"
        case Custom():
            return f"{event.data}"
        case Retried():
            return f"{event.attempt} {event.discarded}"
        case Interrupted():
            return " ".join(f"{each.id} {each.tool_name} {each.tool_call_id}" for each in event.interrupts)
        case Error():
            return f"{event.error} {event.message}"
        case Done():
            return f"{event.status} {event.halt_reason} {event.is_cancelled}"


def decided(pending: PendingInterrupt) -> list[Decision]:
    kind = pending.kind
    assert_type(pending.errors[0].path, str)
    assert_type(pending.actions[0].allowed_decisions, tuple[str, ...])
    return [
        approve(),
        edit({"to": "ann"}),
        edit({"to": "ann"}, name="send"),
        reject(),
        reject("no"),
        respond(kind),
        tool_result({"page": 1}),
        tool_result("failed", status="error"),
    ]


def caught(error: MidstreamError) -> str:
    match error:
        case NotInstalledError() | ThreadPausedError():
            return error.thread_id
        case RequestRefusedError():
            return f"{error.status} {error.reason} {error.outcome}"
        case UnknownInterruptError():
            return f"{error.unknown} {error.pending}"
        case InvalidAnswerError():
            return f"{error.interrupt_id} {error.field} {error.reason} {error.problems[0].field}"
        case InvalidRequestError():
            return error.field + error.reason
        case NotSettledError():
            return f"{error.request_id} {error.timeout}"
    return str(error)
