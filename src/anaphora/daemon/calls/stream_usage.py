"""The bytes of streams that go to apps as they came: by whole events, and without the usage of a
chat stream whose caller did not ask for it."""

from __future__ import annotations

import msgspec

from anaphora.wire.reading import DECODE_ERRORS

#: What ends an event of SSE; ends of lines may be mixed.
_SSE_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")
#: Of wires whose streams are not SSE.
_ENDS: dict[str, tuple[bytes, ...]] = {"ollama": (b"\n",)}


class WholeEvents:
    """Passes an event when it is complete: before, it could be an error of the provider, whose
    bytes never pass."""

    def __init__(self, wire: str = "") -> None:
        self._ends = _ENDS.get(wire, _SSE_ENDS)
        self._longest = max(map(len, self._ends))
        self._rest = bytearray()

    def feed(self, data: bytes) -> bytes:
        """The events that are complete now."""
        # Only what is new is looked at: an event may be large and arrive in many pieces.
        tail = bytes(self._rest[1 - self._longest :]) if self._longest > 1 else b""
        window = tail + data
        end = len(window) if window.endswith(self._ends) else self._end_in(window)
        if not end:
            self._rest += data
            return b""
        cut = end - len(tail)
        whole = bytes(self._rest) + data[:cut] if self._rest else data[:cut]
        self._rest = bytearray(data[cut:])
        return self._passed(whole)

    def _end_in(self, window: bytes) -> int:
        """The end of the last event that is complete; 0 where none is."""
        return max(at + len(mark) if (at := window.rfind(mark)) >= 0 else 0 for mark in self._ends)

    def close(self) -> bytes:
        """What is left behind the last event of a stream that has not failed."""
        rest, self._rest = bytes(self._rest), bytearray()
        return rest

    def _passed(self, events: bytes) -> bytes:
        return events


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Chunk).decode


class UsageFilter(WholeEvents):
    """Passes the events of a chat stream as they are, without the one that holds nothing but the
    usage."""

    def _passed(self, events: bytes) -> bytes:
        if b'"usage"' not in events:
            return events
        ending = b"\r\n\r\n" if b"\r\n\r\n" in events else b"\n\n"
        return ending.join(each for each in events.split(ending) if not _is_usage(each))


def _is_usage(event: bytes) -> bool:
    if b'"usage"' not in event or not event.startswith(b"data:"):
        return False
    try:
        chunk = _decode(event[5:])
    except DECODE_ERRORS:
        return False
    return chunk.choices == [] and bytes(chunk.usage) != b"null"
