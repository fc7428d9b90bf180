"""Requests whose model is in the path instead of the body, as clouds have them.

A dialect's `path` may name `{model}` and `{method}`, its body lacks the fields of `omitted` and has
those of `constants`. Other placeholders are values of an account, which the client fills in.
"""

from __future__ import annotations

import re

import msgspec

from anaphora.canonical import dumps
from anaphora.catalog import Dialect
from anaphora.errors import InvalidRequest
from anaphora.rendered import Envelope
from anaphora.wire.reading import Members, encode_members, object_members, request_error

#: Names of models that may be a step of a path.
_STEP = re.compile(r"[A-Za-z0-9._@~:+-]+\Z")
_FIELD = re.compile(r"\{(\w+)\}")
_GEMINI = "{model}:{method}"


def path_for(dialect: Dialect, plain: str, model: str, *, stream: bool) -> str:
    """The path of a request; `plain` is the wire's own."""
    path = dialect.path
    if not path or "{" not in path:
        return path or plain
    if not dialect.methods:
        path = path.replace(_GEMINI, plain.rpartition("/")[2])
    if "{model}" not in path:
        return path
    if not _STEP.match(model):
        raise InvalidRequest(
            "is part of the path: letters, digits and . _ @ ~ : + - only", path="model"
        )
    method = dialect.methods.get("stream" if stream else "once", "")
    return path.replace("{model}", model).replace("{method}", method)


def _pattern(path: str) -> str:
    found = ""
    for index, text in enumerate(_FIELD.split(path.partition("?")[0])):
        named = f"(?P<{text}>[^/]+)" if text in ("model", "method") else "[^/]+"
        found += named if index % 2 else re.escape(text)
    return found + r"\Z"


def names_model(dialect: Dialect) -> bool:
    """Whether the path names the model, in another way than the wire's own."""
    return "{model}" in dialect.path and (bool(dialect.methods) or _GEMINI not in dialect.path)


def from_path(members: Members, dialect: Dialect, path: str) -> Members:
    """The members of a request's body with what its path says; without the constants."""
    if not names_model(dialect):
        return members
    found = re.search(_pattern(dialect.path), path.partition("?")[0])
    own: Members = {}
    if found is not None:
        if bytes(members.get("model", b"null")) == b"null":
            own["model"] = msgspec.Raw(dumps(found["model"].replace("%40", "@")))
        is_stream = found.groupdict().get("method") == dialect.methods.get("stream", "")
        if is_stream and "stream" not in members:
            own["stream"] = msgspec.Raw(b"true")
    fixed = {name: dumps(value) for name, value in dialect.constants.items()}
    rest = {name: raw for name, raw in members.items() if bytes(raw) != fixed.get(name)}
    return rest | own


def body_from_path(body: bytes, dialect: Dialect, path: str) -> bytes:
    if not names_model(dialect):
        return body
    members = object_members(body, "$", request_error)
    return encode_members(from_path(members, dialect, path))


def changed_head(envelope: Envelope, dialect: Dialect) -> bytes:
    """The beginning of a body without the fields that the dialect omits."""
    head = envelope.head
    if not dialect.omitted or not head.endswith(b","):
        return head
    members = object_members(head[:-1] + b"}", "$", request_error)
    rest = encode_members({n: raw for n, raw in members.items() if n not in dialect.omitted})
    return rest[:-1] + (b"," if len(rest) > 2 else b"")


def changed_tail(envelope: Envelope, dialect: Dialect) -> bytes:
    """The end of a body without the fields that the dialect omits, and with its constants."""
    tail = envelope.tail
    if not dialect.omitted and not dialect.constants:
        return tail
    members = object_members(b"{" + tail[1:], "$", request_error) if tail[:1] == b"," else {}
    changed = {n: raw for n, raw in members.items() if n not in dialect.omitted}
    for name, value in dialect.constants.items():
        changed.setdefault(name, msgspec.Raw(dumps(value)))
    if changed.keys() == members.keys():
        return tail
    rest = encode_members(changed)
    return b"," + rest[1:] if len(rest) > 2 else b"}"
