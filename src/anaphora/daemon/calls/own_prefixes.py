"""The prefixes that an app has sent itself, by account and model: reads of them are its own.

In the memory of this process: digests, token counts and times, no text. Bounded; a forgotten prefix
counts as not sent, and so does one that was sent before a restart, or by another node.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Iterator, Sequence

import msgspec

from anaphora.bounded import BoundedMap
from anaphora.cache.sent_call import SentCall, expiry, is_alive, ttl_seconds, updated_bills
from anaphora.cache.simulator import RenderedPrompt
from anaphora.cache.simulator.view import ScopedKeys
from anaphora.catalog import CacheRules
from anaphora.daemon.access.isolation import NO_READS, OwnReads
from anaphora.rendered import Kind, Plan
from anaphora.tokens import Counts
from anaphora.values import Ttl

#: Maximum number of prefixes in memory.
_MOST = 32_768
#: Limits of a prompt's positions: looked up, and recorded at its beginning.
_MOST_POSITIONS, _MOST_LEADING = 96, 16
#: Number of last markers to look at; providers accept four.
_MOST_MARKS = 32
#: Positions before a marker at which the provider looks for an entry.
_LOOK_BACK = 20
#: Seconds that an entry can be read, if the rules do not say.
_UNKNOWN_LIFETIME = 300.0
#: Relative error of a token estimate.
_ERROR = 0.05
#: Earlier calls of a conversation that a prompt looks for.
_MOST_TURNS = 4
#: Chunks of a prompt that are searched for replies: a request may have a hundred thousand.
_MOST_CHUNKS = 2_048
#: Roles of messages that are no reply.
_ASKING = ("user", "system", "developer", "tool")


class PrefixScope(msgspec.Struct, frozen=True):
    """The scope of an app's cached prefixes."""

    app: str
    account: Hashable
    model: str


class _Prefix(msgspec.Struct):
    """A prefix that an app has sent."""

    tokens: int
    """0 if the provider caches whole units and none ends here."""
    exact: bool
    """Billed by the provider; otherwise estimated."""
    lifetime: float
    used: float

    def lives(self, at: float) -> bool:
        return is_alive(expiry(self.used, self.lifetime), at)


class FoundPrefix(msgspec.Struct, frozen=True):
    """The part of a prompt that the app has sent before."""

    reads: OwnReads = NO_READS
    end: int = -1
    """Its last chunk."""


NOT_FOUND = FoundPrefix()


class OwnPrefixes:
    """The prefixes of all apps. Used from one event loop."""

    def __init__(self) -> None:
        self._prefixes = BoundedMap[Hashable, _Prefix](_MOST)

    def find(self, scope: PrefixScope, sent: SentCall, rules: CacheRules) -> FoundPrefix:
        """How much of a call's prompt its app has sent before."""
        prompt, at = RenderedPrompt(sent.rendered, sent.marks), sent.at or time.time()
        if not len(prompt):
            return NOT_FOUND
        names = _names(scope, prompt, _looked_up(prompt, sent.marks), rules)
        deepest = self._deepest(names, at)
        end = -1 if deepest is None else deepest[0]
        kept = self._deepest(names, at, kept=True)
        reads = NO_READS if kept is None else _reads(prompt, *kept, rules)
        return FoundPrefix(reads, end)

    def _deepest(
        self, names: Sequence[tuple[int, Hashable]], at: float, *, kept: bool = False
    ) -> tuple[int, _Prefix] | None:
        for position, name in names:
            known = self._prefixes.get(name)
            if known is not None and known.lives(at) and (known.tokens or not kept):
                return position, known
        return None

    def add(self, scope: PrefixScope, sent: SentCall, rules: CacheRules, common: int = -1) -> None:
        """Records an answered call. `sent` has its bill, and `common` is the end of the prefix that
        its prompt shares with earlier ones."""
        prompt, at = RenderedPrompt(sent.rendered, sent.marks), sent.at or time.time()
        lifetimes = dict(_cached(prompt, sent.marks, rules))
        if not lifetimes:
            return
        counts = Counts(sent.rendered, updated_bills(sent, rules))
        billed = sent.usage is not None and bool(sent.usage.input)
        units, last = rules.automatic_breakpoint.value == "units", max(lifetimes)
        if units and 0 <= common < last:  # noticed, and kept from now on
            lifetimes[common] = lifetimes[last]
        for position, name in _names(scope, prompt, sorted(lifetimes, reverse=True), rules):
            known, exact = self._prefixes.get(name), billed and position == last
            kept = not units or position in (common, last)
            if known is None or (kept and not known.tokens) or (exact and not known.exact):
                tokens = counts.tokens(position + 1) if kept else 0
                known = _Prefix(tokens, exact, 0.0, at)
            known.used = max(known.used, at)
            known.lifetime = max(known.lifetime, lifetimes[position])
            self._prefixes[name] = known


def _names(
    scope: PrefixScope, prompt: RenderedPrompt, positions: Sequence[int], rules: CacheRules
) -> list[tuple[int, Hashable]]:
    key_of = ScopedKeys(rules).of(prompt, (scope.app, scope.account, scope.model))
    return [(position, key_of(position)) for position in positions]


def _looked_up(prompt: RenderedPrompt, plan: Plan) -> list[int]:
    """Possible ends of a prefix that the app has sent, the longest first: before markers, at the
    ends of earlier prompts of the conversation, and in tools and system prompt."""
    marks = [mark.chunk for mark in plan.marks[-_MOST_MARKS:]]
    if plan.automatic is not None:
        marks.append(prompt.rendered.cacheable - 1)
    found = {at for mark in marks for at in range(mark, max(-1, mark - _LOOK_BACK), -1)}
    found.update(_earlier_ends(prompt), _leading(prompt))
    found.add(prompt.leading + 1)
    return sorted((at for at in found if 0 <= at < len(prompt)), reverse=True)[:_MOST_POSITIONS]


def _earlier_ends(prompt: RenderedPrompt) -> Iterator[int]:
    """The end of the prompt, and the ends of earlier prompts of the conversation: before replies of
    the model."""
    position, found = len(prompt) - 1, 0
    yield position
    last = max(prompt.leading + 1, position - _MOST_CHUNKS)
    reply = position > last and _is_reply(prompt, position)
    while position > last and found < _MOST_TURNS:
        later, reply = reply, _is_reply(prompt, position - 1)
        if later and not reply:
            found += 1
            yield position - 1
        position -= 1


def _is_reply(prompt: RenderedPrompt, position: int) -> bool:
    """Whether a chunk is from the model. Some wires have items without a role for that."""
    run, index = prompt.rendered.locate(position)
    if run.section != "messages" or run.log.kinds[index] is Kind.TOOL_RESULT:
        return False
    role = run.log.roles[run.log.wire_message_of(index)]
    return role not in _ASKING or run.log.kinds[index] in (Kind.TOOL_CALL, Kind.THINKING)


def _leading(prompt: RenderedPrompt) -> range:
    return range(max(0, prompt.leading + 1 - _MOST_LEADING), prompt.leading + 1)


def _cached(prompt: RenderedPrompt, plan: Plan, rules: CacheRules) -> Iterator[tuple[int, float]]:
    """Ends of prefixes that the provider may have cached, and how long each can be read."""
    last = prompt.rendered.cacheable - 1
    if last < 0:
        return
    if not rules.needs_marks or not rules.slots.value:
        lifetime = ttl_seconds(rules) or _UNKNOWN_LIFETIME
        for position in (*_leading(prompt), last):
            yield position, lifetime
    ends: list[tuple[int, Ttl]] = [(mark.chunk, mark.ttl) for mark in plan.marks[-_MOST_MARKS:]]
    if plan.automatic is not None:
        ends.append((last, plan.automatic))
    for position, ttl in ends:
        if position <= last:
            yield position, ttl_seconds(rules, ttl)


def _reads(prompt: RenderedPrompt, position: int, known: _Prefix, rules: CacheRules) -> OwnReads:
    """Readable tokens of a prefix, including the reply that follows it if the provider caches
    replies."""
    estimated, end = 0 if known.exact else known.tokens, position
    if rules.reply_cached(None):
        while end + 1 < len(prompt) and prompt.from_model(end + 1):
            end += 1
        if rules.automatic_breakpoint.value == "units" and not _in_loop(prompt, position, end):
            end = position
    reply = prompt.tokens(end) - prompt.tokens(position)
    tokens, error = known.tokens + reply, math.ceil((estimated + reply) * _ERROR)
    if rules.caches_tokens:
        error = min(error, rules.granule_tokens.value - 1)
    elif end + 1 < len(prompt):  # a read ends at the end of a chunk
        error = min(error, (prompt.tokens(end + 1) - prompt.tokens(end)) // 2)
    return OwnReads(tokens + error, rules.whole_granules(tokens))


def _in_loop(prompt: RenderedPrompt, position: int, end: int) -> bool:
    """Whether a reply is part of a tool loop: only then is it sent back unchanged."""
    ends = (position, end + 1) if end + 1 < len(prompt) else (position,)
    return any(prompt.kind(each) is Kind.TOOL_RESULT for each in ends)
