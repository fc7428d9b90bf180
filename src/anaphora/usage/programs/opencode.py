"""Bills in sessions of opencode: its database, the tree of files of older versions, and what
`opencode export` writes. A message of the assistant is a call; in older versions it may be several,
each with a `step-finish` part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from anaphora.analysis.trace.programs.opencode import answer_at, usage_from
from anaphora.usage.opencode_files import StoredReply
from anaphora.usage.records import BilledCall

from .lines import Stamp, billed_call, decoder, moment, served


class _Times(msgspec.Struct, frozen=True):
    created: Stamp = None
    completed: Stamp = None


class _Path(msgspec.Struct, frozen=True):
    cwd: Any = None


class _Info(msgspec.Struct):
    """Of a session or a message."""

    id: Any = None
    parentID: Any = None
    directory: Any = None
    role: Any = None
    providerID: Any = None
    modelID: Any = None
    tokens: Any = None
    time: _Times = _Times()
    path: _Path = _Path()


class _Part(msgspec.Struct):
    type: Any = None
    tokens: Any = None


class _Message(msgspec.Struct):
    info: _Info
    parts: list[_Part] = []


class _Session(msgspec.Struct):
    info: _Info
    messages: list[msgspec.Raw] = []


_decode = decoder(_Session)
_decode_message = decoder(_Message)
_decode_info = decoder(_Info)
_decode_part = decoder(_Part)


class OpencodeBills:
    """Every line is a session, as `opencode export` writes it."""

    def state(self) -> None:
        return None

    def restore(self, state: Any) -> None:
        del state

    def read(self, line: bytes, number: int) -> Iterator[BilledCall]:
        session, wrong = _decode(line), ""
        for index, message in enumerate(session.messages):
            try:
                yield from _of_message(_decode_message(message), session.info, number)
            except ValueError as problem:
                wrong = wrong or f"messages[{index}]: {problem}"
        if wrong:
            raise ValueError(wrong)


def reply_bills(reply: StoredReply) -> Iterator[BilledCall]:
    """The bills of a reply in a database. Raises `ValueError` if it is broken."""
    info = _decode_info(reply.info)
    session = _Info(id=reply.session, parentID=reply.parent, directory=reply.directory)
    message = _Message(info, [*map(_decode_part, reply.steps)])
    return _of_message(message, session, reply.number)


def _of_message(one: _Message, session: _Info, number: int) -> Iterator[BilledCall]:
    """The bills of a message: of its steps, or its own if it has none."""
    message = one.info
    if message.role != "assistant":
        return
    by = served(message.providerID, message.modelID)
    began, ended = moment(message.time.created), moment(message.time.completed)
    steps = [part.tokens for part in one.parts if part.type == "step-finish"] or [message.tokens]
    for index, tokens in enumerate(steps):
        usage = usage_from(tokens, by[0])
        if usage is not None:
            yield billed_call(
                answer_at(began, index, usage),
                usage,
                by,
                at=began if ended is None else ended,
                session=str(session.id or ""),
                line=number,
                project=str(message.path.cwd or session.directory or ""),
                subagent=bool(session.parentID),
            )
