"""Why an answer does not fit its schema, in words of the schema's only.

The answer is reply text: neither its values nor names that the model made up are quoted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from anaphora import canonical
from anaphora.errors import Parse
from anaphora.tools.schema import subschemas

#: A list of allowed values that is longer is not told.
_LONGEST = 200

_SAID: dict[str, Callable[[Any], str]] = {
    "type": lambda kind: f"expected {' or '.join(kind.types)}",
    "required": lambda _: "is missing",
    "dependentRequired": lambda _: "is missing",
    "enum": lambda kind: _one_of(kind.options),
    "const": lambda kind: _one_of([kind.expected_value]),
    "additionalProperties": lambda _: "has a field that the schema does not name",
    "unevaluatedProperties": lambda _: "has a field that the schema does not name",
    "minimum": lambda kind: f"expected at least {kind.limit}",
    "exclusiveMinimum": lambda kind: f"expected more than {kind.limit}",
    "maximum": lambda kind: f"expected at most {kind.limit}",
    "exclusiveMaximum": lambda kind: f"expected less than {kind.limit}",
    "multipleOf": lambda kind: f"expected a multiple of {kind.multiple_of}",
    "minLength": lambda kind: f"expected at least {kind.limit} characters",
    "maxLength": lambda kind: f"expected at most {kind.limit} characters",
    "minItems": lambda kind: f"expected at least {kind.limit} items",
    "maxItems": lambda kind: f"expected at most {kind.limit} items",
    "uniqueItems": lambda _: "expected items that differ from each other",
    "pattern": lambda kind: f"does not match {kind.pattern}",
    "format": lambda kind: f"expected a {kind.format}",
}


def field_names(schema: Any) -> frozenset[str]:
    """All names of fields in a schema, wherever they stand."""
    found = (each.get("properties") for each in subschemas(schema))
    return frozenset(name for names in found if isinstance(names, dict) for name in names)


def place(steps: Iterable[str | int], names: frozenset[str]) -> str:
    """A path into the answer; a field that the schema does not name is a `*`."""
    return "$" + "".join(_step(step, names) for step in steps)


def mismatch(problem: Any, names: frozenset[str]) -> Parse:
    """One error of the validator's. `names` are the fields that the schema names."""
    problem, either = _deepest(problem)
    path = place(problem.instance_path, names)
    kind = problem.kind
    if kind.name in ("required", "dependentRequired"):
        path += _step(kind.property, names)
    if either:
        return Parse(f"expected {' or '.join(either)}", path=path)
    say = _SAID.get(kind.name)
    return Parse(say(kind) if say is not None else f"breaks `{kind.name}`", path=path)


def _deepest(problem: Any) -> tuple[Any, list[str]]:
    """Of several forms that do not fit, the one that fitted furthest tells most. When none fitted
    at all, the types that would have."""
    while problem.kind.name in ("anyOf", "oneOf"):
        branches = [branch[0] for branch in getattr(problem.kind, "context", ()) if branch]
        if not branches:
            break
        here = len(problem.instance_path)
        deepest = max(branches, key=_depth)
        others = [branch for branch in branches if branch.kind.name != "type"]
        if _depth(deepest) > here:
            problem = deepest
        elif len(others) == 1:
            problem = others[0]
        elif not others:
            kinds = [kind for branch in branches for kind in branch.kind.types]
            return problem, list(dict.fromkeys(kinds))
        else:
            break
    return problem, []


def _depth(problem: Any) -> int:
    return len(problem.instance_path)


def _step(step: str | int, names: frozenset[str]) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if step in names else ".*"


def _one_of(options: list[Any]) -> str:
    listed = ", ".join(canonical.dumps(option).decode() for option in options)
    if len(listed) > _LONGEST:
        return f"expected one of the {len(options)} values of its enum"
    return f"expected {'one of ' if len(options) > 1 else ''}{listed}"
