"""Why a prefix that is still the same was not read: parameters, the clock, the rules."""

from __future__ import annotations

from anaphora.catalog import CacheRules, LookbackUnit, Profile
from anaphora.rendered import Kind, Plan, Rendered
from anaphora.values import TTL_SECONDS, Section, Ttl

from .comparing import shows_image
from .values import Cause, Sent

#: Parameters whose values say nothing about anybody. Of the others only the name is told.
_SHOWN = frozenset(("model", "tool_choice", "effort", "verbosity", "service_tier", "speed"))
_LONGEST = 60
_RUNS = (Kind.TOOL_CALL, Kind.TOOL_RESULT)


def parameters(earlier: Sent, later: Sent, rules: CacheRules) -> list[tuple[Cause, Section]]:
    """Changed parameters that the cache depends on, with the first section that each voids."""
    was, now = (
        dict(earlier.rendered.envelope.cache_params),
        dict(later.rendered.envelope.cache_params),
    )
    found: list[tuple[Cause, Section]] = []
    for name in dict.fromkeys([*was, *now]):
        if was.get(name) == now.get(name):
            continue
        voided = rules.voided_by(name)  # type: ignore[arg-type]
        if name == "model":
            voided = voided or rules.hash_order.value
        if not voided:
            continue
        first = min(voided, key=rules.hash_order.value.index)
        found.append((_parameter(name, was.get(name), now.get(name)), first))
    if earlier.route != later.route:
        said = "it went another way than the call before: another host, account or workspace"
        found.append((Cause(kind="other_route", said=said), rules.hash_order.value[0]))
    return sorted(found, key=lambda pair: rules.hash_order.value.index(pair[1]))


def _parameter(name: str, was: bytes | None, now: bytes | None) -> Cause:
    if name == "cache_key":
        return Cause(kind="other_key", said="it has another cache key than the call before")
    if name == "model":
        said = f"the model changed from {_shown(name, was)} to {_shown(name, now)}"
        return Cause(kind="model_changed", said=said)
    values = f" from {_shown(name, was)} to {_shown(name, now)}" if name in _SHOWN else ""
    return Cause(kind="parameter_changed", said=f"the parameter {name} changed{values}")


def _shown(name: str, value: bytes | None) -> str:
    if value is None:
        return "nothing"
    text = value.decode(errors="replace").strip('"')
    if name == "tool_choice" and not text.isidentifier():
        return "one" if len(text) > _LONGEST else text
    return text[:_LONGEST]


def images(earlier: Rendered, later: Rendered, rules: CacheRules) -> Cause | None:
    """Where the first image, or the last that goes, voids all messages."""
    if "messages" not in rules.voided_by("images"):
        return None
    was, now = shows_image(earlier), shows_image(later)
    if was == now:
        return None
    said = "the first image was added" if now else "the last image is gone"
    return Cause(kind="images_changed", said=f"{said}, which voids the cached messages")


# ── The clock ────────────────────────────────────────────────────────────────────────────────────


def clock(earlier: Sent, later: Sent, rules: CacheRules, read: int) -> Cause | None:
    """The time that has passed: too much, or too little. A write that is not visible yet takes
    nothing from what was there before it."""
    if earlier.at is None or later.at is None:
        return None
    gap = later.at - earlier.at
    ttl = longest(earlier.marks, rules)
    if ttl is not None and gap > TTL_SECONDS[ttl]:
        ago = duration(gap - TTL_SECONDS[ttl])
        said = f"the {ttl} it was kept for ran out {ago} ago (the call before was {duration(gap)}"
        return Cause(kind="expired", said=f"{said} earlier)")
    readable = earlier.at
    if rules.readable_from.value != "request_start" and earlier.began is not None:
        readable = earlier.began
    older = 0 if earlier.usage is None else earlier.usage.read or 0
    if later.at <= readable + rules.visibility_delay.value and gap >= 0 and read >= older:
        said = f"the call before was only {gap:.1f} s earlier: what it wrote was not visible yet"
        return Cause(kind="not_yet_visible", said=said)
    return None


def longest(plan: Plan, rules: CacheRules) -> Ttl | None:
    """How long the longest-lived of a call's prefixes lives."""
    ttls = [mark.ttl for mark in plan.marks]
    if plan.automatic is not None:
        ttls.append(plan.automatic)
    if not ttls and rules.mechanism.value != "explicit" and rules.default_ttl is not None:
        ttls.append(rules.default_ttl.value)
    return max(ttls, key=TTL_SECONDS.__getitem__, default=None)


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


# ── The rules ────────────────────────────────────────────────────────────────────────────────────


def explicit(rules: CacheRules) -> bool:
    """Nothing is cached that no marker asks for."""
    return rules.mechanism.value == "explicit" and rules.slots.value > 0


def unmarked(sent: Sent, rules: CacheRules) -> Cause | None:
    if not explicit(rules) or sent.marks.marks or sent.marks.automatic is not None:
        return None
    said = "the call before carried no marker, and nothing is cached without one"
    return Cause(kind="no_marker", said=said)


def too_short(tokens: int, rules: CacheRules) -> Cause | None:
    enough = rules.minimum_tokens.value
    if tokens >= enough:
        return None
    said = f"the prefix has about {tokens:,} tokens, and fewer than {enough:,} are not cached"
    return Cause(kind="below_minimum", said=said)


def placed(sent: Sent, rules: CacheRules) -> tuple[int, ...]:
    """The chunks behind which a call's prefixes end, the one that the provider places by itself
    included where it is known where."""
    plan, rendered = sent.marks, sent.rendered
    chunks = {mark.chunk for mark in plan.marks}
    if plan.automatic is not None and rules.automatic_breakpoint.value == "last_block":
        last = len(rendered) - 1
        while last >= 0 and not _markable(rendered, last):
            last -= 1
        chunks.add(last)
    return tuple(sorted(chunks - {-1}))


def _markable(rendered: Rendered, chunk: int) -> bool:
    run, at = rendered.locate(chunk)
    return run.log.splices[at] >= 0


def lookback(earlier: Sent, later: Sent, rules: CacheRules) -> Cause | None:
    """The last write is farther from every marker than the provider looks back."""
    figure, unit = rules.lookback_positions, rules.lookback_unit
    marks, next_marks = placed(earlier, rules), placed(later, rules)
    if figure is None or unit is None or not marks or not next_marks:
        return None
    written = marks[-1]
    if unit.value == "breakpoints":
        if later.marks.automatic is not None or written in next_marks:
            return None  # what the provider looks up by itself, nobody can say
        said = "the request has no breakpoint where the call before wrote, so it is not looked up"
        return Cause(kind="lookback_exceeded", said=said)
    behind = [chunk for chunk in next_marks if chunk >= written]
    if not behind:
        said = "no marker stands behind what the call before wrote"
        return Cause(kind="lookback_exceeded", said=said)
    counts = [_steps(later.rendered, behind[0], written, one) for one in unit.published]
    far = [count for count in counts if count > figure.value]
    if not far:
        return None
    said = f"the last write is {far[0]} blocks before the next marker; {figure.value} are looked at"
    said += " (by one of the published ways of counting)" if len(far) < len(counts) else ""
    return Cause(kind="lookback_exceeded", said=said)


def _steps(rendered: Rendered, marker: int, written: int, unit: LookbackUnit) -> int:
    """Positions from a marker back to the write, both counted."""
    steps, last = 0, None
    for position in range(marker, written - 1, -1):
        run, at = rendered.locate(position)
        kind = run.log.kinds[at]
        if unit != "tool_runs" or kind not in _RUNS or kind is not last:
            steps += 1
        last = kind
    return steps


def thinking(earlier: Rendered, later: Rendered, profile: Profile | None) -> Cause | None:
    """Reasoning since the user last spoke, which the provider drops when they speak again."""
    if profile is None or not profile.strips_thinking.value or not profile.strips_thinking.verified:
        return None
    if not any(_plain_user(later, at) for at in range(len(earlier), len(later))):
        return None
    for at in range(len(earlier) - 1, -1, -1):
        run, place = earlier.locate(at)
        if run.log.kinds[place] is Kind.THINKING:
            said = "the model drops earlier thinking at a user's turn, which voids the messages"
            return Cause(kind="thinking_dropped", said=said)
        if _plain_user(earlier, at):
            return None
    return None


def _plain_user(rendered: Rendered, chunk: int) -> bool:
    run, at = rendered.locate(chunk)
    if run.section != "messages" or run.log.kinds[at] is Kind.TOOL_RESULT:
        return False
    return run.log.roles[run.log.wire_message_of(at)] == "user"
