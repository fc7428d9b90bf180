"""Calls that a program makes: requests and responses as they pass, and their verdicts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import msgspec

from anaphora.cache.verdict import Change, Verdict, format_usd
from anaphora.client.transport.decoding import InvalidCompression, UnknownCompression, decoded
from anaphora.values import Notice, Usage

from .request_log import LoggedCall, counts_tokens

#: Larger bodies are relayed, but not kept for observers.
KEPT_BYTES = 32 * 1024 * 1024

#: Names in lower case, duplicates kept, in the order they were sent.
Headers: TypeAlias = tuple[tuple[str, str], ...]


def header_of(headers: Headers, name: str) -> str:
    """The value of a header, the last where it is sent twice; empty where it is missing."""
    return next((value for each, value in reversed(headers) if each == name), "")


class ProxyRoute(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests below a path prefix go. Only configuration decides that, never a request."""

    prefix: str
    """The first step of the path, `/anthropic`; empty for the default route of a wire's paths."""
    provider: str
    """A provider of the catalog; empty where it is not known, and calls are not judged."""
    upstream: str
    """The base URL, such as https://api.anthropic.com."""


class UpstreamRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A request as it goes upstream, credentials included. Its repr shows neither headers nor
    query."""

    method: str
    route: ProxyRoute
    path: str
    """As it goes upstream, still percent-encoded, without the query."""
    query: str
    """As it was sent, which may hold a key."""
    headers: Headers
    started: float = 0.0
    """When it arrived, in seconds since 1970."""
    body: bytes | AsyncIterator[bytes]
    """Pieces where it is too large to keep; for the network also where it is still arriving."""

    def __repr__(self) -> str:
        return f"<UpstreamRequest {self.method} {self.route.upstream}{self.path}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("method", self.method), ("path", self.path)]


class Piece(msgspec.Struct, frozen=True):
    """A part of a response, and when it came: seconds after the request was sent."""

    seconds: float
    data: bytes


class RelayedCall(msgspec.Struct, kw_only=True, eq=False):
    """A request and its response, as they passed. Never written anywhere as it is: headers and
    query hold keys."""

    number: int
    started: float
    """Seconds since 1970."""
    method: str
    route: ProxyRoute
    path: str
    query: str
    request_headers: Headers
    request_body: bytes | None
    """As it was received, before markers were placed; None where it was too large to keep, or did
    not arrive to its end."""
    sent_body: bytes | None = None
    """What went upstream, where that differs: markers were placed."""
    status: int = 0
    """0 where no response began."""
    response_headers: Headers = ()
    pieces: list[Piece] | None = None
    """Still content-encoded; None where the response was too large to keep."""
    began: float | None = None
    """When the response's headers came, in seconds after the request was sent."""
    ended: float = 0.0
    outcome: Literal["complete", "cancelled", "failed"] = "complete"
    """`cancelled`: the program went away. `failed`: upstream did not answer, or not to its end."""
    error: str = ""
    """Why it failed, without secrets."""
    notices: tuple[Notice, ...] = ()
    """Addresses in the response that bypass the proxy: what is sent there is not seen."""

    def __repr__(self) -> str:
        return f"<RelayedCall {self.number} {self.method} {self.path} {self.status}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("number", self.number), ("method", self.method), ("path", self.path)]


CallKind: TypeAlias = Literal[
    "judged", "error", "cancelled", "failed", "counts_tokens", "other", "not_judged"
]
"""`judged`: compared and priced, by its bill or, without one, by the rules. `error`: the provider
answered with an error. `cancelled`: the program went away. `failed`: no complete answer came.
`counts_tokens` and `other` paths are relayed and counted. `not_judged`: the reason says why."""

#: The outcome of each kind of call; calls of other kinds are no calls of a model.
OUTCOMES: dict[CallKind, str] = {
    "judged": "ok",
    "not_judged": "ok",
    "error": "Upstream",
    "failed": "Transport",
    "cancelled": "CancelledError",
}


class JudgedCall(msgspec.Struct, kw_only=True, eq=False):
    """A call and its verdict, without the prompt but for the excerpts at a change."""

    number: int
    at: float
    """When it was sent, in seconds since 1970."""
    seconds: float = 0.0
    """How long it took."""
    kind: CallKind = "judged"
    reason: str = ""
    """Why it was not judged, or its error."""
    method: str = "POST"
    path: str = ""
    provider: str = ""
    wire: str = ""
    model: str = ""
    status: int = 0
    """0 where no response began."""
    conversation: int = 0
    """Its number, in the order they began; 0 for calls that are not judged."""
    turn: int = 0
    """Its number within the conversation."""
    side_call: bool = False
    """The only call of its conversation, like no other call, in a session that has a longer
    conversation: a title, a summary. May be found out by a later call."""
    compared_with: int | None = None
    """The number of the call that it is judged against."""
    gap: float | None = None
    """Seconds since that call was sent."""
    placed: bool = False
    """Markers were placed in it."""
    usage: Usage | None = None
    """The bill; None where the response has none."""
    predicted: Usage | None = None
    """What the bill should be, where there is none or it does not say what was read."""
    cost_usd: Decimal | None = None
    output_usd: Decimal | None = None
    """The part of it that is for the output."""
    verdict: Verdict | None = None
    notices: tuple[Notice, ...] = ()
    """Addresses in the response that bypass the proxy."""

    @property
    def input_usage(self) -> Usage | None:
        """What was read, written and neither, by the bill; as predicted where that does not say."""
        return self.usage if self.predicted is None else self.predicted

    @property
    def lost(self) -> int:
        """Tokens that could have been read and were not."""
        return 0 if self.verdict is None else self.verdict.lost

    @property
    def lost_usd(self) -> Decimal | None:
        return None if self.verdict is None else self.verdict.cost_usd

    @property
    def broke(self) -> bool:
        """Whether the prefix broke: see `Verdict.broke`."""
        return self.verdict is not None and self.verdict.broke

    @property
    def change(self) -> Change | None:
        return None if self.verdict is None else self.verdict.change

    @property
    def sentence(self) -> str:
        """The verdict without the excerpts, or why there is none."""
        return self.reason if self.verdict is None else self.verdict.describe(excerpts=False)

    def line(self, *, excerpts: bool = True) -> str:
        """The call and its verdict in a line, with or without the excerpts of a change."""
        place = f", conversation {self.conversation}, turn {self.turn}" if self.conversation else ""
        name = self.model or f"{self.method} {self.path}"
        if self.verdict is None:
            kind = self.kind.replace("_", " ")
            status = f" ({self.status})" if self.status else ""
            return f"{name}{place}: {kind}{status}" + (f": {self.reason}" if self.reason else "")
        cost = "" if self.cost_usd is None else f" Cost: {format_usd(self.cost_usd)}."
        bill = " No bill." if self.usage is None else cost
        return f"{name}{place}: {self.verdict.describe(excerpts=excerpts)}{bill}"

    def __str__(self) -> str:
        return self.line()

    def fields(self) -> dict[str, Any]:
        """All of it for JSON, with the values that follow from others."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        lost_usd = None if self.lost_usd is None else str(self.lost_usd)
        fields |= {"lost": self.lost, "lost_usd": lost_usd, "broke": self.broke}
        return fields | {"sentence": self.sentence}


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
