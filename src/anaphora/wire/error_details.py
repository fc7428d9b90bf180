"""Fields of a provider's error object that callers of the same wire may see: one table per wire.

The daemon encodes a provider's error again. Fields that are not in the table of the wire are left
out: request ids, ids of users and projects, and unknown fields. Texts are unchanged; secrets in
them are masked by the code that shows them.

    shown_fields("openai", {"message": "No.", "type": "invalid_request_error", "user_id": "u1"})
    {"message": "No.", "type": "invalid_request_error"}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from anaphora.canonical import dumps

from .reading import DECODE_ERRORS

Json: TypeAlias = Any
#: Returns the part of a value that may be shown; None if there is none.
Shown: TypeAlias = Callable[[Json], Json]

#: The maximum size of one error's fields, as JSON.
MOST_BYTES = 8 * 1024
_GOOGLE_TYPE = "type.googleapis.com/google.rpc."


def _plain(value: Json) -> Json:
    """A text, a number or a flag."""
    return value if isinstance(value, str | int | float) else None


def _object(fields: Mapping[str, Shown]) -> Shown:
    """An object with these fields; `*` stands for any name."""

    def shown(value: Json) -> Json:
        if not isinstance(value, dict):
            return None
        kept: dict[str, Json] = {}
        for name, inner in value.items():
            show = fields.get(name) or fields.get("*")
            if show is None:
                continue
            if inner is None:
                kept[name] = None
            elif (part := show(inner)) is not None:
                kept[name] = part
        return kept

    return shown


def _list(show: Shown) -> Shown:
    def shown(value: Json) -> Json:
        if not isinstance(value, list):
            return None
        return [part for part in map(show, value) if part is not None]

    return shown


def _plain_fields(names: str) -> dict[str, Shown]:
    return dict.fromkeys(names.split(), _plain)


def _either(*ways: Shown) -> Shown:
    """The result of the first function that shows something."""

    def shown(value: Json) -> Json:
        return next((part for part in (show(value) for show in ways) if part is not None), None)

    return shown


def _json_text(show: Shown) -> Shown:
    """A text that holds JSON, reduced by `show`; any other text unchanged."""

    def shown(value: Json) -> Json:
        if not isinstance(value, str):
            return show(value)
        try:
            inner = msgspec.json.decode(value)
        except DECODE_ERRORS:
            return value
        if not isinstance(inner, dict | list):
            return value
        part = show(inner)
        if part is None or part == inner:
            return None if part is None else value
        return dumps(part).decode()

    return shown


#: The error of the provider behind a gateway, in the form of any wire.
_INNER = _object(
    _plain_fields("type message code status param reason")
    | {"error": _either(_object(_plain_fields("type message code status param")), _plain)}
)
#: OpenAI's form, with the fields of hosts that copy it: Azure, Groq, llama.cpp, OpenRouter.
_OPENAI = _object(
    _plain_fields("message type code status failed_generation n_prompt_tokens n_ctx details")
    | {
        "param": _either(_plain, _list(_plain)),
        "innererror": _object(
            {
                "code": _plain,
                "content_filter_result": _object(
                    {"*": _object(_plain_fields("filtered severity detected"))}
                ),
            }
        ),
        "metadata": _object(
            {
                "raw": _json_text(_either(_INNER, _list(_INNER))),
                "provider_name": _plain,
                "reasons": _list(_plain),
            }
        ),
    }
)
_ANTHROPIC = _object(
    _plain_fields("type message") | {"details": _object(_plain_fields("error_code"))}
)
_GOOGLE_DETAILS: dict[str, Shown] = {
    name: _object({"@type": _plain} | fields)
    for name, fields in {
        "QuotaFailure": {
            "violations": _list(
                _object(
                    _plain_fields("quotaMetric quotaId quotaValue description")
                    | {"quotaDimensions": _object(_plain_fields("location region model"))}
                )
            )
        },
        "RetryInfo": _plain_fields("retryDelay"),
        "Help": {"links": _list(_object(_plain_fields("description url")))},
        "ErrorInfo": _plain_fields("reason domain"),
        "BadRequest": {
            "fieldViolations": _list(_object(_plain_fields("field description reason")))
        },
        "LocalizedMessage": _plain_fields("locale message"),
    }.items()
}


def _google_detail(value: Json) -> Json:
    kind = value.get("@type") if isinstance(value, dict) else None
    show = _GOOGLE_DETAILS.get(str(kind).removeprefix(_GOOGLE_TYPE))
    return None if show is None else show(value)


_GOOGLE = _object(_plain_fields("code message status") | {"details": _list(_google_detail)})

_TABLES: dict[str, Shown] = {"anthropic": _ANTHROPIC, "openai": _OPENAI, "gemini": _GOOGLE}


def shown_fields(form: str, error: Json) -> dict[str, Any] | None:
    """The fields of an error object that may be shown; None if there are none. `form`: anthropic,
    openai (both wires) or gemini."""
    shown: dict[str, Any] | None = _TABLES[form](error)
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


def within_limit(
    fields: dict[str, Any], limit: int = MOST_BYTES
) -> tuple[dict[str, Any], list[str]]:
    """The fields that fit, short ones first, and the names of those that do not. Elements of a list
    are taken one by one."""
    if len(dumps(fields)) <= limit:
        return fields, []
    kept: dict[str, Any] = {}
    left_out: list[str] = []
    size = 2
    for name in sorted(fields, key=lambda each: len(dumps(fields[each]))):
        value = fields[name]
        parts = value if isinstance(value, list) else [value]
        fitting = []
        for part in parts:
            more = len(dumps(part)) + len(name) + 4
            if size + more > limit:
                continue
            fitting.append(part)
            size += more
        if len(fitting) < len(parts):
            left_out.append(name)
        if fitting:
            kept[name] = fitting if isinstance(value, list) else fitting[0]
    return {name: kept[name] for name in fields if name in kept}, left_out
