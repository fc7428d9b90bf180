"""One call that the proxy relayed, and its verdict."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal, TypeAlias

import msgspec

from anaphora.cache.verdict import Change, Verdict, format_usd
from anaphora.values import Notice, Usage

CallKind: TypeAlias = Literal[
    "judged", "error", "cancelled", "failed", "counts_tokens", "other", "not_judged"
]
"""`judged`: compared and priced, by its bill or, without one, by the rules. `error`: the provider
answered with an error. `cancelled`: the program went away. `failed`: no complete answer came.
`counts_tokens` and `other` paths are relayed and counted. `not_judged`: the reason says why."""

#: The outcome of each kind of call; calls of other kinds are no calls of a model.
OUTCOMES: dict[CallKind, str] = {
    "judged": "ok",
    "not_judged": "ok",
    "error": "Upstream",
    "failed": "Transport",
    "cancelled": "CancelledError",
}


class JudgedCall(msgspec.Struct, kw_only=True, eq=False):
    """A call and its verdict, without the prompt but for the excerpts at a change."""

    number: int
    at: float
    """When it was sent, in seconds since 1970."""
    seconds: float = 0.0
    """How long it took."""
    kind: CallKind = "judged"
    reason: str = ""
    """Why it was not judged, or its error."""
    method: str = "POST"
    path: str = ""
    provider: str = ""
    wire: str = ""
    model: str = ""
    status: int = 0
    """0 where no response began."""
    conversation: int = 0
    """Its number, in the order they began; 0 for calls that are not judged."""
    turn: int = 0
    """Its number within the conversation."""
    side_call: bool = False
    """The only call of its conversation, like no other call, in a session that has a longer
    conversation: a title, a summary. May be found out by a later call."""
    compared_with: int | None = None
    """The number of the call that it is judged against."""
    gap: float | None = None
    """Seconds since that call was sent."""
    placed: bool = False
    """Markers were placed in it."""
    usage: Usage | None = None
    """The bill; None where the response has none."""
    predicted: Usage | None = None
    """What the bill should be, where there is none or it does not say what was read."""
    cost_usd: Decimal | None = None
    output_usd: Decimal | None = None
    """The part of it that is for the output."""
    verdict: Verdict | None = None
    notices: tuple[Notice, ...] = ()
    """Addresses in the response that bypass the proxy."""

    @property
    def input_usage(self) -> Usage | None:
        """What was read, written and neither, by the bill; as predicted where that does not say."""
        return self.usage if self.predicted is None else self.predicted

    @property
    def lost(self) -> int:
        """Tokens that could have been read and were not."""
        return 0 if self.verdict is None else self.verdict.lost

    @property
    def lost_usd(self) -> Decimal | None:
        return None if self.verdict is None else self.verdict.cost_usd

    @property
    def broke(self) -> bool:
        """Whether the prefix broke: see `Verdict.broke`."""
        return self.verdict is not None and self.verdict.broke

    @property
    def change(self) -> Change | None:
        return None if self.verdict is None else self.verdict.change

    @property
    def sentence(self) -> str:
        """The verdict without the excerpts, or why there is none."""
        return self.reason if self.verdict is None else self.verdict.describe(excerpts=False)

    def line(self, *, excerpts: bool = True) -> str:
        """The call and its verdict in a line, with or without the excerpts of a change."""
        place = f", conversation {self.conversation}, turn {self.turn}" if self.conversation else ""
        name = self.model or f"{self.method} {self.path}"
        if self.verdict is None:
            kind = self.kind.replace("_", " ")
            status = f" ({self.status})" if self.status else ""
            return f"{name}{place}: {kind}{status}" + (f": {self.reason}" if self.reason else "")
        cost = "" if self.cost_usd is None else f" Cost: {format_usd(self.cost_usd)}."
        bill = " No bill." if self.usage is None else cost
        return f"{name}{place}: {self.verdict.describe(excerpts=excerpts)}{bill}"

    def __str__(self) -> str:
        return self.line()

    def fields(self) -> dict[str, Any]:
        """All of it for JSON, with the values that follow from others."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        lost_usd = None if self.lost_usd is None else str(self.lost_usd)
        fields |= {"lost": self.lost, "lost_usd": lost_usd, "broke": self.broke}
        return fields | {"sentence": self.sentence}
