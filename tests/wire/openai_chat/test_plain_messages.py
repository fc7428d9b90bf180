"""The fast encoding of plain messages gives the same bytes as the general one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import message_strategies

from anaphora.rendered import LogAppend
from anaphora.values import Message, Text, ToolCall, ToolResult
from anaphora.wire.openai import NEAREST
from anaphora.wire.openai_chat.markers import MARKERS, Traits
from anaphora.wire.openai_chat.render import add_message, add_messages, encode_plain


def traits_with(system_role: str, breakpoints: bool, needed: bool) -> Traits:
    return Traits(
        max_tokens_field="max_tokens",
        system_role=system_role,
        breakpoints=breakpoints,
        options=breakpoints,
        markers=MARKERS if breakpoints else {},
        nearest=NEAREST,
        reasoning_field=None,
        host="openai",
        reasoning_needed=needed,
    )


TRAITS = st.builds(
    traits_with,
    st.sampled_from(["system", "developer", "instructor"]),
    st.booleans(),
    st.sampled_from([False, False, True]),
)
LAST = st.sampled_from([None, "user", "assistant", "tool"])


@given(st.lists(message_strategies.messages("openai_chat"), max_size=5), TRAITS, LAST)
def test_plain_and_general_encoding_agree(
    encoded: list[Message], traits: Traits, last: str | None
) -> None:
    def general(to: LogAppend) -> None:
        role = last
        for message in encoded:
            role = add_message(to, message, role, "conversation", traits)

    plain = message_strategies.outcome(
        lambda to: add_messages(to, encoded, last, "conversation", traits)
    )
    assert plain == message_strategies.outcome(general)


CALL = ToolCall("call_1", "look_up", '{"a":1}')


@pytest.mark.parametrize(
    "message",
    [
        Message.system("Be brief."),
        Message.user("Hello"),
        Message.assistant("Hi"),
        Message.assistant("Let me see.", CALL, CALL),
        Message.assistant(CALL),
        Message.tool("call_1", "found"),
        Message.tool("call_1", ""),
    ],
    ids=lambda message: f"{message.role} {[type(part).__name__ for part in message.parts]}",
)
def test_these_messages_are_plain(message: Message) -> None:
    """Otherwise the law above would compare the general encoding with itself."""
    assert encode_plain(message, traits_with("developer", True, False)) is not None


@pytest.mark.parametrize(
    "message",
    [
        Message.user(),
        Message.user("one", "two"),
        Message.user(Text("Hello", {"openai_chat": '{"a":1}'})),
        Message.assistant(CALL, "late"),
        Message.user(ToolResult("call_1", "found"), "and this"),
        Message.tool("call_1", "broken", error=True),
        Message.tool("call_1", (Text("found"),)),
        Message(role="developer", parts=(Text("x"),)),  # type: ignore[arg-type]
        Message.user("\ud800"),
    ],
    ids=repr,
)
def test_these_messages_are_not_plain(message: Message) -> None:
    assert encode_plain(message, traits_with("developer", True, False)) is None


def test_calls_that_need_reasoning_are_not_plain() -> None:
    assert encode_plain(Message.assistant("x", CALL), traits_with("system", False, True)) is None
