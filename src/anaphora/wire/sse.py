"""Server-sent events, from bytes to (event name, data), however the bytes are cut.

Any line ending, a byte order mark, comments, data over several lines. A line or an event beyond
the bound is an error, not a memory leak.

Some gateways answer a stream request with one JSON body. No event begins with a bracket, so bytes
that do are collected in `body` and yield no events.
"""

from __future__ import annotations

import re

from anaphora.errors import Parse

#: No single event of any provider comes near this.
LIMIT = 16 * 1024 * 1024

#: The largest JSON body that is read in place of a stream.
BODY_LIMIT = 64 * 1024 * 1024


#: An event from its beginning: perhaps a name, and one line of data.
_EVENT = re.compile(rb"(?:\A|(?<=\n\n))(?:event: [^\n]*\n)?data: ([^\n]*)\n\n")

_BOM = b"\xef\xbb\xbf"


class EventDecoder:
    """Decodes bytes into complete events. `close` tells whether the last one was cut off."""

    __slots__ = (
        "_buffer",
        "_data",
        "_event",
        "_limit",
        "_plain",
        "_skip_newline",
        "_started",
        "body",
    )

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._buffer = b""
        self._data: list[bytes] = []
        self._event = ""
        self._started = False
        self._skip_newline = False
        self._plain = False
        """Nothing but the buffer is left from earlier bytes."""
        self.body: bytearray | None = None
        """The JSON body so far, when the bytes are one instead of events."""

    def feed_data(self, data: bytes) -> list[bytes]:
        """The data of the events that are complete now, for streams that need no event names.

        Nearly always an event is one data line, alone or behind a line with its name; the rest is
        left to `feed`.
        """
        if not self._started:
            data = self._start(data)
            if not data:
                return []
        if self._plain and b"\r" not in data:
            text = self._buffer + data if self._buffer else data
            end = text.rfind(b"\n\n") + 2
            whole = text[:end] if end > 1 else b""
            payloads: list[bytes] = _EVENT.findall(whole)
            if len(payloads) == whole.count(b"\n\n"):
                self._buffer = text[len(whole) :]
                if len(self._buffer) > self._limit:
                    raise self._too_long()
                return payloads
        return [payload for _, payload in self.feed(data)]

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """The events that are complete now: name (often empty) and data."""
        if not self._started:
            data = self._start(data)
            if not data:
                return []
        if self.body is not None:
            self.body += data
            if len(self.body) > BODY_LIMIT:
                raise Parse(f"a body of more than {BODY_LIMIT} bytes", path="stream")
            return []
        if self._skip_newline and data:
            # The carriage return that ended the last piece may have had a line feed behind it.
            data = data.removeprefix(b"\n")
            self._skip_newline = False
        text = self._buffer + data if self._buffer else data
        if b"\r" in text:
            self._skip_newline = text.endswith(b"\r")
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = text.split(b"\n")
        self._buffer = lines.pop()
        events: list[tuple[str, bytes]] = []
        for line in lines:
            if line[:6] == b"data: ":
                self._data.append(line[6:])
            elif not line:
                if self._data:
                    whole = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    events.append((self._event, whole))
                    self._data = []
                self._event = ""
            else:
                self._field(line)
        if len(self._buffer) + sum(map(len, self._data)) > self._limit:
            raise self._too_long()
        self._plain = not (self._data or self._event or self._skip_newline)
        return events

    @property
    def idle(self) -> bool:
        """Nothing is left from earlier bytes."""
        return self._plain and not self._buffer

    def close(self) -> bool:
        """Whether the stream ended between two events."""
        return not self._buffer.strip() and not self._data

    def _start(self, data: bytes) -> bytes:
        """The first bytes without a byte order mark; none while it is undecided whether they are
        events or a JSON body."""
        data, self._buffer = self._buffer + data, b""
        start = data.removeprefix(_BOM)
        first = start.lstrip()[:1]
        if not first or (len(data) < 3 and _BOM.startswith(data)):
            if len(data) > self._limit:
                raise self._too_long()
            self._buffer = data
            return b""
        self._started = True
        if first in (b"{", b"["):
            self.body = bytearray()
        else:
            self._plain = True
        return start

    def _too_long(self) -> Parse:
        return Parse(f"an event of more than {self._limit} bytes", path="stream")

    def _field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._event = value.decode(errors="replace")
        # Comments begin with a colon; `id` and `retry` are for reconnecting, which is unused.


def encode_event(event: str, data: bytes) -> bytes:
    """One event. `data` is JSON; each line break in it, which is white space between values, begins
    another data line."""
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\r", b" ").replace(b"\n", b"\ndata: ")
    name = b"event: " + event.encode() + b"\n" if event else b""
    return name + b"data: " + data + b"\n\n"
