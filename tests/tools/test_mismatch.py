"""Why a value does not match its schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.tables import each_row

from anaphora.errors import InvalidTool
from anaphora.tools.schema import first_error, mismatch, schema_validator

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2},
        "days": {"type": "array", "items": {"type": "integer"}},
        "unit": {"anyOf": [{"const": "C"}, {"type": "object", "required": ["name"]}]},
    },
    "required": ["city"],
    "additionalProperties": False,
}
VALIDATOR = schema_validator(json.dumps(SCHEMA), "schema", InvalidTool)

VALUES: list[Any] = [
    5,
    {},
    {"city": 5},
    {"city": "x", "days": "y"},
    {"city": "Rome", "days": [1, "x", None]},
    {"city": "Rome", "unit": {}},
    {"city": "Rome", "unit": "F", "more": 1},
    {"days": ["x"] * 1000, "more": {}},
]


@each_row("value", VALUES, ids=str)
def test_first_error_is_the_first_of_all(value: Any) -> None:
    names = frozenset({"city", "days", "unit"})
    first = first_error(VALIDATOR, value)
    assert mismatch(first, names) == mismatch(next(VALIDATOR.iter_errors(value)), names)


def test_valid_value_has_no_error() -> None:
    assert first_error(VALIDATOR, {"city": "Rome", "days": [1], "unit": "C"}) is None


def test_only_the_first_error_is_made() -> None:
    """A reply may have one error for each of its values."""

    class OneError:
        def validate(self, value: Any) -> None:
            VALIDATOR.validate(value)

    assert first_error(OneError(), {"city": 5, "days": ["x"] * 1000}) is not None


def test_other_errors_are_raised() -> None:
    with pytest.raises(ValueError, match="Unsupported type"):
        first_error(VALIDATOR, {"city": object()})
