"""Causes and the figures of the catalog that they rest on: changed parameters, and whether a source
confirms a figure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from anaphora.cache.sent_call import SentCall, host_changed
from anaphora.catalog import CacheRules
from anaphora.values import Section

from .diagnosis import CauseKind
from .values import Cause

#: Parameters whose values are not private. Of the others only the name is shown.
_SHOWN = frozenset("model tool_choice effort thinking verbosity service_tier speed".split())
_MOST_SHOWN = 60

#: Parameters have a figure each, which their causes name.
_FIGURES: dict[CauseKind, tuple[str, ...]] = {
    "above_maximum": ("maximum_tokens",),
    "below_minimum": ("minimum_tokens",),
    "expired": ("ttls", "default_ttl"),
    "images_changed": ("invalidates.images",),
    "lookback_exceeded": ("lookback_positions", "lookback_unit"),
    "marker_on_trailing_system": ("trailing_system_reused",),
    "no_marker": ("mechanism", "automatic_breakpoint"),
    "not_yet_visible": ("readable_from", "visibility_delay"),
}


def unverified(rules: CacheRules, *names: str) -> Iterator[str]:
    """Those of the named figures that no source confirms."""
    for name in names:
        field, _, key = name.partition(".")
        figure = getattr(rules, field)
        figure = figure.get(key) if key else figure
        if figure is not None and not figure.verified:
            yield name


def with_unverified(causes: tuple[Cause, ...], rules: CacheRules) -> tuple[Cause, ...]:
    """The causes with the unverified figures that each rests on."""
    found = []
    for cause in causes:
        names = tuple(unverified(rules, *_FIGURES.get(cause.kind, ())))
        found.append(replace(cause, unverified=names) if names else cause)
    return tuple(found)


def changed_parameters(
    earlier: SentCall, later: SentCall, rules: CacheRules
) -> list[tuple[Cause, Section]]:
    """Changed parameters that the cache depends on, and the first section each invalidates."""
    before, after = earlier.rendered.envelope.cache_params, later.rendered.envelope.cache_params
    order, causes = rules.hash_order.value, list[tuple[Cause, Section]]()
    if rules.unmarked_caching is not None and earlier.is_marked != later.is_marked:
        was_marked, is_marked = ("had", "none") if earlier.is_marked else ("had no", "some")
        text = f"the previous call {was_marked} cache markers and this one has {is_marked}"
        causes.append((Cause("parameter_changed", f"{text}: their caches are separate"), order[0]))
    if host_changed(earlier, later):
        causes.append((Cause("other_route", _other_host(earlier, later)), order[0]))
    if before == after and earlier.route == later.route:
        return causes
    was, now = dict(before), dict(after)
    for name in sorted({**was, **now}, key=lambda name: name != "model"):
        if was.get(name) == now.get(name):
            continue
        voided = rules.voided_by(name)  # type: ignore[arg-type]
        if name == "model":
            voided = voided or order
        if voided:
            first = min(voided, key=order.index)
            cause = _parameter(name, was.get(name), now.get(name))
            doubt = tuple(unverified(rules, f"invalidates.{name}"))
            causes.append((replace(cause, unverified=doubt), first))
    if earlier.route != later.route:
        text = "the call went to another host, account or workspace"
        causes.append((Cause("other_route", text), order[0]))
    return causes


def _other_host(earlier: SentCall, later: SentCall) -> str:
    text = f"the router sent the call to {later.host}, and the prefix was cached at {earlier.host}"
    return f"{text}, which it was pinned to" if later.marks.host == earlier.host else text


def _parameter(name: str, was: bytes | None, now: bytes | None) -> Cause:
    if name == "cache_key":
        return Cause("other_key", "the cache key changed")
    values = f" from {_shown(name, was)} to {_shown(name, now)}" if name in _SHOWN else ""
    if name == "thinking":
        return Cause("thinking_changed", f"the thinking setting changed{values}")
    if name == "model":
        return Cause("model_changed", f"the model changed{values}")
    return Cause("parameter_changed", f"the parameter {name} changed{values}")


def _shown(name: str, value: bytes | None) -> str:
    if value is None:
        return "none" if name == "thinking" else "unset"
    text = value.decode(errors="replace").strip('"')
    if text.isdecimal() and len(text) <= _MOST_SHOWN:
        return f"{int(text):,}"
    if name == "tool_choice" and not text.isidentifier():
        return "one" if len(text) > _MOST_SHOWN else text
    return text[:_MOST_SHOWN]
