"""The quick reader of the index reads what tomllib reads, or leaves it to tomllib."""

from __future__ import annotations

import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.errors import FixtureIntegrityFailed, OtherSchema
from anaphora.replay.index import (
    HEADER,
    FixtureEntry,
    appended,
    path_problem,
    read_own_form,
    read_toml,
    whole,
)

hashes = st.integers(0, 2**256 - 1).map(lambda number: f"{number:064x}")
names = st.one_of(
    st.text("abc/._- é", min_size=1, max_size=12).map(lambda text: f"{text}.json"),
    hashes.map(lambda text: f"{text[:32]}-0.json"),
)
entries = st.lists(
    st.builds(
        FixtureEntry, names, hashes, hashes, st.integers(0, 10**9), st.one_of(st.just(""), hashes)
    ),
    max_size=25,
)


@given(entries)
def test_both_readers_read_what_is_written(rows: list[FixtureEntry]) -> None:
    data = whole(rows)
    assert read_own_form(data) == rows
    assert read_toml(data, "INDEX.toml") == rows


@given(entries, entries)
def test_appending_is_the_same_as_writing_at_once(
    before: list[FixtureEntry], after: list[FixtureEntry]
) -> None:
    data = whole(before)
    assert data + appended(after, len(data)) == whole([*before, *after])


@given(entries)
def test_no_entry_crosses_a_page(rows: list[FixtureEntry]) -> None:
    """A kill while the index is written leaves a whole number of entries."""
    data = whole(rows)
    for end in range(0, len(data), 4096):
        assert read_own_form(data[:end] or HEADER) == rows[: data[:end].count(b"[[fixture]]")]


@given(entries.filter(bool), st.data())
def test_a_changed_index_is_read_alike(rows: list[FixtureEntry], data: st.DataObject) -> None:
    """Every change of bytes: where the quick reader accepts it, tomllib reads the same."""
    index = bytearray(whole(rows))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(index) - 1))
        new = data.draw(st.sampled_from([b"", b"\n", b'"', b"\\", b"0", b"A", b"#", b" ", b"\xff"]))
        index[at : at + data.draw(st.integers(0, 2))] = new
    quick = read_own_form(bytes(index))
    if quick is not None:
        assert read_toml(bytes(index), "INDEX.toml") == quick


@each_row(
    "index, error, message",
    [
        ("schema_version = 2", OtherSchema, "schema_version 2 is newer"),
        ("schema_version = 0", FixtureIntegrityFailed, "schema_version must be a number"),
        ('schema_version = "1"', FixtureIntegrityFailed, "schema_version must be a number"),
        ("schema_version = true", FixtureIntegrityFailed, "schema_version must be a number"),
        ("[[fixture]", FixtureIntegrityFailed, "not TOML"),
        ("fixture = 1", FixtureIntegrityFailed, r"must be written as \[\[fixture\]\]"),
        ("fixture = [1]", FixtureIntegrityFailed, "fixture 1: must be a table"),
        ("[[fixture]]", FixtureIntegrityFailed, "fixture 1: has no path"),
        ("[[fixture]]\npath = 'a.json'", FixtureIntegrityFailed, "blake3 must be 64 lower-case"),
    ],
)
def test_what_is_not_an_index(index: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_toml(index.encode(), "INDEX.toml")


def test_index_by_hand_needs_path_and_hash_only() -> None:
    hash = "0" * 64
    text = f"fixture = [{{path = 'a.json', blake3 = '{hash}', note = 'mine'}}]"
    assert read_toml(text.encode(), "INDEX.toml") == [FixtureEntry("a.json", hash)]


@each_row(
    "path, reason",
    [
        ("a.json", ""),
        ("sub/a b.json", ""),
        ("é.json", ""),
        ("/a.json", "absolute"),
        ("\\a.json", "absolute"),
        ("C:a.json", "absolute"),
        ("../a.json", "leaves"),
        ("a/../b.json", "leaves"),
        ("a\\..\\b.json", "leaves"),
        ("a\\b.json", "character"),
        ("a\x00.json", "character"),
        ("ab:c.json", "character"),
        ("./a.json", "hidden"),
        ("a//b.json", "hidden"),
        (".a.json", "hidden"),
        ("a./b.json", "hidden"),
        ("a.json ", "hidden"),
        ("INDEX.toml", "ends with .json"),
        ("a.JSON", "ends with .json"),
    ],
)
def test_paths(path: str, reason: str) -> None:
    assert re.search(reason, path_problem(path))
    assert bool(path_problem(path)) == bool(reason)


def test_the_form_is_the_documented_one() -> None:
    table = tomllib.loads(whole([FixtureEntry("a.json", "0" * 64, "1" * 64, 2, "")]).decode())
    row = {"path": "a.json", "blake3": "0" * 64, "key": "1" * 64, "number": 2, "exact": ""}
    assert table == {"schema_version": 1, "fixture": [row]}
