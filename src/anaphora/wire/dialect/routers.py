"""The hosts behind a router, such as OpenRouter: which one answered, and how a request asks for
one. Rows of `catalog/dialects.toml` have the fields of each router.

    host = answering_host(reply, headers, dialect)
    host_edit(body, members, model, router)             where to write it into the next request

A request that chooses its hosts itself is not changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import msgspec

from anaphora.canonical import string
from anaphora.catalog import Dialect
from anaphora.catalog.dialects import Router
from anaphora.rendered import Rendered
from anaphora.values import Opaque, Reply
from anaphora.wire.reading import DECODE_ERRORS, decode_members, encode_members
from anaphora.wire.spans import MemberSpan, document_span, member_spans

#: The name of a host. It comes from an answer, and is written into requests and notices.
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/()+-]{0,79}", re.ASCII)
#: An object without its beginning or its end is read with this member in its place.
_MEMBER = b'"":0'


class HostEdit(NamedTuple):
    """The bytes around the name of a host, and their offset."""

    at: int
    before: bytes
    after: bytes = b""

    def apply(self, body: bytes, host: str) -> bytes:
        return body[: self.at] + self.text(host) + body[self.at :]

    def text(self, host: str) -> bytes:
        return self.before + host.encode() + self.after


def answering_host(reply: Reply, headers: Mapping[str, str], dialect: Dialect | None) -> str:
    """The host that answered, as the router names it; empty if it names none."""
    router = None if dialect is None else dialect.router
    if dialect is None or router is None:
        return ""
    if router.answer_header:
        value: Any = headers.get(router.answer_header)
    else:
        value = _field((reply.extras or {}).get(dialect.wire, ""), router.answer)
    return value if isinstance(value, str) and _HOST.fullmatch(value) else ""


def _field(text: str, path: str) -> Any:
    first, *rest = path.split(".")
    if f'"{first}"' not in text:
        return None
    try:
        value = msgspec.json.decode(decode_members(text)[first])
    except (*DECODE_ERRORS, KeyError):
        return None
    for name in rest:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def without_reply_fields(reply: Reply, dialect: Dialect) -> Reply:
    """The reply with facts about it moved from its message to its extras: they would be sent back
    with the message."""
    for part in reply.message.parts:
        if not isinstance(part, Opaque) or (part.provider, part.kind) != (dialect.wire, "message"):
            continue
        fields = decode_members(part.json)
        moved = {name: fields.pop(name) for name in dialect.reply_fields if name in fields}
        if not moved:
            continue
        rest = (msgspec.structs.replace(part, json=encode_members(fields).decode()),)
        parts = [
            each
            for one in reply.message.parts
            for each in (rest[: len(fields)] if one is part else (one,))
        ]
        known = decode_members((reply.extras or {}).get(dialect.wire, "{}"))
        extras = {**(reply.extras or {}), dialect.wire: encode_members(known | moved).decode()}
        message = msgspec.structs.replace(reply.message, parts=tuple(parts))
        return msgspec.structs.replace(reply, message=message, extras=extras)
    return reply


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────


def host_edit(
    body: bytes, members: Mapping[str, MemberSpan], model: str, router: Router
) -> HostEdit | None:
    """The place of a host in a request with these members; None if the request chooses its hosts,
    or has no such place."""
    if any(fnmatchcase(model, pattern) for pattern in router.chosen_models):
        return None
    if any(_has(body, members, path.split(".")) for path in router.chosen_by):
        return None
    if not router.pin:
        span = members.get("model")
        return HostEdit(span.end - 1, b":") if span is not None else None
    first, *levels = router.pin.split(".")
    end, comma = document_span(body).end - 1, b"," if members else b""
    while first in members and levels:
        span = members[first]
        if body[span.start : span.start + 1] != b"{":
            return None
        members = member_spans(body, span.value, router.pin)
        end, comma = span.end - 1, b"," if members else b""
        first, *levels = levels
    opened = b"".join(b"%b:{" % string(name) for name in [first, *levels][:-1])
    name = [first, *levels][-1]
    before = b'%b%b%b:["' % (comma, opened, string(name))
    return HostEdit(end, before, b'"]' + b"}" * len(levels))


def _has(body: bytes, members: Mapping[str, MemberSpan], levels: list[str]) -> bool:
    first, *rest = levels
    span = members.get(first)
    if span is None or not rest:
        return span is not None
    if body[span.start : span.start + 1] != b"{":
        return False
    return _has(body, member_spans(body, span.value, first), rest)


def with_host(rendered: Rendered, host: str, router: Router) -> Rendered | None:
    """The prompt in a request that asks for a host; None if the request chooses its hosts itself.
    Chunks, and with them the cached prefix, are the same."""
    envelope = rendered.envelope
    if router.pin:
        part, before, after = "tail", b"{" + _MEMBER, b""
    else:
        part, before, after = (
            "head",
            b"",
            (b"" if envelope.head.endswith(b",") else b",") + _MEMBER + b"}",
        )
    body = before + getattr(envelope, part) + after
    found = host_edit(body, member_spans(body, document_span(body), part), rendered.model, router)
    if found is None:
        return None
    edited = found.apply(body, host)
    changed = {part: edited[len(before) : len(edited) - len(after)]}
    return msgspec.structs.replace(rendered, envelope=msgspec.structs.replace(envelope, **changed))
