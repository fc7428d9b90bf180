"""Why less was read than had been cached: changed bytes and parameters, the clock, the rules.

    why_not_read(earlier, later, rules, change, profile, read, expected)

The provider is blamed only if bytes, clock and rules prove that the read was possible; if something
is not recorded, the cause is unknown, and the text states what to record.
"""

from __future__ import annotations

from functools import partial

from anaphora.cache.history import history_change
from anaphora.cache.prefix_difference import has_image
from anaphora.cache.sent_call import (
    SentCall,
    cached_chunks,
    expiry,
    is_alive,
    last_ttl,
    moment_of,
    ttl_seconds,
    used_at,
    used_at_latest,
)
from anaphora.cache.simulator import RenderedPrompt
from anaphora.cache.simulator.outcome import Prediction
from anaphora.cache.simulator.slots import SIMILARITY
from anaphora.cache.simulator.view import automatic_position, lookback_steps
from anaphora.catalog import CacheRules, Profile
from anaphora.rendered import Kind, Rendered
from anaphora.tokens import Bills, Counts
from anaphora.wording import counted, format_duration

from .figures import changed_parameters
from .values import VOLATILE, Cause, Change

#: The error of a token estimate if the model is unknown.
TOKEN_ERROR = 0.25

#: A skill is sent with a thinking setting of its own.
_SKILL = ["skill_loaded", "thinking_changed"]

#: Texts of unknown causes: what to record to find out.
BODIES_UNKNOWN = (
    "the bodies of the requests are not recorded, so the change is not known:"
    " `anaphora watch -- COMMAND` compares them"
)
TIMES_UNKNOWN = (
    "the times of the calls are not recorded, so the entry may have expired: log the time of each"
    " call"
)
BEGAN_UNKNOWN = (
    "the entry may have expired: its lifetime counts from the start of the response, which is not"
    " recorded"
)
READABLE_UNKNOWN = (
    "the previous call had not ended yet: its write is readable from the start of its response on,"
    " which is not recorded"
)


def why_not_read(
    earlier: SentCall,
    later: SentCall,
    rules: CacheRules,
    change: Change | None,
    profile: Profile | None,
    read: int,
    expected: Prediction,
) -> tuple[Cause, ...]:
    """All causes, the most important first. `read` is what was read."""
    local = local_causes(earlier, later, rules, change)
    if not expected.left:  # nothing was cached that could change, expire or be lost
        nothing = not_cached(earlier, later, rules, profile)
        # The planner left the marker out, since the prompt changes from call to call.
        left_out = earlier.marks.changing and nothing.kind == "no_marker"
        return (*local, nothing) if left_out else (nothing, *local)
    trailing = _trailing_system(earlier, rules, change)
    local = [trailing, *local] if trailing is not None else local
    clock = _clock(earlier, later, rules, read, changed=change is not None)
    event = None if later.event is None else Cause(*later.event)
    if event and [event.kind, *(one.kind for one in local)] == _SKILL:
        local.insert(0, event)
    causes = [recorded_cause(earlier, later), *local]
    expired = clock is not None and clock.kind == "expired"
    causes.insert(0 if expired else len(causes), clock)
    causes.append(no_marker_cause(later, rules, "this call", "reads"))
    if change is None:
        causes.append(lookback_cause(earlier, later, rules))
        causes.append(_thinking(earlier, later, rules, profile, read, expected))
    known = tuple(cause for cause in causes if cause is not None)
    return known or (remaining(earlier, later, rules, expected),)


def recorded_cause(earlier: SentCall | None, later: SentCall) -> Cause | None:
    """The cause that a recording states for a new history."""
    match later.began_by:
        case None:
            return None
        case "compaction":
            return Cause("compaction", "a summary replaced the history (compaction)")
        case "edit":
            return Cause("history_edited", "an earlier message was changed or removed")
        case "resume" | "fork":
            done = "resumed" if later.began_by == "resume" else "forked"
            text = f"the session was {done}"
            if earlier is not None and earlier.at is not None and later.at is not None:
                text += f" {format_duration(later.at - earlier.at)} after its last call"
            return Cause("resumed", text)


def local_causes(
    earlier: SentCall, later: SentCall, rules: CacheRules, change: Change | None
) -> list[Cause]:
    """Changed parameters and changed bytes, in the order in which they are hashed; then images."""
    found = changed_parameters(earlier, later, rules)
    if change is not None:
        found.append((_changed(earlier, later, rules, change), change.section))
    found.sort(key=lambda pair: rules.hash_order.value.index(pair[1]))
    images = _images(earlier.rendered, later.rendered, rules)
    return [cause for cause, _ in found] + ([] if images is None else [images])


def _changed(earlier: SentCall, later: SentCall, rules: CacheRules, change: Change) -> Cause:
    marks = _marker_chunks(earlier, rules)
    only_here = bool(marks) and marks[0] == change.chunk == marks[-1]
    if only_here and (change.kind in VOLATILE or change.chunk + 1 == len(earlier.rendered)):
        return Cause("marker_on_volatile", f"the marker is on content that changes: {change.place}")
    if change.section != "messages":
        return Cause(
            "tools_changed" if change.section == "tools" else "system_changed", change.place
        )
    compacted = later.compacted or history_change(earlier, later.rendered, change.chunk)
    if compacted in (True, "compaction"):
        text = "the history was compacted: earlier messages were replaced by a summary or left out"
        return Cause("compaction", text)
    return Cause("history_edited", change.place)


def _trailing_system(earlier: SentCall, rules: CacheRules, change: Change | None) -> Cause | None:
    """The last marker ended the request on a system message, which is not found again there."""
    reused = rules.trailing_system_reused
    if reused is None or reused.value or not (marks := _marker_chunks(earlier, rules)):
        return None
    prompt = RenderedPrompt(earlier.rendered, earlier.marks)
    if not prompt.is_trailing_system(marks[-1]):
        return None
    if change is not None and not prompt.is_trailing_system(change.chunk):
        return None
    path = earlier.rendered.chunk(marks[-1]).path
    text = f"the previous call's last marker was on a system message at its end ({path})"
    return Cause("marker_on_trailing_system", f"{text}, where the next request finds nothing")


def _images(earlier: Rendered, later: Rendered, rules: CacheRules) -> Cause | None:
    """The first image that was added, or the last that was removed, if that matters."""
    if "messages" not in rules.voided_by("images"):
        return None
    was, now = has_image(earlier), has_image(later)
    if was == now:
        return None
    text = "the first image was added" if now else "the last image was removed"
    return Cause("images_changed", f"{text}, which invalidates the cached messages")


def _clock(
    earlier: SentCall, later: SentCall, rules: CacheRules, read: int, *, changed: bool
) -> Cause | None:
    """Too much time has passed, or too little. A write that is not visible yet does not affect
    earlier entries."""
    if earlier.at is None or later.at is None:
        return None
    gap = later.at - earlier.at
    ttl = last_ttl(earlier.marks, rules)
    seconds = ttl_seconds(rules, ttl)
    used = used_at_latest(rules, earlier.at, began=earlier.began, ended=earlier.ended)
    expires = expiry(used, seconds)
    if ttl is not None and not is_alive(expires, later.at):
        ago = format_duration(later.at - expires)
        text = f"the cache entry expired {ago} ago (TTL {ttl}, previous call"
        return Cause("expired", f"{text} {format_duration(gap)} earlier)")
    used = used_at(rules, earlier.at, began=earlier.began, ended=earlier.ended)
    if ttl is not None and not is_alive(expiry(used, seconds), later.at):
        return Cause("unknown", f"{BEGAN_UNKNOWN} (TTL {ttl})")
    if later.pause_fell:
        return Cause("expired", f"the entry probably expired (pause of {format_duration(gap)})")
    if changed or not (earlier.complete and later.complete):
        return None  # after a change, or a possible one, waiting would not help
    older = 0 if earlier.usage is None else earlier.usage.read or 0
    return _not_readable(earlier, later.at, gap, rules) if read >= older else None


def _not_readable(earlier: SentCall, at: float, gap: float, rules: CacheRules) -> Cause | None:
    assert earlier.at is not None
    known = partial(moment_of, at=earlier.at, began=earlier.began, ended=earlier.ended)
    readable = latest = known(rules.readable_from.value)
    if rules.readable_from.value == "response_start" and earlier.began is None:
        latest = known("response_end")
    if at <= readable + rules.visibility_delay.value:
        if gap < 0:
            when = f"{-gap:.1f} s before" if gap <= -0.05 else "at the same time as"
            text = f"it was sent {when} the call it is compared with, whose write was not readable"
            return Cause("not_yet_visible", f"{text} yet")
        verb = "was not" if at <= readable else "may not have been"
        text = f"the previous call was only {gap:.1f} s earlier, so its write {verb} readable yet"
        return Cause("not_yet_visible", text)
    return Cause("unknown", READABLE_UNKNOWN) if at <= latest else None


def no_marker_cause(sent: SentCall, rules: CacheRules, call: str, verb: str) -> Cause | None:
    plan = sent.marks
    if not rules.needs_marks or plan.marks or plan.automatic or plan.held:
        return None
    mark = "marker" if rules.slots.value else "handle"
    owner = "this provider" if rules.mechanism.value == "explicit" else "its explicit mode"
    text = f"{call} had no cache {mark}, and {owner} {verb} nothing without one"
    return Cause("no_marker", text)


def not_cached(
    earlier: SentCall, later: SentCall, rules: CacheRules, profile: Profile | None
) -> Cause:
    """Why the earlier call left nothing in the cache."""
    usage = earlier.usage
    unmarked = no_marker_cause(earlier, rules, "the previous call", "caches")
    if unmarked is not None:
        short = rules.minimum_tokens.value
        if usage is None or not usage.input or usage.input >= short:
            return unmarked
        text = f"{unmarked.text}; its {counted(usage.input, 'token')} are below the minimum of"
        return Cause(unmarked.kind, f"{text} {short:,} anyway")
    tokens = Counts(earlier.rendered, later.rendered.bills).tokens(cached_chunks(earlier))
    if usage is not None and usage.input and not rules.slots.value:
        tokens = usage.input
    least = rules.shortest_prefix
    minimum = f"the minimum of {counted(least, 'token')}"
    if tokens < least:
        text = f"the previous prompt was below {minimum} (about {tokens:,})"
        return Cause("below_minimum", text)
    if (first := _first_marked(earlier, rules, later.rendered.bills)) > rules.longest_prefix:
        text = f"the previous prompt has about {counted(first, 'token')} up to its first marker"
        return Cause("above_maximum", f"{text}, and at most {rules.longest_prefix:,} are cached")
    error = TOKEN_ERROR if profile is None else profile.token_error.value
    if usage is None or tokens * (1 - error) < least:
        text = (
            f"the previous prompt of about {counted(tokens, 'token')} was probably below {minimum}"
        )
        return Cause("below_minimum", f"{text}: nothing was written")
    text = "the previous call wrote nothing, although its markers and the rules allow it; the"
    return Cause("unknown", f"{text} provider's cache diagnostics would tell why")


def lookback_cause(earlier: SentCall, later: SentCall, rules: CacheRules) -> Cause | None:
    """The last write is farther from every marker than the provider looks back."""
    figure, unit = rules.lookback_positions, rules.lookback_unit
    if figure is None or unit is None or not (earlier.marks_recorded and later.marks_recorded):
        return None
    marks, next_marks = _breakpoints(earlier, rules), _breakpoints(later, rules)
    if not marks or not next_marks:
        return None
    written = marks[-1]
    if unit.value == "breakpoints":
        if later.marks.automatic is not None or written in next_marks:
            return None  # which boundaries the provider looks up itself is unknown
        text = "no breakpoint is where the previous call wrote, so that entry is not looked up"
        return Cause("lookback_exceeded", text)
    behind = [chunk for chunk in next_marks if chunk >= written]
    if not behind:
        return Cause("lookback_exceeded", "no marker is at or behind the previous call's write")
    kinds = [chunk_kind(later.rendered, chunk) for chunk in range(behind[0], written - 1, -1)]
    counts = [lookback_steps(kinds, reading) for reading in unit.published]
    far = [count for count in counts if count > figure.value]
    if not far:
        return None
    blocks = counted(far[0], "block")
    text = f"the last write is {blocks} before the next marker, and the look-back is"
    text += f" {figure.value}"
    text += " (by one of the published ways of counting)" if len(far) < len(counts) else ""
    return Cause("lookback_exceeded", text)


def _first_marked(sent: SentCall, rules: CacheRules, bills: Bills) -> int:
    """The tokens up to a call's first marker."""
    marks = _breakpoints(sent, rules)
    return Counts(sent.rendered, bills).tokens(marks[0] + 1) if marks else 0


def _marker_chunks(sent: SentCall, rules: CacheRules) -> list[int]:
    """The chunks with a marker, including the provider's own if a request enables it."""
    if rules.automatic_breakpoint.value == "last_block":
        return _breakpoints(sent, rules)
    return sorted({mark.chunk for mark in sent.marks.marks})


def _breakpoints(sent: SentCall, rules: CacheRules) -> list[int]:
    """The chunks that end a call's prefixes, the provider's own breakpoint included."""
    plan = sent.marks
    chunks = {mark.chunk for mark in plan.marks}
    if plan.automatic is not None:
        position = automatic_position(rules, RenderedPrompt(sent.rendered, plan))
        chunks |= set() if position is None else {position}
    return sorted(chunks)


def _thinking(
    sent: SentCall,
    later: SentCall,
    rules: CacheRules,
    profile: Profile | None,
    read: int,
    expected: Prediction,
) -> Cause | None:
    """Thinking since the last user message, which the provider drops at the next one. It explains
    only losses after the first of it."""
    if profile is None or not profile.strips_thinking.value or not profile.strips_thinking.verified:
        return None
    earlier, after = sent.rendered, later.rendered
    if not any(_from_user(after, chunk) for chunk in range(len(earlier), len(after))):
        return None
    first = None
    for chunk in range(len(earlier) - 1, -1, -1):
        if chunk_kind(earlier, chunk) is Kind.THINKING:
            first = chunk
        elif _from_user(earlier, chunk):
            break
    if first is None:
        return None
    counts = Counts(earlier, after.bills)
    behind = (counts.total - counts.tokens(first)) * (1 + profile.token_error.value)
    if read < expected.left - behind - rules.granule_tokens.value:
        return None
    text = "the provider drops thinking at a user turn, which invalidates the messages"
    return Cause("thinking_dropped", text)


def chunk_kind(rendered: Rendered, chunk: int) -> Kind:
    run, index = rendered.locate(chunk)
    return run.log.kinds[index]


def _from_user(rendered: Rendered, chunk: int) -> bool:
    run, index = rendered.locate(chunk)
    if run.section != "messages" or run.log.kinds[index] is Kind.TOOL_RESULT:
        return False
    return run.log.role_of(index) == "user"


def remaining(earlier: SentCall, later: SentCall, rules: CacheRules, expected: Prediction) -> Cause:
    """The cause if none was found. The provider is blamed only when nothing else is possible."""
    if any(span.reason == "not_persisted" for span in expected.outcome.spans):
        return Cause("not_persisted", "the provider caches whole units only, and none ended there")
    if rules.automatic_breakpoint.value == "slots" and expected.read < expected.left:
        if expected.left <= SIMILARITY * expected.outcome.total:
            text = f"a slot is reused only if it holds more than {SIMILARITY:.0%} of the prompt"
            return Cause("not_persisted", text)
        return Cause("evicted", "another conversation has taken the server's slot")
    unseen = not any(span.reason in ("found", "below_minimum") for span in expected.outcome.spans)
    recorded = earlier.marks_recorded and later.marks_recorded
    if rules.needs_marks and rules.slots.value and unseen and recorded:
        text = "this call has no breakpoint from which the provider finds the previous one's write"
        return Cause("lookback_exceeded", text)
    if later.event is not None:
        return Cause(*later.event)
    if later.read_older:
        text = "the provider found an older call's entry; since then only tool results were added"
        return Cause("provider_side", text)
    if not (earlier.complete and later.complete):
        return Cause("unknown", BODIES_UNKNOWN)
    if earlier.at is None or later.at is None:
        return Cause("unknown", TIMES_UNKNOWN)
    text = "the loss is on the provider's side: bytes, parameters and rules all allow the read"
    return Cause("provider_side", text)
