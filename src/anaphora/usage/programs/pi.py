"""Bills in session files of pi: `<folder>/sessions/*/*.jsonl`. Replies have a bill, and so have
summaries and calls whose messages are not in the file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from anaphora.analysis.trace.answers import answer_of
from anaphora.analysis.trace.programs.pi import BILLED, sent_message, usage_from
from anaphora.usage.records import BilledCall

from .lines import Stamp, billed_call, decoder, moment, served

#: One of them is in every line that is read.
_WORDS = b'"assistant"', b'"usage"', b'"model_change"', b'"session"'


class _Message(msgspec.Struct):
    role: Any = None
    provider: Any = None
    model: Any = None
    responseModel: Any = None
    responseId: Any = None
    usage: Any = None
    excludeFromContext: Any = None


class _Line(msgspec.Struct):
    type: Any = None
    id: Any = None
    timestamp: Stamp = None
    cwd: Any = None
    provider: Any = None
    model: Any = None
    modelId: Any = None
    usage: Any = None
    summary: Any = None
    message: _Message | None = None


class _Sent(msgspec.Struct):
    message: dict[str, Any]


class PiState(msgspec.Struct, array_like=True):
    id: str = ""
    project: str = ""
    served: tuple[str, str] = ("", "")
    """The model that was chosen last."""


_decode = decoder(_Line)
_decode_sent = decoder(_Sent)


class PiBills:
    def __init__(self) -> None:
        self._known = PiState()

    def state(self) -> PiState:
        return self._known

    def restore(self, state: Any) -> None:
        self._known = msgspec.convert(state, PiState)

    def read(self, line: bytes, number: int) -> Iterable[BilledCall]:
        if not any(word in line for word in _WORDS):
            return ()
        fields, known = _decode(line), self._known
        kind, at = fields.type, moment(fields.timestamp)
        if kind == "session":
            known.id = known.id or str(fields.id or "")
            known.project = known.project or str(fields.cwd or "")
        elif kind == "model_change":
            known.served = served(fields.provider, fields.modelId)
        elif kind in BILLED:
            named = fields.provider
            by = served(named, fields.model) if named else known.served
            usage = usage_from(fields.usage, by[0])
            if usage is not None:
                answer = answer_of("", at, usage, [kind, fields.summary])
                return (self._call(answer, usage, by, at, number),)
        elif kind == "message" and fields.message is not None:
            return self._reply(fields.message, line, at, number)
        return ()

    def _reply(
        self, reply: _Message, line: bytes, at: float | None, number: int
    ) -> Iterable[BilledCall]:
        if reply.role != "assistant" or reply.excludeFromContext:
            return ()
        by = served(reply.provider, reply.responseModel or reply.model)
        self._known.served = by
        usage = usage_from(reply.usage, by[0])
        if usage is None:
            return ()
        content: list[Any] = []
        if not reply.responseId:
            message = sent_message(_decode_sent(line).message)
            content = [message.content, message.tool_calls]
        answer = answer_of(reply.responseId, at, usage, content)
        return (self._call(answer, usage, by, at, number),)

    def _call(
        self, answer: Any, usage: Any, by: tuple[str, str], at: float | None, number: int
    ) -> BilledCall:
        known = self._known
        return billed_call(
            answer, usage, by, at=at, session=known.id, line=number, project=known.project
        )
