"""A call of a trace as a cache sees it.

What a trace does not hold is supplied: the tools and system prompt as one block at the beginning,
markers at its end and behind the last message where none are recorded. Counts are exact where an
earlier bill told them, and estimated in between.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise

from blake3 import blake3

from anaphora.cache.simulator import Mark, TokenRuns
from anaphora.canonical import dumps
from anaphora.catalog import CacheRules, Profile, tool_overhead
from anaphora.rendered import Kind
from anaphora.tokens import Size, calibrated, ends, measured
from anaphora.values import Section, Ttl

from .form import Trace, TraceCall, TraceMessage
from .notes import has_thinking

#: The size of what stands before the messages, where the recording does not hold it.
_UNKNOWN = Size(0, 3000)

_TTLS: dict[str, Ttl] = {"5m": "5m", "30m": "30m", "1h": "1h", "12h": "12h", "24h": "24h"}
_SPOKEN = ("assistant", "model")


class Block:
    """One message, or what stands before them all."""

    __slots__ = ("identity", "kind", "section", "size", "spoken", "thinks")

    def __init__(
        self, identity: Hashable, kind: Kind, section: Section, role: str, size: Size
    ) -> None:
        self.identity = identity
        self.kind = kind
        self.section = section
        self.spoken = role in _SPOKEN
        self.size = size
        self.thinks: Block | None = None
        """The same without the model's reasoning, where it holds any."""


class Blocks:
    """The messages of one conversation as blocks: the tools, the system prompt, each message."""

    def __init__(self, trace: Trace, profile: Profile) -> None:
        self._per_token = profile.bytes_per_token.value
        self._strips = profile.strips_thinking.value and profile.strips_thinking.verified
        self._all: list[Block] = []
        if trace.tools:
            tools = dumps(trace.tools)
            size = trace.tools_size or Size(len(tools), tool_overhead(trace.wire or ""))
            self._all.append(Block(_identity(tools), Kind.TOOL, "tools", "tools", size))
        if trace.system_tokens_unknown:
            unknown = ("system", trace.group or trace.id)
            self._all.append(Block(unknown, Kind.SYSTEM, "system", "system", _UNKNOWN))
        self.first = len(self._all)
        """Where the messages begin."""
        self._asks: list[int] = []
        """Where a user says something that is no tool's result."""
        for message in trace.messages:
            block = self._message(message)
            if message.role == "user" and block.kind is not Kind.TOOL_RESULT:
                self._asks.append(len(self._all))
            self._all.append(block)

    def __getitem__(self, position: int) -> Block:
        return self._all[position]

    def __len__(self) -> int:
        return len(self._all)

    def estimates(self, blocks: list[Block]) -> list[int]:
        """The tokens up to the end of each block, by their sizes alone."""
        return ends([block.size for block in blocks], self._per_token)

    def upto(self, call: TraceCall) -> int:
        """How many blocks a call sent."""
        return self.first + call.messages

    def sent(self, count: int) -> list[Block]:
        """The first blocks as the provider hashes them. Where it drops earlier reasoning at a
        user's turn, what stands before the last of those is without."""
        blocks = self._all[:count]
        if self._strips:
            last = next((at for at in reversed(self._asks) if at < count), 0)
            blocks[:last] = [block.thinks or block for block in blocks[:last]]
        return blocks

    def _message(self, message: TraceMessage) -> Block:
        section: Section = "system" if message.role == "system" else "messages"
        kind = Kind.TEXT
        if message.role == "tool" or _holds(message, "tool_result"):
            kind = Kind.TOOL_RESULT
        elif message.tool_calls or _holds(message, "tool_use"):
            kind = Kind.TOOL_CALL
        block = _block(message, message.content, kind, section)
        if self._strips and has_thinking(message):
            kept = [one for one in message.content if not _is_thinking(one)]
            block.thinks = _block(message, kept, kind, section)
        return block


def _block(message: TraceMessage, content: object, kind: Kind, section: Section) -> Block:
    said = dumps([message.role, content, message.tool_calls, message.tool_call_id])
    size = message.size
    if size is None or content is not message.content:
        size = measured(said)
    return Block(_identity(said), kind, section, message.role, size)


def _identity(said: bytes) -> bytes:
    return blake3(said).digest(16)


class Anchors:
    """Counts that bills have told, by the prefix that they are of. Everything between two of them
    is estimated, and scaled to fit."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def learn(self, key: Hashable, tokens: int) -> None:
        self._known[key] = tokens

    def knows(self, keys: list[Hashable]) -> bool:
        return all(key in self._known for key in keys)

    def sizes(self, keys: list[Hashable], ends: list[int]) -> list[int]:
        """The tokens of each block, so that every prefix with a known count has that. `ends` are
        the estimates up to the end of each."""
        points: list[tuple[int, int]] = []
        for key, end in zip(keys, ends, strict=True):
            known = self._known.get(key)
            if known is None:
                continue
            # The deeper the newer: where an older bill says more, something before has changed.
            while points and (points[-1][1] > known or points[-1][0] == end):
                points.pop()
            points.append((end, known))
        counted = [calibrated(points, end) for end in ends]
        return [end - start for start, end in pairwise([0, *counted])]


def prompt_of(
    call: TraceCall,
    blocks: list[Block],
    first: int,
    sizes: list[int],
    rules: CacheRules,
    cache_params: dict[str, bytes],
    lead: bool,
    ttls: tuple[Ttl, Ttl],
) -> TokenRuns:
    """Where no markers are recorded, one is assumed behind the last message, and with `lead` one
    behind what stands before the messages; `ttls` are theirs, the later last."""
    explicit = rules.mechanism.value == "explicit"
    return TokenRuns(
        [(block.identity, size) for block, size in zip(blocks, sizes, strict=True)],
        markers=_lawful(_markers(call, blocks, first, lead, ttls), rules)
        if explicit or call.breakpoints
        else (),
        automatic=_automatic(rules),
        kinds=[block.kind for block in blocks],
        sections=[block.section for block in blocks],
        from_model=[block.spoken for block in blocks],
        cache_params=cache_params,
    )


def _automatic(rules: CacheRules) -> Ttl | None:
    """The breakpoint that a provider with both kinds places by itself."""
    if rules.automatic_breakpoint.value != "last_message" or rules.default_ttl is None:
        return None
    return rules.default_ttl.value


def _lawful(markers: tuple[Mark, ...], rules: CacheRules) -> tuple[Mark, ...]:
    """For a lifetime that this provider does not have, its usual one: the call may be played
    somewhere else than it was made for."""
    known = rules.ttls.value
    usual = rules.default_ttl.value if rules.default_ttl is not None else known[-1]
    return tuple(marker if marker.ttl in known else Mark(marker.chunk, usual) for marker in markers)


def _markers(
    call: TraceCall, blocks: list[Block], first: int, lead: bool, ttls: tuple[Ttl, Ttl]
) -> tuple[Mark, ...]:
    places: dict[int, Ttl] = {}
    for where, ttl in call.breakpoints or ():
        lifetime = _TTLS.get(str(ttl), "5m")
        if where == "tools":
            places[0] = lifetime
        elif isinstance(where, int) and first + where < len(blocks):
            places[first + where] = lifetime
    if call.breakpoints is None:
        leading = sum(block.section != "messages" for block in blocks)
        assumed = zip((leading - 1 if lead else -1, len(blocks) - 1), ttls, strict=True)
        places |= {position: ttl for position, ttl in assumed if position >= 0}
    return tuple(Mark(position, places[position]) for position in sorted(places))


def _is_thinking(block: object) -> bool:
    return isinstance(block, dict) and block.get("type") in ("thinking", "redacted_thinking")


def _holds(message: TraceMessage, kind: str) -> bool:
    content = message.content
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("type") == kind for block in content
    )
