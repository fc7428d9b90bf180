"""`PrefixIndex`: the earlier call of a conversation, by bytes and by what clients send."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import wire
from anaphora.cache import PrefixIndex, hints_of
from anaphora.cache.compared_prompt import CallHints
from anaphora.rendered import Rendered
from anaphora.rendered.request_log import droppable
from anaphora.wire.cutting import cut

CLAUDE = wire.get("anthropic")
GUIDE = "Answer in one sentence, and cite the paragraph that you took it from. "
TITLE = "Give the conversation a title of at most five words, without a full stop at its end. "


def call(
    *texts: str,
    system: str = GUIDE,
    tools: tuple[str, ...] = ("read", "write"),
    model: str = "claude-sonnet-4-5",
) -> Rendered:
    body: dict[str, Any] = {"model": model, "max_tokens": 9}
    if tools:
        body["tools"] = [
            {"name": name, "description": f"To {name}.", "input_schema": {}} for name in tools
        ]
    if system:
        body["system"] = [{"type": "text", "text": system}]
    body["messages"] = [
        {"role": "assistant" if index % 2 else "user", "content": text}
        for index, text in enumerate(texts)
    ]
    return droppable(cut(CLAUDE, json.dumps(body).encode()))


# ── Against a comparison of all chunks with all calls ────────────────────────────────────────────

LETTERS = st.sampled_from("abc")
CALLS = st.tuples(st.sampled_from(("", "s", "t")), st.lists(LETTERS, min_size=1, max_size=6))


def common(one: list[bytes], two: list[bytes]) -> int:
    for index, (left, right) in enumerate(zip(one, two, strict=False)):
        if left != right:
            return index
    return min(len(one), len(two))


@given(st.lists(CALLS, max_size=12), st.booleans())
@example([("", list("a")), ("", list("aba")), ("", list("ababa")), ("", list("acc"))], False)
def test_longest_common_beginning(calls: list[tuple[str, list[str]]], named: bool) -> None:
    index: PrefixIndex[int] = PrefixIndex()
    hints = CallHints(conversation="c") if named else CallHints()
    earlier: list[list[bytes]] = []
    follows: dict[int, int] = {}
    """The call that each one continues."""
    for number, (system, texts) in enumerate(calls):
        rendered = call(*texts, system=system, tools=())
        chunks = [chunk.data for chunk in rendered]
        shared = [common(chunks, other) for other in earlier]
        longest = max(shared, default=0)
        superseded = {follows[other] for other in follows.values() if other in follows}
        whole = [
            other
            for other, data in enumerate(earlier)
            if shared[other] == longest == len(data) and other not in superseded
        ]
        found = index.find(rendered, hints=hints)
        added = index.add(rendered, number, hints=hints)
        if found is None or added is None:
            assert found is added is None
            assert longest == 0
        elif whole and longest > bool(system):
            assert (found.continues, found.call, found.chunks) == (True, whole[-1], longest)
        elif found.continues:
            assert found.chunks == shared[found.call]
        else:
            remembered = max(shared[other] for other in range(number) if other not in superseded)
            assert found.chunks == remembered == shared[found.call]
            assert found.chunks <= shared[found.latest]
        if found is not None and added is not None:
            assert (found.call, found.chunks) == (added.call, added.chunks)
            if found.continues and found.chunks > bool(system):
                follows[number] = found.call
        earlier.append(chunks)


@given(
    st.lists(st.tuples(CALLS, st.sampled_from(("", "x", "y"))), max_size=30),
    st.integers(1, 5),
    st.integers(300, 3000),
)
def test_memory_is_bounded(
    calls: list[tuple[tuple[str, list[str]], str]], most: int, size: int
) -> None:
    index: PrefixIndex[int] = PrefixIndex(most, size)
    for number, ((system, texts), name) in enumerate(calls):
        rendered = call(*texts, system=system, tools=())
        index.add(rendered, number, hints=CallHints(conversation=name), reply_id=f"r{number}")
        assert len(index) <= most
        assert index.size <= size
        # A call has a digest for each chunk: among its conversation's, and among all.
        kept = sum(len(known.prompt) for known in index._calls.values())
        trees = index._trees.values()
        assert index._chunks == sum(tree.size for tree in trees) <= 2 * kept
        assert sum(len(tree.ends) for tree in trees) <= 2 * len(index)
        assert sum(len(tree._found) for tree in trees) <= index._chunks
        assert len(index._replies) <= len(index)
        assert sum(map(len, index._conversations.values())) <= 2 * len(index)
    while index._calls:
        index._forget(next(iter(index._calls)))
    for kept_keys in (index._trees, index._replies, index._conversations):
        assert not kept_keys
    assert index.size == index.memory == 0


# ── One conversation, or a new one ───────────────────────────────────────────────────────────────

LONG = "a long text that stays the same from call to call, "


@each_row(
    "before, after, continues, chunks",
    [
        (call("a"), call("a", "b", "c"), True, 4),
        (call("a"), call("a"), True, 4),
        (call("a"), call("a", "b", "c", system=GUIDE + "Today is Monday."), True, 2),
        (call("a"), call("a", "b", "c", tools=("write", "read")), True, 0),
        (call("a"), call("a", "b", "c", tools=()), True, 0),
        (call("a", "b", "c"), call("a, edited", "b", "c", "d", "e"), True, 3),
        (call("a", "b", "c", "d", "e"), call("c", "d", "e", "f", "g"), True, 3),
        (call("a", "b", "c + reminder"), call("a", "b", "c", "d", "e + reminder"), True, 5),
        (call("a", "b", "c"), call("a", "b", "another question"), False, 5),
        (call("a", "b", "c"), call("a"), False, 4),
        (call("a"), call("b"), False, 3),
        (call("a", "b", "c"), call("d", "e", "f"), False, 3),
    ],
    ids=[
        "grown",
        "repeated",
        "system prompt changed",
        "tools reordered",
        "tools removed",
        "first message edited",
        "oldest messages dropped",
        "end changed and grown",
        "another last question",
        "went back",
        "new, same system prompt",
        "new, grown",
    ],
)
def test_conversations_are_recognised(
    before: Rendered, after: Rendered, continues: bool, chunks: int
) -> None:
    index: PrefixIndex[str] = PrefixIndex()
    assert index.add(before, "before") is None
    found = index.find(after)
    assert found is not None
    assert (found.call, found.continues, found.chunks) == ("before", continues, chunks)


@pytest.mark.parametrize(
    "side",
    [
        call("a", system=TITLE, tools=()),
        call("a", "b", "c", "Which agent should answer?", system=TITLE, tools=("route",)),
        call("a", system="", tools=()),
    ],
    ids=["title", "router", "without a system prompt"],
)
def test_side_calls_are_conversations_of_their_own(side: Rendered) -> None:
    index: PrefixIndex[str] = PrefixIndex()
    session = CallHints(conversation="one session")
    index.add(call("a", "b", "c"), "main", hints=session)
    assert index.add(side, "side", hints=session) is None
    found = index.add(call("a", "b", "c", "d", "e"), "main 2", hints=session)
    assert found is not None
    assert (found.call, found.continues, found.chunks) == ("main", True, 6)


LETTER = " ".join(f"Paragraph {number} says something." for number in range(100))


@each_row(
    ("before", "after"),
    [
        ((LETTER,), (LETTER.replace("Paragraph 7 ", "Section 7 "),)),
        ((LETTER,), ("Monday. " + LETTER,)),
        ((LETTER,), (LETTER + " What is it?", "A letter.", "Who wrote it?")),
        (("Hello", "Hi.", LETTER), ("Hello", "Hi.", LETTER[:-1] + "!")),
    ],
)
@each_row("system", ["", GUIDE])
def test_edited_long_message_continues_its_conversation(
    before: tuple[str, ...], after: tuple[str, ...], system: str
) -> None:
    tools = ("read",) if system else ()
    index: PrefixIndex[str] = PrefixIndex()
    index.add(call(*before, system=system, tools=tools), "one")
    found = index.add(call(*after, system=system, tools=tools), "two")
    assert found is not None
    assert (found.call, found.continues) == ("one", True)


def test_branches_with_similar_messages_are_all_remembered() -> None:
    """Subagents begin with the messages of one conversation, and a task that differs a little."""
    index: PrefixIndex[int] = PrefixIndex()
    index.add(call("Hello"), -1)
    tasks = [LETTER.replace("Paragraph 7 ", f"Section {number} ") for number in range(6)]
    for number, task in enumerate(tasks):
        index.add(call("Hello", "Hi.", task), number)
    for number, task in enumerate(tasks):
        found = index.find(call("Hello", "Hi.", task, "Done.", "Go on."))
        assert found is not None
        assert (found.call, found.continues) == (number, True)


@pytest.mark.parametrize("text", ["Paragraph 7? " + 1000 * "w ", "Paragraph 0 says what?"])
def test_another_text_is_a_new_conversation(text: str) -> None:
    index: PrefixIndex[str] = PrefixIndex()
    index.add(call(LETTER), "one")
    found = index.add(call(text), "two")
    assert found is not None
    assert not found.continues


def test_same_system_prompt_with_other_tools_is_one_conversation() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    index.add(call("Hello", "Hi.", "What is it?", tools=tuple("abcdefghi")), "one")
    found = index.add(call("Hello", "Hi.", "What is it?", tools=tuple("rstuvwxyz")), "two")
    assert found is not None
    assert (found.call, found.continues) == ("one", True)


def test_parallel_calls_are_compared_with_the_first() -> None:
    index: PrefixIndex[int] = PrefixIndex()
    found = [index.add(call(f"question {number}"), number) for number in range(8)]
    assert found[0] is None
    assert [(each.call, each.chunks, each.continues) for each in found[1:] if each] == [
        (0, 3, False)
    ] * 7
    assert [each.latest for each in found[1:] if each] == [0, 1, 2, 3, 4, 5, 6]
    turn = index.add(call("question 3", "an answer", "more"), 8)
    assert turn is not None
    assert (turn.call, turn.continues) == (3, True)


def test_of_equal_beginnings_the_last_one_is_continued() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    index.add(call("a"), "first")
    index.add(call("a"), "again")
    index.add(call("a", "b", "c"), "branch")
    found = index.find(call("a", "x", "y"))
    assert found is not None
    assert (found.call, found.continues, found.chunks) == ("again", True, 4)


def test_interleaved_conversations_with_changing_system_prompts() -> None:
    index: PrefixIndex[tuple[int, int]] = PrefixIndex()
    for turn in range(4):
        for talk in range(3):
            texts = [f"{talk}: message {number}" for number in range(2 * turn + 1)]
            found = index.add(call(*texts, system=f"{GUIDE} It is {turn} o'clock."), (talk, turn))
            if turn:
                assert found is not None
                assert (found.call, found.continues) == ((talk, turn - 1), True)


@pytest.mark.parametrize(
    "one, two", [({"conversation": "a"}, {"conversation": "b"}), ({"user": "ann"}, {"user": "bob"})]
)
def test_hints_separate_conversations(one: dict[str, str], two: dict[str, str]) -> None:
    index: PrefixIndex[str] = PrefixIndex()
    index.add(call("a"), "one", hints=CallHints(**one))
    found = index.add(call("a"), "two", hints=CallHints(**two))
    assert found is not None  # the provider caches it for both
    assert (found.call, found.continues, found.chunks) == ("one", False, 4)
    for name, hints in (("one", one), ("two", two)):
        found = index.find(call("a", "b", "c"), hints=CallHints(**hints))
        assert found is not None
        assert (found.call, found.continues) == (name, True)


@pytest.mark.parametrize("hints", [{"user": "ann"}, {"conversation": "a", "user": "ann"}])
@pytest.mark.parametrize("system", [GUIDE, GUIDE + "It is Monday."])
def test_missing_hints_separate_nothing(hints: dict[str, str], system: str) -> None:
    sent = CallHints(**hints)
    for before, after in ((sent, None), (None, sent)):
        index: PrefixIndex[str] = PrefixIndex()
        index.add(call("a"), "one", hints=before)
        found = index.find(call("a", "b", "c", system=system), hints=after)
        assert found is not None
        assert (found.call, found.continues) == ("one", True)


def test_scopes_and_models_are_never_compared() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    index.add(call("a"), "sonnet")
    assert index.add(call("a", model="claude-opus-4-5"), "opus") is None
    assert index.add(call("a"), "other account", scope=("k2", "claude-sonnet-4-5")) is None
    found = index.find(call("a", "b", "c", model="claude-opus-4-5"))
    assert found is not None
    assert found.call == "opus"


def test_reply_ids_are_followed() -> None:
    """A request that names the reply it continues need not repeat anything."""
    index: PrefixIndex[int] = PrefixIndex()
    index.add(call("a"), 1, reply_id="r1")
    index.add(call("b"), 2, reply_id="r2")
    found = index.find(call("unlike"), hints=CallHints(previous_reply="r1"))
    assert found is not None
    assert (found.call, found.continues, found.chunks) == (1, True, 3)
    unknown = index.find(call("unlike"), hints=CallHints(previous_reply="r9"))
    assert unknown is not None
    assert not unknown.continues


@pytest.mark.parametrize("reminder", ["", " Mind call {}."])
def test_growing_conversation_keeps_two_prompts(reminder: str) -> None:
    """Also where each call ends with something that the next one does not repeat."""
    index: PrefixIndex[int] = PrefixIndex()
    texts = ["start", "reply", "question"]
    for number in range(20):
        found = index.add(call(*texts[:-1], texts[-1] + reminder.format(number)), number)
        if number:
            assert found is not None
            assert (found.call, found.continues) == (number - 1, True)
        texts += [f"reply {number}", f"question {number}"]
    assert len(index) == 2
    depth = 0
    [tree] = index._trees.values()
    branch = next(reversed(tree._found.values()))
    while branch.parent is not None:
        branch, depth = branch.parent, depth + 1
    assert depth < 3


def test_prompts_without_content() -> None:
    index: PrefixIndex[int] = PrefixIndex()
    empty = cut(wire.get("openai_responses"), b'{"model":"gpt-4o","input":[]}')
    assert index.add(empty, 1) is None
    assert index.add(empty, 2) is None


# ── What clients send ────────────────────────────────────────────────────────────────────────────


@each_row(
    "headers, body, expected",
    [
        ({"x-claude-code-session-id": "s"}, {}, CallHints(conversation="s")),
        ({"session-id": "s"}, {"prompt_cache_key": "k"}, CallHints(conversation="s")),
        ({"session_id": "s"}, {}, CallHints(conversation="s")),
        ({"x-session-id": "s"}, {}, CallHints(conversation="s")),
        ({"x-grok-conv-id": "s"}, {}, CallHints(conversation="s")),
        ({}, {"prompt_cache_key": "k"}, CallHints(conversation="k")),
        ({}, {"session_id": "k"}, CallHints(conversation="k")),
        ({}, {"conversation": {"id": "conv_1"}}, CallHints(conversation="conv_1")),
        ({}, {"conversation": "conv_1"}, CallHints(conversation="conv_1")),
        ({}, {"metadata": {"user_id": "u"}}, CallHints(user="u")),
        ({}, {"user": "u"}, CallHints(user="u")),
        ({}, {"safety_identifier": "u"}, CallHints(user="u")),
        ({}, {"previous_response_id": "resp_1"}, CallHints(previous_reply="resp_1")),
        ({}, {"prompt_cache_key": 7, "user": None, "metadata": [1]}, CallHints()),
        ({"authorization": "Bearer k"}, {"model": "m"}, CallHints()),
    ],
)
def test_hints_in_a_request(
    headers: dict[str, str], body: dict[str, Any], expected: CallHints
) -> None:
    raw = msgspec.json.decode(msgspec.json.encode(body), type=dict[str, msgspec.Raw])
    assert hints_of(headers, body) == hints_of(headers, raw) == expected
