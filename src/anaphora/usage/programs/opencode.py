"""Bills in sessions of opencode: its database, the tree of files of older versions, and what
`opencode export` writes. A message of the assistant is a call; in older versions it may be several,
each with a `step-finish` part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from anaphora.analysis.trace.programs.opencode import answer_at, usage_from
from anaphora.usage.opencode_files import StoredReply
from anaphora.usage.records import BilledCall

from .lines import KnownBetweenLines, billed_call, decoder, fields, moment, of_messages, served

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


class OpencodeBills(KnownBetweenLines):
    """Every line is a session, as `opencode export` writes it."""

    def read(self, line: bytes, number: int) -> Iterable[BilledCall]:
        session = _decode(line)

        def read(message: msgspec.Raw) -> Iterator[BilledCall]:
            return _of_message(_decode_message(message), session.info or _Info(), number)

        return of_messages(session.messages or (), read)


def reply_bills(reply: StoredReply) -> Iterator[BilledCall]:
    """The bills of a reply in a database. Raises `ValueError` if it is broken."""
    session = _Info(id=reply.session, parentID=reply.parent, directory=reply.directory)
    message = _Message(info=_decode_info(reply.info), parts=[*map(_decode_part, reply.steps)])
    return _of_message(message, session, reply.number)


def _of_message(message: Any, session: Any, number: int) -> Iterator[BilledCall]:
    """The bills of a message: of its steps, or its own if it has none."""
    info = message.info
    if info is None:
        raise ValueError("is not a message")
    if info.role != "assistant":
        return
    by, times = served(info.providerID, info.modelID), info.time
    began, ended = (None, None) if times is None else map(moment, (times.created, times.completed))
    steps = [part.tokens for part in message.parts or () if part.type == "step-finish"]
    for index, tokens in enumerate(steps or [info.tokens]):
        usage = usage_from(tokens, by[0])
        if usage is not None:
            yield billed_call(
                answer_at(began, index, usage),
                usage,
                by,
                at=began if ended is None else ended,
                session=str(session.id or ""),
                line=number,
                project=str((info.path and info.path.cwd) or session.directory or ""),
                subagent=bool(session.parentID),
            )
