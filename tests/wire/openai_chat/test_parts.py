"""Content parts: the value on one side, the exact bytes on the other, in both directions."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from support.tables import each_row

from anaphora.catalog import rules
from anaphora.errors import InvalidJson, InvalidRequest
from anaphora.rendered import Kind
from anaphora.values import (
    Audio,
    Bytes,
    Document,
    FileId,
    Image,
    Message,
    Notice,
    Opaque,
    Part,
    Refusal,
    SegmentRole,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Url,
    from_json,
    to_json,
)
from anaphora.wire.openai import SystemRoles
from anaphora.wire.openai_chat.fields import TABLE
from anaphora.wire.openai_chat.message_reader import PART, MessageReader
from anaphora.wire.openai_chat.messages import assistant_message, encode_part
from anaphora.wire.openai_chat.params import Traits
from anaphora.wire.openai_chat.parse import parse
from anaphora.wire.reading import request_error

PNG = Bytes(b"\x89PNG", "image/png")
PDF = Bytes(b"%PDF", "application/pdf")
TRAITS = Traits(
    max_tokens_field="max_completion_tokens",
    system_roles=SystemRoles(),
    breakpoints=True,
    options=True,
    markers={},
    nearest={},
    reasoning_field=None,
    host="openai",
    reasoning_needed=False,
    only_strings=False,
)


def say(part: Part, role: str = "user") -> tuple[bytes | None, list[Notice]]:
    notices: list[Notice] = []
    return encode_part(part, notices, role)[2], notices


def read(data: bytes) -> Part:
    decoded = PART.decode(msgspec.Raw(data), "$", request_error)
    return MessageReader("$", request_error).part(*decoded, "$", (0,))


ENCODED: list[tuple[Part, bytes]] = [
    # text
    (Text("hello"), b'{"type":"text","text":"hello"}'),
    (Text(""), b'{"type":"text","text":""}'),
    (Text('"\\\n\t\u0001'), b'{"type":"text","text":"\\"\\\\\\n\\t\\u0001"}'),
    (Text("é 日 🙂"), '{"type":"text","text":"é 日 🙂"}'.encode()),
    (
        Text("t", extras={"openai_chat": '{"cache_control":{"type":"ephemeral"}}'}),
        b'{"type":"text","text":"t","cache_control":{"type":"ephemeral"}}',
    ),
    # image
    (Image(PNG), b'{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw=="}}'),
    (
        Image(Url("https://x.test/a.png"), "high"),
        b'{"type":"image_url","image_url":{"url":"https://x.test/a.png","detail":"high"}}',
    ),
    (
        # A data URL that would not come out the same is kept as it is.
        Image(Url("data:image/png,abc")),
        b'{"type":"image_url","image_url":{"url":"data:image/png,abc"}}',
    ),
    # audio
    (
        Audio(Bytes(b"RIFF", "audio/wav")),
        b'{"type":"input_audio","input_audio":{"data":"UklGRg==","format":"wav"}}',
    ),
    (
        Audio(Bytes(b"ID3", "audio/mpeg")),
        b'{"type":"input_audio","input_audio":{"data":"SUQz","format":"mp3"}}',
    ),
    # document
    (
        Document(PDF, "a.pdf"),
        b'{"type":"file","file":{"file_data":"data:application/pdf;base64,JVBERg==","filename":"a.pdf"}}',
    ),
    (Document(FileId("openai", "file-1")), b'{"type":"file","file":{"file_id":"file-1"}}'),
    (
        Document(FileId("openai", "file-1"), "a.pdf"),
        b'{"type":"file","file":{"file_id":"file-1","filename":"a.pdf"}}',
    ),
    # what only some host knows
    (
        Opaque("openai_chat", "video_url", '{"type":"video_url","video_url":{"url":"u"}}'),
        b'{"type":"video_url","video_url":{"url":"u"}}',
    ),
    (
        # A known part with something in it that has no name here.
        Opaque("openai_chat", "image_url", '{"type":"image_url","image_url":{"url":"u","tile":1}}'),
        b'{"type":"image_url","image_url":{"url":"u","tile":1}}',
    ),
]


@each_row("part, data", ENCODED)
def test_part_is_encoded_as_these_bytes(part: Part, data: bytes) -> None:
    assert say(part) == (data, [])
    json.loads(data)


@each_row("part, data", ENCODED)
def test_these_bytes_decode_to_the_part(part: Part, data: bytes) -> None:
    assert read(data) == part


@each_row("part, data", ENCODED)
def test_the_bytes_survive_storage(part: Part, data: bytes) -> None:
    """Law 3: a part read back from storage is encoded as the same bytes."""
    assert say(from_json(to_json(part), type(part)))[0] == data


@each_row("part, data", ENCODED)
def test_a_breakpoint_fits_before_the_closing_brace(part: Part, data: bytes) -> None:
    _, markable, _ = encode_part(part, [], "user")
    if not markable:
        assert part == Text("") or isinstance(part, Opaque)
        return
    marker = b',"prompt_cache_breakpoint":{"mode":"explicit"}'
    marked = data[:-1] + marker + data[-1:]
    reader = MessageReader("$", request_error)
    again = reader.part(*PART.decode(msgspec.Raw(marked), "$", request_error), "$", (3,))
    assert (again, reader.marks) == (part, [((3,), "30m", None)])


def test_breakpoints_are_added_to_those_before() -> None:
    """A copy for each would take minutes where a message has 100,000 of them."""
    data = b'{"type":"text","text":"a","prompt_cache_breakpoint":{"mode":"explicit"}}'
    reader = MessageReader("$", request_error)
    reader.part(*PART.decode(msgspec.Raw(data), "$", request_error), "$", (0,))
    first = reader.marks
    reader.part(*PART.decode(msgspec.Raw(data), "$", request_error), "$", (1,))
    assert reader.marks is first
    assert [position for position, _, _ in first] == [(0,), (1,)]


#: What Chat has no way to say in a user's message, and the word it gets for that.
UNSUPPORTED: list[tuple[Part, str]] = [
    (Image(FileId("openai", "file-1")), "image_source"),
    (Document(Url("https://x.test/a.pdf")), "document_url"),
    (Document(FileId("anthropic", "file_1")), "foreign_file"),
    (Audio(Url("u")), "audio_source"),
    (Audio(PNG), "audio_source"),
    (Thinking("hm"), "thinking_left_out"),
    (ToolCall("c", "f"), "part_left_out"),
    (Refusal("no"), "part_left_out"),
    (Opaque("anthropic", "server_tool_use", "{}"), "foreign_block"),
    (Opaque("openai_chat", "tool_call", "{}"), "part_left_out"),
]


@each_row("part, code", UNSUPPORTED)
def test_unsupported_part_is_left_out_with_a_notice(part: Part, code: str) -> None:
    data, notices = say(part)
    assert data is None
    assert [notice.code for notice in notices] == [code]


@each_row("role", ["system", "tool"])
@each_row("part", [Image(PNG), Audio(Bytes(b"", "audio/wav")), Document(PDF)])
def test_only_user_messages_hold_more_than_text(part: Part, role: str) -> None:
    data, notices = say(part, role)
    assert (data, [notice.code for notice in notices]) == (None, ["part_left_out"])


#: What is encoded otherwise than asked: the bytes, and the word for it.
OTHERWISE: list[tuple[Part, bytes, list[str]]] = [
    (
        Document(PDF, None, "from the archive"),
        b'{"type":"file","file":{"file_data":"data:application/pdf;base64,JVBERg==","filename":"document.pdf"}}',
        ["context_unsupported"],
    ),
    (
        Document(Bytes(b"a", "text/csv"), title="a.csv"),
        b'{"type":"text","text":"a.csv\\n\\na"}',
        ["document_as_text"],
    ),
    (
        Document(Bytes(b"\xff", "text/csv")),
        b'{"type":"file","file":{"file_data":"data:text/csv;base64,/w==","filename":"document"}}',
        [],
    ),
    (
        Audio(Bytes(b"a", "audio/flac")),
        b'{"type":"input_audio","input_audio":{"data":"YQ==","format":"flac"}}',
        ["audio_format"],
    ),
    (Text("t", extras={"anthropic": '{"citations":[]}'}), b'{"type":"text","text":"t"}', []),
]


@pytest.mark.parametrize("part, data, codes", OTHERWISE)
def test_changed_parts_give_notices(part: Part, data: bytes, codes: list[str]) -> None:
    encoded, notices = say(part)
    assert encoded == data
    assert [notice.code for notice in notices] == codes


# ── The assistant's message: one chunk, both ways ────────────────────────────────────────────────

REASONED = {"openai_chat": '{"field":"reasoning_content"}'}
ASSISTANT: list[tuple[tuple[Part, ...], bytes]] = [
    ((Text("a"),), b'{"role":"assistant","content":"a"}'),
    (
        (Text("a"), Refusal("no")),
        b'{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"refusal","refusal":"no"}]}',
    ),
    (
        (ToolCall("c", "f", '{ "b":1}'), ToolCall("d", "g", "{cut")),
        b'{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":'
        b'{"name":"f","arguments":"{ \\"b\\":1}"}},{"id":"d","type":"function","function":'
        b'{"name":"g","arguments":"{cut"}}]}',
    ),
    (
        (
            ToolCall(
                "c",
                "f",
                "",
                {"openai_chat": '{"index":0,"extra_content":{"a":1},"function":{"x":2}}'},
            ),
        ),
        b'{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":'
        b'{"name":"f","arguments":"","x":2},"index":0,"extra_content":{"a":1}}]}',
    ),
    (
        (Opaque("openai_chat", "tool_call", '{"id":"c","type":"custom","custom":{"name":"f"}}'),),
        b'{"role":"assistant","tool_calls":[{"id":"c","type":"custom","custom":{"name":"f"}}]}',
    ),
    (
        (Thinking("hm", provider="openai_chat", extras=REASONED), Text("a")),
        b'{"role":"assistant","reasoning_content":"hm","content":"a"}',
    ),
    (
        (
            Thinking("hm", provider="openai_chat", extras={"openai_chat": '{"field":"content"}'}),
            Text("a"),
        ),
        b'{"role":"assistant","content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},'
        b'{"type":"text","text":"a"}]}',
    ),
    (
        (Text("a"), Opaque("openai_chat", "message", '{"name":"n","prefix":true}')),
        b'{"role":"assistant","name":"n","prefix":true,"content":"a"}',
    ),
    (
        (Opaque("openai_chat", "message", '{"audio":{"id":"a1"}}'),),
        b'{"role":"assistant","audio":{"id":"a1"}}',
    ),
]


@each_row("encoded, data", ASSISTANT)
def test_assistant_message_is_encoded_as_these_bytes(
    encoded: tuple[Part, ...], data: bytes
) -> None:
    notices: list[Notice] = []
    message = Message(role="assistant", parts=encoded)
    assert assistant_message(message, TRAITS, notices) == data
    assert notices == []
    json.loads(data)


@each_row("encoded, data", ASSISTANT)
def test_these_bytes_decode_to_the_assistant_parts(encoded: tuple[Part, ...], data: bytes) -> None:
    found = parse(b'{"model":"m","messages":[%b]}' % data).ir.run(SegmentRole.CONVERSATION)[0].parts
    calls = {part.id: part for part in found if isinstance(part, ToolCall)}
    for part, expected in zip(found, encoded, strict=True):
        if isinstance(expected, ToolCall) and expected.extras is not None:
            extras = calls[expected.id].extras
            assert extras is not None
            assert json.loads(extras["openai_chat"]) == json.loads(expected.extras["openai_chat"])
        else:
            assert part == expected


@each_row(
    "encoded, codes",
    [
        ((Thinking("hm", "sig", provider="anthropic"),), ["thinking_left_out"]),
        ((Thinking("hm", provider="openai_chat"),), ["thinking_left_out"]),
        ((Image(PNG),), ["part_left_out"]),
        ((ToolResult("c"),), ["part_left_out"]),
        ((Opaque("gemini", "x", "{}"),), ["foreign_block"]),
    ],
)
def test_unsupported_assistant_parts_give_notices(
    encoded: tuple[Part, ...], codes: list[str]
) -> None:
    notices: list[Notice] = []
    message = Message(role="assistant", parts=encoded)
    assert assistant_message(message, TRAITS, notices) is None
    assert [notice.code for notice in notices] == codes


def test_content_after_a_call_moves_before_it_with_a_notice() -> None:
    notices: list[Notice] = []
    encoded = assistant_message(Message.assistant(ToolCall("c", "f"), "a"), TRAITS, notices)
    assert encoded is not None
    assert encoded.index(b'"content"') < encoded.index(b'"tool_calls"')
    assert [(notice.code, notice.path) for notice in notices] == [("parts_reordered", "parts[1]")]


# ── Broken ───────────────────────────────────────────────────────────────────────────────────────

BROKEN: list[tuple[Part, str]] = [
    (Opaque("openai_chat", "x", "[]"), "json"),
    (Text("t", extras={"openai_chat": "[]"}), "extras.openai_chat"),
    (Text("\ud800"), ""),
]


@pytest.mark.parametrize("part, path", BROKEN)
def test_a_broken_part_names_its_field(part: Part, path: str) -> None:
    with pytest.raises(InvalidJson) as caught:
        say(part)
    assert caught.value.path == path


def test_arguments_with_a_lone_surrogate_name_their_field() -> None:
    with pytest.raises(InvalidJson) as caught:
        assistant_message(Message.assistant(ToolCall("c", "f", "\ud800")), TRAITS, [])
    assert caught.value.path == "parts[0].arguments"


def test_value_that_is_no_part_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="Url is not a part"):
        encode_part(Url("u"), [], "user")  # type: ignore[arg-type]


@each_row(
    "data, path",
    [
        (b"[]", "$"),
        (b'{"text":"a"}', "$.type"),
        (b'{"type":"text"}', "$.text"),
        (b'{"type":"text","text":1}', "$.text"),
        (b'{"type":"text","text":"a","prompt_cache_breakpoint":{"mode":"auto"}}', "$.prompt_cache"),
        (
            b'{"type":"text","text":"a","prompt_cache_breakpoint":{"mode":"explicit","ttl":"5m"}}',
            "$.prompt_cache_breakpoint.ttl",
        ),
    ],
)
def test_a_malformed_part_names_the_field(data: bytes, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(data)
    assert caught.value.path.startswith(path)


def test_markable_parts_are_the_rules_tables() -> None:
    """The wire and the catalog agree on the parts that may carry a breakpoint."""
    markable = set(rules("openai", "gpt-5.6").markable.value)
    assert markable >= {kind for kind, row in TABLE.blocks.items() if row.markable}
    kinds: dict[Any, Kind] = {type(p): encode_part(p, [], "user")[0] for p, _ in ENCODED}
    assert kinds[Document] is Kind.DOCUMENT
    assert kinds[Audio] is Kind.AUDIO
