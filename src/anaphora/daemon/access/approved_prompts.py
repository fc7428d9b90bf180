"""Fingerprint of everything in a request that a model reads as instructions.

    prompt_fingerprint("anthropic", members, tools=["search"])      # "prompt2:…"

It covers every field of the request and every member of its messages, except the content of user,
model and tool messages, and parameters without text. Unknown fields are covered. White space, the
order of top-level fields and cache markers do not change it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from blake3 import blake3

from anaphora import wire as wires
from anaphora.errors import NotGranted
from anaphora.wire.gemini.types import camel
from anaphora.wire.markers import MARKER_FORMS
from anaphora.wire.reading import (
    DECODE_ERRORS,
    Members,
    decode_elements,
    decode_members,
    decode_reason,
    encode_members,
    known_text,
    request_error,
)
from anaphora.wire.tables import RequestTable, request_table

from .grants import PROMPT_PREFIX

#: Roles whose content is not covered, spelled exactly like this. Every other role is system text.
_ROLES = frozenset({"user", "assistant", "tool", "function", "model"})
#: Roles whose messages name a tool.
_OF_TOOLS = frozenset({"tool", "function"})
_NAMES = ("name", "tool_name")
#: Fields of any wire that no model reads, and a parameter of vLLM.
_UNREAD = frozenset({"cache_salt"}).union(
    field.name
    for name in wires.WIRES
    for field in request_table(name).fields.values()
    if field.unread
)
_NAME = re.compile(r"[A-Za-z0-9_.:/+-]{0,256}")
_TTLS = (None, "5m", "30m", "1h", "12h")
#: Largest field, in bytes, whose covered bytes are memoized.
_MOST_KEPT = 65_536
_EMPTY: tuple[Any, ...] = (None, [], {}, "")


def prompt_fingerprint(wire: str, members: Members, tools: Collection[str] = ()) -> str:
    """The fingerprint of a request. `wire` is a name of `wire.WIRES`, `tools` are the names of the
    functions in it.

    Raises `NotGranted` for a message with a name: models read names as instructions, and each
    message can have a different one. Tool results may name a function of the request.
    """
    digest, table = blake3(), request_table(wire)
    members = {_own_name(table, name): raw for name, raw in members.items()}
    for name in sorted(members):
        raw = members[name]
        if name == table.messages:
            _cover_messages(table, name, raw, tools, digest)
            continue
        if name in _UNREAD:
            continue
        data = bytes(raw)
        text = (_known_covered if len(data) <= _MOST_KEPT else _covered)(wire, name, data)
        if text:
            _update(digest, name, text)
    return PROMPT_PREFIX + digest.hexdigest()


def _own_name(table: RequestTable, name: str) -> str:
    """The name of a field or member as the provider's documents spell it."""
    return camel(name) if table.rename is camel else name


def _covered(wire: str, name: str, raw: bytes) -> bytes:
    """The bytes that a field adds to the fingerprint, empty if none."""
    value = _decode(raw, name)
    if value in _EMPTY:
        return b""
    table = request_table(wire)
    field = None if "." in name else table.fields.get(name)
    if field is not None and field.prose_members and isinstance(value, dict):
        params = (field.members or frozenset()) - field.prose_members
        value = {
            key: each
            for key, each in value.items()
            if each not in _EMPTY and not (_own_name(table, key) in params and _holds_no_text(each))
        }
        return _encode(value) if value else b""
    is_param = name in table.params if field is None else field.is_param or field.prose_members
    if is_param:
        return b"" if _holds_no_text(value) else _encode(value)
    return _encode(_unmarked(value))


#: Memoized, because every call sends the same tools.
_known_covered = functools.lru_cache(maxsize=64)(_covered)


def _cover_messages(
    table: RequestTable,
    name: str,
    raw: msgspec.Raw,
    tools: Collection[str],
    digest: blake3,
) -> None:
    start = bytes(memoryview(raw)[:1])
    if start == b'"':
        return  # the text of a user
    messages = [raw] if start == b"{" else []
    if start == b"[":
        try:
            messages = decode_elements(raw)
        except DECODE_ERRORS as problem:
            raise request_error(decode_reason(problem), f"$.{name}") from None
    for index, message in enumerate(messages):
        _cover_message(table, f"{name}[{index}]", message, tools, digest)


def _cover_message(
    table: RequestTable, path: str, raw: msgspec.Raw, tools: Collection[str], digest: blake3
) -> None:
    """Adds the members of a message, without the content of users, models and tools."""
    if bytes(memoryview(raw)[:1]) != b"{":
        if bytes(memoryview(raw)[:1]) != b'"':
            _update(digest, "message", _encode(_decode(bytes(raw), path)))
        return
    try:
        members = decode_members(raw)
    except DECODE_ERRORS as problem:
        raise request_error(decode_reason(problem), f"$.{path}") from None
    role = known_text(members, "role")
    kind = known_text(members, "type")
    if kind in table.turns and (not role or role in _ROLES):
        return
    is_message = not table.turns or kind in ("", "message")
    implied = table.role_implied and bytes(members.get("role", b"null")) == b"null"
    if not is_message or not (role in _ROLES or implied):
        _update(digest, "system", _encode(_unmarked_message(_decode(bytes(raw), path))))
        return
    rest = {
        key: each
        for key, each in members.items()
        if key != "role" and key not in table.content and bytes(each) != b"null"
    }
    for key in _NAMES:
        if key not in rest:
            continue
        if role not in _OF_TOOLS or known_text(rest, key) not in tools:
            reason = f"{path}.{key}: a message may have no {key}, as the grant approves one prompt"
            raise NotGranted(reason, param=f"{path}.{key}")
        del rest[key]
    if rest:
        _update(digest, role or "user", _encode(_decode(encode_members(rest), path)))


def _unmarked_message(value: Any) -> Any:
    if isinstance(value, dict) and "content" in value:
        return {**value, "content": _unmarked(value["content"])}
    return value


def _unmarked(value: Any) -> Any:
    """The tools or blocks of a list without cache markers."""
    if not isinstance(value, list):
        return value
    return [
        {key: item for key, item in each.items() if not _is_marker(key, item)}
        if isinstance(each, dict)
        else each
        for each in value
    ]


def _is_marker(key: str, value: Any) -> bool:
    form = MARKER_FORMS.get(key)
    if form is None:
        return False
    if not isinstance(value, dict):
        return value is None
    return (
        value.get(form.member) == form.value
        and value.get("ttl") in _TTLS
        and not set(value).difference((form.member, "ttl"))
    )


def _holds_no_text(value: Any) -> bool:
    """Whether a value contains only numbers and names."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            stack += [*item, *item.values()]
        elif isinstance(item, list):
            stack += item
        elif isinstance(item, str) and _NAME.fullmatch(item) is None:
            return False
    return True


def _decode(raw: bytes, path: str) -> Any:
    try:
        return msgspec.json.decode(raw)
    except DECODE_ERRORS as problem:
        raise request_error(decode_reason(problem), f"$.{path}") from None


#: Equal values give equal bytes: no white space, and escapes only where required.
_encode = msgspec.json.Encoder().encode


def _update(digest: blake3, label: str, data: bytes) -> None:
    digest.update(b"%s %d\n" % (label.encode(), len(data)))
    digest.update(data)
