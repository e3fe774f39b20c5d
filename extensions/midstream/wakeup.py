"""The rendezvous by which a request wakes a run that waits in the same process.

The API and the workers of one server process may live on different event loops and threads. A callback is
therefore called on whatever thread has written the request, and hands over to its own loop itself, by
`loop.call_soon_threadsafe` or by setting a `threading.Event`. Other processes learn of a request by reading
the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

_subscribers: dict[str, dict[object, Callable[[], object]]] = {}
_lock = Lock()


def subscribe(thread_id: str, callback: Callable[[], object]) -> Callable[[], None]:
    """Calls `callback` after each change of the thread's ledger in this process; returns the way out.

    `callback` must return at once and may be called from any thread. What is returned may be called twice.
    """
    key = object()
    with _lock:
        _subscribers.setdefault(thread_id, {})[key] = callback

    def unsubscribe() -> None:
        with _lock:
            callbacks = _subscribers.get(thread_id, {})
            callbacks.pop(key, None)
            if not callbacks:
                _subscribers.pop(thread_id, None)

    return unsubscribe


def notify(thread_id: str) -> None:
    """Wakes whoever waits for the thread in this process.

    A subscriber whose event loop is closed does not keep the others from being called.
    """
    with _lock:
        callbacks = list(_subscribers.get(thread_id, {}).values())
    for callback in callbacks:
        try:
            callback()
        except RuntimeError:  # `call_soon_threadsafe` on a loop that was closed
            continue
