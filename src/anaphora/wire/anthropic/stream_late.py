"""What a streamed answer and its blocks get after they began."""

from __future__ import annotations

import msgspec

from anaphora.canonical import string
from anaphora.errors import Parse
from anaphora.values import Extras, Text, Thinking
from anaphora.wire.fields import Fields
from anaphora.wire.replies import TEXT_LIMIT

from .blocks import WIRE

#: Fields of an answer that a stream tells in its last delta, and those that it tells beside it.
IN_DELTA = ("container", "stop_details")
BESIDE_DELTA = ("context_management", "input_transformations")


class Late:
    """What a block gets after it began: a signature, citations, a summary; and the fields it began
    with."""

    __slots__ = ("citations", "fields", "got", "signature")

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.signature = ""
        self.citations: list[bytes] = []
        self.got: dict[str, str] = {}
        """Fields of a block that is otherwise carried along as it came."""

    def text(self, said: str) -> Text:
        extras = self.fields.rest()
        if self.citations:
            citations = b'"citations":[' + b",".join(self.citations) + b"]"
            extras = extras + b"," + citations if extras else citations
        return Text(said, {WIRE: (b"{" + extras + b"}").decode()} if extras else None)

    def thinking(self, said: str) -> Thinking:
        return Thinking(said, self.signature, provider=WIRE, extras=self.fields.rest_for(WIRE))

    def get(self, name: str, more: str | None) -> None:
        """More of one of the block's own fields."""
        if not more:
            return
        self.got[name] = self.got.get(name, "") + more
        if len(self.got[name]) > TEXT_LIMIT:
            raise Parse(f"{name} of more than {TEXT_LIMIT} characters", path="stream")

    def whole(self, block: bytes, said: str, path: str) -> bytes:
        """A block as it began, with what it got since: its input, and its own fields."""
        if not (said or self.got or self.signature):
            return block
        fields = Fields(block, path)
        if said:
            fields.raw("input")
            fields.put("input", said.encode())
        for name, text in {**self.got, "signature": self.signature}.items():
            if text:
                fields.put(name, string(text))
        return fields.whole().encode()


def with_late_fields(extras: Extras | None, late: dict[str, msgspec.Raw]) -> Extras | None:
    """What an answer carries along, with what its end told."""
    told = {name: raw for name, raw in late.items() if bytes(raw) != b"null"}
    if not told:
        return extras
    fields = Fields((extras or {}).get(WIRE, "{}"), "stream")
    for name, raw in told.items():
        fields.put(name, bytes(raw))
    return fields.rest_for(WIRE)
