"""A billed call with what was recorded around it: the call before, the time between, what is
certain of both."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from anaphora import catalog
from anaphora.analysis.trace.form import Trace, TraceCall, TraceUsage
from anaphora.analysis.trace.places import unplayable
from anaphora.analysis.trace.playing import Playing
from anaphora.catalog import CacheRules
from anaphora.values import TTL_SECONDS, Ttl

from .spots import Spots

#: The longest that a call is taken to last, where only its end is recorded: clients give up then.
LONGEST_CALL = 600.0


class Between(NamedTuple):
    """Seconds between two moments: at least, at most."""

    least: float
    most: float


class Seen(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One billed call."""

    trace: str
    call: int
    provider: str
    model: str
    wire: str | None
    rules: CacheRules
    sent: TraceCall
    billed: TraceUsage
    spots: Spots
    began: Between | None
    """When, in the file's seconds: at the earliest, at the latest."""
    before: Seen | None
    """The billed call before it in the conversation."""
    appended: bool
    """By the recording it begins with all that the call before sent."""
    same: bool
    """And nothing unrecorded can have changed in between: the system prompt is here, or nobody but
    the model and its tools has said anything."""
    whole: bool
    """All that was sent is here."""
    alone: bool
    """No other recorded call has sent more of this prompt than the call before did."""
    in_loop: bool
    cache_params: dict[str, bytes]
    noted: bool
    """That a parameter was chosen had been noted before the call, so its old value is no guess."""
    ttl: Ttl | None
    """How long the end of what it left in the cache lives, by its bills."""
    written: Between | None
    """When what it left was written: by itself, or by an earlier call when it has only read."""
    untouched: float | None
    """Seconds, at least, since any recorded call used all of what the call before sent."""
    answer: int | None
    """Estimated tokens of the answer to the call before, as it is sent back."""

    @property
    def marked(self) -> bool:
        """What is cached stands at markers."""
        rules = self.rules
        return rules.mechanism.value != "implicit" and rules.slots.value > 0

    @property
    def gap(self) -> Between | None:
        """Since the call before began."""
        before = self.before
        if before is None or before.began is None or self.began is None:
            return None
        gap = Between(self.began.least - before.began.most, self.began.most - before.began.least)
        return None if gap.most < 0 else gap  # a clock that runs backwards tells nothing

    @property
    def rest(self) -> float | None:
        """Seconds, at least, since the call before was over."""
        if self.before is None or self.began is None or self.before.sent.t_end is None:
            return None
        return self.began.least - self.before.sent.t_end

    @property
    def life(self) -> float | None:
        """The same in seconds; None where the lifetimes on record are of another cache: that of
        handles, where no block takes a marker."""
        rules = self.rules
        if rules.mechanism.value == "both" and not rules.slots.value:
            return None
        return None if self.ttl is None else float(TTL_SECONDS[self.ttl])

    @property
    def left(self) -> int:
        """Tokens that the next call can read, at most, the answer not counted."""
        return self.billed.cached if self.marked else self.billed.total

    @property
    def floor(self) -> int:
        """What the next call reads, at least, when it finds all of it."""
        granule = self.rules.granule_tokens.value
        # An implicit cache may spare the last tokens: two granules are never the whole question.
        return self.left if self.marked else max(1, self.left - 2 * max(granule, 64))


def seen(traces: Iterable[Trace]) -> Iterator[Seen]:
    """Every billed call, in the order they were made; those of one group together."""
    conversations = [_Conversation(trace) for trace in traces]
    moments = [
        (one.playing.scope, at, order, index)
        for order, one in enumerate(conversations)
        for index, at in enumerate(one.playing.times())
    ]
    moments.sort()
    scopes: dict[str, _Scope] = {}
    for name, _, order, index in moments:
        scope = scopes.setdefault(name, _Scope())
        told = conversations[order].next(index, scope)
        if told is not None:
            yield told


class _Scope:
    """What the calls of one group have sent."""

    def __init__(self) -> None:
        self._used: dict[Hashable, float | None] = {}
        """By the whole prompt of an earlier call: when it was last sent, at the latest."""
        self._every: set[Hashable] = set()

    def used(self, key: Hashable) -> float | None:
        return self._used.get(key)

    def known(self, keys: list[Hashable]) -> int:
        """How many leading blocks some call has sent before."""
        return next((n for n in range(len(keys), 0, -1) if keys[n - 1] in self._every), 0)

    def add(self, keys: list[Hashable], known: int, began: Between | None) -> None:
        self._every.update(keys[known:])
        when = None if began is None else began.most
        for key in [*(key for key in keys if key in self._used), *keys[-1:]]:
            self._used[key] = when


class _Conversation:
    def __init__(self, trace: Trace) -> None:
        self.playing = Playing(trace)
        self._spots = Spots(trace)
        self._last: Seen | None = None
        self._last_keys: list[Hashable] = []
        self._ended: float | None = None
        """When the call before was over, billed or not."""
        self._noted = False

    def next(self, index: int, scope: _Scope) -> Seen | None:
        """The call, when it was billed and its model is known."""
        playing, trace = self.playing, self.playing.trace
        call, before = trace.calls[index], self._last
        blocks, keys = playing.sent(call)
        began = _began(call, self._ended)
        in_loop = before is not None and playing.only_tools(before.sent, call)
        cache_params = playing.cache_params(call, in_loop=in_loop)
        model = cache_params["model"].decode()
        known, length = scope.known(keys), len(self._last_keys)
        appended = bool(length) and keys[:length] == self._last_keys
        told: Seen | None = None
        if call.usage is not None and unplayable(playing.provider, model) is None:
            used = scope.used(self._last_keys[-1]) if appended else None
            rules = catalog.rules(playing.provider, model, playing.wire)
            told = Seen(
                trace=trace.id,
                call=index,
                provider=playing.provider,
                model=catalog.profile(playing.provider, model).id,
                wire=playing.wire,
                rules=rules,
                sent=call,
                billed=call.usage,
                spots=self._spots,
                began=began,
                before=before,
                appended=appended,
                same=before is not None
                and appended
                and (in_loop or not trace.system_tokens_unknown)
                and before.cache_params == cache_params
                and call.usage.total >= before.billed.total,
                whole=not trace.system_tokens_unknown,
                alone=known <= length,
                in_loop=in_loop,
                cache_params=cache_params,
                noted=self._noted,
                ttl=_ttl(call.usage, rules, before),
                written=_written(call.usage, began, before),
                untouched=None if used is None or began is None else began.least - used,
                answer=playing.blocks.estimates([blocks[length]])[0]
                if length < len(blocks) and blocks[length].spoken
                else None,
            )
            self._last, self._last_keys = told, keys
        scope.add(keys, known, began)
        self._noted = self._noted or "_change:" in (call.note or "")
        self._ended = call.t_end if call.t_end is not None else call.at
        return told


def _ttl(billed: TraceUsage, rules: CacheRules, before: Seen | None) -> Ttl | None:
    by_ttl: tuple[tuple[Ttl, int], ...] = (
        ("5m", billed.cache_write_5m),
        ("30m", billed.cache_write_30m),
        ("1h", billed.cache_write_1h),
        ("12h", billed.cache_write_12h),
    )
    # The shorter come last, so the shortest is the end's.
    told = next((ttl for ttl, tokens in by_ttl if tokens), None)
    if told is not None and told in rules.ttls.value:
        return told
    if before is not None and before.ttl in rules.ttls.value:
        return before.ttl
    return None if rules.default_ttl is None else rules.default_ttl.value


def _written(billed: TraceUsage, began: Between | None, before: Seen | None) -> Between | None:
    if billed.written:
        return began
    same = before is not None and before.billed.cached == billed.cached
    return before.written if before is not None and same else None


def _began(call: TraceCall, ended: float | None) -> Between | None:
    if call.t is not None:
        return Between(call.t, call.t)
    if call.t_end is None:
        return None
    if call.dur is not None:
        return Between(call.t_end - call.dur, call.t_end - call.dur)
    earliest = call.t_end - LONGEST_CALL
    # A call begins after the one whose answer it sends back is over.
    return Between(earliest if ended is None else min(call.t_end, max(earliest, ended)), call.t_end)
