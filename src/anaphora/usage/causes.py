"""What each call of a session lost, and why.

    for found in losses(entries, prices):       # the conversations of one session
        found is a CallLoss, or a Problem with its place

The verdicts are those of `analysis.trace.verdicts`. A verdict counts only tokens that were surely
billed again; here every cached token that was sent and not read counts, under the cause of the
verdict, and under "unknown" if the file does not show it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import accumulate

from msgspec.structs import replace

from anaphora import catalog
from anaphora.analysis.trace.format import unsupported
from anaphora.analysis.trace.log_lines import FoundTrace, Problem, TraceEntry
from anaphora.analysis.trace.verdicts import BillVerdict, judge_bills
from anaphora.cache.learned_steps import LearnedSteps
from anaphora.cache.sent_call import expiry, is_alive, ttl_seconds, used_at
from anaphora.cache.verdict import CauseKind, Verdict
from anaphora.cache.verdict.advice import LONGER, can_apply
from anaphora.cache.verdict.prediction import lost_usd
from anaphora.catalog import CacheRules, Price
from anaphora.catalog.prices import EXACT
from anaphora.catalog.pricing import PriceBook
from anaphora.values import TTL_SECONDS, Usage
from anaphora.wording import format_duration, format_loss

from .records import CallLoss


def losses(
    entries: Iterable[TraceEntry], prices: PriceBook, steps: LearnedSteps | None = None
) -> Iterator[CallLoss | Problem]:
    """The losses in the conversations of one session, after `AnswerIndex.once`: of its file, and of
    the files of its subagents. `steps` holds rules learned from other sessions, and learns from
    this one."""
    found: dict[str, FoundTrace] = {}
    for entry in entries:
        if isinstance(entry, Problem):
            yield entry
        elif (reason := unsupported(entry.trace.provider, entry.trace.model)) is not None:
            yield Problem(entry.place, reason, "not_compared")
        else:
            id = f"{entry.trace.id} {len(found)}"  # files of subagents may repeat an id
            found[id] = entry._replace(trace=replace(entry.trace, id=id))
    traces = (entry.trace for entry in found.values())
    for judged in judge_bills(traces, prices.price, steps):
        answers, usage = found[judged.trace.id].answers, judged.trace.calls[judged.call].usage
        assert usage is not None
        key = answers[judged.call].key if answers else b""
        yield from losses_of(
            judged.verdict,
            key,
            judged.gap,
            usage.usage(),
            judged.price,
            before=judged.before,
            saved=_saved(judged),
        )
    agents: dict[tuple[str, ...], list[FoundTrace]] = {}
    for entry in found.values():
        trace = entry.trace
        if trace.agent is not None and trace.calls and trace.calls[0].usage is not None:
            kind = trace.source, trace.provider, trace.model, trace.agent
            agents.setdefault(kind, []).append(entry)
    for same_kind in agents.values():
        yield from _repeated_beginnings(same_kind, prices)


def _saved(judged: BillVerdict) -> Decimal | None:
    """What users of the program could have saved: with a longer lifetime, before the dearer writes
    of all their calls."""
    verdict, kind = judged.verdict, judged.verdict.cause
    if kind is None or not can_apply(kind, judged.trace.source or ""):
        return None
    if kind != "expired":
        return None if verdict.remedy is None else verdict.remedy.at_call
    rates = None if judged.price is None else judged.price.at(verdict.total or 0)
    longer = None if rates is None else rates.writing(LONGER)
    if rates is None or rates.read is None or longer is None or judged.gap is None:
        return None
    short, long = (TTL_SECONDS[ttl] for ttl in (judged.ttl or LONGER, LONGER))
    if short >= long or judged.gap > long:
        return None
    return EXACT.multiply(longer - rates.read, verdict.lost).scaleb(-6, EXACT)


def _repeated_beginnings(agents: list[FoundTrace], prices: PriceBook) -> Iterator[CallLoss]:
    """What first calls of subagents of one kind and model wrote again.

    Subagents of one kind begin alike: as many tokens as the first call of any of them read. A first
    call that reads fewer writes them again, if another subagent of the kind has used at least as
    many in a call that was sent before, whose entry is alive by the rules. Nothing is said about
    subagents whose kind the file does not name, or if no other first call read anything."""
    first = agents[0].trace
    rules = catalog.rules(catalog.provider_named(first.provider) or "", first.model, first.wire)
    reads = [call.usage.cache_read for call in (e.trace.calls[0] for e in agents) if call.usage]
    shared = max(reads, default=0)
    held = sorted(_held(agents, shared, rules))
    sent = [at for at, _ in held]
    alive = [*accumulate(((expires, at) for at, expires in held), max)]
    """With the calls up to each: the last moment at which an entry of theirs is alive."""
    for entry in agents:
        call, trace = entry.trace.calls[0], entry.trace
        if call.usage is None or call.at is None or call.began_by is not None:
            continue
        missed = min(shared, call.usage.total) - call.usage.cache_read
        before = bisect_left(sent, call.at)
        if missed <= 0 or not before or not is_alive(alive[before - 1][0], call.at):
            continue
        price = prices.price(trace.provider, trace.model, call.at, trace.wire)
        usd = lost_usd(call.usage.usage(), missed, price)
        ago = format_duration(call.at - alive[before - 1][1])
        text = (
            f"A subagent's first call: {call.usage.cache_read:,} of {shared:,} tokens read that"
            f" others of its kind share. Another one had sent them {ago} before."
            f" {missed:,} tokens were billed again: {format_loss(usd)}."
        )
        key = entry.answers[0].key if entry.answers else b""
        yield CallLoss(key, "subagent", missed, None if usd is None else round(usd * 10**9), text)


def _held(
    agents: list[FoundTrace], tokens: int, rules: CacheRules
) -> Iterator[tuple[float, float]]:
    """The calls that left an entry of so many tokens: when each was sent, and the last moment at
    which the entry is alive."""
    for call in (call for entry in agents for call in entry.trace.calls):
        if call.usage is None or call.at is None:
            continue
        if (call.usage.cached if rules.needs_marks else call.usage.total) >= tokens:
            written = (ttl for ttl in call.usage.by_ttl if ttl != "unsplit")
            ttl = min(written, key=TTL_SECONDS.__getitem__, default=None)
            used = used_at(rules, call.at, began=call.t_first, ended=call.ended)
            yield call.at, expiry(used, ttl_seconds(rules, ttl))


def losses_of(
    verdict: Verdict,
    key: bytes,
    idle: float | None,
    usage: Usage,
    price: Price | None,
    *,
    before: int = 0,
    saved: Decimal | None = None,
) -> Iterator[CallLoss]:
    """A loss for each cause of the verdict that explains a part of it. `before` are the tokens of
    the prompt before, if known; `saved` is what the first one's remedy would have saved."""
    shares = _shares(verdict, before)
    sentence = verdict.describe(outlined=True) if shares else ""
    tokens = sum(shares.values())
    usd = verdict.cost_usd if tokens == verdict.lost else lost_usd(usage, tokens, price)
    left = None if usd is None else round(usd * 10**9)
    for number, (cause, share) in enumerate(shares.items(), 1):
        nano = None
        if left is not None and usd is not None:
            last = number == len(shares)
            nano = left if last else round(usd * 10**9 * Decimal(share) / tokens)
            left -= nano
        kept = None if saved is None or number > 1 else round(saved * 10**9)
        yield CallLoss(key, cause, share, nano, sentence, idle, kept)


def _shares(verdict: Verdict, before: int) -> dict[CauseKind, int]:
    """The tokens that were cached, sent again and not read, by cause. Without a cache, all of the
    prompt before was sent again."""
    shares, kind = verdict.losses, verdict.cause
    if shares or kind is None or kind == "side_call" or verdict.result == "hit":
        return shares
    total, read = verdict.total or 0, verdict.billed or 0
    # After a compaction nothing is compared: what it did not read is written anew.
    most = total if kind == "compaction" and verdict.left is None else verdict.left or before
    missed = min(most, total) - read
    return {kind: missed} if missed > 0 else {}
