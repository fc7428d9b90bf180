"""Names on the wire. Gemini writes camelCase and takes snake_case as well."""

from __future__ import annotations

import re

import msgspec

from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS, ErrorFactory, Members, request_error

WIRE = "gemini"
#: How this wire had put something that other wires put otherwise: nothing is lost with it.
FORM = "gemini.form"
#: Whose blocks, files and tools mean something here.
OWN = (WIRE, "google")

_UNDERSCORE = re.compile(r"(?<=[a-z0-9])_([a-z0-9])")
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def camel(name: str) -> str:
    """`system_instruction` is `systemInstruction`."""
    return _UNDERSCORE.sub(lambda found: found[1].upper(), name) if "_" in name else name


def named(data: bytes | msgspec.Raw | Members, path: str, fail: ErrorFactory) -> Fields:
    """An object of the API. In a request its fields may go by either name."""
    fields = Fields(data, path, fail)
    if fail is request_error:
        fields.rename(camel)
    return fields


def nested(fields: Fields, name: str) -> Fields | None:
    """A field that is an object of the API itself; None when it is missing or null."""
    raw = fields.raw(name)
    if raw is None or raw == b"null":
        return None
    return named(raw, f"{fields.path}.{name}", fields.failure)


def elements(fields: Fields, name: str) -> list[msgspec.Raw]:
    """A list. The API takes a single element for a list of one."""
    raw = fields.raw(name)
    if raw is None or raw == b"null":
        return []
    if raw[:1] == b"{":
        return [msgspec.Raw(raw)]
    try:
        return _list(raw)
    except DECODE_ERRORS as problem:
        raise fields.fail(f"expected a list: {problem}", name) from None
