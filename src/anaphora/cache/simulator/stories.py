"""The calls of a conversation so far, played again as they would have been cached otherwise.

    story = story_of(prompt, times)
    was, reads = play(rules, story, StoryCaching(), cost)
    now, reads = play(rules, story, StoryCaching("5m"), cost)
    saving(was, now)                    with the range of nine cases in ten

A story has the lengths of its prompts, and no text: each prompt is the one before and more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import islice, pairwise
from typing import NamedTuple, TypeAlias

from anaphora.cache.sent_call import ttl_seconds
from anaphora.catalog import CacheRules
from anaphora.rendered import Mark
from anaphora.values import Ttl, Usage

from .chances import CostRange, SimulatedCall, expected_usage
from .prompt import RenderedPrompt
from .simulator import Simulator
from .view import TokenRuns

#: The calls of a conversation that are played, and those that keep a prefix alive in one pause.
MOST_CALLS, _MOST_REFRESHES = 64, 12
#: The share of a lifetime after which a refresh is sent.
_REFRESH_AFTER = 0.95

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


def play(
    rules: CacheRules, story: CallStory, how: StoryCaching, cost: CostOf
) -> tuple[CostRange | None, list[int]]:
    """The cost of all calls, and the tokens that each reads, without those in between."""
    simulator, calls, reads = Simulator(rules), list[SimulatedCall](), list[int]()
    kept = [size for size in story.kept if size is not None]
    bounds = sorted({*story.lengths, story.lead, *kept} - {0})
    last = len(story.times) - 1
    for index, at in enumerate(story.times):
        prompt = _prompt(story, bounds, index, how)
        if index and how.refreshed:
            for moment in _refreshes(rules, story.times[index - 1], at, how.ttl):
                before = _prompt(story, bounds, index - 1, how)
                calls.append(_call(simulator, before, moment, cost))
        scope = "elsewhere" if how.elsewhere and index == last else ""
        calls.append(_call(simulator, prompt, at, cost, scope))
        reads.append(calls[-1].read)
    return expected_usage(calls).cost_usd, reads


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


def _prompt(story: CallStory, bounds: list[int], index: int, how: StoryCaching) -> TokenRuns:
    length, blocks = story.lengths[index], list[tuple[object, int]]()
    changes = story.kept[: index + 1] if how.changed else ()
    for start, end in pairwise([0, *bounds]):
        if end > length:
            break
        version = sum(kept is not None and kept <= start for kept in changes)
        blocks.append(((start, version), end - start))
    ends = {len(blocks) - 1}
    if index and story.lengths[index - 1] < length:
        ends.add(bisect_left(bounds, story.lengths[index - 1]))
    if story.lead:
        ends.add(bisect_left(bounds, story.lead))
    marks = () if how.ttl is None else tuple(Mark(end, how.ttl) for end in sorted(ends))
    sections = ["system" if end <= story.lead else "messages" for end in bounds[: len(blocks)]]
    return TokenRuns.given(blocks, sections=sections, markers=marks)  # type: ignore[arg-type]


def _refreshes(rules: CacheRules, start: float, end: float, ttl: Ttl | None) -> Iterator[float]:
    """When the prefix is refreshed in a pause; not at all in one that takes too many."""
    spacing = ttl_seconds(rules, ttl) * _REFRESH_AFTER
    if spacing and end - start > spacing and (end - start) / spacing < _MOST_REFRESHES + 1:
        at = start + spacing
        while at < end:
            yield at
            at += spacing


def _call(
    simulator: Simulator, prompt: TokenRuns, at: float, cost_of: CostOf, scope: str = ""
) -> SimulatedCall:
    def cost(usage: Usage) -> Decimal | None:
        return cost_of(usage, bool(prompt.markers))

    chances = simulator.chances(prompt, at=at, scope=scope)
    usage = simulator.call(prompt, at=at, scope=scope).usage(output=0)
    return SimulatedCall(usage.read or 0, cost(usage), tuple(c.priced(0, cost) for c in chances))
