"""Facts from the bills of one account on one model: token counts of prefixes, bytes per token, and
the length of beginnings that a recording leaves out."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import msgspec

from anaphora.catalog import CacheRules
from anaphora.rendered import Kind
from anaphora.values import TTL_SECONDS, Ttl

#: Weight of the catalog's ratio, in billed tokens.
_PRIOR = 2000
#: A growth by more or less than this factor is not explained by the text: something was dropped, or
#: sent without being recorded.
_FACTOR = 3.0
#: The most weight that one call adds to the ratio.
_HEAVIEST = 2000


class TextBytes(NamedTuple):
    """Bytes of text by kind: each kind has a ratio of its own."""

    prose: int = 0
    json: int = 0
    """Tools and the arguments of their calls."""
    results: int = 0
    """Results of tools."""
    thinking: int = 0
    """Thinking that is recorded as a signature or encrypted."""

    def plus(self, kind: Kind, size: int) -> TextBytes:
        prose, json, results, thinking = self
        if kind is Kind.TOOL_RESULT:
            return TextBytes(prose, json, results + size, thinking)
        if kind is Kind.TOOL_CALL or kind is Kind.TOOL:
            return TextBytes(prose, json + size, results, thinking)
        if kind is Kind.THINKING:
            return TextBytes(prose, json, results, thinking + size)
        return TextBytes(prose + size, json, results, thinking)


class TokenScale:
    """Bytes per token, learned from the growth of bills from one call to the next, and from first
    prompts that are recorded whole."""

    def __init__(self, per_token: float) -> None:
        self._stated = per_token
        self._estimated = [float(_PRIOR)] * 4
        self._billed = [float(_PRIOR)] * 4
        """By the kind of text: tokens by the catalog, and by the bills."""

    @property
    def per_token(self) -> tuple[float, ...]:
        """Bytes per token of each kind of text."""
        pairs = zip(self._estimated, self._billed, strict=True)
        return tuple(self._stated * estimated / billed for estimated, billed in pairs)

    def tokens(self, text: Sequence[int]) -> float:
        return sum(size / ratio for size, ratio in zip(text, self.per_token, strict=True))

    def learn(self, text: Sequence[int], tokens: int) -> None:
        """These bytes of text, by kind, were billed as `tokens`, which are divided among the kinds
        like the estimate."""
        stated, estimated = sum(text) / self._stated, self.tokens(text)
        if tokens <= 0 or not 1 / _FACTOR < tokens / max(1.0, stated) < _FACTOR:
            return
        weight = min(1.0, _HEAVIEST / stated) if stated else 0.0
        ratios = self.per_token
        for kind, size in enumerate(text):
            self._estimated[kind] += weight * size / self._stated
            self._billed[kind] += weight * size / ratios[kind] * tokens / max(1.0, estimated)


#: The assumed tokens of a system prompt and tools that are not recorded, before the first bill.
_UNKNOWN = 30_000
#: How many reads in granules, and three quarters of all, must agree on where replies end.
_AGREEING = 8
#: How far a read that ends with a reply may be from its exact end, beside two granules.
_NEAR = 9
#: After this many conversations in a row that do not read the beginning of others, each has its
#: own.
_NOT_SHARED = 2
#: Up to this many reads that end early or find nothing may be random misses.
_AT_RANDOM = 2
#: Seconds within which no known provider drops entries: a miss has another reason.
_SHORTEST_LIFE = 60.0
#: How many idle times and ends of replies, the latest, are remembered.
_MOST_SEEN = 200
#: Smallest difference between idle times, in seconds.
_LEAST_GAP = 0.001


class BilledLengths(dict[Hashable, int]):
    """Token counts from bills, by prefix.

    A group of conversations has counts of its own, since a recording may leave out what its clients
    add to the same text; if it has none, those of the whole account are used."""

    def __init__(self, account: BilledLengths | None = None) -> None:
        self._account = account
        self._fitted: dict[Hashable, int] = {}
        self.changes: list[Hashable] = [] if account is None else account.changes
        """The prefixes whose counts have changed, of the whole account."""

    def __setitem__(self, key: Hashable, tokens: int) -> None:
        if self.get(key) != tokens:
            super().__setitem__(key, tokens)
            self.changes.append(key)
        if self._account is not None:
            self._account[key] = tokens

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (self._account is not None and key in self._account)

    def fit(self, key: Hashable, tokens: int) -> None:
        """A count that was estimated between bills, for other prompts with that beginning."""
        if self._fitted.get(key) != tokens:
            self._fitted[key] = tokens
            self.changes.append(key)
        if self._account is not None:
            self._account.fit(key, tokens)

    def known(self, key: Hashable) -> int | None:
        tokens = self.get(key)
        if tokens is None:
            tokens = self._fitted.get(key)
        if tokens is None and self._account is not None:
            tokens = self._account.known(key)
        return tokens


class Lead(msgspec.Struct, eq=False):
    """An unrecorded beginning of conversations: system prompt and tools."""

    total: int
    """Its tokens in the latest conversation that had it."""
    shared: int | None = None
    """The part that other conversations read, by their bills; None until one has read it."""
    shorter: int | None = None
    """A shorter read that was billed once: a provider may miss a part at random."""


class Beginning(msgspec.Struct, eq=False):
    """The unrecorded beginning of one conversation: the shared part, and the rest."""

    lead: Lead
    rest: Hashable
    opens_group: bool


class Leads:
    """The unrecorded beginnings of an account's conversations. Which one a new conversation has is
    not recorded: the one of an earlier conversation of its group that began with the same message,
    or else the latest one. The first conversation of a group is distinguished from later ones, such
    as subagents."""

    def __init__(self, usual: int) -> None:
        """`usual`: the unrecorded tokens of conversations with other models, or a default."""
        self._totals: dict[bool, int] = {}
        """The tokens of the latest ones, by whether they open a group."""
        self._usual = usual
        self._by_message: dict[tuple[str, Hashable], Beginning] = {}
        self._latest: dict[bool, Lead] = {}
        self._by_length: dict[int, Lead] = {}
        self._groups: set[str] = set()
        self._not_read: Counter[bool] = Counter()
        """New conversations in a row that should have read the latest one, and read nothing."""

    def begin(self, group: str, message: Hashable) -> Beginning:
        """The likely beginning of a new conversation."""
        opens = group not in self._groups
        self._groups.add(group)
        same = self._by_message.get((group, message))
        if same is not None:
            return Beginning(same.lead, same.rest, opens)
        lead = self._latest.get(opens) or self._latest.get(not opens) or Lead(self._usual)
        lead.total = self._totals.get(opens, self._totals.get(not opens, self._usual))
        if self._not_read[opens] >= _NOT_SHARED:
            lead = Lead(lead.total)
        begun = self._by_message[group, message] = Beginning(lead, ("rest", group), opens)
        self._latest[opens] = lead
        return begun

    def miss(self, begun: Beginning, *, expected: bool, read: bool) -> None:
        """Learns from the first bill of a conversation whether conversations share a beginning."""
        if read:
            self._not_read[begun.opens_group] = 0
        elif expected:
            self._not_read[begun.opens_group] += 1

    def learn(self, begun: Beginning, read: int, total: int, *, may_be_cut: bool) -> None:
        """Learns from the first bill of a conversation: what it read of its beginning, and how many
        tokens were not recorded. `may_be_cut`: a part of a read may be lost."""
        lead = begun.lead
        if read and lead.shared is None:
            lead.shared = read
            self._by_length.setdefault(read, lead)
        elif read and read != lead.shared:
            other = self._by_length.get(read)
            cut = may_be_cut and lead.shared is not None and read < lead.shared
            if other is None and cut and read != lead.shorter:
                lead.shorter = read
            else:
                lead = other or Lead(total, shared=read)
                self._by_length[read] = lead
        lead.total = self._totals[begun.opens_group] = total
        begun.lead = self._latest[begun.opens_group] = lead


class ReplyEnds:
    """How far from the end of a reply a later read ends, by the bills: providers leave out its last
    token or two, or what is not sent back of it. A read in granules shows that end within one
    granule, so it is where most reads agree."""

    def __init__(self, rules: CacheRules) -> None:
        self._granule = rules.granule_tokens.value
        self._latest: deque[int] = deque(maxlen=_MOST_SEEN)
        """Tokens between the end of a read and that of the reply."""
        tail = rules.uncached_tail
        known = tail is not None and rules.output_cached is not None and rules.output_cached.value
        self._stated = -tail.value if tail is not None and known else None

    @property
    def usual(self) -> int | None:
        """None before a bill has shown it."""
        if not self._latest:
            return self._stated
        ends = sorted(self._latest)
        counts = (bisect_left(ends, end + self._granule) - at for at, end in enumerate(ends))
        count, first = max((count, -at) for at, count in enumerate(counts))
        if self._granule > 1 and (count < _AGREEING or 4 * count < 3 * len(ends)):
            return self._stated
        last, begin = ends[-first], ends[count - first - 1] - self._granule + 1
        stated = -(self._stated or 0)
        return -(stated if begin <= stated <= last else (begin + last) // 2)

    def learn(self, difference: int) -> None:
        """A read ended so many tokens before the end of the reply."""
        if abs(difference) < _NEAR + 2 * (self._granule - 1):
            self._latest.append(difference)


class EarlyReads:
    """How often a read that ended before the expected end is followed by another that ends there.
    If that is usual, the client changes its beginning from call to call, and the recording does
    not show it."""

    def __init__(self) -> None:
        self._repeated, self._others = 0, _AT_RANDOM
        self.latest: dict[str, int] = {}
        """By group: tokens read by the latest call outside of a tool loop, if fewer than expected.
        Conversations of one run are similar."""

    @property
    def repeat(self) -> bool:
        return self._repeated > self._others

    def learn(self, *, repeated: bool) -> None:
        self._repeated += repeated
        self._others += not repeated


class Lifetime:
    """How long entries can be read after their last use, if the rules only have a stand-in:
    unlimited, until bills show otherwise."""

    def __init__(self, stated: float) -> None:
        self.stated = stated
        """Seconds, by the rules."""
        self._seen: list[tuple[float, bool]] = []
        """Idle times after which the prompt was read or not, in order."""
        self._latest: deque[tuple[float, bool]] = deque()
        self.seconds = math.inf
        """Just below the idle time from which on the number of expired prompts exceeds that of
        found ones by the most."""

    @property
    def shown(self) -> float:
        """The longer of the stated time and the longest idle time before a read."""
        found = (idle for idle, found in reversed(self._seen) if found)
        return min(self.seconds, max(self.stated, next(found, 0.0)))

    def learn(self, idle: float, *, found: bool) -> None:
        """A prompt was idle for `idle` seconds, and then found or not."""
        if idle <= _SHORTEST_LIFE:
            return
        insort(self._seen, (idle, found))
        self._latest.append((idle, found))
        if len(self._latest) > _MOST_SEEN:
            self._seen.remove(self._latest.popleft())
        gone, most, self.seconds = 0, _AT_RANDOM, math.inf
        for seconds, read in reversed(self._seen):
            gone += -1 if read else 1
            if gone > _AT_RANDOM and gone >= most:
                most, self.seconds = gone, seconds - _LEAST_GAP


class Account:
    """Facts from the bills of one account's conversations with one model. A call may go to
    another model, which has a cache of its own."""

    def __init__(self, rules: CacheRules, per_token: float, unrecorded: int | None = None) -> None:
        """`unrecorded`: tokens that conversations with other models did not record."""
        self.rules = rules
        self._lengths = BilledLengths()
        self._groups: dict[str, BilledLengths] = {}
        self.scale = TokenScale(per_token)
        self.leads = Leads(_UNKNOWN if unrecorded is None else unrecorded)
        self.reply_ends = ReplyEnds(rules)
        self.early_reads = EarlyReads()
        self.lifetime = _lifetime(rules)
        """None if the rules have a verified figure, or entries are at markers."""
        self.ttls: tuple[Ttl, Ttl] = ("5m", "5m")
        """The TTLs of assumed markers: before the messages, and after the last."""

    def lengths(self, group: str | None) -> BilledLengths:
        """The counts for conversations of a group, or of none."""
        if group is None:
            return self._lengths
        return self._groups.setdefault(group, BilledLengths(self._lengths))

    @property
    def has_markers(self) -> bool:
        return self.rules.mechanism.value != "implicit" and self.rules.slots.value > 0


def _lifetime(rules: CacheRules) -> Lifetime | None:
    ttl = rules.default_ttl
    if ttl is None or rules.automatic_breakpoint.value not in ("granules", "units"):
        return None
    # If a provider also has handles, the TTLs on record are theirs.
    of_handles = rules.mechanism.value == "both" and not rules.slots.value
    stand_in = of_handles or not ttl.verified
    return Lifetime(float(TTL_SECONDS[ttl.value])) if stand_in else None
