"""Messages for comparing a wire's fast encoding of plain messages with the general one: mostly
plain ones, and every feature that makes a message not plain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from support import strategies as some

from anaphora.errors import InvalidRequest
from anaphora.rendered import LogAppend
from anaphora.values import Message, Part, Text, ToolCall, ToolResult

#: Including texts that JSON cannot hold.
texts = some.texts | st.sampled_from(["", " ", "plain", "\ud800"])


def messages(wire: str) -> st.SearchStrategy[Message]:
    extras = st.none() | st.sampled_from(
        [{}, {wire: "{}"}, {wire: '{"a":1}'}, {wire: "no object"}, {"gemini": '{"b":2}'}]
    )
    plain: st.SearchStrategy[Part] = st.one_of(
        st.builds(Text, texts),
        st.builds(ToolCall, texts, some.words, texts | some.arguments),
        st.builds(ToolResult, texts, texts, st.sampled_from([False, False, True])),
    )
    special: st.SearchStrategy[Part] = st.one_of(
        st.builds(Text, texts, extras),
        st.builds(ToolCall, some.words, some.words, some.arguments, extras),
        st.builds(ToolResult, some.words, texts, extras=extras),
        some.results,
        some.user_parts,
        some.assistant_parts,
    )
    # The last two are no roles: both encoders reject them.
    roles = ["user", "assistant", "tool", "system"]
    return st.builds(
        Message,
        id=some.words,
        role=st.sampled_from([*roles, *roles, "developer", "robot"]),
        parts=st.lists(plain | plain | plain | special, max_size=3).map(tuple),
    )


def outcome(add: Callable[[LogAppend], object]) -> dict[str, Any] | tuple[type, str]:
    """Everything that was added, or the error."""
    to = LogAppend(7, 5)
    try:
        add(to)
    except InvalidRequest as problem:
        return type(problem), str(problem)
    return vars(to)
