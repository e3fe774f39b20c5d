"""Closing a provider's stream, really and at once.

A client library's stream is often a generator inside a generator, with the HTTP stream in the innermost.
Closing the outermost alone leaves the others to the garbage collector.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
from collections.abc import Iterable
from typing import Any

logger = logging.getLogger("midstream")


def inner_generators(stream: Any) -> list[Any]:
    """Returns a stream and the generators that it is suspended in the iteration of, the innermost last.

    A frame's iterators are on its value stack, which only the garbage collector's view of it shows. An
    iterator may also be an object that has a generator for its work, as in Google's client.
    """
    found = [stream]
    seen = {id(stream)}
    for outer in found:
        for part in gc.get_referents(outer):
            for inner in (part, *_workers(part)):
                is_idle = (inspect.isasyncgen(inner) and not inner.ag_running) or (
                    inspect.isgenerator(inner) and not inner.gi_running
                )
                if is_idle and id(inner) not in seen:
                    seen.add(id(inner))
                    found.append(inner)
    return found


def _workers(part: Any) -> Iterable[Any]:
    is_iterator = hasattr(type(part), "__anext__") or hasattr(type(part), "__next__")
    return list(vars(part).values()) if is_iterator and hasattr(part, "__dict__") else ()


async def aclose_all(stream: Any) -> None:
    """Closes a stream from the inside out, all of it; a cancellation that arrives meanwhile comes last."""
    cancelled: asyncio.CancelledError | None = None
    for generator in reversed(inner_generators(stream)):
        try:
            if inspect.isgenerator(generator):
                generator.close()
            elif (aclose := getattr(generator, "aclose", None)) is not None:
                await aclose()
        except asyncio.CancelledError as from_outside:
            cancelled = from_outside
        except Exception:
            logger.debug("a provider's stream complained about being closed", exc_info=True)
    if cancelled is not None:
        raise cancelled


def close_all(stream: Any) -> None:
    for generator in reversed(inner_generators(stream)):
        try:
            if (close := getattr(generator, "close", None)) is not None:
                close()
        except Exception:
            logger.debug("a provider's stream complained about being closed", exc_info=True)
