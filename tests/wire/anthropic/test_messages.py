"""Messages to chunks: roles, merging, the glue, and errors that say where."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.tables import each_row

from anaphora import catalog
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Params, PromptIR, Segment
from anaphora.rendered import Plan, Rendered
from anaphora.values import (
    Audio,
    Conversation,
    Image,
    Message,
    Opaque,
    SegmentRole,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Url,
)
from anaphora.wire import anthropic

#: One model that takes system messages among the others, and one that does not.
TAKES_SYSTEM = "claude-opus-5-5"
NO_SYSTEM = "claude-sonnet-4-5"


def render(
    messages: Conversation | list[Message],
    model: str = NO_SYSTEM,
    previous: Rendered | None = None,
    tail: tuple[Message, ...] = (),
) -> Rendered:
    call = Call(ir=PromptIR.chat(messages, tail=tail), model=model, params=Params(max_tokens=16))
    return anthropic.render(call, catalog.profile("anthropic", model), previous)


def messages_of(rendered: Rendered) -> list[tuple[str, list[str]]]:
    body = json.loads(anthropic.assemble(rendered, Plan()).body.join())
    return [
        (message["role"], [block.get("text", block["type"]) for block in message["content"]])
        for message in body["messages"]
    ]


USER, ANSWER, SYSTEM = Message.user("u"), Message.assistant("a"), Message.system("s")


@each_row(
    "messages, expected",
    [
        ([USER], [("user", ["u"])]),
        ([USER, ANSWER, USER], [("user", ["u"]), ("assistant", ["a"]), ("user", ["u"])]),
        # Neighbours of one role are one message.
        ([USER, USER], [("user", ["u", "u"])]),
        ([USER, ANSWER, ANSWER], [("user", ["u"]), ("assistant", ["a", "a"])]),
        # Tools speak as the user, and what the user says next joins them.
        (
            [USER, ANSWER, Message.tool("c", "r"), Message.tool("d", "r"), USER],
            [("user", ["u"]), ("assistant", ["a"]), ("user", ["tool_result", "tool_result", "u"])],
        ),
        # A message that says nothing is not there, and its neighbours meet.
        ([USER, Message.assistant(""), USER], [("user", ["u", "u"])]),
        ([Message.user(), USER], [("user", ["u"])]),
        ([USER, Message.user(Text(" "), Text("a"))], [("user", ["u", "a"])]),
        # White space of the model is part of its text.
        (
            [USER, Message.assistant(Text(" "), Text("a"))],
            [("user", ["u"]), ("assistant", [" ", "a"])],
        ),
    ],
)
def test_roles_and_merging(messages: list[Message], expected: list[tuple[str, list[str]]]) -> None:
    assert messages_of(render(messages)) == expected


@pytest.mark.parametrize(
    "message, chunk",
    [
        (Message.user("x"), b',{"type":"text","text":"x"}'),
        (Message.assistant("x"), b']},{"role":"assistant","content":[{"type":"text","text":"x"}'),
    ],
)
def test_glue_leads_a_chunk(message: Message, chunk: bytes) -> None:
    """The comma or the opening belongs to what comes, never to what was there."""
    rendered = render([USER, message])
    assert [c.data for c in rendered] == [
        b'"messages":[{"role":"user","content":[{"type":"text","text":"u"}',
        chunk,
    ]


@each_row(
    "steps",
    [
        [[USER], [ANSWER, USER], [ANSWER, USER]],
        [[USER], [USER], [USER, ANSWER]],
        [[USER, Message.assistant(ToolCall("c", "f"))], [Message.tool("c", "r")], [ANSWER]],
        [[USER, Message.assistant(" ")], [USER], [Message.user(), ANSWER]],
        [[USER, Message.assistant(Thinking("x"), "a")], [Message.user(Audio(Url("u")), "u")]],
    ],
)
def test_appending_keeps_all_earlier_bytes(steps: list[list[Message]]) -> None:
    """Law 1, turn by turn; the suite's guard holds each against a cold rendering too."""
    conversation, rendered, before = Conversation(), None, b""
    for step in steps:
        conversation = conversation.append(*step)
        rendered = render(conversation, previous=rendered)
        assert rendered.data().startswith(before)
        before = rendered.data()


def test_fork_shares_only_the_common_prefix() -> None:
    trunk = Conversation([USER, ANSWER])
    first = render(trunk)
    left = render(trunk.append(Message.user("left")), previous=first)
    right = render(trunk.append(Message.user("right")), previous=first)
    assert messages_of(left)[-1] == ("user", ["left"])
    assert messages_of(right)[-1] == ("user", ["right"])
    assert messages_of(first) == [("user", ["u"]), ("assistant", ["a"])]


# ── System messages among the others ─────────────────────────────────────────────────────────────


@each_row(
    "messages, takes, refuses",
    [
        # Behind a user turn and at the end.
        ([USER, SYSTEM], [("user", ["u"]), ("system", ["s"])], [("user", ["u", "s"])]),
        # Behind a user turn and before the answer.
        (
            [USER, SYSTEM, ANSWER],
            [("user", ["u"]), ("system", ["s"]), ("assistant", ["a"])],
            [("user", ["u", "s"]), ("assistant", ["a"])],
        ),
        # Behind a tool's result.
        (
            [USER, Message.assistant(ToolCall("c", "f")), Message.tool("c", "r"), SYSTEM],
            [
                ("user", ["u"]),
                ("assistant", ["tool_use"]),
                ("user", ["tool_result"]),
                ("system", ["s"]),
            ],
            [("user", ["u"]), ("assistant", ["tool_use"]), ("user", ["tool_result", "s"])],
        ),
        # Two in a row are one.
        (
            [USER, SYSTEM, SYSTEM, ANSWER],
            [("user", ["u"]), ("system", ["s", "s"]), ("assistant", ["a"])],
            [("user", ["u", "s", "s"]), ("assistant", ["a"])],
        ),
        # Never first, never behind an answer, never before a user turn.
        ([SYSTEM, USER], [("user", ["s", "u"])], [("user", ["s", "u"])]),
        (
            [USER, ANSWER, SYSTEM],
            [("user", ["u"]), ("assistant", ["a"]), ("user", ["s"])],
            [("user", ["u"]), ("assistant", ["a"]), ("user", ["s"])],
        ),
        ([USER, SYSTEM, USER], [("user", ["u", "s", "u"])], [("user", ["u", "s", "u"])]),
    ],
)
def test_system_messages_in_mid_conversation(
    messages: list[Message],
    takes: list[tuple[str, list[str]]],
    refuses: list[tuple[str, list[str]]],
) -> None:
    """Where the model takes one it stays one; elsewhere it is user text, and a notice says so."""
    for model, expected in ((TAKES_SYSTEM, takes), (NO_SYSTEM, refuses)):
        rendered = render(list(messages), model)
        assert messages_of(rendered) == expected
        as_user = not any(role == "system" for role, _ in expected)
        assert ("system_as_user" in [n.code for n in rendered.notices]) is as_user


def test_a_system_message_is_never_between_a_call_and_its_result() -> None:
    """Anthropic refuses that, and merging it into the results keeps it where it stood."""
    messages = [USER, Message.assistant(ToolCall("c", "f")), SYSTEM, Message.tool("c", "r")]
    encoded = messages_of(render(messages, TAKES_SYSTEM))
    assert encoded[-1][0] == "user"
    assert set(encoded[-1][1]) == {"s", "tool_result"}
    assert [role for role, _ in encoded] == ["user", "assistant", "user"]


def test_reply_after_system_message_changes_nothing() -> None:
    conversation = Conversation([USER, SYSTEM])
    first = render(conversation, TAKES_SYSTEM)
    later = render(conversation.append(ANSWER, USER), TAKES_SYSTEM, first)
    assert later.data().startswith(first.data())
    assert [role for role, _ in messages_of(later)] == ["user", "system", "assistant", "user"]


def test_user_turn_after_system_message_turns_it_into_text() -> None:
    conversation = Conversation([USER, SYSTEM])
    first = render(conversation, TAKES_SYSTEM)
    later = render(conversation.append(USER), TAKES_SYSTEM, first)
    assert messages_of(later) == [("user", ["u", "s", "u"])]
    assert "system_as_user" in [notice.code for notice in later.notices]


def test_state_turn_after_system_message_is_a_system_message() -> None:
    """A user block may not follow a system message; the history stays as it was."""
    rendered = render([USER, SYSTEM], TAKES_SYSTEM, tail=(Message.user("state"),))
    assert messages_of(rendered) == [("user", ["u"]), ("system", ["s", "state"])]


def test_incremental_rendering_knows_its_neighbours() -> None:
    """A segment of system messages is sent with what comes before and after it."""
    segments = (
        Segment.of(SegmentRole.STABLE_PREFIX, Message.user("prefix")),
        Segment.of(SegmentRole.SYSTEM_REMAINDER, SYSTEM),
        Segment.of(SegmentRole.CONVERSATION, ANSWER, USER),
    )
    call = Call(ir=PromptIR(segments=segments), model=TAKES_SYSTEM, params=Params(max_tokens=16))
    rendered = anthropic.render(call, catalog.profile("anthropic", TAKES_SYSTEM))
    assert [role for role, _ in messages_of(rendered)] == ["user", "system", "assistant", "user"]


# ── Errors and notices say where ─────────────────────────────────────────────────────────────────


@each_row(
    "part, path",
    [
        (Opaque("anthropic", "x", "nonsense"), "conversation[3].parts[1].json"),
        (Text("t", {"anthropic": "[]"}), "conversation[3].parts[1].extras.anthropic"),
        (ToolResult("c", (Text("\ud800"),)), "conversation[3].parts[1].content[0]"),
        (ToolCall("c", "f", '{"a":"\ud800"}'), "conversation[3].parts[1].arguments"),
        (Text("\ud800"), "conversation[3].parts[1]"),
    ],
)
def test_an_error_names_message_and_part(part: Any, path: str) -> None:
    messages = [USER, ANSWER, USER, Message.assistant("fine", part)]
    with pytest.raises(InvalidRequest) as caught:
        render(messages)
    assert caught.value.path == path


def test_an_error_counts_from_the_beginning_of_the_conversation() -> None:
    """Only the last message is rendered, and it is still the fourth; what was there is unharmed."""
    conversation = Conversation([USER, ANSWER, USER])
    first = render(conversation)
    with pytest.raises(InvalidRequest, match=r"conversation\[3\]\.parts\[0\]"):
        render(conversation.append(Message.assistant("\ud800")), previous=first)
    assert len(messages_of(render(conversation.append(ANSWER), previous=first))) == 4


@pytest.mark.parametrize(
    "part, code, path",
    [
        (Text(""), "blank_text", "conversation[1].parts[1]"),
        (Audio(Url("u")), "audio_unsupported", "conversation[1].parts[1]"),
        (ToolCall("c", "f", "["), "arguments_not_an_object", "conversation[1].parts[1].arguments"),
    ],
)
def test_a_notice_names_message_and_part(part: Any, code: str, path: str) -> None:
    rendered = render([USER, Message.assistant("fine", part)])
    assert [(notice.code, notice.path) for notice in rendered.notices] == [(code, path)]


def test_a_notice_is_kept_with_the_turn_it_is_about() -> None:
    """An older view of the conversation does not hear of what came later, nor lose what was."""
    conversation = Conversation([USER, Message.assistant("a", Text(""))])
    first = render(conversation)
    later = render(conversation.append(Message.user("u", Audio(Url("u")))), previous=first)
    assert [notice.code for notice in first.notices] == ["blank_text"]
    assert [notice.code for notice in later.notices] == ["blank_text", "audio_unsupported"]


@pytest.mark.parametrize("messages", [[], [Message.user()], [Message.user("")]])
def test_request_needs_content(messages: list[Message]) -> None:
    with pytest.raises(InvalidRequest, match="at least one message"):
        render(messages)


def test_images_and_results_keep_their_place() -> None:
    parts = (Image(Url("i")), Text("what is it?"))
    assert messages_of(render([Message.user(*parts)])) == [("user", ["image", "what is it?"])]


@pytest.mark.parametrize(
    "before", [(), (Message.assistant(),), (Message.assistant(Thinking("hm")), Message.user(""))]
)
def test_a_system_message_does_not_end_the_history_where_dynamic_context_follows(
    before: tuple[Message, ...],
) -> None:
    """Anthropic takes a system message before an answer or at the end, not before a user turn."""
    ir = PromptIR(
        segments=(
            Segment.of(SegmentRole.CONVERSATION, Message.user("hello"), Message.system("be kind")),
            Segment.of(SegmentRole.DYNAMIC_CONTEXT, *before, Message.user("a summary")),
        ),
        dynamic_position="tail",
    )
    call = Call(ir=ir, model="claude-opus-5-5", params=Params(max_tokens=9))
    rendered = anthropic.render(call, catalog.profile("anthropic", call.model))
    body = anthropic.assemble(rendered, Plan()).body.join()
    assert b'"role":"system"' not in body
    again = anthropic.parse(body)
    assert (
        anthropic.assemble(
            anthropic.render(again, catalog.profile("anthropic", call.model)), Plan()
        ).body.join()
        == body
    )
