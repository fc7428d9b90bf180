"""What users, systems and tools say: texts, and pictures that stand before them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.values import (
    Audio,
    Document,
    Image,
    Notice,
    Opaque,
    Part,
    Refusal,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)

from .carried import WIRE, Notices, is_fields, no_place
from .images import image, is_image

_PARTS = (Text, Image, Document, Audio, ToolCall, ToolResult, Thinking, Refusal, Opaque)


class Spoken(msgspec.Struct):
    """One message to be: a text, and the pictures with it."""

    text: str
    images: list[bytes] = []

    def members(self) -> bytes:
        pictures = b',"images":[' + b",".join(self.images) + b"]" if self.images else b""
        return b'"content":' + string(self.text) + pictures


def apart(parts: Sequence[Part], notices: Notices) -> list[Spoken]:
    """A message for each text, with the pictures before it.

    Content is one text here, and texts that were apart would run into each other in it. Pictures
    behind the last text go with it: they are seen before it, and a notice says so.
    """
    said: list[Spoken] = []
    waiting: list[bytes] = []
    for at, part in enumerate(parts):
        if isinstance(part, ToolResult) or is_fields(part):
            continue
        told: Notices = []
        try:
            found = _said(part, told)
        except InvalidRequest as problem:
            raise problem.within(f"parts[{at}]") from None
        notices += at_part(told, at)
        if isinstance(found, str):
            said.append(Spoken(found, waiting))
            waiting = []
        elif found is not None:
            waiting.append(found)
    if waiting and said:
        said[-1].images += waiting
        notices.append(Notice("parts_reordered", "images stand before their text here"))
    elif waiting:
        said.append(Spoken("", waiting))
    return said


def together(parts: Sequence[Part], notices: Notices) -> Spoken:
    """All of it as one message: a tool's answer stays one."""
    spoken, texts = Spoken(""), 0
    for index, part in enumerate(parts):
        told: Notices = []
        try:
            found = _said(part, told)
        except InvalidRequest as problem:
            raise problem.within(f"content[{index}]") from None
        if isinstance(found, str):
            spoken.text += found
            texts += 1
        elif found is not None:
            if texts:
                told.append(Notice("parts_reordered", "images stand before their text here"))
            spoken.images.append(found)
        notices += [_below(notice, f"content[{index}]") for notice in told]
    if texts > 1:
        notices.append(
            Notice("texts_joined", f"{texts} texts of one answer become one, as they are")
        )
    return spoken


def left_out(part: object, notices: Notices) -> None:
    """A part that this message has no place for."""
    if not isinstance(part, _PARTS):
        raise InvalidRequest(
            f"{type(part).__name__} is not a part; use Text, Image, ToolCall, ToolResult, …"
        )
    if isinstance(part, Opaque) and part.provider != WIRE:
        why = f"a {part.kind} block of {part.provider} means nothing to Ollama; left out"
        notices.append(Notice("foreign_block", why))
        return
    name = type(part).__name__
    notices.append(Notice("part_left_out", f"Ollama has no place for {name} here; left out"))


def at_part(notices: Notices, at: int) -> Notices:
    """The notices of a part, with the path to it."""
    return [_below(notice, f"parts[{at}]") for notice in notices]


def _below(notice: Notice, place: str) -> Notice:
    path = f"{place}.{notice.path}" if notice.path else place
    return msgspec.structs.replace(notice, path=path)


def _said(part: Part, notices: Notices) -> str | bytes | None:
    """A text, a picture as it is sent, or nothing."""
    if isinstance(part, Text):
        no_place(part.extras, notices)
        return part.text
    if is_image(part):
        return image(part, notices)  # type: ignore[arg-type]
    left_out(part, notices)
    return None
