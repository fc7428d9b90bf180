"""Judges each call that the proxy relayed: what was read from the cache, what it cost, and what
broke.

    judge = Judge(on_call=print)
    with running(routes, observers=[judge]) as proxy: ...
    judge.calls, judge.conversations, summarise(judge)

A call is compared with the one before it in its conversation, which is found by the beginnings of
prompts. A turn costs what it adds: messages that an earlier request had are not cut, hashed or
compared again.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl, unquote

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from anaphora.analysis.price_book import PriceBook
from anaphora.analysis.request_log import LoggedCall, counts_tokens, wire_at
from anaphora.analysis.sent_requests import (
    RequestPairs,
    ResponseChains,
    SentRequest,
    judge_request,
    request_of,
)
from anaphora.cache.verdict import Change, Verdict, predict_usage
from anaphora.client.transport.decoding import InvalidCompression, UnknownCompression, decoded
from anaphora.errors import AnaphoraError
from anaphora.redaction import Redactor
from anaphora.values import Usage

from .exchange import RelayedCall

CallKind: TypeAlias = Literal[
    "judged", "error", "cancelled", "failed", "counts_tokens", "other", "not_judged"
]
"""`judged`: compared and priced, by its bill or, without one, by the rules. `error`: the provider
answered with an error. `cancelled`: the program went away. `failed`: no complete answer came.
`counts_tokens` and `other` paths are relayed and counted. `not_judged`: the reason says why."""

#: Headers and query parameters that hold credentials.
_SECRET_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie")
_SECRET_QUERY = ("key", "api_key", "access_token")
#: The largest body that is decompressed.
_MOST_DECODED = 64 * 1024 * 1024
#: Calls whose verdicts are kept.
_MOST_CALLS = 10_000
_FIRST_ERROR = 400
_WORST = 3


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
    """What the bill should be, where there is none."""
    cost_usd: Decimal | None = None
    verdict: Verdict | None = None

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


class WatchedConversation(msgspec.Struct, eq=False):
    """The sums of a conversation."""

    number: int
    session: tuple[str, str]
    """As the client names it. Never shown."""
    first: JudgedCall
    calls: int = 0
    billed: int = 0
    input: int = 0
    read: int = 0
    cost_usd: Decimal = Decimal(0)
    unpriced: int = 0
    """Calls whose cost is unknown."""

    def add(self, call: JudgedCall) -> None:
        self.calls += 1
        if call.usage is not None:
            self.billed += 1
            self.input += call.usage.input or 0
            self.read += call.usage.read or 0
        if call.cost_usd is not None:
            self.cost_usd += call.cost_usd
        else:
            self.unpriced += 1


class Losses(msgspec.Struct):
    """What one cause has cost."""

    calls: int = 0
    tokens: int = 0
    cost_usd: Decimal | None = Decimal(0)
    """None where a price is unknown."""

    def add(self, tokens: int, cost_usd: Decimal | None) -> None:
        self.calls += 1
        self.tokens += tokens
        known = self.cost_usd is not None and cost_usd is not None
        self.cost_usd = self.cost_usd + cost_usd if known else None  # type: ignore[operator]


class Judge:
    """An observer of the relay. `on_call` is called for each call in the order they end, in the
    relay's thread for observers; everything else may be read from any thread."""

    def __init__(
        self,
        on_call: Callable[[JudgedCall], None] = lambda _: None,
        *,
        most_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        """`most_bytes` limits the prompts that are kept to compare later calls with."""
        self._on_call = on_call
        self._lock = threading.Lock()
        self._calls: deque[JudgedCall] = deque(maxlen=_MOST_CALLS)
        self._pairs = RequestPairs(most_bytes=most_bytes)
        self._chains = ResponseChains(most_bytes=most_bytes)
        self._prices: PriceBook | None = None
        self._key = secrets.token_bytes(32)
        self._joined: dict[str, WatchedConversation] = {}
        """The conversations of recent calls, by the place of their request."""
        self._single: dict[tuple[str, str], list[WatchedConversation]] = {}
        """Conversations with one call, of sessions that have no longer one,"""
        self._with_conversation: set[tuple[str, str]] = set()
        """and sessions that have one."""
        self.conversations: list[WatchedConversation] = []
        self.counts: dict[CallKind, int] = {}
        """The calls of each kind."""
        self.losses: dict[str, Losses] = {}
        """By cause."""
        self.worst: list[JudgedCall] = []
        """The breaks that cost most, the worst first."""
        self.no_bill = 0
        """Judged calls without a bill."""

    @property
    def calls(self) -> tuple[JudgedCall, ...]:
        """The latest calls, in the order they ended."""
        with self._lock:
            return tuple(self._calls)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Models without a known price, as `provider/model`."""
        return () if self._prices is None else self._prices.unpriced

    def call_ended(self, call: RelayedCall) -> None:
        judged = self._judge(call)
        with self._lock:
            self._keep(judged)
        self._on_call(judged)

    # ── One call ─────────────────────────────────────────────────────────────────────────────────

    def _judge(self, call: RelayedCall) -> JudgedCall:
        redact = Redactor(_credentials(call))
        path = unquote(call.path)
        judged = JudgedCall(
            number=call.number,
            at=call.started,
            seconds=call.ended,
            method=call.method,
            path=redact(path),
            provider=call.route.provider,
            status=call.status,
            placed=call.sent_body is not None,
        )
        judged.wire = wire_at(path) or ""
        try:
            judged.kind, judged.reason = _unjudged(call, judged.wire, path)
            if judged.kind != "judged":
                return judged
            logged = _logged(call, judged.wire, path)
            request = request_of(logged, str(call.number), chains=self._chains)
        except (InvalidCompression, UnknownCompression, AnaphoraError, ValueError) as problem:
            judged.kind, judged.reason = "not_judged", redact(str(problem))
            return judged
        finally:
            judged.reason = redact(judged.reason)
        judged.model = request.model
        sent = replace(request.sent, route=self._route(call))
        request = replace(request, sent=sent)
        if request.failure:
            judged.kind, judged.reason = "error", redact(request.failure)
            return judged
        self._compare(judged, request, redact)
        return judged

    def _route(self, call: RelayedCall) -> str:
        """Tells apart where calls went, account included; without a key in it."""
        digest = blake3(call.route.upstream.encode(), key=self._key)
        for secret in _credentials(call):
            digest.update(b"\0" + secret.encode(errors="replace"))
        return digest.hexdigest(16)

    def _compare(self, judged: JudgedCall, request: SentRequest, redact: Redactor) -> None:
        """Adds the verdict, the bill and the price."""
        earlier, sent = self._pairs.add(request), request.sent
        if self._prices is None:
            self._prices = PriceBook(judged.at)
        price = self._prices.price(
            request.provider, request.model, sent.at, request.wire, request.service_tier
        )
        before, verdict = judge_request(earlier, request, price)
        judged.verdict = _redacted(verdict, redact)
        if sent.usage is not None:
            judged.usage = replace(sent.usage, raw=None)
            judged.cost_usd = None if price is None else price.of(sent.usage)
        else:
            judged.predicted = predict_usage(before, sent, request.rules)
        if before is not None and earlier is not None:
            judged.compared_with = int(earlier.call.place)
            judged.gap = None if before.at is None else judged.at - before.at
        conversation = None
        if earlier is not None and earlier.continues:
            conversation = self._joined.get(earlier.call.place)
        if conversation is None:
            session = request.hints.conversation, request.hints.user
            number = len(self.conversations) + 1
            conversation = WatchedConversation(number, session, judged)
            self.conversations.append(conversation)
        self._joined[request.place] = conversation
        judged.conversation, judged.turn = conversation.number, conversation.calls + 1

    # ── All calls ────────────────────────────────────────────────────────────────────────────────

    def _keep(self, call: JudgedCall) -> None:
        self._calls.append(call)
        self.counts[call.kind] = self.counts.get(call.kind, 0) + 1
        if call.verdict is None:
            return
        self.no_bill += call.usage is None
        self._find_side_calls(call)
        for cause, tokens in call.verdict.losses.items():
            share = _share(call.lost_usd, tokens, call.lost)
            self.losses.setdefault(cause, Losses()).add(tokens, share)
        if call.broke and call.lost:
            self.worst.append(call)
            self.worst.sort(key=_by_loss, reverse=True)
            del self.worst[_WORST:]
        if len(self._joined) > 4 * _MOST_CALLS:
            for place in list(self._joined)[:_MOST_CALLS]:
                del self._joined[place]

    def _find_side_calls(self, call: JudgedCall) -> None:
        """Adds a call to its conversation, and marks what it shows to be side calls."""
        conversation = self.conversations[call.conversation - 1]
        conversation.add(call)
        session = conversation.session
        if conversation.calls > 1:
            conversation.first.side_call = False
            self._with_conversation.add(session)
            for other in self._single.pop(session, ()):
                if other.calls == 1:
                    _mark_side_call(other.first)
        elif session in self._with_conversation:
            _mark_side_call(call)
        else:
            self._single.setdefault(session, []).append(conversation)


def _mark_side_call(call: JudgedCall) -> None:
    call.side_call = call.verdict is not None and call.verdict.result == "first"


def _by_loss(call: JudgedCall) -> tuple[Decimal, int]:
    return call.lost_usd or Decimal(0), call.lost


def _share(cost_usd: Decimal | None, tokens: int, lost: int) -> Decimal | None:
    """The cost of some of the lost tokens."""
    return None if cost_usd is None else cost_usd * tokens / lost


# ── What passed ──────────────────────────────────────────────────────────────────────────────────


def _unjudged(call: RelayedCall, wire: str, path: str) -> tuple[CallKind, str]:
    """The kind of a call, and why it is not judged."""
    if call.outcome == "cancelled":
        return "cancelled", "the program did not wait for the answer"
    if call.outcome == "failed":
        return "failed", call.error or "no complete answer"
    if call.method == "POST" and counts_tokens(path):
        return "counts_tokens", "counts tokens: not billed"
    if call.status >= _FIRST_ERROR:
        return "error", _error(call, wire)
    if call.method != "POST" or not wire:
        return "other", "not a call of a model"
    if not call.route.provider:
        return "not_judged", "the provider is not known, so its cache rules are not"
    if call.request_body is None or call.pieces is None:
        return "not_judged", "too large to keep"
    return "judged", ""


def _error(call: RelayedCall, wire: str) -> str:
    """The provider's error in a line."""
    headers = dict(call.response_headers)
    try:
        codec = LoggedCall(request=b"", response=b"", wire=wire, provider=call.route.provider)
        if not wire or call.pieces is None:
            return f"status {call.status}"
        return str(codec.codec()[0].read_error(call.status, headers, _answer(call)))
    except (InvalidCompression, UnknownCompression):
        return f"status {call.status}"


def _answer(call: RelayedCall) -> bytes:
    """The whole response without its content encoding."""
    encoding = dict(call.response_headers).get("content-encoding", "")
    return decoded(b"".join(piece.data for piece in call.pieces or ()), encoding, _MOST_DECODED)


def _logged(call: RelayedCall, wire: str, path: str) -> LoggedCall:
    headers = dict(call.request_headers)
    body, answer = call.sent_body or call.request_body or b"", _answer(call)
    content_type = dict(call.response_headers).get("content-type", "").lower()
    return LoggedCall(
        request=decoded(body, headers.get("content-encoding", ""), _MOST_DECODED),
        response=answer,
        wire=wire,
        headers=headers,
        provider=call.route.provider,
        path=path,
        stream="application/json" not in content_type or answer.lstrip()[:1] == b"[",
        started=call.started,
        began=None if call.began is None else call.started + call.began,
    )


def _credentials(call: RelayedCall) -> Iterator[str]:
    """The keys in headers and query."""
    for name, value in call.request_headers:
        if name in _SECRET_HEADERS:
            yield value.partition(" ")[2] if name == "authorization" and " " in value else value
    for name, value in parse_qsl(call.query):
        if name in _SECRET_QUERY:
            yield value


def _redacted(verdict: Verdict, redact: Redactor) -> Verdict:
    """Without the call's own key, should the prompt contain it."""
    change = verdict.change
    if change is None:
        return verdict
    before, after = redact(change.before), redact(change.after)
    return replace(verdict, change=replace(change, before=before, after=after))
