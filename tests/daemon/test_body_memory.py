"""A body that begins like an earlier one is read as if it were the first."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from support.growing_bodies import FIELDS, PATHS, Body, attempt, conversations

from anaphora import wire
from anaphora.daemon.endpoints import body as body_module
from anaphora.daemon.endpoints.body import AppBodies, CallBody, read_whole
from anaphora.errors import TooLarge
from anaphora.rendered import Mark, Plan
from anaphora.wire.body_memory import BodyMemory
from anaphora.wire.cutting import cut
from anaphora.wire.elements import DecodedBody
from anaphora.wire.splicing import splice


def seen(name: str, body: CallBody) -> Any:
    """Everything that is known of a body, with all of its messages."""
    listed = FIELDS.get(name, ("messages", ""))[0]
    value, elements = dict(body.value), body.elements
    if elements is not None:
        left_out = [msgspec.json.decode(raw) for raw in elements.raws[: body.known]]
        value[listed] = left_out + value[listed]
    members = {key: bytes(raw) for key, raw in body.members.items()}
    raws = None if elements is None else list(map(bytes, elements.raws))
    begin = None if elements is None else elements.begin
    return body.data, value, members, list(members), raws, begin


def used(name: str, body: CallBody, decoded: DecodedBody) -> Any:
    """What the daemon makes of it."""
    path = PATHS[name]
    rendered, problem = attempt(lambda: cut(wire.get(name), body.data, path))
    made: list[Any] = [problem]
    if rendered is not None:
        made += [list(rendered), rendered.marks, rendered.data()]
        places = [chunk.index for chunk in rendered if chunk.splice is not None]
        plan = Plan(marks=tuple(Mark(place, next(iter(rendered.markers))) for place in places))
        made.append(attempt(lambda: splice(body.data, plan, rendered, decoded=decoded).body))
    return made


@pytest.mark.parametrize("name", PATHS)
@settings(max_examples=40)
@given(conversation=conversations())
@pytest.mark.long
def test_body_is_read_as_if_it_were_the_first(name: str, conversation: list[Body]) -> None:
    memory = AppBodies(BodyMemory(grids=(64, 512)))
    for each in conversation:
        data = each.write(name)
        whole, problem = attempt(lambda: read_whole(name, data))  # noqa: B023
        body, refused = attempt(lambda: memory.read("app", name, data))  # noqa: B023
        assert refused == problem
        if whole is None or body is None:
            continue
        assert seen(name, body) == seen(name, whole)
        expected = used(name, whole, DecodedBody(whole.members))
        assert used(name, body, DecodedBody(body.members, body.elements)) == expected
        memory.keep(body, body.facts())


def chat(*texts: str, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": text * 1000} for text in texts]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def read(memory: AppBodies, data: bytes, app: str = "app") -> int:
    """How many messages were known."""
    body = memory.read(app, "openai_chat", data)
    memory.keep(body, body.facts())
    return body.known


def test_messages_of_the_body_before_are_known() -> None:
    memory = AppBodies()
    assert read(memory, chat("one", "two")) == 0
    assert read(memory, chat("one", "two", "three", "four")) == 2
    assert read(memory, chat("one", "two", "three", "four", n=2)) == 4, "another field changed"
    assert read(memory, chat("one", "two", "three", "five", "six")) == 3
    assert read(memory, chat("one", "two"), "another app") == 0


def test_known_messages_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like those that are new: the number of messages and blocks of a request is limited."""
    monkeypatch.setattr(body_module, "MOST_ELEMENTS", 6)
    memory, blocks = AppBodies(), [{"type": "text", "text": "?" * 5000}] * 2
    messages = [{"role": "user", "content": blocks}, {"role": "user", "content": "?"}]
    body: dict[str, Any] = {"model": "m", "messages": messages}
    assert read(memory, json.dumps(body).encode()) == 0
    messages.append({"role": "user", "content": "?"})
    assert read(memory, json.dumps(body).encode()) == 2
    messages += [{"role": "user", "content": "?"}] * 2
    with pytest.raises(TooLarge, match="more than 6 messages"):
        read(memory, json.dumps(body).encode())


def test_long_names_count_in_the_memory_that_bodies_take() -> None:
    memory = BodyMemory[Any](most_bytes=1_000_000)
    bodies = AppBodies(memory)
    for number in range(4):
        fields = {f"f{number}" + "u" * 400_000: 1}
        data = json.dumps({"model": "m", **fields, **json.loads(chat("one", "two"))}).encode()
        body = bodies.read("app", "openai_chat", data)
        bodies.keep(body, body.facts())
    assert len(memory) == 2
