"""What a schema costs: to compile it, to generate a value, and to validate that.

A few lines of JSON can ask for any amount of work: patterns with counted repetitions, references
that double the schema at each step, alternatives without number. Every step is paid for from what
one request may use, before it is taken.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

#: Units of work for one request; a unit takes about a microsecond.
MOST_WORK = 400_000
#: Characters of generated text, or of compared JSON, for one unit.
TEXT = 16
#: Bytes of a schema for one unit, when it is compiled.
_COMPILED = 8
#: A pattern that is compiled costs at least and at most this much. The engine limits its size.
_PATTERN, _LARGEST_PATTERN = 20, 40_000
#: A match with look-around or back-references, whose steps are limited.
_BACKTRACKING = 500
#: `unevaluatedProperties` and its like evaluate everything beside them again.
_UNEVALUATED = 40

_REPEATED = re.compile(r"\{(\d{1,9})(?:,(\d{0,9}))?\}")
_FANCY = re.compile(r"\(\?[=!<>]|\\[1-9k]|[*+?}]\+")
#: Counting what one schema does to one value takes longer than the validator needs for it.
_COUNTED = 8
_IN_PLACE = ("not", "if", "then", "else")
_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
#: A schema that is being counted, with the same value.
_ENTERED = -1
#: A schema without any of these costs no more than its value has parts.
_COSTLY = re.compile(r'ef"|Of"|"not"|"if"|"enum"|attern|"unevaluated|"depend|"contains"')
_AGAIN = re.compile('"unevaluated')
_WALKED = re.compile(r'attern|"\$?id"|nchor"|"unevaluated')
#: Keywords that change what references inside a schema refer to; `id` in draft 4.
_BASES = ("$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_UNFOLDED = {*_REFERENCES, "unevaluatedProperties", "unevaluatedItems"}
#: More steps than a schema is nested.
_STEPS = 256


class UnsatisfiableSchema(Exception):
    """No value for this schema could be generated."""


class Work:
    """The units that a request has left."""

    def __init__(self, left: int = MOST_WORK) -> None:
        self.left = left

    def spend(self, units: int) -> None:
        self.left -= units
        if self.left < 0:
            raise UnsatisfiableSchema("it takes too much work")


def compile_units(text: str, schema: Any) -> int:
    """What it takes to compile a schema. Raises for one that changes the base of references."""
    units, open_values = len(text) // _COMPILED, [schema]
    if not _may_hold(_WALKED, text):
        return units
    draft = schema.get("$schema") if isinstance(schema, dict) else None
    bases = (*_BASES, "id") if "draft-04" in str(draft) else _BASES
    keywords = set()
    while open_values:
        value = open_values.pop()
        if isinstance(value, dict):
            if value is not schema and any(isinstance(value.get(name), str) for name in bases):
                raise UnsatisfiableSchema("$id and $anchor are supported at its root only")
            keywords |= _UNFOLDED & value.keys()
            for name, inner in value.items():
                if name == "pattern" and isinstance(inner, str):
                    units += pattern_units(inner)
                elif name == "patternProperties" and isinstance(inner, dict):
                    units += sum(map(pattern_units, inner))
                open_values.append(inner)
        elif isinstance(value, list):
            open_values += value
    if not keywords.isdisjoint(_REFERENCES) and not keywords <= set(_REFERENCES):
        # The validator writes out every reference beside them.
        raise UnsatisfiableSchema("it has both references and unevaluatedProperties or -Items")
    return units


def _may_hold(names: re.Pattern[str], text: str) -> bool:
    """Whether JSON may have one of these names; an escaped letter hides it."""
    return "\\" in text or names.search(text) is not None


def pattern_units(pattern: str) -> int:
    """About what it takes to compile a pattern: a repetition is written out."""
    counts = [max(1, int(most or least)) for least, most in _REPEATED.findall(pattern)]
    repeated = math.prod(counts) if "){" in pattern else sum(counts)
    weight = 400 if "\\p" in pattern.lower() else 30 if "." in pattern or "[^" in pattern else 1
    units = _PATTERN + len(pattern) + weight * min(repeated, _LARGEST_PATTERN)
    return min(units, max(_LARGEST_PATTERN, len(pattern)))


class ValidationCost:
    """Counts what a validator of `root` does, without doing it."""

    def __init__(self, text: str, root: Any) -> None:
        self._root = root
        self._targets: dict[str, Any] = {}
        self._is_small = not _may_hold(_COSTLY, text)
        self._factor = _UNEVALUATED if _may_hold(_AGAIN, text) else 1

    def spend(self, work: Work, value: Any) -> None:
        """Raises `UnsatisfiableSchema` where the validation would take too much work."""
        if not self._is_small:
            limit = work.left // self._factor
            work.spend(self._units(self._root, value, {}, limit) * self._factor)

    def _units(self, schema: Any, value: Any, known: dict[tuple[int, int], int], limit: int) -> int:
        key = id(schema), id(value)
        units = known.get(key)
        if units == _ENTERED:
            raise UnsatisfiableSchema("it refers to itself")
        if units is None:
            known[key] = _ENTERED
            units = _own_units(schema, value)
            for inner, part in self._applied(schema, value) if units <= limit else ():
                units += self._units(inner, part, known, limit)
                if units > limit:
                    break
            if units > limit:
                raise UnsatisfiableSchema("it takes too much work to validate")
            known[key] = units
        return units

    def _applied(self, schema: Any, value: Any) -> Iterator[tuple[Any, Any]]:
        """The schemas inside a schema, each with the part of the value that it applies to."""
        if not isinstance(schema, dict):
            return
        for name in _REFERENCES:
            if name in schema:
                yield self._target(schema[name]), value
        for name in _IN_PLACE:
            if name in schema:
                yield schema[name], value
        for name in _IN_PLACE_LISTS:
            yield from ((inner, value) for inner in _list(schema.get(name)))
        for name in ("dependentSchemas", "dependencies"):
            yield from ((inner, value) for inner in _dict(schema.get(name)).values())
        if isinstance(value, dict):
            yield from _applied_to_fields(schema, value)
        elif isinstance(value, list):
            for name in ("prefixItems", "items"):
                yield from zip(_list(schema.get(name)), value, strict=False)
            for name in ("items", "contains", "unevaluatedItems", "additionalItems"):
                if name in schema:
                    yield from ((schema[name], part) for part in value)

    def _target(self, reference: Any) -> Any:
        if not isinstance(reference, str):
            return True
        if reference not in self._targets:
            self._targets[reference] = resolve(self._root, reference)
        return self._targets[reference]


def _applied_to_fields(schema: dict[str, Any], value: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    properties, patterns = _dict(schema.get("properties")), _dict(schema.get("patternProperties"))
    for name in properties if len(properties) < len(value) else value:
        if name in properties and name in value:
            yield properties[name], value[name]
    if patterns:
        yield from ((inner, part) for part in value.values() for inner in patterns.values())
    for name in ("additionalProperties", "unevaluatedProperties"):
        if name in schema:
            yield from ((schema[name], part) for part in value.values())
    if "propertyNames" in schema:
        yield from ((schema["propertyNames"], name) for name in value)


def _own_units(schema: Any, value: Any) -> int:
    """What the keywords of one schema cost that hold no schema."""
    if not isinstance(schema, dict):
        return 1
    units = _COUNTED + len(_list(schema.get("enum")))
    if isinstance(value, dict):
        units += min(len(value), len(_dict(schema.get("properties"))))
        names = _dict(schema.get("patternProperties"))
        units += len(value) * sum(_BACKTRACKING if _FANCY.search(name) else 2 for name in names)
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and isinstance(value, str):
        units += _BACKTRACKING if _FANCY.search(pattern) else 1 + len(value) // TEXT
    return units


def resolve(root: Any, reference: Any) -> Any:
    """The schema that a reference names: a path in this document."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise UnsatisfiableSchema("it refers to another document")
    target = root
    for step in reference[1:].removeprefix("/").split("/", _STEPS) if reference != "#" else ():
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and name.isascii() and name.isdecimal() and len(name) < 9:
            target = target[int(name)] if int(name) < len(target) else None
        elif isinstance(target, dict) and name in target:
            target = target[name]
        else:
            raise UnsatisfiableSchema(f"{reference[:80]} does not exist")
    return target


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
