"""Markers: whether any are needed, how far before them an entry is found, how long it is kept."""

from __future__ import annotations

from anaphora.catalog import LookbackUnit, Mechanism
from anaphora.values import Ttl

from .evidence import Evidence, after, bill
from .seen import Seen


def mechanism(call: Seen, value: Mechanism) -> Evidence | None:
    """A call without a marker where only markers cache; a billed write where none do."""
    told = call.billed
    if value == "implicit":
        if not told.cached:
            return None
        return Evidence(not told.written, bill(call), "caching is the provider's own doing")
    if value == "both" or call.spots.marked(call.sent) != []:
        return None
    if call.wire not in (None, "anthropic"):
        return None  # borrowed words may hold markers that nobody has read as such
    if told.total < 2 * call.rules.minimum_tokens.value:
        return None
    return Evidence(not told.cached, f"{bill(call)}, no marker", "only what is marked is cached")


def ttls(call: Seen, value: tuple[Ttl, ...]) -> Evidence | None:
    """The lifetimes that a bill names. Writes that no lifetime is told of are on record as those of
    five minutes, so these speak only for themselves."""
    told = call.billed
    named: list[Ttl] = []
    if told.cache_write_12h:
        named.append("12h")
    if told.cache_write_1h:
        named.append("1h")
    if told.cache_write_30m:
        named.append("30m")
    if told.cache_write_5m and "5m" in value:
        named.append("5m")
    if not named:
        return None
    wrote = f"written for {' and '.join(named)}"
    holds = all(ttl in value for ttl in named)
    return Evidence(holds, wrote, f"entries last {' or '.join(value)}")


def lookback_positions(call: Seen, value: int) -> Evidence | None:
    """An entry at a known distance, whichever way that is counted."""
    readings = _readings(call)
    distances = {_distance(call, unit) for unit in readings}
    if None in distances or not distances:
        return None
    steps = [distance for distance in distances if distance is not None]
    if (min(steps) <= value) != (max(steps) <= value):
        return None  # a matter of how it is counted
    # Near a marker everything is found, whatever the figure.
    if max(steps) <= value // 2:
        return None
    return _looked(call, max(steps), value, "positions")


def lookback_unit(call: Seen, value: LookbackUnit) -> Evidence | None:
    """An entry that is within reach by one way of counting, and beyond it by another."""
    figure = call.rules.lookback_positions
    distances = {unit: _distance(call, unit) for unit in _readings(call)}
    if figure is None or value not in distances or None in distances.values():
        return None
    steps = [distance for distance in distances.values() if distance is not None]
    if (min(steps) <= figure.value) == (max(steps) <= figure.value):
        return None
    own = distances[value]
    return None if own is None else _looked(call, own, figure.value, value.replace("_", " "))


def reachable(call: Seen) -> bool:
    """Whether the end of what the call before left is certainly looked at, by every published way
    of counting. Where no markers are recorded, both calls are taken to have marked their end."""
    if not call.marked:
        return True
    before, figure = call.before, call.rules.lookback_positions
    if before is None or not before.billed.cached:
        return False
    if call.spots.marked(call.sent) == [] or before.spots.marked(before.sent) == []:
        return False
    reach = 1 if figure is None else min(figure.published)
    entry = _entry(before)
    if "breakpoints" in _readings(call):
        return entry in (call.spots.marked(call.sent) or ())
    distance = call.spots.steps(_nearest(call, entry), entry, "blocks")
    return 0 < distance <= reach


def _looked(call: Seen, distance: int, reach: int, unit: str) -> Evidence | None:
    before, gap = call.before, call.gap
    if before is None or before.life is None or gap is None or gap.most > before.life:
        return None
    found = call.billed.cache_read >= before.left
    says = f"entries are found up to {reach} {unit} before a marker"
    billed = f"{after(call)}; the last entry {distance} before the marker"
    return Evidence(found is (distance <= reach), billed, says)


def _readings(call: Seen) -> tuple[LookbackUnit, ...]:
    figure = call.rules.lookback_unit
    return () if figure is None else figure.published


def _distance(call: Seen, unit: LookbackUnit) -> int | None:
    """From this call's markers to the last entry of the call before; None where they are not
    recorded, or the entry may not be there."""
    before = call.before
    if before is None or not call.same or not before.billed.cached or unit == "breakpoints":
        return None
    if not call.spots.marked(call.sent) or not before.spots.marked(before.sent):
        return None
    entry = _entry(before)
    distance = call.spots.steps(_nearest(call, entry), entry, unit)
    return distance or None


def _entry(call: Seen) -> int:
    marked = call.spots.marked(call.sent)
    return marked[-1] if marked else call.spots.end(call.sent)


def _nearest(call: Seen, entry: int) -> int:
    """The marker at or behind an entry that is nearest to it; the last where all stand before."""
    marked = call.spots.marked(call.sent) or [call.spots.end(call.sent)]
    return next((position for position in marked if position >= entry), marked[-1])
