"""What passed in a relayed call: whether it can be judged, its answer and its error."""

from __future__ import annotations

import msgspec

from anaphora.analysis.request_log import LoggedCall, counts_tokens
from anaphora.client.transport.decoding import InvalidCompression, UnknownCompression, decoded

from .exchange import RelayedCall, header_of
from .judged_call import CallKind

#: The largest body that is decompressed.
_MOST_DECODED = 64 * 1024 * 1024
_FIRST_ERROR = 400


class _NamedModel(msgspec.Struct):
    model: str = ""


_named = msgspec.json.Decoder(_NamedModel).decode


def kind_of(call: RelayedCall, wire: str, path: str) -> tuple[CallKind, str]:
    """The kind of a call, and why it is not judged. A program may close the connection when it has
    got all it needs, so a cancelled call may have a complete answer."""
    if call.outcome != "complete" and not call.pieces and call.status < _FIRST_ERROR:
        return call.outcome, why_ended(call)
    if call.method == "POST" and counts_tokens(path):
        return "counts_tokens", "not billed"
    if call.status >= _FIRST_ERROR:
        return "error", _error(call, wire)
    if call.method != "POST" or not wire:
        return "other", "not a call of a model"
    if not call.route.provider:
        return "not_judged", "the provider is not known, and so are its cache rules"
    if call.request_body is None or call.pieces is None:
        return "not_judged", "too large to keep"
    return "judged", ""


def named_model(call: RelayedCall) -> str:
    """The model that a request names, where its body does and can be read."""
    try:
        return _named(call.request_body or b"").model
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""


def why_ended(call: RelayedCall) -> str:
    if call.outcome == "cancelled":
        return "the program did not wait for the answer"
    return call.error or "no complete answer"


def _error(call: RelayedCall, wire: str) -> str:
    """The provider's error in a line."""
    if not wire or not call.pieces:
        return f"status {call.status}"
    try:
        answer = whole_answer(call)
    except (InvalidCompression, UnknownCompression):
        return f"status {call.status}"
    logged = LoggedCall(request=b"", response=answer, wire=wire, provider=call.route.provider)
    codec, _ = logged.codec()
    return str(codec.read_error(call.status, dict(call.response_headers), answer))


def whole_answer(call: RelayedCall) -> bytes:
    """The whole response without its content encoding."""
    data = b"".join([piece.data for piece in call.pieces or ()])
    encoding = header_of(call.response_headers, "content-encoding")
    return decoded(data, encoding, _MOST_DECODED) if encoding else data


def as_logged(call: RelayedCall, wire: str, path: str, answer: bytes) -> LoggedCall:
    headers = dict(call.request_headers)
    body = call.sent_body or call.request_body or b""
    content_type = header_of(call.response_headers, "content-type").lower()
    encoding = headers.get("content-encoding", "")
    return LoggedCall(
        request=decoded(body, encoding, _MOST_DECODED) if encoding else body,
        response=answer,
        wire=wire,
        headers=headers,
        provider=call.route.provider,
        path=path,
        stream="application/json" not in content_type or answer.lstrip()[:1] == b"[",
        started=call.started,
        began=None if call.began is None else call.started + call.began,
    )
