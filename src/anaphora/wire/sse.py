"""Server-sent events, from bytes to (event name, data), however the bytes are cut.

Any line ending, a byte order mark, comments, data over several lines. A line or an event beyond
the bound is an error, not a memory leak.
"""

from __future__ import annotations

from anaphora.errors import Parse

#: No single event of any provider comes near this.
LIMIT = 16 * 1024 * 1024


class EventDecoder:
    """Feed it bytes, get the events that are complete. `close` says whether something was cut."""

    __slots__ = ("_buffer", "_data", "_event", "_limit", "_skip_newline", "_started")

    def __init__(self, limit: int = LIMIT) -> None:
        self._buffer = b""
        self._data: list[bytes] = []
        self._event = ""
        self._limit = limit
        self._started = False
        self._skip_newline = False

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        if not self._started:
            data = self._buffer + data
            self._buffer = b""
            if len(data) < 3 and b"\xef\xbb\xbf".startswith(data):
                self._buffer = data
                return []
            data = data.removeprefix(b"\xef\xbb\xbf")
            self._started = True
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
                    data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    events.append((self._event, data))
                    self._data = []
                self._event = ""
            elif line[:7] == b"event: ":
                self._event = _name(line[7:])
            else:
                self._other(line)
        if len(self._buffer) + sum(map(len, self._data)) > self._limit:
            raise Parse(f"an event of more than {self._limit} bytes", path="stream")
        return events

    def close(self) -> bool:
        """Whether the stream ended between two events."""
        return not self._buffer.strip() and not self._data

    def _other(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._event = _name(value)
        # Comments begin with a colon; `id` and `retry` are for reconnecting, which nobody does.


def encode(event: str, data: bytes) -> bytes:
    """One event. `data` holds no line break: it is compact JSON."""
    name = b"event: " + event.encode() + b"\n" if event else b""
    return name + b"data: " + data + b"\n\n"


def _name(value: bytes) -> str:
    return value.decode(errors="replace")
