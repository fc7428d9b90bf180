"""Checks a fixture folder against its index, and keeps the bytes that were checked.

Each check has a name, which `anaphora replay verify` prints:

    index       INDEX.toml is missing, or not an index
    path        a path leaves the folder, or cannot be that of a fixture
    duplicate   two entries are one file, on some file system at least
    missing     a listed file does not exist
    link        a symbolic link
    kind        neither a file nor a folder: a pipe, a socket, a device
    unlisted    a file that the index does not list
    hash        the content differs from the hash in the index
    key         the fixture has another key, number or digest than the index says
    format      not a fixture, or its raw_hash is wrong

A recording that was interrupted leaves files whose names begin with a dot, and `.pending-NAME` for
each NAME that may exist without an entry. Neither is served; the next writer removes them.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote, unquote

import msgspec
from blake3 import blake3

from anaphora.errors import FixtureIntegrityFailed, Io

from .fixture import beginning, from_file
from .index import (
    BESIDE,
    ENTRY_START,
    INDEX,
    RULES,
    SIGNATURE,
    FixtureEntry,
    folded,
    listed_rules,
    path_problem,
    read_own_form,
    read_toml,
)

PENDING = ".pending-"
TEMPORARY = ".tmp-"

#: Bytes of fixtures that are kept in memory; the files of the others are read, and checked, again
#: when they are served.
KEPT_BYTES = 256 * 2**20

#: Large enough for the largest recorded body, JSON-escaped.
_LARGEST = 2 * 2**30

_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_READ |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

#: Wraps the entries to show progress.
Track: TypeAlias = Callable[[Iterable[FixtureEntry], int], Iterable[FixtureEntry]]


def pending_name(path: str) -> str:
    """The name of the file that exists while this fixture is added or removed."""
    return PENDING + quote(path, safe="")


class FixtureProblem(msgspec.Struct, frozen=True):
    check: str
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class CheckedFolder:
    """The result of a check."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = b""
        """Its bytes without an incomplete entry at the end."""
        self.own_form = True
        """The index has the form that a recorder writes, and can be appended to."""
        self.cut_off = 0
        """Bytes of an incomplete entry at the end."""
        self.identity: tuple[int, int] = (0, 0)
        """Device and inode of the index; 0 without one."""
        self.entries: list[FixtureEntry] = []
        """The entries, with key and number."""
        self.data: dict[str, bytes] = {}
        """Verified contents of files that are kept in memory."""
        self.listed_rules = ""
        """The hash of replay.toml in the index; empty if it lists none."""
        self.rules: bytes | None = None
        """The content of replay.toml; None without one."""
        self.problems: list[FixtureProblem] = []
        self.interrupted: list[str] = []
        """Files of recordings that were interrupted, which the next writer removes."""
        self.kept = 0

    def problem(self, check: str, path: str, message: str) -> None:
        self.problems.append(FixtureProblem(check, path, message))

    def raise_problems(self) -> None:
        if not self.problems:
            return
        more = len(self.problems) - 1
        rest = (
            f" (and {more:,} more: anaphora replay verify {shlex.quote(str(self.folder))})"
            if more
            else ""
        )
        raise FixtureIntegrityFailed(f"{self.folder}: {self.problems[0]}{rest}")


def check_folder(folder: Path, *, track: Track | None = None, deep: bool = False) -> CheckedFolder:
    """Check everything; `deep` also decodes every fixture. The caller holds the folder's lock.
    Raises `Io` for a folder that cannot be read, and `OtherSchema`."""
    checked = CheckedFolder(folder)
    files = _Scan(checked, folder)
    _read_index(checked, files)
    if checked.problems:
        return checked
    _check_rules(checked, files)
    listed = _listed(checked, files)
    judged = {problem.path for problem in checked.problems}
    for path in files.names.keys() - listed.keys() - judged:
        _judge_unlisted(checked, files, path)
    rows: Iterable[FixtureEntry] = listed.values()
    for entry in rows if track is None else track(rows, len(listed)):
        if (data := _verified(checked, entry)) is not None:
            entry = _with_key(checked, entry, data, deep=deep)
            checked.entries.append(entry)
            keep(checked, entry.path, data)
    _check_numbers(checked)
    return checked


def keep(checked: CheckedFolder, path: str, data: bytes) -> None:
    if checked.kept + len(data) <= KEPT_BYTES:
        checked.kept += len(data)
        checked.data[path] = data


def read_file(path: str) -> bytes:
    """The content of a regular file. Links are not followed."""
    file = os.open(path, _READ)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "not a regular file")
        if found.st_size > _LARGEST:
            raise OSError(0, f"larger than {_LARGEST >> 30} GB")
        data = os.read(file, found.st_size + 1)
        if len(data) == found.st_size:
            return data
        pieces = [data]
        while piece := os.read(file, 1 << 20):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(file)


def verified_file(folder: Path, entry: FixtureEntry) -> bytes:
    """The content of a fixture's file. Raises if its hash is not that of the index."""
    try:
        data = read_file(os.path.join(folder, entry.path))
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise FixtureIntegrityFailed(f"{folder}: {entry.path}: {reason}") from None
    if blake3(data).hexdigest() != entry.blake3:
        raise FixtureIntegrityFailed(f"{folder}: {entry.path}: {_CHANGED}")
    return data


_CHANGED = "the content has changed: its BLAKE3 is not the one in the index"


class _Scan:
    """The names below a folder. Folders that begin with a dot are skipped."""

    def __init__(self, checked: CheckedFolder, folder: Path) -> None:
        self.names: dict[str, os.DirEntry[str]] = {}
        self.pending: set[str] = set()
        self.temporary: list[str] = []
        try:
            self._scan(checked, str(folder), "")
        except OSError as problem:
            raise Io(f"{folder}: cannot be read: {problem.strerror or problem}") from None

    def _scan(self, checked: CheckedFolder, place: str, prefix: str) -> None:
        with os.scandir(place) as found:
            for item in found:
                name = item.name
                if name[0] == ".":
                    self._hidden(name, prefix)
                elif item.is_dir(follow_symlinks=False):
                    # A folder without an index is not a fixture folder: it may be a whole disk.
                    if prefix or os.path.lexists(os.path.join(place, INDEX)):
                        self._scan(checked, item.path, f"{prefix}{name}/")
                    else:
                        self.names[name] = item
                else:
                    self.names[prefix + name] = item

    def _hidden(self, name: str, prefix: str) -> None:
        if prefix:
            return
        if name.startswith(PENDING):
            self.pending.add(unquote(name.removeprefix(PENDING)))
        elif name.startswith(TEMPORARY):
            self.temporary.append(name)


def _read_index(checked: CheckedFolder, files: _Scan) -> None:
    checked.interrupted += files.temporary
    checked.interrupted += map(pending_name, files.pending)
    item = files.names.get(INDEX)
    if item is None:
        if files.names.keys() - BESIDE:
            checked.problem("index", INDEX, "does not exist, but there are files that it must list")
        return
    if not item.is_file(follow_symlinks=False):
        checked.problem("index", INDEX, "must be a file, not a link or folder")
        return
    try:
        checked.index = read_file(item.path)
    except OSError as problem:
        raise Io(f"{item.path}: cannot be read: {problem.strerror or problem}") from None
    found = item.stat()
    checked.identity = found.st_dev, found.st_ino
    place = os.path.join(checked.folder, INDEX)
    try:
        _read_entries(checked, checked.index, place)
    except FixtureIntegrityFailed as problem:
        if not (files.pending and _cut_off(checked, place)):
            message = str(problem).removeprefix(f"{place}: ")
            checked.problem("index", INDEX, message)


def _read_entries(checked: CheckedFolder, data: bytes, place: str) -> None:
    entries = read_own_form(data)
    checked.own_form = entries is not None
    checked.entries = read_toml(data, place) if entries is None else entries
    checked.listed_rules = listed_rules(data, place)


def _cut_off(checked: CheckedFolder, place: str) -> bool:
    """Whether all but the last entry is an index: a full or failing disk interrupted the writer."""
    end = checked.index.rfind(ENTRY_START)
    if end < 0:
        return False
    try:
        _read_entries(checked, checked.index[:end], place)
    except FixtureIntegrityFailed:
        return False
    checked.cut_off = len(checked.index) - end
    checked.index = checked.index[:end]
    return True


def _check_rules(checked: CheckedFolder, files: _Scan) -> None:
    """Checks replay.toml, which decides the answer to a request and the secrets to remove. In a
    folder without recordings it may be new: the first recording lists it."""
    item, listed = files.names.get(RULES), checked.listed_rules
    accept = f"if you changed it: anaphora replay accept-rules {shlex.quote(str(checked.folder))}"
    if item is None:
        if listed:
            checked.problem(
                "missing", RULES, f"is listed in the index and does not exist; {accept}"
            )
        return
    if not item.is_file(follow_symlinks=False):
        return  # reported with the other files
    try:
        checked.rules = read_file(item.path)
    except OSError as problem:
        checked.problem("kind", RULES, f"cannot be read: {problem.strerror or problem}")
        return
    if not listed and (checked.entries or SIGNATURE in files.names):
        checked.problem("unlisted", RULES, f"is not listed in the index; {accept}")
    elif listed and rules_hash(checked.rules) != listed:
        checked.problem("hash", RULES, f"{_CHANGED}; {accept}")


def rules_hash(rules: bytes | None) -> str:
    """The hash of a replay.toml as the index lists it; empty without one."""
    return "" if rules is None else blake3(rules).hexdigest()


def _listed(checked: CheckedFolder, files: _Scan) -> dict[str, FixtureEntry]:
    """The entries whose files exist and may be read, by path."""
    entries, checked.entries = checked.entries, []
    listed: dict[str, FixtureEntry] = {}
    seen: dict[str, str] = {}
    for entry in entries:
        path = entry.path
        if reason := path_problem(path):
            checked.problem("path", path, reason)
            continue
        other = seen.setdefault(folded(path), path)
        if path in listed or other != path:
            same = "is listed twice" if other == path else f"is the same file name as {other}"
            checked.problem("duplicate", path, same)
            continue
        listed[path] = entry
    return {path: entry for path, entry in listed.items() if _is_there(checked, files, path)}


def _is_there(checked: CheckedFolder, files: _Scan, path: str) -> bool:
    item = files.names.get(path)
    if item is not None:
        if item.is_file(follow_symlinks=False):
            return True
        _judge_kind(checked, item, path)
        return False
    for part in _parents(path):
        if (above := files.names.get(part)) is not None and above.is_symlink():
            checked.problem("link", path, f"{part} is a symbolic link")
            return False
    if os.path.isdir(os.path.join(checked.folder, path)):
        checked.problem("kind", path, "is a folder, not a file")
    else:
        checked.problem("missing", path, "is listed in the index and does not exist")
    return False


def _parents(path: str) -> Iterator[str]:
    steps = path.split("/")
    for count in range(1, len(steps)):
        yield "/".join(steps[:count])


def _judge_kind(checked: CheckedFolder, item: os.DirEntry[str], path: str) -> None:
    if item.is_symlink():
        checked.problem("link", path, "is a symbolic link; fixtures are files in the folder")
    else:
        checked.problem("kind", path, "is neither a file nor a folder")


def _judge_unlisted(checked: CheckedFolder, files: _Scan, path: str) -> None:
    item = files.names[path]
    if not item.is_file(follow_symlinks=False):
        _judge_kind(checked, item, path)
    elif path in BESIDE:
        return
    elif path in files.pending and not path_problem(path):
        checked.interrupted.append(path)
    else:
        checked.problem("unlisted", path, "is not listed in the index")


def _verified(checked: CheckedFolder, entry: FixtureEntry) -> bytes | None:
    try:
        data = read_file(f"{checked.folder}/{entry.path}")
    except OSError as problem:
        checked.problem("kind", entry.path, f"cannot be read: {problem.strerror or problem}")
        return None
    if blake3(data).hexdigest() != entry.blake3:
        checked.problem("hash", entry.path, _CHANGED)
        return None
    return data


def _with_key(
    checked: CheckedFolder, entry: FixtureEntry, data: bytes, *, deep: bool
) -> FixtureEntry:
    """The entry with key, number and digest, which must be those in the file."""
    begins = bool(entry.key) and data.startswith(beginning(entry.key, entry.number, entry.exact))
    if begins and not deep:
        return entry
    try:
        fixture = from_file(data, entry.path)
    except FixtureIntegrityFailed as problem:
        message = str(problem).removeprefix(f"{entry.path}: ")
        checked.problem("format", entry.path, message)
        return entry
    found = fixture.key, fixture.number, fixture.exact
    if entry.key and found != (entry.key, entry.number, entry.exact):
        checked.problem("key", entry.path, "has another key or number than the index says")
    return FixtureEntry(entry.path, entry.blake3, *found)


def _check_numbers(checked: CheckedFolder) -> None:
    """The order of fixtures with one key must be defined."""
    seen: dict[tuple[str, int], str] = {}
    for entry in checked.entries:
        other = seen.setdefault((entry.key, entry.number), entry.path)
        if other != entry.path and entry.key:
            checked.problem("duplicate", entry.path, f"has the same key and number as {other}")
