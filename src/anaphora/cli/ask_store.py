"""Stored conversations of `anaphora ask`: one file each, with one JSON object a line.

    {"settings": {"provider": "claude", "model": "…", "system": "…"}}     the last one holds
    {"message": {"role": "user", …}}
    {"message": {"role": "assistant", …}}
    {"last_call": {"at": …, "usage": …}}                                  the bill of the last call

Lines are only appended, so a crash costs at most the line it happened in. Files are readable only
by the user.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from anaphora.errors import InvalidRequest, Io, Parse
from anaphora.prompt import Params
from anaphora.values import Message, StopReason, Usage, from_json, to_json

from .ask_provider import user_folder

_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*\Z")
_SUFFIX = ".jsonl"


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of what a line holds."""


class ConversationSettings(_Stored, frozen=True, kw_only=True):
    """How a conversation is held, until the next settings."""

    provider: str
    model: str | None = None
    system: str = ""
    tools: tuple[str, ...] = ()
    """As given: `module:function`."""
    emulated: bool = False


class LastCall(_Stored, frozen=True, kw_only=True):
    """The last call, which the next one is compared with."""

    provider: str
    model: str
    prefix_digest: str
    """Of system prompt and tools."""
    params: Params
    id: str
    served_model: str
    stop_reason: StopReason
    usage: Usage
    at: float
    first_token_at: float


class StoredLine(_Stored, frozen=True, kw_only=True):
    """Exactly one of these."""

    settings: ConversationSettings | None = None
    message: Message | None = None
    last_call: LastCall | None = None


class StoredConversation:
    """A conversation and its file, which is created with the first line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings: ConversationSettings | None = None
        self.messages: list[Message] = []
        self.last_call: LastCall | None = None
        """None when messages follow it."""
        self.torn = False
        """The last line is incomplete and was removed."""
        self._file: int | None = None

    @property
    def id(self) -> str:
        return self.path.name.removesuffix(_SUFFIX)

    def append(self, line: StoredLine) -> None:
        """Write a line, or nothing."""
        try:
            if self._file is None:
                self._create()
            assert self._file is not None
            _write(self._file, to_json(line) + b"\n")
        except OSError as problem:
            raise Io(f"{self.path}: cannot be written: {problem.strerror}") from None
        self._apply(line)

    def use(self, settings: ConversationSettings) -> None:
        """Store the settings if they changed."""
        if settings != self.settings:
            self.append(StoredLine(settings=settings))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def open(self) -> None:
        """Read the file, and lock it until `close`."""
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
            raise Parse(f"{self.path}: names no provider")

    def peek(self) -> None:
        """Read the file without locking it."""
        data = self.path.read_bytes()
        self._read(data[: data.rfind(b"\n") + 1])

    def _read(self, data: bytes) -> None:
        for number, text in enumerate(data.splitlines(), 1):
            try:
                self._apply(from_json(text, StoredLine))
            except Parse as problem:
                raise Parse(f"{self.path}:{number}: {problem}") from None

    def _apply(self, line: StoredLine) -> None:
        if line.settings is not None:
            self.settings = line.settings
        if line.message is not None:
            self.messages.append(line.message)
            self.last_call = None
        if line.last_call is not None:
            self.last_call = line.last_call

    def _create(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL
        self._file = os.open(self.path, flags, 0o600)
        _lock(self._file, self.id)


def new() -> StoredConversation:
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    return StoredConversation(_folder() / f"{name}{_SUFFIX}")


def find(id: str) -> StoredConversation:
    """The conversation with that id, or the only one whose id begins with it."""
    if not _ID.match(id):
        raise InvalidRequest(f"{id!r} is not an id; --list shows them", path="--continue")
    paths = _paths()
    found = [path for path in paths if path.name == id + _SUFFIX]
    found = found or [path for path in paths if path.name.startswith(id)]
    if len(found) != 1:
        reason = f"{len(found)} conversations begin with it" if found else "no such conversation"
        raise InvalidRequest(f"{id}: {reason}; --list shows all of them", path="--continue")
    return StoredConversation(found[0])


def latest(*, emulated: bool) -> StoredConversation:
    """The last conversation, with providers or with the emulator."""
    for stored in every():
        if stored.settings is not None and stored.settings.emulated == emulated:
            return StoredConversation(stored.path)
    where = " with the emulator" if emulated else ""
    raise InvalidRequest(f"there is no conversation{where} to continue", path="-c")


def every() -> Iterator[StoredConversation]:
    """All of them, the newest first; an unreadable one has no settings."""
    for path in _paths():
        stored = StoredConversation(path)
        with contextlib.suppress(OSError, Parse):
            stored.peek()
        yield stored


def _folder() -> Path:
    return user_folder("XDG_DATA_HOME", ".local/share") / "conversations"


def _paths() -> list[Path]:
    folder = _folder()
    if not folder.is_dir():
        return []
    found: list[tuple[int, Path]] = []
    for path in folder.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):  # it may have been deleted just now
            found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found, reverse=True)]


def _write(file: int, data: bytes) -> None:
    """Write all of it or nothing: a full disk leaves no partial line behind."""
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
    except ImportError:  # not on Windows, where two processes may use one conversation
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidRequest(
            f"conversation {id} is in use by another process; wait for it", path="-c"
        ) from None
