"""The calls of a trace as prompts for the cache simulator.

Unrecorded parts are assumed: system prompt and tools as two blocks at the beginning, one
that other conversations share and one that they do not; markers after the first and at the end.
Token counts are exact if an earlier bill gives them, and estimated in between.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property

from anaphora import catalog
from anaphora.cache.learned_steps import LearnedSteps
from anaphora.cache.sent_call import ProgramEvent, ttl_seconds
from anaphora.cache.simulator import Mark, Simulator, TokenRuns
from anaphora.cache.simulator.chances import Sum
from anaphora.catalog import CacheRules
from anaphora.errors import InvalidRequest
from anaphora.rendered.media import Size
from anaphora.values import TTL_SECONDS, Ttl

from .account import Account, Beginning
from .blocks import KnownBlocks, TraceBlocks
from .entry_bills import CallKind, CallSituation, ConversationReads
from .format import RecordedParams, Trace, TraceCall
from .sent_blocks import SentBlocks

#: The least time between a call and the next that sends its reply back.
_LEAST_GAP = 0.001
#: The assumed time between two calls if no clock is recorded.
_GAP = 1.0


class Replay:
    """A recorded conversation call by call: the prompts that its calls send, by its bills so far
    (`learning.py`)."""

    def __init__(
        self,
        trace: Trace,
        elsewhere: tuple[str, str] | None = None,
        known: KnownBlocks | None = None,
        ttl: Ttl | None = None,
    ) -> None:
        """`elsewhere` is another provider and model to replay it on; `known` are blocks of other
        conversations; `ttl` replaces that of all markers."""
        self._ttl = ttl
        self.trace = trace
        home = catalog.provider_named(trace.provider) or trace.provider
        self.provider, self.model = elsewhere or (home, trace.model)
        self.called_model, self.recorded_model = self.model, trace.model
        """The model of the last call here, and in the recording."""
        self.wire = trace.wire if elsewhere is None else None
        self._moved = elsewhere is not None
        try:
            profile = catalog.profile(self.provider, self.model)
        except InvalidRequest as problem:
            raise problem.within(f"{trace.id}.provider") from None
        self.row = self.rules = catalog.rules(self.provider, self.model, self.wire)
        """The catalog's rules of the model that is called, and those that the conversation began
        with: others, if earlier bills contradict the catalog."""
        self._begun: dict[str, CacheRules] = {}
        self._known = known
        self._profile = profile
        per_token = home_per_token = profile.bytes_per_token.value
        if self._moved and home in catalog.shipped().providers:
            home_per_token = catalog.profile(home, trace.model).bytes_per_token.value
        self.per_token = per_token, home_per_token
        """Bytes per token of the model, and of the one that was billed."""
        self.begun: Beginning | None = None
        """The beginning that is not recorded, from the first call on."""
        self.ttls: tuple[Ttl, Ttl] = (ttl or "5m", ttl or "5m")
        """The TTLs of assumed markers, by the bills: before the messages, and after the last."""
        self.before: TraceCall | None = None
        """The last call with a bill."""
        self._params = RecordedParams(trace)
        self.sent_blocks: dict[bool, SentBlocks] = {}
        """The last call's blocks: with and without earlier thinking."""
        self.left: set[int] = set()
        """Tokens that each earlier call left in the cache."""
        self.after_mark = 0
        """Blocks after the last marker by the last bill, if no markers are recorded."""
        self.early: dict[bool, int] = {}
        """Tokens read by the last call inside a tool loop and outside, if fewer than expected."""
        self.reads = ConversationReads()
        self.predicted_bill, self.bills = Sum(), list[float]()
        """Of the calls with a bill: their predicted cost, and the bill of each."""
        self._times: list[float] = []
        """When each call started, as last computed."""

    @cached_property
    def blocks(self) -> TraceBlocks:
        return TraceBlocks(self.trace, self._profile, self.rules, self._known)

    def release(self) -> None:
        """Frees the blocks, after the last call: a session may have many branches."""
        del self.blocks
        self.sent_blocks.clear()

    def times(self, after: float) -> list[float]:
        """When each call started, or ended if the start is unknown; without any clock, `after`
        the conversation before it in the file. A call follows the one whose reply it sends back,
        whatever the clock says."""
        clock = ((n, call.at) for n, call in enumerate(self.trace.calls) if call.at is not None)
        before, first = next(clock, (0, after + _GAP))
        times = self._times = []
        for call in self.trace.calls:
            at = call.at
            if times:
                at = max(times[-1] + _LEAST_GAP, times[-1] + _GAP if at is None else at)
            elif at is None:
                at = first - _GAP * before
            times.append(at)
        return times

    def answered(self, index: int) -> tuple[float | None, float | None]:
        """When the response to a call began and ended, as far as known. The conversation's next
        call was sent after both."""
        call, times = self.trace.calls[index], self._times
        before = times[index + 1] - _LEAST_GAP if index + 1 < len(times) else math.inf
        moments = (
            None if moment is None else max(times[index], min(moment, before))
            for moment in (call.t_first, call.ended)
        )
        began, ended = moments
        return began, ended

    def begin(self, account: Account) -> None:
        """At its first call, a conversation is assumed to begin as others of the account did."""
        if self._ttl is None:
            self.ttls = account.ttls
        if self.trace.group in account.early_reads.latest:
            self.early[False] = account.early_reads.latest[self.trace.group]
        if self.blocks.unrecorded is not None:
            messages = self.blocks.messages
            first = messages[0].identity if messages else self.trace.id
            begun = account.leads.begin(self.trace.group or self.trace.id, first)
            self.set_beginning(begun, begun.lead.total)

    def set_beginning(self, begun: Beginning, unrecorded: int) -> None:
        assert self.blocks.unrecorded is not None
        self.begun, lead = begun, begun.lead
        tokens = lead.total if lead.shared is None else lead.shared
        shared, rest = self.blocks.unrecorded
        shared.identity, shared.size = lead, Size(0, tokens)
        rest.identity, rest.size = begun.rest, Size(0, max(0, unrecorded - tokens))

    def cache_params(self, call: TraceCall, *, in_loop: bool) -> dict[str, bytes]:
        """The parameters of a call that its cache depends on. From here on the rules are those of
        the model that it went to."""
        params = self._params.after(call, in_loop=in_loop)
        self.recorded_model = self._params.model
        if not self._moved:
            self.called_model = self.recorded_model
            self.row = catalog.rules(self.provider, self.called_model, self.wire)
            self.rules = self._begun.get(self.row.model, self.row)
        return {**params, "model": self.rules.model.encode()}

    def situation(
        self,
        call: TraceCall,
        prompt: TokenRuns,
        simulator: Simulator,
        idle: float | None,
        *,
        in_loop: bool,
    ) -> CallSituation:
        """`idle`: seconds since the previous call began; for a first one, that of others."""
        before = self.before
        kind: CallKind | ProgramEvent = "loop" if in_loop else "turn"
        if before is None:
            kind = "first"
        elif before.messages == call.messages:
            kind = "again"
        elif (event := call.event_since(before)) is not None:
            kind = event[0]
        elif before.thinking and call.thinking and before.thinking != call.thinking:
            kind = "thinking_changed"
        elif not in_loop and self.blocks.calls_tools(before):
            kind = "added"
        marked = is_marked(call if before is None else before, self.rules)
        lifetime = TTL_SECONDS[self.ttls[before is not None]] if marked else simulator.lifetime
        stated = lifetime if marked else ttl_seconds(self.row)
        recorded = self.begun is None and prompt.leading >= 0
        usage = None if before is None else before.usage
        reasoning = None if usage is None else usage.reasoning
        return CallSituation(
            kind=kind,
            model=self.called_model,
            agent=prompt.key(prompt.leading) if recorded else None,
            idle=idle is not None and idle > (lifetime or 0.0),
            lapsed=idle is not None and idle > (stated or 0.0),
            marked=marked,
            hidden=None if reasoning is None else reasoning > 0,
        )

    def use_learned(self, steps: LearnedSteps, host: Hashable) -> None:
        """From here on the rules of a model that is called for the first time are those of earlier
        bills, if these contradict the catalog."""
        if self.row.model not in self._begun:
            self._begun[self.row.model] = steps.begin(host, self.row)
        self.rules = self._begun[self.row.model]

    def sent(self, call: TraceCall) -> SentBlocks:
        """The blocks of a call. Valid until the next call of this method."""
        strips = self.blocks.strips
        sent = self.sent_blocks.get(strips)
        if sent is None:
            sent = self.sent_blocks[strips] = SentBlocks(self.blocks, strips=strips)
        sent.send(call)
        return sent

    def counted(self, call: TraceCall, account: Account) -> SentBlocks:
        """The blocks of a call, with their tokens by the bills so far."""
        sent = self.sent(call)
        sent.count(account.lengths(self.trace.group), account.scale.per_token)
        return sent

    def prompt(self, call: TraceCall, params: dict[str, bytes], account: Account) -> TokenRuns:
        """If no markers are recorded, one is assumed after the last message, and one before the
        messages; on a beginning that is not recorded once a bill has shown it."""
        rules = self.rules
        if self.begun is not None and self.begun.lead.shared is not None:
            key = self.sent(call).key(self.blocks.lead)
            account.lengths(self.trace.group)[key] = self.begun.lead.shared
        sent = self.counted(call, account)
        marked = rules.mechanism.value == "explicit" or bool(call.breakpoints)
        return sent.prompt(
            markers=self._markers(call, sent) if marked else (),
            automatic=_automatic(call, rules, self._ttl),
            cache_params=params,
        )

    def _markers(self, call: TraceCall, sent: SentBlocks) -> tuple[Mark, ...]:
        rules = self.rules
        marks: dict[int, Ttl | None] = {}
        tools = sent.tools
        for where, ttl, tool in call.markers:
            if where == "tools":
                # Tools that are not recorded are part of the block at the beginning.
                marks[tools[-1 if tool is None else tool] if tools else 0] = ttl
            elif isinstance(where, int) and where < call.messages:
                marks[self.blocks.position(where)] = ttl
        if call.breakpoints is None:
            begun = None if self._moved else self.begun
            unseen = begun is not None and begun.lead.shared is None
            places = -1 if unseen else self.blocks.lead, len(sent) - 1 - self.after_mark
            assumed = zip(places, self.ttls, strict=True)
            marks |= {position: ttl for position, ttl in assumed if position >= 0}
        return tuple(
            Mark(position, _lifetime(self._ttl or marks[position], rules))
            for position in sorted(marks)
        )


def in_order(replays: Sequence[Replay]) -> Iterator[tuple[str, float, int, int]]:
    """All calls in the order they were made, those of one account together: the account, the time,
    and the indexes of the conversation and the call. Conversations without a clock follow each
    other in the order given."""
    moments: list[tuple[str, float, int, int]] = []
    last: dict[str, float] = {}
    for order, replay in enumerate(replays):
        account = replay.trace.account or ""
        times = replay.times(last.get(account, 0.0))
        last[account] = times[-1] if times else last.get(account, 0.0)
        moments += [(account, at, order, index) for index, at in enumerate(times)]
    yield from sorted(moments)


def _automatic(call: TraceCall, rules: CacheRules, ttl: Ttl | None) -> Ttl | None:
    """The TTL of the marker that the provider places: at every call, or if the request wants
    one."""
    if call.explicit:
        return None
    where = rules.automatic_breakpoint.value
    recorded = [marker.ttl for marker in call.markers if marker.where == "automatic"]
    if where == "last_message" and rules.default_ttl is not None:
        return _lifetime(ttl or (recorded[0] if recorded else None), rules)
    return _lifetime(ttl or recorded[0], rules) if recorded and where == "last_block" else None


def _lifetime(ttl: Ttl | None, rules: CacheRules) -> Ttl:
    """A call may be replayed at another provider: a TTL that it does not have is its default."""
    known = rules.ttls.value
    if ttl is not None and ttl in known:
        return ttl
    return rules.default_ttl.value if rules.default_ttl is not None else known[-1]


def is_marked(call: TraceCall, rules: CacheRules) -> bool:
    """Whether the entry of a call is at markers, its own or the provider's."""
    if rules.mechanism.value == "implicit" or not rules.slots.value:
        return False
    provider_marks = rules.automatic_breakpoint.value == "last_message"
    return rules.mechanism.value == "explicit" or provider_marks or bool(call.breakpoints)


def left_by(call: TraceCall, rules: CacheRules) -> int | None:
    """The entry of a call by its bill: its reads and writes at markers, or else its whole prompt in
    granules."""
    assert call.usage is not None
    if is_marked(call, rules):
        return call.usage.cached or None
    return rules.whole_granules(call.usage.total) or None
