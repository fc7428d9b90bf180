"""The calls of a conversation so far, played again as they would have been cached otherwise.

    story = story_of(prompt, times)
    was = StoryPlayer(rules, story, StoryCaching(), cost)
    now = StoryPlayer(rules, story, StoryCaching("5m"), cost)
    saving(was.cost_usd, now.cost_usd)      with the range of nine cases in ten

A story has the lengths of its prompts, and no text: each prompt is the one before and more.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import islice
from typing import NamedTuple, TypeAlias

from anaphora.cache.sent_call import ttl_seconds
from anaphora.catalog import CacheRules
from anaphora.rendered import Mark
from anaphora.values import Ttl, Usage

from .chances import Chance, CostRange, CostSum
from .prompt import RenderedPrompt
from .simulator import Simulator
from .view import PlayedBlocks, TokenBlock, TokenRuns

#: The calls of a conversation that are played, and those that keep a prefix alive in one pause.
MOST_CALLS, _MOST_REFRESHES = 64, 12
#: The share of a lifetime after which a refresh is sent.
_REFRESH_AFTER = 0.95
#: The calls that are played if only the last one is cached otherwise.
_LATEST = 2
#: Cached prefixes that are remembered of a conversation.
_MOST_ENTRIES = 256
_LEADING, _MESSAGE = TokenBlock(section="system"), TokenBlock()

CostOf: TypeAlias = Callable[[Usage, bool], Decimal | None]
"""The cost of a call's input; whether it has markers."""


class CallStory(NamedTuple):
    """The calls of a conversation, as far as they matter for its cache."""

    times: tuple[float, ...]
    lengths: tuple[int, ...]
    lead: int = 0
    """Tokens of tools and system prompt."""
    kept: tuple[int | None, ...] = ()
    """Of each prompt, the tokens before its first change; None: nothing changed in it."""


class StoryCaching(NamedTuple):
    """How the calls of a story are cached."""

    ttl: Ttl | None = None
    """Of markers; None: no call has one."""
    changed: bool = False
    """Prompts have another text after what is `kept`."""
    elsewhere: bool = False
    """The last call goes to another cache."""
    refreshed: bool = False
    """Calls in between keep the prefix alive."""

    @property
    def only_last(self) -> bool:
        """Whether the last call is unlike those before."""
        return self.changed or self.elsewhere


def story_of(
    prompt: RenderedPrompt,
    times: Sequence[float],
    *,
    total: int | None = None,
    before: int | None = None,
    kept: Sequence[int | None] = (),
) -> CallStory:
    """The calls at these times, the last of which has this prompt; the prompts of earlier ones end
    where its turns do. `total` are its tokens by its bill, `before` those of the call before, and
    `kept` how many bytes of the last prompts are as in the prompt before each."""
    scale = (total or prompt.total) / max(1, prompt.total)
    total = total or prompt.total
    times = times[-MOST_CALLS:]
    ends = [round(prompt.tokens(end) * scale) for end in islice(prompt.turn_ends(), 1, len(times))]
    if before is not None:
        ends[:1] = [min(before, total)]  # what is no longer sent is not paid again
    lengths = [*reversed(ends), total]
    lead = round(prompt.tokens(prompt.leading) * scale) if prompt.leading >= 0 else 0
    used = tuple(times[-len(lengths) :])
    lengths = lengths[-len(used) :]
    same = [None if size is None else round(prompt.counts.before(size) * scale) for size in kept]
    same = [*[None] * (len(used) - len(same)), *same][-len(used) :]
    return CallStory(used, tuple(lengths), min(lead, lengths[0]), tuple(same))


class StoryPlayer:
    """Plays the calls of a story, then later ones of the same conversation. Each costs what it
    adds."""

    def __init__(
        self, rules: CacheRules, story: CallStory, how: StoryCaching, cost: CostOf
    ) -> None:
        self._rules, self._how, self._cost_of = rules, how, cost
        self._simulator = Simulator(rules, most=_MOST_ENTRIES)
        kept = [size for size in story.kept if size is not None]
        self._bounds = sorted({*story.lengths, story.lead, *kept} - {0})
        """Where the blocks of the prompts end."""
        self._lead = bisect_right(self._bounds, story.lead) if story.lead else 0
        self._blocks = PlayedBlocks[TokenBlock]()
        self._versions = 0
        self._length = 0
        self._cost: CostSum | None = CostSum()
        self.at = -math.inf
        """When the last call was."""
        self.calls = self.read = self.last_read = 0
        """Calls, the tokens that they read, and those that the last one read."""
        self._play(story, 0)

    @property
    def cost_usd(self) -> CostRange | None:
        return None if self._cost is None else self._cost.range

    def follow(self, story: CallStory) -> bool:
        """Plays the calls of a story after those that were played; False if it is another one."""
        first = bisect_right(story.times, self.at)
        lengths = [self._bounds[-1], *story.lengths[first:]] if self._bounds else []
        if not first or story.times[first - 1] != self.at:
            return False
        if len(lengths) < 2 or lengths != sorted(lengths):
            return False
        self._play(story, first)
        return True

    def _play(self, story: CallStory, first: int) -> None:
        last = len(story.times) - 1
        for index in range(first, last + 1):
            if index < len(story.kept) and (size := story.kept[index]) is not None:
                self._change(size)
            scope = "elsewhere" if self._how.elsewhere and index == last else ""
            self.add(story.times[index], story.lengths[index], scope)

    def add(self, at: float, length: int, scope: str = "") -> None:
        """Plays one call."""
        before, how = self._length, self._how
        if how.refreshed and before:
            for moment in _refreshes(self._rules, self.at, at, how.ttl):
                self._call(before, (), moment, scope="")
        if length > (self._bounds[-1] if self._bounds else 0):
            self._bounds.append(length)
        self.last_read = self._call(length, (before,) if 0 < before < length else (), at, scope)
        self.calls += 1
        self.read += self.last_read
        self.at, self._length = at, length

    def _change(self, size: int) -> None:
        """Later prompts have another text after so many tokens."""
        if self._how.changed:
            self._versions += 1
            same = bisect_left(self._bounds, size) + 1 if size else 0
            self._blocks = self._blocks.copy(same)

    def _call(self, length: int, ends: tuple[int, ...], at: float, scope: str) -> int:
        """Plays a call with markers at these ends, and those of its prompt and the tools and system
        prompt."""
        if self._how.ttl is None and self._rules.keeps_only_marked:
            self._add_cost(Usage(uncached=length, read=0, written={}, output=0), (), marked=False)
            return 0
        bounds, blocks, lead = self._bounds, self._blocks, self._lead
        count = bisect_left(bounds, length) + 1 if length else 0
        while (index := len(blocks.keys)) < count:
            blocks.add((index, self._versions), _LEADING if index < lead else _MESSAGE)
        marks: tuple[Mark, ...] = ()
        if (ttl := self._how.ttl) is not None and count:
            chunks = {count - 1, *[bisect_left(bounds, end) for end in ends]}
            if lead:
                chunks.add(lead - 1)
            marks = tuple([Mark(chunk, ttl) for chunk in sorted(chunks)])
        prompt = TokenRuns(
            blocks, bounds.__getitem__, leading=min(lead, count) - 1, markers=marks, count=count
        )
        outcome, chances = self._simulator.call_with_chances(prompt, at=at, scope=scope)
        usage = outcome.usage(output=0)
        self._add_cost(usage, chances, marked=bool(marks))
        return usage.read or 0

    def _add_cost(self, usage: Usage, chances: tuple[Chance, ...], *, marked: bool) -> None:
        cost_usd = self._cost_of(usage, marked)
        if cost_usd is None:
            self._cost = None
        elif self._cost is not None:
            others = [
                (each.share, self._cost_of(each.outcome.usage(output=0), marked))
                for each in chances
            ]
            self._cost.add(cost_usd, others)


def last_calls(story: CallStory) -> CallStory:
    """The calls that matter if only the last one is cached otherwise: the latest, and the one that
    ends before its change."""
    count = len(story.times)
    used = {*range(max(0, count - _LATEST), count)}
    if story.kept and (size := story.kept[-1]) is not None:
        used.add(max(0, bisect_right(story.lengths, size) - 1))
    fields = (
        [field[i] for i in sorted(used) if i < len(field)]
        for field in (story.times, story.lengths, story.kept)
    )
    times, lengths, kept = map(tuple, fields)
    return CallStory(times, lengths, min(story.lead, lengths[0]), kept)


def saving(was: CostRange | None, now: CostRange | None, error: float = 0.0) -> CostRange | None:
    """What the second costs less than the first; `error` is that of estimated lengths."""
    if was is None or now is None:
        return None
    low, high = was.low - now.high, was.high - now.low
    doubt = Decimal(str(error))
    return CostRange(was.expected - now.expected, low - doubt * abs(low), high + doubt * abs(high))


def relative_cost(rules: CacheRules) -> CostOf:
    """The cost of input in multiples of a token's input price."""

    def cost(usage: Usage, marked: bool) -> Decimal:
        read = rules.read_price
        if not marked and rules.automatic_read_price is not None:
            read = rules.automatic_read_price
        total = (usage.uncached or 0) + (usage.read or 0) * read.value
        for ttl, tokens in (usage.written or {}).items():
            total += tokens * (1.0 if ttl == "unsplit" else rules.writing(ttl))
        return Decimal(str(total))

    return cost


def _refreshes(rules: CacheRules, start: float, end: float, ttl: Ttl | None) -> Iterator[float]:
    """When the prefix is refreshed in a pause; not at all in one that takes too many."""
    spacing = ttl_seconds(rules, ttl) * _REFRESH_AFTER
    if spacing and end - start > spacing and (end - start) / spacing < _MOST_REFRESHES + 1:
        at = start + spacing
        while at < end:
            yield at
            at += spacing
