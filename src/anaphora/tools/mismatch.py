"""Why a value does not match its schema, in words of the schema only: values are never quoted,
since they are a model's text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from anaphora import canonical
from anaphora.errors import InvalidRequest
from anaphora.wording import counted

from .schema import subschemas

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
    "minLength": lambda kind: f"expected at least {counted(kind.limit, 'character')}",
    "maxLength": lambda kind: f"expected at most {counted(kind.limit, 'character')}",
    "minItems": lambda kind: f"expected at least {counted(kind.limit, 'item')}",
    "maxItems": lambda kind: f"expected at most {counted(kind.limit, 'item')}",
    "uniqueItems": lambda _: "expected unique items",
    "pattern": lambda kind: f"does not match {kind.pattern}",
    "format": lambda kind: f"expected a {kind.format}",
}


def schema_validator(schema: str, path: str, error: type[InvalidRequest]) -> Any:
    """The compiled schema. Nothing is fetched: a schema must not cause file or network access."""
    import jsonschema_rs  # slow to load, and most calls have no schema

    try:
        return jsonschema_rs.validator_for(schema, retriever=_refuse_to_fetch)
    except (ValueError, jsonschema_rs.ReferencingError) as problem:
        reason = getattr(problem, "message", str(problem))
        raise error(f"not a JSON schema: {reason}", path=path) from None


def first_error(validator: Any, value: Any) -> Any:
    """The first error of a value; None for a valid one. A list of all errors would cost more than
    the reply: there may be one for each of its values."""
    try:
        validator.validate(value)
    except ValueError as error:
        if not hasattr(error, "kind"):  # not a result of the validation
            raise
        return error.with_traceback(None)
    return None


def field_names(schema: Any) -> frozenset[str]:
    """The names of all fields in a schema, at any depth."""
    found = (each.get("properties") for each in subschemas(schema))
    return frozenset(name for names in found if isinstance(names, dict) for name in names)


def json_path(steps: Iterable[str | int], names: frozenset[str] | None, root: str = "$") -> str:
    """A path into a value; a field that is not among `names` is a `*`."""
    return root + "".join(_step(step, names) for step in steps)


def mismatch(error: Any, names: frozenset[str] | None, root: str = "$") -> tuple[str, str]:
    """The reason and the path of a validator's error. `names` are the field names that may be
    quoted; None: all."""
    error, either = _deepest(error)
    kind = error.kind
    steps = [*error.instance_path]
    if kind.name in ("required", "dependentRequired"):
        steps.append(kind.property)
    path = json_path(steps, names, root)
    if either:
        return f"expected {' or '.join(either)}", path
    if names is None and kind.name == "additionalProperties":
        return f"unknown field: {', '.join(kind.unexpected)}", path
    describe = _REASONS.get(kind.name)
    return f"does not satisfy `{kind.name}`" if describe is None else describe(kind), path


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"{uri} is not fetched; put its schema into $defs")


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


def _step(step: str | int, names: frozenset[str] | None) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if names is None or step in names else ".*"


def _one_of(options: list[Any]) -> str:
    listed = ", ".join(canonical.dumps(option).decode() for option in options)
    if len(listed) > _MAX_LISTED:
        return f"expected one of the {len(options)} values of its enum"
    return f"expected {'one of ' if len(options) > 1 else ''}{listed}"
