"""Removes the usage from a chat stream whose caller did not ask for it."""

from __future__ import annotations

import msgspec

from anaphora.wire.reading import DECODE_ERRORS


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Chunk).decode


class UsageFilter:
    """Passes the events of a stream as they are, without the one that holds nothing but the
    usage. An event passes when it is complete."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        if self._rest:
            data = self._rest + data
        ends = ((data.rfind(mark), len(mark)) for mark in (b"\n\n", b"\r\n\r\n"))
        end = max(at + size if at >= 0 else 0 for at, size in ends)
        whole, self._rest = data[:end], data[end:]
        if b'"usage"' not in whole:
            return whole
        ending = b"\r\n\r\n" if b"\r\n\r\n" in whole else b"\n\n"
        events = whole.split(ending)
        return ending.join(event for event in events if not _is_usage(event))

    def close(self) -> bytes:
        """What is left behind the last event."""
        rest, self._rest = self._rest, b""
        return rest


def _is_usage(event: bytes) -> bool:
    if b'"usage"' not in event or not event.startswith(b"data:"):
        return False
    try:
        chunk = _decode(event[5:])
    except DECODE_ERRORS:
        return False
    return chunk.choices == [] and bytes(chunk.usage) != b"null"
