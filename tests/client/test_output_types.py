"""Output of any type: parsed, unwrapped, and known to type checkers as `Response[T]`.

mypy checks the `assert_type` of this file like all others; at run time they do nothing.
"""

from __future__ import annotations

import asyncio
import datetime
import enum
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional, TypedDict, assert_type

import msgspec
import pydantic
import pytest
from support.emulated_client import MODELS, WIRES, connected
from support.tables import each_row

import anaphora
from anaphora import AsyncClient, Client, errors
from anaphora.client.response import Response
from anaphora.client.session.run import RunResult
from anaphora.client.structured import Structured, output_of
from anaphora.emulator.server import Emulator
from anaphora.prompt import Call, OutputSchema, Params, PromptIR
from anaphora.values import Message, Reply, Text, ToolCall


class Plan(msgspec.Struct):
    city: str
    days: int


class Decline(msgspec.Struct):
    reason: str = ""


@dataclass
class Route:
    stops: list[str]


class Fare(TypedDict):
    euros: int


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Hotel(pydantic.BaseModel):
    name: str


class Tagged(msgspec.Struct, tag=True):
    x: int


class Other(msgspec.Struct, tag=True):
    x: int


class Pair(msgspec.Struct, array_like=True):
    one: int
    two: str


class Train(msgspec.Struct, tag=True):
    leaves: datetime.datetime
    later: tuple[Train, ...] = ()


class Walk(msgspec.Struct, tag=True):
    begins: Annotated[datetime.time, msgspec.Meta(description="in the morning")]


class Trip(msgspec.Struct):
    way: Train | Walk | datetime.datetime | None
    stops: dict[str, list[tuple[str, datetime.time]]]
    naive: Annotated[datetime.datetime, msgspec.Meta(tz=False)]


#: A type, a value in JSON, and the value.
OUTPUTS: list[tuple[Any, Any, Any]] = [
    (list[Plan], [{"city": "Rome", "days": 2}], [Plan("Rome", 2)]),
    (list[Plan], [], []),
    (list[Hotel], [{"name": "Sole"}], [Hotel(name="Sole")]),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (tuple[int, str], [1, "a"], (1, "a")),
    (tuple[int, ...], [1, 2], (1, 2)),
    (Pair, [1, "a"], Pair(1, "a")),
    (int, 7, 7),
    (float, 0.5, 0.5),
    (bool, True, True),
    (str, "Rome", "Rome"),
    (Colour, "red", Colour.RED),
    (Literal["yes", "no"], "no", "no"),
    (Annotated[int, msgspec.Meta(ge=1)], 3, 3),
    (Optional[Plan], None, None),  # noqa: UP045
    (Plan | None, {"city": "Rome", "days": 2}, Plan("Rome", 2)),
    (Plan | str, "no", "no"),
    (Plan | Decline, {"city": "Rome", "days": 2}, Plan("Rome", 2)),
    (Decline | Plan, {"city": "Rome", "days": 2}, Plan("Rome", 2)),
    (Plan | Decline, {"reason": "far"}, Decline("far")),
    (Plan | Decline, {}, Decline()),
    (Plan | Route | Fare | None, {"euros": 9}, {"euros": 9}),
    (Plan | Route | Fare | None, {"stops": ["Bern"]}, Route(["Bern"])),
    (Tagged | Other, {"type": "Other", "x": 1}, Other(1)),
    (Hotel | int, {"name": "Sole"}, Hotel(name="Sole")),
]
outputs = each_row(
    "kind, data, value", OUTPUTS, ids=[str(row[0]).rpartition(".")[2] for row in OUTPUTS]
)


def schema_of(form: Structured[Any]) -> str:
    assert isinstance(form.output, OutputSchema)
    return form.output.schema


def reply_of(part: Text | ToolCall) -> Reply:
    message = Message(role="assistant", parts=(part,))
    return Reply(id="r", model="m", message=message, stop_reason="end")


@outputs
def test_a_value_is_wrapped_and_unwrapped(kind: Any, data: Any, value: Any) -> None:
    form = output_of(kind)
    schema = json.loads(schema_of(form))
    assert schema["type"] == "object"
    assert schema["required"] == ["value"]
    text = json.dumps({"value": data})
    assert form.parse(text) == value
    assert type(form.parse(text)) is type(value)
    assert form.parse_reply(reply_of(ToolCall("c", form.name, text))) == value
    with pytest.raises(errors.Parse):
        form.parse(json.dumps(data))
    with pytest.raises(errors.Parse):
        form.parse("{}")


def test_times_have_a_format() -> None:
    """The model has to know it; msgspec names it only where a time zone is required."""
    schema = json.loads(schema_of(output_of(Trip)))
    train, walk = (schema["$defs"][name]["properties"] for name in ("Train", "Walk"))
    assert train["leaves"] == {"type": "string", "format": "date-time"}
    assert walk["begins"] == {"type": "string", "format": "time", "description": "in the morning"}
    assert {"type": "string", "format": "date-time"} in schema["properties"]["way"]["anyOf"]
    pair = schema["properties"]["stops"]["additionalProperties"]["items"]["items"]
    assert {"type": "string", "format": "time"} in pair["anyOf"]
    assert "format" not in schema["properties"]["naive"]


def test_emulator_answers_with_times(emu: Emulator) -> None:
    async def ask() -> None:
        async with connected(emu) as emulated:
            for name in MODELS:
                leave = emulated.client.complete("When?", name, output=datetime.datetime)
                assert isinstance((await leave).parsed, datetime.datetime)

    asyncio.run(ask())


def test_objects_are_not_wrapped() -> None:
    for kind in (Plan, Route, Fare, Hotel):
        assert "value" not in json.loads(schema_of(output_of(kind)))["properties"]


def test_an_error_in_a_wrapped_value_has_its_path() -> None:
    with pytest.raises(errors.Parse, match=r"\$\.value\[0\]"):
        output_of(list[Plan]).parse('{"value": [{"city": 7, "days": 1}]}')
    with pytest.raises(errors.Parse, match=r"\$\.value"):
        output_of(Plan | Route).parse('{"value": {"city": 7}}')


@each_row(
    "source, named",
    [
        (Plan("Rome", 2), "a value of type Plan"),
        (7, "a value of type int"),
        ("Plan", "a value of type str"),
        (object, "the class object"),
        (..., "a value of type ellipsis"),
        ([Plan], "a value of type list"),
    ],
    ids=repr,
)
def test_what_is_no_type_is_rejected(source: Any, named: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=f"output: cannot derive a schema from {named}"):
        output_of(source)


def test_a_union_of_a_pydantic_model_and_a_struct_is_rejected() -> None:
    with pytest.raises(errors.InvalidRequest, match=r"^output: has no JSON form: .*Tagged"):
        output_of(Hotel | Tagged)


def test_a_union_without_tags_inside_a_list_is_rejected() -> None:
    with pytest.raises(errors.InvalidRequest, match=r"output: has no JSON form: .*tagged"):
        output_of(list[Plan | Decline])


EMULATED = [list[Plan], int, bool, str, Colour, Literal["yes", "no"], Plan | None, Plan | Decline]
EMULATED += [dict[str, int], tuple[int, ...], list[Hotel], Tagged | Other]


@pytest.mark.parametrize("wire", WIRES)
def test_every_wire_carries_wrapped_output(emu: Emulator, wire: str) -> None:
    async def main() -> None:
        async with connected(emu) as emulated:
            client = emulated.client
            for kind in EMULATED:
                form = output_of(kind)
                call = await client.complete("Answer.", wire, output=kind)
                turn = await client.session(wire).send("Answer.", output=kind)
                for answered in (call, turn):
                    assert form.parse(answered.text) == answered.parsed
                    assert "value" in json.loads(answered.text)
                base = Call(ir=PromptIR.chat([Message.user("Answer.")]), model=MODELS[wire])
                base = msgspec.structs.replace(base, params=Params(max_tokens=500))
                by_tool = await client.complete(form.apply(base, by="tool"), wire)
                form.parse_reply(by_tool.reply)
                streamed = client.send("Answer.", wire, output=kind)
                text = "".join([piece async for piece in streamed.text])
                assert streamed.response is not None
                assert streamed.response.parsed == form.parse(text)

    asyncio.run(main())


async def check_types(client: AsyncClient) -> None:
    chat = client.session()
    assert_type(await client.complete("?"), Response[None])
    assert_type(await client.complete("?", output=Plan), Response[Plan])
    assert_type(await client.complete("?", output=list[Plan]), Response[list[Plan]])
    assert_type(await client.complete("?", output=int), Response[int])
    assert_type(await client.complete("?", output=output_of(Plan)), Response[Plan])
    assert_type(await client.complete("?", output={"type": "object"}), Response[Any])
    assert_type(await client.complete("?", output=Plan | Decline), Response[Any])
    assert_type((await client.send("?", output=Plan)).parsed.days, int)
    assert_type(await chat.send("?"), Response[None])
    assert_type(await chat.send("?", output=Plan, max_tokens=9), Response[Plan])
    assert_type((await chat.run("?", output=Plan)).parsed, Plan | None)
    assert_type(await chat.run("?"), RunResult[None])
    assert_type(await anaphora.acomplete("m", "?", output=Hotel), Response[Hotel])
    assert_type([piece async for piece in chat.send("?").text], list[str])
    task = asyncio.create_task(chat.send("?", output=Plan))
    assert_type(await task, Response[Plan])


def check_sync_types(client: Client) -> None:
    chat = client.session()
    assert_type(client.complete("?"), Response[None])
    assert_type(client.complete("?", output=list[Plan]).parsed, list[Plan])
    assert_type(client.send("?", output=Plan).result(), Response[Plan])
    assert_type(chat.send("?", output=Plan).result().parsed, Plan)
    assert_type(chat.run("?", output=bool).result(), RunResult[bool])
    assert_type(list(chat.send("?").text), list[str])
    assert_type(anaphora.complete("m", "?", output=Plan), Response[Plan])
    assert_type(output_of(list[Plan]), Structured[list[Plan]])


def takes_any(response: Response, result: RunResult) -> None:
    """Without a type argument, any output is taken."""


async def check_bare_types(client: AsyncClient) -> None:
    run = await client.session().run("?", output=Plan)
    takes_any(await client.complete("?", output=Plan), run)
    takes_any(await client.complete("?"), await client.session().run("?"))


# ── JSON without a schema ────────────────────────────────────────────────────────────────────────


def test_json_mode_is_parsed_as_an_object(emu: Emulator) -> None:
    """In a call, a turn and a stream; the next turn of the session has none."""

    async def main() -> None:
        async with connected(emu) as emulated:
            for wire in WIRES:
                if wire == "anthropic":
                    continue
                call = await emulated.client.complete("Two cities, as JSON.", wire, output="json")
                assert isinstance(call.parsed, dict)
                assert "param_left_out" not in [notice.code for notice in call.notices]
                chat = emulated.client.session(wire)
                turn = await chat.send("Two cities, as JSON.", output="json")
                assert isinstance(turn.parsed, dict)
                plain = await chat.send("And a third one?")
                assert plain.parsed is None
                assert not plain.text.startswith("{")
            with pytest.raises(errors.Parse, match="not JSON"):
                await emulated.client.complete("As JSON.", "anthropic", output="json")

    asyncio.run(main())


def test_json_mode_takes_objects_only() -> None:
    form = output_of("json")
    assert form.parse('{"a": [1]}') == {"a": [1]}
    with pytest.raises(errors.Parse, match="expected object"):
        form.parse("[1]")
    call = Call(ir=PromptIR.chat([Message.user("u")]), model="m")
    assert form.apply(call).params.output == "json"
    with pytest.raises(errors.InvalidRequest, match="a tool needs a schema"):
        form.apply(call, by="tool")
