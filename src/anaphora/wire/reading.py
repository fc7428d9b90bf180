"""Reads foreign JSON: raw members and elements, errors with their path, lone surrogates."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import (
    Any,
    ParamSpec,
    TypeAlias,
    TypeVar,
    get_args,
)

import msgspec
from msgspec.structs import force_setattr

from anaphora.errors import AnaphoraError, InvalidRequest, Parse
from anaphora.values import Conversation, Extras, Message, Part, Role
from anaphora.values.fields import FrozenExtras

T = TypeVar("T")
P = ParamSpec("P")

#: The members of a JSON object, each as raw JSON.
Members: TypeAlias = dict[str, msgspec.Raw]

#: Errors of decoding foreign bytes: invalid JSON, invalid UTF-8, nesting too deep.
DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)

#: Makes the error for a reason and a path: `Parse` for replies, `InvalidRequest` for requests.
ErrorFactory = Callable[[str, str], AnaphoraError]

decode_members = msgspec.json.Decoder(Members).decode
decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_optional_elements = msgspec.json.Decoder(list[msgspec.Raw] | None).decode
decode_text = msgspec.json.Decoder(str).decode
decode_optional_text = msgspec.json.Decoder(str | None).decode
_encode = msgspec.json.Encoder().encode


def _message(role: Role, number: int) -> Message:
    message = _NEW[role]()
    force_setattr(message, "id", f"m{number}")
    return message


#: Make a message of a role without id and parts, and one of the first messages without parts. These
#: are copied, since a new one would be checked.
_NEW: dict[Role, Callable[[], Message]] = {
    role: Message(role=role, parts=()).__copy__  # type: ignore[attr-defined]
    for role in get_args(Role)
}
_FIRST: dict[Role, list[Callable[[], Message]]] = {
    role: [_message(role, number).__copy__ for number in range(128)]  # type: ignore[attr-defined]
    for role in _NEW
}


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────


def reply_error(reason: str, path: str) -> Parse:
    return Parse(reason, path=path)


def request_error(reason: str, path: str) -> InvalidRequest:
    return InvalidRequest(reason, path=path)


def decode_reason(problem: Exception, data: bytes | msgspec.Raw = b"") -> str:
    """Why `data` cannot be decoded, without quoting it. For a lone surrogate near the end, msgspec
    reports truncated input."""
    if isinstance(problem, UnicodeDecodeError):
        return f"a value is not UTF-8 at its byte {problem.start}"
    if isinstance(problem, RecursionError):
        return "nested too deeply"
    reason = str(problem)
    if any(word in reason for word in ("truncated", "surrogate", "hex escape")):
        return lone_surrogate(bytes(data)) or reason
    return reason


def converts_errors(fail: ErrorFactory) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates readers of whole bodies, so that they raise only our errors."""

    def decorate(read: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(read)
        def reading(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return read(*args, **kwargs)
            except DECODE_ERRORS as problem:
                raise fail(decode_reason(problem), "$") from None

        return reading

    return decorate


def reason_and_path(problem: Exception) -> tuple[str, str]:
    """Why a value cannot be decoded, and where in it: msgspec names the path in its message."""
    reason, _, path = decode_reason(problem).partition(" - at `$")
    return reason, path.rstrip("`")


# ── Members, elements, texts ─────────────────────────────────────────────────────────────────────


def extras_of(wire: str, members: Members) -> Extras | None:
    """Members as extras of that wire; None if there are none."""
    return FrozenExtras({wire: _encode(members).decode()}) if members else None


def encode_members(members: Members) -> bytes:
    """A JSON object of these members, each unchanged."""
    return _encode(members)


def object_members(raw: bytes | msgspec.Raw, path: str, fail: ErrorFactory) -> Members:
    """The members of an object; raises for any other value."""
    try:
        return decode_members(raw)
    except DECODE_ERRORS as problem:
        raise fail(f"not a JSON object: {decode_reason(problem, raw)}", path) from None


def list_elements(raw: bytes | msgspec.Raw, path: str, fail: ErrorFactory) -> list[msgspec.Raw]:
    """The elements of a list; none if it is null."""
    try:
        return _decode_optional_elements(raw) or []
    except DECODE_ERRORS:
        return decode_value(raw, list[msgspec.Raw] | None, path, fail) or []


def decode_value(raw: bytes | msgspec.Raw, kind: Any, path: str, fail: ErrorFactory) -> Any:
    """One value of that type; the error names the path."""
    try:
        return _decoder(kind).decode(raw)
    except DECODE_ERRORS as problem:
        reason, inner = reason_and_path(problem)
        raise fail(reason, path + inner) from None


_decoder = functools.cache(msgspec.json.Decoder)


def known_text(members: Members, name: str) -> str:
    """A member that is a text; empty for any other."""
    raw = bytes(members.get(name, b""))
    return str(msgspec.json.decode(raw)) if raw.startswith(b'"') else ""


def numbered(messages: list[tuple[Role, tuple[Part, ...]]], first: int = 0) -> Conversation:
    """Messages of these roles and parts: `m0`, `m1`, …, or from a later number on. The parts were
    made here, of their exact types, so the messages are not checked."""
    read: list[Message] = []
    made = len(_FIRST["user"])
    for number, (role, parts) in enumerate(messages, first):
        message = _FIRST[role][number]() if number < made else _message(role, number)
        force_setattr(message, "parts", parts)
        read.append(message)
    return Conversation.of_ids(read)


find_surrogate = re.compile(rb"\\u[dD]").search
#: Every escape sequence of a JSON text; the group is a lone surrogate.
_ESCAPES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|\\.",
    re.DOTALL,
)


def replace_lone_surrogates(data: bytes) -> bytes:
    """JSON in which every lone surrogate is U+FFFD."""
    if not find_surrogate(data):
        return data
    return _ESCAPES.sub(lambda found: b"\\ufffd" if found[1] else found[0], data)


def replaces_lone_surrogates(read: Callable[[bytes], T]) -> Callable[[bytes], T]:
    """Decorates readers of whole replies: a body that cannot be read is read without them."""

    @functools.wraps(read)
    def reading(body: bytes) -> T:
        try:
            return read(body)
        except Parse:
            replaced = replace_lone_surrogates(body)
            if replaced == body:
                raise
        return read(replaced)

    return reading


def lone_surrogate(data: bytes) -> str:
    """The first lone surrogate and its position, as a sentence; empty if there is none. A pair that
    is cut off at the end of the data does not count."""
    for found in _ESCAPES.finditer(data) if find_surrogate(data) else ():
        if found[1] and data.find(b'"', found.end()) >= 0:
            code = found[1][2:].decode().upper()
            return f"lone surrogate U+{code} at byte {found.start()} is not valid Unicode"
    return ""


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*("?)|[{}\[\],]', re.DOTALL)
#: An incomplete escape at the end of a truncated text.
_HALF_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_CLOSING = {b"{": b"}", b"[": b"]"}


def closed_json(data: bytes) -> bytes | None:
    """Truncated JSON, closed: without the last member or element if that cannot be read. None if
    nothing can be read. `data` should be short: all of its structure is scanned."""
    open_text: int | None = None
    closing: list[bytes] = []
    last_comma: tuple[int, bytes] | None = None
    for token in _TOKEN.finditer(data):
        first = token[0][:1]
        if first == b'"':
            if not token[1]:
                open_text = token.start()
        elif first == b",":
            last_comma = token.start(), b"".join(reversed(closing))
        elif first in _CLOSING:
            closing.append(_CLOSING[first])
        elif closing:
            closing.pop()
    whole = data
    if open_text is not None:
        text = data[open_text:].decode("utf-8", "ignore").encode()
        whole = data[:open_text] + _HALF_ESCAPE.sub(b"", text) + b'"'
    found = [whole + b"".join(reversed(closing))]
    if last_comma is not None:
        found.append(data[: last_comma[0]] + last_comma[1])
    return next((each for each in found if _is_json(each)), None)


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True
