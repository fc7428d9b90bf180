"""Subclasses of JSON's types are sent as the values they hold. Whatever else is given, numpy's numbers
among them, the error is an `AnaphoraError`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from support.emulated_client import settings
from support.tables import each_row

from anaphora import Client, Message, Params, Tool, ToolCall, canonical, emulator, wire
from anaphora.errors import AnaphoraError, InvalidRequest
from anaphora.values.codec import check_object


class Words(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not what it holds"


class Number(int):
    def __int__(self) -> int:
        return -1


OTHERS = [object(), b"5", {1, 2}, np.int64(1), np.float32(0.5), np.float32("nan")]


def test_json_of_subclasses_is_what_they_hold() -> None:
    assert canonical.string(Words("a")) == b'"a"'
    assert canonical.dumps([Words("a"), Number(5)]) == b'["a",5]'
    assert check_object(Words("{}")) == "{}"


@contextmanager
def client_of(running: emulator.Emulator, name: str) -> Iterator[Client]:
    config = {"providers": settings(running.url, [name])}
    with Client.from_config(config, environ={"KEY": "k"}) as client:
        yield client


GIVEN: dict[str, Callable[[Any, str], object]] = {
    "content": lambda client, name: client.complete(Words("Hello?"), name),
    "system": lambda client, name: client.session(name, system=Words("Be brief.")).send("Hi."),
    "state": lambda client, name: client.session(name, state=Words("It is late.")).send("Hi."),
    "messages": lambda client, name: client.session(
        name,
        messages=[
            Message.user(Words("Look.")),
            Message.assistant(ToolCall(Words("c1"), Words("look"), Words("{}"))),
            Message.tool(Words("c1"), Words("Seen.")),
        ],
        tools=[Tool(Words("look"), Words("Looks."), Words('{"type":"object","properties":{}}'))],
    ).send("Hi."),
    "a number": lambda client, name: client.session(name, max_tokens=Number(500)).send("Hi."),
}


@pytest.mark.parametrize("name", wire.WIRES)
@pytest.mark.parametrize("given", GIVEN)
def test_subclasses_are_sent_as_what_they_hold(
    running_emulator: emulator.Emulator, name: str, given: str
) -> None:
    with client_of(running_emulator, name) as client:
        turn: Any = GIVEN[given](client, name)
        response = turn.result() if hasattr(turn, "result") else turn
        assert response.reply.stop_reason in ("end", "length")


@each_row("name", wire.WIRES)
@each_row("value", OTHERS, ids=lambda value: type(value).__name__)
def test_other_types_are_an_error_of_ours(
    running_emulator: emulator.Emulator, name: str, value: Any
) -> None:
    with client_of(running_emulator, name) as client, pytest.raises(AnaphoraError):
        client.session(name, temperature=value).send("Hi.").result()


@each_row("value", OTHERS, ids=lambda value: type(value).__name__)
def test_other_types_in_params_are_an_error_of_ours(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"Params\.temperature: must be a float"):
        Params(max_tokens=9, temperature=value)
