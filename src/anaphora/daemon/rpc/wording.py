"""Why params do not fit their struct, in words: what is wanted, and what was given."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec

_WANTED = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}
_GIVEN: dict[type, str] = {str: "a text", list: "a list", dict: "an object"}
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_EXPECTED = re.compile(r"Expected `([^`]*)`(?: ([<>]=? [\d.]+))?(?:, got `.*)?")
_MISSING = re.compile(r"Object missing required field `(.*)`")


def worded(reason: str, path: str, data: bytes, choices: Iterable[str] = ()) -> str:
    """A reason of msgspec's for the value at `path`; `choices` are the texts that it may be."""
    if "matching regex" in reason:
        return "must not be blank"
    if (missing := _MISSING.fullmatch(reason)) is not None:
        return f"{missing[1]} is missing"
    given = _shown(_value_at(msgspec.json.decode(data), path))
    if reason.startswith("Invalid enum value"):
        return f"must be one of {', '.join(choices)}, not {given}"
    expected = _EXPECTED.fullmatch(reason)
    if expected is None:
        return reason
    names = [name for name in expected[1].split(" | ") if name != "null"]
    wanted = " or ".join(_WANTED.get(name, name) for name in names)
    bound = f" {expected[2].removesuffix('.0')}" if expected[2] else ""
    return f"must be {wanted}{bound}, not {given}"


def _value_at(value: Any, path: str) -> Any:
    for name, index in _STEP.findall(path):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and index and int(index) < len(value):
            value = value[int(index)]
        else:
            break
    return value


def _shown(value: Any) -> str:
    """Long values are not repeated."""
    if isinstance(value, str) and len(value) <= 40:
        return json.dumps(value, ensure_ascii=False)
    return _GIVEN.get(type(value)) or json.dumps(value)
