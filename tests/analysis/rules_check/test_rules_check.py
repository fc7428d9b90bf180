"""Which row a billed call contradicts: one table for each figure, with what cannot tell beside it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import catalog
from anaphora.analysis import rules_check
from anaphora.analysis.rules_check import CheckedFigure
from anaphora.analysis.rules_check.billed_calls import billed_calls
from anaphora.analysis.trace.format import Trace, TraceCall, TraceMessage, TraceUsage
from anaphora.cache.simulator import Mark, Simulator, TokenRuns
from anaphora.rendered import Kind

SONNET = ("anthropic", "claude-sonnet-4-5")
GPT_4O = ("openai", "gpt-4o")
GPT_56 = ("openai", "gpt-5.6")
DEEPSEEK = ("deepseek", "deepseek-v4-pro")
GEMINI = ("google", "gemini-2.5-pro")

#: The evidence of a call on a figure.
YES, NO, NOTHING = (1, 0), (0, 1), (0, 0)

Calls = list[TraceCall]


def bill(read: int = 0, wrote: int = 0, fresh: int = 3, **more: Any) -> TraceUsage:
    return TraceUsage(input=fresh, cache_read=read, cache_write_5m=wrote, **more)


def call(at: float | None, messages: int, usage: TraceUsage | None, **more: Any) -> TraceCall:
    return TraceCall(t=at, messages=messages, usage=usage, **more)


def loop(length: int) -> tuple[TraceMessage, ...]:
    """A question, and then calls of tools with their results."""
    messages_ = [TraceMessage(role="user", content="What is in these files?")]
    for at in range(length):
        messages_.append(TraceMessage(role="assistant", content=f"reading {at} " * 100))
        messages_.append(TraceMessage(role="tool", content=f"file {at}"))
    return tuple(messages_)


def trace(where: tuple[str, str], calls: Calls, **more: Any) -> Trace:
    provider, model = where
    result: dict[str, Any] = {"messages": loop(20), "id": "talk", **more}
    return Trace(provider=provider, model=model, calls=tuple(calls), **result)


def rows_of(*traces: Trace, **options: Any) -> dict[str, CheckedFigure]:
    rows = rules_check.check_rules(billed_calls(traces), **options)
    return {row.figure: row for row in rows}


def evidence_of(figure: str, *traces: Trace) -> tuple[int, int]:
    row = rows_of(*traces).get(figure)
    return NOTHING if row is None else (row.supporting, row.contradicting)


# ── Lengths ──────────────────────────────────────────────────────────────────────────────────────

AT_END: Any = ((0, "5m"),)


@pytest.mark.parametrize(
    "where, usage, marks, expected",
    [
        (SONNET, bill(wrote=900), None, NO),
        (SONNET, bill(read=900), None, NO),
        (SONNET, bill(wrote=1024), None, YES),
        (SONNET, bill(wrote=50_000), None, NOTHING),  # not conclusive for the minimum
        (
            SONNET,
            bill(wrote=100, fresh=1000),
            None,
            NOTHING,
        ),  # what precedes it is written too
        (SONNET, bill(fresh=800), AT_END, YES),
        (SONNET, bill(fresh=800), None, NOTHING),  # who knows whether it marks anything
        (SONNET, bill(fresh=5000), AT_END, NO),
        (SONNET, bill(fresh=1030), AT_END, NOTHING),  # the tail behind the marker may be all of it
        (SONNET, bill(fresh=5000), None, NOTHING),
        (GPT_4O, bill(read=1024), None, YES),
        (GPT_4O, bill(read=896), None, NO),
        (GPT_4O, bill(fresh=5000), None, NOTHING),  # an implicit cache misses for many reasons
        (GPT_56, bill(fresh=5000), AT_END, NOTHING),  # hidden tokens are billed as well
    ],
)
def test_minimum_tokens(
    where: tuple[str, str], usage: TraceUsage, marks: Any, expected: tuple[int, int]
) -> None:
    one = trace(where, [call(0, 1, usage, breakpoints=marks)])
    assert evidence_of("minimum_tokens", one) == expected


@each_row(
    "where, read, expected",
    [
        (GPT_4O, 1152, YES),
        (GPT_4O, 1100, NO),
        (GPT_4O, 0, NOTHING),
        (("openai", "gpt-5.5"), 2432, YES),
        (("openai", "gpt-5.5"), 2560, NO),
        (SONNET, 5001, YES),
        (SONNET, 5056, NOTHING),  # 79 times 64: perhaps by chance
    ],
)
def test_granule_tokens(where: tuple[str, str], read: int, expected: tuple[int, int]) -> None:
    assert evidence_of("granule_tokens", trace(where, [call(0, 1, bill(read))])) == expected


@pytest.mark.parametrize(
    "fresh, marks, expected",
    [(8, AT_END, YES), (50, AT_END, NO), (50, None, NOTHING), (50, (), NOTHING)],
)
def test_uncached_tail(fresh: int, marks: Any, expected: tuple[int, int]) -> None:
    one = trace(SONNET, [call(0, 1, bill(wrote=5000, fresh=fresh), breakpoints=marks)])
    assert evidence_of("uncached_tail", one) == expected


@each_row(
    "where, read, grown, expected",
    [
        (DEEPSEEK, 2176, 400, YES),  # 2,000 were sent before, 300 answered
        (DEEPSEEK, 1920, 400, NO),
        (DEEPSEEK, 1920, 200, NOTHING),  # not all of the answer came back
        (DEEPSEEK, 2560, 700, NOTHING),  # more than prompt and reply: written by another call
        (DEEPSEEK, 1024, 400, NOTHING),  # not even the prompt was found
        (GPT_4O, 1920, 400, NO),  # without hidden reasoning the reply is cached
        (("openai", "o3"), 2176, 400, NOTHING),  # whether reasoning was hidden is not recorded
    ],
)
def test_output_cached(
    where: tuple[str, str], read: int, grown: int, expected: tuple[int, int]
) -> None:
    calls = [
        call(0, 1, bill(fresh=2000, output=300)),
        call(10, 3, bill(read, fresh=2000 + grown - read)),
    ]
    assert evidence_of("output_cached", trace(where, calls)) == expected
    # A client may have sent the answer in a call on the side that it did not record.
    side = trace(where, calls, system_tokens_unknown=True)
    assert evidence_of("output_cached", side) == (NOTHING if read > 2000 else expected)


@each_row(
    "reasoning, read, figure, expected",
    [
        (0, 2176, "visible_output_cached", YES),
        (0, 1920, "visible_output_cached", NO),
        (200, 2176, "output_cached", NO),
        (200, 2176, "visible_output_cached", NOTHING),
        (None, 2176, "visible_output_cached", NOTHING),
    ],
)
def test_cached_reply_by_hidden_reasoning(
    reasoning: int | None, read: int, figure: str, expected: tuple[int, int]
) -> None:
    calls = [
        call(0, 1, bill(fresh=2000, output=300, reasoning=reasoning)),
        call(10, 3, bill(read, fresh=2400 - read)),
    ]
    assert evidence_of(figure, trace(("openai", "gpt-5.2"), calls)) == expected


def test_output_cached_behind_markers() -> None:
    first = call(0, 1, bill(wrote=5000, output=300))
    kept = trace(SONNET, [first, call(10, 3, bill(5000, 320))])
    along = trace(SONNET, [first, call(10, 3, bill(5303, 20))])
    other = trace(SONNET, [first, call(10, 3, bill(5150, 170))])  # an aborted call wrote that
    result = [evidence_of("output_cached", one) for one in (kept, along, other)]
    assert result == [YES, NO, NOTHING]


# ── Markers ──────────────────────────────────────────────────────────────────────────────────────


@each_row(
    "where, usage, more, expected",
    [
        (SONNET, bill(read=5000), {"breakpoints": ()}, NO),
        (SONNET, bill(fresh=5000), {"breakpoints": ()}, YES),
        (SONNET, bill(fresh=500), {"breakpoints": ()}, NOTHING),  # too short in any case
        (SONNET, bill(read=5000), {}, NOTHING),  # markers are not recorded
        (GPT_4O, bill(read=2048), {}, YES),
        (GPT_4O, bill(wrote=2048), {}, NO),
        (GPT_56, bill(wrote=2048), {}, NOTHING),  # both: nothing speaks against it
    ],
)
def test_mechanism(
    where: tuple[str, str], usage: TraceUsage, more: Any, expected: tuple[int, int]
) -> None:
    assert evidence_of("mechanism", trace(where, [call(0, 1, usage, **more)])) == expected


def test_missing_markers_are_conclusive_only_on_their_own_wire() -> None:
    calls = [call(0, 1, bill(read=5000), breakpoints=())]
    messages_ = {
        wire: evidence_of("mechanism", trace(SONNET, calls, wire=wire))
        for wire in ("anthropic", "openai_chat")
    }
    assert messages_ == {"anthropic": NO, "openai_chat": NOTHING}


@each_row(
    "where, written, expected",
    [
        (SONNET, {"cache_write_1h": 5000}, YES),
        (SONNET, {"cache_write_12h": 5000}, NO),
        (SONNET, {"cache_write_1h": 5000, "cache_write_30m": 9}, NO),
        (GPT_56, {"cache_write_30m": 5000}, YES),
        (GPT_56, {"cache_write_5m": 5000}, NOTHING),  # bills without a TTL are recorded as 5m
    ],
)
def test_ttls(where: tuple[str, str], written: Any, expected: tuple[int, int]) -> None:
    usage = TraceUsage(input=3, **written)
    assert evidence_of("ttls", trace(where, [call(0, 1, usage)])) == expected


def far(blocks: int, kind: str, read: int, *, mark: bool = True) -> Trace:
    """Two calls, and between their markers so many blocks in one message."""
    messages_ = (
        TraceMessage(role="user", content="Go."),
        TraceMessage(role="assistant", content="Yes."),
        TraceMessage(role="user", content=[{"type": kind, "n": at} for at in range(blocks)]),
    )
    marks: list[Any] = [((0, "5m"),), ((2, "5m"),)] if mark else [None, None]
    calls = [
        call(0, 1, bill(wrote=5000), breakpoints=marks[0]),
        call(10, 3, bill(read, 5900 - read), breakpoints=marks[1]),
    ]
    return trace(SONNET, calls, messages=messages_)


@each_row(
    "blocks, read, expected",
    [
        (18, 5000, YES),  # with the answer and the entry's own that is the twentieth
        (18, 0, NO),
        (19, 0, YES),
        (19, 5000, NO),
        (3, 5000, NOTHING),  # so near it is found by any figure
    ],
)
def test_lookback_positions(blocks: int, read: int, expected: tuple[int, int]) -> None:
    assert evidence_of("lookback_positions", far(blocks, "text", read)) == expected
    assert evidence_of("lookback_positions", far(blocks, "text", read, mark=False)) == NOTHING


@pytest.mark.parametrize("read, holds", [(0, True), (5000, False)])
def test_lookback_unit(read: int, holds: bool) -> None:
    """Thirty results in a row are thirty blocks, or one run."""
    row = rows_of(far(30, "tool_result", read)).get("lookback_unit")
    assert row is not None
    assert (row.supporting, row.contradicting) == ((1, 0) if holds else (0, 1))
    assert evidence_of("lookback_positions", far(30, "tool_result", read)) == NOTHING
    # By the other reading it is three positions away, and should have been found.
    assert [(other.value, other.fits) for other in row.disputed] == [("tool_runs", not holds)]


# ── Time ─────────────────────────────────────────────────────────────────────────────────────────


def pair(where: tuple[str, str], gap: float, second: TraceUsage, **more: Any) -> Trace:
    first = bill(wrote=5000) if where == SONNET else bill(fresh=5000)
    return trace(where, [call(0, 1, first), call(gap, 3, second)], **more)


@each_row(
    "where, gap, read, expected",
    [
        (SONNET, 400, 5000, NO),
        (SONNET, 400, 0, YES),
        (SONNET, 305, 5000, NOTHING),  # clocks are not that good
        (SONNET, 200, 5000, NOTHING),
        (GPT_4O, 90_000, 4992, NO),  # at most a day
        (GPT_4O, 90_000, 0, YES),
        (GPT_56, 2000, 5000, YES),  # at least half an hour
        (GPT_56, 2000, 0, NOTHING),
        (GEMINI, 9000, 5000, NOTHING),  # its hour is that of handles
    ],
)
def test_lifetime(where: tuple[str, str], gap: float, read: int, expected: tuple[int, int]) -> None:
    wrote = bill(wrote=5000) if where in (SONNET, GPT_56) else bill(fresh=5000)
    calls = [call(0, 1, wrote), call(gap, 3, bill(read, fresh=5100 - read))]
    assert evidence_of("lifetime", trace(where, calls)) == expected


def test_one_hour_ttl() -> None:
    first = call(0, 1, TraceUsage(input=3, cache_write_1h=5000))
    result = [
        evidence_of("lifetime", trace(SONNET, [first, call(gap, 3, bill(5000, 100))]))
        for gap in (400, 3700)
    ]
    assert result == [NOTHING, NO]


@pytest.mark.parametrize("gap, expected", [(400, NOTHING), (1000, NO)])
def test_where_only_ends_are_recorded_a_call_may_have_begun_earlier(
    gap: float, expected: tuple[int, int]
) -> None:
    calls = [
        TraceCall(t_end=0, messages=1, usage=bill(wrote=5000)),
        TraceCall(t_end=gap, messages=3, usage=bill(5000, 100)),
    ]
    assert evidence_of("lifetime", trace(SONNET, calls)) == expected


def test_another_conversation_may_have_kept_an_entry_alive() -> None:
    outlived = pair(SONNET, 400, bill(5000, 100), group="g")
    branch = trace(SONNET, [call(200, 3, bill(5000, 90))], group="g", id="branch")
    assert evidence_of("lifetime", outlived) == NO
    assert evidence_of("lifetime", outlived, branch) == NOTHING


@each_row(
    "gap, read, expected",
    [(200, 5000, YES), (200, 0, NO), (200, 3000, NOTHING), (100, 0, NOTHING), (295, 0, NOTHING)],
)
def test_default_ttl(gap: float, read: int, expected: tuple[int, int]) -> None:
    one = pair(SONNET, gap, bill(read, 5100 - read))
    assert evidence_of("default_ttl", one) == expected


@pytest.mark.parametrize("lost, contradicted", [(5, False), (6, True)])
def test_a_ttl_is_contradicted_when_most_calls_miss(lost: int, contradicted: bool) -> None:
    calls = [call(0, 1, bill(wrote=5000))]
    for at in range(1, 11):
        left = calls[-1].usage.cached  # type: ignore[union-attr]
        usage = bill(0, left + 100) if at <= lost else bill(left, 100)
        calls.append(call(200 * at, 1 + 2 * at, usage))
    row = rows_of(trace(SONNET, calls))["default_ttl"]
    assert (row.contradicting, row.looked_at) == (lost, 10)
    assert row.contradicted is contradicted


@pytest.mark.parametrize(
    "second, third, expected",
    [
        (bill(5000), bill(5000), YES),
        (bill(5000), bill(0, 5000), NO),
        (bill(5000, 100), bill(5100), NOTHING),  # that entry is new
    ],
)
def test_reads_refresh(second: TraceUsage, third: TraceUsage, expected: tuple[int, int]) -> None:
    calls = [call(0, 1, bill(wrote=5000)), call(200, 1, second), call(400, 1, third)]
    assert evidence_of("reads_refresh", trace(SONNET, calls)) == expected


@pytest.mark.parametrize(
    "rest, read, expected",
    [
        (3.0, 5100, YES),
        (3.0, 5000, NO),  # what the call before the last left
        (3.0, 0, NOTHING),  # lost, which is another matter
        (2.0, 5000, NOTHING),  # by the rule
    ],
)
def test_visibility_delay(rest: float, read: int, expected: tuple[int, int]) -> None:
    calls = [
        call(0, 1, bill(wrote=5000), t_end=10.0),
        call(11, 3, bill(5000, 100), t_end=20.0),
        call(20 + rest, 5, bill(read, 5200 - read)),
    ]
    assert evidence_of("visibility_delay", trace(SONNET, calls)) == expected


# ── Shares ───────────────────────────────────────────────────────────────────────────────────────


def follow_ups(where: tuple[str, str], reads: list[int]) -> list[Trace]:
    return [
        trace(
            where,
            [call(0, 1, bill(fresh=5000)), call(10, 3, bill(read, fresh=5100 - read))],
            id=f"talk {at}",
        )
        for at, read in enumerate(reads)
    ]


@pytest.mark.parametrize(
    "figure, reads, counted, contradicted",
    [
        ("missed", [4992] * 96 + [0] * 4, (4, 100), False),
        ("missed", [4992] * 91 + [0] * 9, (9, 100), False),  # 4 %, and chance
        ("missed", [4992] * 70 + [0] * 30, (30, 100), True),
        ("cut_short", [4992] * 85 + [2048] * 15, (15, 100), False),
        ("cut_short", [4992] * 50 + [2048] * 50 + [0] * 9, (50, 100), True),
    ],
)
def test_shares(
    figure: str, reads: list[int], counted: tuple[int, int], contradicted: bool
) -> None:
    row = rows_of(*follow_ups(GPT_4O, reads))[figure]
    assert (row.contradicting, row.looked_at, row.contradicted) == (*counted, contradicted)


def test_unstated_figures_are_counted_and_contradict_nothing() -> None:
    row = rows_of(*follow_ups(DEEPSEEK, [0] * 10))["missed"]
    assert (row.value, row.contradicting, row.contradicted) == (None, 10, False)
    assert row.source == "not stated"


def test_an_unrecorded_system_prompt_may_have_changed_at_a_user_turn() -> None:
    messages_ = (
        TraceMessage(role="user", content="One."),
        TraceMessage(role="assistant", content="Two."),
        TraceMessage(role="user", content="Three."),
    )
    lost = [call(0, 1, bill(fresh=5000)), call(10, 3, bill(fresh=5100))]
    result = [
        evidence_of(
            "missed", trace(GPT_4O, lost, messages=messages_, system_tokens_unknown=unknown)
        )
        for unknown in (False, True)
    ]
    assert result == [NO, NOTHING]


# ── Changes ──────────────────────────────────────────────────────────────────────────────────────

OFF, HIGH = "thinking_level_change:off", "thinking_level_change:high"


@pytest.mark.parametrize(
    "read, expected, all_of_it_fits",
    [(5000, NO, False), (2000, YES, False), (0, YES, True)],
)
def test_invalidates(read: int, expected: tuple[int, int], all_of_it_fits: bool) -> None:
    messages_ = tuple(
        TraceMessage(role="user" if at % 2 == 0 else "assistant", content=f"m{at}")
        for at in range(5)
    )
    calls = [
        call(0, 1, bill(wrote=4900), note=OFF),
        call(10, 3, bill(4900, 100)),
        call(20, 5, bill(read, 5100 - read), note=HIGH),
    ]
    row = rows_of(trace(SONNET, calls, messages=messages_))["invalidates.thinking"]
    assert (row.supporting, row.contradicting) == expected
    assert [other.fits for other in row.disputed] == [all_of_it_fits]
    guessed = [call(0, 1, bill(wrote=5000)), call(10, 3, bill(read, 5100 - read), note=HIGH)]
    # The level before is not recorded.
    assert (
        evidence_of("invalidates.thinking", trace(SONNET, guessed, messages=messages_)) == NOTHING
    )


def test_another_model_reads_nothing_of_the_first() -> None:
    other = "claude-opus-4-5"
    calls = [call(0, 1, bill(wrote=5000)), call(10, 3, bill(5000, 100), model=other)]
    row = rows_of(trace(SONNET, calls))["invalidates.model"]
    assert (row.contradicting, row.models) == (1, (other,))
    calls[1] = call(10, 3, bill(2000, 3100), model=other)  # left by another conversation
    assert evidence_of("invalidates.model", trace(SONNET, calls)) == NOTHING


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_row_has_contradicting_calls_and_disputed_values() -> None:
    reads = [1024, 1088, 1152]
    calls = [call(at * 10.0, 1, bill(read)) for at, read in enumerate(reads)]
    row = rows_of(trace(("deepseek", "deepseek-chat"), calls))["granule_tokens"]
    figure = catalog.rules("deepseek", "deepseek-chat").granule_tokens
    assert (row.value, row.source, row.date) == (figure.value, figure.source, figure.date)
    assert (row.supporting, row.contradicting, row.contradicted) == (2, 1, True)
    (example,) = row.examples
    assert (example.trace, example.call) == ("talk", 1)
    assert example.billed == "1,088 read, 3 uncached"
    assert example.says == "reads are multiples of 128"
    (other,) = row.disputed
    assert (other.value, other.looked_at, other.contradicting, other.fits) == (64, 3, 0, True)


def test_contradicted_rows_come_first_and_examples_are_few() -> None:
    calls = [call(at * 10.0, 1, bill(1100)) for at in range(9)]
    rows = rules_check.check_rules(billed_calls([trace(GPT_4O, calls)]), examples=2)
    assert [row.figure for row in rows if row.contradicted] == ["granule_tokens"]
    assert rows[0].figure == "granule_tokens"
    assert len(rows[0].examples) == 2


@pytest.mark.parametrize("threshold, contradicted", [(0.05, True), (0.1, False)])
def test_a_small_share_is_tolerated(threshold: float, contradicted: bool) -> None:
    reads = [1024] * 9 + [1100]
    calls = [call(at * 10.0, 1, bill(read)) for at, read in enumerate(reads)]
    row = rows_of(trace(GPT_4O, calls), threshold=threshold)["granule_tokens"]
    assert row.contradicted is contradicted


def test_the_same_figure_of_two_models_is_one_row() -> None:
    opus = trace(("anthropic", "claude-opus-4-5"), [call(0, 1, bill(5001))], id="other")
    rows = rules_check.check_rules(billed_calls([trace(SONNET, [call(0, 1, bill(5001))]), opus]))
    (row,) = [row for row in rows if row.figure == "granule_tokens"]
    assert set(row.models) == {"claude-sonnet-4-5", "claude-opus-4-5"}


def test_calls_without_a_bill_are_skipped() -> None:
    assert rows_of(trace(SONNET, [call(0, 1, None)])) == {}


# ── A law ────────────────────────────────────────────────────────────────────────────────────────


def replayed(where: tuple[str, str], sizes: list[int], gaps: list[float]) -> Trace:
    """A conversation with bills of a provider that keeps to its rules."""
    rules = catalog.rules(*where)
    simulator = Simulator(rules)
    messages_ = loop(len(sizes))
    marks = rules.mechanism.value == "explicit"
    blocks, calls, at = [("start", 900)], [], 0.0
    kinds = [Kind.TEXT]
    for turn, (size, gap) in enumerate(zip(sizes, gaps, strict=True)):
        if turn:
            blocks += [(f"answer {turn}", 50), (f"result {turn}", size)]
            kinds += [Kind.TEXT, Kind.TOOL_RESULT]
        at += gap
        last = len(blocks) - 1
        prompt = TokenRuns.given(
            list(blocks),
            markers=(Mark(last, "5m"),) if marks else (),
            kinds=list(kinds),
            from_model=[name.startswith("answer") for name, _ in blocks],
        )
        outcome = simulator.call(prompt, at=at, ended=at + 1)
        usage = TraceUsage(
            input=outcome.uncached,
            cache_read=outcome.read,
            cache_write_5m=sum(outcome.written.values()),
            output=50,
        )
        marked: Any = ((last, "5m"),) if marks else None
        calls.append(call(at, last + 1, usage, t_end=at + 1, breakpoints=marked))
    return trace(where, calls, messages=messages_)


@given(
    st.sampled_from([SONNET, GPT_4O, DEEPSEEK, ("anthropic", "claude-opus-4-5")]),
    st.lists(
        st.tuples(st.integers(1, 6000), st.floats(5, 1000) | st.floats(5, 100_000)),
        min_size=1,
        max_size=12,
    ),
)
def test_a_provider_that_follows_its_rules_contradicts_none(
    where: tuple[str, str], turns: list[tuple[int, float]]
) -> None:
    one = replayed(where, [size for size, _ in turns], [gap for _, gap in turns])
    assert [row for row in rows_of(one).values() if row.contradicted] == []


@pytest.mark.parametrize(
    "ended, gap, read, expected",
    [
        (12, 308, 5000, YES),
        (12, 308, 0, NOTHING),  # it may have begun at once
        (12, 299, 5000, NOTHING),
        (5, 308, 5000, NOTHING),  # too late by either
    ],
)
def test_ttl_from(ended: float, gap: float, read: int, expected: tuple[int, int]) -> None:
    calls = [
        call(0, 1, bill(wrote=5000), t_end=ended),
        call(gap, 3, bill(read, 5200 - read), t_end=gap + 5),
    ]
    assert evidence_of("ttl_from", trace(SONNET, calls)) == expected


def test_lifetime_ends_after_the_response_before() -> None:
    """Forty seconds until the response began: 330 s after the request is within the lifetime."""
    calls = [call(0, 1, bill(wrote=5000), t_end=60), call(330, 3, bill(5000, 200))]
    assert evidence_of("lifetime", trace(SONNET, calls)) == NOTHING
    calls = [call(0, 1, bill(wrote=5000), t_end=10), call(330, 3, bill(5000, 200))]
    assert evidence_of("lifetime", trace(SONNET, calls)) == NO
