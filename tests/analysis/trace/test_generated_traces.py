"""Generated recordings of caches that are not as the catalog says: predictions are never worse than
"a call reads what the one before it left"."""

from __future__ import annotations

import itertools
import math

import pytest
from support.generated_traces import BEGINNINGS, GAPS, LIVES, MODELS, Kind, gain, recording
from support.small_traces import at, bill, trace_of
from support.tables import each_row

from anaphora.analysis.trace.account import Lifetime
from anaphora.analysis.trace.format import Trace, TraceUsage
from anaphora.analysis.trace.predict import Predictor
from anaphora.analysis.trace.predicted import Predicted


def play(traces: list[Trace]) -> list[Predicted]:
    return list(Predictor().play(traces))


@pytest.mark.parametrize("replies", [False, True], ids=["no replies", "replies"])
@pytest.mark.parametrize("provider, model", MODELS)
@pytest.mark.long
def test_predictions_are_never_worse_than_the_baseline(
    provider: str, model: str, replies: bool
) -> None:
    """Whether replies are cached is not in the rules here, nor how long prompts are."""
    for seed, (gaps, life) in enumerate(itertools.product(GAPS, LIVES)):
        beginning = BEGINNINGS[seed % len(BEGINNINGS)]
        kind = Kind(provider, model, LIVES[life], GAPS[gaps], beginning, replies=replies)
        gained = gain(recording(kind, seed, conversations=4, most_turns=6))
        assert gained.pairs
        assert gained.exact >= 0, kind
        assert gained.classes >= 0, kind


@pytest.mark.parametrize("provider, model", MODELS)
def test_replies_that_are_read_are_learned_from_bills(provider: str, model: str) -> None:
    """Whatever the rules say: all but the first, and those whose length is only estimated."""
    kind = Kind(provider, model, math.inf, GAPS["short"], "none", replies=True)
    gained = gain(recording(kind, 1))
    assert gained.exact > 0.5 * gained.pairs


def idle_for(*gaps: tuple[float, bool], total: int = 8000) -> Trace:
    """A Mistral conversation: the time before each call after the second, and whether it read its
    prompt."""
    calls, now, left = [at(0, 1, TraceUsage(input=total))], 0.0, total // 64 * 64
    for number, (gap, read) in enumerate([(10.0, True), *gaps], 1):
        now, total = now + gap, total + 640
        found = left if read else 0
        usage = TraceUsage(input=total - found, cache_read=found)
        calls.append(at(now, 1 + 2 * number, usage))
        left = total // 64 * 64
    return trace_of(*calls, provider="mistral", model="mistral-large-latest")


def test_a_stand_in_lifetime_is_not_believed_before_bills_show_it() -> None:
    """The rules say five minutes, and no source does. Once they have been right as often as a
    longer lifetime, they are believed."""
    gone = (900, False)
    calls = play([idle_for((900, True), gone, gone, gone, gone, gone)])
    assert [call.outcome.read > 0 for call in calls[2:]] == [True, True, False, False, False, False]
    assert [call.cause for call in calls[2:]] == [None, "expired", None, None, None, None]


def test_what_is_read_after_a_longer_time_shows_that_it_lives_longer() -> None:
    gone, found = (400.0, False), (2000.0, True)
    calls = play([idle_for(gone, gone, gone, gone, *[found] * 5, (400.0, True))])
    assert calls[5].outcome.read == 0
    assert calls[-1].exact


def test_a_verified_lifetime_is_kept() -> None:
    trace = trace_of(at(0, 1, bill(written=5000)), at(400, 3, bill(read=5000, written=10)))
    last = play([trace])[-1]
    assert (last.outcome.read, last.lapsed) == (0, None)


@each_row(
    "seen, seconds",
    [
        ([], math.inf),
        ([(900, False)], math.inf),
        ([(900, False), (1000, False)], math.inf),
        ([(900, False), (1000, False), (1100, False)], 900),
        ([(30, False), (30, False), (30, False)], math.inf),
        ([(900, False), (1000, False), (2000, True)], math.inf),
        ([(900, False), (1000, False), (1100, False), (500, True)], 900),
        ([(900, False), (1000, False), (1100, False), (950, True)], math.inf),
        ([(100, False)] * 5 + [(200, True)] * 4, math.inf),
    ],
)
def test_lifetimes_by_bills(seen: list[tuple[float, bool]], seconds: float) -> None:
    lifetime = Lifetime(300.0)
    for idle, found in seen:
        lifetime.learn(idle, found=found)
    assert lifetime.seconds == pytest.approx(seconds, abs=0.01)


def new_conversation(number: int, read: int) -> Trace:
    usage = TraceUsage(input=6000 - read, cache_read=read)
    return trace_of(
        at(number * 20.0, 1, usage),
        id=f"conversation {number}",
        group=f"group {number}",
        provider="mistral",
        model="mistral-large-latest",
    )


def test_conversations_that_share_no_unrecorded_beginning_are_learned_from_bills() -> None:
    own = [new_conversation(number, 0) for number in range(5)]
    assert [call.outcome.read > 0 for call in play(own)] == [False, True, True, False, False]
    shared = [new_conversation(number, 5120) for number in range(5, 8)]
    assert [call.outcome.read for call in play([*own, *shared])][5:] == [0, 5120, 5120]
