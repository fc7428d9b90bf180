"""How long an entry can be read, from when on, and how often it is not found."""

from __future__ import annotations

from anaphora.catalog import Lifetime
from anaphora.values import TTL_SECONDS, Ttl

from .evidence import Evidence, after
from .marks import reachable
from .seen import Seen

#: Clocks and networks differ by less than this.
_MARGIN = 10.0

#: A follow-up comes within so many seconds. What misses then is not a matter of time.
_FOLLOWS = 300.0


def lifetime(call: Seen, value: Lifetime) -> Evidence | None:
    """What is found, or not, when its time is certainly over."""
    before = call.before
    if before is None or before.life is None or call.untouched is None or not before.left:
        return None
    if call.untouched <= before.life + _MARGIN:
        return None
    found = call.billed.cache_read >= before.floor
    if not found and value == "at_least":
        return None  # it may be gone by then, or not
    holds = not found or value == "at_least"
    promise = {"exact": "ends after", "at_most": "ends within", "at_least": "lasts at least"}
    return Evidence(holds, after(call), f"an entry {promise[value]} {before.ttl}")


def default_ttl(call: Seen, value: Ttl) -> Evidence | None:
    """What is found later than a follow-up comes, and before the time is over. Where the lifetime
    is a maximum, nothing is promised."""
    before, gap, promise = call.before, call.gap, call.rules.lifetime
    if before is None or gap is None or promise is None or promise.value == "at_most":
        return None
    usual = call.rules.default_ttl
    if before.life is None or usual is None or before.ttl != usual.value:
        return None
    life = float(TTL_SECONDS[value])
    if not (_expected(call) and gap.least > min(life / 2, _FOLLOWS) and gap.most <= life - _MARGIN):
        return None
    read = call.billed.cache_read
    if 0 < read < before.floor:
        return None
    return Evidence(read > 0, after(call), f"an entry lasts {value}")


def missed(call: Seen, value: float | None) -> Evidence | None:
    """Follow-ups that find nothing of a prefix that is there."""
    if not _follows(call):
        return None
    says = "prefixes that are there are found" if value is None else f"{value:.0%} are missed"
    return Evidence(call.billed.cache_read > 0, after(call), says)


def cut_short(call: Seen, value: float | None) -> Evidence | None:
    """Follow-ups that find something, and less than is there."""
    read, before = call.billed.cache_read, call.before
    if before is None or not read or not _follows(call):
        return None
    says = "all that is there is found" if value is None else f"{value:.0%} find a part"
    return Evidence(read >= before.floor, after(call), says)


def reads_refresh(call: Seen, value: bool) -> Evidence | None:
    """An entry that was read since it was written, asked for when the time from its write is over,
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
    says = "reading renews an entry" if value else "reading does not renew an entry"
    return Evidence(found is value, after(call), says)


def visibility_delay(call: Seen, value: float) -> Evidence | None:
    """What is read when the delay is certainly over: the last write, or still an older entry."""
    before, rest = call.before, call.rest
    if before is None or rest is None or not call.marked or not before.billed.written:
        return None
    if rest <= value or not (_expected(call) and _within(call)):
        return None
    read = call.billed.cache_read
    if read != before.left and read not in _older(before):
        return None
    says = f"{value:g} s after an answer its prompt can be read"
    return Evidence(read == before.left, f"{after(call)} ({rest:,.1f} s after its end)", says)


def _expected(call: Seen) -> bool:
    """Whether what the call before left is this prompt's beginning, and within its reach."""
    before = call.before
    if before is None or not call.same or not reachable(call):
        return False
    return before.left >= max(1, call.rules.minimum_tokens.value + call.rules.granule_tokens.value)


def _within(call: Seen) -> bool:
    gap, life = call.gap, call.before.life if call.before is not None else None
    return gap is not None and life is not None and gap.most <= life - _MARGIN


def _follows(call: Seen) -> bool:
    """A call soon after, but not so soon that the write may be invisible, to which all is there."""
    before, gap = call.before, call.gap
    if before is None or gap is None or not _expected(call):
        return False
    life = _FOLLOWS if before.life is None else before.life
    delay = call.rules.visibility_delay.value
    rest = call.rest
    if delay and (rest is None or rest <= delay):
        return False
    return gap.most <= min(life / 2, _FOLLOWS)


def _older(call: Seen) -> set[int]:
    """What the calls before this one have left."""
    left: set[int] = set()
    one = call.before
    while one is not None and len(left) < 50:
        left.add(one.billed.cached)
        one = one.before
    return left - {0}
