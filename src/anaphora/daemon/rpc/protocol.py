"""Reads and writes JSON-RPC 2.0 messages.

    match read_message(data):
        case RpcBatch(items): …
        case RpcRequest() as request: …
        case InvalidMessage() as invalid: write_error(invalid.id, invalid.error)

A message is JSON without duplicate keys. An id is a text, a number or null, and is written back in
the bytes it came in; a request without one is a notification and gets no response.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from anaphora.daemon.facts.strict_json import decode_pieces, decode_strict
from anaphora.errors import RequestRejected, TooLarge
from anaphora.wire.reading import Members, decode_elements, decode_members

from .codes import INVALID_REQUEST, PARSE_ERROR, RpcError

VERSION = "2.0"
MOST_IN_BATCH = 50
#: An id is repeated in every delta.
LONGEST_ID = 256
NULL = b"null"

RequestKey: TypeAlias = str | int | float | None
"""The value of an id: 1 and 1.0 are the same request, 1 and "1" are not."""

_encode = msgspec.json.Encoder().encode


class RpcRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A request object, or a notification."""

    method: str
    params: bytes | None
    """The JSON object; empty where it is absent, None where params are positional."""
    id: bytes | None = None
    """The JSON of the id; None: a notification."""

    @property
    def is_notification(self) -> bool:
        return self.id is None

    @property
    def key(self) -> RequestKey:
        return key_of(self.id or NULL)


class InvalidMessage(msgspec.Struct, frozen=True):
    """What is not a request object."""

    error: RpcError
    id: bytes = NULL
    """The request's own where it could be read."""


class RpcBatch(msgspec.Struct, frozen=True):
    items: tuple[RpcRequest | InvalidMessage, ...]


RpcMessage: TypeAlias = RpcRequest | InvalidMessage | RpcBatch


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────


def read_message(data: bytes, *, by_pieces: bool = False) -> RpcMessage:
    """A request, a notification, or a batch of them. Never raises. `by_pieces`: in a thread, while
    others run."""
    try:
        if by_pieces:
            decode_pieces(data)
        else:
            decode_strict(data)
    except (RequestRejected, TooLarge) as problem:
        return InvalidMessage(RpcError(PARSE_ERROR, str(problem)))
    if data.lstrip()[:1] == b"[":
        return _read_batch(decode_elements(data))
    return _read_request(data)


def _read_batch(elements: list[msgspec.Raw]) -> RpcBatch | InvalidMessage:
    if not elements:
        return _invalid("a batch must hold at least one request")
    if len(elements) > MOST_IN_BATCH:
        count = f"a batch may hold {MOST_IN_BATCH} requests, not {len(elements):,}"
        return _invalid(count)
    return RpcBatch(tuple(map(_read_request, elements)))


def _read_request(data: bytes | msgspec.Raw) -> RpcRequest | InvalidMessage:
    if bytes(data).lstrip()[:1] != b"{":
        return _invalid("a request must be an object")
    members = decode_members(data)
    id = bytes(members["id"]) if "id" in members else None
    if id is not None and (reason := _id_problem(id)):
        return _invalid(reason)
    shown_id = NULL if id is None else id
    if _text(members, "jsonrpc") != VERSION:
        return _invalid(f'jsonrpc must be "{VERSION}"', shown_id)
    method = _text(members, "method")
    if method is None:
        return _invalid("method must be a text", shown_id)
    if "params" not in members:
        return RpcRequest(method=method, params=b"{}", id=id)
    params = bytes(members["params"])
    match params[:1]:
        case b"{":
            return RpcRequest(method=method, params=params, id=id)
        case b"[":
            return RpcRequest(method=method, params=None, id=id)
        case _:
            return _invalid("params must be an object", shown_id)


def _id_problem(id: bytes) -> str:
    if len(id) > LONGEST_ID:
        return f"an id may have {LONGEST_ID} bytes, not {len(id):,}"
    return "" if id == NULL or id[:1] in b'"-0123456789' else "id must be a text, a number or null"


def _text(members: Members, name: str) -> str | None:
    raw = bytes(members.get(name, b""))
    return str(msgspec.json.decode(raw)) if raw[:1] == b'"' else None


def key_of(id: bytes | msgspec.Raw) -> RequestKey:
    """The value of an id."""
    key: RequestKey = msgspec.json.decode(id)
    return key


def _invalid(reason: str, id: bytes = NULL) -> InvalidMessage:
    return InvalidMessage(RpcError(INVALID_REQUEST, reason), id)


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────


def write_result(id: bytes, result: object) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id, _encode(result))


def write_error(id: bytes, error: RpcError) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (id, _encode(error))


def write_notification(method: str, params: object) -> bytes:
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (_encode(method), _encode(params))


def write_batch(responses: Iterable[bytes]) -> bytes:
    return b"[%b]" % b",".join(responses)
