"""A value that satisfies a JSON schema.

Every value is validated before it is used, so the generator may be simple: a schema that it cannot
satisfy is an error, never an invalid reply.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import msgspec

from anaphora.bounded import BoundedMap

from .schema_parts import PartCount, StepLimit, UnsatisfiableSchema, resolve
from .text import SeededRandom, join_seed, sentences, word

#: From this depth on, only required properties are generated, and the simplest of alternatives.
_DEEP = 4
#: A schema that is nested deeper counts as infinite.
_DEEPEST = 40
_ATTEMPTS = 12
_UNIQUE_ATTEMPTS = 101
_COMPILED = 512
#: Limits for one schema: more would delay other requests.
_MOST_VALUES = 5_000
_LONGEST_TEXT = 100_000
#: Characters of a text before it repeats itself.
_VARIED_TEXT = 400
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
    "idn-email": "someone@example.com",
    "hostname": "example.com",
    "uri": "https://example.com/a",
    "uri-reference": "/a",
    "iri": "https://example.com/a",
    "uuid": "3f2a6c1e-8d4b-4a7f-9c52-0b1d2e3f4a5b",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "json-pointer": "/a",
    "regex": "a+",
}
#: Strings that match the most common patterns; other patterns cannot be satisfied.
_LIKELY = (
    "a abc ABC A a1 A1 1 12 123 1234 12345 123456 1.5 0.1.0 1.2.3 v1.2.3 a-b a_b a.b a/b /a "
    "2026-11-14 2026-11 09:30 09:30:00 en en-US de_DE USD #a1b2c3 a1b2c3 0a1b2c3d +15550100 "
    "555-0100 someone@example.com example.com https://example.com 192.0.2.1 ABC-123 A-1 id_1 "
    "3f2a6c1e-8d4b-4a7f-9c52-0b1d2e3f4a5b 90210 AB12 abcdefgh abcdefghijkl ABCDEFGH 0 x=1"
).split()


class _Generator:
    def __init__(self, root: Any, random: SeededRandom, work: StepLimit) -> None:
        self._root = root
        self._random = random
        self._work = work
        self._left = _MOST_VALUES
        self._by_length: dict[int, tuple[list[Any], list[Any]]] = {}
        self._texts: dict[tuple[str, int, int | None], str | None] = {}

    @property
    def count(self) -> int:
        """How many values were generated."""
        return _MOST_VALUES - self._left

    def value(self, schema: Any, depth: int = 0) -> Any:
        self._work.spend(1)
        self._left -= 1
        if self._left < 0:
            raise UnsatisfiableSchema(f"it asks for more than {_MOST_VALUES:,} values")
        if depth > _DEEPEST:
            raise UnsatisfiableSchema("it is nested without end")
        if schema is True or schema == {}:
            return word(self._random)
        if not isinstance(schema, dict):
            raise UnsatisfiableSchema("it allows no value")
        if "$ref" in schema:
            return self.value(self._target(schema), depth + 1)
        if "const" in schema:
            return self._copied(schema["const"])
        if schema.get("enum"):
            return self._copied(self._random.choice(schema["enum"]))
        if schema.get("allOf"):
            parts = [self._resolved(part) for part in schema["allOf"]]
            return self.value(self._merged([_without(schema, "allOf"), *parts]), depth + 1)
        for name in ("anyOf", "oneOf"):
            if schema.get(name):
                return self._any(_without(schema, name), schema[name], depth)
        return self._typed(schema, depth)

    def _copied(self, value: Any) -> Any:
        """A value of the schema itself, which the reply repeats."""
        self._work.spend(len(msgspec.json.encode(value)) // _CHARACTERS_PER_STEP)
        return value

    def _any(self, rest: dict[str, Any], options: list[Any], depth: int) -> Any:
        if depth >= _DEEP:
            order = self._shortest_first(options)
        else:
            first = self._random.below(len(options))
            self._work.spend(len(options) // _CHARACTERS_PER_STEP)
            order = [*options[first:], *options[:first]]
        for option in order:
            try:
                return self.value(self._merged([rest, option]), depth + 1)
            except UnsatisfiableSchema:
                continue
        raise UnsatisfiableSchema("none of its alternatives can be satisfied")

    def _shortest_first(self, options: list[Any]) -> list[Any]:
        # The list itself is kept: the id of a freed one could be reused.
        known = self._by_length.get(id(options))
        if known is None:
            lengths = [len(msgspec.json.encode(option)) for option in options]
            self._work.spend(len(options) + sum(lengths) // _CHARACTERS_PER_STEP)
            order = sorted(range(len(options)), key=lengths.__getitem__)
            known = self._by_length[id(options)] = options, [options[at] for at in order]
        return known[1]

    def _merged(self, schemas: list[Any]) -> Any:
        self._work.spend(sum(len(each) for each in schemas if isinstance(each, dict)))
        return _merged(schemas, self._work)

    def _typed(self, schema: dict[str, Any], depth: int) -> Any:
        kind = schema.get("type") or _guessed(schema)
        if isinstance(kind, list):
            kinds = [one for one in kind if one != "null"]
            kind = self._random.choice(kinds) if kinds else "null"
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema, depth)
            case "integer":
                return _within_range(self._integer, schema)
            case "number":
                return _within_range(self._number, schema)
            case "boolean":
                return bool(self._random.below(2))
            case "null":
                return None
        raise UnsatisfiableSchema(f"unknown type {kind!r}")

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        required = dict.fromkeys(schema.get("required") or ())
        if steps := (len(properties) + len(required)) // _CHARACTERS_PER_STEP:
            self._work.spend(steps)
        wanted = properties if depth < _DEEP else [name for name in properties if name in required]
        values = {}
        # In the schema's order, as providers do.
        for name in dict.fromkeys((*wanted, *required)):
            try:
                values[name] = self.value(properties.get(name, True), depth + 1)
            except UnsatisfiableSchema:
                if name in required:
                    raise
        more = schema.get("additionalProperties", True)
        for index in range(int(schema.get("minProperties", 0)) - len(values)):
            values[f"key{index}"] = self.value(more, depth + 1)
        return values

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        leading = schema.get("prefixItems") or []
        least = max(schema.get("minItems", 0), len(leading))
        usual = 0 if depth >= _DEEP else self._random.between(1, 2)
        count = min(max(least, usual), schema.get("maxItems", math.inf))
        if count > _MOST_VALUES:
            raise UnsatisfiableSchema(f"it asks for more than {_MOST_VALUES:,} values")
        values = [self.value(item, depth + 1) for item in leading[: int(count)]]
        for _ in range(max(int(count), _UNIQUE_ATTEMPTS)):
            if len(values) >= count:
                break
            value = self.value(schema.get("items", True), depth + 1)
            if schema.get("uniqueItems"):
                self._work.spend(len(values))
                if value in values:
                    continue
            values.append(value)
        return values

    def _string(self, schema: dict[str, Any], depth: int) -> str:
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        if "pattern" in schema:
            return self._matching(schema["pattern"], least, most)
        if schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        if least > _LONGEST_TEXT:
            raise UnsatisfiableSchema(
                f"it asks for a text of more than {_LONGEST_TEXT:,} characters"
            )
        if least:
            self._work.spend(int(min(least, _VARIED_TEXT) + least // _CHARACTERS_PER_STEP))
        text = word(self._random) if depth else sentences(self._random)
        while len(text) < min(least, _VARIED_TEXT):
            text += " " + word(self._random)
        if len(text) < least:
            text += f" {text}" * (int(least) // len(text))
        return text if most is None else text[: int(most)]

    def _matching(self, pattern: str, least: int, most: int | None) -> str:
        key = pattern, least, most
        if key not in self._texts:
            self._work.spend(_MATCHES)
            self._texts[key] = self._likely(pattern, least, most)
        text = self._texts[key]
        if text is None:
            raise UnsatisfiableSchema("no likely text matches the pattern")
        return text

    def _likely(self, pattern: str, least: int, most: int | None) -> str | None:
        steps = jsonschema_rs.FancyRegexOptions(backtrack_limit=_PATTERN_STEPS)
        try:
            matching = jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=steps)
        except ValueError:
            raise UnsatisfiableSchema("a pattern is not a regular expression") from None
        for text in _LIKELY:
            for repeated in (text, text * 8, text * 40):
                long = repeated[: int(most)] if most is not None else repeated
                if len(long) >= least and matching.is_valid(long):
                    return long
        return None

    def _integer(self, schema: dict[str, Any]) -> int:
        low, high = _bounds(schema, 1)
        step = schema.get("multipleOf", 1)
        if step != int(step) or step <= 0:
            step = 1
        first = -(-low // step) * step
        count = max(0, int((high - first) // step))
        return int(first + step * self._random.below(count + 1))

    def _number(self, schema: dict[str, Any]) -> float:
        if "multipleOf" in schema:
            step = float(schema["multipleOf"])
            steps = {name: bound / step for name, bound in schema.items() if name in _BOUNDS}
            return step * self._integer(steps)
        low, high = _bounds(schema, 1e-6)
        return float(round(low + (high - low) * self._random.below(9) / 8, 6))

    def _resolved(self, schema: Any) -> Any:
        self._work.spend(1)
        if isinstance(schema, dict) and "$ref" in schema:
            return self._resolved(self._target(schema))
        return schema

    def _target(self, schema: dict[str, Any]) -> Any:
        """The schema that another refers to, with the other keywords beside the reference."""
        self._work.spend(1 + len(schema["$ref"]) // _CHARACTERS_PER_STEP)
        return self._merged([resolve(self._root, schema["$ref"]), _without(schema, "$ref")])


_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def _within_range(number: Callable[[dict[str, Any]], float], schema: dict[str, Any]) -> float:
    try:
        return number(schema)
    except (ArithmeticError, ValueError):
        raise UnsatisfiableSchema("its bounds and steps are beyond all floats") from None


def _bounds(schema: dict[str, Any], step: float) -> tuple[Any, Any]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        low = max(schema["exclusiveMinimum"] + step, low if low is not None else -1e300)
    if "exclusiveMaximum" in schema:
        high = min(schema["exclusiveMaximum"] - step, high if high is not None else 1e300)
    if low is None:
        low = 1 if high is None or high >= 1 else high - 9
    if high is None:
        high = low + 9
    if low > high:
        raise UnsatisfiableSchema("no number is within its bounds")
    return low, high


def _guessed(schema: dict[str, Any]) -> str:
    if "properties" in schema or "required" in schema:
        return "object"
    if "items" in schema or "prefixItems" in schema:
        return "array"
    return "number" if any(name in schema for name in _BOUNDS) else "string"


def _without(schema: dict[str, Any], keyword: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != keyword}


def _merged(schemas: list[Any], work: StepLimit) -> Any:
    """One schema from several; of two values of a keyword the later is used."""
    if any(schema is False for schema in schemas):
        return False
    merged: dict[str, Any] = {}
    for schema in schemas:
        for name, value in schema.items() if isinstance(schema, dict) else ():
            if name in merged and isinstance(value, dict | list):
                work.spend((len(merged[name]) + len(value)) // _CHARACTERS_PER_STEP)
            if name == "properties" and name in merged:
                merged[name] = {**merged[name], **value}
            elif name == "required" and name in merged:
                merged[name] = list(dict.fromkeys([*merged[name], *value]))
            elif name in ("anyOf", "oneOf", "allOf") and name in merged:
                merged["allOf"] = [*merged.get("allOf", ()), {name: value}]
            else:
                merged[name] = value
    return merged


class _CompiledSchema(msgspec.Struct, frozen=True):
    decoded: Any
    validator: Any
    parts: int


def _compile(schema: str) -> _CompiledSchema:
    try:
        decoded = msgspec.json.decode(schema)
        parts = PartCount(decoded).of(decoded)
        steps = jsonschema_rs.FancyRegexOptions(backtrack_limit=_PATTERN_STEPS)
        validator = jsonschema_rs.validator_for(decoded, pattern_options=steps)
    except RecursionError:
        raise UnsatisfiableSchema("it is nested too deeply") from None
    except (msgspec.DecodeError, ValueError, jsonschema_rs.ReferencingError) as problem:
        raise UnsatisfiableSchema(f"not a schema: {str(problem)[:_SHOWN]}") from None
    return _CompiledSchema(decoded, validator, parts)


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
            if steps := generator.count * compiled.parts // _PAIRS_PER_STEP:
                self._work.spend(steps)
            if compiled.validator.is_valid(value):
                return msgspec.json.encode(value).decode()
        raise UnsatisfiableSchema("no generated value is valid")

    def _compile(self, schema: str) -> _CompiledSchema:
        compiled = self._compiled.use(schema)
        if compiled is None:
            compiled = self._compiled[schema] = _compile(schema)
        return compiled
