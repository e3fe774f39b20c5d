"""What a person is asked in the terminal: in which words, and what is made of what they type."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from midstream_client._schema import against_schema
from midstream_client.answers import tool_result
from midstream_client.interrupts import PendingAction, PendingInterrupt, resolved

KEYS = {"a": "approve", "e": "edit", "r": "reject", "s": "respond"}

PROMPTS = {
    "edit": "the arguments, as JSON (empty: back)",
    "reject": "why not (may be empty)",
    "respond": "the answer (empty: back)",
}

WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true | false",
    "null": "null",
    "object": "{…}",
    "array": "[…]",
}
"""What a JSON schema's types are to a person."""

MAX_DEPTH = 4
"""How deep a schema is told; deeper, and where it refers to itself, it is `…`."""

ONE_LINE = 60
"""How long an answer's shape may be to stand in the line of state."""


@dataclass(slots=True)
class Question:
    """Something that a person is being asked, and what the answer is made of."""

    interrupt: PendingInterrupt
    action: PendingAction | None = None
    decision: str | None = None
    """The decision whose text is being typed."""

    def options(self) -> dict[str, str]:
        """Returns the decisions that a letter stands for."""
        if self.action is None or self.decision is not None:
            return {}
        return {key: word for key, word in KEYS.items() if word in self.action.allowed_decisions}

    def asks(self) -> Iterator[str]:
        """Yields what is asked, and how an answer has to look if the graph says so."""
        if self.action is not None:
            yield f"{self.action.name}({said_args(self.action.args)})?"
        elif self.interrupt.actions:
            action = self.interrupt.actions[0]
            yield f"run {action.name}({said_args(action.args)}) and give its result"
        else:
            value = self.interrupt.value
            yield f"asks: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
            if self.interrupt.response_schema is not None:
                yield f"answer with: {shape(self.interrupt.response_schema)}"

    def prompt(self) -> str:
        if options := self.options():
            return " ".join(f"[{key}] {word}" for key, word in options.items())
        if self.decision is not None:
            return PROMPTS[self.decision]
        if self.interrupt.kind == "tool_execution":
            return f"the result of {self.interrupt.tool_name}"
        if self.interrupt.response_schema is None:
            return "the answer, as JSON or text"
        form = shape(self.interrupt.response_schema)
        return f"the answer: {form}" if len(form) <= ONE_LINE else "the answer, as JSON of the shape above"

    def answer(self, text: str) -> Any:
        """Returns what a person means who has typed this: of what it can mean, the first that is allowed.

        If none is, it is the one that comes nearest, of which can be said what is wrong with it.
        """
        if self.interrupt.kind == "tool_execution":
            return tool_result(text)
        meanings = list(_meanings(text, self.interrupt.response_schema))
        judged = [(each, self.problems(each)) for each in meanings]
        allowed = [each for each, problems in judged if not problems]
        if allowed or isinstance(meanings[0], dict | list):
            return [*allowed, meanings[0]][0]
        # Of two that come as near, the later: it is as it was typed.
        return min(reversed(judged), key=lambda each: sum(not field for field, _ in each[1]))[0]

    def problems(self, answer: Any) -> list[tuple[str, str]]:
        """Returns the fields of an answer, and what is wrong with each, as the graph's schema says it."""
        schema = self.interrupt.response_schema
        return [] if schema is None else list(against_schema(schema, answer))


def _meanings(text: str, schema: Mapping[str, Any] | None) -> Iterator[Any]:
    value = json_or_text(text)
    yield value
    yield text
    required: list[str] = list((schema or {}).get("required") or ())
    if len(required) == 1 and not isinstance(value, dict):
        yield {required[0]: value}
        yield {required[0]: text}


def shape(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None, depth: int = 0) -> str:
    """Returns the values that a JSON schema allows, as JSON with words in the place of what is free."""
    root = schema if root is None else root
    schema = resolved(schema, root)
    if depth > MAX_DEPTH:
        return "…"
    options = [*(schema.get("oneOf") or ()), *(schema.get("anyOf") or ())]
    if options:
        return " | ".join(dict.fromkeys(shape(option, root, depth + 1) for option in options))
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if schema.get("enum"):
        return " | ".join(json.dumps(word, ensure_ascii=False) for word in schema["enum"])
    if properties := schema.get("properties"):
        required = schema.get("required") or ()
        fields = (
            f'"{name}"{"" if name in required else "?"}: {shape(each, root, depth + 1)}'
            for name, each in properties.items()
        )
        return f"{{{', '.join(fields)}}}"
    if isinstance(items := schema.get("items"), Mapping):
        return f"[{shape(items, root, depth + 1)}, …]"
    kinds = schema.get("type") or ()
    words = [WORDS.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    return " | ".join(words) or "anything"


def said_args(args: Any) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in dict(args).items())


def json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
