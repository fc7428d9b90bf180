"""Failures of providers as exceptions."""

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


class _ErrorBody(msgspec.Struct, frozen=True):
    error: msgspec.Raw


_decode_error = msgspec.json.Decoder(_ErrorBody).decode


def status_error(endpoint: Endpoint, answer: HttpResponse, data: bytes) -> Upstream:
    """The error of a failed status and its body."""
    now = datetime.datetime.now(datetime.UTC)
    return endpoint.wire.read_error(answer.status, answer.headers, data, now)


def body_error(endpoint: Endpoint, answer: HttpResponse, data: bytes) -> Upstream | None:
    """The error in a body that is no reply: some providers fail with a good status."""
    try:
        error = bytes(_decode_error(data).error)
    except (msgspec.DecodeError, UnicodeError):
        return None
    return None if error == b"null" else status_error(endpoint, answer, data)


def event_error(event: ReplyFail) -> AnaphoraError:
    """The error of a stream's last event, as a response that is not streamed would raise it."""
    kind = getattr(errors, event.error, errors.Upstream)
    if issubclass(kind, errors.Upstream):
        return kind(event.message, code=event.code)
    if kind is errors.Parse:
        return errors.Parse(event.message)
    return errors.Transport(event.message, phase="body")


def reply_from_stream(endpoint: Endpoint, data: bytes, problem: Parse) -> Reply:
    """The reply in a body that is an event stream although none was requested: some gateways
    always stream. `problem`: why the body could not be read as a single reply."""
    reader = endpoint.wire.reader()
    match [*reader.feed(data), *reader.close()]:
        case [*_, ReplyEnd(reply)]:
            return reply
        case [*_, ReplyFail(partial=partial) as failure] if partial and partial.message.parts:
            error = event_error(failure)
            error.partial = partial
            raise error from None
        case _:
            raise problem from None


def partial_of(events: Iterable[Event]) -> Reply | None:
    """The partial reply of a stream that broke off."""
    return next((event.partial for event in events if isinstance(event, ReplyFail)), None)
