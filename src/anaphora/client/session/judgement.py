"""The verdict on a turn, computed on first read: most verdicts are never read."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from anaphora.cache.plan import Gaps
from anaphora.cache.plan.deferred import SentTurn
from anaphora.cache.simulator import Outcome
from anaphora.cache.simulator.outcome import predict_read
from anaphora.cache.verdict import Diagnosis, Prediction, SentCall, Verdict, judge, with_remedy
from anaphora.cache.verdict.prediction import at_host
from anaphora.catalog import CacheRules, Price
from anaphora.client.failures import reported
from anaphora.client.response import Record
from anaphora.client.target import Target
from anaphora.values import Notice


class Judgement(msgspec.Struct, eq=False, weakref=True):
    """The verdict on a call of a session, computed on first read, in any thread. Until then this
    holds the call and the previous one, at most until the call has been simulated."""

    _facts: TurnFacts | None
    _verdict: Verdict | None = None
    _predicted: int | None = None
    _failure: Exception | Notice | None = None

    def __call__(self) -> None:
        """Makes the verdict. Never fails."""
        facts = self._facts
        if facts is None:
            return
        with facts.target.memory.lock:
            if self._facts is None:
                return  # another thread made it
            facts.made.reader = None
            try:
                expected = facts.expected()
                self._verdict, self._predicted = facts.judge(expected), expected.read
            except Exception as problem:
                self._failure = problem
            self._facts = None

    def complete(self, record: Record) -> Record:
        """The record with the verdict, or with a notice that it failed."""
        self()
        verdict, failure = self._verdict, self._failure
        if isinstance(failure, Exception):
            # Without the lock, since a handler of the log may wait for a verdict.
            self._failure = failure = reported("verdict_failed", failure)
        if failure is not None:
            seen = failure in record.notices  # two threads read the record at once
            return record if seen else replace(record, notices=(*record.notices, failure))
        saved = None if verdict is None else verdict.saved
        return replace(record, verdict=verdict, predicted=self._predicted, saved=saved)


class TurnFacts(msgspec.Struct, eq=False):
    """The inputs of the verdict on a call."""

    target: Target
    earlier: SentCall | None
    wrote: SentTurn | None
    later: SentCall
    made: SentTurn
    price: Price | None
    diagnosis: Diagnosis | None
    pauses: Gaps | None = None
    """The pauses of the conversation, to which later calls add, and"""
    count: int = 0
    """the number of its calls until this one."""

    def expected(self) -> Prediction:
        expected = predict_turn(self.earlier, self.wrote, self.made.outcome, self.target.rules)
        return at_host(self.earlier, self.later, expected)

    def judge(self, expected: Prediction) -> Verdict:
        earlier, later, target = self.earlier, self.later, self.target
        verdict = judge(
            earlier,
            later,
            target.rules,
            expected=expected,
            price=self.price,
            profile=target.profile,
            diagnosis=self.diagnosis,
        )
        since = None
        if self.pauses is not None and earlier is not None and verdict.causes:
            pauses = self.pauses.until(self.count)
            if earlier.at is not None and len(pauses) > 1:
                since = earlier.at - pauses[-2]
        return with_remedy(
            verdict,
            earlier,
            later,
            target.rules,
            price=self.price,
            profile=target.profile,
            since=since,
        )


def predict_turn(
    earlier: SentCall | None, wrote: SentTurn | None, outcome: Outcome, rules: CacheRules
) -> Prediction:
    """The expected usage of a turn, from the previous one and its simulated outcome."""
    if earlier is None or wrote is None:
        return Prediction(left=0, read=outcome.read, outcome=outcome, exact=True)
    return predict_read(wrote.left, earlier.usage, outcome, rules, marked=earlier.is_marked)
