"""What a provider's answers say in its own words: counts, reasons to stop, errors."""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora import errors
from anaphora.canonical import dumps
from anaphora.catalog import Dialect
from anaphora.catalog.dialects import ErrorKind, ErrorShape, UsageShape
from anaphora.errors import Upstream
from anaphora.values import Reply, Usage
from anaphora.wire.errors import error_class, overflow_class
from anaphora.wire.reading import DECODE_ERRORS
from anaphora.wire.replies import partition, positive_counts, valid_count

KINDS: dict[ErrorKind, type[Upstream]] = {
    "rate_limit": errors.RateLimited,
    "quota": errors.QuotaExhausted,
    "overloaded": errors.Overloaded,
    "auth": errors.Unauthenticated,
    "permission": errors.Forbidden,
    "not_found": errors.NotFound,
    "context_overflow": errors.ContextOverflow,
    "too_large": errors.TooLarge,
    "content_refused": errors.ContentRefused,
    "invalid": errors.RequestRejected,
}
_NAMES = {kind: name for name, kind in KINDS.items()}


def read_counts(usage: Usage, shape: UsageShape | None) -> Usage:
    """The counts, with those that stand where only this provider puts them."""
    if shape is None or usage.raw is None:
        return usage
    if usage.read is not None and (
        shape.written_ttl is None if usage.written else not shape.written
    ):
        return usage  # the wire's own places say it all
    told = _object(usage.raw)
    total = usage.input
    read, written = usage.read, usage.written
    if read is None:
        read = _count(told, shape.read)
    if not written and (wrote := _count(told, shape.written)) is not None:
        written = positive_counts({"unsplit": wrote})
    if written and shape.written_ttl is not None:
        written = {shape.written_ttl: sum(written.values())}
    if (read, written) == (usage.read, usage.written):
        return usage
    if total is None:
        uncached = _count(told, shape.uncached)
        return msgspec.structs.replace(usage, uncached=uncached, read=read, written=written)
    uncached, read, written, overlap = partition(total, read, written)
    return msgspec.structs.replace(
        usage, uncached=uncached, read=read, written=written, overlap=usage.overlap + overlap
    )


def write_counts(raw: str, usage: Usage, shape: UsageShape) -> str:
    """A usage object of the wire's, with the counts where this provider puts them, too."""
    told = _object(raw)
    for places, tokens in (
        (shape.read, usage.read),
        (shape.uncached, usage.uncached),
        (shape.written, usage.written_total),
    ):
        if tokens is not None:
            for place in places:
                _put(told, place, tokens)
    return dumps(told).decode()


def read_stops(reply: Reply, dialect: Dialect) -> Reply:
    """The reply with the reason to stop that the provider's own word means."""
    if reply.stop != "other" or reply.stop_raw not in dialect.stops:
        return reply
    return msgspec.structs.replace(reply, stop=dialect.stops[reply.stop_raw])


def find_error(body: bytes | str, shape: ErrorShape, status: int = 200) -> Upstream | None:
    """The error that an answer tells in the provider's own form; None where there is none."""
    if isinstance(body, bytes) and dumps(shape.at) not in body and b"\\u" not in body:
        return None  # nearly every answer: there is no such field, however it may be spelt
    try:
        whole = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        told = msgspec.json.decode(whole[shape.at], type=dict[str, Any])
    except (*DECODE_ERRORS, KeyError):
        return None
    found = told.get(shape.code)
    code = str(found) if isinstance(found, str | int) and not isinstance(found, bool) else None
    if code is None or code in shape.fine:
        return None
    if code not in shape.kinds and status >= 400 and shape.at == "error":
        return None  # the wire's own reader knows more of it
    if code in shape.kinds:
        kind = KINDS[shape.kinds[code]]
    else:
        kind = error_class(status if status >= 400 else 500, None, {})
    message = told.get(shape.message)
    said = message if isinstance(message, str) and message else f"code {code}"
    return overflow_class(kind, said)(said, status=status, code=code)


def write_error(error: Upstream, shape: ErrorShape) -> bytes | None:
    """The error in the provider's own form; None where it has no code for it."""
    name = _NAMES.get(type(error))
    code = error.code if shape.kinds.get(error.code or "") == name else None
    if code is None:
        code = next((code for code, kind in shape.kinds.items() if kind == name), None)
    if code is None:
        return None
    said = int(code) if code.isdigit() and not shape.texts else code
    return dumps({shape.at: {shape.code: said, shape.message: str(error)}})


def _object(raw: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except DECODE_ERRORS:
        return {}


def _count(told: Any, places: tuple[str, ...]) -> int | None:
    for place in places:
        found = told
        for level in place.split("."):
            found = found.get(level) if isinstance(found, dict) else None
        if isinstance(found, int) and not isinstance(found, bool):
            return valid_count(found)
    return None


def _put(told: dict[str, Any], place: str, tokens: int) -> None:
    *outer, name = place.split(".")
    for level in outer:
        told = told.setdefault(level, {})
    told[name] = tokens
