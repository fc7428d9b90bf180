"""The stored conversations of `anaphora ask`: a file each, with one JSON object a line.

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
import secrets
import time
from pathlib import Path
from typing import Self

from anaphora import Response
from anaphora.client.config.folders import user_folder
from anaphora.errors import InvalidRequest, Io, Parse
from anaphora.prompt import Params
from anaphora.values import Message, StopReason, Usage, Value, from_json, to_json

_SUFFIX = ".jsonl"


class ConversationSettings(Value, frozen=True, kw_only=True):
    """Provider, model, system prompt and tools of a conversation, until the next settings."""

    provider: str
    model: str | None = None
    system: str = ""
    tools: tuple[str, ...] = ()
    """As given: `module:function`."""
    emulated: bool = False


class LastCall(Value, frozen=True, kw_only=True):
    """The last call, which the next one is compared with."""

    provider: str
    model: str
    prefix_digest: str
    """Digest of system prompt and tools."""
    params: Params
    id: str
    served_model: str
    stop_reason: StopReason
    usage: Usage
    at: float
    first_token_at: float

    @classmethod
    def of(cls, response: Response, prefix_digest: str, params: Params) -> Self:
        record, reply = response.record, response.reply
        return cls(
            provider=record.provider,
            model=record.model,
            prefix_digest=prefix_digest,
            params=params,
            id=reply.id,
            served_model=reply.model,
            stop_reason=reply.stop_reason,
            usage=reply.usage,
            at=record.attempts[-1].at if record.attempts else record.at,
            first_token_at=record.at + (record.first or 0.0),
        )


class StoredLine(Value, frozen=True, kw_only=True):
    """A line of the file: exactly one field is set."""

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

    def append(self, line: StoredLine, settings: ConversationSettings) -> None:
        """Append a line, and before it the settings if they changed."""
        lines = [line] if settings == self.settings else [StoredLine(settings=settings), line]
        try:
            for one in lines:
                self._write(to_json(one) + b"\n")
                self._apply(one)
        except OSError as problem:
            raise Io(f"{self.path}: cannot be written: {problem.strerror}") from None

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def open(self) -> None:
        """Read the file, and lock it until `close`."""
        try:
            file = self._open()
            data = self.path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                self.torn = True
                os.ftruncate(file, whole)
        except OSError as problem:
            raise Io(f"{self.path}: cannot be read: {problem.strerror}") from None
        self._read(data[:whole])
        if self.settings is None:
            raise Parse(f"{self.path}: names no provider")

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

    def _write(self, data: bytes) -> None:
        """Write all of it or nothing: a full disk leaves no partial line behind."""
        if self._file is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._open(os.O_CREAT | os.O_EXCL)
        assert self._file is not None
        before = os.fstat(self._file).st_size
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            os.ftruncate(self._file, before)
            raise

    def _open(self, flags: int = 0) -> int:
        file = self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | flags, 0o600)
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # on Windows, where two processes may use one conversation
            pass
        except BlockingIOError:
            raise InvalidRequest(
                f"conversation {self.id} is in use by another process; wait for it",
                path="--continue",
            ) from None
        return file


def new() -> StoredConversation:
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    return StoredConversation(_folder() / f"{name}{_SUFFIX}")


def latest(*, emulated: bool) -> StoredConversation:
    """The last conversation, with providers or with the emulator."""
    for path in _paths():
        stored = StoredConversation(path)
        with contextlib.suppress(OSError, Parse):
            stored._read(path.read_bytes())
        if stored.settings is not None and stored.settings.emulated == emulated:
            return StoredConversation(path)
    where = " with the emulator" if emulated else ""
    raise InvalidRequest(f"there is no conversation{where} to continue", path="--continue")


def _folder() -> Path:
    return user_folder("XDG_DATA_HOME", ".local/share") / "conversations"


def _paths() -> list[Path]:
    found: list[tuple[int, Path]] = []
    for path in _folder().glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):  # it may have been deleted just now
            found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found, reverse=True)]
