"""Learns from the bill of each call of a recorded conversation, before the call is added to the
cache, so that the entry has the billed length."""

from __future__ import annotations

import math
from bisect import bisect_right

from anaphora.cache.simulator import Chance, Outcome, Simulator, TokenRuns
from anaphora.rendered.media import Size
from anaphora.tokens import bytes_in, tokens_in

from .account import Account, TextBytes
from .blocks import TraceBlock
from .format import TraceCall, TraceUsage
from .replay import Replay

#: A reply that is sent back has the tokens of its billed output if these fit its text by this
#: factor; otherwise a part was not sent back, or the output is not the whole count.
_FITS = 1.7
#: A read is of the expected entry if their lengths differ by no more than this share.
_SAME_ENTRY = 0.25
#: A prefix with an estimate up to this factor above the minimum may be below it.
_NEAR_MINIMUM = 1.5
#: Tokens of framing that the bytes do not show.
_FRAMING = 64
#: The reasons of spans that were found in the cache.
_FOUND = ("found", "not_whole_granule", "below_minimum")


def move_to_other_model(
    replay: Replay, call: TraceCall, billed: TraceUsage, account: Account, *, first: bool
) -> None:
    """Learns the length of the prompt from a bill in another model's tokens."""
    per_token, billed_per_token = replay.per_token
    total = tokens_in(bytes_in(billed.total, billed_per_token), per_token)
    if replay.begun is not None and first:
        unrecorded = max(0, total - replay.counted(call, account).recorded_tokens)
        if replay.begun.lead.shared is None:
            replay.begun.lead.total = replay.begun.lead.shared = unrecorded
        replay.set_beginning(replay.begun, unrecorded)
    sent = replay.sent(call)
    if len(sent):
        account.lengths(replay.trace.group)[sent.key(len(sent) - 1)] = total


def changed_at(replay: Replay, account: Account, *, in_loop: bool) -> int | None:
    """The position at which a call probably differs from the last one, by the last such call of
    the conversation; None if it probably does not."""
    return replay.early.get(in_loop) if account.early_reads.repeat else None


def other_outcomes(
    replay: Replay,
    call: TraceCall,
    prompt: TokenRuns,
    account: Account,
    simulator: Simulator,
    at: float,
) -> tuple[Chance, ...]:
    """The other outcomes that a call may have, and how often."""
    chances = simulator.chances(prompt, at=at)
    figure, blocks = replay.rules.thinking_dropped, replay.blocks
    if figure is None or not _may_drop_thinking(replay, call):
        return chances
    blocks.strips = True
    params = {**prompt.cache_params}
    outcome = simulator.predict(replay.prompt(call, params, account), at=at)
    blocks.strips = False
    return (*chances, Chance(figure.value, "thinking_dropped", outcome))


def _may_drop_thinking(replay: Replay, call: TraceCall) -> bool:
    """Whether thinking is dropped at this call if the client resends it, which is unknown."""
    before, blocks = replay.before, replay.blocks
    unknown = blocks.may_strip and not blocks.strips
    return unknown and before is not None and blocks.drops_thinking(before, call)


def _learn_stripping(replay: Replay, call: TraceCall, billed: TraceUsage) -> None:
    """Learns whether the client resends thinking, at each user turn after some: a read of only the
    beginning shows that the provider dropped it; a full read shows that it was not resent."""
    before, blocks = replay.before, replay.blocks
    if before is None or before.usage is None or not blocks.may_strip:
        return
    if blocks.drops_thinking(before, call):
        blocks.strips = 0 < billed.cache_read < before.usage.cached


def learn_early(
    replay: Replay, read: int, expected: int, account: Account, *, in_loop: bool
) -> None:
    """Learns whether reads end early at the same place again; `expected` does not consider that."""
    slack = max(replay.rules.granule_tokens.value, _FRAMING)
    before, early = replay.early.pop(in_loop, None), read + slack < expected
    if before is not None and before + slack < expected:
        account.early_reads.learn(repeated=early and abs(read - before) <= slack)
    if early:
        replay.early[in_loop] = read
    if not in_loop and expected > slack and replay.trace.group is not None:
        account.early_reads.latest.pop(replay.trace.group, None)
        account.early_reads.latest |= {replay.trace.group: read} if early else {}


def learn_lifetime(
    replay: Replay, read: int, prompt: TokenRuns, alive: Outcome, account: Account, idle: float
) -> None:
    """Learns whether the last call's entry could still be read; `alive` is the outcome if it could.
    Others may have used the beginning since, so a read of only that is not conclusive."""
    if account.lifetime is not None:
        beginning = 0
        if idle > account.lifetime.stated:
            beginning = prompt.tokens(prompt.leading) + replay.rules.granule_tokens.value
        if read > beginning:
            account.lifetime.learn(idle, found=True)
        elif alive.read > beginning:
            account.lifetime.learn(idle, found=False)


def learn_bill(
    replay: Replay,
    call: TraceCall,
    billed: TraceUsage,
    expected: tuple[TokenRuns, Outcome],
    account: Account,
) -> None:
    """Learns from the bill of a call that is not in the cache yet."""
    prompt, outcome = expected
    found = _found(prompt, outcome)
    _learn_stripping(replay, call, billed)
    _learn_growth(replay, call, billed, account)
    _learn_beginning(replay, call, billed, outcome.read, account)
    lengths, sent = account.lengths(replay.trace.group), replay.sent(call)
    replay.left.add(billed.cached)
    end = len(sent) - 1
    lengths[sent.key(end)] = billed.total
    if billed.cached and (prompt.markers or prompt.automatic):
        last = end
        if prompt.automatic is None:
            last = prompt.markers[-1].chunk
            if call.breakpoints is None:
                last = _learn_end(replay, call, billed, account)
        lengths[sent.key(last)] = billed.cached
        if call.breakpoints and prompt.automatic is None:
            _learn_longer(replay, call, billed, prompt, account)
    _learn_found(replay, call, billed.cache_read, prompt, found, account)
    reply = replay.blocks.reply(call)
    if replay.rules.reply_cached(billed.reasoning) and billed.output and reply:
        # The reply is cached with the reasoning in it.
        key = sent.key(end)
        for block in reply:
            key = hash((key, block.identity))
        lengths[key] = billed.total + billed.output + (account.reply_ends.usual or 0)
    _size_reply(replay, call, reply, billed, account)
    if replay.before is None:
        # About how long the beginning of other conversations is.
        for key, tokens in replay.counted(call, account).all_tokens():
            lengths.fit(key, tokens)


def _learn_longer(
    replay: Replay, call: TraceCall, billed: TraceUsage, prompt: TokenRuns, account: Account
) -> None:
    """Learns how long the prefix at the last marker with a longer TTL is: what was read, and
    written with that TTL. If nothing was, though it is about as long as the minimum, it is
    shorter than that."""
    end, ttl = prompt.markers[-1], billed.by_ttl
    longer = [mark for mark in prompt.markers if mark.ttl != end.ttl]
    if not longer or not ttl.get(end.ttl):
        return
    at, written = longer[-1].chunk, ttl.get(longer[-1].ttl)
    sent, least = replay.counted(call, account), replay.rules.minimum_tokens.value
    if written:
        account.lengths(replay.trace.group)[sent.key(at)] = billed.cache_read + written
    elif not billed.cache_read and least <= sent.tokens(at) < _NEAR_MINIMUM * least:
        account.lengths(replay.trace.group)[sent.key(at)] = least - 1


def _learn_end(replay: Replay, call: TraceCall, billed: TraceUsage, account: Account) -> int:
    """Learns the position of the last marker of a call without recorded ones: the last block,
    unless more is uncached than that leaves; then the likely end of the cached part."""
    sent = replay.counted(call, account)
    replay.after_mark, end = 0, len(sent) - 1
    if billed.input > _FRAMING:
        near = sent.nearest(billed.cached)
        replay.after_mark = end - max(near, replay.blocks.lead)
        if near <= replay.blocks.lead + 1 and replay.begun is not None:
            replay.after_mark = end - replay.blocks.lead
            replay.begun.lead.shared = billed.cached
    return end - replay.after_mark


def _learn_growth(replay: Replay, call: TraceCall, billed: TraceUsage, account: Account) -> None:
    before, sent = replay.before, replay.sent(call)
    if before is None and replay.begun is None and len(sent):
        begins, lengths = sent.key(max(0, sent.leading)), account.lengths(replay.trace.group)
        if lengths.known(begins) is None:
            text, other = sent.recorded
            account.scale.learn(text, billed.total - other)
    if before is None or before.usage is None or before.messages >= call.messages:
        return
    text, other = TextBytes(), 0
    for block in replay.blocks.messages[before.messages : call.messages]:
        text, other = text.plus(block.kind, block.size.text), other + block.size.other
    account.scale.learn(text, billed.total - before.usage.total - other)
    rules, prompt = replay.rules, before.usage.total
    beyond = rules.granule_tokens.value == 1 or billed.cache_read > rules.whole_granules(prompt)
    if billed.cache_read and before.usage.output is not None and beyond:
        end = before.usage.total + before.usage.output
        account.reply_ends.learn(end - billed.cache_read)


def _learn_found(
    replay: Replay,
    call: TraceCall,
    read: int,
    prompt: TokenRuns,
    found: tuple[int, int, int],
    account: Account,
) -> None:
    """Learns the length of the prefix that was read, if only an estimate was known: of the
    one that was expected, or else of the marked one with about that length."""
    if not read:
        return
    sent, (end, last, beyond) = replay.counted(call, account), found
    marked = [mark.chunk for mark in prompt.markers[:-1]]
    near = [
        at
        for at in (([last] if last >= 0 else []) if end else marked)
        if abs(sent.tokens(at) + beyond - read) <= _SAME_ENTRY * read
    ]
    if not near:
        return
    position = min(near, key=lambda at: abs(sent.tokens(at) - read))
    if sent.key(position) not in account.lengths(replay.trace.group):
        most = read + replay.rules.granule_tokens.value - 1
        account.lengths(replay.trace.group)[sent.key(position)] = (
            min(max(sent.tokens(position) + beyond, read), most) - beyond
        )


def _learn_beginning(
    replay: Replay, call: TraceCall, billed: TraceUsage, expected: int, account: Account
) -> None:
    begun, first = replay.begun, replay.before is None
    lead = _learn_ttls(replay, billed, account)
    if begun is None:
        return
    read = billed.cache_read
    if first:
        account.leads.miss(begun, expected=expected > 0, read=read > 0)
    if not first and (expected or not read):
        return
    recorded = replay.counted(call, account).recorded_tokens
    unrecorded = max(0, billed.total - recorded)
    if read == expected or read > unrecorded + _SAME_ENTRY * recorded + _FRAMING:
        read = 0  # as expected, or into the messages
    if not read and first and lead is not None:
        read = lead
    may_be_cut = not account.has_markers
    account.leads.learn(begun, read, unrecorded, may_be_cut=may_be_cut)
    replay.set_beginning(begun, unrecorded)


def _learn_ttls(replay: Replay, billed: TraceUsage, account: Account) -> int | None:
    """Learns the TTLs of the markers from a bill. If they differ ("read A, 1h-write B-A, 5m-write
    C-B"), returns the position of the first."""
    position = None
    if not billed.cache_write_1h:
        replay.ttls = (replay.ttls[0], "5m") if billed.cache_write_5m else replay.ttls
    elif not billed.cache_write_5m:
        replay.ttls = ("1h", "1h")
    else:
        replay.ttls = ("1h", "5m")
        position = billed.cache_read + billed.cache_write_1h
    account.ttls = replay.ttls
    return position


def _size_reply(
    replay: Replay, call: TraceCall, reply: list[TraceBlock], billed: TraceUsage, account: Account
) -> None:
    """The output tokens of a reply are those that it has when it is sent back, if they fit
    its text. Hidden reasoning is sent back at some providers only."""
    estimates = [
        math.ceil(account.scale.tokens(TextBytes().plus(block.kind, block.size.text)))
        + block.size.other
        for block in reply
    ]
    estimated, output = sum(estimates), billed.output or 0
    least, most = estimated / _FITS - _FRAMING, estimated * _FITS + _FRAMING
    fitting = (output, output - (billed.reasoning or 0))
    tokens = next((count for count in fitting if count and least < count < most), None)
    if tokens is not None:
        for block, share in zip(reply, estimates, strict=True):
            block.size = Size(0, round(tokens * share / max(1, estimated)))
        for sent in replay.sent_blocks.values():
            sent.resize(call.messages)


def _found(prompt: TokenRuns, outcome: Outcome) -> tuple[int, int, int]:
    """The tokens of a prompt that were expected to be found in the cache, the last block that was,
    and the tokens after it."""
    end = max((span.end for span in outcome.spans if span.reason in _FOUND), default=0)
    last = bisect_right(range(len(prompt)), end, key=prompt.tokens) - 1
    return end, last, end - prompt.tokens(last)
