"""Which chat model `MIDSTREAM_MODEL` stands for, and what to do when it cannot be had."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from chat_models.errors import ModelUnavailableError

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

CHOICES = '"local" (the default), "scripted", or "provider:model" such as "openai:gpt-5-mini"'


def chosen_model(environ: Mapping[str, str] = os.environ) -> BaseChatModel:
    """Returns the chat model that `MIDSTREAM_MODEL` names.

    Raises:
        ModelUnavailableError: It names none, or something that it needs is missing.
    """
    choice = _choice(environ)
    if choice == "scripted":
        from chat_models.scripted import ScriptedChatModel

        return ScriptedChatModel(
            words=_number(environ, "MIDSTREAM_SCRIPTED_WORDS", 60),
            interval_ms=_number(environ, "MIDSTREAM_SCRIPTED_INTERVAL_MS", 20),
        )
    if choice == "local":
        from chat_models.local import local_model

        return local_model(url=environ.get("MIDSTREAM_LOCAL_URL"))
    if ":" in choice:
        return _of_provider(choice)
    raise ModelUnavailableError(f"MIDSTREAM_MODEL is {choice!r}, but must be {CHOICES}")


def calls_tools(environ: Mapping[str, str] = os.environ) -> bool:
    """Tells whether the chosen model can be offered tools; the small local one cannot."""
    return _choice(environ) != "local"


def _choice(environ: Mapping[str, str]) -> str:
    return environ.get("MIDSTREAM_MODEL", "").strip() or "local"


def _of_provider(choice: str) -> BaseChatModel:
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as missing:
        raise ModelUnavailableError(
            f"MIDSTREAM_MODEL={choice} needs the package langchain: pip install langchain"
        ) from missing
    try:
        return init_chat_model(choice)
    except Exception as failure:
        # The provider's package is not installed, its key is not set, or its name is unknown.
        raise ModelUnavailableError(f"MIDSTREAM_MODEL={choice} cannot be had: {failure}") from failure


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    value = environ.get(name, "").strip()
    if not value:
        return default
    if not value.isdecimal():
        raise ModelUnavailableError(f"{name} is {value!r}, but must be a whole number, 0 or more")
    return int(value)
