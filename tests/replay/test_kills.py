"""SPEC E6: a recording that is killed, or runs out of disk, leaves a valid folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.killed import kill_recorders, leftovers
from support.recordings import key_of, recorded_folder, small_fixture

from anaphora.errors import Io
from anaphora.replay.store import FixtureStore


@pytest.mark.parametrize(
    "kills, workers, signed", [(14, 1, False), (8, 1, True), (8, 2, False)], ids=str
)
def test_kills_leave_a_valid_folder(tmp_path: Path, kills: int, workers: int, signed: bool) -> None:
    folder = tmp_path / "recordings"
    assert kill_recorders(folder, kills, workers=workers, signed=signed, seed=kills) >= kills
    if not signed:
        FixtureStore.open(folder).add(small_fixture("after"))
        assert leftovers(folder) == []


class Killed(BaseException):
    pass


def steps(monkeypatch: pytest.MonkeyPatch, stop_at: int) -> None:
    """From the `stop_at`th system call that changes something on, none does anything, as after a
    kill: cleaning up does not happen."""
    count = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count >= stop_at:
                raise Killed
            return real(*arguments, **options)

        return call

    for name in ("write", "replace", "link", "unlink", "ftruncate", "fsync"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))


@pytest.mark.parametrize("action", ["add", "remove", "create"])
def test_every_step_of_a_change_may_be_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """Before or after: nothing in between is ever seen, and the next writer cleans up."""
    for stop_at in range(1, 40):
        folder = tmp_path / str(stop_at)
        if action != "create":
            recorded_folder(folder)
            store = FixtureStore.open(folder)
        done = True
        with monkeypatch.context() as patch:
            steps(patch, stop_at)
            try:
                if action == "add":
                    store.add_all([small_fixture("new"), small_fixture("0")])
                elif action == "remove":
                    store.remove([entry.path for entry in store.entries[:2]])
                else:
                    FixtureStore.open(folder, create=True)
            except Killed:
                done = False
        left = FixtureStore.open(folder)
        counts = {"add": (4, 6), "remove": (4, 2), "create": (0, 0)}[action]
        assert len(left) in ((counts[1],) if done else counts)
        again = FixtureStore.open(folder, create=True)
        again.add(small_fixture("after"))
        assert leftovers(folder) == []
        assert len(FixtureStore.open(folder)) == len(left) + 1
        if done:
            break
    assert done
    assert stop_at > 2


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
