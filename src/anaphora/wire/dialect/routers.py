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
from anaphora.catalog.dialect_rows import Router
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
    """The prompt in a request that asks for a host; None if the request chooses its hosts itself.
    Chunks, and with them the cached prefix, are the same."""
    if any(fnmatchcase(rendered.model, pattern) for pattern in router.chosen_models):
        return None
    head, tail = rendered.envelope.head, rendered.envelope.tail
    if router.pin:
        fields = decode_members(_PROMPT + tail)
        listed = msgspec.Raw(b"[" + string(host) + b"]")
        chosen = any(_has(fields, *path.split(".")) for path in router.chosen_by)
        if chosen or not _put(fields, listed, *router.pin.split(".")):
            return None
        tail = encode_members(fields).removeprefix(_PROMPT)
    else:
        fields = decode_members(head.removesuffix(b",") + b"}")
        if "model" not in fields:
            return None
        fields["model"] = msgspec.Raw(bytes(fields["model"])[:-1] + b":" + host.encode() + b'"')
        head = encode_members(fields)[:-1] + (b"," if head.endswith(b",") else b"")
    envelope = msgspec.structs.replace(rendered.envelope, head=head, tail=tail)
    return msgspec.structs.replace(rendered, envelope=envelope)


#: In place of the prompt, before the fields that follow it.
_PROMPT = b'{"":0'


def _has(fields: Members, name: str, *inner: str) -> bool:
    """Whether there is a member on a path."""
    if not inner or name not in fields:
        return name in fields
    raw = bytes(fields[name])
    return raw.startswith(b"{") and _has(decode_members(raw), *inner)


def _put(fields: Members, value: msgspec.Raw, name: str, *inner: str) -> bool:
    """Adds a member on a path; False if it exists, or if another value is in its way."""
    if not inner:
        return fields.setdefault(name, value) is value
    raw = bytes(fields.get(name, b"{}"))
    members = decode_members(raw) if raw.startswith(b"{") else {}
    if not raw.startswith(b"{") or not _put(members, value, *inner):
        return False
    fields[name] = msgspec.Raw(encode_members(members))
    return True
