"""What the client does, apart from the waiting.

Each operation is a generator that yields steps and is sent their results; `Midstream` performs them awaited,
`SyncMidstream` does not. A step that fails raises inside the generator, where it was asked for. A stream is
such a generator too, with some steps more.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import httpx

from midstream_client.errors import InvalidRequestError
from midstream_client.events import Event

MultitaskStrategy: TypeAlias = Literal["reject", "enqueue", "interrupt", "rollback"]
"""What the server does with a new run while another one goes on: refuses it (409), lets it wait, or takes its
place, for which the other is cancelled or rolled back."""

RETRIES = 3
RETRY_SECONDS = 0.2
"""The wait before the first retry; it doubles."""

BROKEN = frozenset({502, 503, 504})
"""What a proxy says of a server that is being started again."""

DROPPED = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)
"""How a connection fails that had been made. One that cannot be made the SDK has tried again already, and how
long an answer may take is the host's own word."""

HTTPX_HEADERS = ("accept", "accept-encoding", "connection", "user-agent")

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


@dataclass(frozen=True, slots=True)
class Open:
    """Asks for a stream, by a method of the SDK's `runs` that returns one; replaces the one before."""

    call: Call

    on_rejoin: Callable[[], None]
    """Called before the server tells again what it has kept."""


@dataclass(frozen=True, slots=True)
class Command:
    """Asks for a command of the newer protocol; answered by the server's envelope."""

    thread_id: str
    method: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Asks for a thread's events on the newer protocol; replaces the stream before."""

    thread_id: str
    is_websocket: bool
    channels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Next:
    """Asks for the stream's next part; answered by `END` after the last one."""


@dataclass(frozen=True, slots=True)
class Emit:
    """Hands an event to the host."""

    event: Event


END = object()

Step: TypeAlias = Call | Pause | Clock
Flow: TypeAlias = Generator[Step, Any, T]
StreamStep: TypeAlias = Open | Command | Subscribe | Next | Emit | Step
StreamFlow: TypeAlias = Generator[StreamStep, Any, T]


def check_client(client: Any, owner: object, *, is_awaited: bool) -> None:
    """Raises unless the SDK's client is of the kind that its owner performs the steps with."""
    get = getattr(getattr(client, "http", None), "get", None)
    if get is None or inspect.iscoroutinefunction(get) is not is_awaited:
        maker = "get_client" if is_awaited else "get_sync_client"
        name = type(owner).__name__
        raise TypeError(f"{name} takes what `langgraph_sdk.{maker}()` returns, not {client!r}")


def again(call: Call) -> Flow[Any]:
    """Makes a call that may be repeated, and repeats it when the connection drops."""
    for retry in range(RETRIES):
        try:
            return (yield call)
        except DROPPED:
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
    config: Mapping[str, Any] | None,
    context: Mapping[str, Any] | None,
    metadata: Mapping[str, Any] | None,
    multitask_strategy: MultitaskStrategy = "reject",
) -> dict[str, Any]:
    """Returns what is given of a run's options, in the SDK's words."""
    if multitask_strategy not in get_args(MultitaskStrategy):
        words = ", ".join(get_args(MultitaskStrategy))
        raise InvalidRequestError(
            {"multitask_strategy": f"must be one of {words}, not {multitask_strategy!r}"}
        )
    given = {"config": config, "context": context, "metadata": metadata}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return {**options, "multitask_strategy": multitask_strategy}


def own_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns a client's headers without httpx's own: a websocket does not take them over by itself."""
    return {name: value for name, value in headers.items() if name.lower() not in HTTPX_HEADERS}
