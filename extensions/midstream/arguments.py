"""Checks the arguments that a person puts in place of a call's own, before anything runs with them.

An edit that the tool cannot take would fail the run, and would fail it again each time: the decision is kept.
So what the tool itself would object to is found here, while the question can still be asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, TypeAlias

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

Schema: TypeAlias = BaseTool | Mapping[str, Any]
"""A tool, or the JSON schema of the arguments of one that only the host can run."""

Misfit: TypeAlias = tuple[tuple[int | str, ...], str]
"""The field, and what is wrong with it."""

Check: TypeAlias = Callable[[dict[str, Any]], Iterator[Misfit]]

OPEN = ("additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf")
"""Where a schema has one of these, its `properties` are not all the arguments there are."""


def args_type(tool: Schema | None) -> Any:
    """Returns the type of an edit's `args`: as the tool's own schema has it, down to its validators.

    The value comes out as it was sent, for the tool itself fills in its defaults. An argument that the tool
    does not declare is refused: it would be dropped without a word, or is not the person's to give.
    """
    schema = tool.tool_call_schema if isinstance(tool, BaseTool) else tool
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        full = tool.args_schema if isinstance(tool, BaseTool) else None
        return Annotated[schema, WrapValidator(_checked(_by_model(schema, full)))]
    shown = dict(schema) if isinstance(schema, Mapping) else {"type": "object"}
    return Annotated[dict[str, Any], WrapValidator(_checked(_by_json_schema(shown))), WithJsonSchema(shown)]


def _checked(check: Check) -> Callable[[Any, ValidatorFunctionWrapHandler], Any]:
    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        handler(value)
        try:
            misfits = list(check(value))
        except Exception as error:  # a validator's own, of any kind: asked again like the rest
            misfits = [((), f"{type(error).__name__}: {error}")]
        if misfits:
            raise ValidationError.from_exception_data("args", [_detail(value, *misfit) for misfit in misfits])
        return value

    return validate


def _detail(value: Any, path: tuple[int | str, ...], message: str) -> InitErrorDetails:
    # Braces in the message stay as they are, as it is given no context.
    error = PydanticCustomError("tool_argument", message)
    return InitErrorDetails(type=error, loc=path, input=value)


def _by_model(shown: type[BaseModel], full: Any) -> Check:
    """Checks by a tool's model. `full` also has what LangGraph injects, which an edit cannot have."""
    if not (isinstance(full, type) and issubclass(full, BaseModel)):
        full = shown
    # What is shown has lost the aliases.
    names = _names(full, lambda field: field in shown.model_fields)
    injected = _names(full, lambda field: field not in shown.model_fields)

    def check(args: dict[str, Any]) -> Iterator[Misfit]:
        if full.model_config.get("extra") != "allow":
            yield from _undeclared(args, names)
        try:
            full.model_validate({name: value for name, value in args.items() if name not in injected})
        except ValidationError as error:
            for each in error.errors():
                if not each["loc"] or each["loc"][0] not in injected:
                    yield each["loc"], each["msg"]

    return check


def _by_json_schema(schema: Mapping[str, Any]) -> Check:
    validator_class: Any = validator_for(schema)
    try:
        validator_class.check_schema(schema)
    except SchemaError:
        # Not to be checked by; what the tool makes of it is its own affair.
        return lambda _: iter(())
    validator = validator_class(schema)
    is_open = "properties" not in schema or any(schema.get(key) for key in OPEN)

    def check(args: dict[str, Any]) -> Iterator[Misfit]:
        misfits: list[Misfit] = [
            (tuple(error.absolute_path), error.message) for error in validator.iter_errors(args)
        ]
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
