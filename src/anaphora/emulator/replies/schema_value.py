"""A value that satisfies a JSON schema: required members, the first alternative, short strings.

Every value is validated before it is used: a schema that these cannot satisfy is an error, never an
invalid reply. A few lines of JSON can cause any amount of work, since references may double the
schema at each step: the steps of a request and the parts of a schema are limited.
"""

from __future__ import annotations

import math
from typing import Any

import jsonschema_rs
import msgspec

from anaphora.bounded import BoundedMap

from .text import SeededRandom, join_seed, sentences, word

#: From this depth on, lists are empty, and the shortest alternative comes first.
_DEEP = 4
#: A schema that is nested deeper counts as infinite.
_DEEPEST = 40
_ATTEMPTS = 4
_COMPILED = 512
#: Limits for one schema: more would delay other requests.
_MOST_VALUES, _LONGEST_TEXT = 5_000, 100_000
#: Characters of generated text, or of compared JSON, for one step.
_CHARACTERS_PER_STEP = 16
#: Pairs of a schema part and a value part that are validated in one step.
_PAIRS_PER_STEP = 64
#: Steps for trying the likely texts on a pattern.
_MATCHES = 2_000
#: How much of a validator's error is shown.
_SHOWN = 300
#: Steps of a pattern with look-around or back-references; other patterns take linear time.
_PATTERN_STEPS = 10_000

_FORMATS = {
    "date-time": "2026-11-14T09:30:00Z",
    "date": "2026-11-14",
    "time": "09:30:00Z",
    "duration": "PT5M",
    "email": "someone@example.com",
    "hostname": "example.com",
    "uri": "https://example.com/a",
    "uuid": "3f2a6c1e-8d4b-4a7f-9c52-0b1d2e3f4a5b",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
}
#: Strings that match the most common patterns; other patterns cannot be satisfied.
_LIKELY = (
    "a abc ABC A a1 A1 1 12 123 1234 12345 123456 1.5 0.1.0 1.2.3 v1.2.3 a-b a_b a.b a/b /a "
    "2026-11-14 2026-11 09:30 09:30:00 en en-US de_DE USD #a1b2c3 a1b2c3 0a1b2c3d +15550100 "
    "555-0100 someone@example.com example.com https://example.com 192.0.2.1 ABC-123 A-1 id_1 "
    "3f2a6c1e-8d4b-4a7f-9c52-0b1d2e3f4a5b 90210 AB12 abcdefgh abcdefghijkl ABCDEFGH 0 x=1"
).split()
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
_COMBINED = ("$ref", "allOf", "anyOf", "oneOf")


class UnsatisfiableSchema(Exception):
    """No value for this schema could be generated."""


class _Generator:
    def __init__(self, root: Any, random: SeededRandom, work: StepLimit) -> None:
        self._root = root
        self._random = random
        self._work = work
        self.count = 0
        """How many values were generated."""
        self._texts: dict[str, str] = {}
        """By pattern."""

    def value(self, schema: Any, depth: int = 0) -> Any:
        self._work.spend(1)
        self.count += 1
        if self.count > _MOST_VALUES:
            raise UnsatisfiableSchema(f"it asks for more than {_MOST_VALUES:,} values")
        if depth > _DEEPEST:
            raise UnsatisfiableSchema("it is nested without end")
        if schema is True or schema == {}:
            return word(self._random)
        if not isinstance(schema, dict):
            raise UnsatisfiableSchema("it allows no value")
        for keyword in _COMBINED:
            if schema.get(keyword):
                return self._combined(keyword, schema, depth)
        if "const" in schema or schema.get("enum"):
            # A value of the schema itself, which the reply repeats.
            value = schema["const"] if "const" in schema else schema["enum"][0]
            self._work.spend(len(msgspec.json.encode(value)) // _CHARACTERS_PER_STEP)
            return value
        return self._typed(schema, depth)

    def _combined(self, keyword: str, schema: dict[str, Any], depth: int) -> Any:
        rest, named = {**schema}, schema[keyword]
        del rest[keyword]
        if keyword == "$ref":
            return self.value(self._merged(rest, resolve(self._root, named)), depth + 1)
        if keyword == "allOf":
            for part in named:
                rest = self._merged(rest, part)
            return self.value(rest, depth + 1)
        self._work.spend(len(named))
        if depth >= _DEEP:
            named = sorted(named, key=lambda option: len(msgspec.json.encode(option)))
        for option in named:
            try:
                return self.value(self._merged(rest, option), depth + 1)
            except UnsatisfiableSchema:
                continue
        raise UnsatisfiableSchema("none of its alternatives can be satisfied")

    def _merged(self, schema: Any, other: Any) -> Any:
        """One schema from two; of two values of a keyword the later is used."""
        while isinstance(other, dict) and "$ref" in other:
            self._work.spend(1)
            rest = {name: value for name, value in other.items() if name != "$ref"}
            other = self._merged(rest, resolve(self._root, other["$ref"]))
        if not (isinstance(schema, dict) and isinstance(other, dict)):
            return schema if other is True else other
        merged = {**schema, **other}
        self._work.spend(len(merged))
        for name in schema.keys() & other.keys():
            before, after = schema[name], other[name]
            if isinstance(after, dict | list):
                self._work.spend((len(before) + len(after)) // _CHARACTERS_PER_STEP)
            if name == "properties":
                merged[name] = {**before, **after}
            elif name == "required":
                merged[name] = list(dict.fromkeys([*before, *after]))
            elif name in _COMBINED:
                merged["allOf"] = [*merged.get("allOf", ()), {name: before}]
        return merged

    def _typed(self, schema: dict[str, Any], depth: int) -> Any:
        kind = schema.get("type") or _guessed(schema)
        if isinstance(kind, list):
            kind = next((one for one in kind if one != "null"), "null")
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema, depth)
            case "integer" | "number":
                return _number(schema, is_integer=kind == "integer")
            case "boolean":
                return True
            case "null":
                return None
        raise UnsatisfiableSchema(f"unknown type {kind!r}")

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties, required = schema.get("properties") or {}, schema.get("required") or ()
        self._work.spend((len(properties) + len(required)) // _CHARACTERS_PER_STEP)
        # In the schema's order, as providers do.
        wanted = frozenset(required)
        names = dict.fromkeys((*(name for name in properties if name in wanted), *required))
        values = {name: self.value(properties.get(name, True), depth + 1) for name in names}
        more = schema.get("additionalProperties", True)
        for index in range(int(schema.get("minProperties", 0)) - len(values)):
            values[f"key{index}"] = self.value(more, depth + 1)
        return values

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        leading = schema.get("prefixItems") or []
        least = max(schema.get("minItems", 0), len(leading), depth < _DEEP and not leading)
        count = int(min(least, schema.get("maxItems", math.inf), _MOST_VALUES))
        items = [*leading[:count], *[schema.get("items", True)] * (count - len(leading))]
        return [self.value(item, depth + 1) for item in items]

    def _string(self, schema: dict[str, Any], depth: int) -> str:
        least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
        if "pattern" in schema:
            return self._matching(schema["pattern"])
        if schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        if least > _LONGEST_TEXT:
            reason = f"it asks for a text of more than {_LONGEST_TEXT:,} characters"
            raise UnsatisfiableSchema(reason)
        self._work.spend(least // _CHARACTERS_PER_STEP)
        text = word(self._random) if depth else sentences(self._random)
        text += f" {text}" * (least // len(text))
        return text if most is None else text[: int(most)]

    def _matching(self, pattern: str) -> str:
        if pattern not in self._texts:
            self._work.spend(_MATCHES)
            matching = _validator({"pattern": pattern})
            text = next((text for text in _LIKELY if matching.is_valid(text)), None)
            if text is None:
                raise UnsatisfiableSchema("no likely text matches the pattern")
            self._texts[pattern] = text
        return self._texts[pattern]


def _number(schema: dict[str, Any], *, is_integer: bool) -> float:
    """The lowest number; without a lower bound 1, or what the upper one allows."""
    step = schema.get("multipleOf") or int(is_integer)
    above = schema.get("exclusiveMinimum", -math.inf) + (step or 1e-6)
    below = schema.get("exclusiveMaximum", math.inf) - (step or 1e-6)
    low, high = max(schema.get("minimum", above), above), min(schema.get("maximum", below), below)
    try:
        number = min(1, high) if low == -math.inf else low
        if step:
            number = (math.floor if low == -math.inf else math.ceil)(number / step) * step
    except (ArithmeticError, ValueError):
        raise UnsatisfiableSchema("its bounds and steps are beyond all floats") from None
    if not low <= number <= high:
        raise UnsatisfiableSchema("no number is within its bounds")
    return int(number) if is_integer else float(number)


def _guessed(schema: dict[str, Any]) -> str:
    if "properties" in schema or "required" in schema:
        return "object"
    if "items" in schema or "prefixItems" in schema:
        return "array"
    return "number" if "minimum" in schema or "maximum" in schema else "string"


def _validator(schema: Any) -> Any:
    steps = jsonschema_rs.FancyRegexOptions(backtrack_limit=_PATTERN_STEPS)
    try:
        return jsonschema_rs.validator_for(schema, pattern_options=steps)
    except (ValueError, jsonschema_rs.ReferencingError) as problem:
        raise UnsatisfiableSchema(f"not a schema: {str(problem)[:_SHOWN]}") from None


# ── Limits ────────────────────────────────────────────────────────────────────────────────────────


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


class _CompiledSchema(msgspec.Struct, frozen=True):
    decoded: Any
    validator: Any
    parts: int


class SchemaGenerator:
    """Generates values; recent schemas stay compiled."""

    def __init__(self) -> None:
        self._compiled = BoundedMap[str, _CompiledSchema](_COMPILED)
        self._work = StepLimit()

    def begin_request(self) -> None:
        """Resets the step limit for the next request."""
        self._work = StepLimit()

    def generate(self, schema: str, seed: bytes) -> str:
        """The JSON text of a valid value; raises `UnsatisfiableSchema` when none was found."""
        compiled = self._compile(schema)
        for attempt in range(_ATTEMPTS):
            random = SeededRandom(seed + join_seed(b"%d" % attempt))
            generator = _Generator(compiled.decoded, random, self._work)
            value = generator.value(compiled.decoded)
            self._work.spend(generator.count * compiled.parts // _PAIRS_PER_STEP)
            if compiled.validator.is_valid(value):
                return msgspec.json.encode(value).decode()
        raise UnsatisfiableSchema("no generated value is valid")

    def _compile(self, schema: str) -> _CompiledSchema:
        compiled = self._compiled.use(schema)
        if compiled is None:
            try:
                decoded = msgspec.json.decode(schema)
                parts = PartCount(decoded).of(decoded)
                compiled = _CompiledSchema(decoded, _validator(decoded), parts)
            except RecursionError:
                raise UnsatisfiableSchema("it is nested too deeply") from None
            except msgspec.DecodeError as problem:
                raise UnsatisfiableSchema(f"not a schema: {str(problem)[:_SHOWN]}") from None
            self._compiled[schema] = compiled
        return compiled
