"""Markers in a provider's own form, on wires that carry unknown fields of a part along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from anaphora.canonical import dumps
from anaphora.prompt import BlockMark, Call, MarkRequest, PartMark, PromptBlock
from anaphora.values import Extras, Message, Part, ToolResult, Ttl

Markers = Mapping[Ttl, dict[str, Any]]


def marker_bytes(markers: Markers) -> dict[Ttl, bytes]:
    """What marking a block puts before its closing brace."""
    return {ttl: b"," + dumps(marker)[1:-1] for ttl, marker in markers.items()}


def hear_marks(call: Call, wire: str, markers: Markers) -> Call:
    """The call with the markers that its parts carry along as marks of the caller. A marker in
    another form than the row's stays where it is."""
    ear = _Ear(wire, markers)
    ir = call.ir.revised(ear.message, ear.block)
    if not ear.marks:
        return call
    replace = msgspec.structs.replace
    plan = replace(ir.cache, marks=(*ir.cache.marks, *ear.marks))
    return replace(call, ir=replace(ir, cache=plan))


class _Ear:
    def __init__(self, wire: str, markers: Markers) -> None:
        self._wire = wire
        self._markers = markers
        self.marks: list[MarkRequest] = []

    def block(self, at: int, block: PromptBlock) -> PromptBlock:
        extras, ttl = self._heard(block.extras)
        if ttl is None:
            return block
        self.marks.append(BlockMark(at, ttl))
        return msgspec.structs.replace(block, extras=extras)

    def message(self, message: Message) -> Message:
        before = len(self.marks)
        parts = tuple(self._part(part, message.id, (at,)) for at, part in enumerate(message.parts))
        if len(self.marks) == before:
            return message
        return msgspec.structs.replace(message, parts=parts)

    def _part(self, part: Any, message_id: str, path: tuple[int, ...]) -> Any:
        extras, ttl = self._heard(getattr(part, "extras", None))
        if isinstance(part, ToolResult) and not isinstance(part.content, str):
            inner: list[Part] = [
                self._part(each, message_id, (*path, at)) for at, each in enumerate(part.content)
            ]
            part = msgspec.structs.replace(part, content=tuple(inner))
        if ttl is None:
            return part
        self.marks.append(PartMark(message_id, path, ttl))
        return msgspec.structs.replace(part, extras=extras)

    def _heard(self, extras: Extras | None) -> tuple[Extras | None, Ttl | None]:
        """The extras without the marker in them, and how long it lives."""
        if extras is None or self._wire not in extras:
            return extras, None
        fields = msgspec.json.decode(extras[self._wire], type=dict[str, msgspec.Raw])
        for ttl, marker in self._markers.items():
            if all(
                name in fields and msgspec.json.decode(fields[name]) == said
                for name, said in marker.items()
            ):
                left = {name: raw for name, raw in fields.items() if name not in marker}
                rest = {name: text for name, text in extras.items() if name != self._wire}
                if left:
                    rest[self._wire] = msgspec.json.encode(left).decode()
                return rest or None, ttl
        return extras, None
