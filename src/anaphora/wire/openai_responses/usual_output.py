"""Messages of an answer, read in one go: the model's texts, with whatever came along with each.
Every other item is read field by field, which gives the same for these."""

from __future__ import annotations

import msgspec

from anaphora.values import Part, Text
from anaphora.wire.fields import rest_for
from anaphora.wire.reading import DECODE_ERRORS

from .content import ITEM, WIRE

_Members = dict[str, msgspec.Raw]

decode_members = msgspec.json.Decoder(_Members).decode
_parts = msgspec.json.Decoder(list[_Members]).decode
_text = msgspec.json.Decoder(str).decode

_MESSAGE = msgspec.Raw(b'"message"')
_ASSISTANT = msgspec.Raw(b'"assistant"')
_OUTPUT_TEXT = msgspec.Raw(b'"output_text"')


def read_texts(raw: msgspec.Raw) -> list[Part] | None:
    """The texts of a message; None for every other item, and for one that cannot be read. What has
    no name is carried along in the order it came."""
    try:
        item = decode_members(raw)
        if item.pop("type", None) != _MESSAGE or item.pop("role", None) != _ASSISTANT:
            return None
        parts = _parts(item.pop("content"))
        # Fields of the item go with its first text, beside those of the text itself.
        beside, texts = rest_for(ITEM, item) or {ITEM: "{}"}, list[Part]()
        for part in parts:
            if part.pop("type") != _OUTPUT_TEXT or "prompt_cache_breakpoint" in part:
                return None
            text, extras = _text(part.pop("text")), rest_for(WIRE, part)
            texts.append(Text(text, {**(extras or {}), **beside} if beside else extras))
            beside = {}
    except (*DECODE_ERRORS, KeyError):
        return None
    return texts or None
