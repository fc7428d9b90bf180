"""The file of the index: many processes, damage, permissions, size, and what it never holds."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.waiting import PATIENCE

from anaphora.cache.plan import SeenBeginning, SeenUse
from anaphora.client import seen_file
from anaphora.client.seen import SeenIndex

SCOPE = "anthropic\0host\0model"
PROGRAM = Path(__file__).with_name("seen_processes.py")
MOST_BYTES = 20_000_000


def use(key: bytes, at: float, *, continued: bool = False) -> SeenUse:
    return SeenUse(key=key, at=at, tokens=2000, continued=continued, written_until=at + 300)


def run(path: Path, act: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(path), act],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def found_after(index: SeenIndex, *uses: SeenUse) -> dict[int, SeenBeginning]:
    async def main() -> dict[int, SeenBeginning]:
        index.record(SCOPE, uses)
        await index.flush()
        return await index.find(SCOPE, {3: b"one", 4: b"two"})

    return asyncio.run(main())


def content(path: Path) -> bytes:
    return b"".join(each.read_bytes() for each in path.parent.iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "anaphora" / "seen.sqlite"


def test_another_index_finds_times_and_counts(path: Path) -> None:
    now = time.time() // 1
    first = SeenIndex(path)
    found_after(first, use(b"one", now - 100), use(b"one", now - 40, continued=True))
    found = found_after(SeenIndex(path), use(b"one", now))
    assert list(found) == [3]
    assert found[3] == SeenBeginning(
        last=now, started=2, continued=1, pauses=(60, 40), written_until=now + 300
    )


def test_scopes_are_separate(path: Path) -> None:
    index = SeenIndex(path)
    found_after(index, use(b"one", 1.0))

    async def elsewhere() -> object:
        return await index.find("anthropic\0host\0other", {3: b"one"})

    assert asyncio.run(elsewhere()) == {}


def test_fifty_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    answers = run(tmp_path / "seen.sqlite", "many")
    assert answers["parent"] == [51]
    assert len(answers["children"]) == 50


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_read_only_file_is_read_and_a_read_only_folder_is_no_error(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):  # the other user has to reach it
        if folder.stat().st_uid == 0 and folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    answers = run(tmp_path / "seen.sqlite", "read-only")
    assert answers["mode"] == "0o100600"
    assert answers["file"] == [1]
    assert answers["folder"] in ([], [1])


def test_a_full_disk_is_no_error(tmp_path: Path) -> None:
    assert run(tmp_path / "seen.sqlite", "full") == [1]


def damage_beginning(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)


def damage_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def another_program(path: Path) -> None:
    path.unlink()
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE mine (text TEXT)")
    database.close()


def newer(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()


def foreign_values(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("UPDATE beginnings SET last = 'x', pauses = 'y', tokens = zeroblob(3)")
    database.commit()
    database.close()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        damage_beginning,
        damage_middle,
        cut,
        another_program,
        newer,
        foreign_values,
        a_folder,
    ],
)
def test_a_file_that_cannot_be_used_is_no_error(path: Path, damage: Any) -> None:
    index = SeenIndex(path)
    found_after(index, *(use(b"%d" % number, 1.0) for number in range(200)), use(b"one", 1.0))
    index._finish()
    damage(path)
    before = path.read_bytes() if path.is_file() else b""
    broken = SeenIndex(path)
    assert found_after(broken, use(b"two", 2.0)) == {}
    assert found_after(broken, use(b"two", 2.0)) == {}
    if damage is another_program:
        assert b"mine" in path.read_bytes()[:8192]
    if damage is damage_beginning:
        assert path.read_bytes() == before


def test_a_file_of_a_link_is_left_alone(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    other = tmp_path / "other"
    other.write_bytes(b"")
    path.symlink_to(other)
    assert found_after(SeenIndex(path), use(b"one", 1.0)) == {}
    assert other.read_bytes() == b""


def test_only_the_user_can_read_it(path: Path) -> None:
    path.parent.mkdir()
    path.touch(mode=0o644)
    path.chmod(0o644)
    index = SeenIndex(path)
    assert found_after(index, use(b"one", 1.0))
    modes = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
    assert modes == dict.fromkeys(("seen.sqlite", "seen.sqlite-wal", "seen.sqlite-shm"), 0o600)
    index._finish()


@pytest.mark.long
def test_the_size_is_bounded_and_the_newest_stay(path: Path) -> None:
    index, sizes = SeenIndex(path), []

    async def main() -> int:
        for batch in range(40):
            keys = (b"%d" % number for number in range(batch * 2500, batch * 2500 + 2500))
            index.record(SCOPE, [use(key, float(batch)) for key in keys])
            await index.flush()
            sizes.append(seen_file.file_bytes(path))
        newest = {number: b"%d" % number for number in range(99_900, 100_000)}
        return len(await index.find(SCOPE, newest))

    assert asyncio.run(main()) == 100
    assert max(sizes) <= MOST_BYTES
    index._finish()
    with closing(sqlite3.connect(path)) as database, database:
        ((kept,),) = database.execute("SELECT count(*) FROM beginnings").fetchall()
    database.close()
    assert 20_000 < kept <= seen_file.MOST_BEGINNINGS + 5000


def test_the_page_limit_drops_the_oldest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_file, "_MOST_PAGES", 16)
    index = SeenIndex(path)
    for batch in range(20):
        keys = (b"%d" % number for number in range(batch * 100, batch * 100 + 100))
        found = found_after(index, *(use(key, float(batch)) for key in keys), use(b"one", 50.0))
        assert list(found) == [3]
    index._finish()
    assert path.stat().st_size <= 16 * 4096


def test_neither_keys_of_prompts_nor_names_are_in_the_file(path: Path) -> None:
    index = SeenIndex(path)
    key = b"a-key-of-a-prompt"
    found_after(index, use(key, time.time()))
    for secret in (key, b"anthropic", b"host", b"model"):
        assert secret not in content(path)
    index._finish()
    assert key not in content(path)


def test_a_slow_file_delays_one_call_at_most(path: Path) -> None:
    """Another process holds the file: the first call waits a moment, later ones do not."""
    index = SeenIndex(path)
    found_after(index, use(b"one", 1.0))
    index._finish()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    late = SeenIndex(path)

    async def main() -> tuple[Any, bool, Any]:
        first = await late.find(SCOPE, {3: b"one"})
        was_late = late._is_late
        return first, was_late, await late.find(SCOPE, {3: b"one"})

    assert asyncio.run(main()) == ({}, True, {})
    holder.close()
    late._finish()
