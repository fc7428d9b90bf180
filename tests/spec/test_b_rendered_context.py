"""SPEC B: a rendered context in four slots, its breakpoints, its fingerprint, its compaction."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from support.rules import without_minimum
from support.tables import each_row

from anaphora import catalog
from anaphora.cache.plan import plan_once
from anaphora.errors import InvalidRequest, Parse
from anaphora.prompt import (
    Call,
    Params,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    RenderedContext,
    Segment,
    compact,
)
from anaphora.prompt.context import atomic_units
from anaphora.rendered import Plan, Rendered
from anaphora.values import Conversation, Message, SegmentRole, Text, Thinking, ToolCall, to_json
from anaphora.wire import anthropic

MODEL = "claude-sonnet-4-5"
PROFILE = catalog.profile("anthropic", MODEL)
RULES = without_minimum("anthropic", MODEL)


def render(context: RenderedContext, previous: Rendered | None = None) -> Rendered:
    call = Call(ir=context.to_ir(), model=MODEL, params=Params(max_tokens=16))
    return anthropic.render(call, PROFILE, previous)


def send(context: RenderedContext) -> tuple[dict[str, Any], Plan]:
    rendered = render(context)
    planned = plan_once(rendered, RULES, reuse_expected=True)
    return json.loads(anthropic.assemble(rendered, planned).body.join()), planned


def marked_messages(body: dict[str, Any]) -> list[tuple[int, int]]:
    """Message and block of every marker among the messages."""
    return [
        (at, index)
        for at, message in enumerate(body["messages"])
        for index, block in enumerate(message["content"])
        if "cache_control" in block
    ]


def history(length: int) -> Conversation:
    """u0 a1 u2 a3 …"""
    return Conversation(
        Message.assistant(f"a{at}") if at % 2 else Message.user(f"u{at}") for at in range(length)
    )


STATE = Message.user("state: two tasks open")


def test_b1_each_system_slot_carries_a_marker() -> None:
    """B1: identity is system[0], knowledge system[1], and a change of the second spares the
    first."""
    body, _ = send(
        RenderedContext(system_stable="I am Ada.", system_knowledge="Facts.", turns=history(1))
    )
    assert [block["text"] for block in body["system"]] == ["I am Ada.", "Facts."]
    assert [block["cache_control"]["type"] for block in body["system"]] == ["ephemeral"] * 2


@pytest.mark.parametrize(
    "stable, knowledge, text",
    [
        ("identity", "knowledge", "identity\n\nknowledge"),
        ("identity", "", "identity"),
        ("", "knowledge", "knowledge"),
        ("", "", ""),
    ],
)
def test_b1_system_text_joins_the_slots(stable: str, knowledge: str, text: str) -> None:
    """B1: one text for wires with one system field; an empty slot leaves no gap."""
    context = RenderedContext(system_stable=stable, system_knowledge=knowledge, turns=history(1))
    assert context.system_text == text
    body, _ = send(context)
    slots = [slot for slot in (stable, knowledge) if slot]
    assert [block["text"] for block in body.get("system", [])] == slots
    assert all("cache_control" in block for block in body.get("system", []))


def test_b2_the_state_turn_follows_the_last_breakpoint_unmarked() -> None:
    """B2: the state is the cheap tail behind everything cached."""
    context = RenderedContext(turns=history(3), state_turn=STATE)
    body, _ = send(context)
    assert body["messages"][-1]["content"] == [
        {"type": "text", "text": "u2", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "state: two tasks open"},
    ]
    assert marked_messages(body)[-1] == (2, 0)


def test_b2_the_state_turn_never_enters_the_history() -> None:
    """B2: whatever the state says, the history's bytes are the same, and so are the turns."""
    turns = history(3)
    first = render(RenderedContext(turns=turns, state_turn=STATE))
    later = render(
        RenderedContext(
            turns=turns.append(Message.assistant("a3"), Message.user("u4")),
            state_turn=Message.user("state: nothing open"),
        ),
        first,
    )
    assert b"state" not in first.cacheable_data()
    assert later.cacheable_data().startswith(first.cacheable_data())
    assert len(turns) == 3
    assert (
        RenderedContext(turns=turns)
        .prefix_fingerprint()
        .extends(RenderedContext(turns=turns, state_turn=STATE).prefix_fingerprint())
    )


@each_row(
    "turns, frozen, expected",
    [
        # A frozen region: one deep breakpoint at its end, one at the tail.
        (5, 1, [(0, 0), (4, 0)]),
        (5, 2, [(1, 0), (4, 0)]),
        (5, 4, [(3, 0), (4, 0)]),
        # No distinct region: the last message, and the last user turn before it.
        (5, None, [(2, 0), (4, 0)]),
        (4, None, [(2, 0), (3, 0)]),
        (2, None, [(0, 0), (1, 0)]),
        (1, None, [(0, 0)]),
        # Out of range: clamped. All frozen is one place; none frozen is no region at all.
        (5, 5, [(4, 0)]),
        (5, 99, [(4, 0)]),
        (5, 0, [(2, 0), (4, 0)]),
        (5, -3, [(2, 0), (4, 0)]),
    ],
)
def test_b3_frozen_boundary_and_rolling_tail(
    turns: int, frozen: int | None, expected: list[tuple[int, int]]
) -> None:
    """B3: where the breakpoints stand for every value of frozen_prefix_len."""
    body, _ = send(
        RenderedContext(turns=history(turns), state_turn=STATE, frozen_prefix_len=frozen)
    )
    assert marked_messages(body) == expected


def test_b3_the_deep_breakpoint_stays_while_the_tail_rolls() -> None:
    """B3: that is what makes the deep one immune to a heavy turn."""
    turns = history(5)
    before, _ = send(RenderedContext(turns=turns, frozen_prefix_len=2))
    turns = turns.append(Message.assistant("a5"), Message.user("u6"))
    after, _ = send(RenderedContext(turns=turns, frozen_prefix_len=2))
    assert marked_messages(before) == [(1, 0), (4, 0)]
    assert marked_messages(after) == [(1, 0), (6, 0)]


def older_shape(*turns: Message) -> bytes:
    """The output of a producer that does not know `state_turn`."""
    return json.dumps(
        {
            "system_text": "identity",
            "system_stable": "identity",
            "system_knowledge": "",
            "turns": [json.loads(to_json(turn)) for turn in turns],
        }
    ).encode()


def test_b4_the_older_shape_is_accepted_and_no_message_is_marked() -> None:
    """B4: turns[0] carries the state, so nothing behind it can be cached; a notice says so."""
    context = RenderedContext.from_json(
        older_shape(STATE, Message.assistant("a1"), Message.user("u2"))
    )
    assert context.state_in_turns
    assert context.state_turn is None
    body, planned = send(context)
    assert marked_messages(body) == []
    assert "cache_control" in body["system"][0]
    assert [notice.code for notice in planned.notices] == ["state_in_turns"]
    assert [notice.code for notice in context.notices()] == ["state_in_turns"]


def test_b4_the_state_in_the_first_turn_may_change() -> None:
    """B4: no message is promised to be reusable, so a new state breaks no promise."""
    turns = (Message.assistant("a1"), Message.user("u2"))
    first = render(RenderedContext.from_json(older_shape(STATE, *turns)))
    render(RenderedContext.from_json(older_shape(Message.user("other"), *turns)), first)


def test_b4_the_current_shape_writes_null() -> None:
    """B4: a producer that knows the field and has no state is not taken for an old one."""
    today = RenderedContext(system_stable="identity", turns=history(1))
    read = RenderedContext.from_json(to_json(today))
    assert read == today
    assert not read.state_in_turns
    assert read.notices() == ()


def test_b4_a_system_text_that_contradicts_the_slots_is_refused() -> None:
    """B4: reading loses nothing, so two different system prompts are an error that says where."""
    data = older_shape(STATE).replace(b'"system_text": "identity"', b'"system_text": "other"')
    with pytest.raises(Parse) as caught:
        RenderedContext.from_json(data)
    assert caught.value.path == "system_text"


BASE = RenderedContext(system_stable="s", system_knowledge="k", turns=history(3), state_turn=STATE)


@each_row(
    "changes, extends, common",
    [
        ({}, True, 3),
        ({"turns": history(5)}, True, 3),
        ({"state_turn": None}, True, 3),
        ({"state_turn": Message.user("new state"), "frozen_prefix_len": 1}, True, 3),
        ({"turns": history(2)}, False, 2),
        ({"turns": Conversation([Message.user("u0"), Message.assistant("x")])}, False, 1),
        ({"turns": Conversation()}, False, 0),
        ({"system_stable": "s2"}, False, 0),
        ({"system_knowledge": ""}, False, 0),
    ],
)
def test_b5_prefix_fingerprint(changes: dict[str, Any], extends: bool, common: int) -> None:
    """B5: what may be reused of BASE by a later render that differs like this."""
    later = msgspec.structs.replace(BASE, **changes).prefix_fingerprint()
    before = BASE.prefix_fingerprint()
    assert later.extends(before) is extends
    assert later.common_turn_prefix(before) == common
    equal = extends and len(later.turns) == 3
    assert (later == before) is equal
    assert (later.digest == before.digest) is equal


def test_b5_slots_do_not_run_into_each_other() -> None:
    """B5: the same text cut elsewhere is another context."""
    one = RenderedContext(system_stable="ab", system_knowledge="c").prefix_fingerprint()
    two = RenderedContext(system_stable="a", system_knowledge="bc").prefix_fingerprint()
    assert not one.extends(two)
    assert one.digest != two.digest


def call(call_id: str) -> Message:
    return Message.assistant(ToolCall(call_id, "search"))


USER, ANSWER = Message.user("u"), Message.assistant("a")


@each_row(
    "turns, units",
    [
        ([], []),
        ([USER, ANSWER, USER], [1, 1, 1]),
        # A call, its result and the answer stand or fall together.
        ([USER, call("1"), Message.tool("1", "r"), ANSWER, USER], [1, 3, 1]),
        # A loop of calls is one unit up to the answer that calls nothing.
        ([call("1"), Message.tool("1"), call("2"), Message.tool("2"), ANSWER], [5]),
        # The loop is still open: what there is stays together.
        ([USER, call("1"), Message.tool("1")], [1, 2]),
        ([USER, call("1")], [1, 1]),
        # An answer that was cut off inside its reasoning answers nothing.
        ([call("1"), Message.tool("1"), Message.assistant(Thinking("h")), ANSWER, USER], [4, 1]),
        # The user spoke before the answer came: the loop ends where it stands.
        ([call("1"), Message.tool("1"), USER, ANSWER], [2, 1, 1]),
    ],
)
def test_b6_atomic_units(turns: list[Message], units: list[int]) -> None:
    """B6: how a history falls into pieces that may only be kept or dropped whole."""
    ranges = atomic_units(Conversation(turns))
    assert [len(unit) for unit in ranges] == units
    assert [at for unit in ranges for at in unit] == list(range(len(turns)))


def ten(_: Message) -> int:
    """Every message is ten tokens long."""
    return 10


LOOP = Conversation([USER, call("1"), Message.tool("1", "r"), ANSWER, USER])
SUMMARY = Message.user("summary of what went before")


@each_row(
    "budget, summary, kept",
    [
        (50, None, 5),  # fits: nothing happens
        (49, None, 4),
        (40, None, 4),
        (39, None, 1),  # a third of the loop would fit, but the loop is one unit
        (10, None, 1),
        (49, SUMMARY, 1),  # the summary takes its share of the budget
        (50, SUMMARY, 5),
    ],
)
def test_b6_the_newest_units_that_fit_are_kept(
    budget: int, summary: Message | None, kept: int
) -> None:
    """B6: newest first, whole units, within the budget."""
    done = compact(RenderedContext(turns=LOOP), budget=budget, tokens=ten, summary=summary)
    turns = done.context.turns
    assert [m.parts for m in turns[len(turns) - kept :]] == [m.parts for m in LOOP[5 - kept :]]
    assert done.dropped == 5 - kept
    shortened = kept < 5
    assert (turns[0].parts == SUMMARY.parts) is (shortened and summary is not None)
    assert sum(map(ten, turns)) <= budget


@pytest.mark.parametrize(
    "budget, kept",
    [
        (49, 1),  # the loop would fit, but it would stand first
        (39, 1),
        (50, 5),
    ],
)
def test_b6_the_first_kept_turn_may_have_to_be_the_users(budget: int, kept: int) -> None:
    """B6: where a provider takes no other, a loop goes with the message that started it."""
    done = compact(RenderedContext(turns=LOOP), budget=budget, tokens=ten, user_first=True)
    assert len(done.context.turns) == kept
    assert done.context.turns[0].role == "user"


def test_b6_a_loop_keeps_the_message_that_started_it() -> None:
    """B6: one task and one loop: nothing can be dropped, and a notice says so."""
    turns = Conversation([USER, call("1"), Message.tool("1", "r")])
    done = compact(RenderedContext(turns=turns), budget=5, tokens=ten, user_first=True)
    assert done.context.turns is turns
    assert [notice.code for notice in done.notices] == ["over_budget"]


def test_b6_within_budget_the_boundary_stays() -> None:
    """B6: no byte changed, so the frozen boundary does not move and there is no notice."""
    context = RenderedContext(turns=LOOP, frozen_prefix_len=2)
    done = compact(context, budget=50, tokens=ten)
    assert done.context is context
    assert (done.dropped, done.notices) == (0, ())


def test_b6_a_real_compaction_moves_the_boundary_with_a_notice() -> None:
    """B6: what remains is frozen until the next compaction; all of it is written again."""
    done = compact(RenderedContext(turns=LOOP), budget=49, tokens=ten)
    assert done.context.frozen_prefix_len == len(done.context.turns) == 4
    (notice,) = done.notices
    assert (notice.code, notice.tokens, notice.path) == ("compaction_uncaches", 50, "turns[0]")


def test_b6_the_newest_unit_stays_even_when_it_alone_is_too_long() -> None:
    """B6: a unit is never cut; a notice says that the budget is exceeded."""
    turns = Conversation([USER, call("1"), Message.tool("1", "r")])
    done = compact(RenderedContext(turns=turns), budget=5, tokens=ten)
    assert [m.parts for m in done.context.turns] == [m.parts for m in turns[1:]]
    assert [notice.code for notice in done.notices] == ["compaction_uncaches", "over_budget"]


def test_b6_a_compaction_that_changes_no_byte_moves_no_boundary() -> None:
    """B6: the summary stands there already and the rest is one unit: nothing can shrink, so the
    boundary stays, and nothing leaves the cache."""
    turns = Conversation([SUMMARY, call("1"), Message.tool("1", "r")])
    context = RenderedContext(turns=turns, frozen_prefix_len=1)
    done = compact(context, budget=25, tokens=ten, summary=SUMMARY)
    assert done.context.turns == turns
    assert done.context.frozen_prefix_len == 1
    assert done.dropped == 0
    assert "compaction_uncaches" not in [notice.code for notice in done.notices]


@pytest.mark.parametrize("budget", [0, -1])
def test_b6_a_budget_is_positive(budget: int) -> None:
    """B6: no budget is no compaction anyone can have meant."""
    with pytest.raises(InvalidRequest, match="budget"):
        compact(RenderedContext(turns=LOOP), budget=budget, tokens=ten)


def test_b7_a_context_becomes_a_prompt_in_one_way() -> None:
    """B7: slot by slot, what each becomes in the IR."""
    turns = history(4)
    context = RenderedContext(
        system_stable="identity",
        system_knowledge="knowledge",
        turns=turns,
        state_turn=STATE,
        frozen_prefix_len=2,
    )
    assert context.to_ir() == PromptIR(
        system_text="identity\n\nknowledge",
        system_blocks=(
            PromptBlock.cached_long("system_stable", "identity", "identity"),
            PromptBlock.cached_short("system_knowledge", "knowledge", "knowledge"),
        ),
        segments=(
            Segment(SegmentRole.CONVERSATION, turns),
            Segment.of(SegmentRole.VOLATILE_TAIL, STATE),
        ),
        cache=PromptCachePlan(frozen_through=turns[1].id),
    )


def test_b7_the_conversation_is_shared_not_copied() -> None:
    """B7: becoming a prompt costs nothing that grows with the history."""
    turns = history(4)
    assert RenderedContext(turns=turns).to_ir().run(SegmentRole.CONVERSATION) is turns


def test_b7_an_empty_context_is_an_empty_prompt() -> None:
    """B7: empty slots leave no empty blocks behind."""
    ir = RenderedContext().to_ir()
    assert (ir.system_blocks, ir.flatten()) == ((), [])
    assert ir.cache == PromptCachePlan()
    assert RenderedContext(turns=Conversation([Message.user(Text("u"))])).to_ir().flatten()
