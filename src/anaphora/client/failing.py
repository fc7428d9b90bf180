"""Failures of providers, as the exceptions that they are for the caller."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from anaphora import errors
from anaphora.errors import AnaphoraError, Parse, Upstream
from anaphora.values import Event, Reply, ReplyEnd, ReplyFail

if TYPE_CHECKING:
    from .endpoint import Endpoint
    from .transport import HttpResponse


class _Error(msgspec.Struct, frozen=True):
    error: msgspec.Raw


_error = msgspec.json.Decoder(_Error).decode


def refused(endpoint: Endpoint, answer: HttpResponse, data: bytes) -> Upstream:
    """What a bad status and its body say."""
    now = datetime.datetime.now(datetime.UTC)
    return endpoint.wire.read_error(answer.status, answer.headers, data, now)


def told(endpoint: Endpoint, answer: HttpResponse, data: bytes) -> Upstream | None:
    """The error in a body that cannot be read as an answer: some fail with a good status."""
    try:
        said = bytes(_error(data).error)
    except (msgspec.DecodeError, UnicodeError):
        return None
    return None if said == b"null" else refused(endpoint, answer, data)


def raised(event: ReplyFail) -> AnaphoraError:
    """The error that a stream's last event tells of, as a single answer would have raised it."""
    kind = getattr(errors, event.error, errors.Upstream)
    if issubclass(kind, errors.Upstream):
        return kind(event.message, code=event.code)
    if kind is errors.Parse:
        return errors.Parse(event.message)
    return errors.Transport(event.message, phase="body")


def from_stream(endpoint: Endpoint, data: bytes, problem: Parse) -> Reply:
    """The answer in a body that is an event stream although none was requested: some gateways
    always stream. `problem`: why the body could not be read as a single answer."""
    reader = endpoint.wire.reader()
    match [*reader.feed(data), *reader.close()]:
        case [*_, ReplyEnd(reply)]:
            return reply
        case [*_, ReplyFail(partial=partial) as failure] if partial and partial.message.parts:
            error = raised(failure)
            error.partial = partial
            raise error from None
        case _:
            raise problem from None


def partial_of(events: Iterable[Event]) -> Reply | None:
    """What had been said when a stream broke off."""
    return next((event.partial for event in events if isinstance(event, ReplyFail)), None)
