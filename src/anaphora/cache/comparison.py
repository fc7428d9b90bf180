"""Which of the earlier calls a call is judged against, and how much of it."""

from __future__ import annotations

from typing import Protocol, TypeVar

from msgspec.structs import replace

from anaphora.catalog import CacheRules
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import Counts

from .history import is_compacted
from .prefix_index import EarlierCall
from .sent_call import SentCall, cached_chunks


class SentRecord(Protocol):
    """What an index keeps of a call so that a later one can be judged."""

    @property
    def sent(self) -> SentCall: ...


Record = TypeVar("Record", bound=SentRecord)


def comparable(
    earlier: EarlierCall[Record] | None,
    later: Rendered,
    rules: CacheRules,
    *,
    at: float | None = None,
) -> SentCall | None:
    """What the next call is judged against: the call before it in its conversation. For a new
    conversation that is the beginning it shares with an earlier call: what follows was never
    meant to be read. None where nothing that they share can have been cached for both. `at` is when
    the next call was sent: of calls in parallel, one that ended earlier may have been sent later.
    """
    if earlier is None:
        return None
    sent, latest = earlier.call.sent, earlier.latest.sent
    if earlier.continues:
        return sent
    if is_compacted(latest, later, earlier.chunks):
        return latest
    if earlier.chunks < len(sent.rendered):
        sent = _beginning(sent, earlier.chunks)
        if not may_be_shared(sent, later, rules):
            return None
    if latest.at is None or sent.at is None:
        return sent
    used = latest.at if at is None else min(latest.at, at)
    if used <= sent.at:
        return sent
    answered = sent.began is None or sent.began <= used
    return replace(sent, at=used, began=None if answered else sent.began)


def may_be_shared(beginning: SentCall, later: Rendered, rules: CacheRules) -> bool:
    """Whether the beginning of another conversation can have been cached for this prompt too.
    Where whole units are kept, only a beginning that several prompts shared is one."""
    if rules.automatic_breakpoint.value == "units":
        return False
    marked = rules.needs_marks and rules.slots.value > 0
    tokens = Counts(beginning.rendered).tokens(cached_chunks(beginning))
    if tokens < rules.minimum_tokens.value or (marked and not beginning.marks.marks):
        return False
    was, now = (dict(each.envelope.cache_params) for each in (beginning.rendered, later))
    changed = (name for name in {*was, *now} if was.get(name) != now.get(name))
    return not any(rules.voided_by(name) for name in changed)  # type: ignore[arg-type]


def _beginning(sent: SentCall, chunks: int) -> SentCall:
    """A call as if it had ended after its first chunks. What was billed for them is unknown, but
    its bill shows how many bytes a token has."""
    rendered, total = sent.rendered, None if sent.usage is None else sent.usage.input
    runs, left = [], chunks
    for run in rendered.runs:
        if left > 0:
            runs.append(replace(run, count=min(left, run.count)))
        left -= run.count
    plan = sent.marks
    marks = tuple(mark for mark in plan.marks if mark.chunk < chunks)
    rendered = replace(
        rendered,
        runs=tuple(runs),
        cacheable=min(rendered.cacheable, chunks),
        body_order=None,
        frozen=None,
        marks=marks,
        automatic=None,
        bills=Counts(rendered).billed(total) if total else rendered.bills,
    )
    return replace(sent, rendered=rendered, plan=Plan(marks=marks), usage=None)
