"""Canonical JSON schemas and tool names; arguments of tool calls, decoded and validated; and why a
value does not match its schema.

Keywords are sorted at every level. Property names keep their declared order, because models reply
in that order. `required` is a set and follows the properties. Data inside a schema (`enum`,
`const`, `default`, `examples`, unknown keywords) is unchanged.

Errors name the path (`arguments.filters[0].kind`) and what the schema expected. Values are never
quoted, since they are a model's text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import msgspec
from blake3 import blake3

from anaphora import canonical
from anaphora.errors import InvalidJson, InvalidRequest, InvalidTool
from anaphora.values.codec import loads
from anaphora.wording import counted

T = TypeVar("T")

_HOLD_A_SCHEMA = frozenset(
    "additionalItems additionalProperties contains contentSchema else if items not propertyNames"
    " then unevaluatedItems unevaluatedProperties".split()
)
_HOLD_A_LIST = frozenset("allOf anyOf items oneOf prefixItems".split())
_HOLD_NAMES = frozenset(
    "$defs definitions dependencies dependentSchemas patternProperties properties".split()
)

_MAX_NAME = 64
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ILLEGAL_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")
#: Strings in a JSON text, and numbers with a fraction of zeros; the group is the part before it.
_WHOLE = re.compile(r'"(?:[^"\\]|\\.)*"|(?<![\d.])(-?\d+)\.0+(?![\d.eE])', re.DOTALL)


def canonical_schema(
    schema: dict[str, Any] | str | bytes, *, sort_properties: bool = False, path: str = "schema"
) -> str:
    """The schema as canonical JSON text.

    `sort_properties` sorts the names too: for sources whose order is not stable (a Go map, jsonb).
    """
    return _write(_read(schema, path, InvalidRequest), sort_properties, path)


def tool_schema(
    schema: dict[str, Any] | str | bytes, *, sort_properties: bool = False, path: str = "schema"
) -> str:
    """The schema of a tool's arguments as canonical JSON text.

    Arguments are an object on every wire: a missing `type` becomes `object`, missing `properties`
    become none (so `{}` is a tool without arguments), and a `$ref` at the root, which providers
    refuse, is replaced by its target. Any other type raises `InvalidTool`.
    """
    root = inline_root(_read(schema, path, InvalidTool))
    kind = root.setdefault("type", "object")
    if kind != "object":
        raise InvalidTool(
            f'a tool takes an object: `type` must be "object", not {kind!r}; '
            "make the value one of its properties",
            path=path,
        )
    if not isinstance(root.setdefault("properties", {}), dict):
        raise InvalidTool("must map names to schemas", path=f"{path}.properties")
    return _write(root, sort_properties, path)


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema that is an object, the outer ones first; data inside schemas is skipped.

    A schema may be changed before the next one is requested.
    """
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword, value in schema.items():
        if keyword in _HOLD_NAMES and isinstance(value, dict):
            for each in list(value.values()):
                yield from subschemas(each)
        elif keyword in _HOLD_A_LIST and isinstance(value, list):
            for each in value:
                yield from subschemas(each)
        elif keyword in _HOLD_A_SCHEMA:
            yield from subschemas(value)


def _read(schema: object, path: str, error: type[InvalidRequest]) -> dict[str, Any]:
    """A copy as plain data, from text or Python values."""
    try:
        if not isinstance(schema, str | bytes):
            # Encoding first names the path of values that JSON cannot hold.
            schema = canonical.dumps(schema, path=path)
        plain = loads(schema, path=path)
    except RecursionError:
        raise InvalidJson("nested too deeply, or contains itself; use $ref", path=path) from None
    if not isinstance(plain, dict):
        raise error(f"a schema is a JSON object, not {type(plain).__name__}", path=path)
    return plain


def _write(schema: dict[str, Any], sort_properties: bool, path: str) -> str:
    return canonical.dumps(_canonical(schema, sort_properties), path=path).decode()


def _canonical(schema: Any, sort_properties: bool) -> Any:
    if not isinstance(schema, dict):
        return schema  # `true` and `false` are schemas, and so may be a list of names
    result: dict[str, Any] = {}
    for keyword in sorted(schema):
        value = schema[keyword]
        if keyword in _HOLD_NAMES and isinstance(value, dict):
            names = sorted(value) if sort_properties else value
            value = {name: _canonical(value[name], sort_properties) for name in names}
        elif keyword in _HOLD_A_LIST and isinstance(value, list):
            value = [_canonical(item, sort_properties) for item in value]
        elif keyword in _HOLD_A_SCHEMA:
            value = _canonical(value, sort_properties)
        elif keyword == "required":
            # "properties" sorts before "required", so it is done.
            value = _in_property_order(value, result.get("properties"))
        result[keyword] = value
    return result


def _in_property_order(required: Any, properties: Any) -> Any:
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return required  # draft 3 had a boolean here
    names = set(required)
    known = [name for name in properties if name in names] if isinstance(properties, dict) else []
    return known + sorted(names.difference(known))


def inline_root(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace `{"$ref": "#/$defs/Node", "$defs": …}`, the schema of a recursive model, by Node.

    The definition stays if anything else refers to it.
    """
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return schema
    _, _, keyword_and_name = reference.partition("#/")
    keyword, _, name = keyword_and_name.partition("/")
    definitions = schema.get(keyword)
    if keyword not in ("$defs", "definitions") or not isinstance(definitions, dict):
        return schema
    target = definitions.get(name)
    rest = {key: value for key, value in schema.items() if key not in ("$ref", keyword)}
    if not isinstance(target, dict) or target.keys() & (rest.keys() | {keyword}):
        return schema
    others = {key: value for key, value in definitions.items() if key != name}
    if canonical.string(reference) in canonical.dumps([target, others, rest]):
        others = definitions
    return {**rest, **({keyword: others} if others else {}), **target}


def wire_name(name: str) -> str:
    """The name as the model sees it, which every provider accepts; a legal name is unchanged.

    Any other name gets `_` for each illegal character and a hash of the whole name at the end, so
    that `a.b` and `a/b`, or two long names with the same beginning, stay different.
    """
    if _LEGAL_NAME.fullmatch(name):
        return name
    if not name:
        raise InvalidTool("a tool needs a name", path="name")
    # A lone surrogate is an illegal character like any other, not an error.
    suffix = "_" + blake3(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return _ILLEGAL_CHARACTER.sub("_", name)[: _MAX_NAME - len(suffix)] + suffix


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


def decode_whole_numbers(decode: Callable[[str], T], text: str) -> T:
    """The value in a JSON text. `2.0` is an integer in JSON Schema, and for models, but not for
    msgspec, so an invalid text is decoded again without such fractions."""
    try:
        return decode(text)
    except msgspec.ValidationError:
        whole = _WHOLE.sub(lambda found: found[1] or found[0], text)
        if whole == text:
            raise
    return decode(whole)


def first_error(validator: Any, value: Any) -> Any:
    """The first error of a value; None for a valid one. Listing all errors would be too slow: each
    item may have one."""
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


# ── Arguments of tool calls ───────────────────────────────────────────────────────────────────────

_ROOT = "arguments"
_FIELD = re.compile(r"^Object (?:missing required|contains unknown) field `(.+)`$", re.DOTALL)
_QUOTES_VALUE = re.compile(r"^Invalid (?:enum )?value ", re.DOTALL)


class Arguments(Protocol):
    """Reads the arguments of one tool."""

    def read(self, text: str) -> dict[str, Any]: ...


class StructArguments:
    """For functions: strict decoding into a struct, values converted to the hinted types."""

    def __init__(
        self,
        struct: type[msgspec.Struct],
        *,
        choices: dict[str, list[Any]],
        dec_hook: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self._names = struct.__struct_fields__
        self._choices = choices
        self._decoder = msgspec.json.Decoder(struct, dec_hook=dec_hook)

    def read(self, text: str) -> dict[str, Any]:
        """The given arguments; the function has defaults for the others."""
        try:
            decoded = decode_whole_numbers(self._decoder.decode, _or_empty(text))
        except msgspec.ValidationError as error:
            raise self._explain(str(error)) from None
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise InvalidRequest(f"not JSON: {error}", path=_ROOT) from None
        decoded_fields = ((name, getattr(decoded, name)) for name in self._names)
        return {name: value for name, value in decoded_fields if value is not msgspec.UNSET}

    def _explain(self, error: str) -> InvalidRequest:
        """msgspec writes "Expected `int`, got `str` - at `$.limit`"; the last "at" counts."""
        reason, _, where = error.rpartition(" - at `")
        if not reason:
            reason, where = error, "$`"
        if where.startswith("key` in `"):
            where = where.removeprefix("key` in `")
            reason = f"{reason} (in a key)"
        steps = where.removesuffix("`").removeprefix("$")
        path = _ROOT + steps
        if _QUOTES_VALUE.match(reason):
            choices = self._choices.get(steps.removeprefix("."))
            reason = f"expected one of {_listed(choices)}" if choices else "not an allowed value"
        elif field := _FIELD.match(reason):
            if path == _ROOT and field[1] not in self._names:
                reason = f"unknown field; known: {', '.join(self._names) or 'none'}"
            path = f"{path}.{field[1]}"
        return InvalidRequest(reason, path=path)


class SchemaArguments:
    """For schema and MCP tools: validated by the schema, passed on as plain JSON values."""

    def __init__(self, schema: str, *, path: str) -> None:
        self._schema = schema
        self._path = path

    def read(self, text: str) -> dict[str, Any]:
        arguments = loads(_or_empty(text), path=_ROOT)
        if not isinstance(arguments, dict):
            kind = type(arguments).__name__
            raise InvalidRequest(f"expected an object, got {kind}", path=_ROOT)
        if (error := first_error(self._validator, arguments)) is not None:
            reason, path = mismatch(error, None, _ROOT)
            raise InvalidRequest(reason, path=path)
        return arguments

    @functools.cached_property
    def _validator(self) -> Any:
        return schema_validator(self._schema, self._path, InvalidTool)


def _or_empty(text: str) -> str:
    """`{}` for an empty text, which some models write for a tool without arguments."""
    return text if text.strip() else "{}"


def _listed(values: list[Any]) -> str:
    return canonical.dumps(values).decode().removeprefix("[").removesuffix("]")
