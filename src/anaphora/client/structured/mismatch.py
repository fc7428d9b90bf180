"""Why a reply does not match its schema, in words of the schema only.

Neither values of the reply nor field names that the model invented are quoted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from anaphora import canonical
from anaphora.errors import Parse
from anaphora.tools.schema import subschemas

#: A longer list of allowed values is not quoted.
_MAX_LISTED = 200

_REASONS: dict[str, Callable[[Any], str]] = {
    "type": lambda kind: f"expected {' or '.join(kind.types)}",
    "required": lambda _: "is missing",
    "dependentRequired": lambda _: "is missing",
    "enum": lambda kind: _one_of(kind.options),
    "const": lambda kind: _one_of([kind.expected_value]),
    "additionalProperties": lambda _: "has a field that is not in the schema",
    "unevaluatedProperties": lambda _: "has a field that is not in the schema",
    "minimum": lambda kind: f"expected at least {kind.limit}",
    "exclusiveMinimum": lambda kind: f"expected more than {kind.limit}",
    "maximum": lambda kind: f"expected at most {kind.limit}",
    "exclusiveMaximum": lambda kind: f"expected less than {kind.limit}",
    "multipleOf": lambda kind: f"expected a multiple of {kind.multiple_of}",
    "minLength": lambda kind: f"expected at least {kind.limit} characters",
    "maxLength": lambda kind: f"expected at most {kind.limit} characters",
    "minItems": lambda kind: f"expected at least {kind.limit} items",
    "maxItems": lambda kind: f"expected at most {kind.limit} items",
    "uniqueItems": lambda _: "expected unique items",
    "pattern": lambda kind: f"does not match {kind.pattern}",
    "format": lambda kind: f"expected a {kind.format}",
}


def field_names(schema: Any) -> frozenset[str]:
    """The names of all fields in a schema, at any depth."""
    found = (each.get("properties") for each in subschemas(schema))
    return frozenset(name for names in found if isinstance(names, dict) for name in names)


def json_path(steps: Iterable[str | int], names: frozenset[str]) -> str:
    """A path into the reply; a field that is not in the schema is a `*`."""
    return "$" + "".join(_step(step, names) for step in steps)


def mismatch(error: Any, names: frozenset[str]) -> Parse:
    """A validator error as `Parse`. `names` are the schema's field names."""
    error, either = _deepest(error)
    path = json_path(error.instance_path, names)
    kind = error.kind
    if kind.name in ("required", "dependentRequired"):
        path += _step(kind.property, names)
    if either:
        return Parse(f"expected {' or '.join(either)}", path=path)
    describe = _REASONS.get(kind.name)
    reason = f"does not satisfy `{kind.name}`" if describe is None else describe(kind)
    return Parse(reason, path=path)


def _deepest(error: Any) -> tuple[Any, list[str]]:
    """Of several alternatives, the error of the one that matched deepest; if none matched at all,
    the types that would have."""
    while error.kind.name in ("anyOf", "oneOf"):
        branches = [branch[0] for branch in getattr(error.kind, "context", ()) if branch]
        if not branches:
            break
        here = len(error.instance_path)
        deepest = max(branches, key=_depth)
        others = [branch for branch in branches if branch.kind.name != "type"]
        if _depth(deepest) > here:
            error = deepest
        elif len(others) == 1:
            error = others[0]
        elif not others:
            kinds = [kind for branch in branches for kind in branch.kind.types]
            return error, list(dict.fromkeys(kinds))
        else:
            break
    return error, []


def _depth(error: Any) -> int:
    return len(error.instance_path)


def _step(step: str | int, names: frozenset[str]) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if step in names else ".*"


def _one_of(options: list[Any]) -> str:
    listed = ", ".join(canonical.dumps(option).decode() for option in options)
    if len(listed) > _MAX_LISTED:
        return f"expected one of the {len(options)} values of its enum"
    return f"expected {'one of ' if len(options) > 1 else ''}{listed}"
