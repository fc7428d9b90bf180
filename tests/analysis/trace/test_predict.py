"""Predictions: from the calls before, and from nothing else."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.small_traces import assistant, at, bill, calls_tool, tool, trace_of, user

from anaphora.analysis.trace.format import Trace, TraceCall, TraceMessage, TraceUsage
from anaphora.analysis.trace.predict import Predicted, Predictor

LOOP = [user("q"), calls_tool("one"), tool("one"), calls_tool("two"), tool("two"), assistant("a")]


def play(*traces: Trace, elsewhere: tuple[str, str] | None = None) -> list[Predicted]:
    return list(Predictor(elsewhere=elsewhere).play(traces))


def reads(*traces: Trace) -> list[int]:
    return [call.outcome.read for call in play(*traces)]


def test_a_call_reads_exactly_what_the_previous_one_read_and_wrote() -> None:
    trace = trace_of(
        at(0, 1, bill(written=5000)),
        at(10, 3, bill(read=5000, written=321)),
        at(20, 5, bill(read=5321, written=77)),
        messages=LOOP,
    )
    first, second, third = play(trace)
    assert [call.outcome.read for call in (first, second, third)] == [0, 5000, 5321]
    assert (first.is_pair, second.is_pair, second.in_loop) == (False, True, True)
    assert (third.expected, third.happened, third.exact) == ("hit", "hit", True)


@pytest.mark.parametrize("gap, read", [(299, 5000), (301, 0)])
def test_expiry_is_predicted_from_the_clock(gap: float, read: int) -> None:
    trace = trace_of(at(0, 1, bill(written=5000)), at(gap, 3, bill(read=read, written=10)))
    last = play(trace)[-1]
    assert (last.outcome.read, last.exact, last.cause) == (read, True, None)


@pytest.mark.parametrize("gap, read", [(3599, 5000), (3601, 0)])
def test_what_was_written_for_an_hour_lives_for_an_hour(gap: float, read: int) -> None:
    hour = TraceUsage(cache_write_1h=5000)
    assert reads(trace_of(at(0, 1, hour), at(gap, 3, None))) == [0, read]


def test_a_split_bill_shows_where_the_longer_ttl_ends() -> None:
    both = TraceUsage(cache_write_1h=4000, cache_write_5m=1000)
    calls = at(0, 1, both), at(200, 3, None), at(600, 5, None)
    assert reads(trace_of(*calls)) == [0, 5000, 4000]


def test_a_prediction_does_not_know_its_own_bill() -> None:
    """The prediction does not depend on the last bill."""
    first = at(0, 1, bill(written=5000))
    bills = [bill(read=5000, written=9), bill(written=5009), bill(read=17, written=4992), None]
    outcomes = {tuple(play(trace_of(first, at(9, 3, last)))[-1].outcome.spans) for last in bills}
    assert len(outcomes) == 1


def test_bills_give_the_length_of_prompts() -> None:
    """Below the minimum nothing is written; the next call knows that it was so short."""
    trace = trace_of(at(0, 1, bill(input=800)), at(9, 3, bill(written=1200)))
    assert reads(trace) == [0, 0]


def test_writes_of_others_are_known_once_a_bill_shows_them() -> None:
    """A first call that reads was not the first to begin like that; so much is the system prompt,
    and the next conversation of the group reads it, too."""
    first = trace_of(at(0, 1, bill(read=11_000, written=400)), id="one", group="run")
    second = trace_of(at(10, 1, None), id="two", group="run", messages=[user("something else")])
    before, after = play(first, second)
    assert (before.outcome.read, before.cause) == (0, "written_by_others")
    assert after.outcome.read == 11_000


def test_conversations_of_a_group_share_a_beginning_and_others_do_not() -> None:
    def some(id: str, t: float, group: str) -> Trace:
        call = at(t, 2, bill(written=3000), breakpoints=((0, "5m"), (1, "5m")))
        messages = [TraceMessage(role="system", content="guide " * 3000), user(id)]
        return trace_of(call, id=id, group=group, messages=messages, system_tokens_unknown=False)

    alike, other = some("b", 10, "run"), some("b", 10, "another run")
    assert reads(some("a", 0, "run"), alike)[1] > 1024
    assert reads(some("a", 0, "run"), other)[1] == 0


def test_a_noted_thinking_level_invalidates_the_messages() -> None:
    note = "thinking_level_change:low;thinking_level_change:high"
    usages = bill(written=5000), bill(read=5000, written=20), bill(written=5100)
    plain = [at(0, 1, usages[0]), at(9, 3, usages[1]), at(20, 5, usages[2])]
    assert reads(trace_of(*plain)) == [0, 5000, 5020]
    changed = [*plain[:2], replace(plain[2], note=note)]
    last = play(trace_of(*changed))[-1]
    assert (last.outcome.read, last.exact) == (0, True)
    assert {span.reason for span in last.outcome.spans} == {"param_changed"}


def test_a_level_that_is_restored_changes_nothing() -> None:
    note = "thinking_level_change:low;thinking_level_change:off"
    trace = trace_of(at(0, 1, bill(written=5000)), at(9, 3, bill(read=5000), note=note))
    assert reads(trace) == [0, 5000]


def test_a_level_chosen_between_tool_results_waits_for_the_next_turn() -> None:
    note = "thinking_level_change:high"
    messages = [*LOOP[:5], assistant("a"), user("next")]
    trace = trace_of(
        at(0, 1, bill(written=5000)),
        at(9, 3, bill(read=5000, written=50), note=note),
        at(20, 7, bill(written=5200)),
        messages=messages,
    )
    assert reads(trace) == [0, 5000, 0]


def test_another_model_reads_nothing_of_the_last() -> None:
    note = "model_change:claude-opus-4-5"
    calls = at(0, 1, bill(written=5000)), at(9, 3, bill(written=5100), note=note)
    assert reads(trace_of(*calls)) == [0, 0]
    # A dated name is the same model.
    note = "model_change:claude-sonnet-4-5-20250929"
    assert reads(trace_of(calls[0], replace(calls[1], note=note))) == [0, 5000]


@pytest.mark.parametrize("model, read", [("claude-sonnet-4-5", 5000), ("claude-opus-4-5", 5300)])
def test_some_models_drop_earlier_reasoning_at_a_user_turn(model: str, read: int) -> None:
    thought = TraceMessage(
        role="assistant",
        content=[{"type": "thinking", "thinking": "hm " * 200}],
        tool_calls=[{"id": "one", "name": "look"}],
    )
    trace = trace_of(
        at(0, 1, bill(written=5000)),
        at(9, 3, bill(read=5000, written=300)),
        at(20, 5, None),
        messages=[user("q"), thought, tool("one"), assistant("a"), user("next")],
        model=model,
    )
    assert reads(trace)[1:] == [5000, read]


def test_recorded_markers_are_used() -> None:
    messages = [TraceMessage(role="system", content="guide " * 4000), user("q"), assistant("a")]
    messages += [user("r")]

    def with_marks(*marks: tuple[int, str]) -> Trace:
        calls = [
            TraceCall(t=t, messages=n, usage=None, breakpoints=marks) for t, n in ((0, 2), (9, 4))
        ]
        return trace_of(*calls, messages=messages, system_tokens_unknown=False)

    none, system = reads(with_marks())[1], reads(with_marks((0, "5m")))[1]
    assert none == 0 < system
    assert play(with_marks((0, "1h")))[0].outcome.written.keys() == {"1h"}


def test_elsewhere_bills_give_only_lengths() -> None:
    trace = trace_of(
        at(0, 1, bill(written=5000)),
        at(9, 3, bill(written=5300)),  # a miss at home
        at(20, 5, bill(read=5300, written=100)),
    )
    replayed = play(trace, elsewhere=("anthropic", "claude-opus-4-6"))
    assert [call.outcome.total for call in replayed] == [5000, 5300, 5400]
    assert [call.outcome.read for call in replayed] == [0, 5000, 5300]
    assert replayed[0].model == "claude-opus-4-6"


def test_elsewhere_markers_get_a_supported_ttl() -> None:
    trace = trace_of(at(0, 1, bill(written=5000), breakpoints=((0, "1h"),)))
    (call,) = play(trace, elsewhere=("openai", "gpt-6-astra"))
    assert call.outcome.written.keys() == {"30m"}


def test_elsewhere_counts_are_in_that_models_tokens() -> None:
    """The tokenizer since Claude 4.7 makes more of the same text."""
    trace = trace_of(at(0, 1, bill(written=5000)))
    (call,) = play(trace, elsewhere=("anthropic", "claude-opus-5-5"))
    assert 5500 < call.outcome.total < 7500


def test_a_clock_that_stands_or_runs_backwards_keeps_the_order_of_the_calls() -> None:
    trace = trace_of(
        at(10, 1, bill(written=5000)),
        at(10, 3, bill(read=5000, written=10)),
        at(4, 5, bill(read=5010, written=10)),
    )
    assert reads(trace) == [0, 5000, 5010]


def test_calls_without_a_bill_are_replayed_but_not_compared() -> None:
    (call,) = play(trace_of(at(0, 1, None)))
    assert (call.exact, call.cause, call.happened, call.is_pair) == (False, None, None, False)


def test_an_empty_conversation_has_no_calls() -> None:
    assert play(trace_of()) == []
