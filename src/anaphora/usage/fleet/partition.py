"""Records of logs by account and conversation, and the verdicts on them.

    judge_partition(records, prices) -> rows

is a pure function of the records of one account and conversation in the order of time, so that it
can run anywhere and any number of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from anaphora.analysis.trace.log_lines import LogLine, seconds
from anaphora.audit.call_rows import usage_row, verdict_fields
from anaphora.audit.envelope import AuditEnvelope
from anaphora.bounded import BoundedMap
from anaphora.cache import hints_of
from anaphora.cache.verdict import predict_usage, predicted_usage
from anaphora.cache.verdict.advice import CAUSES
from anaphora.catalog.prices import cost_of, nano_usd
from anaphora.catalog.pricing import PriceBook
from anaphora.client.observe.export import label, word
from anaphora.client.prices import iterations_usd
from anaphora.dashboard.sentences import sentence_of
from anaphora.errors import AnaphoraError, InvalidRequest
from anaphora.rendered import Plan
from anaphora.traffic.log_formats import calls_in
from anaphora.traffic.matching import RequestPairs, judge_request
from anaphora.traffic.request_log import CONVERSATION, read_request, why_unbilled
from anaphora.traffic.sent_requests import RequestDefaults, ResponseChains, SentRequest
from anaphora.usage.causes import losses_of
from anaphora.usage.records import CallLoss, moment
from anaphora.values import Usage

from .sources import ReadLine

#: Answers that are remembered to count each once; copies have the same time.
_MOST_ANSWERS = 10_000
#: What reading a record raises whose fields have unexpected values.
_POISONED = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip
#: Of the prompts of one conversation.
_MOST_BYTES = 32 * 1024 * 1024


class LogRecord(NamedTuple):
    """A call in a log, and where it belongs. Records are in order of conversation and time."""

    key: bytes
    """A digest of the account and the conversation."""
    at: float
    place: str
    account: str
    program: str
    data: bytes
    """The line that `request_log` reads, or an audit row."""


class FleetRow(NamedTuple):
    """A call with its bill, and what it lost."""

    call: AuditEnvelope
    place: str
    program: str
    losses: tuple[CallLoss, ...] = ()


class SetAside(NamedTuple):
    """A record that is not summed."""

    place: str
    reason: str
    broken: bool = True
    """False: a call that was not billed."""


JudgedRecord: TypeAlias = FleetRow | SetAside
_fields = msgspec.json.Decoder(dict[str, Any]).decode
_audit_row = msgspec.json.Decoder(AuditEnvelope).decode


# ── Partition ────────────────────────────────────────────────────────────────────────────────────


def records_in(lines: Iterable[ReadLine]) -> Iterator[LogRecord | SetAside]:
    """The calls of a slice. A call that has two records, such as two spans, counts once: if one of
    them has the prompt, that one."""
    seen = BoundedMap[str, None](_MOST_ANSWERS)
    bare: list[tuple[str, LogRecord]] = []
    for place, fields, data in lines:
        try:
            if isinstance(fields, str):
                raise InvalidRequest(fields)
            for call in calls_in(fields):
                record = _record(place, call, data if call is fields else b"")
                answer = str(call.get("response_id") or call.get("id") or "")
                if call.get("row") == "call" and answer and call.get("adapter") == "opentelemetry":
                    bare.append((answer, record))
                    continue
                seen[answer] = None
                yield record
        except InvalidRequest as problem:
            yield SetAside(place, problem.reason)
        except _POISONED as problem:
            yield SetAside(place, f"unexpected value ({type(problem).__name__})")
    yield from (record for answer, record in bare if answer not in seen)


def _record(place: str, call: dict[str, Any], data: bytes) -> LogRecord:
    if call.get("row") == "call":
        account, program = str(call.get("app") or ""), str(call.get("adapter") or "audit")
        named = str(call.get("conversation") or call.get("hash") or place)
        at = call.get("at")
    else:
        account, program = str(call.get("account") or ""), str(call.get("program") or "requests")
        named = _conversation(call)
        at = seconds(next((call[n] for n in ("time", "timestamp", "ts") if n in call), None))
    key = blake3(msgspec.msgpack.encode((account, named))).digest(16)
    when = float(at) if isinstance(at, int | float) else 0.0
    return LogRecord(key, when, place, account, program, data or msgspec.json.encode(call))


def _conversation(call: dict[str, Any]) -> str:
    """The conversation that the log or the request names; else the first message of the user, which
    stays when tools, system text or model change."""
    for name in CONVERSATION:
        if call.get(name):
            return str(call[name])
    body = call.get("request")
    if isinstance(body, str):
        body = _fields(body)
    if not isinstance(body, dict):
        return ""
    inner = body.get("body")
    body = inner if isinstance(inner, dict) else body
    headers = call.get("headers")
    hints = hints_of(headers if isinstance(headers, dict) else {}, body)
    if hints.conversation:
        return hints.conversation
    if hints.previous_reply:
        return ""  # its beginning is unknown: with all such calls of the account
    for name in ("messages", "input", "contents"):
        if body.get(name):
            return blake3(msgspec.json.encode(_first_question(body[name]))).hexdigest()
    return ""


def _first_question(messages: Any) -> Any:
    """The first message of the user without its cache markers."""
    if not isinstance(messages, list):
        return messages
    roles = ("user", None)
    first = next((m for m in messages if isinstance(m, dict) and m.get("role") in roles), None)
    content = first and first.get("content", first.get("parts"))
    if not isinstance(content, list):
        return content
    parts = (part for part in content if isinstance(part, dict))
    return "".join(str(part.get("text", part.get("type"))) for part in parts)


# ── Judge ────────────────────────────────────────────────────────────────────────────────────────


def judge_partition(records: Iterable[LogRecord], prices: PriceBook) -> Iterator[JudgedRecord]:
    """The rows of one account and conversation, whose records are in the order of time. A record
    that cannot be read is set aside; a copy of one is left out."""
    judge = _PartitionJudge(prices)
    for record in records:
        try:
            row = judge.row(record)
        except (AnaphoraError, *_POISONED) as problem:
            # Its message may quote the prompt.
            at = problem.path if isinstance(problem, InvalidRequest) else None
            field = "" if not at or at == record.place else at.removeprefix(f"{record.place}.")
            row = SetAside(record.place, f"not a request and its answer{field and f': {field}'}")
        if row is not None:
            yield row


class _PartitionJudge:
    def __init__(self, prices: PriceBook) -> None:
        self._prices = prices
        self._pairs = RequestPairs(most_bytes=_MOST_BYTES)
        self._chains = ResponseChains(most_bytes=_MOST_BYTES)
        self._answers = BoundedMap[tuple[str, str], None](_MOST_ANSWERS)

    def row(self, record: LogRecord) -> JudgedRecord | None:
        fields = _fields(record.data)
        if fields.get("row") == "call":
            return self._summed(record)
        if reason := why_unbilled(fields):
            return SetAside(record.place, reason, broken=False)
        line = LogLine(record.place, record.data)
        request = read_request(line, RequestDefaults(), self._chains)
        if request.failure:
            return SetAside(record.place, "no answer that can be read", broken=False)
        if request.reply_id and self._is_known(request.provider, request.reply_id):
            return None
        if record.account:
            request.sent = replace(request.sent, route=record.account)
        return self._judged(record, request)

    def _is_known(self, provider: str, answer: str) -> bool:
        known = (provider, answer) in self._answers
        self._answers[provider, answer] = None
        return known

    def _summed(self, record: LogRecord) -> FleetRow | None:
        """An audit row; its price is looked up if it has none."""
        call = _audit_row(record.data)
        call = replace(call, at=moment(call.at) or 0.0)
        if call.response_id and self._is_known(call.system, call.response_id):
            return None
        if call.cost_nano_usd is None and call.usage.uncached is not None:
            usage = Usage(
                uncached=call.usage.uncached,
                read=call.usage.read,
                written=call.usage.written,  # type: ignore[arg-type]
                output=call.usage.output or 0,
            )
            price = self._prices.price(call.system or call.provider, call.model, call.at or None)
            call = replace(call, cost_nano_usd=nano_usd(cost_of(usage, price, Plan())))
        if not call.lost or call.cause is None:
            return FleetRow(call, record.place, record.program)
        cause = call.cause if call.cause in CAUSES else "unknown"
        loss = CallLoss(b"", cause, call.lost, call.lost_nano_usd, sentence_of(call))
        return FleetRow(call, record.place, record.program, (loss,))

    def _judged(self, record: LogRecord, request: SentRequest) -> FleetRow:
        earlier, sent = self._pairs.add(request), request.sent
        price_of = partial(
            self._prices.price,
            request.provider,
            at=sent.at,
            wire=request.wire,
            service_tier=request.service_tier,
        )
        price = price_of(request.model)
        before, verdict, expected = judge_request(earlier, request, price)
        usage, cost, predicted = sent.usage or Usage(), None, None
        if sent.usage is not None:
            cost = cost_of(usage, price, sent.marks)
            if cost is not None and price is not None:
                cost += iterations_usd(usage, price, sent.marks, price_of)
        if usage.read is None:
            predicted = (
                predicted_usage(expected)
                if expected is not None
                else predict_usage(before, sent, request.rules)
            ).read
        conversation, named = request.conversation, request.named
        conversation.calls += 1
        ended = sent.at if sent.ended is None else sent.ended
        then = None if before is None else before.at
        gap = None if then is None or sent.at is None else sent.at - then
        key = blake3(f"{request.provider} {request.reply_id or record.place}".encode()).digest(16)
        saved = None if verdict.remedy is None else verdict.remedy.at_call
        found = losses_of(verdict, key, gap, usage, price, saved=saved)
        lost = () if sent.usage is None else tuple(found)
        call = AuditEnvelope(
            at=round(moment(sent.at) or 0.0, 6),
            app=label(record.account),
            adapter=label(record.program),
            provider=request.provider,
            system=request.provider,
            wire=request.wire,
            model=word(request.model),
            response_id=word(request.reply_id) if request.reply_id else None,
            seconds=round(max(0.0, (ended or 0.0) - (sent.at or 0.0)), 6),
            usage=usage_row(usage),
            predicted=predicted,
            cost_nano_usd=nano_usd(cost),
            output_nano_usd=None if price is None else nano_usd(price.of_output(usage)),
            saved_nano_usd=nano_usd(verdict.saved),
            **verdict_fields(verdict),
            # A name with spaces may be a text.
            conversation=named if named and word(named) == named else record.key.hex(),
            turn=conversation.calls,
        )
        return FleetRow(call, record.place, record.program, lost)
