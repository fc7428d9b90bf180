"""Stored responses as an app may see them that shares a cache with others: without what was read
from it. Their own replies are shown as if the app were alone, which is not known any more."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from anaphora.daemon.calls.filling import with_members
from anaphora.wire.reading import DECODE_ERRORS, Members, decode_members, encode_members

_NULL = msgspec.Raw(b"null")
_DIAGNOSTICS = "prompt_cache_diagnostics"
_COUNTS = ("cached_tokens", "cache_write_tokens")
_DATA = b"data:"
_RESPONSE = "response"


def change_objects(body: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """A JSON object after a change; in a stream of events, the response of each."""
    if body.lstrip()[:1] == b"{":
        return change(body)
    lines = body.splitlines(keepends=True)
    return b"".join(_changed_event(line, change) for line in lines)


def without_cache_counts(body: bytes) -> bytes:
    """The JSON of a response in which nothing was read from a cache, or written to it."""
    try:
        members = decode_members(body)
    except DECODE_ERRORS:
        return body
    changes = {}
    if members.get(_DIAGNOSTICS, _NULL) != _NULL:
        changes[_DIAGNOSTICS] = b"null"
    usage = _object(members, "usage")
    details = _object(usage, "input_tokens_details")
    if details:
        counts = {name: msgspec.Raw(b"0") for name in _COUNTS if name in details}
        usage["input_tokens_details"] = msgspec.Raw(encode_members(counts))
        changes["usage"] = encode_members(usage)
    return with_members(body, members, changes)


def _changed_event(line: bytes, change: Callable[[bytes], bytes]) -> bytes:
    if not line.startswith(_DATA):
        return line
    data = line[len(_DATA) :].strip()
    try:
        members = decode_members(data)
    except DECODE_ERRORS:
        return line
    response = bytes(members.get(_RESPONSE, b""))
    if response[:1] == b"{":
        data = with_members(data, members, {_RESPONSE: change(response)})
    else:
        data = change(data)
    return _DATA + b" " + data + b"\n"


def _object(members: Members, name: str) -> Members:
    raw = bytes(members.get(name, b""))
    return decode_members(raw) if raw[:1] == b"{" else {}
