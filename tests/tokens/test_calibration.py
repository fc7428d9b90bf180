"""Bills teach: prefixes are known to the token, ratios come right, and one odd call spoils nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphora import catalog
from anaphora.prompt import Call, Params, PromptIR, ToolChoice
from anaphora.rendered import Rendered
from anaphora.tokens import Calibration, Count, Growth, count_chunks
from anaphora.tokens.calibration import BILLS, GROWTHS
from anaphora.values import Bytes, Conversation, Image, Message, Tool
from anaphora.wire import anthropic

CLAUDE = catalog.profile("anthropic", "claude-sonnet-4-5")
STATED = CLAUDE.token_error.value
PER_BYTE = 1 / CLAUDE.bytes_per_token.value
WEATHER = Tool("get_weather", "The weather in a city.")


def render(
    conversation: Conversation,
    previous: Rendered | None = None,
    *,
    tail: str = "",
    model: str = CLAUDE.id,
    tool_choice: ToolChoice | None = None,
) -> Rendered:
    volatile = [Message.user(tail)] if tail else []
    ir = PromptIR.chat(conversation, system="Be brief. " * 50, tail=volatile)
    params = Params(max_tokens=100, tool_choice=tool_choice)
    call = Call(ir=ir, model=model, tools=(WEATHER,), params=params)
    return anthropic.render(call, CLAUDE, previous)


def turn(conversation: Conversation, words: int, number: int = 0) -> Conversation:
    said, answered = f"question {number} " * (words // 4), f"answer {number} " * (words // 2)
    return conversation.append(Message.user(said), Message.assistant(answered))


def counts(rendered: Rendered, calibration: Calibration | None = None) -> Count:
    return count_chunks(rendered, CLAUDE, calibration).total


def billed(rendered: Rendered, tokens: int, calibration: Calibration | None = None) -> Calibration:
    return count_chunks(rendered, CLAUDE, calibration).billed(tokens)


# ── Prefixes that were billed ────────────────────────────────────────────────────────────────────


def test_what_was_billed_is_known_to_the_token() -> None:
    rendered = render(turn(Conversation(), 100))
    assert counts(rendered, billed(rendered, 777)) == Count.exactly(777)


def test_only_what_is_new_is_unsure() -> None:
    first = render(conversation := turn(Conversation(), 400))
    after = count_chunks(render(turn(conversation, 40), first), CLAUDE, billed(first, 5000))
    new = after.between(len(first), len(after))
    assert after.total == Count.exactly(5000) + new
    assert after.total.error < 0.05 < count_chunks(after.rendered, CLAUDE).total.error


def test_between_two_bills_counts_are_in_proportion_and_within_both() -> None:
    first = render(conversation := turn(Conversation(), 100))
    second = render(conversation := turn(turn(conversation, 100), 100), first)
    third = render(turn(conversation, 10), second)
    calibration = billed(second, 1800, billed(first, 1000))
    found = count_chunks(third, CLAUDE, calibration)
    assert found.upto(len(first)) == Count.exactly(1000)
    assert found.upto(len(second)) == Count.exactly(1800)
    middle = found.upto(len(first) + 2)
    assert middle.tokens == pytest.approx(1400, abs=10)
    assert 1000 <= middle.low < middle.tokens < middle.high <= 1800
    # Before the first bill, too: no more than was billed in all.
    assert found[0].high <= 1000


def test_a_tail_that_went_is_taken_off_the_bill() -> None:
    first = render(conversation := turn(Conversation(), 200), tail="state: " + "x " * 50)
    calibration = billed(first, 1000)
    # The same prompt again, tail and all: nothing is unsure.
    assert counts(first, calibration) == Count.exactly(1000)
    after = count_chunks(render(conversation, first), CLAUDE, calibration)
    assert after.total.low < after.total.tokens < 1000
    assert after.total.error < 0.05


def test_another_beginning_knows_nothing_of_the_bill() -> None:
    first = render(Conversation([Message.user("Hello"), Message.assistant("Hi")]))
    other = render(Conversation([Message.user("Hullo"), Message.assistant("Hi")]))
    assert counts(other, billed(first, 5000)) == counts(other)


def test_a_reloaded_conversation_is_known_again() -> None:
    first = render(turn(Conversation(), 100))
    reloaded = render(turn(Conversation(), 100))
    assert reloaded.runs[-1].log is not first.runs[-1].log
    assert counts(reloaded, billed(first, 777)) == Count.exactly(777)


def test_other_parameters_are_another_prompt() -> None:
    conversation = turn(Conversation(), 100)
    first = render(conversation)
    forced = render(conversation, first, tool_choice=ToolChoice("required"))
    assert counts(forced, billed(first, 5000)) == counts(forced)


def test_another_model_starts_over() -> None:
    conversation = turn(Conversation(), 100)
    first = render(conversation)
    other = render(conversation, model="claude-opus-4-5")
    calibration = billed(first, 5000)
    assert counts(other, calibration) == counts(other)
    started = billed(other, 300, calibration)
    assert [bill.total.tokens for bill in started.bills] == [300]


@pytest.mark.parametrize("nothing", [None, 0, -5])
def test_a_call_that_was_not_billed_teaches_nothing(nothing: int | None) -> None:
    first = render(conversation := turn(Conversation(), 100))
    calibration = billed(first, 500)
    second = count_chunks(render(turn(conversation, 100), first), CLAUDE, calibration)
    assert second.billed(nothing) is calibration


# ── Ratios ───────────────────────────────────────────────────────────────────────────────────────


def simulate(
    noise: Iterator[float], words: list[int], ratio: float = 1.0
) -> Iterator[tuple[Count, int, Calibration]]:
    """A conversation whose every turn makes `ratio` times the catalog's tokens, give or take; for
    each call but the first what was expected, what it was, and what was known before it."""
    conversation, calibration = turn(Conversation(), 50), Calibration()
    rendered = render(conversation)
    truth = 900.0
    calibration = billed(rendered, round(truth), calibration)
    for number, length in enumerate(words):
        conversation = turn(conversation, length, number)
        before, rendered = rendered.size, render(conversation, rendered)
        truth += (rendered.size - before) * PER_BYTE * ratio * (1 + next(noise))
        found = count_chunks(rendered, CLAUDE, calibration)
        yield found.total, round(truth), calibration
        calibration = found.billed(round(truth))


lengths = st.lists(st.integers(20, 400), min_size=6, max_size=12)
few = settings(max_examples=15)


@few
@given(words=lengths, ratio=st.floats(0.5, 2))
def test_exact_bills_converge(words: list[int], ratio: float) -> None:
    *_, (expected, billed, calibration) = simulate(iter(lambda: 0.0, 1.0), words, ratio)
    assert calibration.ratio == pytest.approx(ratio, rel=0.1)
    assert calibration.error(STATED) < STATED
    assert expected.holds(billed)
    assert expected.tokens == pytest.approx(billed, rel=0.02)


@few
@given(words=lengths, noise=st.lists(st.floats(-0.9, 0.9), min_size=12, max_size=12))
def test_one_bill_holds_whatever_the_catalogs_error_allows(
    words: list[int], noise: list[float]
) -> None:
    """With one bill nothing is corrected yet: any noise below the stated error is held."""
    shares = (STATED * share for share in noise)
    expected, billed, _ = next(simulate(shares, words))
    assert expected.holds(billed)


@pytest.mark.parametrize("ratio", [0.7, 1.0, 1.4])
def test_bounds_hold_noise_below_the_stated_error(ratio: float) -> None:
    """Turns as unlike as the catalog allows for, in conversations unlike the catalog's."""
    held = calls = 0
    for seed in range(12):
        draw = random.Random(seed)
        noise = iter(lambda: draw.uniform(-STATED, STATED), None)  # noqa: B023
        words = [draw.randint(40, 400) for _ in range(20)]
        for expected, billed, calibration in simulate(noise, words, ratio):
            if len(calibration.growths) >= 3:
                calls += 1
                held += expected.holds(billed)
    assert held / calls > 0.9


@few
@given(
    ratios=st.lists(st.floats(0.9, 1.1), min_size=3, max_size=30),
    odd=st.floats(0.01, 100),
    at=st.integers(0, 29),
    tokens=st.integers(16, 5000),
)
def test_one_odd_call_among_others_does_not_spoil_the_ratio(
    ratios: list[float], odd: float, at: int, tokens: int
) -> None:
    calibration = Calibration()
    for ratio in [*ratios[:at], odd, *ratios[at:]]:
        calibration = calibration.learnt(Growth(ratio, tokens))
    assert 0.9 <= calibration.ratio <= 1.1
    assert calibration.error(STATED) <= max(STATED, 0.25)


def test_the_first_growth_corrects_nothing_and_two_that_agree_do() -> None:
    one = Calibration().learnt(Growth(1.5, 300))
    assert one.ratio == 1.0
    assert one.error(STATED) == STATED
    two = one.learnt(Growth(1.6, 300))
    assert two.ratio == 1.5


def test_an_odd_bill_is_forgotten_with_the_next() -> None:
    first = render(conversation := turn(Conversation(), 100))
    second = render(conversation := turn(conversation, 100), first)
    third = render(conversation := turn(conversation, 100), second)
    calibration = billed(first, 800)
    # A server's own tool loop is billed as one call of many times the prompt.
    calibration = billed(second, 400_000, calibration)
    calibration = billed(third, 1300, calibration)
    found = count_chunks(render(turn(conversation, 20), third), CLAUDE, calibration)
    assert found.upto(len(third)) == Count.exactly(1300)
    assert found.upto(len(second)).high <= 1300
    assert found.upto(len(first)) == Count.exactly(800)
    assert calibration.ratio < 3


def test_an_image_teaches_nothing_about_text() -> None:
    first = render(conversation := turn(Conversation(), 100))
    shown = conversation.append(Message.user(Image(Bytes(bytes(9000), "image/png"))))
    calibration = billed(render(shown, first), 2400, billed(first, 800))
    assert calibration.growths == ()


def test_what_is_remembered_is_bounded() -> None:
    calibration, conversation = Calibration(), Conversation()
    rendered = None
    for number in range(GROWTHS + 10):
        conversation = turn(conversation, 30, number)
        rendered = render(conversation, rendered)
        calibration = billed(rendered, 500 + 40 * number, calibration)
    assert len(calibration.bills) == BILLS
    assert len(calibration.growths) == GROWTHS
