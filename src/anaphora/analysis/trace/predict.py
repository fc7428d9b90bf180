"""Compare simulated calls with real bills, one call after the other.

A prediction uses only the calls before it and their bills. The baseline is the simplest prediction:
a call reads the entry of the previous call of the conversation.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

from anaphora.cache.learned_steps import LearnedSteps
from anaphora.cache.simulator import Chance, Outcome, Simulator, TokenRuns
from anaphora.cache.simulator.chances import distribution
from anaphora.catalog.names import GATEWAYS
from anaphora.values import Ttl

from .account import Account
from .blocks import KnownBlocks
from .entry_bills import CallSituation, EntryBills, PredictedRead
from .format import Trace, TraceCall
from .learning import (
    changed_at,
    learn_bill,
    learn_early,
    learn_lifetime,
    move_to_other_model,
    other_outcomes,
)
from .predicted import Predicted
from .replay import Replay, in_order, is_marked, left_by


class _PlayedCall(NamedTuple):
    """A call while it is simulated."""

    at: float
    entry: EntryBills
    account: Account
    simulator: Simulator
    params: dict[str, bytes]
    prompt: TokenRuns
    idle: float | None
    since: float | None
    """Seconds since the previous call of the conversation, or else of the entry."""
    in_loop: bool


class Predictor:
    """Replays conversations in the order they happened, those of one account together."""

    def __init__(
        self,
        *,
        elsewhere: tuple[str, str] | None = None,
        ttl: Ttl | None = None,
        steps: LearnedSteps | None = None,
    ) -> None:
        """`elsewhere` is a provider and model to replay everything on instead of its own, `ttl` the
        TTL of all markers. With either, the bills give the lengths of the prompts, and nothing
        about the cache. `steps` holds rules learned from earlier bills, and learns from these."""
        self._elsewhere, self._ttl = elsewhere, ttl
        self._changed = elsewhere is not None or ttl is not None
        self._accounts: dict[tuple[str | None, str, str, str | None], Account] = {}
        """By account, provider, the model of the conversation, and wire."""
        self._simulators: dict[Hashable, Simulator] = {}
        """By the same, with the model of the call and the lengths that its reads may have."""
        self._entries: dict[tuple[str | None, str], EntryBills] = {}
        """By account and provider."""
        self.steps = LearnedSteps() if steps is None else steps
        self._hosts: dict[tuple[str | None, str], str] = {}
        """The hosts that gateways chose last, by the same."""

    def play(self, traces: Iterable[Trace]) -> Iterator[Predicted]:
        """A prediction for every call. Unsupported traces raise before the first one."""
        known: KnownBlocks = {}
        replays = [Replay(trace, self._elsewhere, known, self._ttl) for trace in traces]
        for _, at, order, index in in_order(replays):
            replay = replays[order]
            predicted = self._predict(replay, index, at)
            if index + 1 == len(replay.trace.calls):
                place = replay.trace.account, replay.provider
                if not self._changed:
                    entry, predicted_bill = self._entries[place], replay.predicted_bill.median
                    entry.learn_conversation(replay.model, predicted_bill, replay.bills)
                replay.release()
            yield predicted

    def follow(self, traces: Iterable[Trace]) -> Iterator[tuple[Replay, int, dict[str, bytes]]]:
        """Each call in the order of `play`, with its cache parameters, and without a prediction:
        the replay has the rules and the billed call before it."""
        replays = [Replay(trace) for trace in traces]
        noted = [any(call.note for call in replay.trace.calls) for replay in replays]
        for _, _, order, index in in_order(replays):
            replay = replays[order]
            call, before = replay.trace.calls[index], replay.before
            in_loop = False
            if noted[order] and before is not None:
                in_loop = replay.trace.only_tools(before, call)
            params = replay.cache_params(call, in_loop=in_loop)
            replay.use_learned(self.steps, self._host(replay))
            yield replay, index, params
            if call.usage is not None:
                replay.before, host = call, self._host(replay, call)
                read = call.usage.cache_read
                self.steps.learn(host, replay.row, read, conversation=replay.trace.id)

    def _account(self, replay: Replay, entry: EntryBills) -> Account:
        key = replay.trace.account, replay.provider, replay.model, replay.wire
        if key not in self._accounts:
            per_token, size = replay.per_token[0], entry.unrecorded
            unrecorded = None if size is None else round(size / per_token)
            self._accounts[key] = Account(replay.rules, per_token, unrecorded)
        return self._accounts[key]

    def _simulator(self, replay: Replay) -> Simulator:
        """The cache that the current call uses."""
        rules = replay.rules
        lengths = rules.granule_tokens.value, rules.offset, rules.minimum_tokens.value
        key = replay.trace.account, replay.provider, rules.model, replay.wire, lengths
        if key not in self._simulators:
            self._simulators[key] = Simulator(replay.rules)
        return self._simulators[key]

    def _predict(self, replay: Replay, index: int, at: float) -> Predicted:
        call, before = replay.trace.calls[index], replay.before
        played = self._begin(replay, index, at)
        account, simulator, prompt = played.account, played.simulator, played.prompt
        outcomes = self._outcomes(simulator, account, prompt, at, played.idle)
        outcome, lapsed, _ = outcomes
        chances = other_outcomes(replay, call, prompt, account, simulator, at)
        if account.lifetime is not None and not self._changed:
            # Entries are kept as long as the account's bills show.
            simulator.lifetime = account.lifetime.seconds
        older = call.usage is not None and call.usage.cache_read in replay.left
        predicted = None
        if not self._changed:
            situation = replay.situation(
                call, prompt, simulator, played.since, in_loop=played.in_loop
            )
            predicted = self._by_bills(replay, played, situation, outcome, chances)
            outcome, chances = predicted.outcome, predicted.chances
        rules, conversation = replay.rules, None
        if call.usage is not None and predicted is not None:
            replay.bills.append(rules.input_cost(call.usage.usage()))
            others = ((one.share, rules.input_cost(one.outcome.usage())) for one in chances)
            replay.predicted_bill.add(distribution(predicted.cost, others))
            conversation = played.entry.conversation_range(replay.model)
        result = Predicted(
            trace=replay.trace.id,
            call=index,
            provider=replay.provider,
            model=replay.called_model,
            recorded_model=replay.recorded_model,
            wire=replay.wire,
            at=call.at,
            gap=played.idle,
            in_loop=played.in_loop,
            outcome=outcome,
            chances=chances,
            billed=call.usage,
            baseline=None if before is None else left_by(before, replay.row),
            lapsed=lapsed,
            previous=None if before is None or before.usage is None else before.usage.total,
            older=older,
            ends_only=call.t is None and call.dur is None,
            implicit=not is_marked(call, rules),
            bill_range=None if predicted is None else predicted.bill_range,
            conversation_range=conversation,
            rules=rules,
            granule=rules.granule_tokens.value,
            delay=rules.visibility_delay.value,
        )
        self._make(replay, index, played, outcomes, predicted)
        return result

    def _begin(self, replay: Replay, index: int, at: float) -> _PlayedCall:
        """The prompt of a call, by the bills before it."""
        trace, call, before = replay.trace, replay.trace.calls[index], replay.before
        entry = self._entries.setdefault((trace.account, replay.provider), EntryBills())
        account = self._account(replay, entry)
        if index == 0:
            replay.begin(account)
        if self._changed and call.usage is not None:
            move_to_other_model(replay, call, call.usage, account, first=before is None)
        in_loop = before is not None and replay.blocks.only_tools(before, call)
        params = replay.cache_params(call, in_loop=in_loop)
        effort = replay.rules.invalidates.get("effort")
        if effort is None or not effort.verified:
            params.pop("effort", None)
        if not self._changed:
            replay.use_learned(self.steps, self._host(replay))
        began = None if before is None else before.at
        idle = None if began is None or call.at is None or call.gap_unknown else call.at - began
        since = entry.called(at)
        return _PlayedCall(
            at=at,
            entry=entry,
            account=account,
            simulator=self._simulator(replay),
            params=params,
            prompt=replay.prompt(call, params, account),
            idle=idle,
            since=since if before is None else idle,
            in_loop=in_loop,
        )

    @staticmethod
    def _by_bills(
        replay: Replay,
        played: _PlayedCall,
        situation: CallSituation,
        outcome: Outcome,
        chances: tuple[Chance, ...],
    ) -> PredictedRead:
        """The prediction by the bills so far; `outcome` is that of the rules."""
        early = changed_at(replay, played.account, in_loop=played.in_loop)
        if early is not None:
            outcome = outcome.reading(min(early, outcome.read))
        return played.entry.predict(
            replay.reads,
            situation,
            replay.rules,
            (outcome, chances),
            recorded=replay.begun is None,
            reply_end=played.account.reply_ends.usual,
        )

    def _make(
        self,
        replay: Replay,
        index: int,
        played: _PlayedCall,
        outcomes: tuple[Outcome, Outcome | None, Outcome],
        predicted: PredictedRead | None,
    ) -> None:
        """Adds a call to the cache, and learns from its bill."""
        call, account, prompt = replay.trace.calls[index], played.account, played.prompt
        billed, (outcome, _, alive) = call.usage, outcomes
        if billed is not None and len(prompt) and not self._changed:
            if played.idle is not None:
                learn_lifetime(replay, billed.cache_read, prompt, alive, account, played.idle)
            in_loop = played.in_loop
            learn_early(replay, billed.cache_read, outcome.read, account, in_loop=in_loop)
            learn_bill(replay, call, billed, (prompt, outcome), account)
            prompt = replay.prompt(call, played.params, account)
        answered, ended = replay.answered(index)
        reasoning = None if billed is None else billed.reasoning
        played.simulator.call(
            prompt, at=played.at, began=answered, ended=ended, reasoning=reasoning
        )
        if billed is None:
            return
        first, replay.before = replay.before is None, call
        if predicted is None:
            return
        rules, entry, situation = replay.rules, played.entry, predicted.call
        entry.learn(predicted, billed, rules)
        host = self._host(replay, call)
        self.steps.learn(host, replay.row, billed.cache_read, conversation=replay.trace.id)
        left, kept = left_by(call, rules) or 0, left_by(call, replay.row) or 0
        replay.reads.add(situation, billed, left, kept)
        if first and replay.begun is not None:
            entry.learn_unrecorded(replay.begun.lead.total * replay.per_token[0])

    def _host(self, replay: Replay, call: TraceCall | None = None) -> Hashable:
        """Identifies the host that serves a conversation: the one that the gateway chose for
        `call`, which its note names, or for the last call."""
        place = replay.trace.account, replay.provider
        if call is not None and replay.provider in GATEWAYS and call.note:
            self._hosts[place] = call.note
        return *place, self._hosts.get(place, "")

    def _outcomes(
        self,
        simulator: Simulator,
        account: Account,
        prompt: TokenRuns,
        at: float,
        idle: float | None,
    ) -> tuple[Outcome, Outcome | None, Outcome]:
        """The outcome with the lifetime that the account's bills show; with that of the rules, if
        it is shorter; and with an endless one. Leaves the first lifetime in the simulator."""
        lifetime = account.lifetime
        if lifetime is None or self._changed:
            outcome = simulator.predict(prompt, at=at)
            return outcome, None, outcome
        lapsed = alive = None
        seconds = lifetime.seconds
        if idle is not None and lifetime.stated < idle <= seconds:
            simulator.lifetime = lifetime.stated
            lapsed = simulator.predict(prompt, at=at)
        if idle is not None and idle > seconds:
            simulator.lifetime = math.inf
            alive = simulator.predict(prompt, at=at)
        # A new conversation may have another beginning: it only reads entries that are known.
        simulator.lifetime = lifetime.shown if idle is None else seconds
        outcome = simulator.predict(prompt, at=at)
        return outcome, None if lapsed == outcome else lapsed, alive or outcome
