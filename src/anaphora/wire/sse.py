"""Decodes server-sent events: bytes in pieces of any size to the data of each event.

Accepts any line ending, a byte order mark, comments, and data over several lines. A line or an
event beyond the limit is an error, not a memory leak. Event names are ignored: every wire also
names its events in their data. An `error:` line, which is llama.cpp's, is an event with an error
object.

Some gateways answer a stream request with one JSON body. No event begins with a bracket, so bytes
that do are collected in `body` and yield no events.
"""

from __future__ import annotations

import re

from anaphora.canonical import string
from anaphora.errors import Parse
from anaphora.wire.reading import find_surrogate, replace_lone_surrogates

#: The last event of OpenAI's streams. Gateways send it on other wires as well.
DONE = b"[DONE]"

#: No single event of any provider comes near this.
LIMIT = 16 * 1024 * 1024

#: The largest JSON body that is read in place of a stream.
BODY_LIMIT = 64 * 1024 * 1024

#: An event from its beginning: perhaps a name, and one line of data.
_EVENT = re.compile(rb"(?:\A|(?<=\n\n))(?:event: [^\n]*\n)?data: ([^\n]*)\n\n")

_BOM = b"\xef\xbb\xbf"


class EventDecoder:
    """Decodes bytes into the data of complete events.

    The pieces of a line are kept apart until its end arrives, so that the time is proportional to
    the bytes, however small the pieces are.
    """

    __slots__ = ("_limit", "_lines", "_pieces", "_size", "_skip_newline", "_started", "body")

    problem: Parse | None = None
    """None: a broken event is an error at once."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        """The bytes since the last line break."""
        self._lines: list[bytes] = []
        """The data lines of the incomplete event."""
        self._size = 0
        """The length of both."""
        self._started = False
        self._skip_newline = False
        self.body: bytearray | None = None
        """The JSON body so far, if the bytes are one instead of events."""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that are complete now."""
        if not self._started:
            data = self._start(data)
        if self.body is not None:
            self.body += data
            if len(self.body) > BODY_LIMIT:
                raise Parse(f"a body of more than {BODY_LIMIT} bytes", path="stream")
            return []
        if self._skip_newline and data:
            # The carriage return at the end of the last piece may belong to a line feed.
            data = data.removeprefix(b"\n")
            self._skip_newline = False
        if b"\r" in data:
            self._skip_newline = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in data:
            self._keep(data)
            return []
        if self._pieces:
            self._size -= sum(map(len, self._pieces))
            data = b"".join((*self._pieces, data))
            self._pieces = []
        replace = self._lines or find_surrogate(data)
        events = self._events(data)
        return list(map(replace_lone_surrogates, events)) if replace else events

    def _events(self, data: bytes) -> list[bytes]:
        """The complete events of bytes that begin a line."""
        end = data.rfind(b"\n\n") + 2
        if end > 1 and not self._lines:
            # Nearly always an event is one data line, alone or after a line with its name.
            whole = data[:end]
            events: list[bytes] = _EVENT.findall(whole)
            if len(events) == whole.count(b"\n\n"):
                if end < len(data):
                    self._keep(data[end:])
                return events
        *lines, rest = data.split(b"\n")
        events = []
        for line in lines:
            # Comments begin with a colon; `id` and `retry` are for reconnecting, which is unused.
            field, _, value = line.partition(b":")
            if field == b"data":
                self._keep(value.removeprefix(b" "), self._lines)
            elif field == b"error":
                events.append(_error_event(value.strip()))
            elif not line and self._lines:
                events.append(b"\n".join(self._lines))
                self._size -= sum(map(len, self._lines))
                self._lines = []
        self._keep(rest)
        return events

    def _keep(self, data: bytes, pieces: list[bytes] | None = None) -> None:
        """Keeps bytes for later, as a piece of a line or as a data line."""
        if data or pieces is not None:
            (self._pieces if pieces is None else pieces).append(data)
            self._size += len(data)
            if self._size > self._limit:
                raise Parse(f"an event of more than {self._limit} bytes", path="stream")

    def _start(self, data: bytes) -> bytes:
        """The first bytes without a byte order mark; none while it is undecided whether they are
        events or a JSON body."""
        if self._size > len(_BOM) and not data.strip():
            self._keep(data)
            return b""
        data = b"".join((*self._pieces, data))
        self._pieces, self._size = [], 0
        start = data.removeprefix(_BOM)
        first = start.lstrip()[:1]
        if not first or (len(data) < 3 and _BOM.startswith(data)):
            self._keep(data)
            return b""
        self._started = True
        if first in (b"{", b"["):
            self.body = bytearray()
        return start


def _error_event(value: bytes) -> bytes:
    """The data of an `error:` line, with which llama.cpp ends a stream that fails."""
    return b'{"error":' + (value if value.startswith(b"{") else string(value.decode())) + b"}"


def encode_event(event: str, data: bytes) -> bytes:
    """One event. `data` is JSON; each line break in it, which is white space between values, begins
    another data line."""
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\r", b" ").replace(b"\n", b"\ndata: ")
    name = b"event: " + event.encode() + b"\n" if event else b""
    return name + b"data: " + data + b"\n\n"
