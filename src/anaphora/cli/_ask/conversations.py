"""Conversations that are kept: a file each, a line for whatever was said.

    {"settings": {"provider": "claude", "model": "…", "system": "…"}}     the last one holds
    {"message": {"role": "user", …}}
    {"message": {"role": "assistant", …}}
    {"answered": {"at": …, "usage": …}}                                   what the last call came to

A line is written at once and behind all others, so a crash costs at most the line it happened in.
Files are the user's alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from anaphora.errors import InvalidRequest, Io, Parse
from anaphora.prompt import Params
from anaphora.values import Message, StopReason, Usage, from_json, to_json

from . import places

_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*\Z")
_SUFFIX = ".jsonl"


class _Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Common ground of what is in a line."""


class Settings(_Told, frozen=True, kw_only=True):
    """How a conversation is held, until the next settings."""

    provider: str
    model: str | None = None
    system: str = ""
    tools: tuple[str, ...] = ()
    """As they were named: `module:function`."""
    emulated: bool = False


class Call(_Told, frozen=True, kw_only=True):
    """What is known of the last call, so that the next can be held against it."""

    provider: str
    model: str
    beginning: str
    """A digest of system prompt and tools."""
    params: Params
    id: str
    answered_by: str
    stop: StopReason
    usage: Usage
    at: float
    first: float


class Line(_Told, frozen=True, kw_only=True):
    """Exactly one of these."""

    settings: Settings | None = None
    message: Message | None = None
    answered: Call | None = None


class Kept:
    """A conversation in its file. A new one has no file until something is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings: Settings | None = None
        self.messages: list[Message] = []
        self.answered: Call | None = None
        """None where something was said since."""
        self.torn = False
        """The last line was not whole, and is left out."""
        self._file: int | None = None

    @property
    def id(self) -> str:
        return self.path.name.removesuffix(_SUFFIX)

    def keep(self, line: Line) -> None:
        """Writes a line, or nothing."""
        try:
            if self._file is None:
                self._create()
            assert self._file is not None
            _write(self._file, to_json(line) + b"\n")
        except OSError as problem:
            raise Io(f"{self.path}: cannot be written: {problem.strerror}") from None
        self._note(line)

    def hold(self, settings: Settings) -> None:
        """Goes on like this."""
        if settings != self.settings:
            self.keep(Line(settings=settings))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def open(self) -> None:
        """Reads the file and keeps it, so that nobody else goes on with it meanwhile."""
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND)
            _lock(self._file, self.id)
            with os.fdopen(os.dup(self._file), "rb") as opened:
                data = opened.read()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                self.torn = True
                os.ftruncate(self._file, whole)
        except OSError as problem:
            raise Io(f"{self.path}: cannot be read: {problem.strerror}") from None
        self._read(data[:whole])
        if self.settings is None:
            raise Parse(f"{self.path}: does not say with whom it was held")

    def peek(self) -> None:
        """Reads the file as it is at the moment."""
        data = self.path.read_bytes()
        self._read(data[: data.rfind(b"\n") + 1])

    def _read(self, data: bytes) -> None:
        for number, text in enumerate(data.splitlines(), 1):
            try:
                self._note(from_json(text, Line))
            except Parse as problem:
                raise Parse(f"{self.path}:{number}: {problem}") from None

    def _note(self, line: Line) -> None:
        if line.settings is not None:
            self.settings = line.settings
        if line.message is not None:
            self.messages.append(line.message)
            self.answered = None
        if line.answered is not None:
            self.answered = line.answered

    def _create(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL
        self._file = os.open(self.path, flags, 0o600)
        _lock(self._file, self.id)


def new() -> Kept:
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    return Kept(places.conversations() / f"{name}{_SUFFIX}")


def named(id: str) -> Kept:
    """The conversation of that id, or the only one whose id begins like that."""
    if not _ID.match(id):
        raise InvalidRequest(f"{id!r} is no id; --list shows them", path="--continue")
    paths = _paths()
    found = [path for path in paths if path.name == id + _SUFFIX]
    found = found or [path for path in paths if path.name.startswith(id)]
    if len(found) != 1:
        reason = f"{len(found)} conversations begin like that" if found else "there is none"
        raise InvalidRequest(f"{id}: {reason}; --list shows all of them", path="--continue")
    return Kept(found[0])


def last(*, emulated: bool) -> Kept:
    """The one that was held last: with providers, or with the emulator."""
    for kept in listed():
        if kept.settings is not None and kept.settings.emulated == emulated:
            return Kept(kept.path)
    with_whom = " with the emulator" if emulated else ""
    raise InvalidRequest(f"there is no conversation{with_whom} to go on with", path="-c")


def listed() -> Iterator[Kept]:
    """All of them, the newest first; one that cannot be read has no settings."""
    for path in _paths():
        kept = Kept(path)
        with contextlib.suppress(OSError, Parse):
            kept.peek()
        yield kept


def _paths() -> list[Path]:
    folder = places.conversations()
    if not folder.is_dir():
        return []
    found: list[tuple[Any, Path]] = []
    for path in folder.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):  # somebody may just have deleted it
            found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found, reverse=True)]


def _write(file: int, data: bytes) -> None:
    """All of it or nothing: a disk that is full leaves no half line behind."""
    before = os.fstat(file).st_size
    try:
        written = os.write(file, data)
        while written < len(data):
            written += os.write(file, data[written:])
    except OSError:
        os.ftruncate(file, before)
        raise


def _lock(file: int, id: str) -> None:
    try:
        import fcntl
    except ImportError:  # no such thing there; then two may go on with one conversation
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidRequest(
            f"conversation {id} is being held elsewhere at the moment; wait for it", path="-c"
        ) from None
