"""The JSON of a stream's events, changed as a server or gateway would: within its framing."""

from __future__ import annotations

from collections.abc import Callable

from anaphora import wire
from anaphora.values import Reply
from anaphora.wire.eventstream import CONTENT_TYPE, FrameDecoder, encode_frame
from anaphora.wire.replies import reply_events

_TYPES = {"bedrock": CONTENT_TYPE}


def stream_type(name: str) -> str:
    """The content type of a wire's streams."""
    return _TYPES.get(name, "text/event-stream")


def stream_of(name: str, reply: Reply, change: Callable[[bytes], bytes]) -> list[bytes]:
    """A reply as the pieces of a wire's stream, each with at most one event, whose JSON is changed.
    Frames get the lengths and checksums of what they hold."""
    stream = b"".join(map(wire.get(name).writer().write, reply_events(reply)))
    if name == "bedrock":
        decoder = FrameDecoder()
        frames = decoder.feed(stream)
        assert decoder.complete
        return [encode_frame(frame.headers, change(frame.payload)) for frame in frames]
    pieces = []
    for line in stream.splitlines(keepends=True):
        start, end = line.find(b"{"), line.rfind(b"}") + 1
        changed = line[:start] + change(line[start:end]) + line[end:] if end else line
        pieces.append(changed)
    return pieces
