"""What a command says when it fails: one line, with what to do next."""

from __future__ import annotations

import json
from typing import Any

import httpx

from midstream_client.errors import (
    InvalidAnswerError,
    InvalidRequestError,
    MidstreamError,
    UnknownInterruptError,
)

THREADS = "`midstream threads` lists the threads"
INTERRUPTS = "`midstream interrupts THREAD` lists what is asked"
REQUESTS = "`midstream requests THREAD` lists those that wait"
FIELDS = {
    "id": "the request's id",
    "request_id": "the request's id",
    "run_id": "--run",
    "node": "--node",
    "messages": "the text",
    "text": "the text",
    "reason": "the reason",
}
"""What a person gives, by the wire's own word for it."""

EXAMPLE_URL = "http://127.0.0.1:2024"

EXPECTED = (MidstreamError, httpx.HTTPError, httpx.InvalidURL, json.JSONDecodeError)
"""All else is a fault of this program, and shows where it is."""


def line(error: Exception, url: str) -> str:
    """Returns what went wrong and what to do, in one line."""
    match error:
        case InvalidRequestError():
            text = "; ".join(_of_field(field, reason) for field, reason in error.problems.items())
        case UnknownInterruptError() | InvalidAnswerError():
            text = f"{error}: {INTERRUPTS}"
        case MidstreamError():
            text = str(error)
        case httpx.HTTPStatusError():
            text = _of_status(error, url)
        case httpx.InvalidURL() | httpx.UnsupportedProtocol():
            text = f"{url!r} is no address of a server: give one such as --url {EXAMPLE_URL}"
        case httpx.TransportError():
            what = str(error) or type(error).__name__
            text = f"no answer from {url}: {what}. Start the server there, or give its address with --url"
        case _:
            text = f"{url} does not answer in JSON: give the address of a LangGraph server with --url"
    return " ".join(text.split())


def facts(error: Exception) -> dict[str, Any]:
    """Returns what a script can read of an error."""
    if isinstance(error, MidstreamError):
        return vars(error)
    if isinstance(error, httpx.HTTPStatusError):
        return {"status": error.response.status_code}
    return {}


def _of_status(error: httpx.HTTPStatusError, url: str) -> str:
    status, text = error.response.status_code, str(error)
    said = f"the server answered {status}: {text}"
    if status in (401, 403):
        return f"{said}. Give a key that may do this with --api-key"
    if status in (404, 422) and "thread" in text.lower():
        return f"{said}. {THREADS}"
    if status == 404:
        return f"{said}. {url} knows no such thing: give the address of a LangGraph server with --url"
    if status == 409:
        return f"{said}. `midstream steer THREAD TEXT` reaches the run that is there"
    if status >= 500:
        return f"{said}. The server's own log says why"
    return said


def _of_field(field: str, reason: str) -> str:
    name = field.partition(".")[0]
    said = f"{FIELDS.get(name, name)} {reason.partition(', such as str(')[0]}"
    return f"{said}: {REQUESTS}" if name == "request_id" else said
