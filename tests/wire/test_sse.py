"""Server-sent events: any line ending, any cut, the quick way and the long way alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphora.errors import Parse
from anaphora.wire.sse import EventDecoder, encode_event


@pytest.mark.parametrize(
    "stream, events",
    [
        (b"data: a\n\n", [("", b"a")]),
        (b"data:a\n\n", [("", b"a")]),
        (b"data:  a\n\n", [("", b" a")]),
        (b"event: x\ndata: a\n\n", [("x", b"a")]),
        (b"data: a\nevent: x\n\n", [("x", b"a")]),
        (b"data: a\ndata: b\n\n", [("", b"a\nb")]),
        (b"event: x\n\ndata: a\n\n", [("", b"a")]),
        (b": comment\n\ndata: a\n\n", [("", b"a")]),
        (b": comment\ndata: a\n\n", [("", b"a")]),
        (b"id: 7\nretry: 3\ndata: a\n\n", [("", b"a")]),
        (b"\n\n\n\ndata: a\n\n\n\n", [("", b"a")]),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [("", b"a"), ("", b"b"), ("", b"c")]),
        (b"\xef\xbb\xbfdata: a\n\n", [("", b"a")]),
        (b"data: data: a\n\n", [("", b"data: a")]),
        (b"data\n\n", [("", b"")]),
        (b"data: \n\n", [("", b"")]),
        (b"nonsense\n\n", []),
        (b"data: cut", []),
        (b"", []),
    ],
)
def test_a_stream_and_its_events(stream: bytes, events: list[tuple[str, bytes]]) -> None:
    assert EventDecoder().feed(stream) == events
    decoder = EventDecoder()
    one_by_one = [e for at in range(len(stream)) for e in decoder.feed(stream[at : at + 1])]
    assert one_by_one == events
    assert EventDecoder().feed_data(stream) == [data for _, data in events]
    assert decoder.close() == (not stream.endswith(b"cut"))


lines = st.sampled_from(
    [b"data: a", b"data: b", b"data:c", b"event: x", b"event: yy", b": note", b"", b"", b"data"]
)
streams = st.tuples(
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.lists(st.tuples(lines, st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"])), max_size=20),
).map(lambda parts: parts[0] + b"".join(line + end for line, end in parts[1]))


@given(streams, st.lists(st.integers(0, 200), max_size=8))
def test_law_12_events_are_independent_of_chunking(stream: bytes, cuts: list[int]) -> None:
    expected = [data for _, data in EventDecoder().feed(stream)]
    marks = sorted(min(cut, len(stream)) for cut in cuts)
    pieces = [stream[a:b] for a, b in zip([0, *marks], [*marks, len(stream)], strict=True)]
    quick, slow = EventDecoder(), EventDecoder()
    assert [data for piece in pieces for data in quick.feed_data(piece)] == expected
    assert [data for piece in pieces for _, data in slow.feed(piece)] == expected


@pytest.mark.parametrize("feed", ["feed", "feed_data"])
def test_endless_event_is_rejected_at_the_limit(feed: str) -> None:
    decode = getattr(EventDecoder(limit=1000), feed)
    with pytest.raises(Parse, match="more than 1000 bytes"):
        [decode(b"data: 123456") for _ in range(200)]


def test_line_breaks_become_data_lines() -> None:
    """Arguments and blocks are the text that somebody else wrote, line breaks and all."""
    event = encode_event("", b'{"a":\n1,\r\n"b":"\\n"}')
    assert event.count(b"\n\n") == 1
    assert EventDecoder().feed(event) == [("", b'{"a":\n1, \n"b":"\\n"}')]


def test_encoding_round_trips() -> None:
    assert EventDecoder().feed(encode_event("ping", b"{}") + encode_event("", b"[DONE]")) == [
        ("ping", b"{}"),
        ("", b"[DONE]"),
    ]


def test_an_event_in_small_pieces_is_joined_once() -> None:
    decoder, payload = EventDecoder(), b"x" * 1_000_000
    whole = b"event: delta\ndata: " + payload + b"\n\n"
    pieces = [whole[begin : begin + 100] for begin in range(0, len(whole), 100)]
    assert [event for piece in pieces for event in decoder.feed_data(piece)] == [payload]
    assert decoder.close()


def test_an_event_with_many_lines_in_small_pieces() -> None:
    decoder = EventDecoder()
    pieces = [b"data: %d\n" % number for number in range(20_000)]
    assert [event for piece in pieces for event in decoder.feed_data(piece)] == []
    (payload,) = decoder.feed_data(b"\n")
    assert payload.split(b"\n") == [b"%d" % number for number in range(20_000)]


def test_a_stream_that_ends_behind_the_name_of_an_event_is_cut_off() -> None:
    decoder = EventDecoder()
    assert decoder.feed_data(b"data: {}\n\nevent: message_delta\n") == [b"{}"]
    assert not decoder.close()
