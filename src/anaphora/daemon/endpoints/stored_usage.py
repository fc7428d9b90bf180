"""Stored responses, and results of batches, as an app may see them that shares a cache with others:
without what was read from it. Their own replies are shown as if the app were alone, which is not
known any more."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from anaphora.daemon.calls.filling import with_members
from anaphora.wire.reading import DECODE_ERRORS, Members, decode_members, encode_members

_NULL = msgspec.Raw(b"null")
_DIAGNOSTICS = "prompt_cache_diagnostics"
_COUNTS = ("cached_tokens", "cache_write_tokens")
_DETAILS = ("input_tokens_details", "prompt_tokens_details")
#: Anthropic's tokens of the input that was read, and of the rest.
_READ, _UNCACHED = "cache_read_input_tokens", "input_tokens"
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
    for name in _DETAILS:
        if details := _object(usage, name):
            counts = {count: msgspec.Raw(b"0") for count in _COUNTS if count in details}
            usage[name] = msgspec.Raw(encode_members({**details, **counts}))
            changes["usage"] = encode_members(usage)
    if _number(usage, _READ):
        uncached = _number(usage, _UNCACHED) + _number(usage, _READ)
        usage |= {_UNCACHED: msgspec.Raw(b"%d" % uncached), _READ: msgspec.Raw(b"0")}
        usage.pop("iterations", None)
        changes["usage"] = encode_members(usage)
    return with_members(body, members, changes)


def change_results(
    data: bytes,
    change: Callable[[bytes], bytes],
    change_reply: Callable[[bytes], bytes],
) -> bytes:
    """The results of a batch, an object in each line, after a change to it and to the object that
    holds the reply or the error, and another one to the reply."""
    return b"\n".join(_changed_result(line, change, change_reply) for line in data.split(b"\n"))


def _changed_result(
    line: bytes, change: Callable[[bytes], bytes], change_reply: Callable[[bytes], bytes]
) -> bytes:
    try:
        members = decode_members(line)
    except DECODE_ERRORS:
        return line
    for outer, inner in (("result", "message"), ("response", "body")):
        if not (held := _object(members, outer)):
            continue
        found = bytes(members[outer])
        if bytes(held.get(inner, b""))[:1] == b"{":
            found = with_members(found, held, {inner: change_reply(bytes(held[inner]))})
        line = with_members(line, members, {outer: change(found)})
    return change(line)


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


def _number(members: Members, name: str) -> int:
    raw = bytes(members.get(name, b""))
    return int(raw) if raw.isdigit() else 0


def _object(members: Members, name: str) -> Members:
    raw = bytes(members.get(name, b""))
    return decode_members(raw) if raw[:1] == b"{" else {}
