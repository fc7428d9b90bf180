"""Block policies, marks and the frozen boundary: which chunks get a marker, and the notices."""

from __future__ import annotations

from typing import Any

from support.rules import without_minimum
from support.tables import each_row

from anaphora import catalog
from anaphora.cache.plan import plan_once
from anaphora.prompt import (
    BlockMark,
    Call,
    Params,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    Segment,
    ToolMark,
)
from anaphora.rendered import Plan, Rendered
from anaphora.values import CachePolicy, Message, SegmentRole, Thinking, Tool, ToolCall
from anaphora.wire import anthropic

MODEL = "claude-sonnet-4-5"
PROFILE = catalog.profile("anthropic", MODEL)
RULES = without_minimum("anthropic", MODEL)

LONG, SHORT, NONE = CachePolicy.EPHEMERAL_1H, CachePolicy.EPHEMERAL_5M, CachePolicy.NONE


def planned(
    *,
    tools: tuple[CachePolicy, ...] = (),
    system: tuple[CachePolicy, ...] = (),
    messages: tuple[Message, ...] = (Message.user("hello"),),
    before: tuple[Segment, ...] = (),
    tail: bool = False,
    **cache_plan: Any,
) -> tuple[Rendered, Plan]:
    segments = [*before, Segment.of(SegmentRole.CONVERSATION, *messages)]
    if tail:
        segments.append(Segment.of(SegmentRole.VOLATILE_TAIL, Message.user("state")))
    ir = PromptIR(
        system_blocks=tuple(
            PromptBlock(f"block{at}", "text " * 2**at, policy) for at, policy in enumerate(system)
        ),
        segments=tuple(segments),
        cache=PromptCachePlan(**cache_plan),
    )
    call = Call(
        ir=ir,
        model=MODEL,
        tools=tuple(Tool(f"tool{at}", cache=policy) for at, policy in enumerate(tools)),
        params=Params(max_tokens=1),
    )
    rendered = anthropic.render(call, PROFILE)
    return rendered, plan_once(rendered, RULES, reuse_expected=True)


def marked(rendered: Rendered, plan: Plan) -> list[tuple[str, str]]:
    return [(rendered.chunk(mark.chunk).path, mark.ttl) for mark in plan.marks]


@each_row(
    ("tools", "system", "expected"),
    [
        ((), (LONG,), [("system[0]", "1h")]),
        ((), (LONG, LONG), [("system[1]", "1h")]),
        ((), (LONG, SHORT), [("system[0]", "1h"), ("system[1]", "5m")]),
        ((LONG, LONG), (), [("tools[1]", "1h")]),
        ((LONG, LONG), (LONG, SHORT), [("system[0]", "1h"), ("system[1]", "5m")]),
        ((LONG,), (NONE, SHORT), [("tools[0]", "1h"), ("system[1]", "5m")]),
        ((NONE,), (LONG, NONE, LONG), [("system[0]", "1h"), ("system[2]", "1h")]),
        ((), (NONE, NONE), [("system[1]", "5m")]),  # without any policy the planner decides
    ],
)
def test_the_last_block_of_each_run_of_one_policy_is_marked(
    tools: tuple[CachePolicy, ...], system: tuple[CachePolicy, ...], expected: list[tuple[str, str]]
) -> None:
    rendered, plan = planned(tools=tools, system=system)
    assert marked(rendered, plan)[:-1] == expected
    assert marked(rendered, plan)[-1] == ("messages[0].content[0]", "5m")


HISTORY = (
    Message.user("q1", id="u1"),
    Message.assistant(ToolCall("1", "tool0"), id="a1"),
    Message.tool("1", "r1", id="t1"),
    Message.assistant("answer", id="a2"),
    Message.user("q2", id="u2"),
)


def test_without_a_frozen_region_the_rolling_pair_is_used() -> None:
    rendered, plan = planned(messages=HISTORY)
    assert marked(rendered, plan) == [
        ("messages[2].content[0]", "5m"),  # the last user turn before the last message
        ("messages[4].content[0]", "5m"),
    ]


def test_with_a_frozen_region_its_end_and_the_tail_are_marked() -> None:
    rendered, plan = planned(messages=HISTORY, frozen_through="a1", tail=True)
    assert marked(rendered, plan) == [
        ("messages[1].content[0]", "5m"),
        ("messages[4].content[0]", "5m"),
    ]


def test_a_missing_boundary_gets_a_notice_and_the_rolling_pair() -> None:
    rendered, plan = planned(messages=HISTORY, frozen_through="gone")
    assert [notice.code for notice in rendered.notices] == ["frozen_boundary_missing"]
    assert len(plan.marks) == 2


def test_a_tail_that_ends_in_thinking_is_marked_before_it() -> None:
    messages = (
        Message.user("q"),
        Message.assistant("so", Thinking("hm", signature="s", provider="anthropic")),
    )
    rendered, plan = planned(messages=messages)
    assert marked(rendered, plan)[-1] == ("messages[1].content[0]", "5m")


def test_the_stable_prefix_is_marked_when_something_dynamic_follows_it() -> None:
    before = (
        Segment.of(SegmentRole.STABLE_PREFIX, Message.user("guide")),
        Segment.of(SegmentRole.DYNAMIC_CONTEXT, Message.assistant("summary")),
    )
    rendered, plan = planned(before=before)
    assert ("messages[0].content[0]", "5m") in marked(rendered, plan)


def test_more_than_four_markers_drop_the_smallest_with_a_notice() -> None:
    rendered, plan = planned(
        tools=(LONG,), system=(SHORT, LONG, SHORT), messages=HISTORY, frozen_through="a1"
    )
    assert len(plan.marks) == 4
    left_out = [notice for notice in plan.notices if notice.code == "marker_left_out"]
    assert len(left_out) == 2
    assert all("only 4 markers can be set" in notice.message for notice in left_out)
    assert marked(rendered, plan)[-1][0] == "messages[4].content[0]"


def test_the_callers_marks_are_kept_and_counted() -> None:
    own_marks = (ToolMark("tool0", "1h"), BlockMark(0, "1h"), PartMark("u1", (0,)), PartMark("a2"))
    rendered, plan = planned(tools=(NONE,), system=(LONG,), messages=HISTORY, marks=own_marks)
    assert marked(rendered, plan) == [
        ("tools[0]", "1h"),
        ("system[0]", "1h"),
        ("messages[0].content[0]", "5m"),
        ("messages[3].content[0]", "5m"),
    ]
    assert {n.code for n in plan.notices} == {"marker_left_out"}


def test_a_fifth_mark_of_the_caller_is_left_out_with_a_notice() -> None:
    own_marks = tuple(PartMark(message.id) for message in HISTORY)
    _, plan = planned(messages=HISTORY, marks=own_marks)
    assert len(plan.marks) == 4
    assert any("the caller's own on conversation u2" in str(n) for n in plan.notices)


def test_five_minutes_before_an_hour_become_an_hour_with_a_notice() -> None:
    rendered, plan = planned(system=(SHORT,), messages=HISTORY, message_ttl="1h")
    assert {ttl for _, ttl in marked(rendered, plan)} == {"1h"}
    assert [(n.code, n.path) for n in plan.notices] == [("ttl_lengthened", "system[0]")]


@each_row(
    ("mark", "message"),
    [
        (ToolMark("nope"), "no tool nope"),
        (BlockMark(7), "no system block 7"),
        (PartMark("gone"), "no message gone"),
        (PartMark("u1", (3,)), "no part [3] of message u1"),
        (PartMark("u1", (0, 0)), "no part [0, 0] of message u1"),
    ],
)
def test_a_mark_on_nothing_is_a_notice(mark: Any, message: str) -> None:
    rendered, _ = planned(messages=HISTORY, marks=(mark,))
    (notice,) = rendered.notices
    assert notice.code == "mark_left_out"
    assert message in notice.message
    assert notice.path == "cache.marks[0]"
