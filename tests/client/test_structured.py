"""Structured output: the schemas that are sent, and how replies are read."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import subprocess
import sys
import uuid
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import jsonschema_rs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta
from support.tables import each_row

from anaphora import catalog, wire
from anaphora.cache.plan import plan_once
from anaphora.client.structured import Structured, output_of, support_notices
from anaphora.errors import InvalidJson, InvalidRequest, Parse
from anaphora.prompt import Call, OutputSchema, Params, PromptIR
from anaphora.values import Message, Refusal, Reply, StopReason, Tool, ToolCall

#: Part of every mismatching reply; no error may quote it.
CANARY = "canary-7f3a"


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Leg(msgspec.Struct):
    """One flight.

    Without stops.
    """

    origin: str
    minutes: Annotated[int, Meta(ge=1, description="In the air")]


class Trip(msgspec.Struct):
    legs: list[Leg]
    colour: Colour = Colour.RED
    note: str | None = None


@dataclasses.dataclass
class Person:
    name: str
    age: int = 0
    tags: list[str] = dataclasses.field(default_factory=list)


class Film(TypedDict):
    title: str
    year: NotRequired[int]


class Model(pydantic.BaseModel):
    name: str
    parts: list[int] = pydantic.Field(default_factory=list)
    kind: Literal["a", "b"] = "a"

    @pydantic.field_validator("name")
    @classmethod
    def _not_empty(cls, value: str) -> str:
        if value == CANARY:
            raise ValueError(f"{value} is no name")
        return value


class Node(msgspec.Struct):
    label: str
    children: list[Node] = []


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    tricks: list[str]


class Owner(msgspec.Struct):
    pet: Cat | Dog
    born: datetime.date
    id: uuid.UUID


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
}


def schema_of(structured: Structured[Any]) -> OutputSchema:
    assert isinstance(structured.output, OutputSchema)
    return structured.output


def schema(structured: Structured[Any]) -> Any:
    return json.loads(schema_of(structured).schema)


# ── Schemas ──────────────────────────────────────────────────────────────────────────────────────


def test_struct_schema_uses_enforced_keywords_only() -> None:
    found = output_of(Trip)
    assert schema(found) == {
        "$defs": {
            "Colour": {"enum": ["blue", "red"]},
            "Leg": {
                "description": "One flight.\n\nWithout stops.",
                "type": "object",
                "properties": {
                    "origin": {"type": "string"},
                    "minutes": {"type": "integer", "description": "In the air\n(minimum 1)"},
                },
                "required": ["origin", "minutes"],
                "additionalProperties": False,
            },
        },
        "type": "object",
        "properties": {
            "legs": {"type": "array", "items": {"$ref": "#/$defs/Leg"}},
            "colour": {"$ref": "#/$defs/Colour"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["legs", "colour", "note"],
        "additionalProperties": False,
    }
    assert schema_of(found).strict is True
    assert schema_of(found).name == "answer"  # a name of its own would be a notice on three wires


def test_fields_keep_the_order_they_were_declared_in() -> None:
    """Models answer in that order."""
    assert list(schema(output_of(Trip))["properties"]) == ["legs", "colour", "note"]


@each_row(
    "source, strict",
    [
        (Trip, True),
        (Person, True),
        (Model, True),
        (Node, True),
        (Owner, True),
        # An optional year has no null in the schema, so it is not required.
        (Film, None),
        (PERSON, None),
        ({**PERSON, "required": ["name", "age"], "additionalProperties": False}, None),
        (
            {
                "type": "object",
                "properties": {"n": {"type": "integer"}},
                "required": ["n"],
                "additionalProperties": False,
            },
            True,
        ),
        ({"type": "array", "items": {"type": "string"}}, None),
        ({"type": "object", "additionalProperties": {"type": "string"}}, None),
        ({"type": "object", "properties": {}, "additionalProperties": False}, True),
        (
            {
                "type": "object",
                "properties": {"n": {}},
                "required": ["n"],
                "additionalProperties": False,
            },
            None,
        ),
    ],
)
def test_strict_is_set_where_the_schema_allows_it(source: Any, strict: bool | None) -> None:
    assert schema_of(output_of(source)).strict is strict
    assert schema_of(output_of(source, strict=False)).strict is False


def test_json_schema_is_sent_as_written() -> None:
    """Canonical, and otherwise untouched: bounds stay bounds and nothing is closed."""
    found = output_of(PERSON, "person", description="The person described")
    assert schema(found) == PERSON
    assert schema_of(found).schema.startswith('{"properties":{"name":')
    assert (schema_of(found).name, schema_of(found).description) == (
        "person",
        "The person described",
    )


def test_reference_with_other_keywords_is_wrapped() -> None:
    """Strict mode refuses a `$ref` that has company."""

    class Outer(msgspec.Struct):
        leg: Annotated[Leg, Meta(description="The first")]

    made = output_of(Outer)
    assert schema(made)["properties"]["leg"] == {
        "anyOf": [{"$ref": "#/$defs/Leg"}],
        "description": "The first",
    }
    assert schema_of(made).strict is True


def test_tagged_unions_are_distinguished_by_their_tag() -> None:
    class Tagged(pydantic.BaseModel):
        one: Annotated[One | Two, pydantic.Field(discriminator="kind")]

    found = schema(output_of(Tagged))["properties"]["one"]
    assert found == {"anyOf": [{"$ref": "#/$defs/One"}, {"$ref": "#/$defs/Two"}]}
    assert schema_of(output_of(Tagged)).strict is True


class Foreign:
    pass


class One(pydantic.BaseModel):
    kind: Literal["one"]


class Two(pydantic.BaseModel):
    kind: Literal["two"]
    more: int


@each_row("source", [Trip, Person, Film, Model, Node, Owner])
def test_schema_bytes_are_deterministic(source: Any) -> None:
    assert output_of(source).output == output_of(source).output


@each_row(
    "source, path",
    [
        (Trip(legs=[]), "output"),
        (object, "output"),
        ("{}", "output"),
        (None, "output"),
        ({"type": "nonsense"}, "output.schema"),
        ({"$ref": "https://example.com/schema.json"}, "output.schema"),
        ({"type": object()}, "output.schema.type"),
    ],
)
def test_types_without_a_schema_are_rejected(source: Any, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        output_of(source)
    assert caught.value.path == path


def test_type_without_a_json_form_is_rejected() -> None:
    class Strange(msgspec.Struct):
        what: complex

    class StrangeModel(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
        what: Foreign

    for source in (Strange, StrangeModel):
        with pytest.raises(InvalidRequest, match="no JSON form"):
            output_of(source)


@each_row("name", ["", "with space", "ä", "x" * 65, "a\n"])
def test_invalid_schema_name_is_rejected(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        output_of(PERSON, name)
    assert caught.value.path == "output.name"


def test_pydantic_is_not_imported() -> None:
    program = (
        "import sys, msgspec\n"
        "from anaphora.client.structured import output_of\n"
        "class A(msgspec.Struct):\n    a: int\n"
        "assert output_of(A).parse('{\"a\":1}') == A(1)\n"
        "assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# ── Reading replies ──────────────────────────────────────────────────────────────────────────────


@each_row(
    "source, text, value",
    [
        (
            Trip,
            '{"legs":[{"origin":"FCO","minutes":90}],"colour":"blue","note":null}',
            Trip([Leg("FCO", 90)], Colour.BLUE),
        ),
        # Fields with a default may be missing, though the schema requires them.
        (Trip, '{"legs":[]}', Trip([])),
        (Person, '{"name":"Ada"}', Person("Ada")),
        (Film, '{"title":"M","year":1931}', {"title": "M", "year": 1931}),
        # An integer to JSON Schema.
        (Film, '{"title":"1.0","year":1931.00}', {"title": "1.0", "year": 1931}),
        (list[int], '{"value":[-1.0,2]}', [-1, 2]),
        (Model, '{"name":"x","parts":[1]}', Model(name="x", parts=[1])),
        (Node, '{"label":"a","children":[{"label":"b"}]}', Node("a", [Node("b")])),
        (
            Owner,
            '{"pet":{"type":"Dog","tricks":[]},"born":"2020-02-29",'
            '"id":"3f2a6c1e-8d4b-4a7f-9c52-0b1d2e3f4a5b"}',
            Owner(
                Dog([]),
                datetime.date(2020, 2, 29),
                uuid.UUID("3f2a6c1e-8d4b-4a7f-9c52-0b1d2e3f4a5b"),
            ),
        ),
        (PERSON, '{"name":"Ada","more":[1.5,null]}', {"name": "Ada", "more": [1.5, None]}),
    ],
)
def test_reply_becomes_a_value_of_its_type(source: Any, text: str, value: Any) -> None:
    assert output_of(source).parse(text) == value


@each_row(
    "text",
    [
        '{"name":"Ada"}',
        '\n {"name": "Ada"}\n',
        '```json\n{"name":"Ada"}\n```',
        'Here it is:\n\n```json\n{\n  "name": "Ada"\n}\n```\nAnything else?',
        '```JSON  \r\n{"name":"Ada"}\r\n```\r\n',
        '  ```json\n  {"name":"Ada"}\n  ```',
        '```python\nprint()\n```\n```json\n{"name":"Ada"}\n```',
    ],
)
def test_json_is_all_of_the_text_or_in_its_only_fence(text: str) -> None:
    assert output_of(PERSON).parse(text) == {"name": "Ada"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        'The answer is {"name":"Ada"}',
        '{"name":"Ada"} and more',
        '```\n{"name":"Ada"}\n```',
        '```json\n{"name":"Ada"}\n```\nor\n```json\n{"name":"Bob"}\n```',
        '```json\n{"name":"Ada"}',
        '{"name":"Ada"',
        "{'name': 'Ada'}",
        '{"name": NaN}',
        "[" * 100_000,
        "```json\n" * 200_000,
        '"\ud800"',
    ],
)
def test_json_is_not_guessed_from_prose(text: str) -> None:
    with pytest.raises(Parse, match=r"not JSON|nested too deeply") as caught:
        output_of(PERSON).parse(text)
    assert caught.value.path == "$"


def test_fence_inside_a_string_is_text() -> None:
    text = json.dumps({"name": "```json\n{}\n```"})
    assert output_of(PERSON).parse(text) == {"name": "```json\n{}\n```"}


WRONG: list[tuple[Any, Any, str, str]] = [
    (Trip, {"legs": CANARY}, "$.legs", "expected array"),
    (Trip, {"legs": [{"origin": "a", "minutes": CANARY}]}, "$.legs[0].minutes", "expected integer"),
    (Trip, {"legs": [{"origin": "a", "minutes": 0}]}, "$.legs[0].minutes", "expected at least 1"),
    (Trip, {"legs": [{"origin": CANARY}]}, "$.legs[0].minutes", "is missing"),
    (Trip, {"legs": [], "colour": CANARY}, "$.colour", 'expected one of "blue", "red"'),
    (Trip, {"legs": [], "note": [CANARY]}, "$.note", "expected string or null"),
    (Trip, CANARY, "$", "expected object"),
    (
        Owner,
        {"pet": {"type": "Cat", "lives": CANARY}, "born": "", "id": ""},
        "$.pet.lives",
        "expected integer",
    ),
    (
        Owner,
        {"pet": {"type": "Cat", "lives": 9}, "born": CANARY, "id": CANARY},
        "$.born",
        "Invalid RFC3339 encoded date",
    ),
    (Model, {"name": CANARY}, "$.name", "pydantic validation failed: value_error"),
    (Model, {"name": "x", "kind": CANARY}, "$.kind", 'expected one of "a", "b"'),
    (
        {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
        {CANARY: 1},
        "$",
        "has a field that is not in the schema",
    ),
    (
        {"type": "object", "additionalProperties": {"type": "object", "required": ["n"]}},
        {CANARY: {CANARY: 1}},
        "$.*.*",
        "is missing",
    ),
    ({"type": "string", "maxLength": 3}, CANARY, "$", "expected at most 3 characters"),
    ({"type": "string", "pattern": "^a+$"}, CANARY, "$", "does not match ^a+$"),
    ({"const": "x"}, CANARY, "$", 'expected "x"'),
    ({"type": "array", "uniqueItems": True}, [CANARY] * 2, "$", "expected unique items"),
    ({"multipleOf": 4}, 6, "$", "expected a multiple of 4"),
    ({"not": {"type": "string"}}, CANARY, "$", "does not satisfy `not`"),
    ({"propertyNames": {"maxLength": 1}}, {CANARY: 1}, "$", "does not satisfy `propertyNames`"),
    ({"enum": [f"value {n}" for n in range(99)]}, CANARY, "$", "expected one of the 99 values"),
    (
        {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]},
        CANARY,
        "$",
        "expected at most 1 character",
    ),
    ({"anyOf": [{"minLength": 99}, {"maxLength": 1}]}, CANARY, "$", "does not satisfy `anyOf`"),
]


@each_row("source, answer, path, reason", WRONG)
def test_mismatch_names_the_path_and_quotes_nothing(
    source: Any, answer: Any, path: str, reason: str
) -> None:
    with pytest.raises(Parse) as caught:
        output_of(source).parse(json.dumps(answer))
    assert caught.value.path == path
    assert reason in str(caught.value)
    assert CANARY not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_validation_error_of_the_type_is_not_quoted() -> None:
    class Careful(msgspec.Struct):
        name: str

        def __post_init__(self) -> None:
            raise ValueError(f"Expected `{self.name}`")

    with pytest.raises(Parse) as caught:
        output_of(Careful).parse(json.dumps({"name": CANARY}))
    assert str(caught.value) == "$: validation code of the type raised ValueError"


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_any_reply_is_a_value_or_a_parse_error(value: Any) -> None:
    for structured in FORMS:
        try:
            structured.parse(json.dumps(value))
        except Parse:
            pass


FORMS = [output_of(source) for source in (Trip, Person, Model, Owner)]


def test_schema_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    compile_schema = jsonschema_rs.validator_for

    def counted(schema: Any, **options: Any) -> Any:
        compiled.append(schema)
        return compile_schema(schema, **options)

    monkeypatch.setattr(jsonschema_rs, "validator_for", counted)
    structured = output_of(PERSON)
    for _ in range(2):
        structured.parse('{"name":"Ada"}')
    assert len(compiled) == 1


# ── In calls and replies ─────────────────────────────────────────────────────────────────────────


def replied(*parts: Any, stop_reason: StopReason = "end") -> Reply:
    return Reply(id="r", model="m", message=Message.assistant(*parts), stop_reason=stop_reason)


def call(**more: Any) -> Call:
    prompt = PromptIR.chat([Message.user("Who?")])
    return Call(ir=prompt, model="claude-sonnet-4-5", params=Params(max_tokens=99), **more)


def test_reply_is_read_from_its_text_or_from_the_tool() -> None:
    person = output_of(Person)
    assert person.parse_reply(replied('{"name":"Ada"}')) == Person("Ada")
    by_tool = ToolCall("c", "answer", '{"name":"Ada"}')
    assert person.parse_reply(replied("Let me see.", by_tool, stop_reason="tool_calls")) == Person(
        "Ada"
    )


@pytest.mark.parametrize(
    "reply, reason",
    [
        (replied('{"name":', stop_reason="length"), "cut off at max_tokens"),
        (replied(Refusal(CANARY), stop_reason="refusal"), "the model refused to answer"),
        (replied(ToolCall("c", "answer", "{"), stop_reason="tool_calls"), "not JSON"),
        (replied(ToolCall("c", "other", '{"name":"x"}'), stop_reason="tool_calls"), "not JSON"),
    ],
)
def test_reply_without_a_value_names_the_reason(reply: Reply, reason: str) -> None:
    with pytest.raises(Parse, match=reason) as caught:
        output_of(Person).parse_reply(reply)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("name", ["anthropic", "openai_chat", "openai_responses", "gemini"])
def test_forced_tool_replaces_the_schema(name: str) -> None:
    """For models that support tools but no schemas."""
    person = output_of(Person, "person")
    applied = person.apply(call(tools=(Tool("look"),)), by="tool")
    assert applied.params.output is None
    assert [tool.name for tool in applied.tools] == ["look", "person"]
    codec = wire.get(name)
    profile = catalog.profile("anthropic", "claude-sonnet-4-5")
    rendered = codec.render(applied, profile)
    body = codec.assemble(
        rendered,
        plan_once(rendered, catalog.rules("anthropic", applied.model), reuse_expected=True),
    ).body.join()
    back = codec.parse(body)
    assert back.params.tool_choice is not None
    assert back.params.tool_choice.name == "person"
    with pytest.raises(InvalidRequest, match=r"output\.name"):
        person.apply(applied, by="tool")


def test_apply_by_schema_changes_one_parameter() -> None:
    person = output_of(Person)
    applied = person.apply(call())
    assert applied.params == Params(max_tokens=99, output=person.output)
    assert applied.ir is call().ir or applied.ir == call().ir


def test_model_without_known_support_gives_a_notice() -> None:
    """The reply is still checked."""
    silent = catalog.profile("deepseek", "deepseek-v3.2")
    assert [notice.code for notice in support_notices(silent)] == ["output_unpromised"]
    assert support_notices(catalog.profile("anthropic", "claude-sonnet-4-5")) == ()


def test_schema_that_json_cannot_hold_is_rejected_with_its_path() -> None:
    with pytest.raises(InvalidJson) as caught:
        output_of({"type": "number", "maximum": float("nan")})
    assert caught.value.path == "output.schema.maximum"


def test_structured_is_returned_unchanged() -> None:
    person = output_of(Person)
    assert output_of(person) is person
