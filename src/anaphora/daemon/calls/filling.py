"""Puts fields that a request lacks into its bytes, and changes nothing else.

    filled = fill_max_tokens("anthropic", body, members, 2048)
    filled.body, filled.members

Only absent fields (and nulls) are filled: a limit that a request sets is checked, never lowered.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from anaphora import wire as wires
from anaphora.canonical import string
from anaphora.catalog import Profile
from anaphora.daemon.access.grants import LlmGrant
from anaphora.daemon.faces import face_of
from anaphora.wire.gemini.types import camel
from anaphora.wire.reading import Members
from anaphora.wire.spans import MemberSpan, document_span, member_spans

#: The limit of providers that need one, where neither the grant nor the catalog has any.
DEFAULT_MAX_TOKENS = 1024

_NULL = msgspec.Raw(b"null")


class FilledBody(msgspec.Struct, frozen=True, eq=False):
    """A request's bytes, and its fields as they are in them."""

    body: bytes
    members: Members


def max_tokens_to_fill(grant: LlmGrant, profile: Profile) -> int:
    """The limit for a request that sets none: the grant's largest, as far as the model can."""
    known = None if profile.output_tokens is None else profile.output_tokens.value
    limits = [limit for limit in (grant.max_tokens, known) if limit is not None]
    return min(limits, default=DEFAULT_MAX_TOKENS)


def fill_max_tokens(
    wire: str, body: bytes, members: Members, tokens: int, *, profile: Profile | None = None
) -> FilledBody:
    """The request with a limit of its output. `wire` is a name of `wire.WIRES`; the profile says
    which of its two names a Chat host takes."""
    face = face_of(wire)
    inside, name = face.limit_place
    if any(members.get(other, _NULL) != _NULL for other in face.limit_names):
        return FilledBody(body, members)
    if face.limit_names and profile is not None:
        own = profile.max_tokens_field
        name = name if own is None else own.value
    return fill_field(body, members, name, b"%d" % tokens, inside=inside)


def fill_store(wire: str, body: bytes, members: Members) -> FilledBody:
    """The request with `store: false` on a wire whose provider keeps answers by default: for apps
    that may not refer to them."""
    if not wires.features(wire).stores_responses:
        return FilledBody(body, members)
    return fill_field(body, members, "store", b"false")


def fill_field(
    body: bytes, members: Members, name: str, value: bytes, *, inside: str = ""
) -> FilledBody:
    """The request with this field, where it has none or null: at the top, or in the object
    `inside`, which is added where there is none. The field's JSON is `value`."""
    if not inside:
        held = _spelling(members, name)
        if held is None:
            return FilledBody(_append(body, name, value), {**members, name: msgspec.Raw(value)})
        if members[held] != _NULL:
            return FilledBody(body, members)
        span = member_spans(body, document_span(body), "$")[held]
        return FilledBody(_replace(body, span, value), {**members, held: msgspec.Raw(value)})
    outer = _spelling(members, inside)
    if outer is None or members[outer] == _NULL:
        return fill_field(body, members, inside, b'{"%s":%s}' % (name.encode(), value))
    old = bytes(members[outer])
    inner = msgspec.json.decode(old, type=dict[str, msgspec.Raw])
    new = fill_field(old, inner, name, value).body
    if new == old:
        return FilledBody(body, members)
    span = member_spans(body, document_span(body), "$")[outer]
    return FilledBody(_replace(body, span, new), {**members, outer: msgspec.Raw(new)})


def _spelling(members: Members, name: str) -> str | None:
    """The name under which a request has a field: Gemini takes snake_case as well."""
    if name in members:
        return name
    return next((key for key in members if "_" in key and camel(key) == name), None)


def _append(body: bytes, name: str, value: bytes) -> bytes:
    """The document with a member more at its end."""
    end = document_span(body).end - 1
    last = end
    while body[last - 1] in b" \t\n\r":
        last -= 1
    comma = b"" if body[last - 1 : last] == b"{" else b","
    return b'%s%s"%s":%s%s' % (body[:end], comma, name.encode(), value, body[end:])


def _replace(body: bytes, span: MemberSpan, value: bytes) -> bytes:
    return body[: span.start] + value + body[span.end :]


def with_members(body: bytes, members: Members, changes: Mapping[str, bytes]) -> bytes:
    """The body with these fields replaced where it has them, and added at its end where it has
    not. `members` are those that it has; values are JSON."""
    if not changes:
        return body
    span = document_span(body)
    edits: list[tuple[int, int, bytes]] = []
    if any(name in members for name in changes):
        spans = member_spans(body, span, "$")
        edits = [
            (spans[name].start, spans[name].end, value)
            for name, value in changes.items()
            if name in spans
        ]
    added = b"".join(
        b"," + string(name) + b":" + value for name, value in changes.items() if name not in members
    )
    if added:
        end = span.end - 1
        edits.append((end, end, added if members else added[1:]))
    pieces: list[bytes | memoryview] = []
    view, done = memoryview(body), 0
    for start, stop, inserted in sorted(edits):
        pieces += [view[done:start], inserted]
        done = stop
    pieces.append(view[done:])
    return b"".join(pieces)
