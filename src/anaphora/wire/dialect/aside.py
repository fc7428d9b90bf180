"""What a request says although its provider has no field for it.

A row may say that a provider takes a parameter nowhere; then a call that asks for it is rendered
without, and told so. A request that came to the provider with it all the same is another matter:
whoever sent it meant it, so it goes back the way it came, as any field without a name here.
"""

from __future__ import annotations

import msgspec

from anaphora.canonical import string
from anaphora.catalog import Dialect
from anaphora.prompt import Call
from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS, request_error

_Members = dict[str, msgspec.Raw]


def set_aside(body: bytes, dialect: Dialect) -> tuple[bytes, _Members]:
    """The body without the fields that the provider has no place for, and these."""
    names = [name for name in dialect.fields if dialect.fields[name] is False]
    names = [name for name in names if name != "tool_choice" and string(name) in body]
    if not names:
        return body, {}
    try:
        members = msgspec.json.decode(body, type=_Members)
    except DECODE_ERRORS:
        return body, {}  # the wire knows better what is wrong with it
    aside = {name: members.pop(name) for name in names if name in members}
    return msgspec.json.encode(members), {
        name: raw for name, raw in aside.items() if bytes(raw) != b"null"
    }


def take_along(call: Call, dialect: Dialect, aside: _Members) -> Call:
    """The call, with what was set aside among the fields that go back as they came."""
    if not aside:
        return call
    extras = call.extras or {}
    fields = Fields(extras.get(dialect.wire, "{}"), f"extras.{dialect.wire}", request_error)
    for name, raw in aside.items():
        fields.put(name, bytes(raw))
    return msgspec.structs.replace(call, extras={**extras, **(fields.rest_for(dialect.wire) or {})})
