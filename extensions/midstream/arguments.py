"""Checks a call's arguments by its tool's schema, before anything runs with them.

An edit that the tool cannot take would fail the run, and would fail it again each time: the decision is kept.
So what the tool itself would object to is found here, while the question can still be asked again. A tool of
the host cannot object before the host is asked: what the model gives for it is checked here as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, TypeAlias
from urllib.parse import unquote

from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for
from langchain_core.tools import BaseTool
from pydantic import (
    AliasChoices,
    BaseModel,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError
from referencing import Registry

from midstream.wording import worded

Schema: TypeAlias = BaseTool | Mapping[str, Any]
"""A tool, or the JSON schema of the arguments of one that only the host can run."""

Misfit: TypeAlias = tuple[tuple[int | str, ...], str]
"""The field, and what is wrong with it."""

Check: TypeAlias = Callable[[dict[str, Any]], Iterator[Misfit]]

OPEN = ("additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf")
"""Where a schema has one of these, its `properties` are not all the arguments there are."""

ANNOTATIONS = frozenset({"title", "description", "default", "examples", "deprecated"})
"""What allows and forbids nothing where it stands beside a reference."""

MAX_PARTS = 2_000
"""How many parts of a schema are shown once its references are written out."""


def args_type(tool: Schema | None) -> Any:
    """Returns the type of an edit's `args`: as the tool's own schema has it, down to its validators.

    The value comes out as it was sent, for the tool itself fills in its defaults. An argument that the tool
    does not declare is refused: it would be dropped without a word, or is not the person's to give.
    """
    schema = _shown(tool)
    check = WrapValidator(_checked(_check(tool, takes_more=False)))
    if isinstance(schema, Mapping):
        return Annotated[dict[str, Any], check, WithJsonSchema(_written_out(schema))]
    return Annotated[schema, check]


def model_check(tool: Schema) -> Check:
    """Returns what finds the misfits in the arguments that a model gives.

    As in a call of a local tool, an argument that the tool does not declare does no harm.
    """
    check = _check(tool, takes_more=True)
    return lambda args: iter(_misfits(check, args))


def _shown(tool: Schema | None) -> type[BaseModel] | Mapping[str, Any]:
    schema: Any = tool.tool_call_schema if isinstance(tool, BaseTool) else tool
    if isinstance(schema, Mapping) or (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return schema
    return {"type": "object"}


def _written_out(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema without references, which lead nowhere once it is a part of another.

    What refers to itself, or to somewhere else, is shown as anything; it is checked all the same.
    """
    parts = itertools.count()

    def copy(part: Any, within: frozenset[str]) -> Any:
        if next(parts) > MAX_PARTS:
            raise OverflowError
        if isinstance(part, list):
            return [copy(each, within) for each in part]
        if not isinstance(part, Mapping):
            return part
        ref = part.get("$ref")
        if not isinstance(ref, str):
            return {key: copy(value, within) for key, value in part.items()}
        own = {key: copy(value, within) for key, value in part.items() if key != "$ref"}
        target = copy({} if ref in within else _target(schema, ref), within | {ref})
        if not isinstance(target, dict):
            return own
        return {**target, **own} if own.keys() <= ANNOTATIONS else {"allOf": [target, own]}

    root = {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}
    try:
        return dict(copy(root, frozenset()))
    except OverflowError:
        return {"type": "object"}


def _target(schema: Mapping[str, Any], ref: str) -> Any:
    """Returns what a JSON pointer leads to; an empty schema if that is nothing."""
    found: Any = schema
    if ref != "#" and not ref.startswith("#/"):
        return {}
    try:
        for part in unquote(ref).split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            found = found[int(key)] if isinstance(found, list) else found[key]
    except (LookupError, TypeError, ValueError):
        return {}
    return found


def _check(tool: Schema | None, *, takes_more: bool) -> Check:
    schema = _shown(tool)
    if isinstance(schema, Mapping):
        return _by_json_schema(dict(schema), takes_more)
    return _by_model(schema, tool.args_schema if isinstance(tool, BaseTool) else None, takes_more)


def _misfits(check: Check, args: dict[str, Any]) -> list[Misfit]:
    try:
        return list(check(args))
    except Exception as error:  # a validator's own, of any kind: a misfit like the rest
        return [((), f"{type(error).__name__}: {error}")]


def _checked(check: Check) -> Callable[[Any, ValidatorFunctionWrapHandler], Any]:
    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        handler(value)
        if misfits := _misfits(check, value):
            raise ValidationError.from_exception_data("args", [_detail(value, *misfit) for misfit in misfits])
        return value

    return validate


def _detail(value: Any, path: tuple[int | str, ...], message: str) -> InitErrorDetails:
    # Braces in the message stay as they are, as it is given no context.
    error = PydanticCustomError("tool_argument", message)
    return InitErrorDetails(type=error, loc=path, input=value)


def _by_model(shown: type[BaseModel], full: Any, takes_more: bool) -> Check:
    """Checks by a tool's model. `full` also has what LangGraph injects, which nobody else can give."""
    if not (isinstance(full, type) and issubclass(full, BaseModel)):
        full = shown
    # What is shown has lost the aliases.
    names = _names(full, lambda field: field in shown.model_fields)
    injected = _names(full, lambda field: field not in shown.model_fields)

    def check(args: dict[str, Any]) -> Iterator[Misfit]:
        if not takes_more and full.model_config.get("extra") != "allow":
            yield from _undeclared(args, names)
        try:
            full.model_validate({name: value for name, value in args.items() if name not in injected})
        except ValidationError as error:
            for each in error.errors():
                if not each["loc"] or each["loc"][0] not in injected:
                    yield worded(each)

    return check


def _by_json_schema(schema: Mapping[str, Any], takes_more: bool) -> Check:
    validator_class: Any = validator_for(schema)
    try:
        validator_class.check_schema(schema)
    except SchemaError:
        # Not to be checked by; what the tool makes of it is its own affair.
        return lambda _: iter(())
    # With a registry of its own it fetches nothing from the network.
    validator = validator_class(schema, registry=Registry())
    is_open = takes_more or "properties" not in schema or any(schema.get(key) for key in OPEN)

    def check(args: dict[str, Any]) -> Iterator[Misfit]:
        try:
            misfits: list[Misfit] = [
                (tuple(error.absolute_path), error.message) for error in validator.iter_errors(args)
            ]
        except Exception:  # the schema's fault: a reference that leads nowhere, another language's pattern
            return
        yield from misfits
        if not misfits and not is_open:
            yield from _undeclared(args, schema["properties"])

    return check


def _undeclared(args: Mapping[str, Any], names: Any) -> Iterator[Misfit]:
    for name in args:
        if name not in names:
            yield (name,), "The tool has no such argument: leave it out"


def _names(model: type[BaseModel], wanted: Callable[[str], bool]) -> set[str]:
    """Returns every name by which the fields may be given."""
    found = set()
    for name, info in model.model_fields.items():
        alias = info.validation_alias
        if wanted(name):
            found |= {name, *(alias.choices if isinstance(alias, AliasChoices) else (alias or info.alias,))}
    return {name for name in found if isinstance(name, str)}
