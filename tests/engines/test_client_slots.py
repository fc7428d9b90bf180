"""Several conversations on one server: the prediction follows who is pushed out.

The number of slots, and whether prompts without one are kept, is not configured: the client begins
with the defaults of llama.cpp and corrects itself after one bill.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.llama import Llama
from support.llama_client import apart, with_client

from anaphora.client.client import AsyncClient
from anaphora.client.response import Response

ROUNDS = 5
#: Two of these have little in common.
PEOPLE = [f"{letter * 3} is who you are, and who you were before. " * 14 for letter in "ABCDEF"]
RULES = "Everybody has to keep these rules. " * 12


def in_turn(llama: Llama, systems: list[str]) -> list[list[Response]]:
    """Conversations that take turns; the answers of each round."""

    async def conversation(client: AsyncClient) -> list[list[Response]]:
        chats = [client.session("openai_chat", system=text, max_tokens=20) for text in systems]
        return [
            [await chat.send(f"Question {turn}: and you?") for chat in chats]
            for turn in range(ROUNDS)
        ]

    return with_client(llama, conversation)


def far(answers: list[list[Response]]) -> list[tuple[int, int]]:
    """Turns whose prediction was off by more than one token: round and conversation."""
    return [
        (turn, who)
        for turn, round_ in enumerate(answers)
        for who, answered in enumerate(round_)
        if abs(apart(answered)) > 1
    ]


@pytest.mark.parametrize(
    "slots, aside, conversations, kept",
    [
        (1, 0, 1, True),
        (1, 0, 2, False),
        (2, 0, 2, True),
        (2, 0, 3, False),
        (4, 0, 3, True),
        (4, 0, 4, True),
        (4, 0, 5, False),
        (1, 64, 2, True),
        (4, 64, 6, True),
    ],
)
def test_which_conversations_keep_their_slot(
    start: Callable[..., Llama], slots: int, aside: int, conversations: int, kept: bool
) -> None:
    answers = in_turn(start(slots=slots, aside=aside), PEOPLE[:conversations])
    settled = answers[3:]
    for answered in (one for round_ in settled for one in round_):
        assert answered.verdict is not None
        assert answered.verdict.result == ("hit" if kept else "partial")
        assert answered.verdict.cause == (None if kept else "evicted")
    # Surprises are over after the second time around, and most conversations have none.
    assert not [turn for turn, _ in far(answers) if turn > 2]
    assert far(answers[1:3]) == [] or not kept or aside


def test_a_conversation_that_begins_alike_takes_the_slot_though_others_are_free(
    start: Callable[..., Llama],
) -> None:
    """The slot that shares most is taken, even when others need the rest of it: two conversations with the
    same rules take turns in one slot of four. What they share is read, to the token."""
    answers = in_turn(start(slots=4), [RULES + person for person in PEOPLE[:2]])
    for round_ in answers[3:]:
        for answered in round_:
            assert len(RULES) < (answered.usage.read or 0) < len(RULES) + 50
            assert answered.verdict is not None
            assert answered.verdict.cause == "evicted"
    assert not [turn for turn, _ in far(answers) if turn > 2]


def test_a_conversation_that_comes_back_when_others_are_done(start: Callable[..., Llama]) -> None:
    """One slot. The first is pushed out, comes back, and is at home again."""

    async def conversation(client: AsyncClient) -> list[Response]:
        one, two = (
            client.session("openai_chat", system=text, max_tokens=20) for text in PEOPLE[:2]
        )
        round_ = [
            await one.send("Hello?"),
            await two.send("Hello?"),
            await one.send("Still there?"),
        ]
        return [*round_, await one.send("So?"), await two.send("And me?"), await two.send("So?")]

    first, _, lost, home, other, settled = with_client(start(slots=1), conversation)
    assert (first.usage.read, first.record.predicted) == (0, 0)
    assert (lost.usage.read or 0) < 20  # one slot was not expected
    for answered in (home, settled):
        assert answered.usage.read == answered.record.predicted
        assert (answered.usage.read or 0) > len(PEOPLE[0])
    assert max(other.usage.read or 0, other.record.predicted or 0) < 100  # now it is known


def test_a_fork_shares_the_prefix(start: Callable[..., Llama]) -> None:
    async def conversation(client: AsyncClient) -> list[Response]:
        chat = client.session("openai_chat", system=PEOPLE[0], max_tokens=20)
        await chat.send("Hello?")
        await chat.send("More?")
        branch = chat.fork()
        return [await chat.send("Left?"), await branch.send("Right?")]

    left, right = with_client(start(slots=4), conversation)
    assert left.usage.read == left.record.predicted
    # The branch goes on from the same slot, in which the other one has been used since.
    assert (right.usage.read or 0) >= (left.usage.read or 0)
    assert right.record.predicted == pytest.approx(right.usage.read, abs=20)
