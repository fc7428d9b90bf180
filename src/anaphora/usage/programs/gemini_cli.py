"""Bills in session files of Gemini CLI: `<folder>/tmp/<project>/chats/**`, `.jsonl` and the older
`.json`, one object with all messages. A message is written again when its tokens are known, and an
edited history repeats all of them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from anaphora.analysis.trace.answers import answer_of
from anaphora.analysis.trace.programs.gemini_cli import REPLY, usage_from
from anaphora.usage.bounded_files import content_of
from anaphora.usage.records import CallBill, moment

from .lines import BillReader, decoder, fields, of_messages

#: The session's data, a message, or all messages.
_decode = decoder(
    fields(
        "sessionId kind id type timestamp model tokens",
        rename={"update": "$set"},
        messages=[msgspec.Raw],
        update=fields(messages=[msgspec.Raw]),
    )
)
#: One of them is in every line that is read.
_WORDS = b'"gemini"', b'"sessionId"', b'"messages"'
_LONGEST_PATH = 4096


class GeminiCliState(msgspec.Struct, array_like=True):
    id: str = ""
    subagent: bool = False
    project: str = ""


class GeminiCliBills(BillReader):
    def __init__(self) -> None:
        super().__init__(GeminiCliState())

    def begin(self, file: str) -> None:
        """Newer versions write the working directory beside the chats."""
        for folder in Path(file).parents[1:3]:
            with suppress(OSError, UnicodeError):
                name = content_of(folder / ".project_root", _LONGEST_PATH)
                self.known.project = name.decode().strip()
                return

    def read(self, line: bytes, number: int) -> Iterable[CallBill]:
        if not any(word in line for word in _WORDS):
            return ()
        one, known = _decode(line), self.known
        known.id = known.id or str(one.sessionId or "")
        known.subagent |= one.kind == "subagent"
        history = (one.update or one).messages
        if history is None:
            return self._message(one, number)
        return of_messages(history, lambda message: self._message(_decode(message), number))

    def _message(self, message: Any, number: int) -> Iterable[CallBill]:
        usage = usage_from(message.tokens) if message.type == REPLY else None
        if usage is None:
            return ()
        at = moment(message.timestamp)
        answer = answer_of("" if message.id is None else str(message.id), at, usage, ())
        by = "google", str(message.model or "")
        return (self.call(answer, usage, by, at, number, subagent=self.known.subagent),)
