"""Bills in sessions of opencode: its database, the tree of files of older versions, and what
`opencode export` writes. A message of the assistant is a call; in older versions it may be several,
each with a `step-finish` part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from anaphora.analysis.trace.programs.opencode import answer_at, usage_from
from anaphora.usage.opencode_files import StoredReply
from anaphora.usage.records import CallBill, moment

from .lines import BillReader, decoder, fields, of_messages

_Info = fields(
    "id parentID directory role providerID modelID tokens",
    time=fields("created completed"),
    path=fields("cwd"),
)
_Part = fields("type tokens")
_Message = fields(info=_Info, parts=[_Part])
_decode = decoder(fields(info=_Info, messages=[msgspec.Raw]))
_decode_message = decoder(_Message)
_decode_info = decoder(_Info)
_decode_part = decoder(_Part)


class OpencodeState(msgspec.Struct, array_like=True):
    id: str = ""
    project: str = ""


class OpencodeBills(BillReader):
    """Every line is a session, as `opencode export` writes it."""

    def __init__(self) -> None:
        super().__init__(OpencodeState())

    def read(self, line: bytes, number: int) -> Iterable[CallBill]:
        session = _decode(line)

        def read(message: msgspec.Raw) -> Iterator[CallBill]:
            return self._message(_decode_message(message), session.info or _Info(), number)

        return of_messages(session.messages or (), read)

    def reply(self, reply: StoredReply) -> Iterator[CallBill]:
        """The bills of a reply in a database. Raises `ValueError` if it is broken."""
        session = _Info(id=reply.session, parentID=reply.parent, directory=reply.directory)
        message = _Message(info=_decode_info(reply.info), parts=[*map(_decode_part, reply.steps)])
        return self._message(message, session, reply.number)

    def _message(self, message: Any, session: Any, number: int) -> Iterator[CallBill]:
        """The bills of a message: of its steps, or its own if it has none."""
        info, known = message.info, self.known
        if info is None:
            raise ValueError("is not a message")
        if info.role != "assistant":
            return
        known.id = str(session.id or "")
        known.project = str((info.path and info.path.cwd) or session.directory or "")
        by, time = self.served(info.providerID, info.modelID), info.time
        began, ended = (None, None) if time is None else map(moment, (time.created, time.completed))
        at, subagent = began if ended is None else ended, bool(session.parentID)
        steps = [part.tokens for part in message.parts or () if part.type == "step-finish"]
        for index, tokens in enumerate(steps or [info.tokens]):
            usage = usage_from(tokens, by[0])
            if usage is not None:
                answer = answer_at(began, index, usage)
                yield self.call(answer, usage, by, at, number, subagent=subagent)
