"""A call's answer, and all that is known about how it came."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec

from anaphora.cache.verdict import Verdict
from anaphora.values import Notice, Reply, ToolCall, Usage
from anaphora.values.display import html_of

from .record import Attempt, Record


class Response(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What the provider said, and the record of the call."""

    reply: Reply
    record: Record
    raw_hash: str
    """BLAKE3 of the answer's bytes, as they came."""
    parsed: Any = None
    """The answer as the schema that was asked for has it."""

    @property
    def text(self) -> str:
        return self.reply.text

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.reply.tool_calls

    @property
    def usage(self) -> Usage:
        return self.reply.usage

    @property
    def verdict(self) -> Verdict | None:
        return self.record.verdict

    @property
    def cost_usd(self) -> Decimal | None:
        return self.record.cost_usd

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return self.record.attempts

    @property
    def notices(self) -> tuple[Notice, ...]:
        return self.record.notices

    def __repr__(self) -> str:
        said = self.verdict or "no verdict"
        return f"<Response by {self.reply.model}, {self.reply.stop}: {said}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return html_of(self)
