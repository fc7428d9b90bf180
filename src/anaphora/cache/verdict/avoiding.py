"""Which remedy avoids a loss, and what it would have saved over the conversation so far.

    verdict = with_remedy(judge(earlier, later, rules), earlier, later, rules, price=price, past=…)
    verdict.remedy.kind, verdict.remedy.saving

The simulator plays the calls of the conversation twice: as they were lost, and with the remedy. A
verdict without a loss costs nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import islice, pairwise
from typing import NamedTuple

from msgspec.structs import replace

from anaphora.cache.sent_call import SentCall, last_ttl, ttl_seconds
from anaphora.cache.simulator import Mark, RenderedPrompt, Simulator, TokenRuns
from anaphora.cache.simulator.chances import (
    CostRange,
    SimulatedCall,
    expected_usage,
)
from anaphora.catalog import CacheRules, Price, Profile
from anaphora.rendered import Plan
from anaphora.tokens import Counts
from anaphora.values import TTL_SECONDS, Ttl, Usage
from anaphora.wording import format_duration

from .causes import TOKEN_ERROR
from .remedy import REMEDIES, Remedy, RemedyKind
from .values import CHANGED, VOLATILE, Change, Verdict

#: The calls that are played, and the calls that keep a prefix alive in one pause.
_MOST_CALLS, _MOST_REFRESHES = 64, 12
#: Between two calls whose times are unknown.
_UNKNOWN_GAP = 60.0
#: The share of a lifetime after which a refresh is sent.
_REFRESH_AFTER = 0.95
#: Words for text that changes by itself.
_VOLATILE = {"date": "the date", "clock": "the time", "uuid": "the UUID", "nonce": "the id"}

#: The remedy of each cause that has always the same one.
_BY_CAUSE: dict[str, RemedyKind] = {
    "expired": "longer_ttl",
    "no_marker": "place_markers",
    "marker_on_trailing_system": "place_markers",
    "marker_on_volatile": "place_markers",
    "lookback_exceeded": "place_markers",
    "above_maximum": "place_markers",
    "history_edited": "keep_history",
    "model_changed": "keep_parameters",
    "parameter_changed": "keep_parameters",
    "images_changed": "keep_parameters",
    "other_key": "cache_key",
    "other_route": "pin_host",
    "not_yet_visible": "send_first",
}
#: Losses of calls that went to another cache.
_ELSEWHERE = frozenset(("keep_parameters", "cache_key", "pin_host"))


class _Story(NamedTuple):
    """The calls of a conversation, as far as they matter for its cache."""

    times: tuple[float, ...]
    lengths: tuple[int, ...]
    lead: int
    """Tokens of tools and system prompt."""
    shared: int
    """Tokens of the last prompt before its change; all of them if nothing changed."""


class _Played(NamedTuple):
    """How the calls of a story are cached."""

    ttl: Ttl | None = None
    """Of markers; None: no call has one."""
    changed: bool = False
    """The last call has another text after `shared`."""
    elsewhere: bool = False
    """The last call goes to another cache."""
    refreshed: bool = False
    """Calls in between keep the prefix alive."""


def with_remedy(
    verdict: Verdict,
    earlier: SentCall | None,
    later: SentCall,
    rules: CacheRules,
    *,
    price: Price | None,
    profile: Profile | None = None,
    past: Sequence[float] = (),
) -> Verdict:
    """The verdict with its remedy, if it is one of a loss whose cause is known. `past` is when
    the calls of the conversation before the last two were sent, in their order."""
    if earlier is None or not verdict.causes or verdict.result in ("first", "hit", "unknown"):
        return verdict
    found = _remedy(verdict, earlier, later, rules)
    if found.kind in ("nothing", "send_first"):
        return replace(verdict, remedy=found)
    story = _story(verdict.change, earlier, later, past)
    error = 0.0
    if later.usage is None:
        error = TOKEN_ERROR if profile is None else profile.token_error.value
    best: Remedy | None = None
    for remedy, lost, avoided in _scenarios(found, earlier, rules):
        if best is not None and remedy.kind != best.kind:
            break  # the first kind that pays
        (had, was), (has, now) = (_play(rules, story, each, price) for each in (lost, avoided))
        saving, tokens = _saving(had, has, error), sum(now) - sum(was)
        new = replace(remedy, calls=len(story.times), tokens=max(0, tokens), saving=saving)
        if now[-1] > was[-1] and _worth(new) > (0 if best is None else _worth(best)):
            best = new
    if best is None:
        why = "the pause was too long" if found.kind == "longer_ttl" else "it would cost more"
        best = Remedy(kind="nothing", text=f"nothing to do: {why}")
    return replace(verdict, remedy=best)


def _worth(remedy: Remedy) -> Decimal:
    return Decimal(remedy.tokens) if remedy.saving is None else remedy.saving.expected


# ── Which remedy ─────────────────────────────────────────────────────────────────────────────────


def _remedy(verdict: Verdict, earlier: SentCall, later: SentCall, rules: CacheRules) -> Remedy:
    cause, change = verdict.causes[0], verdict.change
    kind = _BY_CAUSE.get(cause.kind, "nothing")
    at_end = cause.kind == "marker_on_volatile" and change and change.section == "messages"
    if change is not None and cause.kind in CHANGED and not at_end:
        return _of_change(change, earlier, later)
    routed = rules.key_requests is not None and later.complete
    if cause.kind == "provider_side" and routed:
        keyed = "cache_key" in dict(later.rendered.envelope.cache_params)
        kind = "nothing" if keyed else "cache_key"
    if kind == "pin_host" and earlier.host:
        return Remedy(kind=kind, text=f"stay at {earlier.host}, which has the prefix", fixable=True)
    if kind == "nothing":
        return Remedy(kind=kind, text=f"nothing to do: {cause.text}")
    fixable = kind == "place_markers" or (kind == "cache_key" and cause.kind == "provider_side")
    return Remedy(kind=kind, text=REMEDIES[kind], fixable=fixable)


def _of_change(change: Change, earlier: SentCall, later: SentCall) -> Remedy:
    if change.kind in VOLATILE:
        what = _VOLATILE.get(change.kind, "text that changes")
        return Remedy(kind="move_to_end", text=f"move {what} into the newest message")
    if change.section == "messages":
        return Remedy(kind="keep_history", text=REMEDIES["keep_history"])
    if change.section == "tools":
        if same_tools(earlier, later):
            text = "send the tools in the order of the earlier call"
            return Remedy(kind="keep_tools", text=text, fixable=True)
        return Remedy(kind="keep_tools", text=REMEDIES["keep_tools"])
    return Remedy(kind="move_to_end", text=REMEDIES["move_to_end"])


def same_tools(earlier: SentCall, later: SentCall) -> bool:
    """Whether two calls have the same tools in another order."""
    was, now = _tools(earlier), _tools(later)
    return was != now and sorted(was) == sorted(now)


def _tools(sent: SentCall) -> list[bytes]:
    logs = ((run.log, run.count) for run in sent.rendered.runs if run.section == "tools")
    return [
        log.slice(log.start(index), log.ends[index]).removeprefix(b",")
        for log, count in logs
        for index in range(count)
    ]


def _scenarios(
    remedy: Remedy, earlier: SentCall, rules: CacheRules
) -> Iterator[tuple[Remedy, _Played, _Played]]:
    """Each way to avoid the loss: the calls as they were, and as they would be."""
    marked = rules.slots.value > 0 and rules.mechanism.value != "implicit"
    ttl = last_ttl(earlier.marks, rules) if marked and earlier.is_marked else None
    usual = None
    if marked:
        known = rules.default_ttl
        usual = ttl or (rules.ttls.value[-1] if known is None else known.value)
    match remedy.kind:
        case "longer_ttl":
            lost, seconds = _Played(ttl), ttl_seconds(rules, last_ttl(earlier.marks, rules))
            for longer in rules.ttls.value if marked else ():
                if TTL_SECONDS[longer] > seconds:
                    was, new = (format_duration(each) for each in (seconds, TTL_SECONDS[longer]))
                    text = f"cache for {new} instead of {was}"
                    better = replace(remedy, text=text, ttl=longer, fixable=True)
                    yield better, lost, _Played(longer)
            warm = Remedy(kind="keep_warm", text=REMEDIES["keep_warm"])
            for lifetime in rules.ttls.value if ttl is not None else (None,):
                yield warm, lost, _Played(lifetime, refreshed=True)
        case "place_markers":
            lost = _Played(None) if not earlier.is_marked else _Played(usual, changed=True)
            yield remedy, lost, _Played(usual)
        case kind if kind in _ELSEWHERE:
            yield remedy, _Played(usual, elsewhere=True), _Played(usual)
        case _:
            yield remedy, _Played(usual, changed=True), _Played(usual)


# ── The saving ───────────────────────────────────────────────────────────────────────────────────


def _story(
    change: Change | None, earlier: SentCall, later: SentCall, past: Sequence[float]
) -> _Story:
    """The calls so far: their prompts end where turns of the last one do."""
    prompt = RenderedPrompt(later.rendered, Plan())
    total = prompt.total if later.usage is None else later.usage.input or prompt.total
    scale = total / max(1, prompt.total)
    before = None if earlier.usage is None else earlier.usage.input
    before = before or round(Counts(earlier.rendered, later.rendered.bills).total * scale)
    before = min(before, total)  # what is no longer sent is not paid again
    times = _times(past, earlier, later)
    ends = [prompt.tokens(end) for end in islice(prompt.turn_ends(), len(times))][2:]
    lengths = [*(round(tokens * scale) for tokens in reversed(ends)), before, total]
    times = times[-len(lengths) :]
    lead = round(prompt.tokens(prompt.leading) * scale) if prompt.leading >= 0 else 0
    shared = total
    if change is not None:
        shared = min(total, round(prompt.counts.before(change.offset) * scale))
    return _Story(tuple(times), tuple(lengths[-len(times) :]), min(lead, before), shared)


def _times(past: Sequence[float], earlier: SentCall, later: SentCall) -> list[float]:
    if earlier.at is None or later.at is None:
        return [0.0, _UNKNOWN_GAP]
    before = [at for at in past if at < earlier.at]
    return [*before[-_MOST_CALLS:], earlier.at, max(earlier.at, later.at)]


def _play(
    rules: CacheRules, story: _Story, how: _Played, price: Price | None
) -> tuple[CostRange | None, list[int]]:
    """The cost of all calls, and the tokens that each reads, without those in between."""
    simulator, calls, reads = Simulator(rules), list[SimulatedCall](), list[int]()
    bounds = sorted({*story.lengths, story.lead, story.shared} - {0})
    last = len(story.times) - 1
    for index, at in enumerate(story.times):
        prompt = _prompt(story, bounds, index, how)
        if index and how.refreshed:
            for moment in _refreshes(rules, story.times[index - 1], at, how.ttl):
                calls.append(
                    _call(simulator, _prompt(story, bounds, index - 1, how), moment, price, how)
                )
        scope = "elsewhere" if how.elsewhere and index == last else ""
        calls.append(_call(simulator, prompt, at, price, how, scope))
        reads.append(calls[-1].read)
    return expected_usage(calls).cost_usd, reads


def _prompt(story: _Story, bounds: list[int], index: int, how: _Played) -> TokenRuns:
    length, blocks = story.lengths[index], list[tuple[object, int]]()
    changed = how.changed and index == len(story.times) - 1
    for start, end in pairwise([0, *bounds]):
        if end > length:
            break
        blocks.append(((start, changed and start >= story.shared), end - start))
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
    simulator: Simulator,
    prompt: TokenRuns,
    at: float,
    price: Price | None,
    how: _Played,
    scope: str = "",
) -> SimulatedCall:
    def cost(usage: Usage) -> Decimal | None:
        return None if price is None else price.of(usage, marked=how.ttl is not None)

    chances = simulator.chances(prompt, at=at, scope=scope)
    usage = simulator.call(prompt, at=at, scope=scope).usage(output=0)
    return SimulatedCall(usage.read or 0, cost(usage), tuple(c.priced(0, cost) for c in chances))


def _saving(was: CostRange | None, now: CostRange | None, error: float) -> CostRange | None:
    if was is None or now is None:
        return None
    low, high = was.low - now.high, was.high - now.low
    doubt = Decimal(str(error))
    return CostRange(was.expected - now.expected, low - doubt * abs(low), high + doubt * abs(high))
