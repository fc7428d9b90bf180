"""Random numbers, ids and text from a seed, and the stream events of a reply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
from blake3 import blake3

from anaphora.canonical import dumps
from anaphora.emulator.exchange import NULL, decode_value, nested
from anaphora.prompt import Call
from anaphora.values import (
    Bytes,
    Document,
    Event,
    PartDelta,
    PartStart,
    Reply,
    ReplyStart,
    Text,
    ToolArgumentsDelta,
    Usage,
    UsageUpdate,
)
from anaphora.wire.parts import own_members
from anaphora.wire.replies import reply_events

T = TypeVar("T")

_LETTERS = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: A letter for every byte. Ids are not secret, so the letters need not be equally likely.
_BYTE_TO_LETTER = bytes(_LETTERS[byte % len(_LETTERS)] for byte in range(256))
_WORDS = (
    "the a one this every prefix answer question reader model cache turn byte token block marker "
    "message letter river morning window garden signal number pattern order list table record "
    "holds keeps reads writes follows begins ends stays moves returns names shows counts finds "
    "same next first last stable quiet early small plain whole clear short known local "
    "and then while before after because where again slowly always often here now"
).split()


def join_seed(*values: bytes) -> bytes:
    """One seed from several values. The lengths are included, so seeds may be concatenated."""
    if len(values) == 1:
        return b"%d:%b" % (len(values[0]), values[0])
    return b"".join([b"%d:%b" % (len(value), value) for value in values])


class SeededRandom:
    """An endless sequence of numbers."""

    __slots__ = ("_bytes", "_hash", "_offset")

    def __init__(self, seed: bytes) -> None:
        self._hash = blake3(seed)
        self._bytes = b""
        self._offset = 0

    def below(self, limit: int) -> int:
        return int.from_bytes(self._draw(8)) % limit

    def between(self, least: int, most: int) -> int:
        return least + self.below(most - least + 1)

    def choice(self, values: Sequence[T]) -> T:
        return values[int.from_bytes(self._draw(8)) % len(values)]

    def id(self, length: int = 24) -> str:
        return self._draw(length).translate(_BYTE_TO_LETTER).decode()

    def _draw(self, count: int) -> bytes:
        end = self._offset + count
        if end > len(self._bytes):
            # A longer output begins with the shorter one, and most need only a few numbers.
            self._bytes = self._hash.digest(max(64, 4 * end))
        drawn = self._bytes[self._offset : end]
        self._offset = end
        return drawn


def word(random: SeededRandom) -> str:
    return random.choice(_WORDS)


def sentences(random: SeededRandom, least: int = 12, most: int = 40) -> str:
    """Sentences of `least` to `most` words in all."""
    left = random.between(least, most)
    made = []
    while left > 0:
        count = min(left, random.between(5, 11))
        words = [random.choice(_WORDS) for _ in range(count)]
        made.append(" ".join(words).capitalize() + ".")
        left -= count
    return " ".join(made)


def split_text(text: str, size: int = 12) -> list[str]:
    """A text in the pieces of a stream: a few words each, cut where a word ends."""
    pieces: list[str] = []
    start = 0
    while start < len(text):
        end = text.find(" ", start + size)
        end = len(text) if end < 0 else end
        pieces.append(text[start:end])
        start = end
    return pieces


class IdGenerator:
    """Ids that depend on the seed and on how many were made before."""

    def __init__(self, seed: int) -> None:
        self._seed = join_seed(b"%d" % seed)
        self._count = 0

    def next(self, prefix: str = "") -> str:
        self._count += 1
        drawn = blake3(self._seed + join_seed(b"%d" % self._count)).digest(22)
        return prefix + drawn.translate(_BYTE_TO_LETTER).decode()


#: Characters of arguments in one event of a stream.
_ARGUMENTS = 16


def stream_events(reply: Reply, now: float | None = None) -> Iterator[Event]:
    """The events of a whole reply as a stream that began at `now`."""
    for event in reply_events(reply):
        match event:
            case ReplyStart():
                yield msgspec.structs.replace(event, created=now)
            case UsageUpdate(usage) if usage != Usage():
                # The input is known from the start; of the output, that it has begun.
                yield UsageUpdate(msgspec.structs.replace(usage, output=1, reasoning=None))
            case UsageUpdate():
                pass
            case PartStart(kind="thinking", extras=extras) if extras:
                # Chat hosts name the field of the message that holds the reasoning.
                fields = msgspec.json.decode(next(iter(extras.values())))
                yield msgspec.structs.replace(event, name=fields.get("field"))
            case PartDelta(delta=text):
                if isinstance(event, ToolArgumentsDelta):
                    starts = range(0, len(text), _ARGUMENTS)
                    pieces = [text[start : start + _ARGUMENTS] for start in starts]
                else:
                    pieces = split_text(text)
                for piece in pieces:
                    yield msgspec.structs.replace(event, delta=piece)
            case _:
                yield event


def cited_text(call: Call, text: str, wire: str) -> Text:
    """A text that cites the first sentence of the first document of text that has
    citations."""
    parts = [part for message in call.ir.body_chat() for part in message.parts]
    documents = [part for part in parts if isinstance(part, Document)]
    for index, document in enumerate(documents):
        source, wanted = document.source, own_members(document.extras, wire)
        enabled = nested(decode_value(wanted.get("citations", NULL), "citations"), "enabled")
        if not (enabled and isinstance(source, Bytes) and source.media_type == "text/plain"):
            continue
        cited = source.data.decode(errors="replace").partition(". ")[0]
        citation = {
            "type": "char_location",
            "cited_text": cited,
            "document_index": index,
            "document_title": document.title,
            "start_char_index": 0,
            "end_char_index": len(cited),
        }
        return Text(text, {wire: dumps({"citations": [citation]}).decode()})
    return Text(text)
