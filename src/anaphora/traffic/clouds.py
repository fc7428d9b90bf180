"""Calls at the addresses of clouds: the wire of a path, and the bill of calls that are not read.

Bedrock's paths name the model and the operation. InvokeModel takes the body of the model's maker;
only Claude's is read. For other models the bill is in headers or, for a stream, in its last event.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Any

import msgspec

from anaphora.catalog.names import hosted_model, is_opaque
from anaphora.values import Usage
from anaphora.wire.eventstream import CONTENT_TYPE, FrameDecoder

if TYPE_CHECKING:
    from .calls import Headers

BEDROCK = "bedrock"
#: The model may be an ARN with slashes.
_AT_BEDROCK = re.compile(
    r"/model/(.+)/(invoke|converse)(?:-with-response-stream|-stream)?\Z", re.DOTALL
)
_CLAUDE_AT_VERTEX = re.compile(
    r"/publishers/anthropic/models/(?!count-tokens:)[^/]+:(?:r|streamR)awPredict\Z"
)

#: Headers and scheme of signed requests.
_SIGNED_HEADERS = ("x-amz-content-sha256", "signature", "signature-input")
SIGNED_SCHEME = "AWS4-"

_COUNT = "x-amzn-bedrock-{}-token-count"
#: In the last event of a stream.
_METRICS = "amazon-bedrock-invocationMetrics"


def wire_of(path: str) -> str | None:
    """The wire of a model call at a decoded path of a cloud."""
    if _CLAUDE_AT_VERTEX.search(path) is not None:
        return "anthropic"
    found = _AT_BEDROCK.search(path)
    if found is None:
        return None
    return "anthropic" if found[2] == "invoke" and _may_be_claude(found[1]) else BEDROCK


def unread_model(path: str) -> str:
    """The model of a call whose body is not read; empty for all others."""
    found = _AT_BEDROCK.search(path)
    if found is None or found[2] != "invoke" or _may_be_claude(found[1]):
        return ""
    return found[1]


def _may_be_claude(model: str) -> bool:
    hosted = hosted_model(BEDROCK, model)
    return is_opaque(model) or (hosted is not None and hosted[0] == "anthropic")


def provider_at(path: str, provider: str) -> str:
    """The provider whose rules and prices hold for a call: at Vertex, Claude has Anthropic's."""
    return "anthropic" if provider == "google" and "/publishers/anthropic/" in path else provider


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
        output=output,
        read=read,
        written=None if written is None else {"unsplit": written} if written else {},
    )


def _metrics(stream: bytes) -> dict[str, Any]:
    for frame in reversed(FrameDecoder().feed(stream)):
        try:
            event = base64.b64decode(msgspec.json.decode(frame.payload)["bytes"])
            metrics = msgspec.json.decode(event)[_METRICS]
        except (msgspec.DecodeError, binascii.Error, LookupError, TypeError):
            continue
        if isinstance(metrics, dict):
            return metrics
    return {}


def _count(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value)
    return value if type(value) is int and value >= 0 else None
