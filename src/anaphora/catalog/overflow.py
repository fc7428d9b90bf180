"""The messages by which providers refuse a prompt that exceeds the context window, as dated rows.

    catalog.is_overflow("prompt is too long: 208310 tokens > 200000 maximum")     True
    catalog.overflow_of("mistral", "openai_chat").write(tokens=300_000, limit=262_144)

This is the one kind of error that is recognised by its message, because most providers have no code
for it. A row is the whole message: text that only mentions tokens or a context matches none.
"""

from __future__ import annotations

import datetime
import re
from typing import Annotated

import msgspec

from .rows import decode_structs, read_toml

FILE = "overflow.toml"

_NUMBERS = ("tokens", "limit", "output", "total", "over")
_FIELD = re.compile(r"\{(\w+)\}")
#: Matches a number. Bounded, so that matching takes linear time.
_NUMBER = "[0-9][0-9,]{0,19}"
#: The end of a message that may continue.
_OPEN = "…"


class Overflow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One provider's message for a prompt that is too long."""

    provider: str
    wire: str = ""
    """Empty: every wire of the provider."""
    message: Annotated[str, msgspec.Meta(min_length=1)]
    code: str | None = None
    """The error code; None: that of any bad request."""
    source: Annotated[str, msgspec.Meta(min_length=1)]
    date: datetime.date

    def __post_init__(self) -> None:
        for name in _FIELD.findall(self.message):
            if name not in _NUMBERS:
                raise ValueError(f"{{{name}}} is none of {', '.join(_NUMBERS)}")

    def write(self, tokens: int, limit: int, output: int = 0) -> str:
        """The message with these numbers."""
        numbers = {
            "tokens": tokens,
            "limit": limit,
            "output": output,
            "total": tokens + output,
            "over": max(0, tokens - limit),
        }
        filled = _FIELD.sub(lambda field: str(numbers[field[1]]), self.message)
        return filled.removesuffix(_OPEN)

    @property
    def pattern(self) -> str:
        """The message as a regular expression, anchored at its end unless it may continue."""
        is_open = self.message.endswith(_OPEN)
        texts = _FIELD.split(self.message.removesuffix(_OPEN))[::2]
        pattern = _NUMBER.join(map(re.escape, texts))
        return pattern if is_open else pattern.removesuffix(r"\.") + r"\.?\s*\Z"


def decode_overflows(text: str, *, file: str = "<text>") -> tuple[Overflow, ...]:
    (rows,) = decode_structs(read_toml(text, file), file, overflow=Overflow)
    return rows
