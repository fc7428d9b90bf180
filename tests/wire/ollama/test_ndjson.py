"""Newline-delimited JSON: any cut, blank lines, either line ending, bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.errors import Parse
from anaphora.wire.ollama.stream import LineDecoder, encode_line


@each_row(
    "stream, lines, left",
    [
        (b"", [], []),
        (b"{}\n", [b"{}"], []),
        (b"{}\n[]\n", [b"{}", b"[]"], []),
        (b"{}\r\n[]\r\n", [b"{}", b"[]"], []),
        (b"\n\n{}\n \n\r\n[]\n", [b"{}", b"[]"], []),
        (b"  {} \n", [b"{}"], []),
        (b"\xef\xbb\xbf{}\n", [b"{}"], []),
        (b"{}\n{cut", [b"{}"], [b"{cut"]),
        (b"{}", [], [b"{}"]),
        (b"{}\n \r", [b"{}"], []),
    ],
)
def test_a_stream_and_its_lines(stream: bytes, lines: list[bytes], left: list[bytes]) -> None:
    whole, slow = LineDecoder(), LineDecoder()
    assert whole.feed(stream) == lines
    assert [line for at in range(len(stream)) for line in slow.feed(stream[at : at + 1])] == lines
    assert (whole.close(), slow.close()) == (left, left)
    assert whole.close() == []


streams = st.tuples(
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.lists(st.sampled_from([b"{}", b'{"a":1}', b"", b" ", b"\n", b"\r\n", b"\r"]), max_size=20),
).map(lambda parts: parts[0] + b"".join(parts[1]))


@given(streams, st.lists(st.integers(0, 80), max_size=8))
def test_law_12_lines_are_the_same_in_any_pieces(stream: bytes, cuts: list[int]) -> None:
    whole, cut = LineDecoder(), LineDecoder()
    expected = whole.feed(stream) + whole.close()
    marks = sorted(min(at, len(stream)) for at in cuts)
    pieces = [stream[a:b] for a, b in zip([0, *marks], [*marks, len(stream)], strict=True)]
    assert [line for piece in pieces for line in cut.feed(piece)] + cut.close() == expected


LONG = b"x" * 1001


@each_row(
    "pieces",
    [
        [b"x"] * 1001,
        [LONG],
        [LONG + b"\n"],
        [b"{}\n" + LONG],
        [b"{}\n" + LONG + b"\n{}\n"],
        [b"{}\nxx", LONG[:999], b"\n"],
    ],
)
def test_an_endless_line_is_rejected(pieces: list[bytes]) -> None:
    decoder = LineDecoder(limit=1000)
    with pytest.raises(Parse, match="more than 1000 bytes"):
        [decoder.feed(piece) for piece in pieces]


def test_a_line_of_the_maximum_length_is_accepted() -> None:
    assert LineDecoder(limit=1000).feed(LONG[:1000] + b"\n") == [LONG[:1000]]


def test_encoded_lines_are_decoded() -> None:
    assert LineDecoder().feed(encode_line(b"{}") + encode_line(b'{"a":\n1}')) == [
        b"{}",
        b'{"a": 1}',
    ]
