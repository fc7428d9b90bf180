"""Limits on the work for a schema.

A few lines of JSON can cause any amount of work: references may double the schema at each step. So
the steps of a request and the parts of a schema are limited.
"""

from __future__ import annotations

from typing import Any

#: Steps of one request: to generate values, and to validate them.
_MOST_STEPS = 400_000
#: Parts of a schema with its references expanded, and the parts that a pattern counts as; one with
#: classes of letters, such as \p{L}, is slow to compile.
_MOST_PARTS, _PATTERN, _LETTERS = 20_000, 100, 1_000
#: Steps of a reference's path.
_LONGEST_PATH = 256

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
#: Keywords whose schemas apply to the same value.
_IN_PLACE = (
    *("not", "if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies"),
    *_REFERENCES,
)
#: Keywords with a schema for each name.
_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "dependencies")
#: Keywords that change what references inside a schema refer to.
_BASES = ("$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor")


class UnsatisfiableSchema(Exception):
    """No value for this schema could be generated."""


class StepLimit:
    """The steps that a request has left."""

    def __init__(self) -> None:
        self.left = _MOST_STEPS

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise UnsatisfiableSchema("it takes too much work")


class PartCount:
    """Counts the parts of a schema with its references expanded."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[int, int] = {}
        """Parts by the id of a schema; 0 while it is being counted."""
        draft = root.get("$schema") if isinstance(root, dict) else None
        self._bases = (*_BASES, "id") if "draft-04" in str(draft) else _BASES

    def of(self, schema: Any, around: tuple[int, ...] = ()) -> int:
        """`around`: ids of the enclosing schemas that apply to the same value."""
        if not isinstance(schema, dict | list):
            return 1
        if id(schema) in around:
            raise UnsatisfiableSchema("it refers to itself")
        if id(schema) in self._known:
            return max(1, self._known[id(schema)])
        self._known[id(schema)] = 0
        here = (*around, id(schema))
        count = 1
        if isinstance(schema, list):
            count += sum(self.of(one, around) for one in schema)
        else:
            if schema is not self._root and any(type(schema.get(n)) is str for n in self._bases):
                raise UnsatisfiableSchema("$id and $anchor are supported at its root only")
            for name, value in schema.items():
                count += self._keyword(name, value, here if name in _IN_PLACE else ())
        if count > _MOST_PARTS:
            raise UnsatisfiableSchema("it takes too much work")
        self._known[id(schema)] = count
        return count

    def _keyword(self, name: str, value: Any, around: tuple[int, ...]) -> int:
        if name in ("$defs", "definitions"):
            return 0
        if name in _REFERENCES:
            return self.of(resolve(self._root, value), around)
        if name in _BY_NAME and isinstance(value, dict):
            names = map(_pattern_parts, value) if name == "patternProperties" else (len(value),)
            return sum(names) + sum(self.of(inner, around) for inner in value.values())
        return _pattern_parts(value) if name == "pattern" else self.of(value, around)


def _pattern_parts(pattern: object) -> int:
    return _LETTERS if "\\p" in str(pattern).lower() else _PATTERN


def resolve(root: Any, reference: Any) -> Any:
    """The schema that a reference names: a path in this document."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise UnsatisfiableSchema("it refers to another document")
    target = root
    for step in (
        reference[1:].removeprefix("/").split("/", _LONGEST_PATH) if reference != "#" else ()
    ):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and name.isascii() and name.isdecimal() and len(name) < 9:
            target = target[int(name)] if int(name) < len(target) else None
        elif isinstance(target, dict) and name in target:
            target = target[name]
        else:
            raise UnsatisfiableSchema(f"{reference[:80]} does not exist")
    return target
