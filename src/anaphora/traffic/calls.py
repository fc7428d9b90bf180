"""Calls of a program: their destination, requests and responses as relayed, and their verdicts."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from anaphora import catalog, wire
from anaphora.client.config.secrets import Secret
from anaphora.client.transport.decoding import InvalidCompression, UnknownCompression, decoded
from anaphora.errors import InvalidRequest
from anaphora.redaction import shown_url
from anaphora.values import Notice, Reply, ReplyEnd, ReplyFail, Usage
from anaphora.wire import Wire, cloud_paths

#: Parts of the paths of token-counting calls.
_COUNTING = ("/count_tokens", ":counttokens", "/responses/input_tokens", "/count-tokens")
#: A part of the request's path that identifies the wire,
PATHS = (
    ("/chat/completions", "openai_chat"),
    ("/responses", "openai_responses"),
    ("/messages", "anthropic"),
    ("generatecontent", "gemini"),
)
#: and the end of the path to which prompts are posted.
_ENDS = (
    *PATHS[:3],
    (":generatecontent", "gemini"),
    (":streamgeneratecontent", "gemini"),
)

#: Larger bodies are relayed, but not kept for observers.
KEPT_BYTES = 32 * 1024 * 1024

#: Lower-case names, with duplicates, in the order sent.
Headers: TypeAlias = tuple[tuple[str, str], ...]


def is_unread(provider: str, path: str) -> bool:
    """Whether a path is of an API of the provider that is passed on, and not read."""
    rows = (row for row in catalog.dialects().rows if row.unread_path)
    return any(row.provider == provider and path.startswith(row.unread_path) for row in rows)


def header_of(headers: Headers, name: str) -> str:
    """The value of a header, the last if it is sent twice; empty if it is missing."""
    found = [value for each, value in headers if each == name]
    return found[-1] if found else ""


class ProxyRoute(msgspec.Struct, frozen=True, kw_only=True):
    """The destination of requests below a path prefix. Set by configuration only, never by a
    request."""

    prefix: str
    """The first step of the path, `/anthropic`; empty for the default route of a wire's paths."""
    provider: str
    """A provider of the catalog; empty if unknown: then calls are not judged."""
    upstream: str
    """The base URL, such as https://api.anthropic.com. `{region}` and `{vertex}` are filled in by a
    request's signature and path."""
    name: str = ""
    """That of a cloud, if it is not the provider."""
    region: str = ""
    """The region of requests that name none."""
    secret: Secret | None = None
    """The step of the path after the prefix that shows that a request is the program's,"""
    signs: bool = False
    """and whether a request has it: others are not signed again."""

    @property
    def host(self) -> str:
        return urlsplit(self.upstream).netloc


class UpstreamRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A request as sent upstream, with credentials. Its repr shows neither headers nor query."""

    method: str
    route: ProxyRoute
    path: str
    """As sent upstream: percent-encoded, without the query."""
    query: str
    """Unchanged; it may contain a key."""
    headers: Headers
    number: int = 0
    """That of its `RelayedCall`."""
    started: float = 0.0
    """When it arrived, in seconds since 1970."""
    body: bytes | AsyncIterator[bytes]
    """Pieces if it is too large to keep or, for the network, still arriving."""

    def __repr__(self) -> str:
        return f"<UpstreamRequest {self.method} {self.route.upstream}{self.path}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("method", self.method), ("path", self.path)]


class ResponsePiece(msgspec.Struct, frozen=True):
    """A part of a response, and when it arrived, in seconds after the request was sent."""

    seconds: float
    data: bytes


class RealtimeBill(msgspec.Struct, eq=False):
    """The bill of a response over OpenAI's Realtime API, whose prompt is not text that could be
    compared."""

    model: str
    usage: Usage | None
    reason: str = ""
    """Why its cost is unknown."""


class RelayedCall(msgspec.Struct, kw_only=True, eq=False):
    """A request and its response, as relayed. Must not be written anywhere unredacted: headers and
    query contain keys."""

    number: int
    started: float
    """Seconds since 1970."""
    method: str
    route: ProxyRoute
    path: str
    query: str
    request_headers: Headers
    request_body: bytes | None
    """As received, before markers were placed; None if it was too large to keep, or incomplete."""
    sent_body: bytes | None = None
    """The body sent upstream, if it differs because markers were placed."""
    status: int = 0
    """0 if no response began."""
    response_headers: Headers = ()
    pieces: list[ResponsePiece] | None = None
    """Still content-encoded; None if the response was too large to keep."""
    began: float | None = None
    """When the response's headers arrived, in seconds after the request was sent."""
    ended: float = 0.0
    outcome: Literal["complete", "cancelled", "failed", "refused"] = "complete"
    """`cancelled`: the program disconnected. `failed`: upstream did not answer, or not
    completely. `refused`: the proxy answered with an error, and sent nothing."""
    error: str = ""
    """Why it failed or was refused, without secrets."""
    notices: tuple[Notice, ...] = ()
    """URLs in the response that bypass the proxy: requests to them are not seen."""
    realtime: RealtimeBill | None = None

    def __repr__(self) -> str:
        return f"<RelayedCall {self.number} {self.method} {self.path} {self.status}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("number", self.number), ("method", self.method), ("path", self.path)]


CallKind: TypeAlias = Literal[
    "judged",
    "error",
    "cancelled",
    "failed",
    "refused",
    "counts_tokens",
    "other",
    "not_judged",
    "realtime",
]
"""`judged`: compared and priced, by its bill or, without one, by the rules. `error`: the provider
answered with an error. `cancelled`: the program disconnected. `failed`: no complete answer arrived.
`refused`: the proxy answered with an error, and sent nothing.
`counts_tokens` and `other` paths are relayed and counted. `not_judged`: the reason says why.
`realtime`: billed by its own usage event, and not compared."""

#: The outcome of each kind of call; calls of other kinds are not model calls.
OUTCOMES: dict[CallKind, str] = {
    "judged": "ok",
    "not_judged": "ok",
    "realtime": "ok",
    "error": "Upstream",
    "failed": "Transport",
    "refused": "Denied",
    "cancelled": "CancelledError",
}


#: The largest body that is decompressed.
_MOST_DECODED = 64 * 1024 * 1024
_FIRST_ERROR = 400


def wire_at(path: str) -> str | None:
    """The wire of requests posted to a path; None if prompts are not posted there."""
    low = path.lower()
    return next((name for end, name in _ENDS if low.endswith(end)), None) or cloud_paths.wire_of(
        path
    )


def counts_tokens(path: str) -> bool:
    """Whether a path counts the tokens of a prompt, which is not billed."""
    return any(map(path.lower().__contains__, _COUNTING))


class LoggedCall(msgspec.Struct, frozen=True, kw_only=True):
    request: bytes
    response: bytes
    wire: str
    headers: dict[str, str] = {}
    """Headers of the request, by lower-case name. Never shown."""
    id: str = ""
    provider: str = ""
    model: str = ""
    host: str = ""
    path: str = ""
    stream: bool = False
    started: float | None = None
    began: float | None = None
    """When the response began."""
    ended: float | None = None

    def codec(self) -> tuple[Wire, str]:
        """The wire in the provider's dialect, and the provider whose models it serves: the logged
        name if it is unknown."""
        return self._spoken()[:2]

    @property
    def stores_responses(self) -> bool:
        """Whether a later request may continue the reply by its id."""
        return self._spoken()[2]

    def _spoken(self) -> tuple[Wire, str, bool]:
        return _spoken(self.provider, self.wire, self.host, self.path)

    def reply(self, codec: Wire) -> Reply:
        """The response; raises if it cannot be read."""
        if not self.stream:
            return codec.read_reply(self.response)
        reader = codec.reader(self.model or self.path)
        last = [*reader.feed(self.response), *reader.close()][-1]
        if isinstance(last, ReplyEnd):
            return last.reply
        message = f": {last.message}" if isinstance(last, ReplyFail) else ""
        raise InvalidRequest(f"the stream ends in an error{message}", path="response")


@functools.lru_cache(maxsize=256)
def _spoken(named: str, wire_name: str, host: str, path: str) -> tuple[Wire, str, bool]:
    row = None
    provider = catalog.provider_named(named) if named else None
    if host:
        row = catalog.dialects().at_host(host, wire_name, path)
    elif provider is not None:
        # Without a row it is not known to use this wire; read as the wire's own provider.
        row = catalog.dialects().at_path(provider, wire_name, path)
    # A wire is as its own provider implements it: that one's rows hold addresses only, except at
    # clouds that name the model elsewhere.
    is_own = row is None or (
        row.provider == wire.PROVIDERS[wire_name] and not row.methods and not row.deployments
    )
    codec = wire.get(wire_name) if row is None or is_own else wire.codec_for(row)
    if provider is None:
        provider = row.provider if row is not None else named
    stores = wire.features(wire_name).stores_responses
    return codec, provider or wire.PROVIDERS[wire_name], stores


class _NamedModel(msgspec.Struct):
    model: str = ""


_named = msgspec.json.Decoder(_NamedModel).decode


def kind_of(call: RelayedCall, wire: str, path: str) -> tuple[CallKind, str]:
    """The kind of a call, and why it is not judged. A program may disconnect once it has what it
    needs, so a cancelled call may have a complete answer."""
    if call.realtime is not None:
        return "realtime", call.realtime.reason
    if call.outcome == "refused":
        return "refused", call.error
    if call.outcome != "complete" and not call.pieces and call.status < _FIRST_ERROR:
        return call.outcome, why_ended(call)
    if call.method == "POST" and counts_tokens(path):
        return "counts_tokens", "not billed"
    if call.status >= _FIRST_ERROR:
        return "error", _error(call, wire, path)
    if model := cloud_paths.unread_model(path):
        return "not_judged", f"InvokeModel bodies of {model} are not read"
    if is_unread(call.route.provider, path):
        return "other", "this API of the provider is not read"
    if call.method != "POST" or not wire:
        return "other", "not a call of a model"
    if not call.route.provider:
        return "not_judged", "the provider is not known, and so are its cache rules"
    if call.request_body is None or call.pieces is None:
        return "not_judged", "too large to keep"
    return "judged", ""


def named_model(call: RelayedCall) -> str:
    """The model named in a request's body, if it can be read."""
    try:
        return _named(call.request_body or b"").model
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""


def why_ended(call: RelayedCall) -> str:
    if call.outcome == "cancelled":
        return "the program did not wait for the answer"
    return call.error or "no complete answer"


def _error(call: RelayedCall, wire: str, path: str) -> str:
    """The provider's error in one line."""
    if not wire or not call.pieces:
        return f"status {call.status}"
    try:
        answer = whole_answer(call)
    except (InvalidCompression, UnknownCompression):
        return f"status {call.status}"
    provider = call.route.provider
    logged = LoggedCall(request=b"", response=answer, wire=wire, provider=provider, path=path)
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


def checked_upstream(url: str, name: str = "upstream") -> str:
    """A base URL without a trailing slash."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid, parts = False, urlsplit("")
    if not valid or not url.isascii() or not url.isprintable() or " " in url:
        reason = f"not a base URL like https://api.example.com: {shown_url(url)}"
        raise InvalidRequest(reason, path=name)
    if parts.query or parts.fragment or parts.username is not None or parts.password is not None:
        reason = f"a base URL has no user, query or fragment: {shown_url(url)}"
        raise InvalidRequest(reason, path=name)
    return url.rstrip("/")


def decoded_path(path: str) -> str:
    """A path without percent encoding."""
    return unquote(path)


def parameters(query: str) -> list[tuple[str, str]]:
    """Names and values of a query."""
    return parse_qsl(query)
