"""SPEC E6: a recording that is killed, or runs out of disk, leaves a valid folder."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.killed import kill_recorders, leftovers
from support.recordings import key_of, recorded_folder, small_fixture

from anaphora.errors import Io
from anaphora.replay.fixture import Fixture
from anaphora.replay.signing import SigningKey, sign_folder
from anaphora.replay.store import FixtureStore


@pytest.mark.parametrize(
    "kills, workers, signed", [(14, 1, False), (8, 1, True), (8, 2, False)], ids=str
)
@pytest.mark.long
def test_kills_leave_a_valid_folder(tmp_path: Path, kills: int, workers: int, signed: bool) -> None:
    folder = tmp_path / "recordings"
    assert kill_recorders(folder, kills, workers=workers, signed=signed, seed=kills) >= kills
    if not signed:
        FixtureStore.open(folder).add(small_fixture("after"))
        assert leftovers(folder) == []


SYSTEM_CALLS = ("write", "replace", "link", "unlink", "ftruncate", "fsync")


class Killed(BaseException):
    pass


def steps(monkeypatch: pytest.MonkeyPatch, stop_at: int, torn: int | None = None) -> None:
    """From the `stop_at`th system call that changes something on, none does anything, as after a
    kill: cleaning up does not happen. Where that call is a write, its first `torn` bytes are
    written."""
    count = 0

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == stop_at and name == "write" and torn is not None:
                file, data = arguments
                real(file, bytes(data)[:torn])
            if count >= stop_at:
                raise Killed
            return real(*arguments, **options)

        return call

    for name in SYSTEM_CALLS:
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))


@pytest.fixture(scope="module")
def signing_key(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return SigningKey.generate(tmp_path_factory.mktemp("keys") / "replay.key")


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
@pytest.mark.parametrize("action", ["add", "remove", "create", "rules"])
def test_every_step_of_a_change_may_be_the_last(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
    signed: bool,
    signing_key: SigningKey,
) -> None:
    """Before or after: nothing in between is ever seen, and the next writer cleans up."""
    key = signing_key if signed else None
    for stop_at in range(1, 60):
        folder = tmp_path / str(stop_at)
        if action != "create":
            recorded_folder(folder)
            if key is not None:
                sign_folder(folder, key)
            if action == "rules":
                (folder / "replay.toml").write_text("shipped_rules = false")
            store = FixtureStore.open(folder, sign=key, changed_rules=action == "rules")
        done = True
        with monkeypatch.context() as patch:
            steps(patch, stop_at)
            try:
                if action == "add":
                    store.add_all([small_fixture("new"), small_fixture("0")])
                elif action == "remove":
                    store.remove([entry.path for entry in store.entries[:2]])
                elif action == "rules":
                    assert store.accept_rules()
                else:
                    FixtureStore.open(folder, create=True, sign=key)
            except Killed:
                done = False
        left = FixtureStore.open(folder, sign=key, changed_rules=action == "rules" and not done)
        counts = {"add": (4, 6), "remove": (4, 2), "create": (0, 0), "rules": (4, 4)}[action]
        assert len(left) in ((counts[1],) if done else counts)
        if action == "rules":
            left.accept_rules()
        again = FixtureStore.open(folder, create=True, sign=key)
        again.add(small_fixture("after"))
        assert leftovers(folder) == []
        assert len(FixtureStore.open(folder, sign=key)) == len(left) + 1
        if done:
            break
    assert done
    assert stop_at > 2


def test_kill_within_the_write_of_the_index_leaves_a_signed_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signing_key: SigningKey
) -> None:
    """The kernel ends a write between two pages when its process is killed, and a failing disk
    anywhere: the index that was signed stays as it was."""
    recorded_folder(tmp_path / "first", 15)
    sign_folder(tmp_path / "first", signing_key)
    index = tmp_path / "first" / "INDEX.toml"
    before = index.stat().st_size
    added = [small_fixture(f"new {number}") for number in range(6)]
    step, size = index_write(monkeypatch, tmp_path / "first", added, signing_key)
    assert before // 4096 != (before + size) // 4096, "must cross a page"
    found = set()
    for cut in sorted({4096 - before % 4096, *range(0, size, 97), size}):
        folder = tmp_path / f"cut {cut}"
        shutil.copytree(tmp_path / "first", folder)
        store = FixtureStore.open(folder, sign=signing_key)
        with monkeypatch.context() as patch:
            steps(patch, step, torn=cut)
            with pytest.raises(Killed):
                store.add_all(added)
        left = FixtureStore.open(folder, signed_by=signing_key.public)
        found.add(len(left))
        again = FixtureStore.open(folder, sign=signing_key)
        again.add(small_fixture("after"))
        assert leftovers(folder) == []
        assert len(FixtureStore.open(folder, signed_by=signing_key.public)) == len(left) + 1
    assert found == {15}


def index_write(
    monkeypatch: pytest.MonkeyPatch, folder: Path, added: list[Fixture], key: SigningKey
) -> tuple[int, int]:
    """Which system call of `add_all` writes the index, and how many bytes."""
    shutil.copytree(folder, copy := folder.with_name("copy"))
    store, calls = FixtureStore.open(copy, sign=key), list[int]()

    def noted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            data = bytes(arguments[1]) if real is write else b""
            calls.append(len(data) if b"[[fixture]]" in data else 0)
            return real(*arguments, **options)

        return call

    write = os.write
    with monkeypatch.context() as patch:
        for name in SYSTEM_CALLS:
            patch.setattr(os, name, noted(getattr(os, name)))
        store.add_all(added)
    return next((number, size) for number, size in enumerate(calls, 1) if size)


@pytest.mark.parametrize("fails_at", range(1, 4))
def test_full_disk_is_an_io_error_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    recorded_folder(tmp_path)
    store = FixtureStore.open(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    real, count = os.write, 0

    def full(file: int, data: bytes) -> int:
        """Half of it fits, then nothing."""
        nonlocal count
        count += 1
        if count < fails_at:
            return real(file, data)
        if count == fails_at:
            return real(file, bytes(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(Io, match="cannot be written: No space left on device"):
            store.add_all([small_fixture("new"), small_fixture("0")])
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert [one.number for one in store.add_all([small_fixture("0")])] == [1]
    assert len(FixtureStore.open(tmp_path).by_key(key_of("0"))) == 2


def test_entry_that_a_crash_cut_off_is_ignored_and_removed(tmp_path: Path) -> None:
    """Power was lost after the rename, while the index was on its way to the disk."""
    files = recorded_folder(tmp_path)
    index = tmp_path / "INDEX.toml"
    whole = index.read_bytes()
    (tmp_path / f".pending-{files[-1].name}").touch()
    for cut in range(1, len(whole) - whole.rindex(b"[[fixture]]") - 2, 20):
        index.write_bytes(whole[:-cut])
        assert len(FixtureStore.open(tmp_path)) in (3, 4)
    assert len(FixtureStore.open(tmp_path)) == 3
    store = FixtureStore.open(tmp_path)
    store.add(small_fixture("new"))
    assert len(FixtureStore.open(tmp_path)) == 4
    assert not files[-1].exists()
    assert leftovers(tmp_path) == []
