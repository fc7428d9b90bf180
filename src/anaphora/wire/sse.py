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

    __slots__ = ("_buffer", "_data", "_event", "_idle", "_limit", "_skip_newline", "_started")

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._buffer = b""
        self._data: list[bytes] = []
        self._event = ""
        self._started = False
        self._skip_newline = False
        self._idle = False
        """Nothing is left over from earlier bytes."""

    def feed_data(self, data: bytes) -> list[bytes]:
        """The data of the events that are complete now, for streams whose data says it all."""
        if self._idle and data[-2:] == b"\n\n" and b"\r" not in data:
            # The usual case: whole events, one line of data each, a name before it or not.
            if data.find(b"\n\n") == len(data) - 2:
                payload = _only_line(data)
                if payload is not None:
                    return [payload]
            else:
                payloads = [_only_line(event) for event in data[:-2].split(b"\n\n")]
                if None not in payloads:
                    return payloads  # type: ignore[return-value]
        return [payload for _, payload in self.feed(data)]

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """The events that are complete now: name (often empty) and data."""
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
                    whole = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    events.append((self._event, whole))
                    self._data = []
                self._event = ""
            else:
                self._field(line)
        if len(self._buffer) + sum(map(len, self._data)) > self._limit:
            raise Parse(f"an event of more than {self._limit} bytes", path="stream")
        self._idle = not (self._buffer or self._data or self._event or self._skip_newline)
        return events

    def close(self) -> bool:
        """Whether the stream ended between two events."""
        return not self._buffer.strip() and not self._data

    def _field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._event = value.decode(errors="replace")
        # Comments begin with a colon; `id` and `retry` are for reconnecting, which nobody does.


def _only_line(event: bytes) -> bytes | None:
    """The data of an event that has one line of it, and at most a name before; else None."""
    end = len(event) - 2 if event[-2:] == b"\n\n" else len(event)
    begin = 0
    if event[:7] == b"event: ":
        begin = event.find(b"\n") + 1
    if event[begin : begin + 6] != b"data: " or event.find(b"\n", begin, end) >= 0:
        return None
    return event[begin + 6 : end]


def encode(event: str, data: bytes) -> bytes:
    """One event. `data` holds no line break: it is compact JSON."""
    name = b"event: " + event.encode() + b"\n" if event else b""
    return name + b"data: " + data + b"\n\n"
