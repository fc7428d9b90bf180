"""Failures of providers, as the exceptions that they are for the caller."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from anaphora import errors
from anaphora.errors import AnaphoraError, Upstream
from anaphora.values import Event, Reply, ReplyFail

if TYPE_CHECKING:
    from .endpoint import Endpoint
    from .transport import Answer


class _Error(msgspec.Struct, frozen=True):
    error: msgspec.Raw


_error = msgspec.json.Decoder(_Error).decode


def refused(endpoint: Endpoint, answer: Answer, data: bytes) -> Upstream:
    """What a bad status and its body say."""
    now = datetime.datetime.now(datetime.UTC)
    return endpoint.wire.read_error(answer.status, answer.headers, data, now)


def told(endpoint: Endpoint, answer: Answer, data: bytes) -> Upstream | None:
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


def partial_of(events: Iterable[Event]) -> Reply | None:
    """What had been said when a stream broke off."""
    return next((event.partial for event in events if isinstance(event, ReplyFail)), None)
