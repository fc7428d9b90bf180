"""Values to JSON and back: exact encoding, strict decoding."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.errors import InvalidJson, Parse
from anaphora.prompt import PromptIR, RenderedContext, Segment
from anaphora.values import (
    Audio,
    Bytes,
    CachePolicy,
    Conversation,
    Document,
    Extras,
    FileId,
    Image,
    Message,
    Notice,
    Opaque,
    OpaqueDelta,
    Part,
    PartEnd,
    PartStart,
    Refusal,
    RefusalDelta,
    Reply,
    ReplyEnd,
    ReplyFail,
    ReplyStart,
    Source,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    Tool,
    ToolArgumentsDelta,
    ToolCall,
    ToolResult,
    Url,
    Usage,
    UsageUpdate,
    from_json,
    to_json,
)

text = st.text(max_size=20)
maybe = st.none() | text
extras: st.SearchStrategy[Extras | None] = st.none() | st.dictionaries(
    st.sampled_from(["anthropic", "openai"]), st.sampled_from(["{}", '{"a": 1}'])
)
sources: st.SearchStrategy[Source] = (
    st.builds(Bytes, st.binary(max_size=20), text)
    | st.builds(Url, text, maybe)
    | st.builds(FileId, text, text, maybe)
)
simple = (
    st.builds(Text, text, extras)
    | st.builds(Image, sources, maybe, extras)
    | st.builds(Document, sources, maybe, maybe, extras)
    | st.builds(Audio, sources, extras)
    | st.builds(Opaque, text, text, text)
)
parts: st.SearchStrategy[Part] = (
    simple
    | st.builds(ToolCall, text, text, text, extras)
    | st.builds(Thinking, text, maybe, maybe, maybe, extras)
    | st.builds(Refusal, text, extras)
    | st.builds(
        ToolResult,
        text,
        text | st.lists(simple, max_size=3).map(tuple),
        st.booleans(),
        maybe,
        extras,
    )
)
messages = st.builds(
    Message,
    id=text,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    parts=st.lists(parts, max_size=4).map(tuple),
)
usages = st.builds(
    Usage,
    uncached=st.none() | st.integers(0, 10**9),
    read=st.none() | st.integers(0, 10**9),
    written=st.none()
    | st.dictionaries(st.sampled_from(["5m", "1h", "unsplit"]), st.integers(0, 9)),
    output=st.none() | st.integers(0, 10**9),
    reasoning=st.none() | st.integers(0, 10**9),
    raw=maybe,
)
replies = st.builds(
    Reply,
    id=text,
    model=text,
    message=messages,
    stop_reason=st.sampled_from(["end", "length", "tool_calls", "other"]),
    stop_reason_raw=maybe,
    stop_sequence=maybe,
    usage=usages,
    notices=st.lists(st.builds(Notice, text, text, text)).map(tuple),
    extras=extras,
)
tools = st.builds(
    Tool, text, text, text, st.none() | st.booleans(), st.sampled_from(CachePolicy), extras
)
events = (
    st.builds(ReplyStart, text, text)
    | st.builds(PartStart, st.integers(), text, maybe, maybe)
    | st.builds(TextDelta, st.integers(), text)
    | st.builds(ThinkingDelta, st.integers(), text)
    | st.builds(RefusalDelta, st.integers(), text)
    | st.builds(ToolArgumentsDelta, st.integers(), text, maybe, maybe)
    | st.builds(OpaqueDelta, st.integers(), text)
    | st.builds(PartEnd, st.integers(), parts)
    | st.builds(UsageUpdate, usages)
    | st.builds(ReplyEnd, replies)
    | st.builds(ReplyFail, text, text, st.none() | text, st.none() | replies)
)


def again(value: Any) -> Any:
    """The value after a round trip through a file; its JSON is the same the second time."""
    data = to_json(value)
    json.loads(data)
    back = from_json(data, type(value))
    assert to_json(back) == data
    return back


@given(parts)
def test_every_part_survives(part: Part) -> None:
    assert again(part) == part


@given(messages)
def test_every_message_survives(message: Message) -> None:
    assert again(message) == message


@given(st.lists(messages, max_size=5))
def test_every_conversation_survives(items: list[Message]) -> None:
    conversation = Conversation(items)
    assert again(conversation) == conversation


@given(st.one_of(usages, tools, replies, events))
def test_everything_else_survives(value: Any) -> None:
    assert again(value) == value


def test_json_is_small() -> None:
    """Defaults are left out; fields are named and parts are tagged."""
    assert to_json(Message.user("hi")) == (b'{"role":"user","parts":[{"type":"text","text":"hi"}]}')
    assert to_json(ToolCall("c", "f")) == b'{"type":"tool_call","id":"c","name":"f"}'
    assert to_json(Usage()) == b"{}"


def test_conversation_is_encoded_as_its_messages() -> None:
    conversation = Conversation([Message.user("a")])
    assert to_json(conversation) == to_json(conversation[:])


def test_numbered_messages_keep_their_numbers() -> None:
    view = Conversation([Message.user("a"), Message.user("b")]).prefix(1)
    assert [m.id for m in from_json(to_json(view), Conversation)] == ["m0"]


@each_row(
    "data, kind, named",
    [
        ('{"role":"user","parts":[],"mood":"good"}', Message, "mood"),
        ('{"role":"user","parts":[{"type":"text","text":"a","bold":1}]}', Message, "bold"),
        ('{"role":"user","parts":[{"type":"hologram"}]}', Message, "hologram"),
        ('{"role":"user","parts":[{"text":"a"}]}', Message, "type"),
        ('{"role":"critic","parts":[]}', Message, "critic"),
        ('{"parts":[]}', Message, "role"),
        ('{"role":"user","parts":[{"type":"text","text":7}]}', Message, "$.parts[0].text"),
        ('[{"role":"user","parts":[],"mood":"good"}]', Conversation, "mood"),
        ('[{"role":"user","parts":[{"type":"text","text":7}]}]', Conversation, "parts[0].text"),
        ("{}", Conversation, "Conversation"),
        ('{"input":3}', Usage, "input"),
        ("{", Message, "Message"),
        ("", Message, "Message"),
    ],
)
def test_unknown_field_is_named(data: str, kind: type, named: str) -> None:
    for form in (data, data.encode()):
        with pytest.raises(Parse) as caught:
            from_json(form, kind)
        assert named in str(caught.value)


def test_error_path_names_the_innermost_field() -> None:
    """A conversation inside something else: the path starts at the outside."""
    bad = '[{"role":"user","parts":[]},{"role":"user","parts":[{"type":"text","text":7}]}]'
    for data, kind in (
        (f'{{"turns":{bad},"state_turn":null}}', RenderedContext),
        (f'{{"role":"conversation","messages":{bad}}}', Segment),
        (f'{{"segments":[{{"role":"conversation","messages":{bad}}}]}}', PromptIR),
    ):
        with pytest.raises(Parse) as caught:
            from_json(data, kind)
        assert "[1].parts[0].text" in str(caught.value)
        assert ("turns" if kind is RenderedContext else "messages") in str(caught.value)


def test_invalid_utf8_is_a_parse_error() -> None:
    with pytest.raises(Parse):
        from_json(b'{"role":"user","parts":[{"type":"text","text":"\xff"}]}', Message)


def test_foreign_types_are_rejected() -> None:
    with pytest.raises(InvalidJson, match="object is not one of"):
        to_json([object()])
