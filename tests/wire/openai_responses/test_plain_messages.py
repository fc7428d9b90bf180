"""The fast encoding of plain messages gives the same bytes as the general one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import message_strategies

from anaphora.rendered import LogAppend
from anaphora.values import Message, Text, ToolCall, ToolResult
from anaphora.wire.openai_responses.markers import Traits
from anaphora.wire.openai_responses.render import add_message, add_messages, encode_plain

ITEM = "openai_responses.item"
TRAITS = st.builds(
    Traits,
    system_role=st.sampled_from(["system", "developer", "instructor"]),
    explicit=st.booleans(),
)
STATES = st.sampled_from([None, "item", "user", "system"])


@given(st.lists(message_strategies.messages("openai_responses"), max_size=5), TRAITS, STATES)
def test_plain_and_general_encoding_agree(
    encoded: list[Message], traits: Traits, before: str | None
) -> None:
    def general(to: LogAppend) -> None:
        state = before
        for message in encoded:
            state = add_message(to, message, state, "conversation", traits)

    plain = message_strategies.outcome(
        lambda to: add_messages(to, encoded, before, "conversation", traits)
    )
    assert plain == message_strategies.outcome(general)


CALL = ToolCall("call_1", "look_up", '{"a":1}')


@pytest.mark.parametrize(
    "message",
    [
        Message.system("Be brief."),
        Message.user("Hello"),
        Message.assistant("Hi"),
        Message.assistant("Let me see.", CALL, CALL, "So."),
        Message.assistant(CALL),
        Message.tool("call_1", "found"),
        Message.tool("call_1", ""),
        Message.user(ToolResult("call_1", "found"), "and this"),
    ],
    ids=lambda message: f"{message.role} {[type(part).__name__ for part in message.parts]}",
)
def test_these_messages_are_plain(message: Message) -> None:
    """Otherwise the law above would compare the general encoding with itself."""
    assert encode_plain(message, Traits()) is not None


@pytest.mark.parametrize(
    "message",
    [
        Message.user(),
        Message.user("one", "two"),
        Message.assistant(Text("Hi", {ITEM: '{"id":"msg_1"}'})),
        Message.tool("call_1", "broken", error=True),
        Message.tool("call_1", (Text("found"),)),
        Message(role="developer", parts=(Text("x"),)),  # type: ignore[arg-type]
        Message.user("\ud800"),
    ],
    ids=repr,
)
def test_these_messages_are_not_plain(message: Message) -> None:
    assert encode_plain(message, Traits()) is None
