"""The render log: edits, forks, reloads, views that outlive a turn, threads, and garbage collection."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import strategies as some

from anaphora import cache, catalog
from anaphora.prompt import Call, Params, PromptBlock, PromptIR
from anaphora.rendered import ChunkLog, Kind, LogAppend, Plan, Rendered
from anaphora.rendered.chunks import same_bytes
from anaphora.values import (
    Conversation,
    Message,
    Refusal,
    SegmentRole,
    Text,
    Thinking,
    Tool,
    from_json,
    to_json,
)
from anaphora.wire import anthropic

MODEL = "claude-sonnet-4-5"
PROFILE = catalog.profile("anthropic", MODEL)


def call(conversation: Conversation, tools: tuple[Tool, ...] = (), tail: str = "now") -> Call:
    ir = PromptIR.chat(
        conversation,
        system=[PromptBlock.cached_long("identity", "You are terse.")],
        tail=[Message.user(tail)],
    )
    return Call(ir=ir, model=MODEL, tools=tools, params=Params(max_tokens=1))


def conversation_run(rendered: Rendered) -> object:
    (run,) = [run for run in rendered.runs if run.role is SegmentRole.CONVERSATION]
    return run.log


def test_turn_appends_to_the_previous_log() -> None:
    conversation = Conversation([Message.user("a")])
    first = anthropic.render(call(conversation), PROFILE)
    second = anthropic.render(call(conversation.append(Message.assistant("b"))), PROFILE, first)
    assert conversation_run(second) is conversation_run(first)


def test_reloaded_conversation_continues_the_log() -> None:
    conversation = Conversation([Message.user("a"), Message.assistant("b")])
    first = anthropic.render(call(conversation), PROFILE)
    reloaded = from_json(to_json(conversation.append(Message.user("c"))), Conversation)
    second = anthropic.render(call(reloaded), PROFILE, first)
    assert conversation_run(second) is conversation_run(first)


def test_branches_of_one_turn_are_independent() -> None:
    conversation = Conversation([Message.user("a"), Message.assistant("b")])
    trunk = anthropic.render(call(conversation), PROFILE)
    left = anthropic.render(call(conversation.append(Message.user("left"))), PROFILE, trunk)
    right = anthropic.render(call(conversation.append(Message.user("right"))), PROFILE, trunk)
    assert conversation_run(left) is conversation_run(trunk)
    assert conversation_run(right) is not conversation_run(trunk)
    assert b"left" in left.data()
    assert b"left" not in right.data()
    for branch in (left, right):
        assert cache.fingerprint(branch).extends(cache.fingerprint(trunk))
    assert not cache.fingerprint(right).extends(cache.fingerprint(left))


@pytest.mark.breaks_prefix(reason="an edited turn changes what stands behind it")
def test_edited_turn_is_rendered_again_from_there() -> None:
    messages = [Message.user("a"), Message.assistant("b"), Message.user("c")]
    first = anthropic.render(call(Conversation(messages)), PROFILE)
    messages[1] = Message.assistant("B!")
    edited = anthropic.render(call(Conversation(messages)), PROFILE, first)
    assert b"B!" in edited.data()
    assert b'"b"' not in edited.data()
    assert b'"b"' in first.data()


@pytest.mark.breaks_prefix(reason="reasoning that nothing follows any more is left out")
def test_reasoning_is_left_out_when_what_followed_it_is_gone() -> None:
    """The guard in conftest.py holds the shorter conversation against a cold render."""
    reasoned = Message(role="assistant", parts=(Text("a"), Thinking("why", "signature")))
    messages = [Message.user("q"), reasoned, Message.assistant("more")]
    longer = anthropic.render(call(Conversation(messages)), PROFILE)
    shorter = anthropic.render(call(Conversation(messages[:2])), PROFILE, longer)
    assert b'"thinking"' in longer.data()
    assert b'"thinking"' not in shorter.data()


@pytest.mark.breaks_prefix(reason="any earlier turn, edited or not, may be handed in as previous")
@given(some.frames(), some.turns, st.data())
def test_warm_render_equals_cold_render(
    frame: some.Frame, turns: list[list[Message]], data: st.DataObject
) -> None:
    """The guard in conftest.py holds every warm render against a cold one."""
    seen: list[tuple[Conversation, Rendered]] = []
    profile = catalog.profile("anthropic", frame.model)
    for added in [*turns, *turns]:
        base = Conversation([Message.user("hello")])
        previous = None
        if seen:
            base, _ = data.draw(st.sampled_from(seen))
            _, previous = data.draw(st.sampled_from(seen))
        if data.draw(st.booleans()) and len(base) > 1:
            kept = list(base)
            kept[data.draw(st.integers(0, len(kept) - 1))] = Message.user("edited")
            base = Conversation(kept)
        conversation = base.append(*added)
        seen.append(
            (conversation, anthropic.render(frame.call(conversation, "now"), profile, previous))
        )
    # A change of the very first message, so that this test always breaks a prefix.
    other = Conversation([Message.user("another beginning")])
    anthropic.render(frame.call(other), profile, seen[0][1])


def test_memoryview_of_the_body_survives_the_next_turn() -> None:
    conversation = Conversation([Message.user("a" * 500)])
    first = anthropic.render(call(conversation), PROFILE)
    request = anthropic.assemble(first, Plan())
    slices = list(request.body)
    held = b"".join(slices)
    second = anthropic.render(
        call(conversation.append(Message.assistant("b" * 900))), PROFILE, first
    )
    assert b"".join(slices) == held == request.body.join()
    assert b"b" * 900 in anthropic.assemble(second, Plan()).body.join()


def test_tools_and_system_blocks_are_rendered_once_for_all_conversations() -> None:
    tools = (Tool("look"), Tool("read"))
    blocks = (PromptBlock.cached_long("identity", "You are terse."),)

    def start(text: str) -> Rendered:
        ir = PromptIR.chat([Message.user(text)], system=blocks)
        made = Call(ir=ir, model=MODEL, tools=tools, params=Params(max_tokens=1))
        return anthropic.render(made, PROFILE)

    one, two = start("one"), start("two")
    assert one.runs[0].log is two.runs[0].log
    assert one.runs[1].log is two.runs[1].log


def test_messages_and_sections_are_freed_with_the_conversation() -> None:
    """The last few tools and system prompts stay, for calls that come one after the other."""
    tools = (Tool("look"),)
    conversation = Conversation([Message.user("a")])
    previous: Rendered | None = None
    for turn in range(5):
        conversation = conversation.append(Message.assistant(f"b{turn}"))
        previous = anthropic.render.render(call(conversation, tools), PROFILE, previous)  # type: ignore[attr-defined]
    assert previous is not None
    sections = [weakref.ref(run.log) for run in previous.runs if run.role is None]
    logs = [weakref.ref(run.log) for run in previous.runs if run.role is not None]
    del previous, conversation, tools
    gc.collect()
    assert [log() for log in logs] == [None, None]
    for number in range(16):
        anthropic.render(call(Conversation([Message.user("a")]), (Tool(f"t{number}"),)), PROFILE)
    gc.collect()
    assert [log() for log in sections] == [None, None]


def test_single_calls_share_sections_of_the_previous_call() -> None:
    tools = (Tool("look"),)

    def section() -> int:
        ir = PromptIR.chat([Message.user("a")], system="You are terse.")
        made = Call(ir=ir, model=MODEL, tools=tools, params=Params(max_tokens=1))
        rendered = anthropic.render(made, PROFILE)
        return hash(tuple(id(run.log) for run in rendered.runs if run.role is None))

    assert section() == section()


def test_threads_that_continue_one_turn_each_get_their_own_branch() -> None:
    conversation = Conversation([Message.user("a")])
    trunk = anthropic.render(call(conversation), PROFILE)
    done: dict[int, Rendered] = {}

    def continue_with(number: int) -> None:
        longer = conversation.append(Message.assistant(f"branch {number} " * 50))
        done[number] = anthropic.render(call(longer), PROFILE, trunk)

    threads = [threading.Thread(target=continue_with, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 16
    for number, rendered in done.items():
        assert f"branch {number} ".encode() * 50 in rendered.data()
        assert cache.fingerprint(rendered).extends(cache.fingerprint(trunk))


def test_reasoning_before_an_empty_refusal_is_sent_once_the_assistant_goes_on() -> None:
    """Left out at the end of a turn, it is rendered again with the next."""
    parts = (Thinking(data=""), Refusal(""))
    begun = Conversation([Message.user("Hi."), Message(role="assistant", parts=parts)])
    went_on = begun.append(Message.assistant("Yes."))
    first = anthropic.render(call(begun), PROFILE)
    warm = anthropic.render(call(went_on), PROFILE, first)
    assert warm.data() == anthropic.render(call(Conversation(list(went_on))), PROFILE).data()


def test_bytes_are_the_same_however_they_are_divided() -> None:
    def log(*pieces: bytes) -> ChunkLog:
        append = LogAppend()
        for piece in pieces:
            append.chunk(Kind.TEXT, piece, None)
        return ChunkLog(append)

    whole, others = log(b"a", b"bc", b"d"), log(b"a", b"bc", b"d", b"e")
    assert same_bytes(((b"[", whole, 3),), ((b"[", others, 3),))
    assert same_bytes(((b"[", whole, 3),), ((b"[", whole, 3),))
    assert same_bytes(((b"[", whole, 3),), ((b"[a", log(b"bcd"), 1),))
    assert same_bytes(((b"[", whole, 3),), ((b"[", log(b"ab"), 1), (b"c", log(b"d"), 1)))
    assert not same_bytes(((b"[", whole, 3),), ((b"[", others, 4),))
    assert not same_bytes(((b"[", whole, 3),), ((b"[", log(b"a", b"bx", b"d"), 3),))
    assert not same_bytes(((b"[", whole, 3),), ((b"[", log(b"a", b"bcd", b"d"), 3),))
