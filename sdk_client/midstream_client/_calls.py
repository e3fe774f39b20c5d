"""The calls of the client without the waiting: what is sent, and what the answer means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from midstream_client.errors import NotInstalledError
from midstream_client.protocol import (
    HaltRequest,
    Receipt,
    Request,
    SteerRequest,
    UserMessage,
    WithdrawRequest,
)

Messages: TypeAlias = str | Sequence[UserMessage | Mapping[str, Any]]
"""One text, or messages `{"role": "user", "content": …}`."""

M = TypeVar("M", SteerRequest, HaltRequest)


def steer(
    messages: Messages, *, run_id: str | None, node: str | None, request_id: str | None
) -> SteerRequest:
    """Returns the request that puts these messages into the conversation."""
    said = messages if isinstance(messages, str) else [_plain(message) for message in messages]
    return _build(SteerRequest, request_id, {"messages": said, "run_id": run_id, "node": node})


def halt(reason: str, *, run_id: str | None, node: str | None, request_id: str | None) -> HaltRequest:
    """Returns the request that ends the run."""
    return _build(HaltRequest, request_id, {"reason": reason, "run_id": run_id, "node": node})


def withdraw(request_id: str) -> WithdrawRequest:
    """Returns the request that takes another one back."""
    return WithdrawRequest(id=request_id)


def update(request: Request) -> dict[str, Any]:
    """Returns the state update that carries the request."""
    return {"preemption": request.model_dump(mode="json", exclude_none=True)}


def receipt(thread_id: str, answer: Any) -> Receipt:
    """Returns what the server said of the request.

    Raises:
        NotInstalledError: It said nothing of it.
    """
    said = answer.get("preemption") if isinstance(answer, Mapping) else None
    if said is None:
        raise NotInstalledError(thread_id)
    return Receipt.model_validate(said)


def _build(model: type[M], request_id: str | None, fields: dict[str, Any]) -> M:
    return model.model_validate(fields if request_id is None else {**fields, "id": request_id})


def _plain(message: UserMessage | Mapping[str, Any]) -> dict[str, Any]:
    return message.model_dump() if isinstance(message, UserMessage) else dict(message)
