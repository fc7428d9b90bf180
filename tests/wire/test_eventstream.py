"""AWS's binary event stream: any cut, both checksums, limits, and botocore's own reader."""

from __future__ import annotations

import itertools
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bedrock_server import frame as independent_frame
from support.tables import each_row

from anaphora.errors import InvalidRequest
from anaphora.wire.eventstream import (
    HEADERS_LIMIT,
    PAYLOAD_LIMIT,
    Frame,
    FrameDecoder,
    encode_event,
    encode_exception,
    encode_frame,
    padded,
)

STREAM = encode_event("messageStart", b'{"role":"assistant"}') + encode_event("a", b"{}")
headers = st.dictionaries(
    st.text(min_size=1, max_size=20), st.text(max_size=40), min_size=1, max_size=4
)


def raw_frame(header_bytes: bytes, payload: bytes = b"", *, total: int | None = None) -> bytes:
    """A frame with these headers, and both checksums right."""
    size = 16 + len(header_bytes) + len(payload) if total is None else total
    lengths = struct.pack(">II", size, len(header_bytes))
    message = lengths + struct.pack(">I", zlib.crc32(lengths)) + header_bytes + payload
    return message + struct.pack(">I", zlib.crc32(message))


@given(
    st.lists(st.tuples(headers, st.binary(max_size=200)), max_size=4), st.lists(st.integers(0, 900))
)
def test_frames_are_read_as_written_however_they_are_cut(
    written: list[tuple[dict[str, str], bytes]], at: list[int]
) -> None:
    stream = b"".join(encode_frame(*each) for each in written)
    cuts = [0, *sorted(min(each, len(stream)) for each in at), len(stream)]
    decoder = FrameDecoder()
    found = [f for a, b in itertools.pairwise(cuts) for f in decoder.feed(stream[a:b])]
    assert found == [Frame(*each) for each in written]
    assert (decoder.problem, decoder.complete) == (None, True)


def test_frames_are_those_of_another_writer() -> None:
    payload = b'{"bytes":"e30="}'
    assert encode_event("chunk", payload) == independent_frame(payload)
    (found,) = FrameDecoder().feed(independent_frame(payload))
    assert found.headers[":event-type"] == "chunk"
    assert found.payload == payload


def test_every_changed_byte_is_found() -> None:
    first = len(encode_event("messageStart", b'{"role":"assistant"}'))
    for at in range(len(STREAM)):
        broken = STREAM[:at] + bytes([STREAM[at] ^ 0x20]) + STREAM[at + 1 :]
        decoder = FrameDecoder()
        found = decoder.feed(broken)
        assert decoder.problem is not None
        assert len(found) == (at >= first)
        assert f"at byte {first if at >= first else 0}" in str(decoder.problem)
        assert decoder.feed(STREAM) == []


def test_a_stream_that_is_cut_off_is_not_complete() -> None:
    for end in range(len(STREAM)):
        decoder = FrameDecoder()
        decoder.feed(STREAM[:end])
        boundary = end in (0, len(encode_event("messageStart", b'{"role":"assistant"}')))
        assert (decoder.problem, decoder.complete) == (None, boundary)


@each_row(
    "lengths, reason",
    [
        ((16 + HEADERS_LIMIT + 1, HEADERS_LIMIT + 1), "at most 131072 bytes of headers"),
        ((16 + PAYLOAD_LIMIT + 1, 0), "25165824 of payload"),
        ((0xFFFFFFFF, 0), "4294967295 bytes"),
        ((15, 0), "fewer than its headers take"),
        ((40, 30), "fewer than its headers take"),
    ],
)
def test_a_frame_beyond_the_limits_is_not_collected(lengths: tuple[int, int], reason: str) -> None:
    prelude = struct.pack(">II", *lengths)
    decoder = FrameDecoder()
    assert decoder.feed(prelude + struct.pack(">I", zlib.crc32(prelude))) == []
    assert reason in str(decoder.problem)


def test_headers_of_every_type_are_skipped() -> None:
    values = [
        bytes([0]), bytes([1]), b"\x02x", b"\x03xx", b"\x04xxxx", b"\x05" + b"x" * 8,
        b"\x06\0\x03abc", b"\x08" + b"x" * 8, b"\x09" + b"x" * 16,
    ]  # fmt: skip
    named = b"".join(b"\x01a" + value for value in values) + b"\x01b\x07\0\x02ok"
    (found,) = FrameDecoder().feed(raw_frame(named, b"{}"))
    assert found == Frame({"b": "ok"}, b"{}")


@each_row(
    "header",
    [b"\x01a\x0a", b"\x01a\x07\0\x09x", b"\x01a\x07\0", b"\x09a", b"\x01a\x04x", b"\x01\xff\x00"],
)
def test_headers_that_cannot_be_read_are_a_problem(header: bytes) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(raw_frame(header)) == []
    assert "header" in str(decoder.problem)


def test_a_json_body_is_collected() -> None:
    for body in (b'{"output":{}}', b' \n{"message":"no"}'):
        decoder = FrameDecoder()
        for at in range(len(body)):
            assert decoder.feed(body[at : at + 1]) == []
        assert bytes(decoder.body or b"") == body


def test_what_does_not_fit_is_not_written() -> None:
    for named in ({"": "x"}, {"x" * 256: "x"}, {"x": "x" * 0x8000}):
        with pytest.raises(InvalidRequest, match="header"):
            encode_frame(named, b"")
    with pytest.raises(InvalidRequest, match="at most"):
        encode_frame({}, bytes(PAYLOAD_LIMIT + 1))


def test_exceptions_and_padding() -> None:
    (found,) = FrameDecoder().feed(encode_exception("throttlingException", 'slow "down"'))
    assert found.headers[":message-type"] == "exception"
    assert found.payload == b'{"message":"slow \\"down\\""}'
    assert padded(b"{}").startswith(b'{"p":"ab')
    assert len({len(padded(b'{"a":%d}' % number)) for number in range(10, 60)}) > 20


def test_botocore_reads_the_frames() -> None:
    eventstream = pytest.importorskip("botocore.eventstream", reason="botocore is not installed")
    buffer = eventstream.EventStreamBuffer()
    buffer.add_data(STREAM + encode_exception("throttlingException", "slow down"))
    read = [(message.headers, message.payload) for message in buffer]
    assert read == [tuple(frame) for frame in FrameDecoder().feed(STREAM)] + [
        (
            {
                ":exception-type": "throttlingException",
                ":content-type": "application/json",
                ":message-type": "exception",
            },
            b'{"message":"slow down"}',
        )
    ]
