"""Checks a request before it is sent: for lost cached tokens, and for content that is rejected."""

from __future__ import annotations

from anaphora.cache.prefix_difference import first_difference, tokens_behind
from anaphora.cache.sent_call import SentCall, cached_chunks
from anaphora.catalog import CacheRules
from anaphora.rendered import Chunk, Kind, Plan, Rendered
from anaphora.tokens import Counts
from anaphora.values import Notice
from anaphora.wording import counted

from .causes import chunk_kind, local_causes, lookback_cause, no_marker_cause
from .changes import change_at
from .json_blocks import block_of
from .values import Change


def preflight(
    earlier: Rendered,
    later: Rendered,
    rules: CacheRules | None = None,
    *,
    plans: tuple[Plan | None, Plan | None] = (None, None),
) -> tuple[Notice, ...]:
    """Before anything is sent: which of the earlier call's cached tokens the later request loses,
    and what the provider may reject. With `rules`, also causes besides changed bytes: parameters,
    images, the look-back. `plans` are the markers of the two calls, if the requests do not carry
    them.
    """
    before = SentCall(rendered=earlier, plan=plans[0])
    after = SentCall(rendered=later, plan=plans[1])
    offset = first_difference(earlier, later, earlier.cacheable)
    change = None if offset is None else change_at(earlier, later, offset)
    notices = [] if change is None else _bound_thinking(earlier, later, change)
    counts, chunks = Counts(earlier, later.bills), cached_chunks(before)
    if rules is not None:
        unmarked = no_marker_cause(before, rules, "", "") is not None
        if unmarked or counts.tokens(chunks) < rules.minimum_tokens.value:
            return tuple(notices)  # nothing was cached
    kept = first_difference(earlier, later, chunks) is None
    if change is not None and not kept:
        lost = tokens_behind(counts, chunks, change.offset, rules, marked=before.is_marked)
        notices.append(Notice("prefix_breaks", str(change), change.path, tokens=lost))
    if rules is None:
        return tuple(notices)
    causes = local_causes(before, after, rules, None)
    if kept and (far := lookback_cause(before, after, rules)) is not None:
        causes.append(far)
    return (*notices, *(Notice(cause.kind, cause.text) for cause in causes))


def _bound_thinking(earlier: Rendered, later: Rendered, change: Change) -> list[Notice]:
    """Signed thinking that is sent after a change: that of the earlier call, and that of its
    reply."""
    if not later.envelope.binds_thinking:
        return []

    def thinking(rendered: Rendered) -> list[Chunk]:
        chunks = range(change.chunk, len(rendered))
        return [rendered.chunk(at) for at in chunks if chunk_kind(rendered, at) is Kind.THINKING]

    known = {block_of(chunk).raw for chunk in thinking(earlier)}
    bound = [
        chunk
        for chunk in thinking(later)
        if (b'"signature"' in chunk.data or b'"redacted_thinking"' in chunk.data)
        and (block_of(chunk).raw in known or _is_reply(earlier, later, chunk.index))
    ]
    if not bound:
        return []
    param = dict(later.envelope.cache_params).get("thinking", b"")
    end = "it will be dropped" if b"drop_block" in param else "newer models reject the request"
    more = f" and in {counted(len(bound) - 1, 'more block')}" if len(bound) > 1 else ""
    reason = (
        f"signed thinking in {bound[0].path}{more} is only valid after an unchanged prompt, and"
        f" {change.place}: {end}"
    )
    return [Notice("thinking_bound", reason, bound[0].path)]


def _is_reply(earlier: Rendered, later: Rendered, chunk: int) -> bool:
    """Whether a block is in the message that answered the earlier call: the first one after its
    messages, by number or by the block before it."""
    end = earlier.cacheable - 1
    run, index = later.locate(chunk)
    message, block = run.position(index)
    if end < 0 or chunk_kind(earlier, end) in (Kind.TOOL, Kind.SYSTEM):
        return False
    last, position = earlier.locate(end)
    if message == last.position(position)[0] + 1:
        return True
    before = chunk - block - 1
    return before >= 0 and block_of(later.chunk(before)).raw == block_of(earlier.chunk(end)).raw
