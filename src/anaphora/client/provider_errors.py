"""Errors of providers as exceptions: by status, in a stream, and for invalid responses."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from anaphora import errors
from anaphora.catalog import dialects, is_maker, maker_of
from anaphora.errors import (
    AnaphoraError,
    Parse,
    Upstream,
)
from anaphora.values import Event, Reply, ReplyEnd, ReplyFail
from anaphora.wire.errors import NO_ERROR_OBJECT, shorten

from .config.environment import advice, any_set, default_rows, key_variables

if TYPE_CHECKING:
    from .target import Endpoint, Target
    from .transport import HttpResponse


class _ErrorBody(msgspec.Struct, frozen=True):
    error: msgspec.Raw


_decode_error = msgspec.json.Decoder(_ErrorBody).decode


#: Statuses that servers return for an unknown path.
_NOT_THERE = (301, 302, 303, 307, 308, 404, 405)


def status_error(endpoint: Endpoint, answer: HttpResponse, data: bytes) -> Upstream:
    now = datetime.datetime.now(datetime.UTC)
    error = endpoint.wire.read_error(answer.status, answer.headers, data, now)
    name_origin(error, endpoint.base_wire, endpoint.base_url)
    if answer.status in _NOT_THERE and NO_ERROR_OBJECT in str(error):
        # Without the address, which apps of a daemon must not see.
        error.args = (f"{error}; is the base_url of {endpoint.id} right?",)
    return error


def name_origin(error: AnaphoraError, wire: str, base_url: str) -> None:
    """Adds the error's origin, which decides what callers of another wire and apps of a daemon
    see."""
    if isinstance(error, Upstream):
        error.wire = wire
        host = urlsplit(base_url).hostname or ""
        error.own_host = "" if dialects().is_public(host) else host


def name_provider(error: AnaphoraError, target: Target) -> None:
    """Makes the error of a call name its provider and, if a model was not found at the address of
    another maker, the key that is missing."""
    named = isinstance(error, Upstream | errors.Transport | Parse) and not error.provider
    if not named or isinstance(error, errors.Denied):
        return
    endpoint = target.endpoint
    error.provider = endpoint.id
    maker, key = maker_of(target.model), endpoint.config.key
    hint = ""
    if isinstance(error, errors.NotFound) and maker not in (None, endpoint.system):
        variables = [] if maker is None else key_variables(default_rows()[maker])
        if key is not None and key.env and is_maker(endpoint.system) and not any_set(variables):
            hint = f" {target.model} is a model of {maker}, which has no key: {advice(maker or '')}"
    error.args = (f"{endpoint.id}: {error}{hint}",)


def name_meant_block(error: AnaphoraError, endpoint: Endpoint, body: bytes) -> None:
    """Makes an error name a block as in the prompt, if the request also has markers as blocks."""
    meant_path = getattr(endpoint.wire, "meant_path", None)
    if meant_path is not None and isinstance(error, Upstream) and error.param:
        error.param = meant_path(error.param, body)


def _page_error(endpoint: Endpoint, data: bytes) -> Parse | None:
    """The error for a web page as the response: a login page, a portal or another server."""
    if not data[:200].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        return None
    return Parse(f"the response is a web page; is the base_url of {endpoint.id} right?")


def body_error(endpoint: Endpoint, answer: HttpResponse, data: bytes) -> Upstream | None:
    """The error in a body that is no reply: some providers fail with a success status."""
    try:
        error = bytes(_decode_error(data).error)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return None if error == b"null" else status_error(endpoint, answer, data)


def event_error(event: ReplyFail) -> AnaphoraError:
    """The error of a stream's last event, the same as without streaming."""
    kind = getattr(errors, event.error, errors.Upstream)
    if issubclass(kind, errors.Upstream):
        return kind(event.message, code=event.code, status=event.status)
    if kind is errors.Parse:
        return errors.Parse(event.message)
    return errors.Transport(event.message, phase="body")


def stream_error(
    event: ReplyFail, endpoint: Endpoint, answer: HttpResponse, head: bytes | bytearray | None
) -> AnaphoraError:
    """The same with the partial reply. `head` is the body if no event has reached the caller."""
    error = event_error(event)
    shorten(error)
    name_origin(error, endpoint.base_wire, endpoint.base_url)
    if head is not None and isinstance(error, Parse | errors.Transport):
        data = bytes(head)
        error = body_error(endpoint, answer, data) or _page_error(endpoint, data) or error
    error.partial = event.partial
    return error


def read_reply(endpoint: Endpoint, answer: HttpResponse, data: bytes) -> Reply:
    """The reply of a response that is not streamed; raises if it is an error."""
    if answer.status >= 300:
        raise status_error(endpoint, answer, data)
    try:
        return endpoint.wire.read_reply(data)
    except Parse as problem:
        error = body_error(endpoint, answer, data) or _page_error(endpoint, data)
        if error is not None:
            raise error from None
        return _reply_from_stream(endpoint, data, problem)


def _reply_from_stream(endpoint: Endpoint, data: bytes, problem: Parse) -> Reply:
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
    return next((event.partial for event in events if isinstance(event, ReplyFail)), None)
