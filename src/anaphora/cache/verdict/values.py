"""A verdict: how much of a cached prefix was read, why, and the cost, as a value and a sentence.
Also whether the provider's own diagnosis agrees."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from anaphora.values import Section
from anaphora.wording import counted, format_loss, format_usd

from .diagnosis import CauseKind, Diagnosis
from .remedy import Remedy

Result: TypeAlias = Literal["first", "hit", "partial", "miss", "not_cacheable", "unknown"]
"""Whether all, some or none of what the previous call cached was read; `not_cacheable`: its prompt
was below the provider's minimum; `unknown`: less was read, and nothing proves that more could have
been."""

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
    "block_changed": "the block changed",
}

#: Changes that happen by themselves, without an edit of the prompt.
VOLATILE = frozenset(("date", "clock", "uuid", "nonce", "counter"))

#: Control characters are shown escaped, so that an excerpt stays on one line.
_CONTROLS = {code: f"\\x{code:02x}" for code in [*range(32), 127]} | {10: "\\n", 9: "\\t"}
#: The excerpt if one of two texts ends before the other.
_ENDED = "(nothing: the text ends here)"

#: The beginning of a path that consists of names of the wires. Others may be text of prompts: names
#: of arguments, and of the properties of a schema.
_WIRE_PATH = re.compile(
    r"(?:\.?(?:messages|input|contents|content|parts|text|system|instructions|tools|tool_calls"
    r"|function|functions|output|thinking|reasoning|summary|role|type)\b(?:\[\d+\])*)*"
)

#: Causes that are a change before the messages.
PROMPT_CHANGED = frozenset(("system_changed", "tools_changed"))
#: Causes that are a change of bytes, which the verdict's `change` describes.
CHANGED = frozenset((*PROMPT_CHANGED, "history_edited", "marker_on_volatile"))
#: Causes that are a change of something else that a cache depends on.
PARAMETERS = frozenset(
    "model_changed parameter_changed thinking_changed images_changed other_key".split()
)


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
    """The field that changed, or the block if no one field did."""
    before: str
    """The earlier prompt's text around that byte."""
    after: str
    detail: str = ""
    """Names: the tool that was added, the message that was dropped."""
    character: int | None = None
    """The first character that differs in the text at `path`, counted from 0; None if no text
    changed."""

    @property
    def place(self) -> str:
        """What changed, and where, without the excerpts."""
        return self._placed(self.path)

    @property
    def outline(self) -> str:
        """`place` without names of fields that may be text of prompts."""
        known = _WIRE_PATH.match(self.path)
        return self._placed("" if known is None else known.group())

    def _placed(self, path: str) -> str:
        text = CHANGES[self.kind]
        if self.detail:
            return f"{text} ({self.detail}) at {path}"
        where = path if self.label == path else f"{path} ({self.label})".lstrip()
        if self.character is not None:
            return f"{text} at character {self.character:,} of {where}"
        if self.kind == "block_changed":  # its earlier text is not known
            return f"{text} in {where}, which begins at byte {self.offset:,} of the prompt"
        return f"{text} in {where}, at byte {self.offset:,} of the prompt"

    @property
    def excerpts(self) -> tuple[str, str]:
        """The text before and after, each on one line."""
        before, after = (text.translate(_CONTROLS) for text in (self.before, self.after))
        return before or _ENDED, after or _ENDED

    def __str__(self) -> str:
        return f"{self.place}: {_quoted(*self.excerpts)}"


class Cause(msgspec.Struct, frozen=True):
    """One reason why less was read than could have been."""

    kind: CauseKind
    text: str
    tokens: int | None = None
    """How many of the lost tokens it explains, if two causes each explain a part."""
    unverified: tuple[str, ...] = ()
    """The figures of the catalog that it rests on and that no source confirms."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one call. `str()` is the sentence."""

    result: Result
    causes: tuple[Cause, ...] = ()
    """The most important first."""
    change: Change | None = None
    tool_fields: tuple[str, ...] = ()
    """The fields in which the tools of a first call differ from those of the call before it."""
    left: int | None = None
    """Tokens that the previous call left in the cache."""
    predicted: int | None = None
    """Tokens that should have been read, by the rules."""
    billed: int | None = None
    """Tokens that were read, by the bill."""
    total: int | None = None
    lost: int = 0
    """Tokens that could have been read and were billed again."""
    cost_usd: Decimal | None = None
    """The cost of the lost tokens; None: unknown."""
    saved: Decimal | None = None
    """What the cache saved on this bill, less the cost of writing to it."""
    diagnosis: Diagnosis | None = None
    agrees: bool | None = None
    """Whether the provider's diagnosis agrees; None if there is none."""
    host: str = ""
    """The host behind a router that answered, if the answer names it."""
    pinned: bool = False
    """Whether the call asked for that host, which had the prefix cached."""
    remedy: Remedy | None = None
    """What would avoid the loss, and what it would have saved."""

    @property
    def sentence(self) -> str:
        return self.describe()

    def describe(self, *, excerpts: bool = True, outlined: bool = False) -> str:
        """The sentence; without the two excerpts of a change if those are shown beside it.
        `outlined`: also without names of fields, so that it contains no text of prompts."""
        if outlined and self.change is not None:
            place, outline = self.change.place, self.change.outline
            plain = (replace(each, text=each.text.replace(place, outline)) for each in self.causes)
            return replace(self, causes=tuple(plain), change=None).describe()
        shown = self.change if excerpts else None
        text, others = _outcome(self), self.other_causes if self.causes else ()
        named = self.causes[: len(self.causes) - len(others)]
        if len(named) > 1:
            parts = (f"{cause.tokens:,} because {_reason(cause, shown)}" for cause in named)
            text += f": {'; '.join(parts)}"
        elif named:
            text += _joint(self) + _reason(named[0], shown)
        if others:
            text += f" (and {counted(len(others), 'more reason')})"
        text += "."
        doubts: dict[str, None] = {}
        for cause in named:
            doubts.update(dict.fromkeys(cause.unverified))
        if doubts:
            text += f" Not verified: {', '.join(doubts)} in the catalog."
        if self.lost:
            text += f" {_loss(self)}: {format_loss(self.cost_usd)}."
        if self.pinned:
            text += f" Pinned to {self.host}."
        if self.diagnosis is not None and reported_cause(self.diagnosis) not in self.causes:
            who = self.diagnosis.reporter.replace("the", "The")
            text += f" {who} reports {self.diagnosis}, {_AGREEMENT[self.agrees]}."
        return text

    @property
    def other_causes(self) -> tuple[Cause, ...]:
        """The causes that the sentence counts without naming them."""
        if len(self.causes) < 2:
            return ()
        shares = sum(cause.tokens is not None for cause in self.causes)
        return self.causes[max(1, shares) :]

    @property
    def losses(self) -> dict[CauseKind, int]:
        """The lost tokens by cause."""
        if not self.lost or not self.causes:
            return {}
        shares = {cause.kind: cause.tokens for cause in self.causes if cause.tokens is not None}
        return shares or {self.causes[0].kind: self.lost}

    @property
    def cause(self) -> CauseKind | None:
        return self.causes[0].kind if self.causes else None

    @property
    def explains_loss(self) -> bool:
        """Whether something was lost, and why is known."""
        return bool(self.causes) and self.result not in ("first", "hit", "unknown")

    @property
    def broke(self) -> bool:
        """Whether something cached was not read because the prompt, or a parameter that its cache
        depends on, changed. A compaction is meant to change it."""
        if self.causes and self.causes[0].kind == "compaction":
            return False
        if not self.left or self.result not in ("partial", "miss"):
            return False
        return self.change is not None or any(cause.kind in PARAMETERS for cause in self.causes)

    def __str__(self) -> str:
        return self.sentence


_AGREEMENT: dict[bool | None, str] = {
    None: "which neither confirms nor contradicts this",
    True: "which agrees",
    False: "which disagrees",
}


def _quoted(*excerpts: str) -> str:
    was, now = (text if text == _ENDED else f"`{text}`" for text in excerpts)
    return f"was {was}, now {now}"


def _outcome(verdict: Verdict) -> str:
    read = (verdict.predicted if verdict.billed is None else verdict.billed) or 0
    predicted = " (predicted; there is no bill)" if verdict.billed is None else ""
    left, tokens = verdict.left, counted(read, "token")
    match verdict.result:
        case "first" if verdict.cause == "side_call":
            return "Side call"
        case "first" if read and verdict.total is not None:
            return f"First call seen: {read:,} of {counted(verdict.total, 'token')} read"
        case "first":
            changed = verdict.cause in PROMPT_CHANGED
            return "Not cached" if changed else "First call: nothing cached yet"
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
        case "miss" | "not_cacheable":
            return f"Not cached{predicted}"
        case "unknown" if left:
            return f"Unknown: {read:,} of {counted(left, 'cached token')} read"
        case "unknown":
            return "Unknown"


def _joint(verdict: Verdict) -> str:
    """The words between the outcome and the reason."""
    if not verdict.left:
        return ": "
    return "; " if verdict.result == "unknown" else ", because "


def _reason(cause: Cause, change: Change | None) -> str:
    if change is None or cause.kind not in CHANGED:
        return cause.text
    return f"{cause.text}: {_quoted(*change.excerpts)}"


def _loss(verdict: Verdict) -> str:
    tokens = counted(verdict.lost, "token")
    if not verdict.left:
        return f"{tokens} could have been read"
    were = "was" if verdict.lost == 1 else "were"
    return f"{tokens} {'would be' if verdict.billed is None else were} billed again"


def reported_cause(diagnosis: Diagnosis | None) -> Cause | None:
    """The cause by the diagnosis of the provider or the program; None if it names none."""
    named = None if diagnosis is None else diagnosis.names
    if diagnosis is None or named is None:
        return None
    return Cause(named.cause, f"{diagnosis.reporter} reports that {named.text}")


def agrees(
    diagnosis: Diagnosis | None, causes: tuple[Cause, ...], change: Change | None, hit: bool
) -> bool | None:
    """Whether a diagnosis names a cause that was also found here; None if it cannot tell."""
    if diagnosis is None:
        return None
    kinds = {cause.kind for cause in causes}
    section = change.section if change is not None and kinds & CHANGED else None
    return diagnosis.agrees(kinds, section, hit=hit)
