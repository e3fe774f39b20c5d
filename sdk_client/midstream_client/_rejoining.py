"""How a run's stream is opened again by the SDK, which does it by itself when the connection drops.

The SDK tries five times, and each try to connect is in turn made six times, in 7.5 s: one such is enough.

It asks for what came after the last event that it has read. Before the first there is none, and it would be
told what comes from then on: so who starts a run gives it a name after which the server tells all that it has
kept.

Seen with langgraph-api 0.16.7, the server in memory: an event's id is the time in milliseconds, and several
events share one. The others of the last one's millisecond would be left out, so they are asked for, too; who
reads passes over what he knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import httpx

LAST_EVENT_ID = "Last-Event-ID"
FROM_THE_FIRST = "-1"
"""The id before that of the first event that the server has kept."""

TIME_ID = re.compile(r"(\d+)-\d+")


class UnreachableError(Exception):
    """The server cannot be connected to; `cause` says it in httpx's words, which the SDK would try again."""

    def __init__(self, cause: httpx.ConnectError) -> None:
        self.cause = cause
        super().__init__(str(cause))


class RejoiningClient:
    """An httpx client, of either kind, by which the SDK opens the stream of a run.

    Args:
        client: The SDK's own.
        on_rejoin: Called before a stream is opened of which something is known.
    """

    def __init__(self, client: Any, on_rejoin: Callable[[], None]) -> None:
        self._client = client
        self._on_rejoin = on_rejoin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def stream(self, method: str, url: str, *, headers: Mapping[str, str], **options: Any) -> _Opening:
        asked = dict(headers)
        for name in headers:
            if name.lower() != LAST_EVENT_ID.lower():
                continue
            if method == "POST":
                # Of a run that is only about to start nothing was told.
                del asked[name]
            else:
                self._on_rejoin()
                asked[name] = _before(headers[name])
        return _Opening(self._client.stream(method, url, headers=asked, **options))


class _Opening:
    """What httpx's `stream` returns."""

    def __init__(self, opening: Any) -> None:
        self._opening = opening

    def __enter__(self) -> Any:
        try:
            return self._opening.__enter__()
        except httpx.ConnectError as error:
            raise UnreachableError(error) from error

    def __exit__(self, *details: Any) -> Any:
        return self._opening.__exit__(*details)

    async def __aenter__(self) -> Any:
        try:
            return await self._opening.__aenter__()
        except httpx.ConnectError as error:
            raise UnreachableError(error) from error

    async def __aexit__(self, *details: Any) -> Any:
        return await self._opening.__aexit__(*details)


def _before(event_id: str) -> str:
    """Returns an id from which on all events of this one's millisecond are told."""
    time = TIME_ID.fullmatch(event_id)
    return f"{int(time[1]) - 1}-0" if time and int(time[1]) > 0 else event_id
