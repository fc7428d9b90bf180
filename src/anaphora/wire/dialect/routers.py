"""The hosts behind a router, such as OpenRouter: which one answered, and how a request asks for
one. Rows of `catalog/dialects.toml` have the fields of each router. A request that chooses its
hosts itself is not changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from anaphora.canonical import string
from anaphora.catalog import Dialect
from anaphora.catalog.dialects import Router
from anaphora.rendered import Rendered
from anaphora.values import Opaque, Reply
from anaphora.wire.openai_chat.types import BESIDE
from anaphora.wire.reading import DECODE_ERRORS, Members, decode_members, encode_members

#: The name of a host. It comes from an answer, and is written into requests and notices.
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/()+-]{0,79}", re.ASCII)


def answering_host(reply: Reply, headers: Mapping[str, str], dialect: Dialect | None) -> str:
    """The host that answered, as the router names it; empty if it names none."""
    if dialect is None or dialect.router is None:
        return ""
    value: Any = headers.get(dialect.router.answer_header)
    if dialect.router.answer:
        try:
            value = msgspec.json.decode((reply.extras or {}).get(dialect.wire, "{}"))
        except DECODE_ERRORS:
            return ""
        if isinstance(value, dict):
            value |= value.get(BESIDE, {})
        for name in dialect.router.answer.split("."):
            value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) and _HOST.fullmatch(value) else ""


def without_reply_fields(reply: Reply, dialect: Dialect) -> Reply:
    """The reply with facts about it moved from its message to its extras."""
    parts, moved = list(reply.message.parts), {}
    for index, part in enumerate(parts):
        if isinstance(part, Opaque) and (part.provider, part.kind) == (dialect.wire, "message"):
            fields = decode_members(part.json)
            moved = {name: fields.pop(name) for name in dialect.reply_fields if name in fields}
            kept = msgspec.structs.replace(part, json=encode_members(fields).decode())
            parts[index : index + 1] = [kept] if fields else []
            break
    if not moved:
        return reply
    known = decode_members((reply.extras or {}).get(dialect.wire, "{}"))
    known[BESIDE] = msgspec.Raw(encode_members(moved))
    extras = {**(reply.extras or {}), dialect.wire: encode_members(known).decode()}
    message = msgspec.structs.replace(reply.message, parts=tuple(parts))
    return msgspec.structs.replace(reply, message=message, extras=extras)


def with_host(rendered: Rendered, host: str, router: Router) -> Rendered | None:
    """The prompt in a request that asks for a host; None if the request chooses its hosts itself,
    or cannot ask for one. Chunks, and with them the cached prefix, are the same."""
    envelope, model = rendered.envelope, rendered.model
    if any(fnmatchcase(model, pattern) for pattern in router.chosen_models):
        return None
    tail = envelope.tail
    members = decode_members(b"{" + tail[1:]) if tail[:1] == b"," else {}
    if any(_has(members, path.split(".")) for path in router.chosen_by):
        return None
    if not router.pin:
        named = b'"model":' + string(f"{model}:{host}")
        head = envelope.head.replace(b'"model":' + string(model), named, 1)
        changed = msgspec.structs.replace(envelope, head=head)
    else:
        value = msgspec.Raw(b"[" + string(host) + b"]")
        pinned = _with(members, router.pin.split("."), value)
        if pinned is None:
            return None
        changed = msgspec.structs.replace(envelope, tail=b"," + encode_members(pinned)[1:])
    return msgspec.structs.replace(rendered, envelope=changed)


def _has(members: Members, levels: list[str]) -> bool:
    name, *rest = levels
    if name not in members or not rest:
        return name in members
    held = bytes(members[name])
    return held[:1] == b"{" and _has(decode_members(held), rest)


def _with(members: Members, levels: list[str], value: msgspec.Raw) -> Members | None:
    """The members with this value, in objects that are added; None if there is another one."""
    name, *rest = levels
    if not rest:
        return None if name in members else {**members, name: value}
    held = bytes(members.get(name, b"{}"))
    inner = _with(decode_members(held), rest, value) if held[:1] == b"{" else None
    return None if inner is None else {**members, name: msgspec.Raw(encode_members(inner))}
