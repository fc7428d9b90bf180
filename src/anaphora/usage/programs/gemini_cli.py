"""Bills in session files of Gemini CLI: `<folder>/tmp/<project>/chats/**`, `.jsonl` and the older
`.json`, one object with all messages. A message is written again when its tokens are known, and an
edited history repeats all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from anaphora.analysis.trace.answers import answer_of
from anaphora.analysis.trace.programs.gemini_cli import usage_from
from anaphora.usage.records import BilledCall

from .lines import Stamp, billed_call, decoder, moment


class _Line(msgspec.Struct):
    """The session's data, a message, or all messages."""

    sessionId: Any = None
    kind: Any = None
    id: Any = None
    type: Any = None
    timestamp: Stamp = None
    model: Any = None
    tokens: Any = None
    messages: list[msgspec.Raw] | None = None
    update: _Line | None = msgspec.field(default=None, name="$set")


_decode = decoder(_Line)
#: One of them is in every line that is read.
_WORDS = b'"gemini"', b'"sessionId"', b'"messages"'


class GeminiCliState(msgspec.Struct, array_like=True):
    id: str = ""
    subagent: bool = False


class GeminiCliBills:
    def __init__(self) -> None:
        self._known = GeminiCliState()

    def state(self) -> GeminiCliState:
        return self._known

    def restore(self, state: Any) -> None:
        self._known = msgspec.convert(state, GeminiCliState)

    def read(self, line: bytes, number: int) -> Iterable[BilledCall]:
        return self._read(line, number) if any(word in line for word in _WORDS) else ()

    def _read(self, line: bytes, number: int) -> Iterator[BilledCall]:
        fields, known = _decode(line), self._known
        known.id = known.id or str(fields.sessionId or "")
        known.subagent |= fields.kind == "subagent"
        history = (fields.update or fields).messages
        if history is None:
            yield from self._message(fields, number)
            return
        wrong = ""
        for index, message in enumerate(history):
            try:
                yield from self._message(_decode(message), number)
            except ValueError as problem:
                wrong = wrong or f"messages[{index}]: {problem}"
        if wrong:
            raise ValueError(wrong)

    def _message(self, message: _Line, number: int) -> Iterator[BilledCall]:
        usage = usage_from(message.tokens) if message.type == "gemini" else None
        if usage is None:
            return
        at = moment(message.timestamp)
        yield billed_call(
            answer_of("" if message.id is None else str(message.id), at, usage, ()),
            usage,
            ("google", str(message.model or "")),
            at=at,
            session=self._known.id,
            line=number,
            subagent=self._known.subagent,
        )
