"""A body that begins like an earlier one is read as if it were the first."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphora import wire
from anaphora.daemon.endpoints import body as body_module
from anaphora.daemon.endpoints.body_memory import BodyMemory, CallBody, read_whole
from anaphora.daemon.facts import read_facts
from anaphora.errors import AnaphoraError, TooLarge
from anaphora.rendered import Mark, Plan
from anaphora.wire.elements import DecodedBody
from anaphora.wire.splicing import splice

T = TypeVar("T")

PATHS = {
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "gemini": "/v1beta/models/g:generateContent",
    "ollama": "/api/chat",
}
#: The list of messages, and the field of a message that holds what is said.
FIELDS = {"openai_responses": ("input", "content"), "gemini": ("contents", "parts")}
TEXTS = ("one", "two \\u00e9 \\\\ \\" + '"', "", "drei é " * 20)


def message(name: str, role: str, said: str) -> bytes:
    """As bytes of its own spelling: with escapes, white space and a number."""
    text = b'"' + said.encode() + b'"'
    if name == "gemini":
        role = role.replace("assistant", "model")
        return b'{"role": "%s","parts":[{"text" :%s}]}' % (role.encode(), text)
    if said == "drei é " * 20 and name in ("anthropic", "openai_chat") and role == "user":
        source = b'{"type":"file","file_id":"file_1"}'
        kind = b'"type":"document","source":' if name == "anthropic" else b'"type":"file","file":'
        return b'{"role":"user","content":[{%s%s}, {"type":"text","text":%s}]}' % (
            kind,
            source,
            text,
        )
    return b'{"role": "%s", "content":%s}' % (role.encode(), text)


says = st.tuples(st.sampled_from(("user", "assistant")), st.sampled_from(TEXTS))


class Body(msgspec.Struct, frozen=True):
    """What a body is written from."""

    says: tuple[tuple[str, str], ...]
    between: bytes = b", "
    head: bytes = b'"temperature": 1.0, '
    tail: bytes = b""
    junk: bytes = b""
    at: int = 0

    def write(self, name: str) -> bytes:
        listed = FIELDS.get(name, ("messages", ""))[0].encode()
        messages = self.between.join(message(name, *each) for each in self.says)
        body = b'{"model":"m","max_tokens":9,%s"%s": [%s ]%s} ' % (
            self.head,
            listed,
            messages,
            self.tail,
        )
        at = self.at % len(body)
        return body[:at] + self.junk + body[at:]


said = st.lists(says, min_size=1, max_size=4).map(tuple)
edits: dict[str, st.SearchStrategy[Any]] = {
    "between": st.sampled_from((b", ", b",", b",\n  ")),
    "head": st.sampled_from((b'"temperature": 1.0, ', b'"temperature": 1.50e0,', b"")),
    "tail": st.sampled_from(
        (b"", b',"top_p":1', b',"top_p":1,"top_p":2', b',"messages":[]', b',"input":3', b",")
    ),
    "junk": st.sampled_from((b",", b" ", b"]", b'"', b"1", b'{"a":1,"a":1},', b"\xff")),
    "says": said,
}


@st.composite
def conversations(draw: st.DrawFn) -> list[Body]:
    """Each body goes on from the one before, mostly; some edit it."""
    found = [Body(draw(said))]
    for _ in range(draw(st.integers(1, 5))):
        last = found[-1]
        changes: dict[str, Any] = {"says": last.says + draw(said), "tail": b"", "junk": b""}
        if edited := draw(st.sampled_from((None, None, *edits))):
            changes[edited] = draw(edits[edited])
            changes["at"] = draw(st.integers(0, 2_000))
        if edited == "says":
            changes["says"] = last.says[: changes["at"] % (len(last.says) + 1)] + changes["says"]
        found.append(msgspec.structs.replace(last, **changes))
    return found


def seen(name: str, body: CallBody) -> Any:
    """Everything that is known of a body, with all of its messages."""
    listed = FIELDS.get(name, ("messages", ""))[0]
    value, elements = dict(body.value), body.elements
    if elements is not None:
        left_out = [msgspec.json.decode(raw) for raw in elements.raws[: body.known]]
        value[listed] = left_out + value[listed]
    members = {key: bytes(raw) for key, raw in body.members.items()}
    raws = None if elements is None else list(map(bytes, elements.raws))
    return body.data, value, members, list(members), raws, body.begin


def used(name: str, body: CallBody, decoded: DecodedBody) -> Any:
    """What the daemon makes of it."""
    path = PATHS[name]
    rendered, problem = attempt(lambda: wire.get(name).split(decoded, (), path))
    made: list[Any] = [
        attempt(lambda: sorted((one.kind, one.id, one.param) for one in body.references())),
        attempt(lambda: read_facts(name, body.members, path, (), decoded.elements)),
        problem,
    ]
    if rendered is not None:
        made += [list(rendered), rendered.marks, rendered.data()]
        places = [chunk.index for chunk in rendered if chunk.splice is not None]
        plan = Plan(marks=tuple(Mark(place, next(iter(rendered.markers))) for place in places))
        made.append(attempt(lambda: splice(body.data, plan, rendered, decoded=decoded).body))
    return made


def attempt(make: Callable[[], T]) -> tuple[T | None, Any]:
    """What is made, or why it is not."""
    try:
        return make(), None
    except AnaphoraError as problem:
        return None, (type(problem), str(problem), getattr(problem, "param", None))


@pytest.mark.parametrize("name", PATHS)
@settings(max_examples=40)
@given(conversation=conversations())
def test_body_is_read_as_if_it_were_the_first(name: str, conversation: list[Body]) -> None:
    memory = BodyMemory(grids=(64, 512))
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
        referred, refused = expected[0]
        if refused is None:
            memory.keep("app", name, body, refers=bool(referred))


def chat(*texts: str, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": text * 1000} for text in texts]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def read(memory: BodyMemory, data: bytes, app: str = "app") -> int:
    """How many messages were known."""
    body = memory.read(app, "openai_chat", data)
    memory.keep(app, "openai_chat", body, refers=False)
    return body.known


def test_messages_of_the_body_before_are_known() -> None:
    memory = BodyMemory()
    assert read(memory, chat("one", "two")) == 0
    assert read(memory, chat("one", "two", "three", "four")) == 2
    assert read(memory, chat("one", "two", "three", "four", n=2)) == 4, "another field changed"
    assert read(memory, chat("one", "two", "three", "five", "six")) == 3
    assert read(memory, chat("one", "two"), "another app") == 0
    memory.clear()
    assert read(memory, chat("one", "two", "three")) == 0


def test_known_messages_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like those that are new: the number of messages and blocks of a request is limited."""
    monkeypatch.setattr(body_module, "MOST_ELEMENTS", 6)
    memory, blocks = BodyMemory(), [{"type": "text", "text": "?" * 5000}] * 2
    messages = [{"role": "user", "content": blocks}, {"role": "user", "content": "?"}]
    body: dict[str, Any] = {"model": "m", "messages": messages}
    assert read(memory, json.dumps(body).encode()) == 0
    messages.append({"role": "user", "content": "?"})
    assert read(memory, json.dumps(body).encode()) == 2
    messages += [{"role": "user", "content": "?"}] * 2
    with pytest.raises(TooLarge, match="more than 6 messages"):
        read(memory, json.dumps(body).encode())


def test_kept_bodies_are_bounded() -> None:
    memory = BodyMemory(most_bytes=40_000)
    for number in range(40):
        read(memory, chat(f"{number:02}a", "two", "three"))
        assert memory.size <= 40_000
    assert len(memory) < 6
    assert read(memory, chat("39a", "two", "three", "four")) == 3
    assert read(memory, chat("00a", "two", "three", "four")) == 0


def test_very_long_body_takes_no_place() -> None:
    memory = BodyMemory(most_bytes=40_000)
    read(memory, chat("one", "two"))
    read(memory, chat("other" * 2, "two" * 3, "three" * 3))
    assert len(memory) == 1
    assert read(memory, chat("one", "two", "three")) == 2


def test_grown_body_replaces_the_one_before() -> None:
    memory, texts = BodyMemory(), ["one"]
    for number in range(20):
        texts.append(f"{number:03}")
        read(memory, chat(*texts))
    assert len(memory) == 1
