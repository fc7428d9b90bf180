"""Whole bodies of other programs' exchanges, whatever their content encoding."""

from __future__ import annotations

import gzip
import importlib.util
import zlib

import pytest
from support.tables import each_row

from anaphora.client.transport.decoding import (
    InvalidCompression,
    UnknownCompression,
    decoded,
    encodings,
)

TEXT = b'{"usage": ' + b"12, " * 5000 + b"}"
BOTH = gzip.compress(zlib.compress(TEXT), mtime=0)


@pytest.mark.parametrize(
    ("header", "names"),
    [("", []), ("identity", []), ("GZIP", ["gzip"]), ("deflate , gzip", ["deflate", "gzip"])],
)
def test_header_names_encodings_in_their_order(header: str, names: list[str]) -> None:
    assert encodings(header) == names


@each_row(
    ("header", "body"),
    [
        ("", TEXT),
        ("gzip", gzip.compress(TEXT, mtime=0)),
        ("deflate", zlib.compress(TEXT)),
        ("deflate, gzip", BOTH),
        ("identity, x-gzip", gzip.compress(TEXT, mtime=0)),
    ],
)
def test_last_encoding_is_undone_first(header: str, body: bytes) -> None:
    assert decoded(body, header, len(TEXT)) == TEXT


@pytest.mark.parametrize(
    ("body", "most", "reason"),
    [
        (gzip.compress(TEXT, mtime=0), 100, "larger than 100 bytes"),
        (gzip.compress(TEXT, mtime=0)[:-9], 10**6, "ends early"),
        (b"no gzip", 10**6, "is broken"),
    ],
)
def test_broken_and_oversized_bodies_are_refused(body: bytes, most: int, reason: str) -> None:
    with pytest.raises(InvalidCompression, match=reason):
        decoded(body, "gzip", most)


@pytest.mark.parametrize(
    ("name", "packages", "hint"),
    [
        ("br", ("brotli", "brotlicffi"), "; install brotli to read it"),
        ("zstd", ("compression", "backports", "zstandard"), "; install backports.zstd to read it"),
        ("lzma", (), ""),
    ],
)
def test_unknown_encoding_names_what_would_read_it(
    name: str, packages: tuple[str, ...], hint: str
) -> None:
    if any(importlib.util.find_spec(package) for package in packages):
        pytest.skip(f"{name} can be read here")
    with pytest.raises(UnknownCompression) as problem:
        decoded(b"x", name, 100)
    assert str(problem.value) == f"compressed with {name}{hint}"
