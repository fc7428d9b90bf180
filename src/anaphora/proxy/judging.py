"""Judges each call that the proxy relayed: what was read from the cache, what it cost, and what
broke.

    judge = Judge(on_call=print)
    with running(routes, observers=[judge]) as proxy: ...
    judge.calls, summarise(judge)

A call is compared with the one before it in its conversation, which is found by the beginnings of
prompts. A turn costs what it adds: messages that an earlier request had are not cut, hashed or
compared again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from urllib.parse import unquote

import msgspec
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
from anaphora.cache.prefix import SentCall
from anaphora.cache.verdict import Verdict, predict_usage
from anaphora.client.in_flight import cost_of
from anaphora.client.transport.decoding import InvalidCompression, UnknownCompression, decoded
from anaphora.errors import AnaphoraError
from anaphora.redaction import Redactor
from anaphora.wire.reading import Members, object_members, request_error

from .accounts import Accounts, credentials
from .exchange import RelayedCall
from .judged_call import CallKind, JudgedCall
from .savings import Savings
from .summary import Totals

#: The largest body that is decompressed.
_MOST_DECODED = 64 * 1024 * 1024
#: Calls whose verdicts are kept.
_MOST_CALLS = 10_000
#: Credentials for which a redactor is kept.
_MOST_REDACTORS = 16
_FIRST_ERROR = 400


class _NamedModel(msgspec.Struct):
    model: str = ""


_named = msgspec.json.Decoder(_NamedModel).decode


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
        self.lock = threading.Lock()
        self._calls: deque[JudgedCall] = deque(maxlen=_MOST_CALLS)
        self._pairs = RequestPairs(most_bytes=most_bytes)
        self._chains = ResponseChains(most_bytes=most_bytes)
        self._prices: PriceBook | None = None
        self._accounts = Accounts()
        self._redactors: dict[tuple[str, ...], Redactor] = {}
        """By the credentials of recent calls, which are mostly those of the next one."""
        self._joined: dict[str, int] = {}
        """The conversations of recent calls, by the place of their request."""
        self.totals = Totals()
        self.savings = Savings()
        """What the same calls would have cost with Anaphora's markers."""
        self.last: JudgedCall | None = None
        self.last_sent: SentCall | None = None
        """The call that ended last, and its prompt where that was read: for observers that
        follow."""

    @property
    def calls(self) -> tuple[JudgedCall, ...]:
        """The latest calls, in the order they ended."""
        with self.lock:
            return tuple(self._calls)

    @property
    def kept_bytes(self) -> int:
        """The bytes of prompts that later calls are compared with."""
        return self._pairs.size

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Models without a known price, as `provider/model`."""
        return () if self._prices is None else self._prices.unpriced

    def call_ended(self, call: RelayedCall) -> None:
        self.last = self.last_sent = None
        judged = self.last = self._judge(call)
        with self.lock:
            self._calls.append(judged)
            self.totals.add(judged)
        self._on_call(judged)

    # ── One call ─────────────────────────────────────────────────────────────────────────────────

    def _judge(self, call: RelayedCall) -> JudgedCall:
        path = unquote(call.path)
        redact = self._redactor_of(call)
        judged = JudgedCall(
            number=call.number,
            at=call.started,
            seconds=call.ended,
            method=call.method,
            path=redact(path),
            provider=call.route.provider,
            wire=wire_at(path) or "",
            status=call.status,
            placed=call.sent_body is not None,
            notices=call.notices,
        )
        judged.kind, judged.reason = _unjudged(call, judged.wire, path)
        if judged.kind == "judged":
            try:
                self._read(call, judged, path, redact)
            except (InvalidCompression, AnaphoraError, ValueError) as problem:
                judged.kind, judged.reason = "not_judged", str(problem)
            if judged.kind != "judged" and call.outcome != "complete":
                judged.kind, judged.reason = call.outcome, _why_ended(call)
        elif judged.wire:
            judged.model = _model_of(call)
        judged.reason = redact(judged.reason)
        return judged

    def _redactor_of(self, call: RelayedCall) -> Redactor:
        secrets = tuple(credentials(call.request_headers, call.query))
        redactor = self._redactors.get(secrets)
        if redactor is None:
            if len(self._redactors) >= _MOST_REDACTORS:
                self._redactors.clear()
            redactor = self._redactors[secrets] = Redactor(secrets)
        return redactor

    def _read(self, call: RelayedCall, judged: JudgedCall, path: str, redact: Redactor) -> None:
        """Reads the request and the bill, and adds the verdict."""
        try:
            answer = _answer(call)
        except UnknownCompression as problem:
            answer, judged.reason = b"", f"the answer is {problem}"
        logged = _logged(call, judged.wire, path, answer)
        members = object_members(logged.request, "$", request_error)
        request = request_of(logged, str(call.number), chains=self._chains, members=members)
        judged.model = request.model
        if request.failure or (not answer and call.outcome != "complete"):
            judged.kind, judged.reason = "error", request.failure
            return
        account = self._accounts.digest(call.route, call.request_headers, call.query)
        request = replace(request, sent=replace(request.sent, route=account))
        self._compare(call, judged, request, members, redact)

    def _compare(
        self,
        call: RelayedCall,
        judged: JudgedCall,
        request: SentRequest,
        members: Members,
        redact: Redactor,
    ) -> None:
        """Adds the verdict, the bill and the price."""
        earlier, sent = self._pairs.add(request), request.sent
        self.last_sent = sent
        if self._prices is None:
            self._prices = PriceBook(judged.at)
        price = self._prices.price(
            request.provider, request.model, sent.at, request.wire, request.service_tier
        )
        before, verdict = judge_request(earlier, request, price)
        judged.verdict = _redacted(verdict, redact)
        if sent.usage is not None:
            judged.usage = replace(sent.usage, raw=None)
            judged.cost_usd = cost_of(sent.usage, price, sent.marks)
        if sent.usage is None or sent.usage.read is None:
            judged.predicted = predict_usage(before, sent, request.rules)
        self.savings.add(call, request, members, earlier, price)
        if before is not None and earlier is not None:
            judged.compared_with = int(earlier.call.place)
            then = earlier.call.sent.at
            judged.gap = None if then is None else judged.at - then
        number = None if earlier is None else self._joined.get(earlier.call.place)
        if earlier is not None and number is not None and not earlier.continues:
            if before is not None:
                self.totals.share_beginning(number)
            number = None
        session = request.hints.conversation, request.hints.user
        judged.conversation = number or self.totals.open_conversation(session, judged)
        self._joined[request.place] = judged.conversation
        judged.turn = self.totals.conversations[judged.conversation - 1].sums.calls + 1
        if len(self._joined) > 4 * _MOST_CALLS:
            for place in list(self._joined)[:_MOST_CALLS]:
                del self._joined[place]


# ── What passed ──────────────────────────────────────────────────────────────────────────────────


def _unjudged(call: RelayedCall, wire: str, path: str) -> tuple[CallKind, str]:
    """The kind of a call, and why it is not judged. A program may close the connection when it has
    got all it needs, so a cancelled call may have a complete answer."""
    if call.outcome != "complete" and not call.pieces and call.status < _FIRST_ERROR:
        return call.outcome, _why_ended(call)
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


def _model_of(call: RelayedCall) -> str:
    """The model that a request names, where its body does and can be read."""
    try:
        return _named(call.request_body or b"").model
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""


def _why_ended(call: RelayedCall) -> str:
    if call.outcome == "cancelled":
        return "the program did not wait for the answer"
    return call.error or "no complete answer"


def _error(call: RelayedCall, wire: str) -> str:
    """The provider's error in a line."""
    if not wire or not call.pieces:
        return f"status {call.status}"
    try:
        answer = _answer(call)
    except (InvalidCompression, UnknownCompression):
        return f"status {call.status}"
    logged = LoggedCall(request=b"", response=answer, wire=wire, provider=call.route.provider)
    codec, _ = logged.codec()
    return str(codec.read_error(call.status, dict(call.response_headers), answer))


def _answer(call: RelayedCall) -> bytes:
    """The whole response without its content encoding."""
    encoding = dict(call.response_headers).get("content-encoding", "")
    return decoded(b"".join(piece.data for piece in call.pieces or ()), encoding, _MOST_DECODED)


def _logged(call: RelayedCall, wire: str, path: str, answer: bytes) -> LoggedCall:
    headers = dict(call.request_headers)
    body = call.sent_body or call.request_body or b""
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


def _redacted(verdict: Verdict, redact: Redactor) -> Verdict:
    """Without the call's own key, should the prompt contain it."""
    change = verdict.change
    if change is None:
        return verdict
    before, after = redact(change.before), redact(change.after)
    return replace(verdict, change=replace(change, before=before, after=after))
