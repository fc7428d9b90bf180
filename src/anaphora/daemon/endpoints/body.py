"""Reads the body of a request strictly: the bytes that are checked are the ones that are sent.

    data = await read_json_bytes(exchange)
    body = await read_object(exchange, off_loop, app.id)

Refused: everything that `strict_json` refuses; fields that differ only in case or underscores,
since some providers accept either; content types other than JSON; compressed bodies that are
invalid or too large.

Messages of the preceding body are neither decoded nor checked again: they have no duplicate keys,
so the list has none if its other elements have none. If the rest is refused, the whole body is
read, so that the error is the same.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from anaphora.client.transport.decoding import Decompressor, InvalidCompression, encodings
from anaphora.daemon.off_loop import OffLoop
from anaphora.errors import TooLarge
from anaphora.serving.exchange import HttpExchange
from anaphora.wire.known_requests import RequestReading
from anaphora.wire.reading import Members, decode_members
from anaphora.wire.strict_json import (
    HEAVY,
    LARGE,
    SHOWN,
    decode_pieces,
    decode_strict,
    is_heavy,
    rejected,
)

#: Maximum growth of a decompressed body, which is also limited by `MAX_BODY`.
_MAX_RATIO = 100
_SMALLEST_LIMIT = 1024 * 1024
#: Bytes decompressed at a time; they grow at most a thousandfold.
_COMPRESSED_PIECE = 4096
#: Maximum number of messages, blocks and tools: Anthropic's limit of messages.
MOST_ELEMENTS = 100_000
_LISTS = ("messages", "input", "contents", "system", "tools")
MAX_BODY = 32 * 1024 * 1024

#: Headers that must not be sent twice: two readers could use different ones.
_ONCE = (
    "content-type", "content-length", "content-encoding", "transfer-encoding", "authorization",
    "x-api-key", "x-goog-api-key", "api-key", "anthropic-version",
)  # fmt: skip
_JSON = "application/json"
_JSON_TYPE = re.compile(
    r'application/json\s*(?:;\s*charset\s*=\s*"?utf-8"?\s*)?(?:;\s*)?', re.IGNORECASE
)
#: Members with names chosen by the app, and lists whose elements are checked.
_FREE_NAMES = frozenset(
    "metadata client_metadata labels parameters parametersJsonSchema parameters_json_schema"
    " response_schema responseSchema responseJsonSchema response_json_schema input_schema schema"
    " json_schema format output_schema logit_bias variables headers inputSchema requestMetadata"
    " promptVariables".split()
)
_TOOL_LISTS = frozenset(("tools", "functionDeclarations", "function_declarations"))


class JsonBody(msgspec.Struct, frozen=True, eq=False):
    """A JSON object: its bytes and its decoded value."""

    data: bytes
    members: Members
    value: dict[str, Any]


async def read_json_bytes(exchange: HttpExchange, *, untyped: bool = False) -> bytes:
    """The body without its content encoding. Raises `RequestRejected` before reading if the content
    type is not JSON, and `TooLarge`. `untyped`: it may be missing."""
    if not untyped or "content-type" in exchange.headers:
        check_json_type(exchange.headers)
    body = await exchange.read_body()
    encoding = exchange.headers.get("content-encoding")
    return body if encoding is None else await _decompressed(exchange, body, encoding)


async def _decompressed(exchange: HttpExchange, body: bytes, encoding: str) -> bytes:
    """Decompresses in a thread. The decompressed bytes count as unread, like the received ones."""
    pieces: list[bytes] = []
    size = 0
    for piece in decompressed_pieces(body, encoding, exchange.max_body):
        pieces.append(piece)
        size += len(piece)
        if exchange.account is not None:
            exchange.account.add(len(piece))
        if size > LARGE:
            size = 0
            await asyncio.sleep(0)
    return b"".join(pieces)


async def read_object(
    exchange: HttpExchange, off_loop: OffLoop, app: str, default: bytes = b""
) -> JsonBody:
    """The object in a body; `default` if the body is empty. Raises as `read_json_bytes` does, and
    `RequestRejected` if the body is not an object."""
    data = await read_json_bytes(exchange) or default
    if is_heavy(data):
        body = await off_loop.run(app, lambda: parse_object(data, by_pieces=True))
    else:
        body = parse_object(data)
    exchange.end_reading()
    return body


def check_headers(pairs: Sequence[tuple[str, str]]) -> None:
    """Raises if a header of `_ONCE` is sent twice."""
    if len(dict(pairs)) == len(pairs):
        return
    names = [name for name, _ in pairs]
    for name in _ONCE:
        if names.count(name) > 1:
            raise rejected(f"the header {name} is sent twice")


def check_json_type(headers: Mapping[str, str]) -> None:
    """Raises `RequestRejected` if the content type is not JSON. Header names are lowercase."""
    kind = headers.get("content-type", "")
    if kind != _JSON and _JSON_TYPE.fullmatch(kind.strip()) is None:
        shown = repr(kind[:SHOWN]) if kind else "none"
        raise rejected(f"the content type must be application/json in UTF-8, not {shown}", 415)


def parse_object(body: bytes, counted: int = 0, *, by_pieces: bool = False) -> JsonBody:
    """A JSON object without duplicate keys. `counted` is the number of messages and blocks left out
    of `data`. `by_pieces`: for use in a thread, lets other threads run."""
    if by_pieces:
        value, members = decode_pieces(body)
    else:
        value, members = decode_strict(body), None
    if not isinstance(value, dict):
        raise rejected("the body must be a JSON object")
    _check_spellings(value)
    if counted or len(body) > 2 * MOST_ELEMENTS:
        _check_count(value, counted)
    return JsonBody(body, decode_members(body) if members is None else members, value)


def decompressed_pieces(body: bytes, encoding: str, most: int = MAX_BODY) -> Iterator[bytes]:
    """A body without its content encoding, within limits, in pieces of some megabytes at most.
    Raises `RequestRejected` and `TooLarge`."""
    names = encodings(encoding)
    if not names:
        yield body
        return
    if len(names) > 1 or names[0] not in ("gzip", "x-gzip", "deflate"):
        raise rejected("the content encoding must be gzip or deflate, once", 415)
    most = left = min(most, max(_SMALLEST_LIMIT, len(body) * _MAX_RATIO))
    decompressor = Decompressor(names[0])
    try:
        for at in range(0, len(body), _COMPRESSED_PIECE):
            data = decompressor.feed(body[at : at + _COMPRESSED_PIECE], left)
            left -= len(data)
            if left < 0:
                reason = f"the decompressed request body is larger than {most:,} bytes"
                raise TooLarge(reason, status=413)
            yield data
        decompressor.finish()
    except InvalidCompression as problem:
        raise rejected(f"the request body: {problem}") from None


def _check_count(value: dict[str, Any], count: int) -> None:
    """Limits the elements, since each takes time during which no other app is served."""
    for name in _LISTS:
        listed = value.get(name)
        if isinstance(listed, list):
            count += sum(map(count_of, listed))
    if count > MOST_ELEMENTS:
        reason = f"the request has more than {MOST_ELEMENTS:,} messages, blocks and tools"
        raise TooLarge(reason, status=413)


def count_of(element: Any) -> int:
    """A message with its blocks, or a tool."""
    if not isinstance(element, dict):
        return 1
    inner = element.get("content") or element.get("parts")
    return 1 + len(inner) if isinstance(inner, list) else 1


def _check_spellings(value: dict[str, Any]) -> None:
    """Rejects fields of a request, its settings and its tools that differ only in case or
    underscores: Go's JSON reader ignores case, and Google's also accepts snake_case. Schemas and
    labels are the app's."""
    pending = [value]
    while pending:
        fields = pending.pop()
        spelled: dict[str, str] = {}
        for name, inner in fields.items():
            other = spelled.setdefault(name.replace("_", "").casefold(), name)
            if other is not name:
                reason = f"{other[:SHOWN]!r} and {name[:SHOWN]!r} are the same field"
                raise rejected(reason, param=name)
            if isinstance(inner, dict) and name not in _FREE_NAMES:
                pending.append(inner)
            elif isinstance(inner, list) and name in _TOOL_LISTS:
                pending += [each for each in inner if isinstance(each, dict)]


class CallBody(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The body of a call."""

    data: bytes
    members: Members
    value: dict[str, Any]
    """The decoded value, without the first messages if these are known."""


#: Bytes from which a body is hashed in a thread.
LONG = 4 * 1024 * 1024


def is_large(reading: RequestReading) -> bool:
    """Whether it takes long to read what is new in a body, and to check it."""
    return reading.known > HEAVY or is_heavy(reading.rest)


def read_strictly(data: bytes, reading: RequestReading, *, by_pieces: bool = False) -> CallBody:
    """A body, of which known messages are not read again. Raises `RequestRejected`, `TooLarge`;
    then `reading.whole()` has the error of the body, if messages are known."""
    counted = 0
    if reading.known and len(data) > 2 * MOST_ELEMENTS:
        # At least as many as the elements that they were read from.
        counted = 3 * sum(1 + len(message.parts) for message in reading.known_messages)
    read = parse_object(reading.rest, counted, by_pieces=by_pieces)
    return CallBody(data=data, members=read.members, value=read.value)
