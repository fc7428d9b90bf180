"""What holds whatever is asked, of every provider: every token is billed once, and for a reason."""

from __future__ import annotations

import functools

from hypothesis import given
from hypothesis import strategies as st

from anaphora import catalog
from anaphora.cache.simulator import Mark, Outcome, Simulator, TokenRuns
from anaphora.catalog import CacheRules
from anaphora.rendered import Kind
from anaphora.values import Section

WIRES = (None, "anthropic", "openai_chat", "openai_responses", "gemini")


@functools.cache
def every_rules() -> list[CacheRules]:
    """One of each kind of cache that the catalog knows, for every provider."""
    result: dict[object, CacheRules] = {}
    for provider in catalog.shipped().providers:
        for model in [*(profile.id for profile in catalog.models(provider)), "some-other-model"]:
            for wire in WIRES:
                rules = catalog.rules(provider, model, wire)
                kind = (
                    provider,
                    rules.mechanism.value,
                    rules.automatic_breakpoint.value,
                    rules.granule_tokens.value,
                    rules.slots.value,
                )
                result.setdefault(kind, rules)
    return list(result.values())


KINDS = (Kind.TEXT, Kind.TOOL_CALL, Kind.TOOL_RESULT, Kind.THINKING, Kind.IMAGE)


@st.composite
def prompts(draw: st.DrawFn) -> TokenRuns:
    # Few names, so that prompts often share a beginning.
    names = st.sampled_from("abc")
    blocks = draw(st.lists(st.tuples(names, st.integers(0, 3000)), max_size=12))
    count = len(blocks)
    places = draw(st.sets(st.integers(0, count - 1), max_size=6)) if count else set()
    lead = draw(st.integers(0, count))
    sections: list[Section] = ["system" if at < lead else "messages" for at in range(count)]
    return TokenRuns.given(
        blocks,
        markers=tuple(Mark(at, draw(st.sampled_from(("1h", "5m")))) for at in sorted(places)),
        automatic=draw(st.sampled_from((None, "5m"))),
        kinds=[draw(st.sampled_from(KINDS)) for _ in blocks],
        sections=sections,
        from_model=[draw(st.booleans()) for _ in blocks],
        cache_params={"tool_choice": draw(st.sampled_from((b"auto", b"any")))},
    )


def is_a_partition(outcome: Outcome, total: int) -> None:
    assert outcome.read + sum(outcome.written.values()) + outcome.uncached == total
    assert outcome.total == total
    at = 0
    for span in outcome.spans:
        assert span.start == at < span.end
        at = span.end
    assert at == total
    # Nothing is read behind a token that is not.
    fates = [span.fate for span in outcome.spans]
    assert "read" not in fates[fates.count("read") :]


@given(
    st.data(),
    st.lists(
        st.tuples(
            prompts(),
            st.sampled_from((0.0, 1.0, 299.0, 301.0, 4000.0)),
            st.sampled_from((None, 2.0)),
        ),
        max_size=6,
    ),
    st.sampled_from((0.0, 0.5)),
    st.sampled_from((0.0, 2.5)),
)
def test_every_token_is_billed_once(
    data: st.DataObject,
    calls: list[tuple[TokenRuns, float, float | None]],
    loss: float,
    delay: float,
) -> None:
    rules = data.draw(st.sampled_from(every_rules()))
    simulator = Simulator(rules, loss=loss, delay=delay, seed=7)
    now = 0.0
    for prompt, wait, begins in calls:
        now += wait
        total = prompt.total if len(prompt) else 0
        expected = simulator.predict(prompt, at=now)
        is_a_partition(expected, total)
        began = None if begins is None else now + begins
        outcome = simulator.call(prompt, at=now, began=began)
        is_a_partition(outcome, total)
        if not loss:
            assert outcome == expected
        granule = rules.granule_tokens.value
        if rules.mechanism.value == "implicit" and rules.automatic_breakpoint.value != "slots":
            assert outcome.read == 0 or (outcome.read + rules.offset) % granule == 0
            assert not outcome.written
        assert outcome.read == 0 or outcome.read >= min(rules.minimum_tokens.value, granule)


@given(st.sampled_from(range(len(every_rules()))), prompts())
def test_a_first_call_reads_nothing(which: int, prompt: TokenRuns) -> None:
    simulator = Simulator(every_rules()[which])
    assert simulator.call(prompt, at=0).read == 0


@given(st.sampled_from(range(len(every_rules()))), prompts())
def test_scopes_share_nothing(which: int, prompt: TokenRuns) -> None:
    simulator = Simulator(every_rules()[which])
    simulator.call(prompt, at=0, scope="one")
    assert simulator.call(prompt, at=1, scope="two").read == 0
