"""SPEC A: prompt blocks, and where Anthropic's markers go because of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rules import without_minimum
from support.tables import each_row

from anaphora import catalog
from anaphora.cache.plan import plan_once
from anaphora.prompt import Call, Params, PromptBlock, PromptCachePlan, PromptIR, flatten_blocks
from anaphora.rendered import Plan
from anaphora.values import CachePolicy, Conversation, Message, Tool
from anaphora.wire import anthropic

MODEL = "claude-sonnet-4-5"
PROFILE = catalog.profile("anthropic", MODEL)
RULES = without_minimum("anthropic", MODEL)

POLICIES = {"-": CachePolicy.NONE, "5m": CachePolicy.EPHEMERAL_5M, "1h": CachePolicy.EPHEMERAL_1H}


def send(call: Call) -> tuple[dict[str, Any], Plan]:
    """The body as Anthropic gets it, and the plan behind it."""
    rendered = anthropic.render(call, PROFILE)
    planned = plan_once(rendered, RULES, reuse_expected=True)
    return json.loads(anthropic.assemble(rendered, planned).body.join()), planned


def marked(body: dict[str, Any]) -> dict[str, str]:
    """Every marker in the body, in hash order: path -> TTL."""
    blocks = [
        (f"{section}[{at}]", block)
        for section in ("tools", "system")
        for at, block in enumerate(body.get(section, []))
    ] + [
        (f"messages[{at}].content[{index}]", block)
        for at, message in enumerate(body["messages"])
        for index, block in enumerate(message["content"])
    ]
    return {
        path: block["cache_control"].get("ttl", "5m")
        for path, block in blocks
        if "cache_control" in block
    }


def blocks_of(policies: str) -> list[PromptBlock]:
    return [
        PromptBlock(f"block {at}", f"text {at}", POLICIES[policy])
        for at, policy in enumerate(policies.split())
    ]


def tools_of(policies: str) -> tuple[Tool, ...]:
    return tuple(
        Tool(f"tool_{at}", cache=POLICIES[policy]) for at, policy in enumerate(policies.split())
    )


def conversation(
    *, tools: str = "", system: str = "", cache: PromptCachePlan | None = None
) -> Call:
    """Five messages, and tools and system blocks with the policies named."""
    history = [
        Message.user("u0"),
        Message.assistant("a0"),
        Message.user("u1"),
        Message.assistant("a1"),
        Message.user("u2"),
    ]
    return Call(
        ir=PromptIR.chat(history, system=blocks_of(system), cache=cache),
        model=MODEL,
        tools=tools_of(tools),
        params=Params(max_tokens=16),
    )


#: No message marked: only the markers of tools and system blocks remain.
NO_MESSAGES = PromptCachePlan(messages=False)


@pytest.mark.parametrize(
    "policy, cached, ttl",
    [
        (CachePolicy.NONE, False, None),
        (CachePolicy.EPHEMERAL_5M, True, "5m"),
        (CachePolicy.EPHEMERAL_1H, True, "1h"),
    ],
)
def test_a1_cache_policy(policy: CachePolicy, cached: bool, ttl: str | None) -> None:
    """A1: three policies; only "none" asks for no cache."""
    assert policy.is_cached is cached
    assert policy.ttl == ttl


def test_a1_the_default_policy_is_none() -> None:
    """A1: a block without a policy is not cached."""
    assert PromptBlock("label", "text").cache is CachePolicy.NONE
    assert Tool("search").cache is CachePolicy.NONE
    assert len(CachePolicy) == 3


@pytest.mark.parametrize(
    "block, policy",
    [
        (PromptBlock.plain("sender", "Ada", "environment"), CachePolicy.NONE),
        (PromptBlock.cached_short("sender", "Ada", "environment"), CachePolicy.EPHEMERAL_5M),
        (PromptBlock.cached_long("sender", "Ada", "environment"), CachePolicy.EPHEMERAL_1H),
    ],
)
def test_a2_three_constructors(block: PromptBlock, policy: CachePolicy) -> None:
    """A2: label, text and an optional kind, with one constructor for each policy."""
    assert block == PromptBlock("sender", "Ada", policy, "environment")
    assert PromptBlock.plain("sender", "Ada").kind is None


def test_a2_label_and_kind_are_not_sent() -> None:
    """A2: they are telemetry's, so chunks carry the label and the request carries neither."""
    ir = PromptIR.chat(
        [Message.user("hello")],
        system=[PromptBlock.cached_long("label-identity", "You are terse.", "kind-base")],
    )
    call = Call(ir=ir, model=MODEL, params=Params(max_tokens=16))
    rendered = anthropic.render(call, PROFILE)
    body = anthropic.assemble(rendered, plan_once(rendered, RULES, reuse_expected=True)).body.join()
    assert b"label-identity" not in body
    assert b"kind-base" not in body
    assert rendered.chunk(0).label == "label-identity"


@each_row(
    "texts, flat",
    [
        ([], ""),
        ([""], ""),
        (["a"], "a"),
        (["a", "", "b"], "a\n\nb"),
        (["", "b", "a", ""], "b\n\na"),
        (["a\n", " b"], "a\n\n\n b"),
    ],
)
def test_a3_flatten_blocks(texts: list[str], flat: str) -> None:
    """A3: empty blocks dropped, order kept, a blank line in between, nothing else touched."""
    assert flatten_blocks([PromptBlock.cached_long("x", text) for text in texts]) == flat


@each_row(
    "system, expected",
    [
        ("-", {"system[0]": "5m"}),  # without any policy the planner decides
        ("1h", {"system[0]": "1h"}),
        ("1h 1h 1h", {"system[2]": "1h"}),
        ("1h 1h 5m 5m", {"system[1]": "1h", "system[3]": "5m"}),
        ("- 5m -", {"system[1]": "5m"}),
        ("5m - 5m", {"system[0]": "5m", "system[2]": "5m"}),
        ("1h - 1h - 5m", {"system[0]": "1h", "system[2]": "1h", "system[4]": "5m"}),
    ],
)
def test_a4_the_last_block_of_each_run_is_marked(system: str, expected: dict[str, str]) -> None:
    """A4: blocks that agree share one marker, on the last of them."""
    body, _ = send(conversation(system=system, cache=NO_MESSAGES))
    assert marked(body) == expected


@each_row(
    "tools, system, expected",
    [
        ("1h 1h", "1h", {"system[0]": "1h"}),
        ("- 1h", "1h 5m", {"system[0]": "1h", "system[1]": "5m"}),
        ("1h", "5m", {"tools[0]": "1h", "system[0]": "5m"}),
        ("1h -", "1h", {"tools[0]": "1h", "system[0]": "1h"}),
        ("1h", "- 1h", {"tools[0]": "1h", "system[1]": "1h"}),
        ("5m 5m", "", {"tools[1]": "5m"}),
    ],
)
def test_a4_a_run_crosses_from_tools_into_system(
    tools: str, system: str, expected: dict[str, str]
) -> None:
    """A4: tools stand right before the system field, so a run does not end between them."""
    body, _ = send(conversation(tools=tools, system=system, cache=NO_MESSAGES))
    assert marked(body) == expected


@each_row("blank", ["", "   ", "\n\n"])
@each_row("at", [0, 1, 2])
@each_row("policy", list(CachePolicy))
def test_a4_empty_blocks_neither_end_nor_split_a_run(
    blank: str, at: int, policy: CachePolicy
) -> None:
    """A4 and F: a block without text is not sent, whatever it asks for."""
    blocks = blocks_of("1h 1h")
    blocks.insert(at, PromptBlock("nothing", blank, policy))
    ir = PromptIR.chat([Message.user("u")], system=blocks, cache=NO_MESSAGES)
    body, _ = send(Call(ir=ir, model=MODEL, params=Params(max_tokens=16)))
    assert [block["text"] for block in body["system"]] == ["text 0", "text 1"]
    assert marked(body) == {"system[1]": "1h"}


def test_a4_five_become_four_where_the_policies_agree() -> None:
    """A4: tools, identity, knowledge, frozen boundary and tail; tools and identity share one."""
    body, planned = send(
        conversation(tools="1h 1h", system="1h 5m", cache=PromptCachePlan(frozen_through="m1"))
    )
    assert marked(body) == {
        "system[0]": "1h",
        "system[1]": "5m",
        "messages[1].content[0]": "5m",
        "messages[4].content[0]": "5m",
    }
    assert planned.notices == ()


def test_a4_the_fifth_marker_is_left_out_and_named() -> None:
    """A4 and F: where they do not agree one must go: never the tail, and never silently."""
    body, planned = send(
        conversation(tools="1h", system="- 1h 5m", cache=PromptCachePlan(frozen_through="m1"))
    )
    assert len(marked(body)) == 4
    assert "messages[4].content[0]" in marked(body)
    (notice,) = planned.notices
    assert notice.code == "marker_left_out"
    assert notice.path in {"tools[0]", "system[1]", "system[2]", "messages[1].content[0]"}
    assert notice.path not in marked(body)


def test_a4_a_longer_ttl_never_follows_a_shorter() -> None:
    """A4 and F: Anthropic rejects an hour behind five minutes, so the earlier marker gets an hour
    too, with a notice: all of it is written for an hour anyway."""
    body, planned = send(conversation(system="5m 1h", cache=NO_MESSAGES))
    assert marked(body) == {"system[0]": "1h", "system[1]": "1h"}
    assert ("ttl_lengthened", "system[0]") in [(n.code, n.path) for n in planned.notices]


policies = st.lists(st.sampled_from(["-", "5m", "1h"]), max_size=6).map(" ".join)


@given(
    tools=policies,
    system=policies,
    frozen=st.sampled_from([None, "m0", "m1", "m3", "m4"]),
    ttl=st.sampled_from(["5m", "1h"]),
)
def test_a4_never_more_than_four_markers(
    tools: str, system: str, frozen: str | None, ttl: Any
) -> None:
    """A4 and law 4: tools and messages counted in, and TTLs only fall along the hash order."""
    cache = PromptCachePlan(frozen_through=frozen, message_ttl=ttl)
    body, _ = send(conversation(tools=tools, system=system, cache=cache))
    ttls = list(marked(body).values())
    assert len(ttls) <= 4
    assert ttls == sorted(ttls, key=["1h", "5m"].index)


@given(tools=policies, system=policies)
def test_a4_moving_markers_changes_nothing_else(tools: str, system: str) -> None:
    """Law 2: policies decide where markers stand and nothing more."""
    call = conversation(tools=tools, system=system)
    rendered = anthropic.render(call, PROFILE)
    with_marks = anthropic.assemble(
        rendered, plan_once(rendered, RULES, reuse_expected=True)
    ).body.join()
    without = anthropic.assemble(rendered, Plan()).body.join()
    for marker in rendered.markers.values():
        with_marks = with_marks.replace(marker, b"")
    assert with_marks == without


def test_a4_conversations_share_what_tools_and_system_render_to() -> None:
    """The same tools under any conversation: the same bytes up to the first message."""
    one, other = (
        anthropic.render(
            Call(
                ir=PromptIR.chat(Conversation([Message.user(text)]), system=blocks_of("1h")),
                model=MODEL,
                tools=tools_of("1h 1h"),
                params=Params(max_tokens=16),
            ),
            PROFILE,
        )
        for text in ("hello", "goodbye")
    )
    assert one.data(3) == other.data(3)
