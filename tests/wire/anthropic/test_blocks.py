"""One part, one block: the value on one side, the exact bytes on the other."""

from __future__ import annotations

import json

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
    Notice,
    Opaque,
    Part,
    Refusal,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Url,
    from_json,
    to_json,
)
from anaphora.wire.anthropic.fields import TABLE
from anaphora.wire.anthropic.parts import encoder_for, is_sent

PNG = Bytes(b"\x89PNG", "image/png")


def say(part: Part) -> tuple[bytes | None, list[Notice]]:
    notices: list[Notice] = []
    _, _, render = encoder_for(part)
    return render(part, notices), notices


SAID: list[tuple[Part, bytes]] = [
    # text
    (Text("hello"), b'{"type":"text","text":"hello"}'),
    (Text(" kept "), b'{"type":"text","text":" kept "}'),
    (Text('"\\\n\t\u0001'), b'{"type":"text","text":"\\"\\\\\\n\\t\\u0001"}'),
    (Text("é 日 🙂"), '{"type":"text","text":"é 日 🙂"}'.encode()),
    (
        Text("cited", extras={"anthropic": '{"citations": [ {"type":"x"} ]}'}),
        b'{"type":"text","text":"cited","citations":[ {"type":"x"} ]}',
    ),
    (Text("t", extras={"anthropic": "{}"}), b'{"type":"text","text":"t"}'),
    (Text("t", extras={"anthropic": ' { "a":1 } '}), b'{"type":"text","text":"t","a":1}'),
    (Text("t", extras={"openai": '{"a":1}'}), b'{"type":"text","text":"t"}'),
    # image
    (
        Image(PNG),
        b'{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw=="}}',
    ),
    (
        Image(Url("https://x.test/a.png")),
        b'{"type":"image","source":{"type":"url","url":"https://x.test/a.png"}}',
    ),
    (
        Image(FileId("anthropic", "file_1")),
        b'{"type":"image","source":{"type":"file","file_id":"file_1"}}',
    ),
    (
        Image(Url("u"), extras={"anthropic": '{"transformations":{}}'}),
        b'{"type":"image","source":{"type":"url","url":"u"},"transformations":{}}',
    ),
    # document
    (
        Document(Bytes(b"%PDF", "application/pdf")),
        b'{"type":"document","source":'
        b'{"type":"base64","media_type":"application/pdf","data":"JVBERg=="}}',
    ),
    (
        Document(Bytes("naïve".encode(), "text/plain")),
        '{"type":"document","source":{"type":"text","media_type":"text/plain","data":"naïve"}}'.encode(),
    ),
    (
        Document(Url("u"), "Title", "Context", {"anthropic": '{"citations":{"enabled":true}}'}),
        b'{"type":"document","source":{"type":"url","url":"u"},"title":"Title"'
        b',"context":"Context","citations":{"enabled":true}}',
    ),
    (
        Document(FileId("anthropic", "f"), title=""),
        b'{"type":"document","source":{"type":"file","file_id":"f"},"title":""}',
    ),
    # tool call: the arguments are the model's own text
    (ToolCall("c", "f"), b'{"type":"tool_use","id":"c","name":"f","input":{}}'),
    (
        ToolCall("c", "f", '{ "b":1,"a" : 1.0e2 }'),
        b'{"type":"tool_use","id":"c","name":"f","input":{ "b":1,"a" : 1.0e2 }}',
    ),
    (ToolCall("c", "f", ""), b'{"type":"tool_use","id":"c","name":"f","input":{}}'),
    (ToolCall("c", "f", "  "), b'{"type":"tool_use","id":"c","name":"f","input":{}}'),
    (
        ToolCall("c", "f", "{}", {"anthropic": '{"caller":{"type":"direct"}}'}),
        b'{"type":"tool_use","id":"c","name":"f","input":{},"caller":{"type":"direct"}}',
    ),
    # tool result: always an array
    (ToolResult("c"), b'{"type":"tool_result","tool_use_id":"c","content":[]}'),
    (
        ToolResult("c", "ok"),
        b'{"type":"tool_result","tool_use_id":"c","content":[{"type":"text","text":"ok"}]}',
    ),
    (
        ToolResult("c", (Text("ok"),)),
        b'{"type":"tool_result","tool_use_id":"c","content":[{"type":"text","text":"ok"}]}',
    ),
    (
        ToolResult("c", "no", error=True, name="f", extras={"anthropic": '{"x":1}'}),
        b'{"type":"tool_result","tool_use_id":"c","content":[{"type":"text","text":"no"}]'
        b',"is_error":true,"x":1}',
    ),
    (
        ToolResult(
            "c",
            (
                Text("see"),
                Image(Url("i")),
                Document(Url("d")),
                Opaque("anthropic", "search_result", '{"type":"search_result"}'),
            ),
        ),
        b'{"type":"tool_result","tool_use_id":"c","content":[{"type":"text","text":"see"}'
        b',{"type":"image","source":{"type":"url","url":"i"}}'
        b',{"type":"document","source":{"type":"url","url":"d"}}'
        b',{"type":"search_result"}]}',
    ),
    # thinking
    (
        Thinking("hm", "sig", provider="anthropic"),
        b'{"type":"thinking","thinking":"hm","signature":"sig"}',
    ),
    (Thinking("", "sig"), b'{"type":"thinking","thinking":"","signature":"sig"}'),
    (Thinking(data="xyz"), b'{"type":"redacted_thinking","data":"xyz"}'),
    # what only Anthropic knows
    (
        Opaque("anthropic", "server_tool_use", '{"type": "server_tool_use","id":"s"}'),
        b'{"type": "server_tool_use","id":"s"}',
    ),
]


@each_row("part, data", SAID)
def test_a_part_becomes_these_bytes(part: Part, data: bytes) -> None:
    assert say(part) == (data, [])
    json.loads(data)


@each_row("part, data", SAID)
def test_the_bytes_survive_storage(part: Part, data: bytes) -> None:
    """Law 3: a part read back from a file or a database says the same."""
    assert say(from_json(to_json(part), type(part)))[0] == data


@each_row("part, data", SAID)
def test_a_marker_fits_before_the_closing_brace(part: Part, data: bytes) -> None:
    """Where a block takes a marker it goes into it, and what was there stays as it was."""
    _, splice, _ = encoder_for(part)
    if splice is None:
        assert isinstance(part, Thinking)
        return
    marker = b',"cache_control":{"type":"ephemeral"}'
    with_marker = json.loads(data[:splice] + marker + data[splice:])
    assert with_marker.pop("cache_control") == {"type": "ephemeral"}
    assert with_marker == json.loads(data)


#: What Anthropic has no way to say, and the word it gets for that.
UNSAID: list[tuple[Part, str]] = [
    (Text(""), "blank_text"),
    (Text(" \n"), "blank_text"),
    (Audio(Bytes(b"RIFF", "audio/wav")), "audio_unsupported"),
    (Audio(Url("u")), "audio_unsupported"),
    (Image(FileId("openai", "file_1")), "foreign_file"),
    (Document(FileId("gemini", "file_1")), "foreign_file"),
    (Thinking("hm"), "unsigned_thinking"),
    (Thinking("hm", provider="anthropic"), "unsigned_thinking"),
    (Thinking("hm", "sig", provider="gemini"), "foreign_thinking"),
    (Thinking(data="xyz", provider="openai"), "foreign_thinking"),
    (Opaque("openai", "web_search_call", "{}"), "foreign_block"),
]


@each_row("part, code", UNSAID)
def test_unsupported_part_is_dropped_with_notice(part: Part, code: str) -> None:
    data, notices = say(part)
    assert data is None
    assert [notice.code for notice in notices] == [code]
    assert not is_sent(part)


#: What is sent otherwise than asked: the bytes, and the code of the notice.
OTHERWISE: list[tuple[Part, bytes, str]] = [
    (Refusal("I won't."), b'{"type":"text","text":"I won\'t."}', "refusal_as_text"),
    (
        ToolCall("c", "f", '{"cut off'),
        b'{"type":"tool_use","id":"c","name":"f","input":{"invalid_arguments":"{\\"cut off"}}',
        "arguments_not_an_object",
    ),
    (
        ToolCall("c", "f", "[1]"),
        b'{"type":"tool_use","id":"c","name":"f","input":{"invalid_arguments":"[1]"}}',
        "arguments_not_an_object",
    ),
    (
        ToolResult("c", (Audio(Url("u")), Text("heard"))),
        b'{"type":"tool_result","tool_use_id":"c","content":[{"type":"text","text":"heard"}]}',
        "audio_unsupported",
    ),
    (
        ToolResult("c", (Text(" "),)),
        b'{"type":"tool_result","tool_use_id":"c","content":[]}',
        "blank_text",
    ),
    # The same blank text, given as a string: it may not fare worse, nor go unmentioned.
    (ToolResult("c", " "), b'{"type":"tool_result","tool_use_id":"c","content":[]}', "blank_text"),
]


@each_row("part, data, code", OTHERWISE)
def test_changed_part_gives_notice(part: Part, data: bytes, code: str) -> None:
    encoded, notices = say(part)
    assert encoded == data
    assert [notice.code for notice in notices] == [code]


def test_unsupported_part_field_gives_notice() -> None:
    """Law 11: Anthropic's images have no detail; leaving it out is worth a word."""
    data, notices = say(Image(PNG, detail="high"))
    assert data == say(Image(PNG))[0]
    assert len(notices) == 1


#: What no JSON can hold, and where in the part it is.
BROKEN: list[tuple[Part, str]] = [
    (Opaque("anthropic", "x", "[]"), "json"),
    (Opaque("anthropic", "x", "{"), "json"),
    (Text("t", extras={"anthropic": "[]"}), "extras.anthropic"),
    (ToolCall("c", "f", "{}", {"anthropic": "nonsense"}), "extras.anthropic"),
    (ToolResult("c", (Text("t"), Opaque("anthropic", "x", "{"))), "content[1].json"),
    (ToolResult("c", (Text("\ud800"),)), "content[0]"),
    (Text("\ud800"), ""),
]


@each_row("part, path", BROKEN)
def test_a_broken_part_names_its_field(part: Part, path: str) -> None:
    with pytest.raises(InvalidJson) as caught:
        say(part)
    assert caught.value.path == path


def test_arguments_with_a_lone_surrogate_name_their_field() -> None:
    with pytest.raises(InvalidJson) as caught:
        say(ToolCall("c", "f", '{"a":"\ud800"}'))
    assert caught.value.path == "arguments"


def test_plain_text_that_is_not_utf8_is_an_invalid_request() -> None:
    """A document's bytes come from the caller: what is wrong with them is our error."""
    with pytest.raises(InvalidRequest):
        say(Document(Bytes(b"\xff\xfe", "text/plain")))


def test_non_part_is_rejected_by_type_name() -> None:
    with pytest.raises(InvalidRequest, match="Url is not a part"):
        encoder_for(Url("u"))


def test_kinds_match_the_cache_rules() -> None:
    kinds = {type(part).__name__: encoder_for(part)[0] for part, _ in SAID}
    assert kinds == {
        "Text": Kind.TEXT,
        "Image": Kind.IMAGE,
        "Document": Kind.DOCUMENT,
        "ToolCall": Kind.TOOL_CALL,
        "ToolResult": Kind.TOOL_RESULT,
        "Thinking": Kind.THINKING,
        "Opaque": Kind.OTHER,
    }


def test_markable_blocks_match_the_rules_table() -> None:
    """The wire and the catalog say the same about blocks that we carry without reading."""
    markable = set(rules("anthropic", "claude-sonnet-4-5").markable.value)
    read_here = {"tool", "text", "image", "document", "tool_use", "tool_result"}
    known = {kind for kind, row in TABLE.blocks.items() if row.markable}
    assert markable - read_here == known - read_here
