"""Texts in recorded bodies: patterns that find a secret in several encodings, and edits of bodies.

Each character may be written as itself, as a JSON escape (also of JSON within JSON) or
percent-encoded. In base64 a secret has three forms, since three bytes become four characters; the
characters that hold bits of its neighbours are left out.

A secret may span several events of a stream: a model writes it in several deltas. The strings of
one name (`"text"`, `"content"`, `"delta"`, …) are read as one text, in their order: those of the
whole stream, and those of each part of the answer. In AWS's binary event streams they are in
frames, whose lengths and checksums are made anew; the events of InvokeModel are base64 in them.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from anaphora.canonical import string
from anaphora.wire.eventstream import CONTENT_TYPE, Frame, FrameDecoder, encode_frame

from .fixture import FixtureHeaders, FixturePiece

#: Shorter secrets are found as whole words only, and not in base64.
_SHORT = 8
_WORD = rb"A-Za-z0-9_"
#: The backslashes of an escape: twice as many and one more at each level of JSON within JSON. The
#: number is limited, so that a search takes linear time.
_ESCAPE = rb"\\\\{0,14}"


class SecretForm(msgspec.Struct, frozen=True):
    pattern: re.Pattern[bytes]
    mask: bytes = b""
    """What replaces it; empty: the usual mask. Base64 stays base64 of the same length."""

    def __repr__(self) -> str:
        return "<SecretForm>"


def secret_patterns(secret: str) -> Iterator[SecretForm]:
    pattern = _sequence(secret)
    if len(secret) < _SHORT:
        yield SecretForm(re.compile(b"(?<![%b])%b(?![%b])" % (_WORD, pattern, _WORD)))
        return
    yield SecretForm(re.compile(pattern))
    for text in dict.fromkeys(_base64_forms(secret.encode("utf-8", "surrogatepass"))):
        yield SecretForm(re.compile(_base64_pattern(text)), b"A" * len(text))


def _base64_forms(data: bytes) -> Iterator[str]:
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + data).decode()
        first = -(-before * 8 // 6)
        last = (before + len(data)) * 8 // 6
        yield encoded[first:last]
        yield encoded[first:last].replace("+", "-").replace("/", "_")


def _base64_pattern(text: str) -> bytes:
    """Letters and digits are never escaped, and a plain search for them is much faster."""
    return b"".join(each.encode() if each.isalnum() else _character(each) for each in text)


def _sequence(text: str) -> bytes:
    return b"".join(map(_character, text))


def _character(character: str) -> bytes:
    data = character.encode("utf-8", "surrogatepass")
    units = character.encode("utf-16-be", "surrogatepass")
    json = b"".join(
        _ESCAPE + b"u" + _hex(units[at : at + 2].hex()) for at in range(0, len(units), 2)
    )
    percent = b"".join(b"%(?:25){0,3}" + _hex(f"{byte:02x}") for byte in data)
    forms = [re.escape(data), json, percent]
    if character in '"\\/':
        forms.append(_ESCAPE + re.escape(data))
    return b"(?:" + b"|".join(forms) + b")"


def _hex(digits: str) -> bytes:
    """Hex digits in either case."""
    return b"".join(
        f"[{each}{each.upper()}]".encode() if each.isalpha() else each.encode() for each in digits
    )


_MEMBER = re.compile(rb'"([A-Za-z_]{1,40})"\s*:\s*"([^"\\]*+(?:\\.[^"\\]*+)*+)"')
#: The place of an event in the answer: `"index": 1`, `"output_index": 0`.
_INDEX = re.compile(rb'"([a-z_]*index)"\s*:\s*([0-9]+)')
#: Edits of a text.
_Edits = Callable[[bytes], Sequence[tuple[int, int, bytes]]]


#: Strings that are read as one text: where each begins and ends.
_Groups = Iterable[Sequence[tuple[int, int]]]


def strings_by_name(data: bytes) -> _Groups:
    strings: dict[bytes, list[tuple[int, int]]] = {}
    for found in _MEMBER.finditer(data):
        strings.setdefault(found[1], []).append(found.span(2))
    return strings.values()


def strings_by_index(data: bytes) -> _Groups:
    """The strings of one name in one part of the answer: events of several choices or tool calls
    alternate. Empty if no event has an index."""
    strings: dict[tuple[bytes, ...], list[tuple[int, int]]] = {}
    begin = 0
    for line in data.splitlines(keepends=True) if _INDEX.search(data) else ():
        indices = [each for found in _INDEX.finditer(line) for each in found.groups()]
        for found in _MEMBER.finditer(data, begin, begin + len(line)):
            strings.setdefault((found[1], *indices), []).append(found.span(2))
        begin += len(line)
    return strings.values()


def spread_edits(data: bytes, groups: _Groups, edits_of: _Edits) -> list[tuple[int, int, bytes]]:
    """The edits that replace secrets which span events."""
    made: list[tuple[int, int, bytes]] = []
    for group in groups:
        spans = [(start, end) for start, end in group if end > start]
        if len(spans) > 1:
            made += _group_edits(data, spans, edits_of)
    return sorted(made)


def _group_edits(
    data: bytes, spans: Sequence[tuple[int, int]], edits_of: _Edits
) -> Iterator[tuple[int, int, bytes]]:
    texts = [_value(data[start:end]) for start, end in spans]
    starts, length = [], 0
    for text in texts:
        starts.append(length)
        length += len(text)
    left: dict[int, bytearray] = {}
    for first, last, mask in reversed(edits_of(b"".join(texts))):
        at = bisect_right(starts, first) - 1
        while at < len(starts) and starts[at] < last:
            rest = left.setdefault(at, bytearray(texts[at]))
            begin, end = max(first - starts[at], 0), min(last - starts[at], len(texts[at]))
            rest[begin:end] = mask if first >= starts[at] else b""
            at += 1
    for at, rest in left.items():
        yield (*spans[at], string(rest.decode("utf-8", "replace"))[1:-1])


def _value(escaped: bytes) -> bytes:
    """The text inside a JSON string; invalid JSON is returned unchanged."""
    if b"\\" not in escaped:
        return escaped
    try:
        text: str = json.loads(b'"%b"' % escaped, strict=False)
        return text.encode("utf-8", "surrogatepass")
    except ValueError:
        return escaped


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
