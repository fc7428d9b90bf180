"""Charges for requests billed by input alone: embeddings. The maximum cost is held
while the request is sent, and settled by the tokens that the provider reports.

    async with charges.held(target, app, request_id, tokens, cost) as charge:
        response = await forwarder.send(…, on_write=charge.sending)
        charge.settle(reported)
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from anaphora.audit.envelope import AuditEnvelope, AuditUsage
from anaphora.client.failures import log
from anaphora.client.observe.export import label, outcome, word
from anaphora.client.target import Target
from anaphora.daemon.money.ledger import Ledger, OpenHold
from anaphora.daemon.store import LARGEST_AMOUNT, Hold
from anaphora.daemon.values import App
from anaphora.errors import Upstream
from anaphora.values import Usage

if TYPE_CHECKING:
    from anaphora.audit.log import AuditLog


class ProviderCharge:
    """The charge for one request, settled when the provider has answered."""

    def __init__(self, hold: OpenHold, cost: Callable[[int], int | None], most: int) -> None:
        """More reported tokens than `most` are impossible."""
        self._hold = hold
        self._cost = cost
        self._most = most
        self.tokens: int | None = None
        """The provider's count; None if it did not answer or report one."""
        self.billed: int | None = None
        """Nano-dollars; None without a bill or a price."""
        self.unbilled = 0
        """Nano-dollars charged without a bill."""
        self._written = False
        """The request may have been written to a connection."""

    def sending(self) -> None:
        """Called before the request is written to a connection."""
        self._written = True
        self._hold.sending()

    def settle(self, tokens: int | None) -> None:
        """Settles by the provider's token count, or at the bound if there is none."""
        if tokens is None:
            self.settle_at_bound()
            return
        cost, usage = self._cost(tokens), Usage(uncached=tokens)
        if tokens > self._most:
            self.unbilled = self._hold.hold.bound
            self._hold.settle_later(cost or 0, "disputed", usage=usage)
            return
        self.tokens, self.billed = tokens, cost
        self._hold.settle_later(cost or 0, "billed", usage=usage)

    def release(self) -> None:
        self.billed = 0
        self._hold.release()

    def fail(self) -> None:
        """Settles a request without an answer: the provider may have done the work, unless nothing
        was sent."""
        if self._written:
            self.settle_at_bound()
        else:
            self.release()

    def settle_at_bound(self) -> None:
        self.unbilled = self._hold.hold.bound
        self._hold.settle_at_bound()


class ProviderCharges:
    """Makes charges. `method` and `operation` are written to the audit rows."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Callable[[], float],
        audit: AuditLog | None,
        *,
        method: str,
        operation: str,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._audit = audit
        self._method = method
        self._operation = operation

    @contextlib.asynccontextmanager
    async def held(
        self,
        target: Target,
        app: App,
        request_id: str,
        tokens: int,
        cost: Callable[[int], int | None],
        most: int | None = None,
    ) -> AsyncIterator[ProviderCharge]:
        """Holds the cost of `tokens`. `cost` returns nano-dollars; None: no price is known."""
        hold = await self._ledger.hold(
            app,
            provider=target.endpoint.id,
            model=target.model,
            request_id=request_id,
            bound=cost(tokens) or 0,
        )
        charge = ProviderCharge(hold, cost, LARGEST_AMOUNT if most is None else most)
        error: BaseException | None = None
        try:
            yield charge
        except Upstream as problem:
            charge.release()  # the provider refused it
            error = problem
            raise
        except BaseException as problem:
            charge.fail()
            error = problem
            raise
        finally:
            self._write_row(hold.hold, app, target, charge, error)

    def _write_row(
        self,
        hold: Hold,
        app: App,
        target: Target,
        charge: ProviderCharge,
        error: BaseException | None,
    ) -> None:
        """Never raises: the provider has answered."""
        if self._audit is None:
            return
        row = AuditEnvelope(
            at=round(hold.at, 6),
            app=label(hold.app),
            group=label(app.grant.group) if app.grant.group else "",
            budget=app.budget,
            budget_label=label(app.label) if app.label else "",
            adapter="daemon",
            method=self._method,
            operation=self._operation,
            call_id=word(hold.request_id),
            provider=label(hold.provider),
            system=label(target.endpoint.system),
            wire=label(target.endpoint.base_wire),
            model=word(hold.model),
            outcome=outcome(None if error is None else type(error).__name__),
            status=getattr(error, "status", None),
            seconds=round(max(0.0, self._clock() - hold.at), 6),
            usage=AuditUsage(uncached=charge.tokens),
            cost_nano_usd=charge.billed,
            unbilled_nano_usd=charge.unbilled,
        )
        try:
            self._audit.append(row)
        except Exception as problem:
            reason = f"{self._method} was not audited: {type(problem).__name__}"
            log(logging.ERROR, reason, problem)
