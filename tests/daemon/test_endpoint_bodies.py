"""D12: one strict parser decides what is sent."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.daemon.endpoints.body import (
    check_headers,
    check_json_type,
    decompressed_pieces,
    parse_object,
)
from anaphora.daemon.endpoints.uploads import check_upload
from anaphora.errors import RequestRejected, TooLarge

REFUSED: dict[str, tuple[bytes, str]] = {
    "duplicate key": (b'{"model":"a","model":"b"}', "'model' occurs twice"),
    "duplicate key with an escape": (b'{"model":"a","mod\\u0065l":"b"}', "'model' occurs twice"),
    "duplicate key within": (b'{"a":[{"b":{"c":1,"c":2}}]}', "'c' occurs twice"),
    "duplicate key with the same value": (b'{"a":1,"a":1}', "'a' occurs twice"),
    "duplicate key between white space": (b'{ "a" : 1 ,\n"a"\t: 1 }', "'a' occurs twice"),
    "duplicate empty key": (b'{"":1,"":2}', "'' occurs twice"),
    "same field in another case": (b'{"model":"a","Model":"b"}', "the same field"),
    "same field in snake case": (b'{"cachedContent":"a","cached_content":"b"}', "the same field"),
    "same setting in snake case": (b'{"generationConfig":{"maxOutputTokens":1,"max_output_tokens":9}}',
        "the same field"),
    "same field of a tool": (b'{"tools":[{"function":{"name":"search","Name":"delete"}}]}',
        "the same field"),
    "two values": (b'{"a":1}{"a":2}', "trailing characters"),
    "two lines": (b'{"a":1}\n{"a":2}', "trailing characters"),
    "null byte after the value": (b'{"a":1}\x00', "trailing characters"),
    "BOM": (b'\xef\xbb\xbf{"a":1}', "BOM"),
    "UTF-16": ('{"a":1}'.encode("utf-16"), "not valid JSON"),
    "invalid UTF-8": (b'{"a":"\xff"}', "not UTF-8"),
    "overlong UTF-8": (b'{"a":"\xc0\xaf"}', "not UTF-8"),
    "surrogate in UTF-8": (b'{"a":"\xed\xa0\x80"}', "not UTF-8"),
    "lone surrogate": (b'{"a":"\\ud800"}', r"lone surrogate U\+D800 at byte 6"),
    "NaN": (b'{"a":NaN}', "not valid JSON"),
    "infinity": (b'{"a":-Infinity}', "not valid JSON"),
    "number out of range": (b'{"a":1e999}', "out of range"),
    "very long number": (b'{"a":' + b"9" * 5_000 + b"}", "out of range"),
    "leading zero": (b'{"a":01}', "not valid JSON"),
    "plus sign": (b'{"a":+1}', "not valid JSON"),
    "trailing comma": (b'{"a":1,}', "not valid JSON"),
    "comment": (b'{"a":/* b */1}', "not valid JSON"),
    "single quotes": (b"{'a':1}", "not valid JSON"),
    "line break in a text": (b'{"a":"b\nc"}', "not valid JSON"),
    "cut off": (b'{"a":[1,2', "not valid JSON"),
    "nesting": (b'{"a":' * 100_000, "nested too deep"),
    "list": (b'[{"model":"a"}]', "must be a JSON object"),
    "text": (b'"model"', "must be a JSON object"),
    "nothing": (b"", "not valid JSON"),
}  # fmt: skip


@each_row("name", REFUSED)
def test_ambiguous_and_invalid_bodies_are_refused(name: str) -> None:
    body, reason = REFUSED[name]
    with pytest.raises(RequestRejected, match=reason) as refused:
        parse_object(body)
    assert refused.value.status == 400


@each_row(
    "body",
    [
        b"{}",
        b' {"a" : 1}\n',
        b'{"a":1.0,"b":1e2,"c":-0}',
        '{"a":"é"}'.encode(),
        b'{"a":"\\u00e9\\/"}',
        b'{"a":[{"b":1},{"b":1}]}',
        b'{"metadata":{"user_id":1,"userId":2}}',
        b'{"tools":[{"input_schema":{"properties":{"id":{},"ID":{}}}}]}',
        b'{"messages":[{"role":"user","content":"\\"model\\":1, \\"model\\":2"}]}',
    ],
)
def test_bodies_are_kept_byte_for_byte(body: bytes) -> None:
    read = parse_object(body)
    assert read.data is body
    assert read.value == json.loads(body)
    assert {name: json.loads(bytes(raw)) for name, raw in read.members.items()} == read.value


class _Pairs(list[tuple[str, Any]]):
    """An object that may have duplicate keys."""


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(st.tuples(st.sampled_from("abA"), inner), max_size=4).map(_Pairs)
    ),
    max_leaves=12,
)


def _written(value: Any, spaces: bool) -> str:
    comma, colon = (" , ", " : ") if spaces else (",", ":")
    if isinstance(value, _Pairs):
        pairs = (f"{json.dumps(k)}{colon}{_written(v, spaces)}" for k, v in value)
        return "{" + comma.join(pairs) + "}"
    if isinstance(value, list):
        return "[" + comma.join(_written(each, spaces) for each in value) + "]"
    return json.dumps(value)


def _has_duplicates(value: Any) -> bool:
    if isinstance(value, _Pairs):
        own = len({name for name, _ in value}) < len(value)
        return own or any(_has_duplicates(each) for _, each in value)
    return isinstance(value, list) and any(map(_has_duplicates, value))


@settings(max_examples=40)
@given(_VALUES, st.booleans())
def test_an_object_is_refused_exactly_where_a_key_occurs_twice(value: Any, spaces: bool) -> None:
    body = _written(_Pairs([("metadata", value)]), spaces).encode()
    if not _has_duplicates(value):
        assert parse_object(body).data is body
        return
    with pytest.raises(RequestRejected, match="occurs twice"):
        parse_object(body)


TYPES = {
    "": 415,
    "text/plain": 415,
    "text/json": 415,
    "application/x-www-form-urlencoded": 415,
    "multipart/form-data; boundary=x": 415,
    "application/json; charset=utf-16": 415,
    "application/json, text/plain": 415,
    "application/jsonl": 415,
    "application/json": 200,
    "Application/JSON; Charset=UTF-8": 200,
    'application/json;charset="utf-8"': 200,
}


@each_row("kind", TYPES)
def test_content_types(kind: str) -> None:
    try:
        check_json_type({"content-type": kind})
        status = 200
    except RequestRejected as problem:
        status = problem.status or 0
    assert status == TYPES[kind]


def test_compressed_bodies_are_read_within_limits() -> None:
    body = b'{"model":"a"}'
    for encoding, data in (
        ("gzip", gzip.compress(body)),
        ("deflate", zlib.compress(body)),
        ("identity", body),
    ):
        assert b"".join(decompressed_pieces(data, encoding)) == body
    bomb = gzip.compress(b" " * 8_000_000)
    started = time.perf_counter()
    with pytest.raises(TooLarge, match="decompressed"):
        list(decompressed_pieces(bomb, "gzip"))
    assert time.perf_counter() - started < 1.0
    for encoding, data in (
        ("gzip", b"no gzip"),
        ("gzip", gzip.compress(body)[:-4]),
        ("gzip, gzip", gzip.compress(gzip.compress(body))),
        ("br", body),
        ("chunked", body),
    ):
        with pytest.raises(RequestRejected):
            list(decompressed_pieces(data, encoding))


@each_row(
    "name", ["content-type", "content-length", "content-encoding", "authorization", "x-api-key"]
)
def test_headers_that_decide_something_are_sent_once(name: str) -> None:
    check_headers([("accept", "a"), ("accept", "b"), (name, "a")])
    with pytest.raises(RequestRejected, match=name):
        check_headers([(name, "a"), (name, "b")])


def test_reading_a_usual_body_costs_a_few_parses() -> None:
    text = 'Lorem ipsum dolor sit amet, "consectetur" adipiscing elit.\n' * 15
    messages = [{"role": "user", "content": [{"type": "text", "text": text}]}] * 42
    compact = msgspec.json.encode({"model": "m", "temperature": 0.7, "messages": messages})
    spaced = json.dumps(msgspec.json.decode(compact)).encode()

    def best(run: Any) -> float:
        times = []
        for _ in range(60):
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
        return min(times)

    parse = best(lambda: msgspec.json.decode(compact))
    for body in (compact, spaced):
        assert best(lambda body=body: parse_object(body)) < 6 * parse


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "a"}] * 100_001},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 100_000}]},
        {"contents": [{"parts": [{"text": "a"}] * 60_000}] * 2},
        {"tools": [{"name": "a"}] * 100_001},
    ],
)
def test_request_with_too_many_blocks_is_refused(fields: dict[str, Any]) -> None:
    """It would keep the calls of all apps waiting for seconds."""
    with pytest.raises(TooLarge, match="more than 100,000"):
        parse_object(msgspec.json.encode(fields))


# ── Uploads ──────────────────────────────────────────────────────────────────────────────────────

PART = 'Content-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nHello\r\n'
FOREIGN = 'Content-Disposition: form-data; name="file_id"\r\n\r\nfile-1\r\n'


def upload(*parts: str) -> bytes:
    return "".join(f"--b\r\n{part}" for part in parts).encode() + b"--b--\r\n"


def test_uploads_of_clients_pass() -> None:
    request = httpx.Request(
        "POST",
        "http://localhost",
        files={"file": ('ä "b.txt', b"Hello\r\n\r\n--", "text/plain")},
        data={"purpose": "user_data", "expires_after[seconds]": "3600"},
    )
    check_upload(request.headers["content-type"], request.read())


@each_row(
    "data",
    [
        upload(FOREIGN),
        upload(PART, FOREIGN),
        upload(PART.replace('name="file"', 'name="file"; name="file_id"')),
        upload(PART.replace("\r\n\r\n", '; name="file_id"\r\n\r\n', 1)),
        upload(PART.replace("\r\n\r\n", "; name*=utf-8''file_id\r\n\r\n", 1)),
        upload("Content-Disposition: form-data; name=file\r\n" + FOREIGN),
        upload(PART.replace("; name", ";\r\n name")),
        upload(PART) + upload(FOREIGN),
        upload(PART.replace("Hello", "Hello\n--b\n" + FOREIGN.replace("\r\n", "\n"))),
        upload(FOREIGN).replace(b"\r\n", b"\n"),
        b"ignored\r\n" + upload(PART),
        upload(PART)[:-8],
        b"",
    ],
)
def test_upload_that_may_name_another_file_is_refused(data: bytes) -> None:
    """A container takes the id of a file in place of its content."""
    with pytest.raises(RequestRejected) as refused:
        check_upload("multipart/form-data; boundary=b", data)
    assert refused.value.status == 400
