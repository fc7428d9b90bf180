"""Calls at clouds that are not read as others are: the bill of InvokeModel with bodies of other
makers, which is in headers or, for a stream, in its last event; and signed requests."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec

from anaphora.values import Usage
from anaphora.wire.eventstream import CONTENT_TYPE, FrameDecoder

if TYPE_CHECKING:
    from .calls import Headers

#: Headers and scheme of signed requests.
_SIGNED_HEADERS = ("x-amz-content-sha256", "signature", "signature-input")
SIGNED_SCHEME = "AWS4-"

_COUNT = "x-amzn-bedrock-{}-token-count"
#: In the last event of a stream.
_METRICS = "amazon-bedrock-invocationMetrics"


def is_signed(headers: Headers) -> bool:
    """Whether a request carries a signature of its body, which a change would invalidate."""
    return any(
        name in _SIGNED_HEADERS or (name == "authorization" and value.startswith(SIGNED_SCHEME))
        for name, value in headers
    )


def billed_usage(headers: Headers, answer: bytes) -> Usage | None:
    """The usage that Bedrock itself reports of an InvokeModel call."""
    found = dict(headers)
    names = ("input", "output", "cache-read-input", "cache-write-input")
    counts: list[Any] = [found.get(_COUNT.format(name)) for name in names]
    if counts[0] is None and found.get("content-type", "").startswith(CONTENT_TYPE):
        metrics = _metrics(answer)
        counts = [metrics.get(f"{name}TokenCount") for name in ("input", "output")]
        counts += [metrics.get(f"cache{name}InputTokenCount") for name in ("Read", "Write")]
    uncached, output, read, written = map(_count, counts)
    if uncached is None and output is None:
        return None
    return Usage(
        uncached=uncached,
        output=output or 0,  # an embedding has none
        read=read,
        written=None if written is None else {"unsplit": written} if written else {},
    )


def _metrics(stream: bytes) -> dict[str, Any]:
    for frame in reversed(FrameDecoder().feed(stream)):
        try:
            event = base64.b64decode(msgspec.json.decode(frame.payload)["bytes"])
            metrics = msgspec.json.decode(event)[_METRICS]
        except (msgspec.DecodeError, ValueError, LookupError, TypeError):
            continue
        if isinstance(metrics, dict):
            return metrics
    return {}


def _count(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value)
    return value if type(value) is int and value >= 0 else None
