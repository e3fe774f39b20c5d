"""The server's own answers about runs, with what the ledger knows of them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from midstream._asgi import GetSaver, Hold
from midstream._run_notes import SAID, metadata_of
from midstream.ledger import Ledger

_KWARGS = b'"kwargs":{'
_AFTER_KWARGS = b'},"multitask_strategy":'
"""What stands around a run's `kwargs`. Seen in langgraph-api 0.11.1 and 0.16.7; elsewhere all is read."""

_SAID = [f'"{name}"'.encode() for name in SAID]


logger = logging.getLogger("midstream")


async def answer_about_runs(
    app: ASGIApp, get_saver: GetSaver, thread_id: str, scope: Scope, receive: Receive, send: Send
) -> None:
    """`GET /threads/{thread_id}/runs` and `…/runs/{run_id}`: the server's own answer, and what we know."""
    query = scope.get("query_string", b"").decode("latin-1")
    # Of a single run the server gives all columns, whatever is asked for.
    is_list = scope["path"].endswith("/runs")
    columns = [value for name, value in parse_qsl(query) if name == "select" and is_list]
    if columns and "metadata" not in columns:
        return await app(scope, receive, send)

    # Without the runs' ids nobody could tell which is which; the answer is given without them.
    adds_ids = bool(columns) and "run_id" not in columns
    query = f"{query}&select=run_id" if adds_ids else query
    headers = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]

    async def changed(body: bytes) -> bytes | None:
        said: dict[str, dict[str, Any]] = {}
        if b'"run_id"' in body:
            try:
                said = metadata_of(await Ledger(await get_saver(), str(uuid.UUID(thread_id))).aruns())
            except Exception:
                logger.warning("the metadata of runs could not be added", exc_info=True)
        return with_metadata(body, said, without_ids=adds_ids)

    inner = {**scope, "headers": headers, "query_string": query.encode("latin-1")}
    return await app(inner, receive, Hold(send, changed).send)


def with_metadata(
    body: bytes, said: Mapping[str, Mapping[str, Any]], *, without_ids: bool = False
) -> bytes | None:
    """Returns an answer about runs with what the ledger says in their metadata; None if it stays as it is.

    What a client gave a run under the ledger's names is kept, as `client_…`: a UI may start a run with the
    metadata of an earlier one, and that one's halt is not this one's.

    Args:
        body: A run or a list of runs.
        said: What the ledger says, by run id.
        without_ids: Whether to leave out the runs' ids.
    """
    if not said and not without_ids and not any(name in body for name in _SAID):
        return None
    content = _read(body)
    changed = without_ids
    for run in content if isinstance(content, list) else [content]:
        if not isinstance(run, dict):
            continue
        run_id: Any = run.pop("run_id", None) if without_ids else run.get("run_id")
        given = run.get("metadata") or {}
        if "metadata" in run and (run_id in said or SAID & given.keys()):
            run["metadata"] = {**_renamed(given), **said.get(run_id, {})}
            changed = True
    return orjson.dumps(content) if changed else None


def _renamed(given: Mapping[str, Any]) -> dict[str, Any]:
    renamed: dict[str, Any] = {}
    for name, value in given.items():
        shown = name
        while shown in SAID or (shown != name and shown in given):
            shown = f"client_{shown}"
        renamed[shown] = value
    return renamed


def _read(body: bytes) -> Any:
    """Reads an answer, and leaves each run's `kwargs`, which is most of it, as the bytes that it is.

    Each is cut out, and a name is put in its place that nobody can have written beforehand. Where a cut goes
    wrong, since something else in a run looks the same, the rest is not JSON, or a name is not where it
    belongs: then all is read. The first one is read to see that the server has its fields in the order that
    is known; they are in one order in all runs of a list.
    """
    names = uuid.uuid4().hex
    left: dict[str, bytes] = {}
    pieces: list[bytes] = []
    at = 0
    while (start := body.find(_KWARGS, at)) >= 0 and (end := body.find(_AFTER_KWARGS, start)) >= 0:
        start, end = start + len(_KWARGS) - 1, end + 1
        name = f"{names}.{len(left)}"
        left[name] = body[start:end]
        pieces += body[at:start], b'"%b"' % name.encode()
        at = end
    if not left:
        return orjson.loads(body)

    try:
        orjson.loads(left[f"{names}.0"])
        content = orjson.loads(b"".join([*pieces, body[at:]]))
        for run in content if isinstance(content, list) else [content]:
            run["kwargs"] = orjson.Fragment(left.pop(run["kwargs"]))
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return orjson.loads(body)
    return orjson.loads(body) if left else content
