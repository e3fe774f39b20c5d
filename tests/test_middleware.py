"""The middleware alone, message by message."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from starlette.types import Message

from midstream import Ledger
from midstream._update_body import KeyFinder
from midstream._versions import lacks
from midstream.ledger import HaltRecord
from midstream.server import PreemptionMiddleware
from midstream_client.protocol import MAX_REQUEST_BYTES
from support.examples import examples
from support.ledgers import marked, steer, texts, withdraw
from support.thread_server import BOB, THREAD_ID, ThreadServer, call

STATE = f"/threads/{THREAD_ID}/state"
REPORT = f"/threads/{THREAD_ID}/preemption"


class Setting:
    """The middleware between a caller and a server, over a saver in memory."""

    def __init__(self) -> None:
        self.server = ThreadServer()
        self.ledger = Ledger(InMemorySaver(), THREAD_ID)

        async def get_saver() -> Any:
            return self.ledger._saver

        self.app = PreemptionMiddleware(self.server, get_saver=get_saver)

    async def post(self, request: Any, **more: Any) -> tuple[int, dict[str, Any]]:
        body = json.dumps({"values": {"preemption": request}, **more}).encode()
        status, _, answer, _ = await call(self.app, "POST", STATE, [body])
        return status, json.loads(answer)


@pytest.fixture
def setting() -> Setting:
    return Setting()


async def test_a_request_is_authorised_then_kept_then_acknowledged(setting: Setting) -> None:
    status, answer = await setting.post(steer("hello"))

    [entry] = setting.ledger.requests()
    checkpoint = {
        "thread_id": THREAD_ID,
        "checkpoint_ns": "preemption",
        "checkpoint_id": "00000001-0000-6000-8000-000000000000",
        "checkpoint_map": {},
    }
    assert status == 200
    assert answer == {
        "checkpoint": checkpoint,
        "configurable": checkpoint,
        "checkpoint_id": checkpoint["checkpoint_id"],
        "preemption": {"id": entry.id, "status": "accepted", "thread_status": "busy"},
    }
    [(method, path, _), (tried, state, body)] = setting.server.calls
    assert (method, path, tried, state) == ("GET", f"/threads/{THREAD_ID}", "POST", STATE)
    assert json.loads(body).keys() == {"values", "as_node"}


async def test_the_server_is_asked_in_the_callers_name(setting: Setting) -> None:
    body = json.dumps({"values": {"preemption": steer("hello")}}).encode()
    headers = [
        (b"authorization", b"Bearer ann"),
        (b"x-api-key", b"k"),
        (b"content-length", b"%d" % len(body)),
        (b"content-type", b"application/json"),
        (b"accept-encoding", b"gzip"),
        (b"prefer", b"return=minimal"),
    ]

    status, names, _, _ = await call(setting.app, "POST", STATE, [body], headers=headers)

    assert status == 200
    assert names["access-control-allow-origin"] == "https://ui"
    theirs = {b"authorization": b"Bearer ann", b"x-api-key": b"k"}
    [looked, tried] = setting.server.headers
    length = b"%d" % len(setting.server.calls[1][2])
    assert looked == theirs
    assert tried == {**theirs, b"content-type": b"application/json", b"content-length": length}


async def test_a_server_without_the_private_name_is_told_so(setting: Setting) -> None:
    async def get_saver() -> Any:
        raise lacks("langgraph-api", "langgraph_api._checkpointer.get_checkpointer")

    app = PreemptionMiddleware(setting.server, get_saver=get_saver)
    body = json.dumps({"values": {"preemption": steer("hello")}}).encode()
    for method, path in ("POST", STATE), ("GET", REPORT):
        status, _, answer, _ = await call(app, method, path, [body])

        assert status == 501
        assert "has no langgraph_api._checkpointer.get_checkpointer" in json.loads(answer)["detail"]


@pytest.mark.parametrize("request_", [steer("hello"), {"kind": "nonsense"}, withdraw(str(uuid.uuid4()))])
async def test_a_stranger_gets_the_servers_own_words_whatever_was_asked(
    setting: Setting, request_: Any
) -> None:
    body = json.dumps({"values": {"preemption": request_}}).encode()
    status, _, answer, _ = await call(setting.app, "POST", STATE, [body], headers=[BOB])

    assert (status, json.loads(answer)) == (403, {"detail": "not yours"})
    assert setting.ledger.view().root == 0

    status, _, answer, _ = await call(setting.app, "GET", REPORT, headers=[BOB])
    assert (status, json.loads(answer)) == (403, {"detail": "not yours"})


async def test_bad_input_is_explained_and_changes_nothing(setting: Setting) -> None:
    refusals = [
        await setting.post({"kind": "stop"}),
        await setting.post(steer(" ")),
        await setting.post(steer("x", run_id="7")),
        await setting.post("stop"),
        await setting.post(None),
        await setting.post(steer("x"), as_node="model"),
        await setting.post(steer("x"), checkpoint_id="1ef4a9b8-e6fb-67b1-8001-abd5184439d1"),
        await setting.post(steer("x"), checkpoint={"thread_id": THREAD_ID}),
        await setting.post(steer("x"), values={"preemption": steer("x"), "messages": []}),
    ]

    assert [status for status, _ in refusals] == [422] * 9
    assert [answer["detail"].partition(":")[0] for _, answer in refusals] == [
        "preemption.kind",
        "preemption.messages.0.content",
        "preemption.run_id",
        "preemption",
        "preemption",
        "as_node",
        "checkpoint_id",
        "checkpoint",
        "values",
    ]
    assert "'messages'" in refusals[-1][1]["detail"]
    assert {method for method, _, _ in setting.server.calls} == {"GET"}
    assert setting.ledger.view().root == 0


async def test_options_that_mean_nothing_do_no_harm(setting: Setting) -> None:
    status, _ = await setting.post(steer("x"), as_node=None, checkpoint=None, checkpoint_id="")
    assert status == 200


async def test_a_full_ledger_is_429_and_room_is_made_by_withdrawing(setting: Setting) -> None:
    ids = [(await setting.post(steer(str(n))))[1]["preemption"]["id"] for n in range(32)]

    status, answer = await setting.post(steer("one too many"))
    assert status == 429
    assert "withdraw" in answer["detail"]

    assert (await setting.post(withdraw(ids[0])))[0] == 200
    assert (await setting.post(steer("fits again")))[0] == 200


async def test_what_is_not_pending_cannot_be_withdrawn(setting: Setting) -> None:
    request_id = setting.ledger.append(steer("done"))
    setting.ledger.mark(marked(*setting.ledger.requests()))

    status, answer = await setting.post(withdraw(request_id))
    assert (status, "'sealed'" in answer["detail"]) == (409, True)
    assert answer["preemption"] == {"id": request_id, "outcome": "sealed"}

    status, answer = await setting.post(withdraw(str(uuid.uuid4())))
    assert (status, "knows no request" in answer["detail"]) == (404, True)


async def test_an_unknown_thread_is_the_servers_own_404(setting: Setting) -> None:
    body = json.dumps({"values": {"preemption": steer("x")}}).encode()
    status, _, answer, _ = await call(setting.app, "POST", f"/threads/{uuid.uuid4()}/state", [body])
    assert (status, json.loads(answer)) == (404, {"detail": "no such thread"})


async def test_a_report_shows_what_waits_how_requests_ended_and_the_halts(setting: Setting) -> None:
    done, gone, waits = (setting.ledger.append(steer(text)) for text in ("done", "gone", "waits"))
    stop = setting.ledger.append({"kind": "halt", "reason": "enough", "node": "writer"})
    entries = {entry.id: entry for entry in setting.ledger.requests()}
    setting.ledger.mark(marked(entries[done]))
    setting.ledger.append(withdraw(gone))
    record = HaltRecord(run_id="r", reason="earlier", node="writer", at=5.0)
    setting.ledger.record_halt(record)

    status, _, answer, _ = await call(setting.app, "GET", REPORT)

    addressed: dict[str, Any] = {"run_id": None, "node": None}
    assert (status, json.loads(answer)) == (
        200,
        {
            "thread_status": "busy",
            "pending": [
                {
                    "id": waits,
                    "kind": "steer",
                    "messages": [{"role": "user", "content": "waits"}],
                    **addressed,
                    "accepted_at": entries[waits].accepted_at,
                },
                {
                    "id": stop,
                    "kind": "halt",
                    "reason": "enough",
                    **addressed,
                    "node": "writer",
                    "accepted_at": entries[stop].accepted_at,
                },
            ],
            "handled": {
                gone: {"outcome": "withdrawn", "accepted_at": entries[gone].accepted_at},
                **marked(entries[done]),
            },
            "halts": [record],
        },
    )
    assert setting.server.calls == [("GET", f"/threads/{THREAD_ID}", b"")]


@pytest.mark.parametrize(
    ("prefix", "root_path"),
    [("", "/noauth"), ("/api/v1", "/api/v1"), ("/noauth/api/v1", "/noauth/api/v1")],
    ids=["from within", "mounted", "from within, mounted"],
)
async def test_a_mount_prefix_is_kept(setting: Setting, prefix: str, root_path: str) -> None:
    body = json.dumps({"values": {"preemption": steer("x")}}).encode()

    status, _, _, _ = await call(setting.app, "POST", prefix + STATE, [body], root_path=root_path)

    assert status == 200
    assert [path for _, path, _ in setting.server.calls] == [f"{prefix}/threads/{THREAD_ID}", prefix + STATE]
    status, _, _, _ = await call(setting.app, "GET", prefix + REPORT, root_path=root_path)
    assert status == 200


ORDINARY: dict[str, Any] = {
    "an ordinary update": ("POST", STATE, [b'{"values": {"messages": []}}']),
    "in pieces": ("POST", STATE, [b'{"val', b"", b'ues": {"mess', b'ages": []}}']),
    "empty": ("POST", STATE, [b""]),
    "not JSON": ("POST", STATE, [b'{"values": {"preemption": ']),
    "not an object": ("POST", STATE, [b'["preemption"]']),
    "no values": ("POST", STATE, [b'{"values": null, "preemption": {"kind": "halt"}}']),
    "a list of values": ("POST", STATE, [b'{"values": [{"preemption": {}}]}']),
    "deeper": ("POST", STATE, [b'{"values": {"a": {"preemption": {}}}}']),
    "large": ("POST", STATE, [b'{"values": {"a": "' + b"x" * 70_000, b"y" * 70_000, b'"}}']),
    "large and deeper": ("POST", STATE, [b'{"values": {"a": {"preemption": "' + b"x" * 99_000, b'"}}}']),
    "large, in words": ("POST", STATE, [b'{"values": {"a": "\\"preemption\\": ' + b"x" * 99_000, b'"}}']),
    "another method": ("PUT", STATE, [b'{"values": {"preemption": {"kind": "halt"}}}']),
    "another route": ("POST", "/runs/stream", [b'{"values": {"preemption": {"kind": "halt"}}}']),
    "a route below": ("POST", f"{STATE}/checkpoint", [b'{"values": {"preemption": {}}}']),
    "reading the state": ("GET", STATE, [b""]),
}


@pytest.mark.parametrize("name", ORDINARY)
async def test_everything_else_passes_byte_for_byte(setting: Setting, name: str) -> None:
    method, path, chunks = ORDINARY[name]
    bare = ThreadServer()

    without = await call(bare, method, path, chunks)
    through = await call(setting.app, method, path, chunks)

    assert through == without
    assert setting.server.received == bare.received
    assert setting.server.calls == bare.calls
    assert setting.ledger.view().root == 0


@pytest.mark.parametrize(
    "part",
    [
        b'{"values": {"pre',
        b'{"values": {"preemption": {"kind": "halt", "reason": "whole but for its end"}}}',
        b'{"values": {"a": "' + b"x" * 70_000,
    ],
    ids=["cut", "whole", "large"],
)
async def test_a_caller_who_leaves_is_missed_downstream(setting: Setting, part: bytes) -> None:
    then: list[Message] = [
        {"type": "http.request", "body": part, "more_body": True},
        {"type": "http.disconnect"},
    ]
    bare = ThreadServer()

    await call(bare, "POST", STATE, [], then=then)
    await call(setting.app, "POST", STATE, [], then=then)

    assert setting.server.received == bare.received == then
    assert setting.ledger.view().root == 0


@pytest.mark.parametrize(
    "chunks",
    [
        [b'{"values": {"preemption": {"kind": "steer", "messages": "' + b"x" * MAX_REQUEST_BYTES + b'"}}}'],
        [b'{"values": {"preemption": {"kind": "steer", "messages": "', b"x" * 70_000, b"x" * 70_000, b'"}}}'],
        [b'{"values": {"a": "' + b"x" * 70_000, b'", "preemption": {"kind": "halt"}}}'],
        [b'{"values": {"a": "' + b"x" * 70_000, b'", "pre\\u0065mp', b'tion" ', b": {}}}"],
        [b'{"as_node": "' + b"x" * 70_000, b'", "values": {"preemption": {}}}'],
    ],
    ids=["alone", "in pieces", "beside others", "in other letters", "late"],
)
async def test_a_large_update_that_speaks_of_preemption_never_arrives(
    setting: Setting, chunks: list[bytes]
) -> None:
    status, _, answer, _ = await call(setting.app, "POST", STATE, chunks)

    assert (status, "at most 65536 bytes" in json.loads(answer)["detail"]) == (413, True)
    assert {method for method, _, _ in setting.server.calls} == {"GET"}
    assert setting.ledger.view().root == 0


async def test_a_request_may_be_as_large_as_it_may_be(setting: Setting) -> None:
    frame = len(json.dumps({"values": {"preemption": steer("")}}))
    status, _ = await setting.post(steer("x" * (MAX_REQUEST_BYTES - frame)))
    assert status == 200
    status, _ = await setting.post(steer("x" * (MAX_REQUEST_BYTES - frame + 1)))
    assert status == 413


async def test_websockets_and_the_lifespan_pass(setting: Setting) -> None:
    messages = [
        {"type": "websocket.connect"},
        {"type": "websocket.receive", "text": "hello"},
        {"type": "websocket.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await setting.app({"type": "websocket", "path": STATE}, receive, send)

    assert sent == [{"type": "websocket.accept"}, {"type": "websocket.send", "text": "HELLO"}]


async def test_a_server_that_answers_with_another_thread_is_not_believed(setting: Setting) -> None:
    other = str(uuid.uuid4())

    async def mistaken(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        body = json.dumps({"thread_id": other, "status": "idle"}).encode()
        await send({"type": "http.response.body", "body": body})

    setting.app.app = mistaken
    with pytest.raises(RuntimeError, match="nothing was written"):
        await setting.post(steer("x"))
    assert setting.ledger.view().root == 0


async def test_the_thread_is_named_as_the_server_names_it(setting: Setting) -> None:
    body = json.dumps({"values": {"preemption": steer("hello")}}).encode()

    async def lenient(scope: Any, receive: Any, send: Any) -> None:
        await setting.server({**scope, "path": scope["path"].lower()}, receive, send)

    setting.app.app = lenient
    status, _, _, _ = await call(setting.app, "POST", STATE.replace(THREAD_ID, THREAD_ID.upper()), [body])

    assert status == 200
    assert texts(setting.ledger.requests()) == ["hello"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6) | st.sampled_from(["preemption"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["values", "preemption", "a", "é\"'\\"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(value=json_values, escape=st.booleans(), seed=st.integers(0, 2**16))
def test_the_finder_says_what_a_parser_says_however_the_bytes_come(
    value: Any, escape: bool, seed: int
) -> None:
    text = json.dumps(value, ensure_ascii=escape)
    if escape:
        text = text.replace('"preemption"', '"\\u0070reemption"')
    body = text.encode()
    pieces = random.Random(seed)
    finder = KeyFinder("preemption")

    at = 0
    while at < len(body):
        size = pieces.randint(0, 7)
        finder.feed(body[at : at + size])
        at += size

    values = value.get("values") if isinstance(value, dict) else None
    assert finder.found == (isinstance(values, dict) and "preemption" in values)


words = st.sampled_from(["steer", "halt", "withdraw", "user", "assistant", THREAD_ID, "", " ", "☃\0"])
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5) | words,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | words, inner, max_size=3)
    ),
    max_leaves=8,
)
requests = st.fixed_dictionaries(
    {},
    optional={
        "kind": words | anything,
        "id": words | anything,
        "messages": words
        | anything
        | st.lists(st.fixed_dictionaries({"content": anything}, optional={"role": words}), max_size=3),
        "reason": words | anything,
        "run_id": st.none() | words | anything,
        "node": st.none() | words | anything,
    },
)


@given(request=requests | anything, beside=st.dictionaries(words, anything, max_size=1))
@settings(deadline=None, max_examples=examples(150))
def test_whatever_comes_is_taken_or_refused_and_never_fails(request: Any, beside: Any) -> None:
    setting = Setting()

    async def post() -> tuple[int, dict[str, Any]]:
        return await setting.post(request, **{name: beside[name] for name in beside if name != "values"})

    status, answer = asyncio.run(post())

    if status == 200:
        assert answer["preemption"]["id"] in [entry.id for entry in setting.ledger.requests()]
    else:
        assert status in (404, 422)
        assert setting.ledger.view().root == 0
        assert isinstance(answer["detail"], str)


def test_the_finder_keeps_no_more_than_a_key() -> None:
    finder = KeyFinder("preemption")
    finder.feed(b'{"values": {"')
    for _ in range(100):
        finder.feed(b"x" * 10_000)
    assert len(finder._string) <= 130
