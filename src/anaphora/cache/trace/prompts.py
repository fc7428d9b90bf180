"""A call of a trace as a cache sees it.

What a trace does not hold is supplied: the tools and system prompt as one block at the beginning,
markers at its end and behind the last message where none are recorded. Counts are exact where an
earlier bill told them, and estimated in between.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from blake3 import blake3

from anaphora.cache.simulator import Marker, TokenRuns
from anaphora.canonical import dumps
from anaphora.catalog import CacheRules
from anaphora.rendered import Kind
from anaphora.values import Section, Ttl

from .form import Trace, TraceCall, TraceMessage

#: What stands before the messages, when nobody knows how long it is.
UNKNOWN_SYSTEM = 3000

_TTLS: dict[str, Ttl] = {"5m": "5m", "30m": "30m", "1h": "1h", "12h": "12h", "24h": "24h"}
_SPOKEN = ("assistant", "model")


class Blocks:
    """The messages of one conversation as blocks: the tools, the system prompt, each message."""

    def __init__(self, trace: Trace, bytes_per_token: float) -> None:
        self._trace = trace
        self.identities: list[Hashable] = []
        self.kinds: list[Kind] = []
        self.sections: list[Section] = []
        self.spoken: list[bool] = []
        self.sizes: list[int] = []
        """Estimated tokens of each."""
        self._ratio = bytes_per_token
        if trace.tools:
            self._add(dumps(trace.tools), Kind.TOOL, "tools", "tools")
        if trace.system_tokens_unknown:
            self.identities.append(("system", trace.group or trace.id))
            self._place(Kind.SYSTEM, "system", "system", UNKNOWN_SYSTEM)
        self.first = len(self.identities)
        """Where the messages begin."""
        for message in trace.messages:
            self._message(message)

    def upto(self, call: TraceCall) -> int:
        """How many blocks a call sent."""
        return self.first + call.messages

    def _message(self, message: TraceMessage) -> None:
        said = dumps([message.role, message.content, message.tool_calls, message.tool_call_id])
        section: Section = "system" if message.role == "system" else "messages"
        kind = Kind.TEXT
        if message.role == "tool" or _holds(message, "tool_result"):
            kind = Kind.TOOL_RESULT
        elif message.tool_calls or _holds(message, "tool_use"):
            kind = Kind.TOOL_CALL
        self._add(said, kind, section, message.role)

    def _add(self, said: bytes, kind: Kind, section: Section, role: str) -> None:
        self.identities.append(blake3(said).digest(16))
        self._place(kind, section, role, max(1, math.ceil(len(said) / self._ratio)))

    def _place(self, kind: Kind, section: Section, role: str, size: int) -> None:
        self.kinds.append(kind)
        self.sections.append(section)
        self.spoken.append(role in _SPOKEN)
        self.sizes.append(size)


class Anchors:
    """Counts that bills have told, by the prefix that they are of. Everything between two of them
    is estimated, and scaled to fit."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def learn(self, key: Hashable, tokens: int) -> None:
        self._known[key] = tokens

    def sizes(self, keys: list[Hashable], estimates: list[int], scale: float) -> list[int]:
        """The tokens of each block, so that every prefix with a known count has that."""
        anchors = [(at, self._known[key]) for at, key in enumerate(keys) if key in self._known]
        # The deeper the newer: where an older bill says more, something before it has changed.
        for index in range(len(anchors) - 2, -1, -1):
            if anchors[index][1] > anchors[index + 1][1]:
                del anchors[index]
        sizes: list[int] = []
        done, total = 0, 0
        for at, known in anchors:
            sizes += _fitted(estimates[done : at + 1], known - total)
            done, total = at + 1, known
        return sizes + [max(1, round(estimate * scale)) for estimate in estimates[done:]]


def _fitted(estimates: list[int], total: int) -> list[int]:
    """Whole numbers in the proportion of the estimates that add up to the total."""
    whole = sum(estimates) or 1
    ends = [sum(estimates[: at + 1]) * total // whole for at in range(len(estimates))]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def prompt_of(
    call: TraceCall,
    blocks: Blocks,
    sizes: list[int],
    rules: CacheRules,
    knobs: dict[str, bytes],
) -> TokenRuns:
    count = blocks.upto(call)
    explicit = rules.mechanism.value == "explicit"
    return TokenRuns(
        list(zip(blocks.identities[:count], sizes, strict=True)),
        markers=_markers(call, blocks, count) if explicit or call.breakpoints else (),
        automatic=_automatic(rules),
        kinds=blocks.kinds,
        sections=blocks.sections,
        spoken=blocks.spoken,
        knobs=knobs,
    )


def _automatic(rules: CacheRules) -> Ttl | None:
    """The breakpoint that a provider with both kinds places by itself."""
    if rules.mechanism.value != "both" or rules.default_ttl is None:
        return None
    return rules.default_ttl.value


def _markers(call: TraceCall, blocks: Blocks, count: int) -> tuple[Marker, ...]:
    places: dict[int, Ttl] = {}
    for where, ttl in call.breakpoints:
        lifetime = _TTLS.get(str(ttl), "5m")
        if where == "tools":
            places[0] = lifetime
        elif isinstance(where, int) and blocks.first + where < count:
            places[blocks.first + where] = lifetime
    if not call.breakpoints:
        leading = sum(section != "messages" for section in blocks.sections[:count])
        for position in (leading - 1, count - 1):
            if position >= 0:
                places[position] = "5m"
    return tuple(Marker(position, places[position]) for position in sorted(places))


def _holds(message: TraceMessage, kind: str) -> bool:
    content = message.content
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("type") == kind for block in content
    )
