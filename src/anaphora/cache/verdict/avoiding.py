"""Which remedy avoids a loss, and what it would have saved at this call.

    verdict = with_remedy(judge(earlier, later, rules), earlier, later, rules, price=price)
    verdict.remedy.kind, verdict.remedy.saving

`avoidable` looks at two calls and never promises more than was lost; what a remedy would have saved
in a conversation is the sum over its losses. A verdict without a loss costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple

from msgspec.structs import replace

from anaphora.cache.compared_prompt import run_hashes
from anaphora.cache.prefix_difference import common_length, equal_around
from anaphora.cache.sent_call import (
    SentCall,
    expiry,
    is_alive,
    last_ttl,
    made_call,
    ttl_seconds,
)
from anaphora.cache.simulator.chances import CostRange
from anaphora.catalog import CacheRules, Price, Profile
from anaphora.catalog.prices import EXACT
from anaphora.rendered import Rendered
from anaphora.tokens import Counts
from anaphora.values import TTL_SECONDS, Ttl, Usage
from anaphora.wording import format_duration

from .advice import CAUSES, VOLATILE_TEXTS
from .causes import TOKEN_ERROR
from .prediction import lost_usd
from .remedy import REMEDIES, Remedy
from .values import CHANGED, VOLATILE, Change, Verdict

#: Remedies that do not keep what stands behind a change, or only a part of it.
_BEFORE_CHANGE = ("place_markers", "move_to_end", "longer_ttl")


class Avoidable(NamedTuple):
    """What a remedy would have changed at a call."""

    tokens: int
    """Tokens that would have been read in addition."""
    usd: Decimal | None
    """Their cost, less that of reading them and of the writes that this takes; None: unknown."""


def avoidable(
    earlier: SentCall,
    later: SentCall,
    remedy: Remedy,
    *,
    verdict: Verdict,
    rules: CacheRules,
    price: Price | None,
    since: float | None = None,
) -> Avoidable:
    """The tokens of the later prompt that would have been read if the text that the remedy names
    stood at the end and the planner's markers were there: at most what both prompts share behind
    the change. `since` is when the call before the earlier one was sent; None if there was none.
    """
    read = (verdict.predicted if verdict.billed is None else verdict.billed) or 0
    total = Counts(later.rendered).total if verdict.total is None else verdict.total
    left, change = verdict.left or 0, verdict.change
    ttl = _usual_ttl(earlier, rules) if remedy.ttl is None else remedy.ttl
    most = verdict.lost
    if change is not None and (not left or remedy.kind in _BEFORE_CHANGE):
        shared = _shared_tokens(earlier, later, remedy, change, total)
        most = min(most, shared - read) if left else shared
        most = most if left or shared >= rules.shortest_prefix else 0
    if not _would_live(earlier, later, ttl, rules):
        most = 0
    tokens = max(0, min(most, total - read, rules.longest_prefix - read))
    gain = verdict.cost_usd
    if later.usage is None and verdict.lost and gain is not None:
        gain = gain * tokens / verdict.lost
    elif tokens != verdict.lost:
        usage = later.usage or Usage(uncached=total - read, read=read, written={}, output=None)
        gain = lost_usd(usage, tokens, price)
    if gain is None or price is None or (left and remedy.ttl is None):
        return Avoidable(tokens, gain)
    writes, rates = total - read - tokens, price.at(total)
    if not _was_written(earlier, since, remedy.ttl, ttl, rules):
        writes += left or Counts(earlier.rendered, later.rendered.bills).total
    was = rates.writing(last_ttl(earlier.marks, rules)) if left else rates.input
    now = rates.writing(ttl)
    if was is None or now is None:
        return Avoidable(tokens, None)
    more = EXACT.multiply(EXACT.subtract(now, was), writes).scaleb(-6, EXACT)
    return Avoidable(tokens, EXACT.subtract(gain, more))


def _usual_ttl(earlier: SentCall, rules: CacheRules) -> Ttl | None:
    """The lifetime of the markers of a call, or that of the planner's if it has none."""
    ttl = last_ttl(earlier.marks, rules) if earlier.is_marked else None
    if ttl is not None or not rules.ttls.value:
        return ttl
    return rules.ttls.value[-1] if rules.default_ttl is None else rules.default_ttl.value


def _would_live(earlier: SentCall, later: SentCall, ttl: Ttl | None, rules: CacheRules) -> bool:
    """Whether the later call would find what the earlier one writes for that lifetime."""
    seconds = ttl_seconds(rules, ttl)
    if earlier.at is None or later.at is None or not seconds:
        return True
    made = made_call(rules, earlier.at, began=earlier.began, ended=earlier.ended)
    return made.readable <= later.at and is_alive(expiry(made.lives_from, seconds), later.at)


def _was_written(
    earlier: SentCall, since: float | None, longer: Ttl | None, ttl: Ttl | None, rules: CacheRules
) -> bool:
    """Whether the earlier prompt would have been written before: it is paid in the sum of another
    call. With a longer lifetime it is, if the pause before was a loss as well."""
    if since is None or earlier.at is None:
        return False
    pause, short = earlier.at - since, ttl_seconds(rules, last_ttl(earlier.marks, rules))
    return pause <= ttl_seconds(rules, ttl) and (longer is None or pause > short)


def _shared_tokens(
    earlier: SentCall, later: SentCall, remedy: Remedy, change: Change, total: int
) -> int:
    """The tokens of the later prompt that the earlier one has as well: those before the change, and
    behind it if the remedy avoids it. Text that moves to the end is one; the next change ends what
    is shared."""
    prompt, begin = later.rendered, change.chunk
    counts = Counts(prompt)
    if remedy.kind in ("place_markers", "longer_ttl"):
        shared = float(counts.tokens(min(begin, len(prompt))))
    else:
        shared = float(counts.before(change.offset))
        known, blocks = Counter(_hashes(earlier.rendered, begin)), _hashes(prompt, begin)
        if blocks and not known[blocks[0]]:
            shared += _rest(earlier.rendered, prompt, change, counts)
        for chunk, block in enumerate(blocks, begin):
            if known[block] > 0:
                known[block] -= 1
                shared += counts.tokens(chunk + 1) - counts.tokens(chunk)
            elif chunk > begin and remedy.kind == "move_to_end":
                break
    return int(shared * total / max(1, counts.total))


def _rest(earlier: Rendered, later: Rendered, change: Change, counts: Counts) -> float:
    """The tokens behind the changed text in its own block, if that text is known."""
    chunk = change.chunk
    if not earlier.has_text or chunk >= min(len(earlier), len(later)):
        return 0
    was, now = earlier.chunk_data(chunk), later.chunk_data(chunk)
    behind = equal_around(was, now) - common_length(was, now)
    return (counts.tokens(chunk + 1) - counts.tokens(chunk)) * behind / max(1, len(now))


def _hashes(rendered: Rendered, begin: int) -> list[int]:
    """Those of the blocks from `begin` on: the text may have been dropped."""
    return [each for run in rendered.runs for each in run_hashes(run)[: run.count]][begin:]


def with_remedy(
    verdict: Verdict,
    earlier: SentCall | None,
    later: SentCall,
    rules: CacheRules,
    *,
    price: Price | None,
    profile: Profile | None = None,
    since: float | None = None,
) -> Verdict:
    """The verdict with its remedy, if it is one of a loss whose cause is known. `since` is when the
    call before the earlier one was sent; None if that one began the conversation."""
    if earlier is None or not verdict.explains_loss:
        return verdict
    found = _remedy(verdict, earlier, later, rules)
    if found.kind in ("nothing", "send_first"):
        return replace(verdict, remedy=found)
    best, most = None, Decimal(0)
    for remedy in _choices(found, verdict, earlier, later, rules):
        if best is not None and remedy.kind != best.kind:
            break  # the first kind that pays
        tokens, usd = avoidable(
            earlier, later, remedy, verdict=verdict, rules=rules, price=price, since=since
        )
        worth = Decimal(tokens) if usd is None else usd
        if tokens and worth > most:
            saving = None if usd is None else _saving(usd, later, profile)
            best, most = replace(remedy, calls=2, tokens=tokens, at_call=usd, saving=saving), worth
    if best is None:
        why = "the pause was too long" if found.kind == "longer_ttl" else "it would cost more"
        if found.kind == "longer_ttl" and len(verdict.causes) > 1:
            why = "something else changed as well"
        best = Remedy(kind="nothing", text=f"nothing to do: {why}")
    return replace(verdict, remedy=best)


def _saving(usd: Decimal, later: SentCall, profile: Profile | None) -> CostRange:
    """With the error of an estimated length if there is no bill."""
    error = Decimal(0)
    if later.usage is None:
        error = Decimal(str(TOKEN_ERROR if profile is None else profile.token_error.value))
    return CostRange(usd, usd * (1 - error), usd * (1 + error))


def _choices(
    found: Remedy, verdict: Verdict, earlier: SentCall, later: SentCall, rules: CacheRules
) -> Iterator[Remedy]:
    """The ways to avoid a loss. A longer lifetime keeps only what stands before a change."""
    if found.kind == "longer_ttl":
        if len(verdict.causes) > 1 and verdict.change is None:
            return
        marked = rules.slots.value > 0 and rules.mechanism.value != "implicit"
        seconds = ttl_seconds(rules, last_ttl(earlier.marks, rules))
        for longer in rules.ttls.value if marked else ():
            if TTL_SECONDS[longer] > seconds:
                was, new = (format_duration(each) for each in (seconds, TTL_SECONDS[longer]))
                text = f"cache for {new} instead of {was}"
                yield replace(found, text=text, ttl=longer, fixable=True)
        return
    yield found
    if found.kind == "place_markers" and not earlier.is_marked and verdict.change is not None:
        both = _of_change(verdict.change, earlier, later)
        text = f"{both.text}, and {REMEDIES['place_markers']}"
        yield replace(both, text=text, fixable=False)


# ── Which remedy ─────────────────────────────────────────────────────────────────────────────────


def _remedy(verdict: Verdict, earlier: SentCall, later: SentCall, rules: CacheRules) -> Remedy:
    cause, change = verdict.causes[0], verdict.change
    kind = CAUSES[cause.kind].remedy
    if kind == "move_to_end" and change is None:
        kind = "nothing"
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
        what = VOLATILE_TEXTS.get(change.kind, "text that changes")
        return Remedy(kind="move_to_end", text=f"move {what} into the newest message")
    if change.section == "messages":
        return Remedy(kind="keep_history", text=REMEDIES["keep_history"])
    if change.section == "tools":
        was, now = (_tools(each.rendered) for each in (earlier, later))
        if was != now and sorted(was) == sorted(now):
            text = "send the tools in the order of the earlier call"
            return Remedy(kind="keep_tools", text=text, fixable=True)
        return Remedy(kind="keep_tools", text=REMEDIES["keep_tools"])
    return Remedy(kind="move_to_end", text=REMEDIES["move_to_end"])


def _tools(rendered: Rendered) -> list[int]:
    runs = (run for run in rendered.runs if run.section == "tools")
    return [each for run in runs for each in run_hashes(run)[: run.count]]
