"""Changes texts in recorded bodies. In AWS's binary event streams these are in frames, whose
lengths and checksums are made anew; the events of InvokeModel are base64 in them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from anaphora.wire.eventstream import CONTENT_TYPE, Frame, FrameDecoder, encode_frame

from .fixture import FixtureHeaders, FixturePiece

_Pieces: TypeAlias = Sequence[FixturePiece]
#: After each payload, as events of other streams end.
_END = b"\n"


def edited_body(
    headers: FixtureHeaders, pieces: _Pieces, change: Callable[[_Pieces], _Pieces]
) -> _Pieces:
    """The pieces of a response's body after a change of its texts; those given if nothing changed.
    A stream that is not of whole frames is changed as bytes."""
    kind = next((value for name, value in headers if name.lower() == "content-type"), "")
    made = _edited_frames(pieces, change) if kind.startswith(CONTENT_TYPE) else None
    return change(pieces) if made is None else made


def _edited_frames(pieces: _Pieces, change: Callable[[_Pieces], _Pieces]) -> _Pieces | None:
    decoder = FrameDecoder()
    arrived = [(piece.seconds, decoder.feed(piece.data)) for piece in pieces]
    frames = [(seconds, frame) for seconds, found in arrived for frame in found]
    if decoder.problem is not None or decoder.body is not None or not decoder.complete:
        return None
    texts = [FixturePiece(seconds, _event(frame) + _END) for seconds, frame in frames]
    found = change(texts)
    if [each.data for each in found] == [each.data for each in texts]:
        return pieces
    made: dict[float, bytearray] = {}
    for (seconds, frame), text in zip(frames, found, strict=True):
        payload = _payload(frame, text.data.removesuffix(_END))
        made.setdefault(seconds, bytearray()).extend(encode_frame(frame.headers, payload))
    return [FixturePiece(seconds, bytes(data)) for seconds, data in made.items()]


def _chunk(frame: Frame) -> dict[str, Any] | None:
    """The payload of an event of InvokeModel."""
    try:
        payload = msgspec.json.decode(frame.payload, type=dict[str, Any])
        base64.b64decode(payload["bytes"], validate=True)
    except (msgspec.DecodeError, binascii.Error, KeyError, TypeError, ValueError):
        return None
    return payload


def _event(frame: Frame) -> bytes:
    payload = _chunk(frame)
    return frame.payload if payload is None else base64.b64decode(payload["bytes"])


def _payload(frame: Frame, event: bytes) -> bytes:
    payload = _chunk(frame)
    if payload is None:
        return event
    return msgspec.json.encode({**payload, "bytes": base64.b64encode(event).decode()})
