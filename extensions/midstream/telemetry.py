"""What an operator sees: one log line, one span and one count for each thing that happens.

Log lines are those of the logger `midstream`, with the facts as fields of the record, so that structured
logging shows them. Spans go to OpenTelemetry and counts to Prometheus's own registry, each if its package is
there; langgraph-api serves that registry under `/metrics`. All of it is for looking only: it never fails, and
nothing waits for it.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

try:
    from opentelemetry import trace
except ImportError:  # pragma: no cover -- the tests have it
    trace = None  # type: ignore[assignment]

try:
    import prometheus_client
except ImportError:  # pragma: no cover -- comes with langgraph-api
    prometheus_client = None  # type: ignore[assignment]

logger = logging.getLogger("midstream")

Event: TypeAlias = Literal["accepted", "refused", "sealed", "restarted", "boundary", "halted"]

LATENCY_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Seconds."""


class _Counts(NamedTuple):
    requests: Any
    refusals: Any
    seals: Any
    boundaries: Any
    halts: Any
    latency: Any


@functools.cache
def _counts() -> _Counts | None:
    """Returns the counters, which are made when the first thing is counted."""
    if prometheus_client is None:
        return None
    counter, histogram = prometheus_client.Counter, prometheus_client.Histogram
    try:
        return _Counts(
            requests=counter("midstream_requests", "Requests that were accepted.", ["kind"]),
            refusals=counter("midstream_refusals", "Requests that were refused.", ["reason"]),
            seals=counter("midstream_seals", "Answers that were ended early.", ["how"]),
            boundaries=counter("midstream_boundaries", "Boundaries with something to say.", ["outcome"]),
            halts=counter("midstream_halts", "Runs that were halted."),
            latency=histogram(
                "midstream_seal_latency_seconds",
                "From a request's acceptance to the end of the answer for it.",
                buckets=LATENCY_BUCKETS,
            ),
        )
    except ValueError:  # another copy of this module, such as a reloaded one, counts already
        return None


def tell(event: Event, *, began: float | None = None, **facts: Any) -> None:
    """Says that something has happened.

    Args:
        event: What.
        began: When that for which it happened began, in seconds of Unix time; the span begins there.
        facts: Ids and other small values; those that are None are left out.
    """
    try:
        now = time.time_ns() / 1e9
        known = {name: value for name, value in facts.items() if value is not None}
        if began is not None:
            known["duration_ms"] = round(max(0.0, now - began) * 1e3, 3)
        said = " ".join(f"{name}={_shown(value)}" for name, value in known.items())
        logger.info("%s %s", event, said, extra={"preemption": event, **known})
        _span(event, known, began if began is not None else now, now)
        _count(event, known, None if began is None else max(0.0, now - began))
    except Exception:
        logger.debug("could not tell of %s", event, exc_info=True)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return repr(value) if any(char.isspace() or not char.isprintable() for char in value) else value
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _span(event: Event, facts: Mapping[str, Any], began: float, now: float) -> None:
    if trace is None:
        return
    attributes = {
        f"midstream.{name}": value if isinstance(value, str | int | float | bool) else [str(x) for x in value]
        for name, value in facts.items()
    }
    tracer = trace.get_tracer("midstream")
    span = tracer.start_span(
        f"midstream.{event}", start_time=int(min(began, now) * 1e9), attributes=attributes
    )
    span.end(end_time=int(now * 1e9))


def _count(event: Event, facts: Mapping[str, Any], seconds: float | None) -> None:
    counts = _counts()
    if counts is None:
        return
    match event:
        case "accepted":
            counts.requests.labels(facts["kind"]).inc()
        case "refused":
            counts.refusals.labels(facts["why"]).inc()
        case "sealed" | "restarted":
            counts.seals.labels(event).inc()
            if seconds is not None:
                counts.latency.observe(seconds)
        case "boundary":
            counts.boundaries.labels(facts["outcome"]).inc()
        case "halted":
            counts.halts.inc()
