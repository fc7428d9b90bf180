"""Conversations: sharing, copying and comparing."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.values import Conversation, Message, Text, from_json, to_json


def conversation_of(*texts: str) -> Conversation:
    return Conversation(Message.user(text) for text in texts)


def texts(conversation: Conversation) -> list[str]:
    return [message.text for message in conversation]


# ── Appending ────────────────────────────────────────────────────────────────────────────────────


def test_append_shares_messages_and_keeps_the_older_view() -> None:
    first = conversation_of("a", "b")
    second = first.append(Message.user("c"))
    assert texts(first) == ["a", "b"]
    assert texts(second) == ["a", "b", "c"]
    assert second[0] is first[0]
    assert second._items is first._items


def test_appending_does_not_copy() -> None:
    """A thousand appends hold a thousand messages, not half a million references."""
    conversation = Conversation()
    views = [conversation := conversation.append(Message.user("x")) for _ in range(1000)]
    assert {id(view._items) for view in views} == {id(conversation._items)}
    assert sys.getsizeof(views[0]) == sys.getsizeof(views[-1])
    assert [len(view) for view in views] == list(range(1, 1001))


def test_appending_to_an_older_view_makes_a_fork() -> None:
    trunk = conversation_of("a")
    left = trunk.append(Message.user("left"))
    right = trunk.append(Message.user("right"))
    assert (texts(trunk), texts(left), texts(right)) == (["a"], ["a", "left"], ["a", "right"])
    assert right._items is not left._items
    assert right[0] is left[0]
    assert texts(left.append(Message.user("on"))) == ["a", "left", "on"]
    assert texts(right) == ["a", "right"]


def test_appending_several_and_none() -> None:
    first = conversation_of("a")
    assert texts(first.append(Message.user("b"), Message.user("c"))) == ["a", "b", "c"]
    assert first.append() == first


# ── Numbering ────────────────────────────────────────────────────────────────────────────────────


def test_taken_ids_are_skipped() -> None:
    """A tail of a longer conversation keeps its ids; a new message gets an unused one."""
    kept = Conversation([Message.user("e", id="m4"), Message.assistant("f", id="own")])
    longer = kept.append(*(Message.user(str(number)) for number in range(4)))
    ids = [message.id for message in longer]
    assert ids == ["m4", "own", "m5", "m6", "m7", "m8"]
    again = Conversation(longer[:3]).append(Message.user("branch"))
    assert [message.id for message in again] == ["m4", "own", "m5", "m6"]


def test_views_of_one_list_share_it() -> None:
    trunk = Conversation([Message.user("a")])
    longer = trunk.append(Message.assistant("b"))
    assert longer.shares(trunk)
    assert trunk.prefix(0).shares(longer)
    assert not Conversation(longer[:]).shares(longer)
    assert not trunk.append(Message.assistant("c")).shares(longer)


def test_messages_without_an_id_are_numbered_by_position() -> None:
    conversation = Conversation(
        [Message.user("a"), Message.user("b", id="own"), Message.user("c")]
    ).append(Message.user("d"))
    assert [message.id for message in conversation] == ["m0", "own", "m2", "m3"]


def test_fork_continues_the_numbering() -> None:
    trunk = conversation_of("a")
    trunk.append(Message.user("left"), Message.user("left"))
    assert [m.id for m in trunk.append(Message.user("right"))] == ["m0", "m1"]


def test_numbering_does_not_change_the_callers_message() -> None:
    message = Message.user("a")
    assert Conversation([message])[0] == Message.user("a", id="m0")
    assert message.id == ""


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────


def test_conversation_is_a_sequence_of_its_messages() -> None:
    first = conversation_of("a", "b", "c")
    first.append(Message.user("d"))
    assert len(first) == 3
    assert (first[0].text, first[-1].text) == ("a", "c")
    assert [m.text for m in first[1:]] == ["b", "c"]
    assert [m.text for m in first[::-1]] == ["c", "b", "a"]
    assert first[3:] == ()
    assert [m.text for m in reversed(first)] == ["c", "b", "a"]
    assert first[1] in first
    assert first.index(first[2]) == 2
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"{index} of 3"):
            first[index]


@given(st.integers(-5, 8), st.integers(-5, 8), st.sampled_from([None, 1, 2, -1, -2]))
def test_slices_are_a_tuples_slices(start: int, stop: int, step: int | None) -> None:
    conversation = conversation_of("a", "b", "c")
    conversation.append(Message.user("not mine"))
    assert conversation[start:stop:step] == tuple(conversation)[start:stop:step]


@each_row("length, expected", [(0, 0), (2, 2), (3, 3), (9, 3), (-1, 0)])
def test_prefix_is_a_view(length: int, expected: int) -> None:
    whole = conversation_of("a", "b", "c")
    prefix = whole.prefix(length)
    assert texts(prefix) == texts(whole)[:expected]
    assert prefix._items is whole._items


def test_prefix_can_be_continued() -> None:
    whole = conversation_of("a", "b", "c")
    assert texts(whole.prefix(1).append(Message.user("x"))) == ["a", "x"]
    assert texts(whole) == ["a", "b", "c"]


# ── Comparing ────────────────────────────────────────────────────────────────────────────────────


class Untouchable(Message, frozen=True):
    """A message that may not be compared."""

    def same_content(self, other: Message) -> bool:
        raise AssertionError("compared although the two are shared")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared although the two are shared")

    __hash__ = None  # type: ignore[assignment]


def test_views_of_one_list_are_not_compared() -> None:
    first = Conversation(Untouchable(id=f"{at}", role="user", parts=()) for at in range(3))
    second = first.append(Message.user("x"))
    assert second.common_prefix(first) == 3
    assert second.extends(first)
    assert not first.extends(second)
    assert first == first.prefix(3)


def test_identical_messages_are_not_compared() -> None:
    messages = [Untouchable(id=f"{at}", role="user", parts=()) for at in range(3)]
    assert Conversation(messages).common_prefix(Conversation(messages)) == 3


@each_row(
    "other, common",
    [
        (conversation_of("a", "b", "c"), 3),
        (conversation_of("a", "b"), 2),
        (conversation_of("a", "x", "c"), 1),
        (conversation_of("x"), 0),
        (conversation_of(), 0),
        (conversation_of("a", "b", "c", "d"), 3),
        (Conversation([Message.user("a"), Message.assistant("b")]), 1),
        (Conversation([Message.user("a"), Message.user(Text("b", {"anthropic": "{}"}))]), 1),
        (from_json(to_json(conversation_of("a", "b", "c")), Conversation), 3),
    ],
)
def test_reloaded_messages_are_compared_by_content(other: Conversation, common: int) -> None:
    mine = conversation_of("a", "b", "c")
    assert mine.common_prefix(other) == common
    assert other.common_prefix(mine) == common
    assert mine.extends(other) is (common == len(other))


def test_ids_are_compared_only_on_request() -> None:
    mine = Conversation([Message.user("a", id="1"), Message.user("b", id="2")])
    theirs = Conversation([Message.user("a", id="1"), Message.user("b", id="3")])
    assert mine.common_prefix(theirs) == 2
    assert mine.common_prefix(theirs, ids=True) == 1
    assert mine != theirs


def test_equality() -> None:
    assert conversation_of("a") == conversation_of("a")
    assert conversation_of("a") != conversation_of("a", "b")
    assert conversation_of("a") != ["a"]
    with pytest.raises(TypeError):
        hash(conversation_of("a"))


# ── Threads ──────────────────────────────────────────────────────────────────────────────────────


def test_threads_that_append_to_one_view_each_get_their_own() -> None:
    """One of them continues the list, the others fork; no view has another's message."""
    workers = 8
    for _ in range(50):
        base = conversation_of("a", "b")
        start = threading.Barrier(workers)

        def append(
            name: int, base: Conversation = base, start: threading.Barrier = start
        ) -> Conversation:
            start.wait()
            view = base
            for step in range(5):
                view = view.append(Message.user(f"{name}.{step}"))
            return view

        with ThreadPoolExecutor(workers) as pool:
            views = list(pool.map(append, range(workers)))
        assert texts(base) == ["a", "b"]
        for name, view in enumerate(views):
            assert texts(view) == ["a", "b", *(f"{name}.{step}" for step in range(5))]
            assert [message.id for message in view] == [f"m{at}" for at in range(7)]
        assert sum(view._items is base._items for view in views) == 1
