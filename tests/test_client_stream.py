"""What a host sees of a run, also when the connection drops and when another worker takes the run over."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, get_args

import httpx
import pytest
import respx

from midstream_client import edit, tool_result
from midstream_client._streaming import Protocol
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
from support.cutting_proxy import cutting_proxy
from support.fake_server import URL, sse
from support.hosted import Host, calls, on_every_way, said

RUN = "01a2"
STREAM = f"/threads/t/runs/{RUN}/stream"
ABOUT = {"langgraph_node": "model"}


@pytest.fixture(params=["async", "sync"])
async def host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Host]:
    # The SDK waits a second and more before it opens a stream again.
    monkeypatch.setattr(
        f"langgraph_sdk._{request.param}.http._reconnect_delay", lambda *_, **__: 0, raising=False
    )
    made = Host(URL, request.param)
    yield made
    await made.close()


class Server:
    """Streams what it was given, one answer for each connection, and then tells the state."""

    def __init__(self, *streams: httpx.Response, states: Iterable[dict[str, Any]] = ()) -> None:
        self.streams = list(streams)
        self.states = [{"values": {}, "tasks": []}, *states]
        self.status = "success"
        self.requests: list[httpx.Request] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        path = request.url.path
        if path.endswith("/state"):
            state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            return httpx.Response(200, json=state)
        if path.endswith("/stream"):
            return self.streams.pop(0) if self.streams else cut()
        return httpx.Response(200, json={"run_id": RUN, "status": self.status})

    async def events(self, host: Host, **what: Any) -> list[Event]:
        with respx.mock(assert_all_called=False) as router:
            router.route(url__startswith=URL).mock(side_effect=self.answer)
            return await host.events("t", "agent", **(what or {"input": {"messages": []}}))


class Dropping(httpx.AsyncByteStream, httpx.SyncByteStream):
    """A body that breaks off."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __iter__(self) -> Iterator[bytes]:
        yield self._content
        raise httpx.ReadError("the connection was lost")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content
        raise httpx.ReadError("the connection was lost")


def cut(content: bytes = b"") -> httpx.Response:
    """Returns the stream of a run of which no more than this arrives."""
    about = {"location": STREAM, "content-location": STREAM.removesuffix("/stream")}
    headers = {"content-type": "text/event-stream", **about}
    return httpx.Response(200, headers=headers, stream=Dropping(content))


def token(text: str, name: str = "m1") -> tuple[str, Any]:
    return "messages", [{"type": "AIMessageChunk", "id": name, "content": text}, ABOUT]


def metadata(attempt: int) -> tuple[str, Any]:
    return "metadata", {"run_id": RUN, "attempt": attempt}


def preempted(event: str, **facts: Any) -> tuple[str, Any]:
    return "custom", {"type": "preemption", "event": event, "node": "model", "request_ids": ["r"], **facts}


def state(
    *messages: dict[str, Any], interrupts: Iterable[dict[str, Any]] = (), **more: Any
) -> dict[str, Any]:
    tasks = [{"id": "t", "name": "tools", "interrupts": list(interrupts)}]
    return {"values": {"messages": list(messages), **more}, "tasks": tasks}


def ai(text: str, name: str = "m1") -> dict[str, Any]:
    return {"type": "ai", "id": name, "content": text}


async def test_everything_that_happens_has_an_event(host: Host) -> None:
    call = {"id": "c1", "name": "add", "args": {"a": 1}}
    result = {
        "type": "tool",
        "id": "t1",
        "tool_call_id": "c1",
        "name": "add",
        "content": "2",
        "status": "error",
    }
    server = Server(
        sse(
            [
                metadata(1),
                token("Half "),
                preempted("waiting", reason="tool_call"),
                preempted("sealed", message_id="m1"),
                preempted("restarted", message_id="m2"),
                preempted("injected", message_ids=["h"], outcome="sealed"),
                preempted("expired"),
                preempted("of a newer midstream"),
                ("custom|sub:1", {"progress": 3}),
                ("updates", {"model": {"messages": [{**ai("Calling", "m3"), "tool_calls": [call]}]}}),
                ("messages|sub:1", [result, {"langgraph_node": "tools"}]),
                ("updates", {"tools": {"messages": [result]}}),
                preempted("halted", reason="enough", run_id=RUN),
            ]
        )
    )

    assert await server.events(host) == [
        Started(RUN),
        Token("Half ", "m1", "model"),
        Waiting("tool_call", "model", ("r",)),
        Sealed("m1", "model", ("r",)),
        Restarted("m2", "model", ("r",)),
        Injected(("h",), ("r",), "sealed", "model"),
        Expired(("r",), "model"),
        Custom(preempted("of a newer midstream")[1]),
        Custom({"progress": 3}, ("sub:1",)),
        ToolCall("c1", "add", {"a": 1}, "m3", "model"),
        ToolResult("c1", "add", "2", "error", "tools", ("sub:1",)),
        Halted("enough", RUN, "model", ("r",)),
        Done(RUN, "success", "enough"),
    ]


async def test_a_dropped_connection_is_made_again_and_nothing_comes_twice(host: Host) -> None:
    start = sse([metadata(1), token("one ")], location=STREAM)
    dropped = httpx.Response(200, headers=start.headers, stream=Dropping(start.content))
    rest = [("messages", [{"type": "AIMessageChunk", "id": "m1", "content": "two"}, ABOUT]), ("end", None)]
    server = Server(dropped, sse(rest, location=STREAM), states=[state(ai("one two"))])

    assert await server.events(host) == [
        Started(RUN),
        Token("one ", "m1", "model"),
        Token("two", "m1", "model"),
        Done(RUN, "success"),
    ]
    joined = [request for request in server.requests if request.url.path == STREAM]
    assert [request.headers["last-event-id"] for request in joined] == ["2"]


WORK: dict[str, dict[str, Any]] = {"input": {"input": {"messages": []}}, "resume": {"resume": {"i": "red"}}}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("ends", ["dropped", "closed"])
@pytest.mark.parametrize("names", [["metadata"], []], ids=["named", "unnamed"])
async def test_a_connection_that_is_lost_before_its_first_event_is_made_again_from_the_start(
    host: Host, work: dict[str, Any], ends: str, names: list[str]
) -> None:
    """The head of the answer has named the run; the SDK alone would ask for what comes from now on."""
    told = [token("one "), token("two"), ("end", None)]
    server = Server(
        cut() if ends == "dropped" else httpx.Response(200, headers=cut().headers, content=b""),
        sse([*(metadata(1) for _ in names), *told], location=STREAM),
        states=[state(ai("one two"))],
    )
    server.states[0] = state(interrupts=[{"id": "i", "value": "which?"}] if "resume" in work else ())

    assert await server.events(host, **work) == [
        Started(RUN),
        Token("one ", "m1", "model"),
        Token("two", "m1", "model"),
        Done(RUN, "success"),
    ]
    started, joined = [request for request in server.requests if request.url.path.endswith("/stream")]
    assert (started.method, started.headers.get("last-event-id")) == ("POST", None)
    assert (joined.method, joined.url.path, joined.headers["last-event-id"]) == ("GET", STREAM, "-1")


@pytest.mark.parametrize("status", ["running", "success"])
async def test_a_connection_that_drops_more_often_than_the_sdk_tries_is_made_again(
    host: Host, status: str
) -> None:
    """A run that says nothing for long, behind a proxy that lets no connection live as long as that."""
    cuts = 20 if status == "running" else 8
    told = sse([token("one"), ("end", None)], location=STREAM)
    server = Server(cut(sse([metadata(1)]).content), *(cut() for _ in range(cuts)), told)
    server.states = [state(ai("one"))]
    server.status = status

    events = []
    with respx.mock(assert_all_called=False) as router:
        router.route(url__startswith=URL).mock(side_effect=server.answer)
        async for event in host.midstream.stream("t", "agent", input={"messages": []}):
            events.append(event)
            server.status = "success" if isinstance(event, Token) else server.status

    assert events == [Started(RUN), Token("one", "m1", "model"), Done(RUN, "success")]
    joined = [request for request in server.requests if request.url.path == STREAM]
    assert {request.headers["last-event-id"] for request in joined} == {"1"}


async def test_a_stream_that_always_drops_is_given_up_once_its_run_is_over(host: Host) -> None:
    with pytest.raises(httpx.TransportError):
        await Server(cut(sse([metadata(1)]).content)).events(host)


async def test_a_stream_that_names_no_run_is_an_error_and_no_run(host: Host) -> None:
    server = Server(sse([]))
    with pytest.raises(httpx.RemoteProtocolError, match="has not named its run"):
        await server.events(host)


async def test_what_a_joined_run_tells_twice_is_shown_once(host: Host) -> None:
    """What it has kept, and then what came meanwhile; two parts of the same millisecond have the same id."""
    told = [("1-0", *metadata(1)), ("2-0", *token("a ")), ("2-0", *token("b ")), ("3-0", *token("c "))]
    text = "".join(
        f"id: {name}\nevent: {event}\ndata: {json.dumps(data)}\n\n"
        for name, event, data in (*told, *told[2:], ("3-0", *token("d ")), ("4-0", *token("c ")))
    )
    server = Server(httpx.Response(200, headers={"content-type": "text/event-stream"}, content=text))

    events = await server.events(host, run_id=RUN)

    assert [event.text for event in events if isinstance(event, Token)] == ["a ", "b ", "c ", "d ", "c "]


async def test_the_same_word_twice_in_a_millisecond_is_shown_twice(host: Host) -> None:
    """Nothing is told again to who has started the run, until the stream breaks off."""

    def told(*parts: tuple[str, Any]) -> bytes:
        return b"".join(
            f"id: 1700000000000-0\nevent: {event}\ndata: {json.dumps(data)}\n\n".encode()
            for event, data in parts
        )

    headers = {"content-type": "text/event-stream", "location": STREAM}
    kept = [metadata(1), token("no, "), token("no, "), token("yes")]
    server = Server(
        httpx.Response(200, headers=headers, stream=Dropping(told(*kept[:3]))),
        httpx.Response(200, headers=headers, content=told(*kept, ("end", None))),
    )

    events = await server.events(host)

    assert [event.text for event in events if isinstance(event, Token)] == ["no, ", "no, ", "yes"]


async def test_a_second_attempt_takes_back_what_the_first_did_not_commit(host: Host) -> None:
    """The worker died in mid-answer: `m1` had been committed, `m2` had not."""
    server = Server(
        sse(
            [
                metadata(1),
                token("Kept.", "m1"),
                token("Lost in ", "m2"),
                metadata(1),
                ("error", {"error": "RetryableException", "message": "lost"}),
                metadata(2),
                token("Said ", "m3"),
                token("again.", "m3"),
            ]
        ),
        states=[state(ai("Kept.")), state(ai("Kept."), ai("Said again.", "m3"))],
    )

    events = await server.events(host)

    assert events == [
        Started(RUN),
        Token("Kept.", "m1", "model"),
        Token("Lost in ", "m2", "model"),
        Retried(RUN, 2, ("m2",)),
        Token("Said ", "m3", "model"),
        Token("again.", "m3", "model"),
        Done(RUN, "success"),
    ]


async def test_words_that_the_stream_lost_are_read_from_the_thread(host: Host) -> None:
    server = Server(sse([metadata(1), token("All's well ")]), states=[state(ai("All's well that ends."))])

    assert (await server.events(host))[1:] == [
        Token("All's well ", "m1", "model"),
        Token("that ends.", "m1", "model"),
        Done(RUN, "success"),
    ]


async def test_a_pause_is_read_from_the_thread_not_from_the_stream(host: Host) -> None:
    """A stream that was joined late still shows what has been answered."""
    asked = {"id": "new", "value": "go on?"}
    server = Server(
        sse([metadata(1), ("updates", {"__interrupt__": [{"id": "old", "value": "answered long ago"}]})]),
        states=[state(interrupts=[asked])],
    )
    *_, interrupted, done = await server.events(host)

    assert isinstance(interrupted, Interrupted)
    assert [(each.id, each.value, each.kind) for each in interrupted.interrupts] == [
        ("new", "go on?", "question")
    ]
    assert done == Done(RUN, "interrupted")


async def test_a_failed_run_ends_in_an_error_and_is_done(host: Host) -> None:
    server = Server(sse([metadata(1), ("error", {"error": "ValueError", "message": "no"})]))
    server.status = "error"

    assert await server.events(host) == [Started(RUN), Error(RUN, "ValueError", "no"), Done(RUN, "error")]


async def test_a_whole_message_of_a_model_that_does_not_stream_is_one_token(host: Host) -> None:
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "All "}, "at once"]
    message = {"type": "ai", "id": "m1", "content": blocks}
    server = Server(sse([metadata(1), ("messages", [message, ABOUT]), ("messages", [message, ABOUT])]))

    assert (await server.events(host))[1:-1] == [Token("All at once", "m1", "model")]


async def test_a_run_is_joined_from_its_first_event(host: Host) -> None:
    server = Server(sse([metadata(1), token("one")]))

    assert await server.events(host, run_id=RUN) == [
        Started(RUN),
        Token("one", "m1", "model"),
        Done(RUN, "success"),
    ]
    (joined,) = [request for request in server.requests if request.url.path == STREAM]
    assert joined.headers["last-event-id"] == "-1"


async def test_a_new_run_is_asked_for_so_that_it_can_be_joined_again(host: Host) -> None:
    server = Server(sse([metadata(1)]))
    await server.events(host, input={"messages": []}, config={"tags": ["x"]}, metadata={"by": "ann"})

    (started,) = [request for request in server.requests if request.method == "POST"]
    body = json.loads(started.content)
    assert {name: body[name] for name in body if name not in ("input", "assistant_id")} == {
        "config": {"tags": ["x"]},
        "metadata": {"by": "ann"},
        "multitask_strategy": "reject",
        "on_disconnect": "continue",
        "stream_mode": ["messages-tuple", "custom", "updates"],
        "stream_resumable": True,
        "stream_subgraphs": True,
    }


async def test_a_run_that_the_server_refuses_raises_the_servers_error(host: Host) -> None:
    server = Server(httpx.Response(409, json={"detail": "busy"}))
    with pytest.raises(httpx.HTTPStatusError, match="busy"):
        await server.events(host)


@on_every_way
async def test_a_servers_second_attempt_shows_nothing_twice(host: Host, protocol: str) -> None:
    """The server itself takes the run up again, after its first attempt was lost in mid-answer."""
    thread_id = await host.thread()
    call = {"name": "add", "args": {"a": 1, "b": 2}, "id": "c1"}
    turns = [{"say": f"Let me, {thread_id}.", "tool_calls": [call]}, {"say": "It is three and that is all."}]
    events = await host.events(
        thread_id, "flaky", input=said(json.dumps({"turns": turns})), protocol=protocol
    )

    texts: dict[str, str] = {}
    for event in events:
        if isinstance(event, Token):
            texts[event.message_id] = texts.get(event.message_id, "") + event.text
        elif isinstance(event, Retried):
            assert (event.attempt, [texts.pop(name) for name in event.discarded]) == (
                2,
                ["It is three and that"],
            )
    assert list(texts.values()) == [f"Let me, {thread_id}.", "It is three and that is all."]
    kinds = [type(event) for event in events if not isinstance(event, Token)]
    assert kinds == [Started, ToolCall, ToolResult, Retried, Done]
    committed = [text for kind, text in await host.messages(thread_id) if kind == "ai"]
    assert committed == list(texts.values())


@on_every_way
async def test_each_tool_result_is_told_once_when_the_thread_has_it(host: Host, protocol: str) -> None:
    """Not as a tool returns, while another call of its batch still waits for the host."""
    thread_id = await host.thread()
    email = {"to": "ann", "body": "hi"}
    asked = calls(("add", {"a": 1, "b": 2}), ("send_email", email), ("browse", {"url": "x"}))
    events = await host.events(thread_id, "per_call", input=said(asked), protocol=protocol)
    told = []
    for answer in (edit({"to": "bea", "body": "hi"}, name="send_email"), tool_result("a page")):
        assert [event for event in events if isinstance(event, ToolResult)] == []
        (pending,) = await host.midstream.interrupts(thread_id)
        events = await host.events(thread_id, "per_call", resume={pending.id: answer}, protocol=protocol)
        told.append([event for event in events if isinstance(event, ToolResult)])

    assert told[0] == []
    assert [event.tool_call_id for event in told[1]] == ["call_0", "call_1", "call_2"]
    results = [text for kind, text in await host.messages(thread_id) if kind == "tool"]
    assert [event.content for event in told[1]] == results
    assert {event.node for event in told[1]} == ({"tools"} if protocol == "runs" else {None})


async def test_a_tool_result_of_which_the_stream_says_no_more_is_read_from_the_thread(host: Host) -> None:
    """The run was started without the mode that tells what a node has written."""
    about = {
        "langgraph_node": "tool_call",
        "langgraph_path": ["__pregel_push", ["__pregel_pull", "tools"], 0],
    }
    early = {"type": "tool", "tool_call_id": "c1", "name": "add", "content": "2"}
    server = Server(
        sse([metadata(1), ("messages", [early, about])]), states=[state({**early, "content": "edited: 2"})]
    )

    assert (await server.events(host))[1:] == [
        ToolResult("c1", "add", "edited: 2", "success", None),
        Done(RUN, "success"),
    ]


@on_every_way
async def test_a_cut_connection_to_a_real_server_is_made_again(host: Host, protocol: str) -> None:
    """Cut twice in mid-answer: every word is shown, once, in its order."""
    async with cutting_proxy(host.url) as proxy:
        cut_host = Host(proxy.url, host.kind)
        thread_id = await cut_host.thread()
        words = []
        async for event in cut_host.midstream.stream(
            thread_id, "agent", input=said("Hello"), protocol=protocol
        ):
            if isinstance(event, Token):
                words.append(event.text)
                if len(words) in (8, 20):
                    proxy.cut()
        await cut_host.close()

    assert "".join(words) == "You said: Hello. " + " ".join(f"word{n}" for n in range(1, 41))
    assert (proxy.cuts, len(words)) == (3, 43)


@on_every_way
async def test_of_a_run_whose_stream_is_cut_at_its_head_nothing_is_lost(host: Host, protocol: str) -> None:
    """As a proxy or a network may cut it, when the run is there and nothing of it was told."""
    async with cutting_proxy(host.url) as proxy:
        cut_host = Host(proxy.url, host.kind)
        thread_id = await cut_host.thread()
        told = []
        for work in ("input", "resume"):
            proxy.heads = 1
            asked = said(calls(("ask_user", {"question": "which?"})))
            answers = {each.id: {"choice": "red"} for each in await cut_host.midstream.interrupts(thread_id)}
            what: Any = {"input": asked} if work == "input" else {"resume": answers}
            told.append(await cut_host.events(thread_id, "brief", protocol=protocol, **what))
            assert proxy.heads == 0
        await cut_host.close()

    (started, *_, call, interrupted, paused), (resumed, *after, done) = told
    assert (type(started), type(call), type(interrupted)) == (Started, ToolCall, Interrupted)
    assert paused == Done(started.run_id, "interrupted")
    assert "".join(event.text for event in after if isinstance(event, Token)).startswith("Done.")
    assert (type(resumed), done) == (Started, Done(resumed.run_id, "success"))


async def _last(events: AsyncIterator[Event]) -> Event | None:
    last = None
    async for event in events:
        last = event
    return last


async def test_a_server_that_is_gone_is_tried_for_once_as_long_as_the_sdk_does(
    hosted_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its tries to connect is 7.5 s long; here a fiftieth of that."""
    for colour in ("async", "sync"):
        monkeypatch.setattr(f"httpcore._{colour}.connection.RETRIES_BACKOFF_FACTOR", 0.01)

    async def listen(kind: str, protocol: str) -> float:
        async with cutting_proxy(hosted_url) as proxy:
            host = Host(proxy.url, kind)
            thread_id = await host.thread()
            events = host.midstream.stream(thread_id, "agent", input=said("Hello"), protocol=protocol)
            while not isinstance(await anext(events), Token):
                pass
            stopped_at = time.monotonic()
            proxy.stop()
            with pytest.raises(httpx.ConnectError):
                await _last(events)
            took = time.monotonic() - stopped_at
            await host.close()
        return took

    ways = [(kind, protocol) for kind in ("async", "sync") for protocol in get_args(Protocol)]
    took = await asyncio.gather(*(listen(*way) for way in ways))

    # The SDK's first wait is 1 s; five of them, with a try after each, would be 17 s.
    assert max(took) < 5


async def test_what_shares_its_id_with_the_last_event_before_a_cut_is_not_lost(host: Host) -> None:
    """The server in memory names its events by the millisecond, and tells what came after a name."""

    def told(*parts: tuple[str, Any]) -> bytes:
        return b"".join(
            f"id: 1700000000000-0\nevent: {event}\ndata: {json.dumps(data)}\n\n".encode()
            for event, data in parts
        )

    kept = [metadata(1), token("one "), token("two "), token("three")]
    headers = {"content-type": "text/event-stream", "location": STREAM}
    server = Server(
        httpx.Response(200, headers=headers, stream=Dropping(told(*kept[:2]))),
        httpx.Response(200, headers=headers, content=told(*kept, ("end", None))),
    )

    assert (await server.events(host))[1:-1] == [
        Token(word, "m1", "model") for word in ("one ", "two ", "three")
    ]
    rejoined = next(
        request for request in server.requests if request.url.path == STREAM and request.method == "GET"
    )
    assert rejoined.headers["last-event-id"] == "1699999999999-0"


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_run_that_a_text_has_started_is_joined_on_a_real_server(hosted_url: str, kind: str) -> None:
    """The way of docs/client.md: `send`, and listen to the run that it has started."""
    host = Host(hosted_url, kind)
    thread_id = await host.thread()
    sent = await host.midstream.send(thread_id, "agent", "Hello")
    assert sent.how == "started"

    words, last = [], None
    async for event in host.midstream.stream(thread_id, "agent", run_id=sent.run_id):
        last = event
        if isinstance(event, Token):
            words.append(event.text)
    await host.close()

    assert "".join(words) == "You said: Hello. " + " ".join(f"word{n}" for n in range(1, 41))
    assert last == Done(sent.run_id, "success")


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_those_who_join_in_mid_answer_are_told_each_word_once(hosted_url: str, kind: str) -> None:
    host = Host(hosted_url, kind)
    thread_id = await host.thread()
    run_id = (await host.midstream.send(thread_id, "agent", "Hello")).run_id

    async def listen(pause: float) -> str:
        await asyncio.sleep(pause)
        events = await host.events(thread_id, "agent", run_id=run_id)
        return "".join(event.text for event in events if isinstance(event, Token))

    async for event in host.midstream.stream(thread_id, "agent", run_id=run_id):
        if isinstance(event, Token):
            break
    # Each at another moment of the answer: it takes 0.9 s.
    texts = await asyncio.gather(*(listen(n / 20) for n in range(12)))
    await host.close()

    assert set(texts) == {"You said: Hello. " + " ".join(f"word{n}" for n in range(1, 41))}
