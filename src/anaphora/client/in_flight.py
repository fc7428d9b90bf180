"""The state of one call: its request as prepared for a provider, and everything until its
record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from anaphora.cache.verdict import Verdict
from anaphora.catalog import Price
from anaphora.catalog.prices import cost_of
from anaphora.errors import AnaphoraError
from anaphora.prompt import Call
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import Counts
from anaphora.values import Message, Notice, Reply, Usage
from anaphora.wire.response_headers import EMULATED

from .cold_guard import ColdGuard
from .config import RetryConfig
from .failures import reported
from .limits import Admission
from .observe import EndedCall
from .prices import (
    answering_model,
    audio_usd,
    cost_unknown,
    iterations_usd,
    price_of_model,
    served_tier,
)
from .response import Attempt, BlockShare, Operation, Record
from .structured import Structured
from .target import Target
from .transport import HttpRequest

if TYPE_CHECKING:
    from .preview import Preview
    from .session.turn_prompt import TurnPrompt

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D")


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """New messages, and the options of this one call."""

    messages: tuple[Message, ...] = ()
    params: dict[str, Any] = {}
    output: Structured[Any] | None = None
    timeout: float | None = None
    prewarm: bool = False
    instruction: Message | None = None
    """Sent last. Neither it nor the reply is added to the conversation, which ends with this call:
    what is cached of it is read, and the rest is not written."""
    cold: ColdGuard | None = None
    """Checked before the call, unless None."""
    adapter: str = "client"
    """The id of the adapter that makes the call, for the audit log."""
    prompt_hash: str = ""
    """The hash of the adapter's prompt."""

    @property
    def operation(self) -> Operation:
        if self.instruction is not None:
            return "summarize"
        return "prewarm" if self.prewarm else "chat"


class PreparedRequest(msgspec.Struct, kw_only=True, eq=False):
    """A call prepared for one provider: rendered, planned, and complete once `outgoing` is set."""

    call: Call
    rendered: Rendered
    plan: Plan
    at: float
    outgoing: HttpRequest | None = None
    notices: tuple[Notice, ...] = ()
    turn: TurnPrompt | None = None
    """In a session: the prompt of the turn, with its history compacted if that was needed."""
    compacted: bool = False
    prepare_again_on: tuple[type[AnaphoraError], ...] = ()
    """Errors after which the call is prepared once more: a stored response or a cache handle that
    it refers to is gone, or the prompt is too long and can be compacted."""
    host: str = ""
    """The host behind a router that answered."""
    known_shares: tuple[BlockShare, ...] | None = None
    """Of `block_shares`, once it was called."""

    def block_shares(self) -> tuple[BlockShare, ...]:
        """The prompt's tokens by block, counted once."""
        if self.known_shares is None:
            self.known_shares = shares_of(self.rendered)
        return self.known_shares


def shares_of(rendered: Rendered) -> tuple[BlockShare, ...]:
    """The prompt's tokens by tool, by system block and by segment of the messages."""
    counts = Counts(rendered)
    shares: list[BlockShare] = []
    last = done = 0
    for run in rendered.runs:
        messages = run.section == "messages"
        for chunk in (run.count - 1,) if messages else range(run.count):
            before, done = done, counts.tokens(last + chunk + 1)
            if messages:
                label = run.role.value if run.role is not None else "messages"
            else:
                label = run.log.labels[chunk]
            shares.append(BlockShare(label=label, section=run.section, tokens=done - before))
        last += run.count
    return tuple(shares)


class InFlight:
    index = 0
    """The index of the current target; after the call, of the last one."""
    sent_at = first_at = 0.0
    """When that attempt was sent and when its response began, in seconds since the epoch."""
    batch = False
    """Whether it runs in a batch, at the price of batches."""
    reply: Reply | None = None
    body: bytes | None = None
    """The body of a response that was not streamed."""
    raw_hash = ""
    request_id: str | None = None
    verdict: Verdict | None = None
    judgement: Callable[[Record], Record] | None = None
    """Adds the verdict to the record, if the verdict is computed on first read."""
    predicted: int | None = None
    cost_usd: Decimal | None = None
    saved: Decimal | None = None
    record: Record | None = None
    observed = False
    guard: AttemptGuard | None = None
    """Holds the cost of its attempts, if a budget applies."""

    def __init__(self, request: TurnRequest, targets: Sequence[Target], stream: bool) -> None:
        self.request = request
        self.targets = targets
        self.target = targets[0]
        """`targets[index]`."""
        self.stream = stream
        self.began = time.time()
        self.prepared: dict[int, PreparedRequest] = {}
        self.attempts: list[Attempt] = []
        self.headers: Mapping[str, str] = {}
        """The headers of the response."""
        self._notices: list[Notice] = []

    def guarded(
        self, code: str, default: D, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | D:
        """The result of a step that follows the response, or `default` if it failed."""
        try:
            return step(*args, **kwargs)
        except Exception as problem:
            self.failed(code, problem)
            return default

    def failed(self, code: str, problem: Exception) -> None:
        self._notices.append(reported(code, problem))

    def judge(
        self, account: Callable[..., T], prepared: PreparedRequest, price: Price | None
    ) -> T | None:
        """The result of the conversation's `account`; a failure becomes a notice."""
        try:
            return account(prepared, self.reply, at=self.sent_at, first=self.first_at, price=price)
        except Exception as problem:
            self.failed("verdict_failed", problem)
            return None

    def ended_call(self, record: Record) -> EndedCall:
        """The ended call, for watchers and audit logs."""
        prepared = self.prepared.get(self.index)
        return EndedCall(
            record=record,
            raw_hash=self.raw_hash,
            rendered=None if prepared is None else prepared.rendered,
            plan=None if prepared is None else prepared.plan,
            adapter=self.request.adapter,
            prompt_hash=self.request.prompt_hash,
            output_usd=self.guarded("price_failed", None, self.output_usd, record.usage),
        )

    def take_notices(self) -> tuple[Notice, ...]:
        """The notices of failed steps since the last call."""
        if not self._notices:
            return ()
        taken = tuple(self._notices)
        self._notices.clear()
        return taken

    def build_record(
        self, prepared: PreparedRequest, notices: tuple[Notice, ...], *, observed: bool
    ) -> Record:
        """The record of an answered call, with all notices so far. Never fails."""
        blocks: tuple[BlockShare, ...] = ()
        if observed:
            blocks = self.guarded("record_failed", (), prepared.block_shares)
        notices += self.target.notices + self.take_notices()
        try:
            self.record = self.full_record(prepared, notices, blocks)
        except Exception as problem:
            self.failed("record_failed", problem)
            notices += self.take_notices()
            usage = Usage() if self.reply is None else self.reply.usage
            self.record = self._basic_record(usage=usage, cost_usd=self.cost_usd, notices=notices)
        return self.record

    def full_record(
        self, prepared: PreparedRequest, notices: tuple[Notice, ...], blocks: tuple[BlockShare, ...]
    ) -> Record:
        reply, params = self.reply, prepared.call.params
        assert reply is not None
        return self._basic_record(
            answered_by=reply.model,
            response_id=reply.id,
            request_id=self.request_id,
            emulated=EMULATED in self.headers,
            first=self.first_at - self.began,
            attempts=tuple(self.attempts),
            max_tokens=params.max_tokens,
            temperature=params.temperature,
            stop_reason=reply.stop_reason,
            usage=reply.usage,
            predicted=self.predicted,
            verdict=self.verdict,
            cost_usd=self.cost_usd,
            saved=self.saved,
            blocks=blocks,
            notices=notices,
        )

    def complete_error(self, problem: BaseException) -> None:
        """Adds the attempts and the received reply to the error of a failed call."""
        if isinstance(problem, AnaphoraError):
            problem.attempts = tuple(self.attempts)
            if problem.partial is None:
                # A reply that does not match the output was paid for.
                problem.partial = self.reply

    def failed_record(self, error: BaseException) -> Record:
        """The record of a failed call, or of one whose response could not be used."""
        name = type(error).__name__
        if self.record is not None:
            record = self.record if self.judgement is None else self.judgement(self.record)
            return msgspec.structs.replace(record, error=name)
        request_id = next((a.request_id for a in reversed(self.attempts) if a.request_id), None)
        return self._basic_record(attempts=tuple(self.attempts), request_id=request_id, error=name)

    def _basic_record(self, **fields: Any) -> Record:
        endpoint = self.target.endpoint
        return Record(
            operation=self.request.operation,
            provider=endpoint.id,
            system=endpoint.system,
            wire=endpoint.wire_name,
            host=endpoint.host,
            model=self.target.model,
            streamed=self.stream,
            at=self.began,
            seconds=time.time() - self.began,
            **fields,
        )

    def charge(self, prepared: PreparedRequest, usage: Usage) -> Price | None:
        """Sets the cost of an answered call, or adds a notice; returns the price."""
        target, tier = self.target, service_tier(prepared)
        try:
            price = self._price(tier)
            if self.reply is not None and self.reply.extras:
                served = served_tier(self.reply, tier)
                if served != tier:  # a flex or priority call that ran on the standard tier
                    price = self._price(served) or price
            self.cost_usd = cost_of(usage, price, prepared.plan)
            raw = usage.raw or ""
            if self.cost_usd is not None and price is not None and '"AUDIO"' in raw:
                self.cost_usd += audio_usd(raw, price, target.bounds.media.audio_factor)
            if self.cost_usd is not None and '"iterations"' in raw:
                self.cost_usd += iterations_usd(
                    usage, price, prepared.plan, partial(self._price, tier)
                )
        except Exception as problem:
            self.failed("price_failed", problem)
            return None
        if self.cost_usd is None:
            self._notices.append(cost_unknown(target, tier, usage, price))
        return price

    def output_usd(self, usage: Usage) -> Decimal | None:
        """The cost of the output."""
        prepared = self.prepared.get(self.index)
        if prepared is None or usage.output is None:
            return None
        price = self._price(service_tier(prepared))
        return None if price is None else price.of_output(usage)

    def _price(self, tier: str, model: str = "") -> Price | None:
        """The price of the model that answered, or of another one that took part."""
        target = self.target
        answered = target.model if self.reply is None else self.reply.model
        if (model or answered) == target.model:
            return target.price(self.sent_at, tier, batch=self.batch)
        if model in ("", answered):
            model = answering_model(target, answered)
        return price_of_model(target, model, self.sent_at, tier, batch=self.batch)


def service_tier(prepared: PreparedRequest) -> str:
    """The requested service tier; empty if the wire does not have it."""
    tier = prepared.call.params.service_tier
    if not tier or any(each.path == "params.service_tier" for each in prepared.rendered.notices):
        return ""
    return tier


class AttemptGuard:
    """Allows each attempt of a call, and accounts for it when it has ended."""

    async def begin(self, flight: InFlight) -> None:
        """Right before an attempt is sent. Raises `Denied` or `BudgetExceeded` if it may not be."""

    def sending(self) -> None:
        """Right before the first byte of the attempt is written to a connection."""

    def end(
        self, flight: InFlight, error: BaseException | None, *, sent: bool, partial: Reply | None
    ) -> None:
        """Once for each attempt that was prepared. Must not raise. `sent`: the request may have
        reached the provider; `partial`: the received part of an incomplete reply."""

    def pays_handles(self, target: Target, prepared: PreparedRequest) -> bool:  # noqa: ARG002
        """Whether the plan may store something at the provider before the call."""
        return True


class AttemptCaller(AttemptGuard):
    """The callbacks of `Attempts`. For each attempt, in this order: `prepare` (once for each
    target), `admission`, `begin`, `sending`, `response_began`, `end`."""

    guards = False
    """Whether `begin`, `sending`, `end` and `time_over` are used."""
    _on_wait: Callable[[float], None] | None = None
    """Called with the seconds of a delay by rate limits, before the delay."""

    @property
    def is_left(self) -> bool:
        """Whether the caller has stopped waiting: then no further attempt is made."""
        return False

    async def check_cold(self, flight: InFlight, guard: ColdGuard) -> None:
        """Raises `ColdCache` if the call is cold at its first target. The time that the app's
        function takes does not count as the call's."""
        if guard.is_on:
            await guard.check(await self.preview(flight))

    async def preview(self, flight: InFlight) -> Preview:
        """The call as it would be sent now to its first target."""
        raise NotImplementedError

    async def prepare(self, flight: InFlight, index: int, again: bool) -> PreparedRequest:
        """The request for a target; `again`: after an error of `prepare_again_on`."""
        raise NotImplementedError

    def count_tokens(self, target: Target, prepared: PreparedRequest) -> int:  # noqa: ARG002
        """The estimated prompt tokens that count against rate limits."""
        return Counts(prepared.rendered).total

    def stored_tokens(self, target: Target, prepared: PreparedRequest) -> int | None:  # noqa: ARG002
        """The size of the history that a request continues at the provider; None if unknown."""
        return None

    def retry_of(self, target: Target) -> RetryConfig:
        return target.endpoint.config.retry

    def admission(
        self, target: Target, tokens: int, deadline: float
    ) -> AbstractAsyncContextManager[Admission]:
        """The admission of an attempt by the target's rate limits."""
        return target.gate.admit(tokens, deadline, self._on_wait)

    def response_began(self) -> None:
        """The provider has begun to answer with a success status; the body has not been read."""

    def time_over(self) -> float:
        """The call's time is over. Returns for how many more seconds to wait for the provider,
        without the caller; 0 ends the call now."""
        return 0.0
