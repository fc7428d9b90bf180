"""What a verdict says: what became of a cached prefix, why, and what that cost."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal, TypeAlias

import msgspec

from anaphora.rendered import Plan, Rendered
from anaphora.values import Section, Usage
from anaphora.values.display import html_of

Result: TypeAlias = Literal["first", "hit", "partial", "miss"]
"""Of what the call before left in the cache: all of it was read, some, or nothing. A first call has
no call before it."""

ChangeKind: TypeAlias = Literal[
    "key_order",
    "whitespace",
    "spelling",
    "order",
    "tool_added",
    "tool_removed",
    "tool_moved",
    "block_added",
    "block_removed",
    "block_moved",
    "message_added",
    "message_dropped",
    "message_moved",
    "image_added",
    "image_gone",
    "date",
    "clock",
    "uuid",
    "nonce",
    "counter",
    "text_edited",
    "value_changed",
]

#: What changes by itself, without anybody meaning to say something else.
VOLATILE: frozenset[ChangeKind] = frozenset(("date", "clock", "uuid", "nonce", "counter"))

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


class Sent(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One call, as far as it is known."""

    rendered: Rendered
    plan: Plan | None = None
    """None: the markers that the request itself carries."""
    at: float | None = None
    """When it was sent, in seconds,"""
    began: float | None = None
    """and when its answer began."""
    usage: Usage | None = None
    """What was billed."""
    route: str = ""
    """Where it went: host, account, workspace. Compared, never shown."""
    complete: bool = True
    """False: the record lacks a part of the prompt, so that nothing can be proven by it."""

    @property
    def marks(self) -> Plan:
        if self.plan is not None:
            return self.plan
        return Plan(marks=self.rendered.marks, automatic=self.rendered.automatic)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The first byte in which two prompts differ, and what kind of difference that is."""

    kind: ChangeKind
    offset: int
    """The byte, counted in the prompt's bytes."""
    chunk: int
    section: Section
    label: str
    """The block it is in: a tool, a system block, a message."""
    path: str
    """Its JSON path in the request body."""
    before: str
    """What the earlier prompt says around there,"""
    after: str
    """and the later one."""
    detail: str = ""
    """Names: the tool that came, the message that went."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    kind: CauseKind
    said: str
    """As part of a sentence."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What the provider itself says of a miss."""

    provider: str
    word: str
    """In its own words: `tools_changed`, `prompt_cache_key`."""
    tokens: int | None = None
    """How many it says were missed."""
    found: bool = True
    """False: it says that it cannot tell."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One call's verdict. `str()` is the sentence."""

    result: Result
    causes: tuple[Cause, ...] = ()
    """The first is the one that counts; the others hold besides."""
    change: Change | None = None
    left: int | None = None
    """Tokens that the call before left to be read."""
    predicted: int | None = None
    """Tokens that should have been read, by the rules,"""
    billed: int | None = None
    """and that were, by the bill."""
    total: int | None = None
    """All input tokens, by the bill."""
    lost: int = 0
    """Tokens that were there, or could have been, and were paid for again."""
    cost_usd: Decimal | None = None
    """What that cost; None is unknown, which is not 0."""
    saved: Decimal | None = None
    """What the cache took off this bill, what writing to it cost counted in."""
    diagnosis: Diagnosis | None = None
    agrees: bool | None = None
    """Whether the provider says the same; None where it says nothing."""

    @property
    def sentence(self) -> str:
        """Made when somebody asks: most verdicts are only counted."""
        from .sentences import sentence

        return sentence(self)

    @property
    def cause(self) -> CauseKind | None:
        return self.causes[0].kind if self.causes else None

    @property
    def broke(self) -> bool:
        """The prompt, or a parameter that its cache depends on, is not what it was."""
        broken = ("model_changed", "parameter_changed", "images_changed", "other_key")
        return self.change is not None or any(cause.kind in broken for cause in self.causes)

    def __str__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        """For notebooks."""
        return html_of(self)
