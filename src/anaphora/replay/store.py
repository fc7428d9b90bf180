"""A folder of fixtures: verified when it is opened, written so that a kill cannot damage it.

    store = FixtureStore.open("recordings", create=True)
    store.add(fixture)
    store.by_key(key)                the fixtures with this key, in the order they were recorded

To add a fixture: its file under a temporary name, `.pending-NAME`, the rename to NAME, then the
entry at the end of the index, then `.pending-NAME` is removed. A signed index is replaced by the
next one as a whole, whose signature was written before. A kill leaves at most a file that
has no entry and is named by `.pending-NAME`; it is ignored, and the next writer removes it. Several
processes may write to one folder.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import overload

import msgspec
from blake3 import blake3

from anaphora.errors import InvalidRequest, Io

from .disk import FolderWriter, create_folder, io_errors, locked, remove
from .fixture import Fixture, from_file, to_file
from .index import (
    INDEX,
    RULES,
    SIGNATURE,
    FixtureEntry,
    appended,
    file_name,
    read_entries,
    whole,
)
from .integrity import (
    CheckedFolder,
    Track,
    check_folder,
    keep,
    pending_name,
    rules_hash,
    verified_file,
)
from .signing import PENDING_SIGNATURE, SigningKey, is_signed, signer_of


class FixtureStore:
    """Thread-safe. Serves the bytes that were verified when the folder was opened, whatever happens
    to the files afterwards."""

    def __init__(
        self, folder: Path, checked: CheckedFolder, *, sync: bool, sign: SigningKey | None
    ) -> None:
        """Use `open`."""
        self.folder = folder
        self._sign = sign
        self._writer = FolderWriter(folder, sync=sync)
        self._mutex = threading.RLock()
        self._use(checked)

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        create: bool = False,
        sync: bool = True,
        sign: SigningKey | None = None,
        signed_by: str | None = None,
        track: Track | None = None,
        changed_rules: bool = False,
    ) -> FixtureStore:
        """Verify the whole folder. Raises `FixtureIntegrityFailed`, and then serves nothing;
        `SignatureMismatch` if it is not signed with the public key `signed_by`, or has changed
        since; `OtherSchema`; `Io` if the folder does not exist, without `create`.

        `sign` signs every change. Without `sync`, a crash of the machine may lose the last writes,
        a crash of this process never does. With `changed_rules`, replay.toml may differ from the
        index until `accept_rules` lists it."""
        path = Path(folder)
        if sign is not None:
            sign.check_place(path)
            signed_by = signed_by or sign.public
        if create:
            create_folder(path, FolderWriter(path, sync=sync))
        elif not path.is_dir():
            raise Io(f"{path}: there is no such folder; create it with: anaphora record -- COMMAND")
        with io_errors(path, "cannot be read"), locked(path, exclusive=False):
            checked = check_folder(path, track=track)
            if sign is None or checked.entries or is_signed(path):
                signer_of(path, checked.index, signed_by)
        if changed_rules:
            checked.problems = [found for found in checked.problems if found.path != RULES]
        checked.raise_problems()
        return cls(path, checked, sync=sync, sign=sign)

    def _use(self, checked: CheckedFolder) -> None:
        self._checked = checked
        self._size = len(checked.index) + checked.cut_off
        """Size of the index."""
        self._identity = checked.identity
        """Device and inode of the index."""
        self._recovered = False
        """Whether files of interrupted writers were removed."""
        self._arrange(checked.entries)

    def _arrange(self, entries: Sequence[FixtureEntry]) -> None:
        self._entries: dict[str, FixtureEntry] = {}
        self._keys: dict[str, list[FixtureEntry]] = {}
        self._exact: dict[str, str] = {}
        """Keys by the digest of the exact request."""
        for entry in sorted(entries, key=attrgetter("number")):
            self._keys.setdefault(entry.key, []).append(entry)
        for entry in entries:
            self._entries[entry.path] = entry
            if entry.exact:
                self._exact[entry.exact] = entry.key

    def _include(self, entry: FixtureEntry, data: bytes) -> None:
        self._entries[entry.path] = entry
        self._keys.setdefault(entry.key, []).append(entry)
        if entry.exact:
            self._exact[entry.exact] = entry.key
        keep(self._checked, entry.path, data)

    def __repr__(self) -> str:
        return f"<FixtureStore {self.folder}, {len(self._entries)} fixtures>"

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> Sequence[FixtureEntry]:
        """In the order of the index."""
        with self._mutex:
            return tuple(self._entries.values())

    @property
    def rules(self) -> bytes | None:
        """The verified content of replay.toml; None without one."""
        return self._checked.rules

    def accept_rules(self) -> bool:
        """List the replay.toml that was read, or its absence, in the index. False if it is listed
        already."""
        with self._mutex, io_errors(self.folder), self._index() as index:
            now = os.fstat(index)
            if (now.st_dev, now.st_ino, now.st_size) != (*self._identity, self._size):
                reason = "another process is recording; try again when it has ended"
                raise Io(f"{self.folder}: {reason}")
            self._check_signed()
            if self._lists_rules:
                return False
            with self._without(()):
                return True

    @property
    def _lists_rules(self) -> bool:
        return self._checked.listed_rules == rules_hash(self.rules)

    def by_key(self, key: str, *, request: bool = True) -> Sequence[Fixture]:
        """The fixtures with this key in the order they were recorded. Each is decoded when it is
        used; without `request`, its request's body is left out."""
        with self._mutex:
            return _Fixtures(self, tuple(self._keys.get(key, ())), request=request)

    def key_of_exact(self, exact: str) -> str | None:
        """The key of the fixtures that were recorded for exactly this request."""
        return self._exact.get(exact)

    def fixture(self, path: str, *, request: bool = True) -> Fixture:
        """The fixture with this path in the index."""
        with self._mutex:
            entry = self._entries.get(path)
            data = self._checked.data.get(path)
        if entry is None:
            raise InvalidRequest(f"no fixture of {self.folder}", path=path)
        if data is None:
            data = verified_file(self.folder, entry)
        return from_file(data, path, request=request)

    def add(self, fixture: Fixture) -> Fixture:
        """Write a fixture, and return it with its number. After `Io` the folder is unchanged."""
        return self.add_all([fixture])[0]

    def add_all(self, fixtures: Iterable[Fixture]) -> list[Fixture]:
        """Write all of them or none."""
        fixtures = list(fixtures)
        with self._mutex, io_errors(self.folder):
            while True:
                with self._index() as index:
                    self._check_signed()
                    self._refresh(index)
                    if self._checked.own_form and self._lists_rules:
                        return self._add(index, fixtures)
                    # Nothing can be appended to some indexes that were written by hand.
                    with self._without(()):
                        pass

    def _add(self, index: int, fixtures: Iterable[Fixture]) -> list[Fixture]:
        numbered = self._numbered(fixtures)
        files = [to_file(fixture) for fixture in numbered]
        entries = [
            FixtureEntry(
                file_name(fixture.key, fixture.number),
                blake3(data).hexdigest(),
                fixture.key,
                fixture.number,
                fixture.exact,
            )
            for fixture, data in zip(numbered, files, strict=True)
        ]
        self._write(index, entries, files)
        for entry, data in zip(entries, files, strict=True):
            self._include(entry, data)
        return numbered

    def remove(self, paths: Iterable[str]) -> None:
        """Remove fixtures and their entries. Those that another process has removed are ignored."""
        with self._mutex, io_errors(self.folder), self._index() as index:
            wanted = list(dict.fromkeys(paths))
            for path in wanted:
                if path not in self._entries:
                    raise InvalidRequest(f"no fixture of {self.folder}", path=path)
            self._check_signed()
            self._refresh(index)
            gone = dict.fromkeys(path for path in wanted if path in self._entries)
            if not gone:
                return
            with self._without(gone):
                for path in gone:
                    remove(self._writer.place(path))
                    remove(self._writer.place(pending_name(path)))
                    self._checked.kept -= len(self._checked.data.pop(path, b""))

    @contextlib.contextmanager
    def _without(self, gone: Collection[str]) -> Iterator[None]:
        """Replace the index by one without these paths, and keep it locked."""
        left = [entry for path, entry in self._entries.items() if path not in gone]
        rules = rules_hash(self.rules)
        with contextlib.ExitStack() as stack:
            try:
                for path in gone:
                    self._writer.touch(pending_name(path))
                self._writer.sync_folder()
                stack.enter_context(self._replaced(whole(left, rules)))
            except BaseException:
                for path in gone:
                    remove(self._writer.place(pending_name(path)))
                raise
            self._arrange(left)
            self._checked.own_form = True
            self._checked.listed_rules = rules
            yield

    @contextlib.contextmanager
    def _replaced(self, data: bytes) -> Iterator[None]:
        """Replace the index, and its signature after it; the new index stays locked."""
        writer, sign = self._writer, self._sign
        pending = writer.place(PENDING_SIGNATURE)
        with contextlib.ExitStack() as stack:
            try:
                if sign is not None:
                    if not is_signed(self.folder):
                        writer.replace(SIGNATURE, sign.signature(self._checked.index))
                    writer.replace(PENDING_SIGNATURE, sign.signature(data))
                index = stack.enter_context(writer.replace_locked(INDEX, data))
            except BaseException:
                remove(pending)
                raise
            found = os.fstat(index)
            self._identity, self._size = (found.st_dev, found.st_ino), len(data)
            self._checked.index = data
            if sign is not None:
                with contextlib.suppress(OSError):  # the pending one is also valid
                    os.replace(pending, writer.place(SIGNATURE))
            yield

    @contextlib.contextmanager
    def _index(self) -> Iterator[int]:
        """The open index, locked for writing."""
        with locked(self.folder, exclusive=True) as index:
            if index is None:
                raise Io(f"{self.folder}: {INDEX} has been removed")
            yield index

    def _refresh(self, index: int) -> None:
        """Read the entries that other processes have written since, and remove unfinished files."""
        now = os.fstat(index)
        grown = now.st_size - self._size
        if (now.st_dev, now.st_ino) != self._identity or grown < 0 or (grown and self._sign):
            return self._start_over(index)
        if grown:
            if self._checked.cut_off:
                return self._start_over(index)
            tail = os.pread(index, grown, self._size)
            entries = read_entries(tail)
            if entries is None:
                return self._start_over(index)
            for entry in entries:
                self._include(entry, verified_file(self.folder, entry))
            self._size = now.st_size
        elif not self._recovered:
            self._recover(index)
        return None

    def _start_over(self, index: int) -> None:
        checked = check_folder(self.folder)
        if self._sign is not None:
            signer_of(self.folder, checked.index, self._sign.public)
        checked.raise_problems()
        self._use(checked)
        self._recover(index)

    def _recover(self, index: int) -> None:
        """Remove the files of an interrupted writer. The index is locked, and was just checked."""
        if self._checked.cut_off:
            os.ftruncate(index, self._size - self._checked.cut_off)
            self._size -= self._checked.cut_off
            self._checked.cut_off = 0
        if self._sign is not None and PENDING_SIGNATURE in self._checked.interrupted:
            self._writer.replace(SIGNATURE, self._sign.signature(self._checked.index))
        for path in self._checked.interrupted:
            remove(self._writer.place(path))
        self._recovered = True

    def _numbered(self, fixtures: Iterable[Fixture]) -> list[Fixture]:
        following: dict[str, int] = {}
        numbered = []
        for fixture in fixtures:
            key = fixture.key
            if key not in following:
                before = self._keys.get(key)
                following[key] = before[-1].number + 1 if before else 0
            numbered.append(msgspec.structs.replace(fixture, number=following[key]))
            following[key] += 1
        return numbered

    def _write(self, index: int, entries: Sequence[FixtureEntry], files: Iterable[bytes]) -> None:
        writer = self._writer
        temporary: list[str] = []
        try:
            temporary += map(writer.temporary, files)
            for entry in entries:
                writer.touch(pending_name(entry.path))
            for path, entry in zip(temporary, entries, strict=True):
                os.replace(path, writer.place(entry.path))
            writer.sync_folder()
            if self._sign is None:
                added = appended(entries, self._size)
                writer.append(index, added, self._size)
                self._size += len(added)
            else:
                data = whole([*self._entries.values(), *entries], self._checked.listed_rules)
                with self._replaced(data):
                    pass
        except BaseException:
            for path in (*temporary, *(writer.place(entry.path) for entry in entries)):
                remove(path)
            raise
        finally:
            for entry in entries:
                remove(writer.place(pending_name(entry.path)))

    def _check_signed(self) -> None:
        if self._sign is None and is_signed(self.folder):
            reason = "is signed, so a change needs a signature: give the key that signs it"
            raise InvalidRequest(f"{reason}, or remove {SIGNATURE}", path=str(self.folder))


class _Fixtures(Sequence[Fixture]):
    """Fixtures that are decoded when they are used."""

    def __init__(
        self, store: FixtureStore, entries: tuple[FixtureEntry, ...], *, request: bool
    ) -> None:
        self._store = store
        self._entries = entries
        self._request = request

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Fixture: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Fixture]: ...
    def __getitem__(self, index: int | slice) -> Fixture | Sequence[Fixture]:
        if isinstance(index, slice):
            return _Fixtures(self._store, self._entries[index], request=self._request)
        return self._store.fixture(self._entries[index].path, request=self._request)
