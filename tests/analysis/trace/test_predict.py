"""Predictions: from the calls before, and from nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.small_traces import assistant, at, bill, calls_tool, tool, trace_of, user
from support.tables import each_row

from anaphora.analysis.trace.format import Trace, TraceCall, TraceMessage, TraceUsage
from anaphora.analysis.trace.predict import Predictor
from anaphora.analysis.trace.predicted import Predicted

LOOP = [user("q"), calls_tool("one"), tool("one"), calls_tool("two"), tool("two"), assistant("a")]


def play(*traces: Trace, elsewhere: tuple[str, str] | None = None) -> list[Predicted]:
    return list(Predictor(elsewhere=elsewhere).play(traces))


def reads(*traces: Trace) -> list[int]:
    return [call.outcome.read for call in play(*traces)]


def test_a_call_reads_exactly_what_the_previous_one_read_and_wrote() -> None:
    bills = bill(written=5000), bill(read=5000, written=321), bill(read=5321, written=77)
    calls = [at(10 * n, 2 * n + 1, usage) for n, usage in enumerate(bills)]
    first, second, third = play(trace_of(*calls, messages=LOOP))
    assert [call.outcome.read for call in (first, second, third)] == [0, 5000, 5321]
    assert (first.is_pair, second.is_pair, second.in_loop) == (False, True, True)
    assert (third.expected, third.happened, third.exact) == ("hit", "hit", True)


@each_row(
    "ttl, gap, read", [("5m", 299, 5000), ("5m", 301, 0), ("1h", 3599, 5000), ("1h", 3601, 0)]
)
def test_expiry_is_predicted_from_the_clock(ttl: str, gap: float, read: int) -> None:
    written = TraceUsage(**{f"cache_write_{ttl}": 5000})
    last = play(trace_of(at(0, 1, written), at(gap, 3, bill(read=read, written=10))))[-1]
    assert (last.outcome.read, last.exact, last.cause) == (read, True, None)


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
    and the next conversation of the group also reads it."""
    first = trace_of(at(0, 1, bill(read=11_000, written=400)), id="one", group="run")
    second = trace_of(at(10, 1, None), id="two", group="run", messages=[user("something else")])
    before, after = play(first, second)
    assert (before.outcome.read, before.cause) == (0, "written_by_others")
    assert after.outcome.read == 11_000


GUIDE = TraceMessage(role="system", content="guide " * 3000)
MARKED = ((0, "5m"), (1, "5m"))


def guided(id: str, t: float | None, usage: TraceUsage | None, **more: Any) -> Trace:
    """One call with the same system prompt and a message of its own."""
    call = TraceCall(t=t, messages=2, usage=usage, breakpoints=MARKED)
    messages = [GUIDE, user(id)]
    return trace_of(call, id=id, messages=messages, system_tokens_unknown=False, **more)


@pytest.mark.parametrize("group", ["run", "another run"])
def test_conversations_of_an_account_share_a_beginning(group: str) -> None:
    first = guided("a", 0, bill(written=3000), group="run")
    other = guided("b", 10, None, group=group)
    assert 1024 < reads(first, other)[1] < 3000
    assert reads(replace(first, account="mine"), replace(other, account="yours"))[1] == 0


def test_the_length_at_a_marker_is_learned_from_the_bill() -> None:
    """The second call reads the system prompt: the third knows how long it is."""
    bills = bill(written=3000), bill(read=2987, written=14), bill(read=2987, written=20)
    calls = [guided(f"n{n}", 10 * n, usage) for n, usage in enumerate(bills)]
    assert reads(*calls)[2] == 2987


def test_a_marker_before_the_end_is_as_long_as_what_was_cached() -> None:
    """Only the system prompt is marked: what is cached is its length, not that of the prompt."""
    calls = [
        TraceCall(t=t, messages=2, usage=bill(written=5752, input=900), breakpoints=((0, "5m"),))
        for t in (0, 9)
    ]
    first, second = (
        trace_of(call, id=name, messages=[GUIDE, user("q " * 900)], system_tokens_unknown=False)
        for name, call in zip("ab", calls, strict=True)
    )
    last = play(first, second)[1].outcome
    assert (last.read, last.total) == (5752, 6652)


def test_conversations_without_a_clock_follow_each_other_in_the_file() -> None:
    """Each is two calls, and the first of the second reads what the first conversation wrote."""

    def twice(id: str) -> Trace:
        calls = [
            TraceCall(messages=n, usage=usage, breakpoints=((0, "5m"), (n - 1, "5m")))
            for n, usage in ((2, bill(read=2987, written=13)), (4, bill(read=3000, written=9)))
        ]
        messages = [GUIDE, user(id), assistant("a"), user("r")]
        return trace_of(*calls, id=id, messages=messages, system_tokens_unknown=False)

    played = play(twice("one"), twice("two"))
    assert [(call.trace, call.call) for call in played] == [
        ("one", 0), ("one", 1), ("two", 0), ("two", 1)
    ]  # fmt: skip
    assert [call.outcome.read for call in played[2:]] == [2987, 3000]


def test_a_conversation_without_a_clock_happens_when_its_neighbour_did() -> None:
    known = guided("a", 1_000_000, bill(written=3000))
    assert reads(known, guided("b", None, None))[1] > 1024


def unrecorded(id: str, t: float, usage: TraceUsage | None, **more: Any) -> Trace:
    return trace_of(at(t, 1, usage), id=id, messages=[user(f"task {id}")], **more)


def test_an_unrecorded_beginning_is_read_by_later_conversations() -> None:
    """The first bill that reads shows how much of the unrecorded beginning is shared, whatever the
    group; it stays so when one conversation reads nothing, and while it lives."""
    bills = [bill(written=9000), bill(read=8123, written=40), None]
    runs = [unrecorded(str(n), 60 * n, usage, group=f"g{n}") for n, usage in enumerate(bills)]
    assert reads(*runs) == [0, 0, 8123]
    lost = unrecorded("lost", 130, bill(written=8170), group="lost")
    again = unrecorded("again", 140, None, group="again")
    assert reads(*runs, lost, again)[-1] == 8123
    assert reads(*runs, unrecorded("late", 1000, None, group="late"))[-1] == 0


def test_the_first_conversation_of_a_group_and_its_subagents_begin_differently() -> None:
    def group(name: str, t: float, known: bool) -> list[Trace]:
        bills = [bill(read=8000, written=50), bill(read=3000, written=70)]
        return [
            unrecorded(f"{name}{n}", t + n, usage if known else None, group=name)
            for n, usage in enumerate(bills)
        ]

    assert reads(*group("a", 0, True), *group("b", 9, True), *group("c", 20, False))[-2:] == [
        8000, 3000,
    ]  # fmt: skip


@pytest.mark.parametrize("provider, model", [("openai", "gpt-4o"), ("openai", "gpt-5.2")])
def test_automatic_caches_share_an_unrecorded_beginning_in_granules(
    provider: str, model: str
) -> None:
    bills = [bill(input=5000), bill(read=4864, input=140), bill(input=5004), None]
    runs = [
        unrecorded(str(n), 9 * n, usage, provider=provider, model=model)
        for n, usage in enumerate(bills)
    ]
    assert reads(*runs)[2:] == [4864, 4864]


def test_a_part_of_a_shared_beginning_that_is_read_once_changes_nothing() -> None:
    """Routing may cut a read short; the same short read twice is another beginning."""
    bills = [bill(input=5000), bill(read=4864, input=140), bill(read=2048, input=3000)]
    runs = [
        unrecorded(str(n), 9 * n, usage, provider="openai", model="gpt-4o")
        for n, usage in enumerate([*bills, bills[-1], None])
    ]
    assert reads(*runs)[3:] == [4864, 2048]


def test_tokens_are_counted_by_growth_and_not_by_the_first_bill() -> None:
    """The first bill contains a system prompt of 30,000 tokens that is not recorded, as is usual.
    The text is three times as dense as the catalog says: after some calls the estimates
    know."""
    text = "0123456789abcdef " * 200
    messages = [message for n in range(12) for message in (user(f"{n} {text}"), assistant("ok"))]
    grown = [at(9 * n, 2 * n + 1, bill(input=30_000 + 2000 * n, output=2)) for n in range(12)]
    trace = trace_of(*grown, messages=messages, provider="openai", model="gpt-4o")
    calls = play(trace)
    assert calls[0].outcome.total == pytest.approx(30_000, rel=0.05)
    errors = [abs(call.outcome.total / (30_000 + 2000 * n) - 1) for n, call in enumerate(calls)]
    assert max(errors[1:]) < 0.06
    assert max(errors[6:]) < 0.015


def test_a_first_prompt_that_is_recorded_whole_teaches_the_length_of_text() -> None:
    """The text is twice as dense as the catalog says."""
    texts = [f"{name} 0123456789abcdef " * 3000 for name in "abcdefgh"]
    runs = [
        trace_of(at(1000 * n, 1, bill(input=len(text) // 2)), id=str(n), provider="openai",
                 model="gpt-4o", messages=[user(text)], system_tokens_unknown=False)
        for n, text in enumerate(texts)
    ]  # fmt: skip
    errors = [abs(1 - 2 * call.outcome.total / len(texts[0])) for call in play(*runs)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.15 < 0.4 < errors[0]


@each_row(
    "text, output, least, most",
    [
        ("wörtlich " * 100, 391, 5390, 5400),
        ("word " * 400, 2, 5350, 5800),  # from the middle of a stream
        ("word " * 400, 4000, 5350, 5800),  # with reasoning that is not sent back
    ],
)
def test_output_tokens_of_a_reply_that_fit_it_are_counted_when_it_is_sent_back(
    text: str, output: int, least: int, most: int
) -> None:
    calls = at(0, 1, bill(written=5000, output=output)), at(9, 3, None)
    trace = trace_of(*calls, messages=[user("q"), assistant(text), user("r")])
    assert least < play(trace)[1].outcome.total < most


IMAGES: list[Any] = [
    {"type": "image", "data": "iVBOR" * 40_000, "mimeType": "image/png"},
    {"type": "image", "source": {"type": "base64", "data": "iVBOR" * 40_000}},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBOR" * 40_000}},
    {"type": "input_image", "image_url": "data:image/png;base64," + "iVBOR" * 40_000},
    {"inlineData": {"mimeType": "image/png", "data": "iVBOR" * 40_000}},
    {"type": "tool_result", "content": [{"type": "image", "data": "iVBOR" * 40_000}]},
    {"type": "resource", "resource": {"mimeType": "image/png", "data": "iVBOR" * 40_000}},
]


@each_row("image", IMAGES)
def test_images_are_not_counted_as_text(image: Any) -> None:
    message = TraceMessage(role="user", content=[{"type": "text", "text": "look"}, image])
    trace = trace_of(at(0, 1, bill(written=5000)), at(9, 3, None), messages=[*LOOP[:2], message])
    assert 5000 < play(trace)[1].outcome.total < 7000


@pytest.mark.parametrize(
    "provider, model, shared", [("openai", "gpt-4o", False), ("anthropic", "claude-opus-4-5", True)]
)
def test_tools_are_hashed_where_the_rules_say(provider: str, model: str, shared: bool) -> None:
    """Another system prompt leaves the tools' entry on Anthropic, and nothing on OpenAI."""
    tools = [{"name": "look", "description": "word " * 8000}]

    def one(system: str, t: float) -> Trace:
        marks = (("tools", "5m"), (0, "5m")) if shared else None
        call = TraceCall(t=t, messages=2, usage=bill(written=9000), breakpoints=marks)
        messages = [TraceMessage(role="system", content=f"{system} " * 2000), user("q")]
        return trace_of(
            call, id=system, messages=messages, tools=tools, provider=provider, model=model,
            system_tokens_unknown=False,
        )  # fmt: skip

    assert (reads(one("first", 0), one("second", 9))[1] > 4096) is shared
    assert reads(one("first", 0), replace(one("first", 9), id="again"))[1] > 4096


@each_row(
    "provider, model, step, left_out, wrong",
    [
        ("zai", "glm-4.6", 1, 2, 0),
        ("openai", "gpt-5.2", 128, -40, 2),
        ("openai", "gpt-5.2", 128, 0, 2),
        ("openai", "gpt-5.2", 128, 60, 2),
    ],
)
def test_where_a_read_ends_in_the_reply_is_learned_from_bills(
    provider: str, model: str, step: int, left_out: int, wrong: int
) -> None:
    """GLM leaves out a token or two. In steps, the end is where most reads agree that go beyond the
    prompt: most replies are longer than a step."""
    calls, total, end, texts = [], 3000, 0, list[TraceMessage]()
    for n in range(80):
        read, output = end // step * step, 60 + 170 * n % 900
        texts += [user(f"{2 * n} " * 200), assistant("word " * output)]
        calls.append(at(9 * n, 2 * n + 1, bill(read, input=total - read, output=output)))
        end, total = total + output - left_out, total + output + 200 + 29 * n % 31
    played = play(trace_of(*calls, messages=texts, provider=provider, model=model))
    later = played[2:] if step == 1 else played[-40:]
    assert sum(not call.exact for call in later) <= wrong


def test_the_share_of_late_writes_is_that_of_the_model() -> None:
    """The share of the rules counts like four bills."""

    def quick(model: str, t: float, count: int) -> Trace:
        calls = [at(t + n, 2 * n + 1, bill(6000 + 90 * n, 90)) for n in range(count)]
        return trace_of(*calls, id=model, model=model)

    played = play(quick("claude-sonnet-4-6", 0, 11), quick("claude-opus-4-6", 99, 3))
    shares = [one.share for call in played for one in call.chances if one.reason == "late_writes"]
    assert shares == pytest.approx([0.35 * 4 / (4 + n) for n in (*range(10), 0, 1)])


def test_the_range_of_a_conversation_comes_from_earlier_ones() -> None:
    def one(n: int) -> Trace:
        bills = bill(written=5000), bill(read=0 if n == 14 else 5000, written=100 + 10 * n)
        calls = [at(1000 * n + 9 * m, 2 * m + 1, usage) for m, usage in enumerate(bills)]
        return trace_of(*calls, id=str(n), group=str(n))

    ranges = [call.conversation_range for call in play(*map(one, range(40)))[1::2]]
    assert ranges[:10] == [None] * 10
    widths = [span.high / span.low for span in ranges[10:] if span is not None]
    assert len(widths) == 30
    assert widths[-1] < 1.1 < widths[0], "the first, with 30,000 assumed tokens, is forgotten"


def test_a_client_that_marks_only_its_beginning_is_learned_from_the_bill() -> None:
    """Thousands of tokens are uncached: the last block is not marked."""
    bills = [bill(written=8000, input=2000), bill(read=8000, input=2600), bill(read=8000, input=0)]
    texts = "q " * 4000, "a " * 300, "r " * 900, "b", "s"
    messages = [(user, assistant)[n % 2](text) for n, text in enumerate(texts)]
    calls = [at(9 * n, 2 * n + 1, usage) for n, usage in enumerate(bills)]
    played = play(trace_of(*calls, messages=messages))
    assert [call.outcome.read for call in played] == [0, 8000, 8000]
    assert played[2].outcome.total == pytest.approx(10_600, rel=0.01)


def test_a_prompt_without_markers_is_as_long_as_its_total_where_markers_are_an_option() -> None:
    calls = at(0, 1, bill(input=5000)), at(9, 3, bill(read=3840, input=1300)), at(20, 5, None)
    trace = trace_of(*calls, provider="alibaba", model="qwen3.8-max")
    second, third = play(trace)[1:]
    assert second.is_pair
    assert third.outcome.total == pytest.approx(5140, rel=0.01)


def volatile(id: str, t: float, *reads: int | None, group: str | None = None) -> Trace:
    """A conversation of user turns on DeepSeek, each 500 tokens longer than the one before."""
    calls = [
        TraceCall(
            t=t + 9 * n,
            messages=2 * n + 2,
            usage=None if read is None else bill(read=read, input=2000 + 500 * n - read),
        )
        for n, read in enumerate(reads)
    ]
    messages = [GUIDE, user(f"task {id}"), *(assistant("a"), user("r")) * len(reads)]
    return trace_of(
        *calls, id=id, messages=messages, provider="deepseek", model="deepseek-chat", group=group,
        system_tokens_unknown=False,
    )  # fmt: skip


def test_a_client_that_changes_its_beginning_is_learned_from_bills() -> None:
    """The recording shows one system prompt, the bills that it differs at every user turn. After
    some, other conversations need one such turn to know it, and those of the group none."""
    first = volatile("a", 0, 0, 0, 0, 0, 0, 0, group="clock")
    assert reads(first)[1] > 0 == reads(first)[-1]
    assert reads(first, volatile("b", 99, 0, 0, None, group="other"))[-2:] == [1920, 0]
    assert reads(first, volatile("b", 99, None, None, group="clock"))[-2:] == [0, 0]


def test_a_miss_is_not_a_changed_beginning() -> None:
    """After a miss the next call reads again; so it does the next time."""
    played = play(volatile("a", 0, 0, 0, 2432, 0, 3456, 0, None))
    assert played[-1].outcome.read == 4480


@each_row(
    "note, turn, expected",
    [
        (None, 2, [0, 5000, 5020]),
        ("thinking_level_change:low;thinking_level_change:high", 2, [0, 5000, 0]),
        ("thinking_level_change:low;thinking_level_change:off", 2, [0, 5000, 5020]),  # restored
        ("thinking_level_change:high", 1, [0, 5000, 0]),  # waits for the next user turn
        ("model_change:claude-opus-4-5", 2, [0, 5000, 0]),
        ("model_change:claude-sonnet-4-5-20250929", 2, [0, 5000, 5020]),  # the same model
    ],
)
def test_a_noted_level_or_model_changes_what_is_read(
    note: str | None, turn: int, expected: list[int]
) -> None:
    calls = [at(0, 1, bill(written=5000)), at(9, 3, bill(read=5000, written=20)), at(20, 7, None)]
    calls[turn] = replace(calls[turn], note=note)
    played = play(trace_of(*calls, messages=[*LOOP[:5], assistant("a"), user("next")]))
    assert [call.outcome.read for call in played] == expected
    if not expected[-1] and "level" in (note or ""):
        assert {span.reason for span in played[-1].outcome.spans} == {"param_changed"}


@pytest.mark.parametrize(
    "model, wire, read",
    [
        ("claude-sonnet-4-5", "anthropic", 5000),
        ("claude-sonnet-4-5", None, 5300),  # whether the client resent it is not recorded
        ("claude-opus-4-5", "anthropic", 5300),
    ],
)
def test_some_models_drop_earlier_reasoning_at_a_user_turn(
    model: str, wire: str | None, read: int
) -> None:
    thinking = [{"type": "thinking", "thinking": "hm " * 200}]
    messages = [user("q"), replace(calls_tool("one"), content=thinking), tool("one")]
    messages += [assistant("a"), user("next")]
    calls = at(0, 1, bill(written=5000)), at(9, 3, bill(5000, 300)), at(20, 5, None)
    assert reads(trace_of(*calls, messages=messages, model=model, wire=wire))[1:] == [5000, read]


def test_recorded_markers_are_used() -> None:
    messages = [GUIDE, user("q"), assistant("a"), user("r")]

    def with_marks(*marks: tuple[int, str]) -> Trace:
        calls = [at(t, n, None, breakpoints=marks) for t, n in ((0, 2), (9, 4))]
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
    calls = at(10, 1, bill(written=5000)), at(10, 3, bill(5000, 10)), at(4, 5, bill(5010, 10))
    assert reads(trace_of(*calls)) == [0, 5000, 5010]


def test_calls_without_a_bill_are_replayed_but_not_compared() -> None:
    (call,) = play(trace_of(at(0, 1, None)))
    assert (call.exact, call.cause, call.happened, call.is_pair) == (False, None, None, False)


def test_an_empty_conversation_has_no_calls() -> None:
    assert play(trace_of()) == []


def test_a_changed_word_keeps_the_tokens_before_it_where_the_cache_works_on_tokens() -> None:
    """Two conversations of one account whose system prompts differ near the end."""
    text = " ".join(f"word{number}" for number in range(6_000))
    conversations = [
        trace_of(
            at(float(number), 2, None),
            id=f"conversation {number}",
            group="one account",
            messages=[TraceMessage(role="system", content=text + f" on day {number}"), user("q")],
            system_tokens_unknown=False,
            provider=provider,
            model=model,
        )
        for provider, model in (("openai", "gpt-4.1"), ("deepseek", "deepseek-v4-pro"))
        for number in range(2)
    ]
    openai = play(*conversations[:2])[1].outcome
    assert openai.total - 256 < openai.read == openai.read // 128 * 128
    assert play(*conversations[2:])[1].outcome.read == 0
