"""Prompts are grouped by what they share, byte by byte, on every kind of cache."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphora import catalog, wire
from anaphora.cache.plan.groups import PrefixGroup, group_prompts, group_ttl, warming_pays
from anaphora.client.parameters import call_of
from anaphora.rendered import Rendered

PROVIDERS = {
    "anthropic": ("anthropic", "claude-sonnet-5-5"),
    "openai_responses": ("openai", "gpt-5.6"),
    "openai_chat": ("openai", "gpt-5.2"),
    "gemini": ("google", "gemini-2.5-flash"),
}
PARTS = [f"Part {number}. " * (40 * 3**number) for number in range(5)]


def render(name: str, parts: list[str], **options: object) -> Rendered:
    provider, model = PROVIDERS[name]
    call = call_of(parts, model, {"max_tokens": 16, **options})  # type: ignore[typeddict-item]
    return wire.get(name).render(call, catalog.profile(provider, model))


@given(
    name=st.sampled_from(sorted(PROVIDERS)),
    chosen=st.lists(
        st.lists(st.sampled_from(PARTS), min_size=1, max_size=4), min_size=1, max_size=12
    ),
)
def test_the_members_of_a_group_begin_the_same(name: str, chosen: list[list[str]]) -> None:
    rules = catalog.rules(*PROVIDERS[name], name)
    prompts = [render(name, parts) for parts in chosen]
    groups = group_prompts(prompts, rules)
    for index, group in enumerate(groups):
        for each in () if group is None else group.line():
            assert index in each.members
            assert each.tokens >= rules.minimum_tokens.value
            begins = {prompts[member].data(each.chunks) for member in each.members}
            assert len(begins) == 1
            if each.parent is not None:
                assert set(each.members) <= set(each.parent.members)
                assert each.chunks >= each.parent.chunks
                assert each.tokens > each.parent.tokens
            if rules.slots.value:
                run, chunk = prompts[index].locate(each.chunks - 1)
                assert run.log.splices[chunk] >= 0  # can carry a marker


def test_a_parameter_that_a_cache_depends_on_separates_groups() -> None:
    rules = catalog.rules(*PROVIDERS["anthropic"], "anthropic")
    tool = {"name": "t", "description": "d", "input_schema": {"type": "object"}}
    prompts = [
        render("anthropic", [PARTS[4], question], tools=[tool], tool_choice=choice)
        for choice in ("auto", "none")
        for question in ("One?", "Two?")
    ]
    groups = group_prompts(prompts, rules)
    assert [None if group is None else group.members for group in groups] == [
        [0, 1],
        [0, 1],
        [2, 3],
        [2, 3],
    ]


def test_a_key_serves_only_so_many_calls_a_minute() -> None:
    rules = catalog.rules(*PROVIDERS["openai_chat"], "openai_chat")
    assert rules.key_requests is not None
    most = rules.key_requests.value
    prompts = [render("openai_chat", [PARTS[4], f"{number}?"]) for number in range(3 * most - 1)]
    groups = {id(group): group for group in group_prompts(prompts, rules) if group is not None}
    assert sorted(len(group.line()[0].members) for group in groups.values()) == [
        most - 1,
        most,
        most,
    ]
    assert len({group.line()[0].key for group in groups.values()}) == 3


@pytest.mark.parametrize(
    "name, count, pays",
    [("anthropic", 1, False), ("anthropic", 2, True), ("gemini", 1, False), ("gemini", 2, True)],
)
def test_warming_pays_from_two_calls_on(name: str, count: int, pays: bool) -> None:
    rules = catalog.rules(*PROVIDERS[name], name)
    group = PrefixGroup(chunks=1, tokens=10_000, members=list(range(count)))
    ttl = group_ttl(render(name, [PARTS[4]]), rules, 60)
    assert warming_pays(group, rules, ttl) is pays


def test_warming_does_not_pay_without_a_discount() -> None:
    rules = catalog.rules("openai", "some-unknown-model", "openai_chat")
    group = PrefixGroup(chunks=1, tokens=10_000, members=list(range(50)))
    assert rules.read_price.value == 1.0
    assert not warming_pays(group, rules, "30m")


def test_a_marker_of_a_batch_outlives_the_wait() -> None:
    rendered = render("anthropic", [PARTS[4]])
    rules = catalog.rules(*PROVIDERS["anthropic"], "anthropic")
    assert group_ttl(rendered, rules, 60) == "5m"
    assert group_ttl(rendered, rules, 3000) == "1h"
    assert group_ttl(rendered, rules, 86_400) == "1h"
