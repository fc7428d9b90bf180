"""What one call says about the figures on lifetimes: how long an entry can be read, from when on,
and how often it is not found."""

from __future__ import annotations

from anaphora.catalog import Lifetime
from anaphora.values import TTL_SECONDS, Ttl

from .billed_calls import BilledTraceCall
from .checks import Evidence, bill_and_gap, reachable

#: Clocks and networks differ by less than this.
_MARGIN = 10.0
#: A follow-up comes within so many seconds. A miss then has other reasons than time.
_FOLLOW_UP = 300.0


def lifetime(call: BilledTraceCall, value: Lifetime) -> Evidence | None:
    """What is found, or not, when its TTL is certainly over."""
    before = call.before
    if before is None or before.life is None or call.untouched is None or not before.left:
        return None
    if call.untouched <= before.life + _MARGIN:
        return None
    found = call.billed.cache_read >= before.floor
    if not found and value == "at_least":
        return None  # it may be gone by then, or not
    promise = {"exact": "ends after", "at_most": "ends within", "at_least": "lasts at least"}
    rule = f"an entry {promise[value]} {before.ttl}"
    return Evidence(not found or value == "at_least", bill_and_gap(call), rule)


def default_ttl(call: BilledTraceCall, value: Ttl) -> Evidence | None:
    """What is found later than a follow-up, and before the TTL is over. Where the lifetime is a
    maximum, nothing is promised."""
    before, gap, promise = call.before, call.gap, call.rules.lifetime
    if before is None or gap is None or promise is None or promise.value == "at_most":
        return None
    default = call.rules.default_ttl
    if before.life is None or default is None or before.ttl != default.value:
        return None
    life = float(TTL_SECONDS[value])
    late = gap.least > min(life / 2, _FOLLOW_UP) and gap.most <= life - _MARGIN
    read = call.billed.cache_read
    if not late or not _expected(call) or 0 < read < before.floor:
        return None
    return Evidence(read > 0, bill_and_gap(call), f"an entry lasts {value}")


def missed(call: BilledTraceCall, value: float | None) -> Evidence | None:
    """Follow-ups that find nothing of a cached prefix."""
    if not _follows(call):
        return None
    rule = "cached prefixes are found" if value is None else f"{value:.0%} are missed"
    return Evidence(call.billed.cache_read > 0, bill_and_gap(call), rule)


def cut_short(call: BilledTraceCall, value: float | None) -> Evidence | None:
    """Follow-ups that find only a part of a cached prefix."""
    read, before = call.billed.cache_read, call.before
    if before is None or not read or not _follows(call):
        return None
    rule = "all of a prefix is found" if value is None else f"{value:.0%} find a part"
    return Evidence(read >= before.floor, bill_and_gap(call), rule)


def reads_refresh(call: BilledTraceCall, value: bool) -> Evidence | None:
    """An entry that was read since it was written, looked up when the TTL from its write is over
    and that from its last read is not."""
    before = call.before
    if before is None or not call.marked or before.billed.written or not before.billed.cached:
        return None
    gap, life, began = call.gap, before.life, call.began
    if before.written is None or gap is None or life is None or began is None:
        return None
    if began.least - before.written.most <= life + _MARGIN or gap.most > life - _MARGIN:
        return None
    if not _expected(call):
        return None
    found = call.billed.cache_read >= before.left
    rule = "reading renews an entry" if value else "reading does not renew an entry"
    return Evidence(found is value, bill_and_gap(call), rule)


def visibility_delay(call: BilledTraceCall, value: float) -> Evidence | None:
    """What is read when the delay is certainly over: the last write, or still an older entry."""
    before, rest, gap = call.before, call.rest, call.gap
    if before is None or rest is None or not call.marked or not before.billed.written:
        return None
    if before.life is None or gap is None or gap.most > before.life - _MARGIN:
        return None
    if rest <= value or not _expected(call):
        return None
    read = call.billed.cache_read
    if read != before.left and read not in _left_earlier(before):
        return None
    rule = f"{value:g} s after a reply its prompt can be read"
    billed = f"{bill_and_gap(call)} ({rest:,.1f} s after its end)"
    return Evidence(read == before.left, billed, rule)


def _expected(call: BilledTraceCall) -> bool:
    """Whether what the previous call left is the beginning of this prompt, and within reach."""
    before = call.before
    if before is None or not call.same or not reachable(call):
        return False
    return before.left >= max(1, call.rules.minimum_tokens.value + call.rules.granule_tokens.value)


def _follows(call: BilledTraceCall) -> bool:
    """A call soon after, but not so soon that the write may be invisible, with all of it cached."""
    before, gap = call.before, call.gap
    if before is None or gap is None or not _expected(call):
        return False
    life = _FOLLOW_UP if before.life is None else before.life
    delay, rest = call.rules.visibility_delay.value, call.rest
    if delay and (rest is None or rest <= delay):
        return False
    return gap.most <= min(life / 2, _FOLLOW_UP)


def _left_earlier(call: BilledTraceCall) -> set[int]:
    left: set[int] = set()
    earlier = call.before
    while earlier is not None and len(left) < 50:
        left.add(earlier.billed.cached)
        earlier = earlier.before
    return left - {0}
