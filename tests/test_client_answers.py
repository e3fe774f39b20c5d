"""Answers are put in their place and checked before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from midstream_client import InvalidAnswerError, approve, edit, reject, respond, tool_result
from midstream_client.answers import place
from midstream_client.interrupts import PendingInterrupt, interrupts_of
from support.dev_server import shows_schemas
from support.hosted import Host, calls, said

THREAD = "t"


def action(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args, "description": f"Tool: {name}"}


def review(name: str, *allowed: str) -> dict[str, Any]:
    return {
        "action_name": name,
        "allowed_decisions": list(allowed or ("approve", "edit", "reject", "respond")),
    }


EMAILS = {
    "action_requests": [action("send", to="ann"), action("send", to="bob"), action("drop", path="/")],
    "review_configs": [review("send"), review("send"), review("drop", "approve", "reject")],
}
CALLS = [
    {"id": "c0", "name": "look", "args": {}},
    {"id": "c1", "name": "send", "args": {"to": "ann"}},
    {"id": "c2", "name": "drop", "args": {"path": "/"}},
    {"id": "c3", "name": "send", "args": {"to": "bob"}},
]


def waiting(value: Any, *, schema: Any = None, messages: list[Any] | None = None) -> list[PendingInterrupt]:
    interrupt = {"id": "i", "value": value, **({"response_schema": schema} if schema else {})}
    said = [{"type": "ai", "content": "", "tool_calls": CALLS}] if messages is None else messages
    return interrupts_of(
        {"values": {"messages": said}, "tasks": [{"name": "tools", "interrupts": [interrupt]}]}
    )


def problems(answer: Any, pending: list[PendingInterrupt]) -> list[tuple[str, str]]:
    with pytest.raises(InvalidAnswerError) as invalid:
        place(THREAD, {"i": answer}, pending)
    return [(problem.field, problem.reason) for problem in invalid.value.problems]


def test_a_batched_request_knows_its_calls_by_name_and_arguments() -> None:
    """LangChain's own requests carry no ids."""
    (pending,) = waiting(EMAILS)

    assert (pending.kind, pending.node) == ("batched_approval", "tools")
    assert [each.tool_call_id for each in pending.actions] == ["c1", "c3", "c2"]
    assert pending.actions[2].allowed_decisions == ("approve", "reject")
    assert (pending.tool_name, pending.tool_call_id) == (None, None)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"c2": reject("no"), "c1": approve(), "c3": edit({"to": "eve"})}, id="by call"),
        pytest.param([approve(), edit({"to": "eve"}), reject("no")], id="by position"),
        pytest.param({"decisions": [approve(), edit({"to": "eve"}, name="send"), reject("no")]}, id="whole"),
    ],
)
def test_decisions_stand_in_the_order_of_the_request(answer: Any) -> None:
    edited = {"type": "edit", "edited_action": {"name": "send", "args": {"to": "eve"}}}

    assert place(THREAD, {"i": answer}, waiting(EMAILS)) == {
        "i": {"decisions": [{"type": "approve"}, edited, {"type": "reject", "message": "no"}]}
    }


def test_one_decision_answers_one_call() -> None:
    one = {"action_requests": [action("send", to="ann")], "review_configs": [review("send")]}

    assert place(THREAD, {"i": respond("later")}, waiting(one)) == {
        "i": {"decisions": [{"type": "respond", "message": "later"}]}
    }


@pytest.mark.parametrize(
    ("answer", "field", "reason"),
    [
        pytest.param({"c1": approve(), "c3": approve()}, "c2", "no decision", id="missing"),
        pytest.param(
            {"c1": approve(), "c9": approve()}, "c9", "c1 (send), c3 (send), c2 (drop)", id="unknown"
        ),
        pytest.param(approve(), "", "3 calls wait", id="one for many"),
        pytest.param([approve()], "decisions", "must be 3", id="too few"),
        pytest.param("yes", "", "'yes'", id="text"),
        pytest.param(
            [approve(), approve(), edit({})], "decisions.2.type", "['approve', 'reject']", id="not allowed"
        ),
        pytest.param(
            [approve(), {"type": "edit"}, approve()],
            "decisions.1.edited_action.args",
            "arguments",
            id="no args",
        ),
        pytest.param(
            [approve(), {"type": "respond"}, approve()], "decisions.1.message", "text", id="no message"
        ),
        pytest.param({"decisions": "all"}, "decisions", "must be a list", id="no list"),
        pytest.param([approve(), "no", approve()], "decisions.1", "approve()", id="no decision"),
    ],
)
def test_a_wrong_decision_names_its_field_and_the_reason(answer: Any, field: str, reason: str) -> None:
    ((found, why),) = problems(answer, waiting(EMAILS))

    assert found == field
    assert reason in why


ONE = {"type": "tool_approval", "tool_call_id": "c1", "name": "send", "args": {"to": "ann"}}


def test_a_call_that_is_asked_about_by_itself_is_answered_by_its_id_too() -> None:
    for answer in (reject("no"), {"c1": reject("no")}):
        assert place(THREAD, {"i": answer}, waiting(ONE)) == {"i": {"type": "reject", "message": "no"}}
    edited = {"type": "edit", "edited_action": {"name": "send", "args": {"to": "eve"}}}
    assert place(THREAD, {"i": {"c1": edit({"to": "eve"})}}, waiting(ONE)) == {"i": edited}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(
            {"c9": approve()}, "must be one decision on this call, such as approve(), not", id="other"
        ),
        pytest.param({"c1": approve(), "c2": approve()}, "not a dict of 'c1', 'c2': c1 (send)", id="several"),
        pytest.param({}, "not a dict of nothing", id="empty"),
        pytest.param([approve()], "must be a decision such as approve(), not [", id="list"),
        pytest.param("yes", "must be a decision such as approve(), not 'yes'", id="text"),
        pytest.param({"c1": "yes"}, "must be a decision such as approve(), not 'yes'", id="text by id"),
    ],
)
def test_what_is_no_decision_on_the_one_call_says_what_is(answer: Any, reason: str) -> None:
    ((field, why),) = problems(answer, waiting(ONE))

    assert field == ""
    assert reason in why


def test_calls_that_cannot_be_told_apart_are_answered_by_position() -> None:
    pending = waiting(EMAILS, messages=[])

    assert "list of 3 decisions" in problems({"c1": approve()}, pending)[0][1]
    assert place(THREAD, {"i": [approve()] * 3}, pending)["i"]["decisions"] == [approve()] * 3


def test_an_answer_is_held_to_the_graphs_own_schema() -> None:
    class Trip(BaseModel):
        city: str
        nights: int

    pending = waiting("where to?", schema=TypeAdapter(Trip).json_schema())

    assert place(THREAD, {"i": {"city": "Rome", "nights": 2}}, pending) == {
        "i": {"city": "Rome", "nights": 2}
    }
    assert problems({"city": 3}, pending) == [
        ("city", "3 is not of type 'string'"),
        ("nights", "'nights' is a required property"),
    ]
    assert problems(None, pending) == [("", "None is not of type 'object'")]


def test_a_broken_schema_is_left_to_the_graph() -> None:
    assert place(THREAD, {"i": 1}, waiting("?", schema={"type": "nonsense"})) == {"i": 1}


def test_all_wrong_answers_are_named_at_once() -> None:
    (first,), (second,) = waiting("?", schema={"type": "string"}), waiting("?", schema={"type": "integer"})
    pending = [
        PendingInterrupt(name, each.value, each.kind, each.response_schema)
        for name, each in (("one", first), ("two", second))
    ]

    with pytest.raises(InvalidAnswerError, match=r"one: 1 is not.*two: '1' is not") as invalid:
        place(THREAD, {"one": 1, "two": "1"}, pending)
    assert [problem.interrupt_id for problem in invalid.value.problems] == ["one", "two"]


@pytest.fixture(params=["async", "sync"])
async def host(request: pytest.FixtureRequest, hosted_url: str) -> Any:
    made = Host(hosted_url, request.param)
    yield made
    await made.close()


@shows_schemas
async def test_a_batch_is_approved_edited_and_rejected_by_call_on_the_server(host: Host) -> None:
    thread_id = await host.thread()
    asked = calls(
        ("add", {"a": 1, "b": 2}),
        ("send_email", {"to": "ann", "body": "hi"}),
        ("send_email", {"to": "bob", "body": "hi"}),
        ("browse", {"url": "http://example.com"}),
        ("send_email", {"to": "eve", "body": "hi"}),
    )
    await host.events(thread_id, "brief", input=said(asked))
    (pending,) = await host.midstream.interrupts(thread_id)
    assert [each.tool_call_id for each in pending.actions] == ["call_1", "call_2", "call_4"]

    wrong = {"call_1": approve(), "call_2": edit({"to": 3, "body": "hi"}), "call_4": {"type": "postpone"}}
    with pytest.raises(InvalidAnswerError) as invalid:
        await host.midstream.resume(thread_id, "brief", {pending.id: wrong})
    assert [(each.field, each.reason.partition(" ")[0]) for each in invalid.value.problems] == [
        ("decisions.1.edited_action.args.to", "3"),
        ("decisions.2.type", "must"),
    ]
    assert [each.tool_call_id for each in invalid.value.problems] == ["call_2", "call_4"]
    assert f"{pending.id}: decisions.2.type (of call_4): must be one of" in str(invalid.value)

    right = {"call_4": reject("not eve"), "call_1": approve(), "call_2": edit({"to": "bea", "body": "hi"})}
    resumed = await host.midstream.resume(thread_id, "brief", {pending.id: right})

    (browse,) = resumed.open
    assert (resumed.status, browse.kind, browse.tool_name) == ("interrupted", "tool_execution", "browse")
    done = await host.midstream.resume(thread_id, "brief", {browse.id: tool_result("a page")})
    assert (done.status, done.open) == ("success", ())
    results = [text for kind, text in await host.messages(thread_id) if kind == "tool"]
    assert (results[0], results[1], results[3]) == ("3", "sent to ann", "a page")
    assert "sent to bea" in results[2]
    assert "not eve" in results[4]


async def test_each_call_is_asked_about_by_itself_and_some_may_be_answered(host: Host) -> None:
    thread_id = await host.thread()
    asked = calls(("send_email", {"to": "ann", "body": "hi"}), ("send_email", {"to": "bob", "body": "hi"}))
    await host.events(thread_id, "per_call", input=said(asked))
    ann, bob = await host.midstream.interrupts(thread_id)
    assert [(each.kind, each.tool_name, each.tool_call_id) for each in (ann, bob)] == [
        ("tool_approval", "send_email", "call_0"),
        ("tool_approval", "send_email", "call_1"),
    ]
    assert ann.actions[0].allowed_decisions == ("approve", "edit", "reject", "respond")

    with pytest.raises(InvalidAnswerError, match="must be one of"):
        await host.midstream.resume(thread_id, "per_call", {ann.id: approve(), bob.id: {"type": "maybe"}})
    first = await host.midstream.resume(thread_id, "per_call", {bob.id: respond("bob knows")})
    assert [each.id for each in first.open] == [ann.id]
    second = await host.midstream.resume(
        thread_id, "per_call", {ann.id: edit({"to": "ann", "body": "hello"})}
    )

    assert second.open == ()
    results = [text for kind, text in await host.messages(thread_id) if kind == "tool"]
    assert "sent to ann" in results[0]
    assert results[1] == "bob knows"


@shows_schemas
async def test_a_failed_run_hides_no_question(host: Host) -> None:
    """The server's thread object leaves it out: the thread is in `error`, and waits all the same."""
    thread_id = await host.thread()
    await host.events(thread_id, "fragile", input=said("Hello"))
    asked = {each.value: each for each in await host.midstream.interrupts(thread_id)}
    typed, plain = asked["typed?"].id, asked["plain?"].id
    # A stock client's answer, past our check.
    await host.runs.wait(thread_id, "fragile", command={"resume": {typed: {"choice": 3}}}, raise_error=False)
    thread = await host.threads.get(thread_id)
    (shown,) = thread["interrupts"].values()

    assert (thread["status"], [each["id"] for each in shown]) == ("error", [plain])
    assert {each.value: each for each in await host.midstream.interrupts(thread_id)} == asked
    assert (await host.midstream.send(thread_id, "fragile", "And now?")).how == "waiting"
    resumed = await host.midstream.resume(thread_id, "fragile", {typed: {"choice": "red"}, plain: "blue"})
    assert (resumed.status, resumed.open) == ("success", ())
    assert {("ai", "typed red"), ("ai", "plain blue")} <= set(await host.messages(thread_id))


async def test_a_question_whose_answer_made_its_node_fail_is_not_open(host: Host) -> None:
    """LangGraph has kept the answer, so another one would never reach the node."""
    thread_id = await host.thread()
    await host.events(thread_id, "fragile", input=said("Hello"))
    asked = {each.value: each for each in await host.midstream.interrupts(thread_id)}
    answers = {asked["typed?"].id: {"choice": "red"}, asked["plain?"].id: "bad"}

    failed = await host.midstream.resume(thread_id, "fragile", answers)

    assert (failed.status, failed.open) == ("error", ())
    assert (await host.midstream.send(thread_id, "fragile", "Again, please.")).how == "started"
    await host.is_over(thread_id)


async def test_what_the_server_finds_wrong_is_open_again_with_the_reason(host: Host) -> None:
    """An answer past the client's own check: a stock client gave it."""
    thread_id = await host.thread()
    asked = calls(("send_email", {"to": "ann", "body": "hi"}))
    await host.events(thread_id, "per_call", input=said(asked))
    (pending,) = await host.midstream.interrupts(thread_id)

    wrong = {"resume": {pending.id: {"type": "edit", "edited_action": {"name": "send_email", "args": {}}}}}
    await host.runs.wait(thread_id, "per_call", command=wrong)

    (again,) = await host.midstream.interrupts(thread_id)
    assert {error.path for error in again.errors} == {"edited_action.args.to", "edited_action.args.body"}
    resumed = await host.midstream.resume(thread_id, "per_call", {again.id: approve()}, wait=False)
    assert (resumed.answered, resumed.open) == ((again.id,), ())
    await host.is_over(thread_id)
    assert "sent to ann" in [text for _, text in await host.messages(thread_id)]
