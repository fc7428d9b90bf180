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
    """Decodes bytes into complete events. `close` tells whether the last one was cut off.

    The pieces of a line are kept apart until its end arrives, so that the time is proportional to
    the bytes, however small the pieces are.
    """

    __slots__ = (
        "_event",
        "_limit",
        "_lines",
        "_pieces",
        "_plain",
        "_size",
        "_skip_newline",
        "_started",
        "body",
    )

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        """What came since the last line break that was read,"""
        self._lines: list[bytes] = []
        """the data lines of the incomplete event,"""
        self._size = 0
        """and the length of both."""
        self._event = ""
        self._started = False
        self._skip_newline = False
        self._plain = False
        """Nothing but `_pieces` is left from earlier bytes."""
        self.body: bytearray | None = None
        """The JSON body so far, when the bytes are one instead of events."""

    def feed_data(self, data: bytes) -> list[bytes]:
        """The data of the events that are complete now, for streams that need no event names.

        Nearly always an event is one data line, alone or behind a line with its name; the rest is
        left to `feed`.
        """
        if not self._started:
            data = self._start(data)
        lines = data.replace(b"\r\n", b"\n")
        if self._plain and b"\r" not in lines and b"\n" in lines:
            data = self._take(lines)
            end = data.rfind(b"\n\n") + 2
            whole = data[:end] if end > 1 else b""
            payloads: list[bytes] = _EVENT.findall(whole)
            if whole and len(payloads) == whole.count(b"\n\n"):
                self._hold(data[end:])
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
        if self._skip_newline:
            # The carriage return that ended the last piece may have had a line feed behind it.
            data = data.removeprefix(b"\n")
            self._skip_newline = False
        if b"\r" in data:
            self._skip_newline = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events: list[tuple[str, bytes]] = []
        if b"\n" in data:
            *lines, data = self._take(data).split(b"\n")
            for line in lines:
                if line[:6] == b"data: ":
                    self._add_line(line[6:])
                elif not line:
                    if self._lines:
                        events.append((self._event, b"\n".join(self._lines)))
                        self._size -= sum(map(len, self._lines))
                        self._lines = []
                    self._event = ""
                else:
                    self._field(line)
        self._hold(data)
        self._plain = not (self._lines or self._event or self._skip_newline)
        return events

    @property
    def idle(self) -> bool:
        """Nothing is left from earlier bytes."""
        return self._plain and not self._pieces

    def close(self) -> bool:
        """Whether the stream ended between two events."""
        return not (self._lines or self._event or b"".join(self._pieces).strip())

    def _start(self, data: bytes) -> bytes:
        """The first bytes without a byte order mark; none while it is undecided whether they are
        events or a JSON body."""
        if self._size > len(_BOM) and not data.strip():
            self._hold(data)
            return b""
        data = self._take(data)
        start = data.removeprefix(_BOM)
        first = start.lstrip()[:1]
        if not first or (len(data) < 3 and _BOM.startswith(data)):
            self._hold(data)
            return b""
        self._started = True
        if first in (b"{", b"["):
            self.body = bytearray()
        else:
            self._plain = True
        return start

    def _hold(self, data: bytes) -> None:
        """Keeps bytes for later."""
        if data:
            self._pieces.append(data)
            self._size += len(data)
            if self._size > self._limit:
                raise self._too_long()

    def _take(self, data: bytes) -> bytes:
        """The bytes that were kept, and these behind them."""
        if not self._pieces:
            return data
        whole = b"".join((*self._pieces, data))
        self._size -= len(whole) - len(data)
        self._pieces = []
        return whole

    def _add_line(self, line: bytes) -> None:
        self._lines.append(line)
        self._size += len(line)
        if self._size > self._limit:
            raise self._too_long()

    def _too_long(self) -> Parse:
        return Parse(f"an event of more than {self._limit} bytes", path="stream")

    def _field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._add_line(value)
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
