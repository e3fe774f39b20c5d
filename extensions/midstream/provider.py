"""Which provider serves a call of a chat model, and what its API takes.

Read from langchain-openai 1.7, langchain-anthropic 1.7, langchain-google-genai 4.4, langchain-aws 1.9 and
langchain-mistralai 1.1. The clients of Anthropic and of Bedrock's Converse merge neighbours of one role
themselves; Google's and OpenAI's APIs take them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from langchain_core.language_models import BaseChatModel

from midstream._host import uses_responses_api


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """What the API behind a chat model takes, as far as its own client does not see to it."""

    name: str

    wrote: frozenset[str] = frozenset()
    """The values of `response_metadata["model_provider"]` whose turns it takes as they are."""

    asks_to_continue: bool = True
    """Whether the last turn has to be the user's."""

    alternates: bool = False
    """Whether turns have to alternate and the client does not merge them."""

    answers_tools: bool = False
    """Whether a user turn may not follow a tool's result."""

    begins_with_user: bool = False
    """Whether the first turn has to be the user's."""

    has_unique_calls: bool = False
    """Whether an id may name one tool call in a whole thread; else it may in each turn."""

    leads_with_system: bool = False
    """Whether the system speaks at the beginning alone."""

    stores: bool = True
    """Whether items are known to the API by their ids (OpenAI Responses)."""


_OPENAI = frozenset({"openai", "azure", "azure_openai"})
_BEDROCK = frozenset({"bedrock", "bedrock_converse"})

OTHER = Provider(name="other", asks_to_continue=False)
OPENAI = Provider(name="openai", wrote=_OPENAI)
RESPONSES = Provider(name="responses", wrote=_OPENAI, has_unique_calls=True)
ANTHROPIC = Provider(
    name="anthropic",
    wrote=frozenset({"anthropic"}),
    begins_with_user=True,
    has_unique_calls=True,
    leads_with_system=True,
)
GOOGLE = Provider(
    name="google",
    wrote=frozenset({"google_genai", "google_vertexai"}),
    begins_with_user=True,
    leads_with_system=True,
)
CONVERSE = Provider(
    name="bedrock", wrote=_BEDROCK, begins_with_user=True, has_unique_calls=True, leads_with_system=True
)
BEDROCK = replace(CONVERSE, alternates=True)
MISTRAL = Provider(
    name="mistral",
    wrote=frozenset({"mistralai"}),
    alternates=True,
    answers_tools=True,
    has_unique_calls=True,
    leads_with_system=True,
)

KNOWN: Final = frozenset().union(*(each.wrote for each in (OPENAI, ANTHROPIC, GOOGLE, CONVERSE, MISTRAL)))

_BY_PACKAGE: Final[Mapping[str, Provider]] = {
    "langchain_openai": OPENAI,
    "langchain_anthropic": ANTHROPIC,
    "langchain_google_genai": GOOGLE,
    "langchain_google_vertexai": GOOGLE,
    "langchain_aws": BEDROCK,
    "langchain_mistralai": MISTRAL,
}


def provider_of(model: BaseChatModel, call: Mapping[str, Any]) -> Provider:
    """Returns the rules of the API that serves this call of the model.

    Args:
        model: The chat model; a subclass of a known one follows its rules.
        call: The keyword arguments of the call, by which OpenAI's client chooses between its two APIs.
    """
    for base in type(model).__mro__:
        if base.__name__.startswith("ChatAnthropic"):
            return ANTHROPIC
        if base.__name__ == "ChatBedrockConverse":
            return CONVERSE
        found = _BY_PACKAGE.get(base.__module__.partition(".")[0])
        if found is OPENAI and uses_responses_api(model, call):
            return replace(RESPONSES, stores=call.get("store", getattr(model, "store", None)) is not False)
        if found is not None:
            return found
    return OTHER


def is_structured(model: BaseChatModel, call: Mapping[str, Any]) -> bool:
    """Tells whether the answer has to be of a given format: half of one is of no use to anybody.

    The providers' words for it, in the call or on the model itself, at the top or in what holds them there.
    """
    return _has_format(call) or _has_format(vars(model))


def _has_format(options: Mapping[str, Any]) -> bool:
    for name, value in options.items():
        word = _folded(str(name))
        if word in _HOLDERS:
            if isinstance(value, Mapping) and _has_format(value):
                return True
        elif value and word in _FORMATS:
            given = value.get("type") if isinstance(value, Mapping) else value
            if given != _FORMATS[word]:
                return True
    return False


@lru_cache(maxsize=1024)
def _folded(name: str) -> str:
    """Returns a name as it is in all spellings: `response_schema`, `responseSchema`, `ResponseSchema`."""
    return name.replace("_", "").lower()


# With the value that stands for ordinary text, where there is one.
_FORMATS: Final[Mapping[str, str | None]] = {
    "responseformat": "text",  # OpenAI, Mistral, and most who follow them
    "format": "text",  # OpenAI Responses and Anthropic, inside of one of the holders; Ollama
    "outputformat": "text",  # Anthropic, the older name
    "responsemimetype": "text/plain",  # Google
    "responseschema": None,
    "responsejsonschema": None,
    "textformat": "text",  # Bedrock
    "jsonschema": None,  # llama.cpp
    "grammar": None,
    "structuredoutputs": None,  # vLLM
    "guidedjson": None,
    "guidedregex": None,
    "guidedchoice": None,
    "guidedgrammar": None,
}
_HOLDERS: Final = frozenset(
    {
        "text",
        "outputconfig",
        "generationconfig",
        "extrabody",
        "modelkwargs",
        "additionalmodelrequestfields",
    }
)
