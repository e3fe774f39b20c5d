"""What is wrong with an answer, by the JSON schema that the graph asks with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError


def against_schema(schema: Mapping[str, Any], answer: Any) -> Iterator[tuple[str, str]]:
    """Yields the field and the reason of everything that is wrong with an answer."""
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        # A graph that asks with a broken schema judges the answer itself.
        return
    for error in Draft202012Validator(schema).iter_errors(answer):
        for cause in _causes(error):
            yield _field(cause), cause.message


def _field(error: ValidationError) -> str:
    path = ".".join(map(str, error.absolute_path))
    if str(error.validator) == "required" and isinstance(error.validator_value, list):
        missing = next((name for name in error.validator_value if error.message.startswith(repr(name))), "")
        return f"{path}.{missing}" if path and missing else path or missing
    return path


def _causes(error: ValidationError) -> Iterator[ValidationError]:
    """Yields what is wrong in the branch that an answer means: the one whose fixed words it has."""
    if str(error.validator) not in ("oneOf", "anyOf") or not error.context:
        yield error
        return
    by_branch: dict[Any, list[ValidationError]] = {}
    for inner in error.context:
        by_branch.setdefault(inner.schema_path[0], []).append(inner)
    meant = [
        found
        for found in by_branch.values()
        if not any(_is_of_word(inner) or _lacks_word(inner) for inner in found)
    ]
    if len(meant) == 1:
        for inner in meant[0]:
            yield from _causes(inner)
        return
    yield _no_branch(error, by_branch)


def _is_of_word(error: ValidationError) -> bool:
    return str(error.validator) in ("const", "enum")


def _lacks_word(error: ValidationError) -> bool:
    """Tells whether a property is missing that has to be one fixed word."""
    if error.validator != "required" or not isinstance(error.schema, Mapping):
        return False
    given = error.instance if isinstance(error.instance, Mapping) else {}
    properties = error.schema.get("properties") or {}
    return any(
        "const" in (properties.get(name) or {}) and name not in given
        for name in error.schema.get("required") or ()
    )


def _no_branch(error: ValidationError, by_branch: Mapping[Any, list[ValidationError]]) -> ValidationError:
    """Returns one error that says which words would have been allowed."""
    wrong = [inner for found in by_branch.values() for inner in found if inner.validator in ("const", "enum")]
    words = [inner.validator_value for inner in wrong if inner.validator == "const"]
    paths = {tuple(inner.absolute_path) for inner in wrong}
    if len(paths) == 1 and len(words) == len(by_branch):
        return ValidationError(
            f"must be one of {words}, not {wrong[0].instance!r}",
            path=paths.pop(),
        )
    return error
