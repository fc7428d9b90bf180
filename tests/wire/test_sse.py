"""Server-sent events: any line ending, any cut, the quick way and the long way alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.errors import Parse
from anaphora.wire.sse import EventDecoder, encode_event


@each_row(
    "stream, events",
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"event: x\ndata: a\n\n", [b"a"]),
        (b"data: a\nevent: x\n\n", [b"a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"event: x\n\ndata: a\n\n", [b"a"]),
        (b": comment\n\ndata: a\n\n", [b"a"]),
        (b": comment\ndata: a\n\n", [b"a"]),
        (b"id: 7\nretry: 3\ndata: a\n\n", [b"a"]),
        (b"\n\n\n\ndata: a\n\n\n\n", [b"a"]),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [b"a", b"b", b"c"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: data: a\n\n", [b"data: a"]),
        (b"data\n\n", [b""]),
        (b"data: \n\n", [b""]),
        (b'data: "\\ud83d"\n\n', [b'"\\ufffd"']),
        (b'data: "\\uD83D\\uDE00"\n\n', [b'"\\uD83D\\uDE00"']),
        (b'data: ["\\uD83D",\ndata: 1]\n\n', [b'["\\ufffd",\n1]']),
        (b"nonsense\n\n", []),
        (b"data: cut", []),
        (b"", []),
    ],
)
def test_a_stream_and_its_events(stream: bytes, events: list[bytes]) -> None:
    assert EventDecoder().feed(stream) == events
    decoder = EventDecoder()
    one_by_one = [e for at in range(len(stream)) for e in decoder.feed(stream[at : at + 1])]
    assert one_by_one == events


lines = st.sampled_from(
    [
        b"data: a",
        b"data: \\ud83d",
        b"data:c",
        b"event: x",
        b"event: yy",
        b": note",
        b"",
        b"",
        b"data",
    ]
)
streams = st.tuples(
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.lists(st.tuples(lines, st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"])), max_size=20),
).map(lambda parts: parts[0] + b"".join(line + end for line, end in parts[1]))


@given(streams, st.lists(st.integers(0, 200), max_size=8))
def test_law_12_events_are_independent_of_chunking(stream: bytes, cuts: list[int]) -> None:
    expected = EventDecoder().feed(stream)
    marks = sorted(min(cut, len(stream)) for cut in cuts)
    pieces = [stream[a:b] for a, b in zip([0, *marks], [*marks, len(stream)], strict=True)]
    cut = EventDecoder()
    assert [data for piece in pieces for data in cut.feed(piece)] == expected


@pytest.mark.parametrize("piece", [b"data: 123456", b"data: 123456\n"])
def test_endless_event_is_rejected_at_the_limit(piece: bytes) -> None:
    decoder = EventDecoder(limit=1000)
    with pytest.raises(Parse, match="more than 1000 bytes"):
        [decoder.feed(piece) for _ in range(200)]


def test_line_breaks_become_data_lines() -> None:
    """Arguments and blocks are text of another program, line breaks and all."""
    event = encode_event("", b'{"a":\n1,\r\n"b":"\\n"}')
    assert event.count(b"\n\n") == 1
    assert EventDecoder().feed(event) == [b'{"a":\n1, \n"b":"\\n"}']


def test_encoding_round_trips() -> None:
    written = encode_event("ping", b"{}") + encode_event("", b"[DONE]")
    assert written.startswith(b"event: ping\n")
    assert EventDecoder().feed(written) == [b"{}", b"[DONE]"]


def test_an_event_in_small_pieces_is_joined_once() -> None:
    decoder, payload = EventDecoder(), b"x" * 1_000_000
    whole = b"event: delta\ndata: " + payload + b"\n\n"
    pieces = [whole[begin : begin + 100] for begin in range(0, len(whole), 100)]
    assert [event for piece in pieces for event in decoder.feed(piece)] == [payload]


def test_an_event_with_many_lines_in_small_pieces() -> None:
    decoder = EventDecoder()
    pieces = [b"data: %d\n" % number for number in range(20_000)]
    assert [event for piece in pieces for event in decoder.feed(piece)] == []
    (payload,) = decoder.feed(b"\n")
    assert payload.split(b"\n") == [b"%d" % number for number in range(20_000)]
