"""A verdict: what became of a cached prefix, why, and what that cost, as a value and a sentence."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal, TypeAlias

import msgspec

from anaphora.cache.simulator import Outcome
from anaphora.values import Section
from anaphora.values.codec import html_of
from anaphora.wording import counted

Result: TypeAlias = Literal["first", "hit", "partial", "miss"]
"""Whether all, some or none of what the previous call cached was read."""

#: The kinds of change, and how each is described.
CHANGES: dict[str, str] = {
    "key_order": "JSON keys changed their order",
    "whitespace": "only white space changed",
    "spelling": "the same JSON value is written differently",
    "order": "the same items are in another order",
    "tool_added": "a tool was added",
    "tool_removed": "a tool was removed",
    "tool_moved": "a tool moved",
    "block_added": "a block was added",
    "block_removed": "a block was removed",
    "block_moved": "a block moved",
    "message_added": "a message was inserted",
    "message_dropped": "a message was dropped",
    "message_moved": "a message moved",
    "image_added": "an image was added",
    "image_gone": "an image was removed",
    "date": "a date changed",
    "clock": "a clock time changed",
    "uuid": "a UUID changed",
    "nonce": "an id or nonce changed",
    "counter": "a number changed",
    "text_edited": "the text was edited",
    "value_changed": "a value changed",
}

#: Changes that happen by themselves, without an edit of the prompt.
VOLATILE = frozenset(("date", "clock", "uuid", "nonce", "counter"))

CauseKind: TypeAlias = Literal[
    "changed",
    "marker_on_volatile",
    "model_changed",
    "parameter_changed",
    "images_changed",
    "other_key",
    "other_route",
    "expired",
    "not_yet_visible",
    "lookback_exceeded",
    "below_minimum",
    "no_marker",
    "thinking_dropped",
    "not_persisted",
    "evicted",
    "provider_side",
    "unexplained",
]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The first byte in which two prompts differ, and the kind of difference."""

    kind: str
    """A key of `CHANGES`."""
    offset: int
    """The byte, counted from the start of the prompt."""
    chunk: int
    section: Section
    label: str
    """The block it is in: a tool, a system block, a message."""
    path: str
    before: str
    """The earlier prompt's text around that byte."""
    after: str
    detail: str = ""
    """Names: the tool that was added, the message that was dropped."""

    def __str__(self) -> str:
        named = f" ({self.detail})" if self.detail and self.detail != self.label else ""
        where = f"at byte {self.offset:,} in {self.label} ({self.path})"
        return f"{CHANGES[self.kind]}{named} {where}"


class Cause(msgspec.Struct, frozen=True):
    """One reason why less was read than could have been."""

    kind: CauseKind
    text: str


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What a call should read, by the rules and the bill of the previous call."""

    left: int
    """Tokens that the previous call left in the cache."""
    read: int
    outcome: Outcome
    exact: bool
    """Whether `left` is exact to the token, as it is where markers are."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's own diagnosis of a cache miss."""

    provider: str
    code: str
    """The provider's code: `tools_changed`, `prompt_cache_key`."""
    tokens: int | None = None
    """How many tokens it says were missed."""
    conclusive: bool = True
    """False: the provider could not compare."""

    def __str__(self) -> str:
        missed = f" ({counted(self.tokens, 'token')})" if self.tokens is not None else ""
        return f"{self.code}{missed}"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one call. `str()` is the sentence."""

    result: Result
    causes: tuple[Cause, ...] = ()
    """The most important first."""
    change: Change | None = None
    left: int | None = None
    """Tokens that the previous call left in the cache."""
    predicted: int | None = None
    """Tokens that should have been read, by the rules."""
    billed: int | None = None
    """Tokens that were read, by the bill."""
    total: int | None = None
    lost: int = 0
    """Tokens that could have been read and were paid again."""
    cost_usd: Decimal | None = None
    """The cost of the lost tokens; None is unknown, which is not 0."""
    saved: Decimal | None = None
    """What the cache saved on this bill, less the cost of writing to it."""
    diagnosis: Diagnosis | None = None
    agrees: bool | None = None
    """Whether the provider's diagnosis agrees; None where there is none."""

    @property
    def sentence(self) -> str:
        text = _outcome(self)
        if self.causes:
            joined = ": " if self.result == "miss" and not self.left else ", because "
            text += f"{joined}{self.causes[0].text}"
            if more := len(self.causes) - 1:
                text += f" (and {counted(more, 'more reason')})"
        text += "."
        if self.lost:
            were = "was" if self.lost == 1 else "were"
            paid = "would be" if self.billed is None else were
            tokens = counted(self.lost, "token")
            text += f" {tokens} {paid} paid again: {format_loss(self.cost_usd)}."
        if self.diagnosis is not None:
            text += f" The provider reports {self.diagnosis}, {_AGREEMENT[self.agrees]}."
        return text

    @property
    def cause(self) -> CauseKind | None:
        return self.causes[0].kind if self.causes else None

    @property
    def broke(self) -> bool:
        """Whether the prompt, or a parameter that its cache depends on, changed."""
        broken = ("model_changed", "parameter_changed", "images_changed", "other_key")
        return self.change is not None or any(cause.kind in broken for cause in self.causes)

    def __str__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        return html_of(self)


_AGREEMENT: dict[bool | None, str] = {
    None: "which neither confirms nor contradicts this",
    True: "which agrees",
    False: "which disagrees",
}


def _outcome(verdict: Verdict) -> str:
    read = (verdict.predicted if verdict.billed is None else verdict.billed) or 0
    predicted = " (predicted; there is no bill)" if verdict.billed is None else ""
    left, tokens = verdict.left, counted(read, "token")
    match verdict.result:
        case "first":
            return "First call: nothing cached yet"
        case "hit" if not left:
            return f"Hit: {tokens} read, although the previous call cached none{predicted}"
        case "hit" if verdict.total is not None:
            saved = verdict.saved
            gain = "" if saved is None or saved <= 0 else f", saved {format_usd(saved)}"
            return f"Hit: {read:,} of {counted(verdict.total, 'token')} read{gain}{predicted}"
        case "hit":
            return f"Hit: {tokens} read, everything the previous call cached{predicted}"
        case "partial":
            return f"Partial hit: {read:,} of {counted(left or 0, 'cached token')} read{predicted}"
        case "miss" if left:
            return f"Miss: none of {counted(left, 'cached token')} read{predicted}"
        case "miss":
            return f"Not cached{predicted}"


def format_usd(cost_usd: Decimal) -> str:
    if cost_usd >= 1:
        return f"${cost_usd:.2f}"
    return f"${cost_usd:.4f}" if cost_usd >= Decimal("0.0001") else f"${cost_usd:.2g}"


def format_loss(cost_usd: Decimal | None) -> str:
    return "cost unknown" if cost_usd is None else f"{format_usd(cost_usd)} lost"
