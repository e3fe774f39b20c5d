"""What the client does, apart from the waiting.

Each operation is a generator that yields steps and is sent their results; `Midstream` performs them awaited,
`SyncMidstream` does not. A step that fails raises inside the generator, where it was asked for.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

import httpx

RETRIES = 3
RETRY_SECONDS = 0.2
"""The wait before the first retry; it doubles."""

BROKEN = frozenset({502, 503, 504})
"""What a proxy says of a server that is being started again."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """Asks for `client.<part>.<method>(*args, **options)`: the SDK's two clients have the same names."""

    part: Literal["http", "threads", "runs"]
    method: str
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pause:
    """Asks for a wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Clock:
    """Asks for the time, in seconds of a clock that only goes forward."""


Step: TypeAlias = Call | Pause | Clock
Flow: TypeAlias = Generator[Step, Any, T]


def again(call: Call) -> Flow[Any]:
    """Makes a call that may be repeated, and repeats it while the connection fails."""
    for retry in range(RETRIES):
        try:
            return (yield call)
        except httpx.TransportError:
            pass
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in BROKEN:
                raise
        yield Pause(RETRY_SECONDS * 2**retry)
    return (yield call)


def status_of(error: Exception) -> int | None:
    """Returns the HTTP status that an error of the SDK or of httpx stands for; None for no answer."""
    return error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None


def said_by(error: Exception) -> dict[str, Any]:
    """Returns the body of the server's answer, where it is a JSON object."""
    body = getattr(error, "body", None)
    return body if isinstance(body, dict) else {}


def run_options(
    config: Mapping[str, Any] | None, context: Mapping[str, Any] | None, metadata: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Returns what is given of a run's options, in the SDK's words."""
    given = {"config": config, "context": context, "metadata": metadata}
    return {name: value for name, value in given.items() if value is not None}


def credentials(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers that say who the caller is: a websocket does not take them over by itself."""
    return {name: value for name, value in headers.items() if name.lower() in ("authorization", "x-api-key")}
