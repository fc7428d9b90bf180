"""SPEC E6: no secret reaches a fixture, however it is written and wherever a stream is cut."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Callable
from urllib.parse import quote

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.errors import InvalidRequest, Parse
from anaphora.replay.fixture import Fixture, FixtureHeaders, FixturePiece, to_file
from anaphora.replay.redact import Redaction, fixture_of
from anaphora.wire.eventstream import CONTENT_TYPE, FrameDecoder, encode_event

KEY = 'canary/9aF3+xLq"8Zt\\K-é1234567'
BODY = b'{"text":"hello"}'


def stored(
    *pieces: bytes,
    request_headers: FixtureHeaders = (("x-api-key", KEY),),
    headers: FixtureHeaders = (),
    redaction: Redaction | None = None,
    path: str = "/v1",
    query: str = "",
    request: bytes = b"",
    status: int = 200,
) -> Fixture:
    exchange = Fixture(
        key=blake3(b"a").hexdigest(),
        path=path,
        query=query,
        request=request,
        headers=headers,
        status=status,
        pieces=tuple(FixturePiece(float(number), data) for number, data in enumerate(pieces)),
    )
    return fixture_of(exchange, request_headers=request_headers, redaction=redaction or Redaction())


def encoded64(before: int, url: bool) -> Callable[[str], str]:
    encode = base64.urlsafe_b64encode if url else base64.b64encode
    return lambda key: encode(b"x" * before + key.encode() + b"yz").decode()


FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "JSON": lambda key: json.dumps(key)[1:-1],
    "JSON with slashes": lambda key: json.dumps(key)[1:-1].replace("/", "\\/"),
    "JSON, every character": lambda key: "".join(f"\\u{ord(each):04X}" for each in key),
    "JSON in JSON": lambda key: json.dumps(json.dumps(key)[1:-1])[1:-1],
    "percent": lambda key: quote(key, safe=""),
    "percent, every character": lambda key: "".join(f"%{each:02x}" for each in key.encode()),
    "percent twice": lambda key: quote(quote(key, safe=""), safe=""),
    **{
        f"base64 after {before}, {'URL' if url else 'standard'}": encoded64(before, url)
        for before in range(4)
        for url in (False, True)
    },
    "base64 in JSON": lambda key: encoded64(1, False)(key).replace("/", "\\/"),
    "base64 in a URL": lambda key: quote(encoded64(2, False)(key), safe=""),
}


def holds(data: bytes, form: str) -> bool:
    """Whether a considerable part of the encoded key is there: all three alignments leave at most
    the two outer characters."""
    inner = form.strip("=").encode()[4:-4]
    return inner in data


@each_row("form", FORMS)
@each_row("place", ["request", "response", "header", "query", "path"])
def test_every_encoding_is_found(form: str, place: str) -> None:
    text = FORMS[form](KEY)
    body = f"before {text} after".encode()
    given = body if place == "request" else b""
    answer = body if place == "response" else BODY
    query = f"a=1&b={text.replace('&', '')}" if place == "query" else ""
    header = (("x-echo", f"it is {text} here"),) if place == "header" else ()
    path = f"/v1/{text}" if place == "path" else ""
    made = stored(answer, request=given, path=path, query=query, headers=header)
    file = to_file(made)
    assert not holds(file, text)
    assert not holds(file, json.dumps(text)[1:-1])
    assert made.altered == (place in ("request", "response"))
    if made.altered:
        changed = made.request if place == "request" else made.payload
        assert changed.startswith(b"before ")
        assert changed.endswith(b" after")


@given(st.data())
def test_a_secret_is_found_wherever_the_stream_is_cut(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(sorted(FORMS)).map(lambda name: FORMS[name](KEY)))
    body = f'{{"a":"{text}","b":"{text}"}} tail'.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    made = stored(*pieces)
    whole = stored(body)
    assert made.payload == whole.payload
    assert len(made.pieces) == len(pieces)
    assert not holds(made.payload, text)
    assert made.payload.endswith(b" tail")
    assert made.altered


@each_row("cut", range(1, len(KEY)))
def test_a_secret_is_found_across_the_events_of_a_stream(cut: int) -> None:
    parts = KEY[:cut], KEY[cut:]
    events = [
        f"event: delta\ndata: {json.dumps({'type': 'delta', 'text': text})}\n\n".encode()
        for text in ("It is ", *parts, ", I think")
    ]
    made = stored(*events)
    texts = [json.loads(each.data.split(b"data: ")[1])["text"] for each in made.pieces]
    assert "".join(texts) == "It is <secret>, I think"
    assert len(made.pieces) == 4
    assert made.altered


@each_row("cut", [1, len(KEY) // 2, len(KEY) - 1])
@each_row("invoked", [False, True])
def test_a_secret_is_found_across_the_frames_of_a_binary_stream(cut: int, invoked: bool) -> None:
    """The frames stay valid; other ones are stored as they are, cut anywhere."""

    def framed(text: str) -> bytes:
        event = json.dumps({"delta": {"text": text}, "contentBlockIndex": 0}).encode()
        if not invoked:
            return encode_event("contentBlockDelta", event)
        payload = {"bytes": base64.b64encode(event).decode(), "p": "abc"}
        return encode_event("chunk", json.dumps(payload).encode())

    def texts(data: bytes) -> str:
        decoder = FrameDecoder()
        payloads = [json.loads(frame.payload) for frame in decoder.feed(data)]
        assert decoder.problem is None
        assert decoder.complete
        if invoked:
            payloads = [json.loads(base64.b64decode(each["bytes"])) for each in payloads]
        return "".join(each["delta"]["text"] for each in payloads)

    kind = (("content-type", CONTENT_TYPE),)
    data = b"".join(map(framed, ("It is ", KEY[:cut], KEY[cut:], ", I think")))
    made = stored(data[:30], data[30:], headers=kind)
    assert texts(made.payload) == "It is <secret>, I think"
    assert made.altered
    plain = b"".join(map(framed, ("It is ", "four")))
    same = stored(plain[:30], plain[30:], headers=kind)
    assert [each.data for each in same.pieces] == [plain[:30], plain[30:]]
    assert not same.altered


@each_row(
    "header, value",
    [
        ("authorization", f"Bearer {KEY}"),
        ("Authorization", "Basic " + base64.b64encode(f"user:{KEY}".encode()).decode()),
        ("Authorization", "Basic " + base64.b64encode(f"{KEY}:".encode()).decode()),
        ("authorization", f"ApiKey {KEY}"),
        ("helicone-auth", f"Bearer {KEY}"),
        ("proxy-authorization", KEY),
        ("x-goog-api-key", KEY),
        ("api-key", KEY),
        ("x-acme-token", KEY),
        ("cookie", f"theme=dark; session={KEY.replace(';', '')}"),
    ],
)
def test_credentials_of_the_request_are_found_in_the_response(header: str, value: str) -> None:
    made = stored(b"you sent " + KEY.encode(), request_headers=((header, value),))
    assert made.payload == b"you sent <secret>"


def test_a_secret_is_found_in_one_of_several_choices() -> None:
    """Their events alternate."""
    events = [
        f"data: {json.dumps({'choices': [{'index': index, 'delta': {'content': text}}]})}\n\n"
        for each in KEY
        for index, text in enumerate((each, "-"))
    ]
    made = stored("".join(events).encode())
    chunks = [
        json.loads(line[6:])["choices"][0] for line in made.payload.decode().split("\n\n") if line
    ]
    assert "".join(one["delta"]["content"] for one in chunks if not one["index"]) == "<secret>"
    assert "".join(one["delta"]["content"] for one in chunks if one["index"]) == "-" * len(KEY)


def test_a_cookie_is_not_repeated_by_the_answer() -> None:
    made = stored(b"session abcdefgh12345", headers=(("set-cookie", "s=abcdefgh12345; path=/"),))
    assert made.payload == b"session <secret>"
    assert made.headers == (("set-cookie", "<secret>"),)


def test_headers_and_query_hold_no_credentials() -> None:
    headers = (
        ("content-type", "application/json"),
        ("set-cookie", "session=abcdefgh12345"),
        ("location", "https://example.com/files?key=abcdefgh12345&a=1"),
        ("anthropic-ratelimit-tokens-remaining", "1000"),
        ("content-length", "16"),
    )
    made = stored(BODY, headers=headers, query="alt=sse&key=abcdefgh12345")
    assert b"abcdefgh12345" not in to_file(made)
    assert made.query == "alt=sse&key=<secret>"
    assert dict(made.headers) == {
        "content-type": "application/json",
        "set-cookie": "<secret>",
        "location": "https://example.com/files?key=<secret>&a=1",
        "anthropic-ratelimit-tokens-remaining": "1000",
    }
    assert not made.altered


def test_keys_of_providers_are_found_by_their_form() -> None:
    keys = [
        "sk-ant-api03-" + "aB3" * 12,
        "sk-proj-" + "a1B_" * 10,
        "AIza" + "aB3dE" * 7,
        "ghp_" + "a1B2" * 9,
        "AKIA" + "ABCD1234" * 2,
    ]
    made = stored(" ".join(keys).encode(), request_headers=())
    assert made.payload == b" ".join([b"<secret>"] * len(keys))


@pytest.mark.parametrize(
    "text", ["task-force-of-twenty-two-people-2", "sk-ip", "disk-usage-0123456789-0123456789", ""]
)
def test_other_words_stay(text: str) -> None:
    made = stored(text.encode(), request_headers=(("x-api-key", "ollama"),))
    assert (made.payload, made.altered) == (text.encode(), False)


def test_patterns_of_the_user(tmp_path: object) -> None:
    redaction = Redaction(patterns=[r"acme-[0-9]{6}", r"\bx*"])
    made = stored(b"by acme-123", b"456, not acme-1", redaction=redaction)
    assert [piece.data for piece in made.pieces] == [b"by <secret>", b", not acme-1"]
    for wrong, reason in (("[", "not a regular expression"), ("(?<=y)x+", "look-around")):
        with pytest.raises(InvalidRequest, match=f"patterns: .*: {reason}"):
            Redaction(patterns=[wrong])


@pytest.mark.parametrize(
    "pattern, text",
    [
        (r"Zoë+-[0-9]", "Zoëëë-1"),
        (r"ü\w+", "übersicht"),
        (r"eyJ[A-Za-z0-9]+", "eyJ" + "a" * 5000),
        (r"key: \S+", "key: " + "ß" * 2000),
    ],
)
def test_patterns_are_about_characters(pattern: str, text: str) -> None:
    redaction = Redaction(patterns=[pattern])
    assert redaction.body(f"ö {text} {text}".encode()) == "ö <secret> <secret>".encode()
    assert redaction.body(b"\xff " + text.encode()) == b"\xff <secret>"


def raw_deflate(data: bytes) -> bytes:
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return made.compress(data) + made.flush()


@each_row(
    "encoding, compress",
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
        ("identity", bytes),
        ("deflate, gzip", lambda data: gzip.compress(zlib.compress(data))),
    ],
)
def test_compressed_bodies_are_stored_decompressed(
    encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    data = compress(b"it is " + KEY.encode() + b" here")
    pieces = [data[at : at + 7] for at in range(0, len(data), 7)]
    made = stored(*pieces, headers=(("content-encoding", encoding), ("x-id", "1")))
    assert made.payload == b"it is <secret> here"
    assert made.headers == (("x-id", "1"),)
    assert made.raw_hash == blake3(made.payload).hexdigest()


def test_encoding_that_cannot_be_read_is_not_stored() -> None:
    with pytest.raises(Parse, match="not recorded: the body has content-encoding snappy"):
        stored(KEY.encode(), headers=(("content-encoding", "snappy"),))


def test_partly_shown_key_in_an_error() -> None:
    key = "sk-acme-0123456789abcdefghij"
    body = b'{"error":"Incorrect API key provided: sk-acme-****ghij."}'
    made = stored(body, request_headers=(("authorization", f"Bearer {key}"),), status=401)
    assert made.payload == b'{"error":"Incorrect API key provided: <secret>"}'


def test_nothing_changes_without_secrets() -> None:
    made = stored(b'{"a":1}', b"\xff\xfe", request=b"abc")
    assert [piece.data for piece in made.pieces] == [b'{"a":1}', b"\xff\xfe"]
    assert (made.request, made.altered) == (b"abc", False)


def test_reprs_show_no_secret() -> None:
    redaction = Redaction([KEY]).with_credentials((("x-api-key", "other-secret-123"),))
    assert KEY not in repr(redaction) + repr(redaction._forms)
