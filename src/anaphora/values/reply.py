"""What came back: one message, why it ended, and what it cost."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from .display import html_of
from .message import Message
from .notice import Notice
from .parts import Extras, ToolCall
from .usage import Usage

#: Why the model stopped. `other` keeps the provider's word in `Reply.stop_raw`.
StopReason: TypeAlias = Literal[
    "end", "length", "stop_sequence", "tool_calls", "pause", "refusal", "context_overflow", "other"
]


class Reply(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """A provider's whole answer."""

    id: str
    model: str
    """The model that really answered."""
    message: Message
    stop: StopReason
    stop_raw: str | None = None
    """The provider's own word for it."""
    stop_sequence: str | None = None
    usage: Usage = Usage()
    notices: tuple[Notice, ...] = ()
    extras: Extras | None = None

    @property
    def text(self) -> str:
        return self.message.text

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.message.parts if isinstance(part, ToolCall))

    def _repr_html_(self) -> str:
        """For notebooks."""
        return html_of(self)
