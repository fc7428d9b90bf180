"""What would avoid a loss: a closed set of remedies, and one of them as a value with its saving."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from anaphora.cache.simulator.chances import CostRange
from anaphora.values import Ttl
from anaphora.wording import counted, format_usd

RemedyKind: TypeAlias = Literal[
    "longer_ttl",
    "keep_tools",
    "move_to_end",
    "keep_history",
    "keep_parameters",
    "place_markers",
    "cache_key",
    "pin_host",
    "send_first",
    "nothing",
]
"""What to do about a loss: the names that verdicts, `anaphora usage` and `watch --fix` use."""

#: What each asks for.
REMEDIES: dict[RemedyKind, str] = {
    "longer_ttl": "cache for longer",
    "keep_tools": "send the same tools in the same order from the first call on",
    "move_to_end": "move text that changes into the newest message",
    "keep_history": "change earlier messages rarely, all at once and near the end",
    "keep_parameters": "keep model and parameters for the whole conversation",
    "place_markers": "let Anaphora place the markers",
    "cache_key": "send one prompt_cache_key with all calls of a conversation",
    "pin_host": "stay at the host that has the prefix cached",
    "send_first": "send parallel calls after the first response has begun",
    "nothing": "nothing",
}


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """What would avoid a loss. `str()` is one line."""

    kind: RemedyKind
    text: str
    ttl: Ttl | None = None
    """The lifetime to ask for."""
    fixable: bool = False
    """Whether `anaphora watch --fix` does it, since it changes no meaning."""
    calls: int = 0
    """The calls that the saving is for: two, or those of the conversation so far."""
    tokens: int = 0
    """How many more tokens these would have read."""
    at_call: Decimal | None = None
    """What it would have saved at this call alone, in dollars."""
    saving: CostRange | None = None
    """In dollars, with the error of prompts without a bill; None if a price is unknown or there is
    nothing to do."""

    def fields(self) -> dict[str, Any]:
        """The remedy as JSON values, without those that say nothing."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value for name, value in fields.items() if value not in (None, 0, False)}

    def __str__(self) -> str:
        text = self.text[:1].upper() + self.text[1:]
        if self.saving is not None:
            text += f": saves {_range(self.saving)} over {counted(self.calls, 'call')}"
        text += "."
        return f"{text} `anaphora watch --fix` does it." if self.fixable else text


def summed(remedy: Remedy, before: Mapping[RemedyKind, Remedy], calls: int) -> Remedy:
    """The remedy with what the same one would have saved at earlier losses of the conversation,
    which has so many calls so far."""
    if not remedy.calls:
        return remedy
    known, saving = before.get(remedy.kind), remedy.saving
    if known is None:
        return replace(remedy, calls=max(calls, remedy.calls))
    if saving is not None and known.saving is not None:
        more = known.saving
        figures = saving.expected + more.expected, saving.low + more.low, saving.high + more.high
        saving = CostRange(*figures)
    tokens = remedy.tokens + known.tokens
    return replace(remedy, calls=max(calls, remedy.calls), tokens=tokens, saving=saving)


def _range(saving: CostRange) -> str:
    if saving.low == saving.high:
        return format_usd(saving.expected)
    low, high = map(_signed, (saving.low, saving.high))
    return f"{_signed(saving.expected)} ({low} to {high})"


def _signed(amount: Decimal) -> str:
    return format_usd(amount) if amount >= 0 else f"-{format_usd(-amount)}"
