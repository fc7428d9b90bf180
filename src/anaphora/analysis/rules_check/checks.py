"""Evidence of one call about each figure: markers and lengths, changed parameters, and lifetimes.

A check takes a call and a value of its figure. It returns whether the call supports the value or
contradicts it, or None when the call is not conclusive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from anaphora import catalog, wire
from anaphora.catalog import CacheParam, Lifetime, LookbackUnit, Mechanism, Moment
from anaphora.values import TTL_SECONDS, Section, Ttl

from .billed_calls import FOLLOW_UP, BilledTraceCall

#: Reads that are not a multiple of this are exact; a multiple may be a coincidence.
_FINE = 64
#: A reply that is longer than its resent part by this factor contains hidden reasoning.
_HIDDEN = 1.5

#: Clocks and networks differ by less than this.
_MARGIN = 10.0


class Evidence(NamedTuple):
    holds: bool
    billed: str
    rule: str


CheckFunction: TypeAlias = Callable[[BilledTraceCall, Any], Evidence | None]


def bill(call: BilledTraceCall) -> str:
    billed = call.billed
    wrote = f", {billed.written:,} written" if billed.written else ""
    return f"{billed.cache_read:,} read{wrote}, {billed.input:,} uncached"


def bill_and_gap(call: BilledTraceCall) -> str:
    gap = call.gap
    if gap is None:
        return bill(call)
    most = "" if gap.most - gap.least < 1 else f" to {gap.most:,.0f}"
    return f"{bill(call)}, {gap.least:,.0f}{most} s after the call before"


def mechanism(call: BilledTraceCall, value: Mechanism) -> Evidence | None:
    """A call without a marker, if only markers cache; a billed write, if none do."""
    billed = call.billed
    if value == "implicit":
        if not billed.cached:
            return None
        return Evidence(not billed.written, bill(call), "the provider caches by itself")
    if value == "both" or call.markers != [] or not _reads_markers(call):
        return None
    if billed.total < 2 * call.rules.minimum_tokens.value:
        return None
    rule = "only marked prefixes are cached"
    return Evidence(not billed.cached, f"{bill(call)}, no marker", rule)


def _reads_markers(call: BilledTraceCall) -> bool:
    """Whether a request log shows all markers: on other wires than that of a provider who requires
    them, markers may be in a form that is not recognised."""
    if call.wire is None:
        return True
    return catalog.rules(wire.PROVIDERS[call.wire], "").mechanism.value == "explicit"


def ttls(call: BilledTraceCall, value: tuple[Ttl, ...]) -> Evidence | None:
    """The TTLs on a bill. Writes without a TTL are recorded as 5m, so 5m only supports."""
    named = [ttl for ttl in call.billed.by_ttl if ttl != "5m" or "5m" in value]
    if not named:
        return None
    holds = all(ttl in value for ttl in named)
    return Evidence(holds, f"written for {' and '.join(named)}", f"TTLs are {' or '.join(value)}")


def lookback_positions(call: BilledTraceCall, value: int) -> Evidence | None:
    """An entry at a known distance, however that is counted."""
    steps = _distances(call).values()
    if not steps:
        return None
    if (min(steps) <= value) != (max(steps) <= value):
        return None  # depends on how it is counted
    # Near a marker everything is found, whatever the figure.
    if max(steps) <= value // 2:
        return None
    return _looked_up(call, max(steps), value, "positions")


def lookback_unit(call: BilledTraceCall, value: LookbackUnit) -> Evidence | None:
    """An entry that is within reach by one way of counting, and beyond it by another."""
    figure = call.rules.lookback_positions
    distances = _distances(call)
    if figure is None or value not in distances:
        return None
    if (min(distances.values()) <= figure.value) == (max(distances.values()) <= figure.value):
        return None
    return _looked_up(call, distances[value], figure.value, value.replace("_", " "))


def _looked_up(call: BilledTraceCall, distance: int, reach: int, unit: str) -> Evidence | None:
    before, gap = call.before, call.gap
    if before is None or before.life is None or gap is None or gap.most > before.life:
        return None
    found = call.billed.cache_read >= before.left
    billed = f"{bill_and_gap(call)}; the last entry {distance} before the marker"
    rule = f"entries are found up to {reach} {unit} before a marker"
    return Evidence(found is (distance <= reach), billed, rule)


def _distances(call: BilledTraceCall) -> dict[LookbackUnit, int]:
    """From this call's markers to the last entry of the previous call, by every published way of
    counting; empty if markers are not recorded or the entry may not exist."""
    before, units = call.before, call.lookback_units
    if before is None or not call.same or not before.billed.cached or "breakpoints" in units:
        return {}
    if not call.markers or not before.markers:
        return {}
    entry = before.last_entry
    marker = call.marker_near(entry)
    distances = {unit: call.positions.steps(marker, entry, unit) for unit in units}
    return distances if all(distances.values()) else {}


def minimum_tokens(call: BilledTraceCall, value: int) -> Evidence | None:
    """A prefix near the minimum, from either side; a long one is not conclusive."""
    billed, rule = call.billed, f"no prefix shorter than {value:,} tokens is cached"
    if billed.cached:
        least = billed.cache_read or billed.written
        # Uncached tokens may precede a write, so that its prefix is as long as the prompt.
        most = billed.cache_read or billed.total
        if least >= 2 * value or least < value <= most:
            return None
        return Evidence(least >= value, bill(call), rule)
    if not call.marked:
        return None  # an implicit cache may miss for other reasons
    if billed.total < value:
        # Conclusive only if the client marks at all.
        return Evidence(True, bill(call), rule) if call.marks else None
    if not call.marks_end or billed.total < value + call.uncached_tail:
        return None
    return Evidence(False, bill(call), f"a marked prefix of {value:,} tokens or more is written")


def granule_tokens(call: BilledTraceCall, value: int) -> Evidence | None:
    read = call.billed.cache_read
    if not read:
        return None
    if value == 1:
        return Evidence(True, bill(call), "reads end anywhere") if read % _FINE else None
    # The offset is that of the value in use, not of a disputed one.
    offset = call.rules.offset if value == call.rules.granule_tokens.value else 0
    less = f", less {offset:,}" if offset else ""
    fits = (read + offset) % value == 0
    return Evidence(fits, bill(call), f"reads are multiples of {value:,}{less}")


def uncached_tail(call: BilledTraceCall, value: int) -> Evidence | None:
    """Only if the end is known to be marked, and the marker had an effect."""
    if not (call.marked and call.billed.cached and call.marks_end):
        return None
    rule = f"at most {value:,} tokens after the last marker stay uncached"
    return Evidence(call.billed.input <= value, bill(call), rule)


def output_cached(call: BilledTraceCall, value: bool) -> Evidence | None:
    """Only replies whose hidden reasoning is known, if that matters."""
    visible = call.rules.visible_output_cached
    if visible is not None and visible.value != value and not call.hidden_before:
        return None
    return _reply_cached(call, value)


def visible_output_cached(call: BilledTraceCall, value: bool) -> Evidence | None:
    return _reply_cached(call, value) if call.hidden_before == 0 else None


def _reply_cached(call: BilledTraceCall, value: bool) -> Evidence | None:
    """Whether a read extends past the previous prompt, into its reply. Conclusive when no other
    call has sent that reply before, it is long enough to tell from rounding, and all of it was sent
    back."""
    before = call.before
    if before is None or not (call.same and call.alone) or call.answer is None:
        return None
    output, prompt = before.billed.output, before.billed.total
    granule, read = call.rules.granule_tokens.value, call.billed.cache_read
    if not output or output < 2 * max(granule, 16):
        return None
    cached: bool
    if call.marked:
        # The next call reads exactly the entry, or also the reply.
        if before.billed.cached and read == before.billed.cached:
            cached = False
        elif abs(read - prompt - output) <= call.uncached_tail:
            cached = True
        else:
            return None
    elif read > prompt:
        if not call.whole or read > prompt + output + granule:
            return None  # unrecorded calls of the client may also send the reply
        cached = True
    elif read <= prompt - 2 * granule or read == 0 or not _sent_back(call, output):
        return None  # not even the prompt was found, or only a part of the reply was sent back
    else:
        cached = False
    billed = f"{bill_and_gap(call)}, which sent {prompt:,} and answered {output:,}"
    rule = "the reply is also cached" if value else "the reply is not cached"
    return Evidence(cached is value, billed, rule)


def _sent_back(call: BilledTraceCall, output: int) -> bool:
    """Whether all of a reply is in the next prompt: hidden reasoning is not."""
    assert call.before is not None
    assert call.answer is not None
    grown = call.billed.total - call.before.billed.total
    if not call.in_loop or grown < output:
        return False
    hidden = call.hidden_before
    return output <= _HIDDEN * call.answer + 16 if hidden is None else hidden == 0


def invalidates(param: CacheParam) -> CheckFunction:
    """Checks calls before which this parameter changed, and no other."""

    def check(call: BilledTraceCall, value: tuple[Section, ...]) -> Evidence | None:
        if not _changed(call, param):
            return None
        assert call.before is not None
        read, left = call.billed.cache_read, call.before.floor
        if read >= left:
            holds = "messages" not in value
        elif read and param == "model":
            return None  # other conversations with that model may have left as much
        elif read:
            holds = "messages" in value and len(value) < len(call.rules.hash_order.value)
        else:
            holds = "messages" in value
        invalidated = ", ".join(value) or "nothing"
        rule = f"a change invalidates {invalidated}"
        return Evidence(holds, f"{bill_and_gap(call)}, {param} changed", rule)

    return check


def _changed(call: BilledTraceCall, param: CacheParam) -> bool:
    """Whether only this parameter changed, by notes, while the entry was still alive."""
    before, gap = call.before, call.gap
    if before is None or gap is None or before.life is None or not before.left:
        return False
    names = before.cache_params.keys() | call.cache_params.keys()
    changed = [
        name for name in names if before.cache_params.get(name) != call.cache_params.get(name)
    ]
    if changed != [param] or not call.appended or call.billed.total < before.billed.total:
        return False
    if param == "thinking" and not call.noted:
        return False
    return gap.most <= before.life


def lifetime(call: BilledTraceCall, value: Lifetime) -> Evidence | None:
    """Whether an entry is found after its TTL has certainly expired."""
    before = call.before
    if before is None or before.life is None or call.untouched is None or not before.left:
        return None
    if call.untouched <= before.life + _MARGIN:
        return None
    found = call.billed.cache_read >= before.floor
    if not found and value == "at_least":
        return None  # the entry may or may not have expired
    promise = {"exact": "ends after", "at_most": "ends within", "at_least": "lasts at least"}
    rule = f"an entry {promise[value]} {before.ttl}"
    return Evidence(not found or value == "at_least", bill_and_gap(call), rule)


def ttl_from(call: BilledTraceCall, value: Moment) -> Evidence | None:
    """An entry that is found after the TTL has expired from the start of the request before, but
    not from the end of its response. A missing one may have expired either way."""
    before, gap, rest = call.before, call.gap, call.rest
    exact = call.rules.lifetime is not None and call.rules.lifetime.value == "exact"
    if before is None or gap is None or rest is None or not exact or before.life is None:
        return None
    if gap.least <= before.life + 1.0 or rest > before.life or not call.expected:
        return None
    if call.billed.cache_read < before.floor:
        return None
    rule = f"the lifetime counts from the {value.replace('_', ' ')}"
    return Evidence(value != "request_start", bill_and_gap(call), rule)


def default_ttl(call: BilledTraceCall, value: Ttl) -> Evidence | None:
    """Whether an entry is found later than a follow-up, and before the TTL expires. A lifetime that
    is a maximum promises nothing."""
    before, gap, promise = call.before, call.gap, call.rules.lifetime
    if before is None or gap is None or promise is None or promise.value == "at_most":
        return None
    default = call.rules.default_ttl
    if before.life is None or default is None or before.ttl != default.value:
        return None
    life = float(TTL_SECONDS[value])
    late = gap.least > min(life / 2, FOLLOW_UP) and gap.most <= life - _MARGIN
    read = call.billed.cache_read
    if not late or not call.expected or 0 < read < before.floor:
        return None
    return Evidence(read > 0, bill_and_gap(call), f"an entry lasts {value}")


def missed(call: BilledTraceCall, value: float | None) -> Evidence | None:
    """Follow-ups that find nothing of a cached prefix."""
    if not call.follows:
        return None
    rule = "cached prefixes are found" if value is None else f"{value:.0%} are missed"
    return Evidence(call.billed.cache_read > 0, bill_and_gap(call), rule)


def cut_short(call: BilledTraceCall, value: float | None) -> Evidence | None:
    """Follow-ups that find only a part of a cached prefix."""
    read, before = call.billed.cache_read, call.before
    if before is None or not read or not call.follows:
        return None
    rule = "all of a prefix is found" if value is None else f"{value:.0%} find a part"
    return Evidence(read >= before.floor, bill_and_gap(call), rule)


def late_writes(call: BilledTraceCall, value: float | None) -> Evidence | None:
    """Follow-ups within the delay that find an older entry than the last write."""
    before, gap, delay = call.before, call.gap, call.rules.visibility_delay.value
    if before is None or gap is None or not before.billed.written or gap.most > delay:
        return None
    read = call.billed.cache_read
    if not call.expected or (read != before.left and read not in before.left_earlier):
        return None
    rule = f"within {delay:g} s {value or 0:.0%} of the writes are not visible yet"
    return Evidence(read == before.left, bill_and_gap(call), rule)


def reads_refresh(call: BilledTraceCall, value: bool) -> Evidence | None:
    """An entry that was read since it was written, looked up when the TTL has expired from its
    write but not from its last read."""
    before = call.before
    if before is None or not call.marked or before.billed.written or not before.billed.cached:
        return None
    gap, life, began = call.gap, before.life, call.began
    if before.written is None or gap is None or life is None or began is None:
        return None
    if began.least - before.written.most <= life + _MARGIN or gap.most > life - _MARGIN:
        return None
    if not call.expected:
        return None
    found = call.billed.cache_read >= before.left
    rule = "reading renews an entry" if value else "reading does not renew an entry"
    return Evidence(found is value, bill_and_gap(call), rule)


def visibility_delay(call: BilledTraceCall, value: float) -> Evidence | None:
    """Whether the last write or still an older entry is read after the delay has certainly
    passed."""
    before, rest, gap = call.before, call.rest, call.gap
    if before is None or rest is None or not call.marked or not before.billed.written:
        return None
    if before.life is None or gap is None or gap.most > before.life - _MARGIN:
        return None
    if rest <= value or not call.expected:
        return None
    read = call.billed.cache_read
    if read != before.left and read not in before.left_earlier:
        return None
    rule = f"{value:g} s after a reply its prompt can be read"
    billed = f"{bill_and_gap(call)} ({rest:,.1f} s after its end)"
    return Evidence(read == before.left, billed, rule)
