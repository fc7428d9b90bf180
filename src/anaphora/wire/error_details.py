"""The plain fields of a provider's error object that callers of the same wire may see, and the
message of an error that another one wraps.

The daemon encodes a provider's error again. Request ids, ids of users and projects, and unknown
fields are left out. Texts are unchanged; secrets in them are masked by the code that shows them.

    shown_fields("openai", {"message": "No.", "type": "invalid_request_error", "user_id": "u1"})
    {"message": "No.", "type": "invalid_request_error"}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from .reading import DECODE_ERRORS

Json: TypeAlias = Any

_FIELDS = {
    "anthropic": ("type", "message"),
    "openai": ("message", "type", "param", "code"),
    "gemini": ("code", "message", "status"),
}


def shown_fields(form: str, error: Json) -> dict[str, Any] | None:
    """The fields of an error object that may be shown; None if there are none. `form`: anthropic,
    openai (both wires) or gemini."""
    if not isinstance(error, dict):
        return None
    plain = str | int | float | None
    known = _FIELDS[form]
    shown = {n: value for n, value in error.items() if n in known and isinstance(value, plain)}
    return shown or None


def inner_message(fields: Mapping[str, Any]) -> str | None:
    """The message of the error that another one wraps: a gateway's metadata, or a message that is
    an error in JSON."""
    metadata = fields.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    for text in (raw, fields.get("message")):
        found = _message_in(text)
        if found is not None:
            return found
    # A gateway's own message only says that there is another one.
    return raw if isinstance(raw, str) and raw.strip() else None


def _message_in(value: Json) -> str | None:
    """The message of an error object, which may be a text."""
    if isinstance(value, str):
        if not value.lstrip().startswith(("{", "[")):
            return None
        try:
            value = msgspec.json.decode(value)
        except DECODE_ERRORS:
            return None
    if isinstance(value, list):
        value = value[0] if value else None
    if not isinstance(value, dict):
        return None
    inner = value.get("error")
    for found in (inner.get("message") if isinstance(inner, dict) else inner, value.get("message")):
        if isinstance(found, str) and found:
            return found
    return None
