"""A message: who speaks, and the parts it is made of."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from .parts import Part, ResultPart, Text, ToolResult

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


class Message(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """One message. The id is the app's own; a conversation numbers the ones that have none."""

    id: str = ""
    role: Role
    parts: tuple[Part, ...]

    @classmethod
    def system(cls, *parts: str | Part, id: str = "") -> Message:
        return cls(id=id, role="system", parts=_parts(parts))

    @classmethod
    def user(cls, *parts: str | Part, id: str = "") -> Message:
        return cls(id=id, role="user", parts=_parts(parts))

    @classmethod
    def assistant(cls, *parts: str | Part, id: str = "") -> Message:
        return cls(id=id, role="assistant", parts=_parts(parts))

    @classmethod
    def tool(
        cls,
        call_id: str,
        content: str | tuple[ResultPart, ...] = "",
        *,
        error: bool = False,
        name: str | None = None,
        id: str = "",
    ) -> Message:
        result = ToolResult(call_id=call_id, content=content, error=error, name=name)
        return cls(id=id, role="tool", parts=(result,))

    @property
    def text(self) -> str:
        """The text parts, joined as they stand."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    def says_the_same(self, other: Message) -> bool:
        """Equal apart from the id, which no provider sees."""
        return self.role == other.role and self.parts == other.parts


def _parts(parts: tuple[str | Part, ...]) -> tuple[Part, ...]:
    return tuple(Text(part) if isinstance(part, str) else part for part in parts)
