"""The history of a session in a file: one message as JSON a line, as `anaphora.to_json` writes it.

    client.session(model="claude-sonnet-5-5", history="ada.jsonl")

The file is read when the session is opened, and each new message is appended in one write. A write
that was cut off leaves a last line without its end: it is left out with a notice, and overwritten
by the next message. If something else changes the file meanwhile, nothing more is written.
"""

from __future__ import annotations

import os
from pathlib import Path

from anaphora.errors import InvalidRequest, Io, Parse
from anaphora.values import Message, Notice, from_json, to_json


class HistoryFile:
    def __init__(self, path: object) -> None:
        """Reads the file, if there is one. Raises `InvalidRequest` for a path that can be none,
        `Io` if it cannot be read, and `Parse` for a line that is no message."""
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise InvalidRequest(f"must be the path of a JSONL file, not {path!r}", path="history")
        self.path = Path(path)
        if not self.path.parent.is_dir():
            reason = f"{self.path}: there is no folder {self.path.parent}"
            raise InvalidRequest(reason, path="history")
        if self.path.exists() and not self.path.is_file():
            raise InvalidRequest(f"{self.path}: is not a file; name a JSONL file", path="history")
        self.messages: list[Message] = []
        self.notices: tuple[Notice, ...] = ()
        try:
            data = self.path.read_bytes() if self.path.exists() else b""
        except OSError as problem:
            raise Io(f"{self.path}: cannot be read: {problem.strerror}") from None
        self._size = len(data)
        """Bytes of the file, as this session knows it."""
        self._end = data.rfind(b"\n") + 1
        """Bytes of its whole lines: the next message is written here."""
        for number, line in enumerate(data[: self._end].splitlines(), 1):
            self._read(line, number)
        if self._end < self._size:
            self._read_last(data[self._end :], data.count(b"\n") + 1)

    def _read(self, line: bytes, number: int) -> None:
        try:
            self.messages.append(from_json(line, Message))
        except Parse as problem:
            reason = f"{problem}; each line has one message, as anaphora.to_json writes it"
            raise Parse(f"{self.path}:{number}: {reason}") from None

    def _read_last(self, line: bytes, number: int) -> None:
        """A line without its end; kept if it is a whole message."""
        try:
            self.messages.append(from_json(line, Message))
        except Parse:
            why = "the last line is incomplete, since a write was cut off: it is left out, and"
            reason = f"{self.path}:{number}: {why} overwritten by the next message"
            self.notices = (Notice("history_torn", reason, "history"),)

    def save(self, message: Message) -> None:
        """Appends a message: all of its line, or nothing."""
        data = to_json(message) + b"\n"
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        except OSError as problem:
            raise Io(f"{self.path}: cannot be written: {problem.strerror}") from None
        try:
            if os.fstat(file).st_size != self._size:
                raise Io(f"{self.path}: was changed since the session read it; open a new session")
            begin = self._end
            if begin < self._size and not self.notices:  # a whole message that lacks its end
                begin, data = self._size, b"\n" + data
            self._write(file, data, begin)
            self._size = self._end = begin + len(data)
            self.notices = ()
        except OSError as problem:
            raise Io(f"{self.path}: cannot be written: {problem.strerror}") from None
        finally:
            os.close(file)

    def _write(self, file: int, data: bytes, begin: int) -> None:
        os.ftruncate(file, begin)
        self._size = begin
        os.lseek(file, begin, os.SEEK_SET)
        try:
            while data:
                data = data[os.write(file, data) :]
        except OSError:
            os.ftruncate(file, begin)
            raise
