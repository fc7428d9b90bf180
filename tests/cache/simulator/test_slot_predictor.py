"""Conversations on self-hosted servers, as `simulator/slot_predictor.py` predicts them.

The server here is a few lines: it bills what a chat template would make of each turn. What a real
one bills is in tests/engines.
"""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from anaphora import catalog, wire
from anaphora.cache.simulator import Outcome, RenderedPrompt, Simulator, SlotPredictor
from anaphora.cache.simulator.slot_predictor import TemplateStats
from anaphora.prompt import Call, Params, PromptIR
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import Bills, Counts
from anaphora.values import Conversation, Message, Part, Text, Thinking, ToolCall, Usage

RULES = catalog.rules("llamacpp", "any")
WIRE = wire.get("anthropic")
LONG = Params(max_tokens=100)

Anchor = Literal["answer", "prompt", "question"]
Kind = Literal["words", "call", "thought"]

_ANSWERS: dict[Kind, tuple[Part, ...]] = {
    "words": (Text("Rome."),),
    "call": (ToolCall("c", "look", "{}"),),
    "thought": (Thinking("Hm.", signature="s", provider="anthropic"), Text("Rome.")),
}


class Server:
    """One slot with a configurable template."""

    def __init__(self) -> None:
        self.simulator = Simulator(RULES)
        self.following = SlotPredictor(TemplateStats())
        self.conversation = Conversation([])
        self.rendered: Rendered | None = None
        self.usage = Usage()
        self.question = 0
        self.at = 0

    def expects(self) -> int:
        return self.following.read(self.render(), self.outcome())

    def answers(self, read: int, kind: Kind, total: int, output: int) -> None:
        """Bills a call, and replies."""
        rendered, outcome = self.render(), self.outcome()
        self.simulator.call(RenderedPrompt(rendered, Plan()), at=float(self.at))
        self.usage = Usage(uncached=total - read, read=read, output=output)
        self.following.billed(rendered, outcome, self.usage)
        self.rendered = rendered
        if self.conversation[-1].role == "user":
            self.question = total
        self.at += 1
        self.conversation = self.conversation.append(
            Message(role="assistant", parts=_ANSWERS[kind])
        )

    def receives(self, message: Message) -> None:
        self.conversation = self.conversation.append(message)

    def render(self) -> Rendered:
        call = Call(
            ir=PromptIR.chat(self.conversation, system="You are terse. " * 50),
            model="any",
            params=LONG,
        )
        return WIRE.render(call, catalog.profile("llamacpp", "any"), self.rendered)

    def outcome(self) -> Outcome:
        return self.simulator.predict(RenderedPrompt(self.render(), Plan()), at=float(self.at))


def parted(server: Server, anchor: Anchor, beside: int) -> int:
    total, output = server.usage.input or 0, server.usage.output or 0
    ends = {"answer": total + output - 1, "prompt": total, "question": server.question}
    return ends[anchor] + beside


turns = st.lists(
    st.tuples(st.sampled_from(["words", "call"]), st.integers(20, 400), st.integers(1, 90)),
    min_size=4,
    max_size=14,
)
habits = st.tuples(st.sampled_from(["answer", "prompt"]), st.integers(-5, 0))


@given(turns=turns, words=habits, calls=habits)
def test_a_template_is_learned_after_one_turn_of_a_kind(
    turns: list[tuple[Kind, int, int]], words: tuple[Anchor, int], calls: tuple[Anchor, int]
) -> None:
    """Unless an answer is so short that its bill may be read in two ways."""
    server, seen = Server(), {"words": 0, "call": 0}
    server.receives(Message.user("Where?"))
    before: Kind | None = None
    total = 900
    for kind, output, new in turns:
        read = 0
        if before is not None:
            anchor, beside = words if before == "words" else calls
            read = parted(server, anchor, beside)
            if seen[before]:
                assert server.expects() == read
            seen[before] += 1
            total = (server.usage.input or 0) + (server.usage.output or 0) + new
        server.answers(read, kind, total, output)
        result = Message.tool("c", "It rains.")
        server.receives(result if kind == "call" else Message.user("And then?"))
        before = kind


@pytest.mark.parametrize("kind, anchor", [("words", "answer"), ("call", "prompt")])
def test_before_any_bill_the_conservative_anchor_is_assumed(kind: Kind, anchor: Anchor) -> None:
    server = Server()
    server.receives(Message.user("Where?"))
    server.answers(0, kind, 900, 50)
    server.receives(Message.tool("c", "It rains.") if kind == "call" else Message.user("And then?"))
    assert server.expects() == parted(server, anchor, 0)


def test_thinking_is_dropped_at_the_next_user_turn() -> None:
    """Several steps, the first of which thinks: when the user speaks, all that followed their last
    words is rendered without the thinking. So the prompts part where those words ended."""
    server = Server()
    for turn in range(3):
        server.receives(Message.user(f"Question {turn}?"))
        expected = server.expects()
        read = parted(server, "question", -2) if turn else 0
        if turn == 1:
            assert expected == server.question  # the careful guess
        elif turn:
            assert expected == read
        total = read + 500
        server.answers(read, "thought", total, 40)
        # The model calls a tool without thinking again, and what it says then is about that.
        server.receives(Message.tool("c", "It rains."))
        server.answers(total - 2, "words", total + 100, 9)


def test_a_loss_is_not_learned() -> None:
    server = Server()
    server.receives(Message.user("Where?"))
    server.answers(0, "words", 900, 50)
    for _ in range(3):  # another client uses the server repeatedly
        server.receives(Message.user("And then?"))
        expected = server.expects()
        assert expected == (server.usage.input or 0) + (server.usage.output or 0) - 1
        server.answers(7, "words", expected + 40, 50)


def test_the_same_prompt_again_is_read_but_for_its_last_token() -> None:
    server = Server()
    server.receives(Message.user("Where?"))
    server.answers(0, "words", 900, 50)
    server.conversation = server.conversation.prefix(1)
    assert server.expects() == 899


def test_a_bill_without_counts_leaves_the_estimate() -> None:
    server = Server()
    server.receives(Message.user("Where?"))
    server.answers(0, "words", 900, 50)
    server.receives(Message.user("And then?"))
    rendered, outcome = server.render(), server.outcome()
    server.following.billed(rendered, outcome, Usage(output=4))
    assert server.following.read(rendered, outcome) == pytest.approx(900, rel=0.2)


# ── What bills tell of the slots ─────────────────────────────────────────────────────────────────


class ServedConversations:
    """Conversations that share nothing, on a server with so many slots."""

    def __init__(self, slots: int, *, aside: bool = False) -> None:
        self.simulator = Simulator(RULES)
        self.slots = slots
        self.aside = aside
        self.lengths: dict[str, int] = {}
        self.kept: list[str] = []

    def run_turn(self, name: str) -> tuple[bool, bool]:
        """Whether we expect a conversation to be found, and whether it is."""
        length = self.lengths[name] = self.lengths.get(name, 0) + 1
        prompt = TOKENS[name, length]
        read = self.simulator.call(prompt, at=float(sum(self.lengths.values()))).read
        expected = 2 * read > prompt.total
        alive = self.kept if self.aside else self.kept[-self.slots :]
        match = name in alive
        self.kept = [*(other for other in self.kept if other != name), name]
        self.simulator.billed((prompt.total - 100) / prompt.total if match else 0.0)
        return expected, match


def _tokens() -> dict[tuple[str, int], RenderedPrompt]:
    made: dict[tuple[str, int], RenderedPrompt] = {}
    for name in "abcdef":
        messages: list[Message] = []
        for length in range(1, 60):
            messages.append(Message.user(name * 400))
            messages.append(Message.assistant("Yes."))
            call = Call(
                ir=PromptIR.chat(messages[:-1], system=name * 2000), model="any", params=LONG
            )
            rendered = WIRE.render(call, catalog.profile("llamacpp", "any"))
            made[name, length] = RenderedPrompt(rendered, Plan())
    return made


TOKENS = _tokens()


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
@pytest.mark.parametrize("aside", [False, True])
@given(order=st.lists(st.sampled_from("abcdef"), min_size=30, max_size=50))
def test_the_number_of_slots_is_learned(slots: int, aside: bool, order: list[str]) -> None:
    """Whatever order conversations speak in. Each surprise teaches something: there are never more
    than it takes to know the number of slots, and that there is something beside them."""
    conversations = ServedConversations(slots, aside=aside)
    outcomes = [conversations.run_turn(name) for name in order]
    surprises = sum(expected != match for expected, match in outcomes)
    assert surprises <= 2 + (4 - slots) * 2


def test_other_clients_do_not_change_the_number_of_slots() -> None:
    """A conversation that lost its slot without a call of ours was evicted by another client."""
    simulator = Simulator(RULES)
    for name in "abcd":
        simulator.call(TOKENS[name, 1], at=0.0)
    for length in (2, 3):
        simulator.call(TOKENS["d", length], at=float(length))
        simulator.billed(0.0)
    for name in "abc":
        assert simulator.predict(TOKENS[name, 2], at=9.0).read > 0


def test_prompts_may_differ_inside_a_block() -> None:
    simulator = Simulator(RULES)
    profile = catalog.profile("llamacpp", "any")

    def content(system: str) -> RenderedPrompt:
        call = Call(ir=PromptIR.chat([Message.user("hi")], system=system), model="any", params=LONG)
        return RenderedPrompt(WIRE.render(call, profile), Plan())

    simulator.call(content("Common rules. " * 100 + "You are A."), at=0.0)
    other = content("Common rules. " * 100 + "You are B.")
    read = simulator.predict(other, at=1.0).read
    assert 0.9 * other.total < read < other.total - 10
    assert simulator.predict(content("Common rules. " * 100), at=1.0, scope="elsewhere").read == 0


def test_other_providers_follow_their_rules_alone() -> None:
    simulator = Simulator(catalog.rules("openai", "gpt-4o"))
    assert simulator.slot_predictor() is None
    simulator.billed(0.5)
    assert simulator.predict(TOKENS["a", 1], at=0.0).read == 0


def test_a_new_conversation_is_calibrated_by_the_last_bill() -> None:
    """In the server's tokens, though the prompts of the other conversation carried their bills."""
    habits = TemplateStats()
    bills: Bills = ()
    following, simulator = SlotPredictor(habits), Simulator(RULES)
    profile = catalog.profile("llamacpp", "any")
    conversation = Conversation([])
    rendered: Rendered | None = None
    for turn in range(3):
        conversation = conversation.append(Message.user("Where? " * 90))
        call = Call(
            ir=PromptIR.chat(conversation, system="You are terse. " * 50), model="any", params=LONG
        )
        rendered = replace(WIRE.render(call, profile, rendered), bills=bills)
        outcome = simulator.call(RenderedPrompt(rendered, Plan()), at=float(turn))
        twice = 2 * Counts(rendered, ()).total
        following.billed(rendered, outcome, Usage(uncached=twice, read=0, output=1))
        bills = Counts(rendered).billed(twice)
    other = Conversation([Message.user("Where? " * 90), Message.user("Why?")])
    call = Call(ir=PromptIR.chat(other, system="You are terse. " * 50), model="any", params=LONG)
    fresh = WIRE.render(call, profile)
    outcome = simulator.predict(RenderedPrompt(fresh, Plan()), at=9.0)
    assert outcome.read
    assert SlotPredictor(habits).read(fresh, outcome) == 2 * outcome.read
