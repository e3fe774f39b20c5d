"""The wire: what a host posts under the key `preemption`, and what it gets back.

A request travels in the stock SDK's thread state update,
`client.threads.update_state(thread_id, {"preemption": {...}})`. These models are the whole
of it; the server parses with them and both clients build with them, so that neither can
drift from the other.
"""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    field_validator,
)

MAX_REQUEST_BYTES = 64 * 1024
"""The largest request body that is accepted, in bytes of JSON."""

MAX_PENDING = 32
"""How many unhandled requests one thread holds; the next one is refused with 429."""

MAX_DEPTH = 64
"""How deep content may be nested; what is nested some 250 levels deep no thread can store."""

ThreadStatus: TypeAlias = Literal["idle", "busy", "interrupted", "error"]
"""The server's own word for what a thread is doing."""

Outcome: TypeAlias = Literal[
    "sealed", "tool_boundary", "turn_end", "entry", "withdrawn", "expired", "pending"
]
"""How a request ended: `sealed` (an answer was ended for it), `tool_boundary` (applied after tools),
`turn_end` (as the answer ended by itself), `entry` (before the first model call of a run), `withdrawn`,
`expired` (it named a run of another turn), or `pending` (not applied yet)."""


def _canonical(value: str) -> str:
    try:
        return str(uuid.UUID(value))
    except ValueError:
        raise ValueError("must be a UUID, such as str(uuid.uuid4())") from None


RequestId: TypeAlias = Annotated[str, Field(max_length=64), AfterValidator(_canonical)]


_NOT_A_PERSONS = ("tool", "server_tool", "function_call", "thinking", "redacted_thinking", "reasoning")
"""How the types of content blocks begin that only a model or a tool writes."""


def _is_blank(content: str | list[dict[str, Any]]) -> bool:
    if isinstance(content, str):
        return not content.strip()
    return all(block["type"] == "text" and not block["text"].strip() for block in content)


def _check_block(block: dict[str, Any]) -> None:
    """Refuses a block that no provider would take from a person: once in a thread, it would stay there."""
    kind = block.get("type")
    if not isinstance(kind, str) or not kind:
        raise ValueError('a content block needs a "type", such as {"type": "text", "text": "..."}')
    if kind == "text" and not isinstance(block.get("text"), str):
        raise ValueError('a content block of type "text" needs a "text" that is a string')
    if kind.startswith(_NOT_A_PERSONS):
        raise ValueError(f"a person's message has no content block of type {kind!r}")


def _is_too_deep(content: list[Any]) -> bool:
    level: list[Any] = [content]
    for _ in range(MAX_DEPTH + 1):
        inner = [list(each.values()) if isinstance(each, dict) else each for each in level]
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
        if not level:
            return False
    return True


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class UserMessage(_Wire):
    """One message to inject, in the words of the user."""

    role: Literal["user"] = "user"
    """Always `user`: a request speaks for a person. `human`, LangChain's word for it, is taken too."""

    content: str | list[dict[str, Any]]
    """Text, or LangChain content blocks. At least one character that is not white space, or a block that
    is not text."""

    @field_validator("role", mode="before")
    @classmethod
    def _human_is_user(cls, role: object) -> object:
        return "user" if role == "human" else role

    @field_validator("content")
    @classmethod
    def _fit_to_be_said(cls, content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
        for block in content if isinstance(content, list) else ():
            _check_block(block)
        if _is_blank(content):
            raise ValueError("must not be empty or white space only")
        if isinstance(content, list) and _is_too_deep(content):
            raise ValueError(f"must not be nested more than {MAX_DEPTH} levels deep")
        return content


def _as_messages(value: object) -> object:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class _Addressed(_Wire):
    id: RequestId = Field(default_factory=lambda: str(uuid.uuid4()))
    """UUID of the request. Posting the same id again changes nothing, so a host may retry."""

    run_id: RequestId | None = None
    """Only for this run, or one that resumes its turn; `expired` in any other. None: whichever comes."""

    node: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Only for the model node of this name. None: whichever agent takes it first."""


class SteerRequest(_Addressed):
    """Puts messages into the conversation at the next safe point, and lets the run go on."""

    kind: Literal["steer"] = "steer"

    messages: Annotated[list[UserMessage], BeforeValidator(_as_messages), Field(min_length=1, max_length=32)]
    """What to inject, in order. A plain string stands for one message."""


class HaltRequest(_Addressed):
    """Ends the run at the next safe point, keeping what was written."""

    kind: Literal["halt"] = "halt"

    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    """Why, in the host's own words; becomes the run's halt reason."""

    @field_validator("reason")
    @classmethod
    def _not_blank(cls, reason: str) -> str:
        if not reason.strip():
            raise ValueError("must not be empty or white space only")
        return reason


class WithdrawRequest(_Wire):
    """Takes back a request that was not applied yet."""

    kind: Literal["withdraw"] = "withdraw"

    id: RequestId
    """The id of the request to take back."""


Request: TypeAlias = SteerRequest | HaltRequest | WithdrawRequest

_request: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])


def parse_request(value: Any) -> Request:
    """Returns the request that a dict of the wire, or a request model, stands for.

    Raises:
        pydantic.ValidationError: The value is not of the wire's shape; its `errors()` name each field.
    """
    return _request.validate_python(value)


class Receipt(_Wire):
    """The server's word that a request is on the thread's ledger."""

    model_config = ConfigDict(extra="allow", frozen=True)

    id: str
    """The request's id."""

    status: Literal["accepted"] = "accepted"

    thread_status: ThreadStatus
    """What the thread was doing: `busy` means that an answer can be steered, any other word that the
    request waits for the next run."""
