"""The online planner: what it marks, for how long, and what it never does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import catalog, wire
from anaphora.cache.plan import AppMemory, Gaps, Planner, SingleCallPlanner
from anaphora.cache.plan.memory import TtlCosts
from anaphora.cache.plan.saved import SavedPlanner, restore_conversation
from anaphora.cache.simulator import RenderedPrompt, Simulator
from anaphora.prompt import Call, Params, PartMark, PromptBlock, PromptCachePlan, PromptIR, Segment
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import Counts
from anaphora.values import (
    TTL_SECONDS,
    Conversation,
    Message,
    SegmentRole,
    Tool,
    ToolCall,
    ToolResult,
)

CLAUDE = ("anthropic", "claude-sonnet-4-5")
RULES = catalog.rules(*CLAUDE)
LONG = "word " * 1500
MARKED_DIALECTS = [
    ("anthropic", "claude-sonnet-4-5"),
    ("openai", "gpt-5.6"),
    ("alibaba", "qwen3-max"),
    ("minimax/anthropic", "MiniMax-M2.7"),
]


class PlannedConversation:
    """A conversation with a planner of its own."""

    def __init__(
        self, name: str = "anthropic", model: str = CLAUDE[1], memory: AppMemory | None = None
    ) -> None:
        self.codec, provider = wire.get(name), wire.provider_of(name)
        row = name.partition("/")[2] or wire.dialect_of(name).wire
        self.profile = catalog.profile(provider, model)
        self.rules = catalog.rules(provider, model, row)
        self.memory = memory or AppMemory(self.rules)
        self.planner = Planner(self.memory)
        self.model = model
        self.conversation = Conversation()
        self.last: Rendered | None = None

    def add(self, *messages: Message) -> None:
        for message in messages:
            self.conversation = self.conversation.append(message)

    def turn(self, at: float, **fields: Any) -> Plan:
        tail = fields.pop("tail", [])
        cache = fields.pop("cache", PromptCachePlan())
        system = (PromptBlock("identity", fields.pop("system", LONG)),)
        ir = PromptIR.chat(self.conversation, system=system, tail=tail, cache=cache)
        call = Call(
            ir=ir,
            model=self.model,
            tools=fields.pop("tools", (Tool("look", "Looks."),)),
            params=Params(max_tokens=9),
        )
        self.last = self.codec.render(call, self.profile, self.last)
        plan = self.planner.plan(self.last, at=at)
        self.planner.sent(self.last, plan, at=at)
        self.codec.assemble(self.last, plan)
        return plan

    def ttls(self, plan: Plan) -> list[str]:
        return [mark.ttl for mark in plan.marks]


def question(number: int, size: int = 50) -> Message:
    return Message.user(f"question {number} " + "more " * size)


# ── Lifetimes ────────────────────────────────────────────────────────────────────────────────────


def gaps(*pauses: float) -> tuple[Gaps, float]:
    seen, at = Gaps(), 0.0
    seen.use(at)
    for pause in pauses:
        at += pause
        seen.use(at)
    return seen, at


@each_row(
    "pauses, ttl",
    [
        ((), "5m"),
        ((20.0,) * 6, "5m"),
        ((240.0,) * 6, "5m"),
        ((360.0,), "1h"),
        ((1800.0,) * 3, "1h"),
        ((20.0,) * 8 + (1800.0,), "1h"),
        ((5400.0,) * 3, None),
    ],
)
def test_the_ttl_that_pays_for_observed_pauses(pauses: tuple[float, ...], ttl: str | None) -> None:
    seen, at = gaps(*pauses)
    assert TtlCosts(RULES).best_ttl(seen, at + (pauses[-1] if pauses else 0)) == ttl


def test_the_current_pause_counts() -> None:
    seen, _ = gaps(10.0)
    assert TtlCosts(RULES).best_ttl(seen, 30.0) == "5m"
    assert TtlCosts(RULES).best_ttl(seen, 2000.0) == "1h"


@given(st.lists(st.floats(0, 10_000), max_size=200), st.floats(0, 10_000))
def test_probabilities_are_bounded_and_monotonic(pauses: list[float], seconds: float) -> None:
    seen, at = gaps(*pauses)
    assert 0 <= seen.within(seconds, at) <= seen.within(seconds + 100, at) <= 1


@given(st.lists(st.sampled_from([5.0, 200.0, 400.0, 2000.0, 9000.0]), min_size=1, max_size=150))
def test_incremental_counts_equal_recounting(pauses: list[float]) -> None:
    one, at = gaps(*pauses)
    other = Gaps()
    other.within(300, 0)  # asked before anything was seen, so it is counted along
    now = 0.0
    other.use(now)
    for pause in pauses:
        now += pause
        other.use(now)
    assert one.within(300, at) == pytest.approx(other.within(300, now))


def test_pauses_of_400_s_make_1h_cheapest_and_5m_dearest() -> None:
    seen, at = gaps(*[400.0] * 5)
    assert TtlCosts(RULES).by_ttl(seen, at)["1h"] < TtlCosts(RULES).by_ttl(seen, at)[None]
    assert TtlCosts(RULES).by_ttl(seen, at)[None] < TtlCosts(RULES).by_ttl(seen, at)["5m"]


# ── Places ───────────────────────────────────────────────────────────────────────────────────────


def test_the_tail_and_the_shared_prefix_are_marked() -> None:
    conversation = PlannedConversation()
    conversation.add(question(1))
    plan = conversation.turn(0, tools=(Tool("look", LONG),))
    assert conversation.last is not None
    assert [conversation.last.chunk(mark.chunk).path for mark in plan.marks] == [
        "tools[0]",
        "system[0]",
        "messages[0].content[0]",
    ]


def test_volatile_content_is_never_marked() -> None:
    conversation = PlannedConversation()
    conversation.add(question(1))
    plan = conversation.turn(0, tail=[Message.user("It is 09:41.")])
    assert conversation.last is not None
    roles = {conversation.last.chunk(mark.chunk).role for mark in plan.marks}
    assert SegmentRole.VOLATILE_TAIL not in roles
    assert SegmentRole.CONVERSATION in roles


def test_a_system_message_at_the_end_is_not_marked() -> None:
    """What is written there is not found again; what is written before it is."""
    conversation = PlannedConversation(model="claude-opus-4-8")
    conversation.add(question(1), Message.system("Nine tokens are left."))
    plan = conversation.turn(0)
    last = conversation.last
    assert last is not None
    assert last.chunk(len(last) - 1).path == "messages[1].content[0]"
    assert last.chunk(plan.marks[-1].chunk).path == "messages[0].content[0]"
    conversation.add(Message.assistant("Yes."), question(2))
    plan = conversation.turn(60)
    assert conversation.last is not None
    read = conversation.planner.predict(conversation.last, plan, at=90).read
    assert read == Counts(conversation.last).tokens(plan.marks[-1].chunk + 1)
    assert last.data() == conversation.last.data(len(last))


def test_nothing_is_marked_below_the_minimum() -> None:
    conversation = PlannedConversation()
    conversation.add(Message.user("hi"))
    assert conversation.turn(0, system="short", tools=()).marks == ()


@pytest.mark.parametrize("count, marks, needed", [(5, 2, False), (30, 1, True)])
def test_the_last_write_keeps_its_marker_when_the_look_back_would_not_reach_it(
    count: int, marks: int, needed: bool
) -> None:
    """Law 5, and CASES D: a fan-out of parallel results. Within the look-back the marker is only
    worth a slot that nothing else needs."""
    conversation = PlannedConversation()
    conversation.add(question(1))
    first = conversation.turn(0)
    calls = [ToolCall(f"c{n}", "look", "{}") for n in range(count)]
    conversation.add(Message.assistant(*calls))
    results = tuple(ToolResult(call.id, "seen") for call in calls)
    conversation.add(Message(role="tool", parts=results, id="results"))
    own = tuple(PartMark("results", (n,)) for n in range(marks))
    second = conversation.turn(20, cache=PromptCachePlan(marks=own))
    tail = first.marks[-1].chunk
    assert (tail in [mark.chunk for mark in second.marks]) is needed


def test_the_callers_own_marks_are_kept_and_counted() -> None:
    conversation = PlannedConversation()
    conversation.add(*(Message.user("more " * 800, id=f"m{at}") for at in range(6)))
    marks = tuple(PartMark(f"m{at}", (0,)) for at in range(3))
    plan = conversation.turn(0, cache=PromptCachePlan(marks=marks))
    assert len(plan.marks) == 4
    assert conversation.last is not None
    assert {mark.chunk for mark in conversation.last.marks} <= {mark.chunk for mark in plan.marks}
    assert [notice.code for notice in plan.notices] == ["marker_left_out"]


def test_the_frozen_boundary_gets_a_marker() -> None:
    conversation = PlannedConversation()
    conversation.add(*(Message.user("more " * 300, id=f"m{at}") for at in range(4)))
    plan = conversation.turn(0, cache=PromptCachePlan(frozen_through="m1"))
    assert conversation.last is not None
    assert conversation.last.frozen in [mark.chunk for mark in plan.marks]


def test_long_pauses_end_all_marking_and_short_ones_bring_it_back() -> None:
    conversation = PlannedConversation()
    at = 0.0
    for turn in range(6):
        conversation.add(question(turn))
        plan = conversation.turn(at)
        conversation.add(Message.assistant("ok"))
        at += 5400
    assert plan.marks == ()
    for turn in range(12):
        conversation.add(question(turn))
        plan = conversation.turn(at)
        conversation.add(Message.assistant("ok"))
        at += 20
    assert plan.marks


def test_a_shared_beginning_lives_as_long_as_its_conversations_need() -> None:
    """Each conversation is short; a new one comes every ten minutes."""
    memory = AppMemory(RULES)
    for number in range(4):
        conversation = PlannedConversation(memory=memory)
        conversation.add(question(number))
        plan = conversation.turn(600.0 * number)
    assert plan.marks[0].ttl == "1h"


def test_openai_does_not_write_a_volatile_end() -> None:
    conversation = PlannedConversation("openai", "gpt-5.6")
    conversation.add(question(1))
    assert not conversation.turn(0).only_marks
    plan = conversation.turn(10, tail=[Message.user("It is 09:41.")])
    assert plan.only_marks
    assert conversation.last is not None
    body = conversation.codec.assemble(conversation.last, plan).body.join()
    assert b'"prompt_cache_options":{"mode":"explicit"}' in body


def test_the_callers_automatic_breakpoint_is_kept() -> None:
    conversation = PlannedConversation("openai", "gpt-5.6")
    conversation.add(question(1))
    plan = conversation.turn(0, tail=[Message.user("now")], cache=PromptCachePlan(automatic="30m"))
    assert not plan.only_marks


def test_a_provider_that_caches_by_itself_is_not_marked() -> None:
    conversation = PlannedConversation("deepseek", "deepseek-chat")
    conversation.add(question(1))
    assert conversation.turn(0) == Plan()


# ── Laws ─────────────────────────────────────────────────────────────────────────────────────────

turns = st.lists(
    st.tuples(
        st.sampled_from([3.0, 250.0, 320.0, 2000.0, 8000.0]), st.integers(1, 40), st.booleans()
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("name, model", MARKED_DIALECTS)
@given(turns)
def test_law_4_markers_are_legal_whatever_happens(
    name: str, model: str, story: list[tuple[float, int, bool]]
) -> None:
    conversation, at = PlannedConversation(name, model), 0.0
    for number, (pause, results, state) in enumerate(story):
        conversation.add(question(number))
        plan = conversation.turn(at, tail=[Message.user(f"{at}")] if state else [])
        assert len(plan.marks) <= conversation.rules.slots.value
        assert conversation.last is not None
        assert all(mark.chunk < conversation.last.cacheable for mark in plan.marks)
        assert all(mark.ttl in conversation.rules.ttls.value for mark in plan.marks)
        lives = [TTL_SECONDS[mark.ttl] for mark in plan.marks]
        if conversation.rules.longer_ttl_first.value:
            assert lives == sorted(lives, reverse=True)
        calls = [ToolCall(f"c{number}_{n}", "look", "{}") for n in range(results)]
        conversation.add(Message.assistant(*calls))
        conversation.add(Message(role="tool", parts=tuple(ToolResult(c.id, "r") for c in calls)))
        at += pause


@pytest.mark.parametrize("unit", ["blocks", "tool_runs"])
@given(turns)
def test_law_5_what_was_written_and_lives_is_read(
    unit: Any, story: list[tuple[float, int, bool]]
) -> None:
    """Under both published ways of counting."""
    conversation, at = PlannedConversation(), 0.0
    other = Simulator(RULES, lookback_unit=unit)
    written: tuple[int, float] | None = None
    for number, (pause, results, _) in enumerate(story):
        conversation.add(question(number))
        plan = conversation.turn(at)
        assert conversation.last is not None
        prompt = RenderedPrompt(conversation.last, plan)
        outcome = other.call(prompt, at=at)
        if written is not None and at < written[1]:
            assert outcome.read >= written[0]
        written = None
        if plan.marks:
            mark = plan.marks[-1]
            written = prompt.tokens(mark.chunk), at + TTL_SECONDS[mark.ttl]
        calls = [ToolCall(f"c{number}_{n}", "look", "{}") for n in range(results)]
        conversation.add(Message.assistant(*calls))
        conversation.add(Message(role="tool", parts=tuple(ToolResult(c.id, "r") for c in calls)))
        at += pause


def test_law_10_a_new_date_in_the_tail_touches_only_the_tail() -> None:
    conversation = PlannedConversation()
    conversation.add(question(1))
    one = conversation.turn(0, tail=[Message.user("2026-11-14")])
    assert conversation.last is not None
    before = conversation.last.cacheable_data()
    two = conversation.turn(5, tail=[Message.user("2026-11-15")])
    assert conversation.last.cacheable_data() == before
    assert [mark.chunk for mark in one.marks] == [mark.chunk for mark in two.marks]


def test_planning_hashes_each_block_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key for each block and at most one salt for each section, however many turns there are:
    salts are also known from other conversations. Messages are hashed when a call is simulated."""
    from anaphora.cache.simulator import prompt as module

    made = 0

    def counted(function: Any) -> Any:
        def hashing(*data: bytes) -> Any:
            nonlocal made
            made += 1
            return function(*data)

        return hashing

    copied = SimpleNamespace(copy=counted(vars(module)["_SHA256"].copy))
    monkeypatch.setattr(module, "_SHA256", copied)
    monkeypatch.setattr(module, "blake3", counted(vars(module)["blake3"]))
    conversation = PlannedConversation()
    for number in range(30):
        conversation.add(question(number), Message.assistant("ok"))
        plan = conversation.turn(number * 10.0)
    assert conversation.last is not None
    assert made <= sum(run.count for run in conversation.last.runs if run.section != "messages")
    conversation.planner.predict(conversation.last, plan, at=300.0)
    assert len(conversation.last) <= made <= len(conversation.last) + 3


def test_segments_before_the_conversation_are_shared_too() -> None:
    conversation = PlannedConversation()
    guide = Segment.of(SegmentRole.STABLE_PREFIX, Message.user(LONG))
    ir = PromptIR(segments=(guide, Segment.of(SegmentRole.CONVERSATION, question(1))))
    call = Call(ir=ir, model=conversation.model, params=Params(max_tokens=9))
    rendered = conversation.codec.render(call, conversation.profile)
    plan = conversation.planner.plan(rendered, at=0)
    roles = [rendered.chunk(mark.chunk).role for mark in plan.marks]
    assert roles == [SegmentRole.STABLE_PREFIX, SegmentRole.CONVERSATION]


# ── Keys ─────────────────────────────────────────────────────────────────────────────────────────


def test_conversations_with_one_beginning_share_a_cache_key() -> None:
    memory = AppMemory(catalog.rules("openai", "gpt-4.1", "openai_chat"))
    keys = set()
    for number in range(3):
        conversation = PlannedConversation("openai", "gpt-4.1", memory)
        conversation.add(question(number))
        plan = conversation.turn(number * 30.0)
        assert conversation.last is not None
        body = conversation.codec.assemble(conversation.last, plan).body.join()
        assert plan.key is not None
        assert f'"prompt_cache_key":"{plan.key}"'.encode() in body
        keys.add(plan.key)
    assert len(keys) == 1


def test_a_key_with_too_many_requests_is_split_and_stays_with_its_conversation() -> None:
    memory = AppMemory(catalog.rules("openai", "gpt-4.1", "openai_chat"))
    conversations = [PlannedConversation("openai", "gpt-4.1", memory) for _ in range(40)]
    first = []
    for number, conversation in enumerate(conversations):
        conversation.add(question(number))
        first.append(conversation.turn(number * 0.5).key)
    assert len(set(first)) > 2
    for number, conversation in enumerate(conversations):
        conversation.add(Message.assistant("ok"), question(number))
    assert [conversation.turn(600.0).key for conversation in conversations] == first


def test_the_callers_cache_key_is_kept() -> None:
    conversation = PlannedConversation("openai", "gpt-4.1")
    conversation.add(question(1))
    assert conversation.turn(0, cache=PromptCachePlan(key="mine")).key is None


def test_a_key_goes_where_the_provider_takes_it() -> None:
    from anaphora.rendered import Plan as Planned

    for name, model, place in (("xai", "grok-4", "x-grok-conv-id"), ("llamacpp", "any", None)):
        conversation = PlannedConversation(name, model)
        conversation.add(question(1))
        conversation.turn(0)
        assert conversation.last is not None
        assert conversation.last.key_place == place
        if place is not None:
            request = conversation.codec.assemble(conversation.last, Planned(key="k"))
            assert (place, "k") in request.headers


# ── Prompts that change ──────────────────────────────────────────────────────────────────────────


@pytest.mark.breaks_prefix(reason="the prompts change")
@each_row(
    "systems, tools, marked",
    [
        ("abcdef", "aaaaaa", "##...."),  # a clock in the system prompt
        ("abcddd", "aaaaaa", "##..##"),  # a clock that stops
        ("abcdde", "aaaaaa", "##..##"),
        ("aaabbb", "aaaaaa", "######"),  # one change
        ("aabbcc", "aaaaaa", "######"),
        ("ababab", "aaaaaa", "######"),  # two prompts in turn
        ("abcabc", "aaaaaa", "##.###"),
        ("abcdabcdabcd", "aaaaaaaaaaaa", "##..########"),
        ("aaabcd", "aaaaaa", "#####."),  # a clock is added
    ],
)
@pytest.mark.parametrize("name, model", [MARKED_DIALECTS[0], MARKED_DIALECTS[1]])
def test_a_beginning_that_changes_each_time_is_not_written(
    name: str, model: str, systems: str, tools: str, marked: str
) -> None:
    """Two changes in a row show that what is written there is not read; it is written again from
    the first call on that repeats it."""
    conversation, found = PlannedConversation(name, model), ""
    for number, (system, order) in enumerate(zip(systems, tools, strict=True)):
        conversation.add(question(number))
        plan = conversation.turn(
            20.0 * number,
            system=f"The time is {system}. {LONG}",
            tools=(Tool(f"look_{order}", "Looks."), Tool("find", "Finds.")),
        )
        found += "#" if plan.marks else "."
        assert plan.only_marks or name == "anthropic" or plan.marks
        conversation.add(Message.assistant(f"answer {number}"))
    assert found == marked


@pytest.mark.breaks_prefix(reason="the prompts change")
@pytest.mark.parametrize("name, model, kept", [(*CLAUDE, 0), ("openai", "gpt-5.6", 1)])
def test_shuffled_tools_are_not_written(name: str, model: str, kept: int) -> None:
    """OpenAI hashes the system prompt before them."""
    conversation, counts = PlannedConversation(name, model), list[int]()
    for number in range(6):
        conversation.add(question(number))
        tools = [Tool(f"look_{at}", "Looks.") for at in range(6)]
        tools = tools[number:] + tools[:number]
        counts.append(len(conversation.turn(20.0 * number, tools=tuple(tools)).marks))
        conversation.add(Message.assistant(f"answer {number}"))
    assert counts[0] > 1
    assert counts[3:] == [kept] * 3


@pytest.mark.breaks_prefix(reason="the prompts change")
def test_tools_before_a_clock_are_written() -> None:
    conversation, paths = PlannedConversation(), list[list[str]]()
    for number in range(5):
        conversation.add(question(number))
        tools, system = (Tool("look", LONG),), f"It is 09:4{number}. {LONG}"
        plan = conversation.turn(20.0 * number, system=system, tools=tools)
        assert conversation.last is not None
        paths.append([conversation.last.chunk(mark.chunk).path for mark in plan.marks])
        conversation.add(Message.assistant(f"answer {number}"))
    assert "system[0]" in paths[0]
    assert paths[2:] == [["tools[0]"]] * 3


@pytest.mark.breaks_prefix(reason="the prompts change")
def test_a_last_message_that_changes_is_not_written_but_the_turn_before_it_is() -> None:
    conversation, tails, reads = PlannedConversation(), list[bool](), list[int]()
    for number in range(6):
        conversation.add(question(number, 400))
        own = conversation.conversation
        conversation.add(Message.assistant("Noted."), Message.user(f"It is 09:4{number}."))
        plan = conversation.turn(20.0 * number)
        last = conversation.last
        assert last is not None
        tails.append(plan.marks[-1].chunk == last.cacheable - 1)
        reads.append(conversation.planner.predict(last, plan, at=20.0 * number + 1).read)
        conversation.conversation = own
        conversation.add(Message.assistant(f"answer {number}"))
    assert tails == [True, True, False, False, False, False]
    assert reads == sorted(reads)


@pytest.mark.breaks_prefix(reason="the prompts change")
def test_history_is_written_for_four_prompts_in_turn() -> None:
    conversation, tails = PlannedConversation(), list[bool]()
    for number in range(12):
        conversation.add(question(number))
        plan = conversation.turn(20.0 * number, system=f"Agent {number % 4}. {LONG}")
        assert conversation.last is not None
        tails.append(plan.marks[-1:] != () and plan.marks[-1].chunk == len(conversation.last) - 1)
        conversation.add(Message.assistant(f"answer {number}"))
    assert all(tails[4:])


@pytest.mark.breaks_prefix(reason="the prompts change")
def test_the_turn_before_a_changing_message_stays_marked_where_unmarked_prompts_are_cached() -> (
    None
):
    """Alibaba has a cache for each: a request without markers would not read the marked history."""
    conversation, reads = PlannedConversation("alibaba", "qwen3-max"), list[int]()
    for number in range(6):
        conversation.add(question(number, 400))
        own = conversation.conversation
        conversation.add(Message.assistant("Noted."), Message.user(f"It is 09:4{number}."))
        plan = conversation.turn(20.0 * number)
        assert plan.marks
        assert conversation.last is not None
        reads.append(
            conversation.planner.predict(conversation.last, plan, at=20.0 * number + 1).read
        )
        conversation.conversation = own
        conversation.add(Message.assistant(f"answer {number}"))
    assert reads == sorted(reads)
    assert reads[-1] > 4 * 400


@pytest.mark.breaks_prefix(reason="the prompts change")
def test_changes_are_kept_by_forks_and_other_processes() -> None:
    conversation = PlannedConversation()
    for number in range(3):
        conversation.add(question(number))
        conversation.turn(20.0 * number, system=f"It is 09:4{number}. {LONG}")
        conversation.add(Message.assistant("Yes."))
    conversation.add(question(4))
    assert conversation.last is not None
    saved = msgspec.json.decode(
        msgspec.json.encode(conversation.planner.save(conversation.last)), type=SavedPlanner
    )
    planner = conversation.planner
    for other in (planner.fork(), Planner(memory := AppMemory(RULES))):
        if other._memory is not planner._memory:
            other.state = restore_conversation(memory, saved, here=False)
        conversation.planner = other
        assert not conversation.turn(60.0, system=f"It is 09:44. {LONG}").marks
        assert conversation.turn(80.0, system=f"It is 09:44. {LONG}").marks


@pytest.mark.breaks_prefix(reason="the prompts change")
def test_single_calls_of_a_conversation_learn_that_its_beginning_changes() -> None:
    conversation, memory, marked = PlannedConversation(), AppMemory(RULES), ""
    for number, clock in enumerate("abcdef" + "fff"):
        conversation.add(question(number))
        conversation.turn(20.0 * number, system=f"The time is {clock}. {LONG}")
        rendered = conversation.last
        assert rendered is not None
        single = SingleCallPlanner(memory, rendered)
        plan = single.plan(rendered, at=20.0 * number)
        single.sent_single(rendered, plan, at=20.0 * number)
        marked += "#" if plan.marks else "."
        conversation.add(Message.assistant(f"answer {number}"))
    assert marked == "##....###"


def test_a_single_call_takes_over_the_keys_of_the_call_that_it_continues() -> None:
    codec, profile, memory = wire.get("anthropic"), catalog.profile(*CLAUDE), AppMemory(RULES)
    tools = (Tool("look", "Looks."),)
    for number in range(6):
        # The same messages twice, then two more; new objects each time.
        texts = [f"question {each} " + "more " * 500 for each in range(1 + 2 * (number // 2))]
        history = [
            Message.assistant(text) if index % 2 else Message.user(text)
            for index, text in enumerate(texts)
        ]
        ir = PromptIR.chat(history, system=(PromptBlock("identity", LONG),))
        call = Call(ir=ir, model=CLAUDE[1], tools=tools, params=Params(max_tokens=9))
        rendered, fresh = codec.render(call, profile), codec.render(call, profile)
        single = SingleCallPlanner(memory, rendered)
        known = rendered.runs[-1].log.keys
        assert (known is not None) == (number > 0)
        plan = single.plan(rendered, at=20.0 * number)
        single.sent_single(rendered, plan, at=20.0 * number)
        one, two = RenderedPrompt(rendered, plan), RenderedPrompt(fresh, plan)
        assert [one.key(at) for at in range(len(one))] == [two.key(at) for at in range(len(two))]
