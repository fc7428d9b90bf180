"""A folder of fixtures: what is added is found again, by this process and by others."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from anaphora.errors import FixtureIntegrityFailed, InvalidRequest, Io
from anaphora.replay.fixture import Fixture, FixturePiece, from_file, to_file
from anaphora.replay.signing import SigningKey, sign_folder
from anaphora.replay.store import FixtureStore


def key(name: str) -> str:
    return blake3(name.encode()).hexdigest()


def fixture(name: str, text: str = "hello") -> Fixture:
    return Fixture(key=key(name), model="m", pieces=(FixturePiece(0.5, text.encode()),))


def test_added_fixtures_are_found_by_key_in_order(tmp_path: Path) -> None:
    store = FixtureStore.open(tmp_path / "new", create=True)
    assert [store.add(fixture("a", text)).number for text in ("one", "two")] == [0, 1]
    store.add(fixture("b"))
    for found in (store, FixtureStore.open(tmp_path / "new")):
        assert [each.payload for each in found.by_key(key("a"))] == [b"one", b"two"]
        assert [each.payload for each in found.by_key(key("b"))] == [b"hello"]
        assert not found.by_key(key("c"))
        assert len(found.entries) == 3


def test_index_is_toml_with_a_path_and_a_hash_for_each_file(tmp_path: Path) -> None:
    store = FixtureStore.open(tmp_path, create=True, sync=False)
    store.add_all(fixture(str(number)) for number in range(100))
    index = tomllib.loads((tmp_path / "INDEX.toml").read_text())
    assert index["schema_version"] == 1
    assert len(index["fixture"]) == 100
    for row in index["fixture"]:
        assert blake3((tmp_path / row["path"]).read_bytes()).hexdigest() == row["blake3"]


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_only_the_user_can_read_recordings(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        store = FixtureStore.open(tmp_path / "deep" / "new", create=True)
        store.add(fixture("a"))
    finally:
        os.umask(before)
    for folder in (store.folder, store.folder.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in store.folder.iterdir()} == {0o600}


#: Indexes that were written by hand, with what nothing can be appended to.
BY_HAND: dict[str, Callable[[str], str]] = {
    "no line break at the end": lambda text: text.rstrip(),
    "a comment at the end": lambda text: text + "# checked by hand",
    "an inline list": lambda text: (
        "fixture = ["
        + ", ".join(
            f"{{path = '{row['path']}', blake3 = '{row['blake3']}'}}"
            for row in tomllib.loads(text)["fixture"]
        )
        + "]"
    ),
}


@pytest.mark.parametrize("form", BY_HAND)
@pytest.mark.parametrize("signed", [False, True])
def test_index_that_was_written_by_hand_is_continued(
    tmp_path: Path, form: str, signed: bool
) -> None:
    folder = tmp_path / "recordings"
    FixtureStore.open(folder, create=True).add_all([fixture("a"), fixture("b")])
    index = folder / "INDEX.toml"
    index.write_text(BY_HAND[form](index.read_text()))
    sign = SigningKey.generate(tmp_path / "key") if signed else None
    if sign is not None:
        sign_folder(folder, sign)
    store = FixtureStore.open(folder, sign=sign)
    assert [store.add(fixture(name)).number for name in ("c", "a")] == [0, 1]
    again = FixtureStore.open(folder, signed_by=None if sign is None else sign.public)
    assert [len(again.by_key(key(name))) for name in "abc"] == [2, 1, 1]


def test_two_stores_write_to_one_folder(tmp_path: Path) -> None:
    stores = [FixtureStore.open(tmp_path, create=True) for _ in range(2)]
    numbers = [stores[turn % 2].add(fixture("a", str(turn))).number for turn in range(6)]
    assert numbers == list(range(6))
    stores[0].remove([stores[0].entries[0].path])
    assert stores[1].add(fixture("a", "6")).number == 6
    assert len(FixtureStore.open(tmp_path)) == 6


def test_two_stores_remove_the_same_fixtures(tmp_path: Path) -> None:
    FixtureStore.open(tmp_path, create=True).add_all(map(fixture, "abc"))
    stores = [FixtureStore.open(tmp_path) for _ in range(2)]
    paths = [entry.path for entry in stores[0].entries]
    stores[0].remove(paths[:1])
    stores[1].remove(paths[:2])
    stores[0].remove(paths[1:2])
    assert [entry.path for entry in FixtureStore.open(tmp_path).entries] == paths[2:]


def test_what_was_verified_is_served_after_the_file_has_changed(tmp_path: Path) -> None:
    FixtureStore.open(tmp_path, create=True).add(fixture("a"))
    store = FixtureStore.open(tmp_path)
    (file,) = tmp_path.glob("*.json")
    file.write_bytes(file.read_bytes().replace(b"hello", b"HELLO"))
    assert store.by_key(key("a"))[0].payload == b"hello"
    with pytest.raises(FixtureIntegrityFailed, match="content has changed"):
        FixtureStore.open(tmp_path)


def test_fixtures_that_are_not_kept_are_verified_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anaphora.replay.integrity.KEPT_BYTES", 0)
    FixtureStore.open(tmp_path, create=True).add(fixture("a"))
    store = FixtureStore.open(tmp_path)
    assert store.by_key(key("a"))[0].payload == b"hello"
    (file,) = tmp_path.glob("*.json")
    file.write_bytes(file.read_bytes().replace(b"hello", b"HELLO"))
    with pytest.raises(FixtureIntegrityFailed, match="content has changed"):
        store.by_key(key("a"))[0]


def test_missing_folder_is_an_io_error(tmp_path: Path) -> None:
    with pytest.raises(Io, match="no such folder"):
        FixtureStore.open(tmp_path / "none")


def test_removed_fixtures_are_gone(tmp_path: Path) -> None:
    store = FixtureStore.open(tmp_path, create=True)
    for name in "abc":
        store.add(fixture(name))
    paths = [entry.path for entry in store.entries]
    store.remove(paths[:2])
    assert [entry.path for entry in store.entries] == paths[2:]
    assert {file.name for file in tmp_path.iterdir()} == {"INDEX.toml", paths[2]}
    with pytest.raises(InvalidRequest, match="no fixture of"):
        store.remove(paths[:1])


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.binary(max_size=40)), max_size=5),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30),
    st.binary(max_size=60),
)
def test_a_file_holds_every_byte(
    pieces: list[tuple[float, bytes]], path: str, header: str, request: bytes
) -> None:
    made = Fixture(
        key=key("a"),
        path=path,
        request=request,
        headers=(("content-type", header),),
        pieces=tuple(FixturePiece(round(seconds, 6), data) for seconds, data in pieces),
    )
    assert from_file(to_file(made), "place") == made
