"""Why the cache was read or not: the verdict of a call, as its app may know it."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from anaphora.cache.verdict import Verdict, diagnosis_of, saved_usd
from anaphora.client.in_flight import InFlight, service_tier
from anaphora.daemon.calls.call import AppCall, CallOutcome, CallTools
from anaphora.daemon.calls.pipeline import CallStep
from anaphora.traffic.matching import RememberedCall
from anaphora.values import Notice, Reply

if TYPE_CHECKING:
    from anaphora.daemon.calls.keep_warm import PrefixRefresher


class JudgeCache(CallStep):
    """Judges a stream while the provider is waited for, and each call by its bill."""

    name = "judge"

    def __init__(self, tools: CallTools) -> None:
        self._memory = tools.memory

    async def before(self, call: AppCall) -> None:
        assert call.flight is not None
        if call.flight.stream:
            call.judge_early = partial(self._judge_early, call)
            # While the provider is waited for: its first byte goes on without that.
            asyncio.get_running_loop().call_soon(call.judge_early)

    def _judge_early(self, call: AppCall) -> None:
        """By the rules alone, once for each attempt."""
        if call.judge_early is not None:
            call.judge_early, flight = None, call.flight
            assert flight is not None
            call.early = flight.guarded("verdict_failed", None, self._verdict, call, flight, None)

    def after(self, call: AppCall, outcome: CallOutcome) -> None:
        flight = call.flight
        if outcome.error is not None or flight is None or flight.reply is None:
            return
        charge(call, flight, flight.reply)
        verdict = flight.guarded("verdict_failed", None, self._verdict, call, flight, flight.reply)
        flight.verdict, remembered = verdict, call.remembered
        flight.predicted = None if verdict is None else verdict.predicted
        if remembered is None:
            return
        flight.guarded("verdict_failed", None, self._memory.answered, remembered)
        if (refresher := call.refresher) is not None:
            call.refreshed = flight.guarded(
                "keep_warm_failed", (), _paused, call, flight, refresher, remembered
            )

    def _verdict(self, call: AppCall, flight: InFlight, reply: Reply | None) -> Verdict | None:
        """Without a reply, before the bill."""
        remembered, target = call.remembered, flight.target
        if remembered is None:
            return None
        # What a call may read of its app's own is counted by the catalog's rules.
        learned = None if call.masked else remembered.rules
        tier = service_tier(flight.prepared[flight.index])
        return remembered.judge(
            target.rules if learned is None else learned,
            price=target.price(flight.sent_at or time.time(), tier),
            profile=target.profile,
            diagnosis=None if reply is None or call.masked else diagnosis_of(reply),
        )


def charge(call: AppCall, flight: InFlight, reply: Reply) -> None:
    """Computes what a call cost that was not settled to its bill; not by usage that cannot be true:
    then the bound is charged."""
    if flight.cost_usd is None and not call.disputed:
        price = flight.charge(flight.prepared[flight.index], reply.usage)
        flight.saved = flight.guarded("price_failed", None, saved_usd, reply.usage, price)


def _paused(
    call: AppCall, flight: InFlight, refresher: PrefixRefresher, remembered: RememberedCall
) -> tuple[Notice, ...]:
    """A pause of the conversation ends, and another one begins."""
    usd, notices = refresher.take_cost(remembered.conversation)
    if usd is not None and flight.verdict is not None:
        flight.verdict = replace(flight.verdict, kept_warm_usd=usd)
    assert flight.reply is not None
    refresher.answered(
        call.app,
        flight.target,
        remembered,
        call.facts,
        flight.prepared[flight.index],
        replace(flight.reply, usage=call.usage),
        (flight.sent_at, flight.first_at),
    )
    return notices
