"""What holds for both clients, on a fake of the server's wire and on the real server."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import respx
from langgraph_sdk.errors import NotFoundError

from midstream_client import (
    InvalidAnswerError,
    InvalidRequestError,
    Midstream,
    MidstreamError,
    RequestOutcome,
    RequestRefusedError,
    Stats,
    SyncMidstream,
    ThreadPausedError,
    UnknownInterruptError,
    UserMessage,
)
from midstream_client.events import Done, Halted, Injected, Interrupted, Started, Token, ToolCall
from midstream_client.protocol import MAX_PENDING
from support.dev_server import shows_schemas
from support.fake_server import URL, FakeServer
from support.hosted import Host, calls, said


@pytest.fixture(params=["async-respx", "sync-respx", "async-server", "sync-server"])
async def host(request: pytest.FixtureRequest) -> AsyncIterator[Host]:
    kind, _, where = request.param.partition("-")
    if where == "server":
        made = Host(request.getfixturevalue("hosted_url"), kind)
        yield made
        await made.close()
        return
    with respx.mock(assert_all_called=False) as router:
        FakeServer(router)
        made = Host(URL, kind)
        yield made
        await made.close()


async def test_a_steer_waits_on_an_idle_thread_and_can_be_taken_back(host: Host) -> None:
    thread_id, name = await host.thread(), str(uuid.uuid4())
    first = await host.midstream.steer(thread_id, "use metres", node="model", id=name)
    again = await host.midstream.steer(thread_id, "use metres", node="model", id=name)

    assert (first.id, first.thread_id, first.thread_status) == (name, thread_id, "idle")
    assert again == first
    (pending,) = await host.midstream.pending_requests(thread_id)
    assert (pending.id, pending.kind, pending.node) == (name, "steer", "model")
    assert pending.messages == ({"role": "user", "content": "use metres"},)
    assert await host.midstream.outcome(first) == RequestOutcome(name, "pending")

    for _ in range(2):
        assert (await host.midstream.withdraw(thread_id, name)).id == name
    assert await host.midstream.pending_requests(thread_id) == []
    assert (await host.midstream.outcome(first)).outcome == "withdrawn"


async def test_an_id_may_be_a_uuid_itself(host: Host) -> None:
    thread_id, name, run_id = await host.thread(), uuid.uuid4(), uuid.uuid4()
    receipt = await host.midstream.steer(thread_id, "use metres", id=name, run_id=run_id)

    (pending,) = await host.midstream.pending_requests(thread_id)
    assert (receipt.id, pending.id, pending.run_id) == (str(name), str(name), str(run_id))
    assert (await host.midstream.withdraw(thread_id, name)).id == str(name)

    sent = await host.midstream.send(thread_id, "brief", "Hello", id=(text := uuid.uuid4()))
    await host.is_over(thread_id)
    assert (sent.id, sent.how) == (str(text), "started")


BLOCKS: list[dict[str, Any]] = [{"type": "text", "text": "two"}]


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param(
            [UserMessage(content="one"), {"role": "user", "content": BLOCKS}], id="models and dicts"
        ),
        pytest.param(({"role": "human", "content": "one"}, {"content": BLOCKS}), id="other words"),
    ],
)
async def test_messages_keep_their_order_and_blocks(host: Host, messages: Any) -> None:
    thread_id = await host.thread()
    receipts = [await host.midstream.steer(thread_id, messages) for _ in range(2)]

    assert len({uuid.UUID(receipt.id) for receipt in receipts}) == 2
    for pending in await host.midstream.pending_requests(thread_id):
        assert pending.messages == (
            {"role": "user", "content": "one"},
            {"role": "user", "content": BLOCKS},
        )


async def test_a_request_is_applied_by_the_next_run_and_its_outcome_names_run_and_message(host: Host) -> None:
    thread_id = await host.thread()
    receipt = await host.midstream.steer(thread_id, "and be kind")

    events = await host.events(thread_id, "brief", input=said("Hello"))
    outcome = await host.midstream.outcome(receipt, timeout=10)

    (injected,) = [event for event in events if isinstance(event, Injected)]
    assert outcome == RequestOutcome(receipt.id, "entry", events[0].run_id, "model", injected.message_ids)
    assert outcome.is_applied
    assert (await host.messages(thread_id))[:2] == [("human", "Hello"), ("human", "and be kind")]
    with pytest.raises(RequestRefusedError) as late:
        await host.midstream.withdraw(thread_id, receipt.id)
    assert (late.value.status, late.value.outcome) == (409, "entry")


async def test_a_halted_run_says_why(host: Host) -> None:
    thread_id = await host.thread()
    receipt = await host.midstream.halt(thread_id, "enough")

    events = await host.events(thread_id, "brief", input=said("Hello"))

    run_id = events[0].run_id
    assert Halted("enough", run_id, "model", (receipt.id,)) in events
    assert events[-1] == Done(run_id, "success", "enough")
    assert await host.midstream.halt_reason(thread_id, run_id) == "enough"
    assert (await host.events(thread_id, "brief", input=said("Again")))[-1].halt_reason is None


async def test_a_run_that_was_not_halted_has_no_reason(host: Host) -> None:
    thread_id = await host.thread()
    events = await host.events(thread_id, "brief", input=said("Hello"))

    assert await host.midstream.halt_reason(thread_id, events[0].run_id) is None
    assert await host.midstream.stats(thread_id) == Stats(0, 0, 0)


@pytest.mark.parametrize("protocol", ["runs", "threads", "websocket"])
async def test_a_stream_starts_says_every_token_once_and_is_done(host: Host, protocol: str) -> None:
    thread_id = await host.thread()

    for word in ("Hello", "Again"):
        events = await host.events(thread_id, "brief", input=said(word), protocol=protocol)

        tokens = [event for event in events if isinstance(event, Token)]
        assert "".join(token.text for token in tokens) == f"You said: {word}. word1 word2 word3"
        assert len({token.message_id for token in tokens}) == 1
        assert events == [Started(events[0].run_id), *tokens, Done(events[0].run_id, "success")]
        # The newer protocol names no node; a server that does not have it streams as ever.
        assert {token.node for token in tokens} <= ({"model"} if protocol == "runs" else {"model", None})


@pytest.mark.parametrize("protocol", ["runs", "threads", "websocket"])
async def test_tools_pauses_steers_and_halts_are_shown_on_every_protocol(host: Host, protocol: str) -> None:
    thread_id = await host.thread()
    asked = said(calls(("ask_user", {"question": "which?"})))
    paused = await host.events(thread_id, "brief", input=asked, protocol=protocol)
    assert [type(event) for event in paused if not isinstance(event, Token)] == [
        Started,
        ToolCall,
        Interrupted,
        Done,
    ]
    (pending,) = await host.midstream.interrupts(thread_id)
    assert paused[-2:] == [Interrupted(paused[0].run_id, (pending,)), Done(paused[0].run_id, "interrupted")]

    steered = await host.midstream.steer(thread_id, "be brief")
    halted = await host.midstream.halt(thread_id, "enough")
    resumed = await host.events(thread_id, "brief", resume={pending.id: {"choice": "red"}}, protocol=protocol)
    shown: list[Any] = [event for event in resumed if isinstance(event, Injected | Halted | Done)]
    assert [type(event) for event in shown] == [Injected, Halted, Done]
    assert shown[0].request_ids == (steered.id,)
    assert (shown[1].reason, shown[1].request_ids) == ("enough", (halted.id,))
    assert shown[2] == Done(resumed[0].run_id, "success", "enough")


async def test_send_starts_a_run_where_none_is_and_does_nothing_when_repeated(host: Host) -> None:
    thread_id, name = await host.thread(), str(uuid.uuid4())
    sent = await host.midstream.send(thread_id, "brief", "Hello", id=name, metadata={"by": "ann"})
    await host.is_over(thread_id)

    assert (sent.id, sent.how) == (name, "started")
    assert await host.midstream.send(thread_id, "brief", "Hello", id=name) == sent
    await host.is_over(thread_id)
    assert [kind for kind, _ in await host.messages(thread_id)] == ["human", "ai"]
    assert (await host.runs.get(thread_id, sent.run_id))["metadata"]["by"] == "ann"


async def test_an_id_that_was_given_to_one_text_is_refused_for_another(host: Host) -> None:
    """Whatever became of the first: the second would be lost without a word."""
    thread_id, first, second = await host.thread(), str(uuid.uuid4()), str(uuid.uuid4())

    async def another_is_refused(name: str) -> None:
        with pytest.raises(RequestRefusedError, match=r"another (text|request)") as refused:
            await host.midstream.send(thread_id, "brief", "Something else.", id=name)
        assert (refused.value.status, refused.value.request_id) == (409, name)

    await host.midstream.send(thread_id, "brief", "Hello", id=first)
    await host.is_over(thread_id)
    await another_is_refused(first)

    await host.events(thread_id, "brief", input=said(calls(("ask_user", {"question": "which?"}))))
    (pending,) = await host.midstream.interrupts(thread_id)
    assert (await host.midstream.send(thread_id, "brief", "and hurry", id=second)).how == "waiting"
    await another_is_refused(second)
    await host.events(thread_id, "brief", resume={pending.id: {"choice": "red"}})
    await another_is_refused(second)

    # What is marked on the ledger says no more what it was; the thread does.
    await host.events(thread_id, "brief", input=said("And?"))
    await another_is_refused(second)
    assert (await host.midstream.send(thread_id, "brief", "and hurry", id=second)).how == "steered"
    assert "Something else." not in [text for _, text in await host.messages(thread_id)]


@shows_schemas
async def test_a_pause_is_shown_and_answered_by_its_id(host: Host) -> None:
    thread_id = await host.thread()
    asked = calls(("ask_user", {"question": "which?"}))
    events = await host.events(thread_id, "brief", input=said(asked))
    (pending,) = await host.midstream.interrupts(thread_id)

    assert (pending.kind, pending.value) == ("question", {"question": "which?"})
    assert events[-2:] == [
        Interrupted(events[0].run_id, (pending,)),
        Done(events[0].run_id, "interrupted"),
    ]

    with pytest.raises(UnknownInterruptError) as unknown:
        await host.midstream.resume(thread_id, "brief", {pending.id: {"choice": "red"}, "nobody": 1})
    assert (unknown.value.unknown, unknown.value.pending) == (("nobody",), (pending.id,))
    with pytest.raises(InvalidAnswerError) as invalid:
        await host.midstream.resume(thread_id, "brief", {pending.id: {"choice": 3}})
    assert (invalid.value.interrupt_id, invalid.value.field) == (pending.id, "choice")
    assert "'string'" in invalid.value.reason
    with pytest.raises(InvalidAnswerError, match="choice"):
        await host.midstream.resume(thread_id, "brief", {pending.id: {}})
    with pytest.raises(InvalidRequestError, match="at least one"):
        await host.midstream.resume(thread_id, "brief", {})
    with pytest.raises(ThreadPausedError, match="resume="):
        await host.events(thread_id, "brief", input=said("never mind"))
    assert await host.midstream.interrupts(thread_id) == [pending]

    resumed = await host.midstream.resume(thread_id, "brief", {pending.id: {"choice": "red"}})
    assert (resumed.status, resumed.answered, resumed.open) == ("success", (pending.id,), ())
    with pytest.raises(UnknownInterruptError, match="answered already"):
        await host.midstream.resume(thread_id, "brief", {pending.id: {"choice": "red"}})


async def test_a_text_sent_to_a_paused_thread_waits_and_leaves_the_question_alone(host: Host) -> None:
    thread_id = await host.thread()
    await host.events(thread_id, "brief", input=said(calls(("ask_user", {"question": "which?"}))))
    before = await host.midstream.interrupts(thread_id)

    sent = await host.midstream.send(thread_id, "brief", "and hurry")

    assert (sent.how, sent.run_id) == ("waiting", None)
    assert await host.midstream.interrupts(thread_id) == before
    events = await host.events(thread_id, "brief", resume={before[0].id: {"choice": "red"}})
    assert [event.request_ids for event in events if isinstance(event, Injected)] == [(sent.request_id,)]
    assert ("human", "and hurry") in await host.messages(thread_id)


async def test_what_is_not_of_the_wires_shape_is_not_sent(host: Host) -> None:
    thread_id = await host.thread()
    wrong: Any
    midstream, wrong_role = host.midstream, [{"role": "system", "content": "obey"}]
    for field, reason, wrong in (
        ("messages.0.content", "must not be empty", lambda: midstream.steer(thread_id, "   ")),
        ("messages", "at least 1", lambda: midstream.steer(thread_id, [])),
        ("messages", "must be a text, or a list of messages, not 5,", lambda: midstream.steer(thread_id, 5)),
        ("messages", "must be a text, or a list", lambda: midstream.steer(thread_id, {"content": "x"})),
        ("messages.0", "must be a dict or a UserMessage", lambda: midstream.steer(thread_id, ["x"])),
        (
            "messages.0.as",
            "is no field of it",
            lambda: midstream.steer(thread_id, [{"as": "x", "content": "x"}]),
        ),
        ("messages.0.role", "'user'", lambda: midstream.steer(thread_id, wrong_role)),
        ("messages.0.content", "string, or .* list", lambda: midstream.steer(thread_id, [{"content": 3}])),
        ("reason", "at least 1 character", lambda: midstream.halt(thread_id, "")),
        ("id", "must be a UUID", lambda: midstream.steer(thread_id, "x", id="not a uuid")),
        ("run_id", "must be a UUID", lambda: midstream.halt(thread_id, "x", run_id="not a uuid")),
        ("text", "must not be empty", lambda: midstream.send(thread_id, "brief", " \n")),
        ("id", "must be a UUID", lambda: midstream.send(thread_id, "brief", "x", id="not a uuid")),
        ("request_id", "must be a UUID", lambda: midstream.withdraw(thread_id, "not a uuid")),
    ):
        with pytest.raises(
            InvalidRequestError, match=f"nothing was sent, .* {field}: .*{reason}.* is a"
        ) as said:
            await wrong()
        assert isinstance(said.value, MidstreamError)
        assert isinstance(said.value, ValueError)
        assert (said.value.field, said.value.reason) == (field, said.value.problems[field])
    assert await host.midstream.pending_requests(thread_id) == []
    assert await host.runs.list(thread_id) == []


async def test_what_is_of_a_wrong_type_says_what_is_right_and_is_not_sent(host: Host) -> None:
    thread_id = await host.thread()
    wrong: Any
    for wrong in (None, 3, {"role": "user", "content": "x"}, ["x"], [("user", "x")]):
        with pytest.raises(InvalidRequestError, match="messages"):
            await host.midstream.steer(thread_id, wrong)
    for wrong in (None, 3, [{"role": "user", "content": "x"}]):
        with pytest.raises(
            InvalidRequestError, match=r"text: must be a string, not .*; `steer` takes messages"
        ):
            await host.midstream.send(thread_id, "brief", wrong)
    for wrong in (None, "an id", ["an id"]):
        with pytest.raises(
            InvalidRequestError, match=r"answers: must be a dict \{interrupt_id: answer\}, not"
        ):
            await host.midstream.resume(thread_id, "brief", wrong)
    with pytest.raises(
        InvalidRequestError, match="receipt: must be what `steer` or `halt` returned, not 'an id'"
    ):
        await host.midstream.outcome("an id")
    with pytest.raises(
        InvalidRequestError, match="timeout: must be a number of seconds, or None, not 'soon'"
    ):
        await host.midstream.send(thread_id, "brief", "Hello", timeout="soon")
    assert await host.midstream.pending_requests(thread_id) == []
    assert await host.runs.list(thread_id) == []


async def test_the_other_kind_of_client_is_refused_at_once(host: Host) -> None:
    for make, name in ((Midstream, "get_client"), (SyncMidstream, "get_sync_client")):
        if not isinstance(host.midstream._inner, make):
            with pytest.raises(TypeError, match=rf"takes what `langgraph_sdk.{name}\(\)` returns, not <"):
                make(host.client)
        with pytest.raises(TypeError, match="not 'http://localhost:2024'"):
            make("http://localhost:2024")  # type: ignore[arg-type]  # what somebody may try


async def test_refusals_say_the_servers_reason(host: Host) -> None:
    thread_id = await host.thread()
    with pytest.raises(RequestRefusedError) as unknown:
        await host.midstream.withdraw(thread_id, str(uuid.uuid4()))
    assert (unknown.value.status, unknown.value.outcome) == (404, None)

    for n in range(MAX_PENDING):
        await host.midstream.steer(thread_id, f"{n}")
    with pytest.raises(RequestRefusedError, match="withdraw") as full:
        await host.midstream.steer(thread_id, "one more")
    assert full.value.status == 429


async def test_the_sdks_own_errors_pass_unchanged(host: Host) -> None:
    nowhere = str(uuid.uuid4())
    for call in (
        host.midstream.steer(nowhere, "x"),
        host.midstream.pending_requests(nowhere),
        host.midstream.interrupts(nowhere),
        host.midstream.send(nowhere, "brief", "x"),
        host.midstream.stats(nowhere),
        host.midstream.pending_requests("a/b"),
    ):
        with pytest.raises(NotFoundError) as missing:
            await call
        assert isinstance(missing.value, httpx.HTTPStatusError)


async def test_a_stream_is_of_one_thing(host: Host) -> None:
    with pytest.raises(InvalidRequestError, match="exactly one of input=, resume=, run_id="):
        await host.events("t", "brief")
    with pytest.raises(InvalidRequestError, match="exactly one"):
        await host.events("t", "brief", input={}, run_id="r")
