"""Bodies of a conversation as they are sent, on every wire: most go on from the one before, some edit
it, and some are not valid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st

from anaphora.errors import AnaphoraError

T = TypeVar("T")

PATHS = {
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "gemini": "/v1beta/models/g:generateContent",
    "bedrock": "/model/m/converse",
}
#: The list of messages, and the field of a message that holds its content.
FIELDS = {"openai_responses": ("input", "content"), "gemini": ("contents", "parts")}
TEXTS = ("one", "two \\u00e9 \\\\ \\" + '"', "", "drei é " * 20)


def message(name: str, role: str, text: str) -> bytes:
    """As bytes of its own spelling: with escapes, white space and a number."""
    quoted = b'"' + text.encode() + b'"'
    if name == "gemini":
        role = role.replace("assistant", "model")
        return b'{"role": "%s","parts":[{"text" :%s}]}' % (role.encode(), quoted)
    if name == "bedrock":
        return b'{"role": "%s","content":[{"text" :%s}]}' % (role.encode(), quoted)
    if text == "drei é " * 20 and name in ("anthropic", "openai_chat") and role == "user":
        source = b'{"type":"file","file_id":"file_1"}'
        kind = b'"type":"document","source":' if name == "anthropic" else b'"type":"file","file":'
        return b'{"role":"user","content":[{%s%s}, {"type":"text","text":%s}]}' % (
            kind,
            source,
            quoted,
        )
    return b'{"role": "%s", "content":%s}' % (role.encode(), quoted)


turns = st.tuples(st.sampled_from(("user", "assistant")), st.sampled_from(TEXTS))


class Body(msgspec.Struct, frozen=True):
    """What a body is written from."""

    turns: tuple[tuple[str, str], ...]
    between: bytes = b", "
    head: bytes = b'"temperature": 1.0, '
    tail: bytes = b""
    junk: bytes = b""
    at: int = 0

    def write(self, name: str) -> bytes:
        listed = FIELDS.get(name, ("messages", ""))[0].encode()
        messages = self.between.join(message(name, *each) for each in self.turns)
        body = b'{"model":"m","max_tokens":9,%s"%s": [%s ]%s} ' % (
            self.head,
            listed,
            messages,
            self.tail,
        )
        at = self.at % len(body)
        return body[:at] + self.junk + body[at:]


turn_lists = st.lists(turns, min_size=1, max_size=4).map(tuple)
edits: dict[str, st.SearchStrategy[Any]] = {
    "between": st.sampled_from((b", ", b",", b",\n  ")),
    "head": st.sampled_from((b'"temperature": 1.0, ', b'"temperature": 1.50e0,', b"")),
    "tail": st.sampled_from(
        (b"", b',"top_p":1', b',"top_p":1,"top_p":2', b',"messages":[]', b',"input":3', b",")
    ),
    "junk": st.sampled_from((b",", b" ", b"]", b'"', b"1", b'{"a":1,"a":1},', b"\xff")),
    "turns": turn_lists,
}


@st.composite
def conversations(draw: st.DrawFn) -> list[Body]:
    """Each body goes on from the one before, mostly; some edit it."""
    found = [Body(draw(turn_lists))]
    for _ in range(draw(st.integers(1, 5))):
        last = found[-1]
        changes: dict[str, Any] = {"turns": last.turns + draw(turn_lists), "tail": b"", "junk": b""}
        if edited := draw(st.sampled_from((None, None, *edits))):
            changes[edited] = draw(edits[edited])
            changes["at"] = draw(st.integers(0, 2_000))
        if edited == "turns":
            changes["turns"] = (
                last.turns[: changes["at"] % (len(last.turns) + 1)] + changes["turns"]
            )
        found.append(msgspec.structs.replace(last, **changes))
    return found


def attempt(make: Callable[[], T]) -> tuple[T | None, Any]:
    """The result, or the error."""
    try:
        return make(), None
    except AnaphoraError as problem:
        return None, (type(problem), str(problem), getattr(problem, "param", None))
