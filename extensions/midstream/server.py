"""The server's side: a host's state update with the key `preemption` goes to the thread's ledger.

Put `"http": {"app": "midstream.server:app"}` into `langgraph.json`, or, next to an app of your own, add
`PreemptionMiddleware` to it. A request's way:

1. Not a state update, or one that does not speak of `preemption`: it passes, byte for byte.
2. It is read and judged, which changes nothing.
3. The server itself is asked whether the caller may read and update the thread; if not, its answer is the
   answer. Of a busy thread it is asked by a state update, which it refuses in any case, but last; of any
   other by a change of no metadata, which sets the time of its last update.
4. The request is put on the ledger and acknowledged.

The server's own answers about runs get what the ledger knows of them: why one was halted, and how often it
was sealed.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections import deque
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import orjson
from pydantic import ValidationError
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from midstream._asgi import Answer, GetSaver, Guard, Replay, StraightLifespan, perform
from midstream._host import server_saver
from midstream._run_answers import answer_about_runs
from midstream._update_body import KeyFinder
from midstream._versions import unknown_server
from midstream.errors import ConfigurationError, LedgerFullError, NotPendingError, RequestConflictError
from midstream.ledger import NAMESPACE, Entry, Ledger, View, root_id
from midstream.state import Handled
from midstream.telemetry import tell
from midstream_client.protocol import MAX_REQUEST_BYTES, Receipt, Request, parse_request

KEY = "preemption"
"""The only key of `values` in a state update that is a request."""

_ROUTE = re.compile(r"^(?P<thread>/threads/[^/]+)/(?P<what>state|preemption|runs(?:/[^/]+)?)$")

_OF_THE_BODY = frozenset(
    (b"accept-encoding", b"content-encoding", b"content-length", b"content-type", b"expect", b"prefer")
) | {b"transfer-encoding"}
"""Headers that concern the caller's own body or the form of the answer, not who the caller is."""

_WHY = {404: "unknown", 409: "ended", 413: "too_large", 422: "invalid", 429: "full"}
"""Why a request was refused, by status; `server`, if it was the server itself."""

_WRONG_COMPANY = (
    f"values: a request stands alone, but beside {KEY!r} there is {{others}}: send the rest as an update of "
    "its own"
)
_WRONG_OPTION = (
    "{option}: a request is put beside the thread's state, not into it, so `checkpoint`, `checkpoint_id` and "
    "`as_node` have no meaning here: leave them out (to address a model node, use `node` in the request)"
)

_PLAINER = {
    "union_tag_not_found": (".kind", "must be one of 'steer', 'halt', 'withdraw'"),
    "union_tag_invalid": (".kind", "must be one of 'steer', 'halt', 'withdraw'"),
    "model_attributes_type": ("", 'must be an object, such as {"kind": "steer", "messages": "…"}'),
}
"""Where pydantic speaks of its own matters: the field, and what a host should read, by type of error."""


logger = logging.getLogger("midstream")

if (note := unknown_server()) is not None:
    logger.warning(note)


class PreemptionMiddleware:
    """Takes requests out of the stream of state updates; everything else passes untouched.

    Args:
        app: What is wrapped: the server's own app, in which the threads' routes are.
        get_saver: Where the threads are kept; the server's own saver if not given.
    """

    def __init__(self, app: ASGIApp, *, get_saver: GetSaver = server_saver) -> None:
        self.app = app
        self._get_saver = get_saver

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        route = _ROUTE.match(_route_path(scope))
        if route is None:
            return await self.app(scope, receive, send)

        match scope["method"], route["what"]:
            case "POST", "state":
                await _Update(self.app, self._get_saver, scope, receive, send).answer()
            case "GET", "preemption":
                await _Report(self.app, self._get_saver, scope, receive, send).answer()
            case "GET", what if what.startswith("runs"):
                thread_id = route["thread"].rpartition("/")[2]
                await answer_about_runs(self.app, self._get_saver, thread_id, scope, receive, send)
            case _:
                await self.app(scope, receive, send)
        return None


class _Refused(Exception):  # noqa: N818 -- a signal within this module, not a failure
    """The call gets this answer, and nothing is written."""

    def __init__(
        self, status: int, detail: str, *, request_id: str | None = None, outcome: str | None = None
    ) -> None:
        self.status = status
        self.detail = detail
        # By this a client tells midstream's refusals from the server's own.
        self.about = {"id": request_id, "outcome": outcome}


class _Call:
    """One call that may be ours, and the ways to answer it."""

    def __init__(self, app: ASGIApp, get_saver: GetSaver, scope: Scope, receive: Receive, send: Send) -> None:
        self._app = app
        self._get_saver = get_saver
        self._scope = scope
        self._receive = receive
        self._send = send
        self._began = time.time()

    async def run(self) -> None:
        raise NotImplementedError

    async def answer(self) -> None:
        """Answers, by 501 where the server lacks what midstream reads."""
        try:
            await self.run()
        except ConfigurationError as error:
            logger.error("%s", error)
            response = JSONResponse({"detail": str(error)}, status_code=501)
            await response(self._scope, self._receive, self._send)

    async def _ask(self, method: str, body: bytes = b"", *, below: str = "") -> Answer:
        """Calls the thread's own route, or one below it, in the caller's name."""
        path = self._scope["path"].rpartition("/")[0] + below
        headers = [(name, value) for name, value in self._scope["headers"] if name not in _OF_THE_BODY]
        if body:
            headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        scope = {
            **self._scope,
            "method": method,
            "path": path,
            "raw_path": quote(path).encode(),
            "headers": headers,
        }
        return await perform(self._app, scope, body)

    def _tell_refused(self, status: int, why: str, request_id: str | None = None) -> None:
        asked = _ROUTE.match(_route_path(self._scope))
        thread_id = asked["thread"].rpartition("/")[2] if asked else None
        tell(
            "refused",
            began=self._began,
            thread_id=thread_id,
            request_id=request_id,
            status=status,
            why=why,
        )

    async def _ledger(self, thread: Mapping[str, Any]) -> Ledger:
        return Ledger(await self._get_saver(), thread["thread_id"])

    async def _pass_on(self, answer: Answer) -> None:
        start = {"type": "http.response.start", "status": answer.status, "headers": answer.headers}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": answer.body})

    async def _reply(self, content: Any, *, like: Answer, status: int = 200) -> None:
        response = JSONResponse(content, status_code=status, headers=like.shared_headers())
        await response(self._scope, self._receive, self._send)

    async def _refuse(self, refused: _Refused, *, like: Answer) -> None:
        self._tell_refused(refused.status, _WHY.get(refused.status, "invalid"), refused.about["id"])
        await self._reply({"detail": refused.detail, KEY: refused.about}, like=like, status=refused.status)


class _Report(_Call):
    """`GET /threads/{thread_id}/preemption`: what is pending, how the last requests ended, and the halts."""

    async def run(self) -> None:
        answer = await self._ask("GET")
        if not answer.is_ok:
            return await self._pass_on(answer)
        thread = _thread_of(answer, self._scope)
        ledger = await self._ledger(thread)
        view = await ledger.aview()
        # What is pending may be handled already; and an agent that could not claim what it took told nobody.
        is_open = view.pending() or view.withdrawn - view.marks.keys()
        handled = await ledger.ahandled() if is_open else {}
        # The status was read before the ledger: if it is not `busy`, whatever ran before has committed.
        return await self._reply({"thread_status": thread["status"], **report(view, handled)}, like=answer)


class _Update(_Call):
    """`POST /threads/{thread_id}/state`: a request if it speaks of `preemption`, else nothing of ours."""

    async def run(self) -> None:
        messages, body, is_whole = await self._read()
        if not is_whole:
            return await self._large(messages, body)
        payload = _parse(body)
        if payload is None:
            return await self._app(self._scope, Replay(messages, self._receive), self._send)

        try:
            request = _request_of(payload)
        except _Refused as refused:
            return await self._refuse_unread(refused)
        return await self._accept(request)

    async def _read(self) -> tuple[deque[Message], bytes, bool]:
        """Takes the body, or as much as shows that it is too large for a request."""
        messages: deque[Message] = deque()
        body = bytearray()
        while True:
            message = await self._receive()
            messages.append(message)
            if message["type"] != "http.request":
                return messages, b"", True  # The caller left before the end: nothing was asked.
            body += message.get("body", b"")
            if len(body) > MAX_REQUEST_BYTES:
                return messages, bytes(body), False
            if not message.get("more_body", False):
                return messages, bytes(body), True

    async def _accept(self, request: Request) -> None:
        answer = await self._ask("GET")
        if answer.is_ok:
            thread = _thread_of(answer, self._scope)
            refusal = await self._refusal_to_update(thread)
            answer = refusal or answer
        if not answer.is_ok:
            self._tell_refused(answer.status, "server", request.id)
            return await self._pass_on(answer)
        try:
            ledger = await self._ledger(thread)
            accepted = await ledger.aaccept(request)
        except LedgerFullError as error:
            return await self._refuse(_Refused(429, str(error), request_id=request.id), like=answer)
        except RequestConflictError as error:
            return await self._refuse(_Refused(409, str(error), request_id=request.id), like=answer)
        except NotPendingError as error:
            refused = _Refused(
                409 if error.outcome else 404, str(error), request_id=request.id, outcome=error.outcome
            )
            return await self._refuse(refused, like=answer)

        checkpoint = {
            "thread_id": thread["thread_id"],
            "checkpoint_ns": NAMESPACE,
            "checkpoint_id": root_id(accepted.root),
            "checkpoint_map": {},
        }
        receipt = Receipt.model_construct(id=accepted.id, status="accepted", thread_status=thread["status"])
        content = {
            "checkpoint": checkpoint,
            "configurable": checkpoint,
            "checkpoint_id": checkpoint["checkpoint_id"],
            KEY: receipt.model_dump(),
        }
        return await self._reply(content, like=answer)

    async def _refusal_to_update(self, thread: Mapping[str, Any]) -> Answer | None:
        """Returns the server's answer if the caller may not update the thread.

        A change of metadata, even of none, saves what an `auth` handler adds to it: another owner, perhaps. A
        state update saves nothing of that, and is refused while a run is there, once the caller is known.
        Read from langgraph-api 0.11.1 and 0.16.7, `Threads.State.post` of both runtimes. Of an idle thread it
        is not asked: for an unknown node the server would load the graph and the thread's state first, and
        then log the refusal as an error, with its traceback, each time.
        """
        if thread["status"] != "busy":
            asked = await self._ask("PATCH", b'{"metadata": {}}')
            return None if asked.is_ok else asked
        nobody = f"no-node-{uuid.uuid4().hex}"
        asked = await self._ask("POST", orjson.dumps({"values": None, "as_node": nobody}), below="/state")
        # The second: its run has ended meanwhile, and the graph has no such node.
        is_known = (asked.status == 409 and b"in-flight runs" in asked.body) or nobody.encode() in asked.body
        return None if is_known else asked

    async def _large(self, messages: deque[Message], body: bytes) -> None:
        """Lets a large update pass as it comes, and stops it before its end if it speaks of `preemption`."""
        finder = KeyFinder(KEY)
        if finder.feed(body):
            return await self._refuse_unread(_too_large())

        guard = Guard(finder, Replay(messages, self._receive), self._send)
        try:
            await self._app(self._scope, guard.receive, guard.send)
        except ClientDisconnect:
            if not finder.found:
                raise
        if finder.found and not guard.has_started:
            await self._refuse_unread(_too_large())
        return None

    async def _refuse_unread(self, refused: _Refused) -> None:
        """Refuses what nobody could have written, in the way that the thread itself meets the caller."""
        answer = await self._ask("GET")
        if not answer.is_ok:
            self._tell_refused(answer.status, "server")
            return await self._pass_on(answer)
        return await self._refuse(refused, like=answer)


def report(view: View, handled: Mapping[str, Handled]) -> dict[str, Any]:
    """Returns what a host may read about the requests of a thread, in the shapes of the wire."""
    known = {entry.id for entry in view.entries} | view.marks.keys()
    ended: dict[str, Any] = {
        **{
            entry.id: {"outcome": "withdrawn", "accepted_at": entry.accepted_at}
            for entry in view.entries
            if entry.id in view.withdrawn
        },
        **view.marks,
        # The state has the last word, also on what was withdrawn while an agent applied it without a claim.
        **{name: handled[name] for name in known if name in handled},
    }
    return {
        "pending": [_wire(entry) for entry in view.pending(handled)],
        "handled": ended,
        "halts": list(view.halts),
    }


def _wire(entry: Entry) -> dict[str, Any]:
    said = {"reason": entry.reason} if entry.kind == "halt" else {"messages": list(entry.messages)}
    return {
        "id": entry.id,
        "kind": entry.kind,
        **said,
        "run_id": entry.run_id,
        "node": entry.node,
        "accepted_at": entry.accepted_at,
    }


def _route_path(scope: Scope) -> str:
    """Returns the path below the mount prefix, and below the `/noauth` of calls from within the server."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _parse(body: bytes) -> dict[str, Any] | None:
    """Returns the update if it speaks of `preemption`."""
    try:
        # The parser that the server uses, so that both read the same.
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    values = payload.get("values") if isinstance(payload, dict) else None
    return payload if isinstance(values, dict) and KEY in values else None


def _request_of(payload: dict[str, Any]) -> Request:
    values = payload["values"]
    if others := sorted(values.keys() - {KEY}):
        raise _Refused(422, _WRONG_COMPANY.format(others=", ".join(map(repr, others))))
    for option in ("checkpoint", "checkpoint_id", "as_node"):
        # The server, too, takes an empty one for none.
        if payload.get(option):
            raise _Refused(422, _WRONG_OPTION.format(option=option))
    try:
        return parse_request(values[KEY])
    except ValidationError as error:
        raise _Refused(422, describe(error)) from None


def _too_large() -> _Refused:
    return _Refused(413, f"{KEY}: a request is at most {MAX_REQUEST_BYTES} bytes of JSON, and stands alone")


def describe(error: ValidationError) -> str:
    """Returns one line that names each field and what is wrong with it."""
    reasons: dict[str, list[str]] = {}
    for found in error.errors(include_url=False, include_context=False, include_input=False):
        # The parts that pydantic adds for the branch of a union are no fields.
        fields = [str(part) for part in found["loc"][1:] if str(part) not in ("str", "list[dict[str,any]]")]
        field, reason = _PLAINER.get(found["type"], ("", found["msg"].removeprefix("Value error, ")))
        reasons.setdefault(".".join([KEY, *fields]) + field, []).append(reason)
    return "; ".join(f"{path}: {' / '.join(said)}" for path, said in reasons.items())


def _thread_of(answer: Answer, scope: Scope) -> dict[str, Any]:
    """Returns the thread in the server's answer.

    The in-memory server finds the thread's place, then asks the auth handler, and then looks at the place:
    if a thread was deleted meanwhile, it answers with another one.
    """
    thread: dict[str, Any] = orjson.loads(answer.body)
    asked = _ROUTE.match(_route_path(scope))
    if asked is None or uuid.UUID(asked["thread"].rpartition("/")[2]) != uuid.UUID(thread["thread_id"]):
        raise RuntimeError("the server answered with another thread: nothing was written, so try again")
    return thread


app = StraightLifespan(middleware=[Middleware(PreemptionMiddleware)])
"""The app for `"http": {"app": "midstream.server:app"}` in `langgraph.json`."""
