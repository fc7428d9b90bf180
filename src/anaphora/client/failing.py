"""A failure inside a stream, as the exception that a single answer would have raised."""

from __future__ import annotations

from anaphora import errors
from anaphora.errors import AnaphoraError
from anaphora.values import ReplyFail


def raised(event: ReplyFail) -> AnaphoraError:
    """The error that a stream's last event tells of."""
    kind = getattr(errors, event.error, errors.Upstream)
    if issubclass(kind, errors.Upstream):
        return kind(event.message, code=event.code)
    if kind is errors.Parse:
        return errors.Parse(event.message)
    return errors.Transport(event.message, phase="body")
