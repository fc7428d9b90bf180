"""Which remedy avoids a loss, and what it would have saved over the conversation so far.

    verdict = with_remedy(judge(earlier, later, rules), earlier, later, rules, price=price, past=…)
    verdict.remedy.kind, verdict.remedy.saving

The simulator plays the calls of the conversation twice: as they were lost, and with the remedy. A
verdict without a loss costs nothing; `played` keeps what was played until an earlier loss, so that
each call is played once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cached_property, partial

import msgspec
from msgspec.structs import replace

from anaphora.cache.compared_prompt import run_hashes
from anaphora.cache.sent_call import SentCall, last_ttl, ttl_seconds
from anaphora.cache.simulator import RenderedPrompt
from anaphora.cache.simulator.stories import (
    CallStory,
    StoryCaching,
    StoryPlayer,
    last_calls,
    saving,
    story_of,
)
from anaphora.catalog import CacheRules, Price, Profile
from anaphora.rendered import Plan
from anaphora.tokens import Counts
from anaphora.values import TTL_SECONDS, Usage
from anaphora.wording import format_duration

from .causes import TOKEN_ERROR
from .remedy import REMEDIES, Remedy, RemedyKind
from .values import CHANGED, VOLATILE, Change, Verdict

#: Between two calls whose times are unknown.
_UNKNOWN_GAP = 60.0
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


class PlayedCalls(msgspec.Struct, eq=False, weakref=True):
    """The calls of a conversation as they were played for its earlier losses, in pairs: as they
    were, and with a remedy. A pair takes 20 KB and more."""

    rules: CacheRules | None = None
    price: Price | None = None
    pairs: dict[tuple[StoryCaching, StoryCaching], tuple[StoryPlayer, StoryPlayer]] = msgspec.field(
        default_factory=dict
    )

    def keep(self) -> None:
        """Keeps it until there were losses in many other conversations."""
        if not _recent or _recent[-1] is not self:
            _recent.append(self)

    def clear(self, rules: CacheRules, price: Price | None) -> None:
        """Forgets what was played by other rules or prices."""
        if rules is not self.rules or price is not self.price:
            self.rules, self.price, self.pairs = rules, price, {}

    def play(
        self, lost: StoryCaching, avoided: StoryCaching, story: _Story
    ) -> tuple[StoryPlayer, StoryPlayer]:
        """Both ways to play a story. Calls that were played are not played again."""
        assert self.rules is not None
        known = self.pairs.get((lost, avoided))
        if known is not None:
            short = known[0].at == story.before_at and not avoided.changed
            latest = story.latest if short else story.whole
            if all(player.follow(latest) for player in known):
                return known
        whole = last_calls(story.whole) if lost.only_last else story.whole
        cost = partial(_cost, self.price)
        was, now = (StoryPlayer(self.rules, whole, how, cost) for how in (lost, avoided))
        if not lost.only_last:
            self.pairs[lost, avoided] = was, now
        return was, now


#: Those of the latest losses, whose conversations hold weak references.
_recent = deque[PlayedCalls](maxlen=256)


def _cost(price: Price | None, usage: Usage, marked: bool) -> Decimal | None:
    return None if price is None else price.of(usage, marked=marked)


def with_remedy(
    verdict: Verdict,
    earlier: SentCall | None,
    later: SentCall,
    rules: CacheRules,
    *,
    price: Price | None,
    profile: Profile | None = None,
    past: Sequence[float] = (),
    played: PlayedCalls | None = None,
) -> Verdict:
    """The verdict with its remedy, if it is one of a loss whose cause is known. `past` is when
    the calls of the conversation before the last two were sent, in their order; `played` is one
    object for all of them."""
    if earlier is None or not verdict.causes or verdict.result in ("first", "hit", "unknown"):
        return verdict
    found = _remedy(verdict, earlier, later, rules)
    if found.kind in ("nothing", "send_first"):
        return replace(verdict, remedy=found)
    played = PlayedCalls() if played is None else played
    played.clear(rules, price)
    story = _Story(verdict.change, earlier, later, past)
    error = 0.0
    if later.usage is None:
        error = TOKEN_ERROR if profile is None else profile.token_error.value
    best: Remedy | None = None
    for remedy, lost, avoided in _scenarios(found, story, rules):
        if best is not None and remedy.kind != best.kind:
            break  # the first kind that pays
        was, now = played.play(lost, avoided, story)
        new = replace(
            remedy,
            calls=len(story.whole.times) if lost.only_last else now.calls,
            tokens=max(0, now.read - was.read),
            saving=saving(was.cost_usd, now.cost_usd, error),
        )
        if now.last_read > was.last_read and _worth(new) > (0 if best is None else _worth(best)):
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


def _tools(sent: SentCall) -> list[int]:
    """Their hashes: the text may have been dropped."""
    runs = (run for run in sent.rendered.runs if run.section == "tools")
    return [each for run in runs for each in run_hashes(run)[: run.count]]


def _scenarios(
    remedy: Remedy, story: _Story, rules: CacheRules
) -> Iterator[tuple[Remedy, StoryCaching, StoryCaching]]:
    """Each way to avoid the loss: the calls as they were, and as they would be."""
    earlier, change = story.earlier, story.change
    marked = rules.slots.value > 0 and rules.mechanism.value != "implicit"
    ttl = last_ttl(earlier.marks, rules) if marked and earlier.is_marked else None
    usual = None
    if marked:
        known = rules.default_ttl
        usual = ttl or (rules.ttls.value[-1] if known is None else known.value)
    match remedy.kind:
        case "longer_ttl":
            lost, seconds = StoryCaching(ttl), ttl_seconds(rules, last_ttl(earlier.marks, rules))
            for longer in rules.ttls.value if marked else ():
                if TTL_SECONDS[longer] > seconds:
                    was, new = (format_duration(each) for each in (seconds, TTL_SECONDS[longer]))
                    text = f"cache for {new} instead of {was}"
                    better = replace(remedy, text=text, ttl=longer, fixable=True)
                    yield better, lost, StoryCaching(longer)
        case "place_markers" if earlier.is_marked:
            yield remedy, StoryCaching(usual, changed=True), StoryCaching(usual)
        case "place_markers":
            yield remedy, StoryCaching(None), StoryCaching(usual, changed=change is not None)
            if change is None:
                return
            both = _of_change(change, earlier, story.later)
            text = f"{both.text}, and {REMEDIES['place_markers']}"
            yield (
                replace(both, text=text, fixable=False),
                StoryCaching(None),
                StoryCaching(usual),
            )
        case kind if kind in _ELSEWHERE:
            yield remedy, StoryCaching(usual, elsewhere=True), StoryCaching(usual)
        case _:
            unmarked = earlier.marks.changing
            lost = StoryCaching(None if unmarked else usual, changed=True)
            yield remedy, lost, StoryCaching(usual)


# ── The saving ───────────────────────────────────────────────────────────────────────────────────


class _Story:
    """The calls so far: all of them, and the last two, which need no look at the prompts."""

    def __init__(
        self,
        change: Change | None,
        earlier: SentCall,
        later: SentCall,
        past: Sequence[float],
    ) -> None:
        self.change, self.earlier, self.later, self._past = change, earlier, later, past
        self.before_at = earlier.at

    @property
    def latest(self) -> CallStory:
        usage = self.later.usage
        if usage is None or not usage.input:
            return self.whole
        return CallStory(_times((), self.earlier, self.later), (0, usage.input))

    @cached_property
    def whole(self) -> CallStory:
        change, earlier, later = self.change, self.earlier, self.later
        before = None if earlier.usage is None else earlier.usage.input
        return story_of(
            RenderedPrompt(later.rendered, Plan()),
            _times(self._past, earlier, later),
            total=None if later.usage is None else later.usage.input,
            before=before or Counts(earlier.rendered, later.rendered.bills).total,
            kept=() if change is None else (change.offset,),
        )


def _times(past: Sequence[float], earlier: SentCall, later: SentCall) -> tuple[float, ...]:
    if earlier.at is None or later.at is None:
        return 0.0, _UNKNOWN_GAP
    before = [at for at in past if at < earlier.at]
    return *before, earlier.at, max(earlier.at, later.at)
