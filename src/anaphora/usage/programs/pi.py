"""Bills in session files of pi: `<folder>/sessions/*/*.jsonl`. Replies have a bill, and so have
summaries and calls whose messages are not in the file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from anaphora.analysis.trace.answers import answer_of
from anaphora.analysis.trace.programs.pi import BILLED, sent_message, usage_from
from anaphora.usage.records import CallBill, moment

from .lines import BillReader, decoder, fields

#: One of them is in every line that is read.
_WORDS = b'"assistant"', b'"usage"', b'"model_change"', b'"session"'


_Message = fields("role provider model responseModel responseId usage excludeFromContext")
_decode = decoder(
    fields("type id timestamp cwd provider model modelId usage summary", message=_Message)
)
_decode_sent = decoder(fields(message=dict[str, Any]))


class PiState(msgspec.Struct, array_like=True):
    id: str = ""
    project: str = ""
    served: tuple[str, str] = ("", "")
    """The model that was chosen last."""


class PiBills(BillReader):
    def __init__(self) -> None:
        super().__init__(PiState())

    def read(self, line: bytes, number: int) -> Iterable[CallBill]:
        if not any(word in line for word in _WORDS):
            return ()
        one, known = _decode(line), self.known
        kind, at = one.type, moment(one.timestamp)
        if kind == "session":
            known.id = known.id or str(one.id or "")
            known.project = known.project or str(one.cwd or "")
        elif kind == "model_change":
            known.served = self.served(one.provider, one.modelId)
        elif kind in BILLED:
            named = one.provider
            by = self.served(named, one.model) if named else known.served
            usage = usage_from(one.usage, by[0])
            if usage is not None:
                answer = answer_of("", at, usage, [kind, one.summary])
                return (self.call(answer, usage, by, at, number),)
        elif kind == "message" and one.message is not None:
            return self._reply(one.message, line, at, number)
        return ()

    def _reply(self, reply: Any, line: bytes, at: float | None, number: int) -> Iterable[CallBill]:
        if reply.role != "assistant" or reply.excludeFromContext:
            return ()
        by = self.served(reply.provider, reply.responseModel or reply.model)
        self.known.served = by
        usage = usage_from(reply.usage, by[0])
        if usage is None:
            return ()
        content: list[Any] = []
        if not reply.responseId:
            message = sent_message(_decode_sent(line).message)
            content = [message.content, message.tool_calls]
        answer = answer_of(reply.responseId, at, usage, content)
        return (self.call(answer, usage, by, at, number),)
