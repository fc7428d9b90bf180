"""What will go wrong, named before anything is sent."""

from __future__ import annotations

from anaphora.catalog import CacheRules
from anaphora.rendered import Kind, Plan, Rendered
from anaphora.tokens import Counts
from anaphora.values import Notice

from . import rules as by
from .blocks import block_of
from .changes import change_at
from .comparing import extent, parting
from .sentences import change_said
from .values import Change, Sent


def preflight(
    earlier: Rendered,
    later: Rendered,
    rules: CacheRules | None = None,
    *,
    plans: tuple[Plan | None, Plan | None] = (None, None),
) -> tuple[Notice, ...]:
    """What the later request loses of what the earlier one left, and what may make it fail. With
    `rules`, also what no byte shows: parameters, images, the look-back. `plans` are the two calls'
    marks, where the requests do not carry them themselves."""
    before = Sent(rendered=earlier, plan=plans[0])
    after = Sent(rendered=later, plan=plans[1])
    offset = parting(earlier, later, earlier.cacheable)
    change = None if offset is None else change_at(earlier, later, offset)
    notices = [] if change is None else _bound(earlier, later, change)
    kept = parting(earlier, later, extent(before)) is None
    if change is not None and not kept:
        counts = Counts(earlier, later.bills)
        lost = counts.tokens(extent(before)) - counts.before(change.offset)
        notices.append(Notice("prefix_breaks", change_said(change), change.path, tokens=lost))
    if rules is None:
        return tuple(notices)
    notices += [Notice(cause.kind, cause.said) for cause, _ in by.parameters(before, after, rules)]
    found = [by.images(earlier, later, rules)]
    if kept:
        found.append(by.lookback(before, after, rules))
    notices += [Notice(cause.kind, cause.said) for cause in found if cause is not None]
    return tuple(notices)


def _bound(earlier: Rendered, later: Rendered, change: Change) -> list[Notice]:
    """Signed thinking of the earlier prompt that is sent again behind something that changed."""
    if later.wire != "anthropic":
        return []
    known = {
        block_of(chunk).raw
        for chunk in (earlier.chunk(at) for at in range(change.chunk, len(earlier)))
        if chunk.kind is Kind.THINKING
    }
    bound = [
        chunk
        for chunk in (later.chunk(at) for at in range(change.chunk, len(later)))
        if chunk.kind is Kind.THINKING and block_of(chunk).raw in known and _signed(chunk.data)
    ]
    if not bound:
        return []
    param = dict(later.envelope.cache_params).get("thinking", b"")
    end = "it will be dropped" if b"drop_block" in param else "newer models refuse the request"
    more = f", and {len(bound) - 1} more," if len(bound) > 1 else ""
    said = (
        f"signed thinking in {bound[0].path}{more} is bound to what stood before it, and"
        f" {change_said(change)}: {end}"
    )
    return [Notice("thinking_bound", said, bound[0].path)]


def _signed(data: bytes) -> bool:
    return b'"signature"' in data or b'"redacted_thinking"' in data
