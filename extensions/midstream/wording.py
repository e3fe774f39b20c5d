"""Says what is wrong with a value in words for a person, who knows JSON at most."""

from __future__ import annotations

from typing import Final

from pydantic_core import ErrorDetails

OBJECT, LIST, WHOLE = "must be an object", "must be a list", "must be a whole number"
CHOICE = "must be true or false"

WORDS: Final = {
    "missing": "is missing",
    "model_attributes_type": OBJECT,
    "model_type": OBJECT,
    "dataclass_type": OBJECT,
    "dict_type": OBJECT,
    "mapping_type": OBJECT,
    "tuple_type": LIST,
    "list_type": LIST,
    "set_type": LIST,
    "frozen_set_type": LIST,
    "iterable_type": LIST,
    "string_type": "must be a text",
    "int_type": WHOLE,
    "int_parsing": WHOLE,
    "int_from_float": WHOLE,
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": CHOICE,
    "bool_parsing": CHOICE,
    "none_required": "must be null",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "union_tag_invalid": "must be one of {expected_tags}",
    "union_tag_not_found": "is missing",
    "too_short": "has too few entries: {actual_length} of at least {min_length}",
    "too_long": "has too many entries: {actual_length} of at most {max_length}",
    "extra_forbidden": "is not known: leave it out",
    "value_error": "{error}",
    "assertion_error": "{error}",
}
"""By pydantic's type of error, with what it tells of it; for all others its own message serves."""


def worded(error: ErrorDetails) -> tuple[tuple[int | str, ...], str]:
    """Returns the field that is wrong, and what is wrong with it."""
    loc, facts = error["loc"], dict(error.get("ctx", {}))
    if "discriminator" in facts:
        loc = (*loc, str(facts["discriminator"]).strip("'"))
    if "expected_tags" in facts:
        facts["expected_tags"] = str(facts["expected_tags"]).replace("'", "")

    try:
        words = WORDS.get(error["type"], "").format_map(facts)
    except KeyError:  # an application's own error, which goes by the name of one of pydantic's
        words = ""
    return loc, words or error["msg"]
