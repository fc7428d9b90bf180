"""InvokeModel with bodies of other models than Claude, such as Nova, Llama and Titan. They are
passed on unread, so a grant must allow everything that they may hold, and have no limit in dollars.
Their usage is in headers of the answer; that of a stream in its last event.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from anaphora.client.costs.bounds import nano_usd
from anaphora.client.target import Target
from anaphora.daemon.access.grants import LlmGrant
from anaphora.daemon.calls.call import AppCall, CallTools
from anaphora.daemon.calls.steps.request import PermitCall
from anaphora.daemon.faces.face import JSON, Route
from anaphora.errors import NotGranted
from anaphora.serving.exchange import CompleteResponse
from anaphora.tokens import tokens_in
from anaphora.traffic.sent_requests import billed_usage
from anaphora.values import Usage

from .body import read_json_bytes
from .charges import ProviderCharges
from .forwarding import Forwarder
from .headers import PROVIDER, check_options, own_headers, provider_request_id

if TYPE_CHECKING:
    from anaphora.audit.log import AuditLog

#: Output tokens that are held for a request whose limit is not read.
_MOST_OUTPUT = 65_536
_PROVIDER = "bedrock"


class Invocations:
    """Requests of InvokeModel that are passed on unread."""

    def __init__(
        self,
        tools: CallTools,
        permit: PermitCall,
        forwarder: Forwarder,
        *,
        audit: AuditLog | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._tools = tools
        self._permit = permit
        self._forwarder = forwarder
        self._clock = clock
        self._charges = ProviderCharges(
            tools.ledger, clock, audit, method="/model/*/invoke", operation="invoke"
        )

    async def handle(self, route: Route, call: AppCall) -> None:
        exchange, app = call.exchange, call.app
        assert exchange is not None
        _check(app.grant.llm)
        check_options(exchange.headers)
        data = await read_json_bytes(exchange)
        exchange.end_reading()
        call.provider, call.model = exchange.headers.get(PROVIDER), route.name
        target = self._target(call)
        tokens = tokens_in(len(data), target.profile.bytes_per_token.value)
        call.rated = self._tools.rates.admit(app, tokens)
        usage = Usage(uncached=len(data), output=_MOST_OUTPUT)

        def cost(_: int) -> int | None:
            price = target.price(self._clock())
            usd = None if price is None else price.of(usage)
            return None if usd is None else nano_usd(usd)

        held = self._charges.held(target, app, call.request_id, len(data), cost)
        async with held as charge:

            def sending() -> None:
                call.written = True
                charge.sending()

            response = await self._forwarder.send(
                target.endpoint.id,
                "POST",
                route.path,
                headers=(("content-type", JSON),),
                body=data,
                on_write=sending,
            )
            billed = billed_usage(response.headers, response.body)
            usage = billed or usage
            total = None if billed is None else (billed.input or 0) + (billed.output or 0)
            charge.settle(total)
            if call.rated is not None and total is not None:
                self._tools.rates.correct(call.rated, total)
        headers = {name: value for name, value in response.headers if _is_passed(name)}
        headers |= own_headers(
            route.face,
            call.request_id,
            provider=target.endpoint.id,
            provider_request_id=provider_request_id(response.headers),
        )
        await exchange.respond(CompleteResponse(200, headers, response.body))

    def _target(self, call: AppCall) -> Target:
        """The model at the first granted provider of Bedrock."""
        app, pool = call.app, self._tools.pool
        names = tuple(
            name
            for name in app.grant.llm.providers
            if name in pool.providers and pool.providers[name].system == _PROVIDER
        )
        if not names:
            reason = "no granted provider is one of Bedrock, which InvokeModel needs"
            raise NotGranted(reason, param="provider")
        llm = replace(app.grant.llm, providers=names)
        call.app = replace(app, grant=replace(app.grant, llm=llm))
        try:
            return self._permit.find_targets(call)[0][0]
        finally:
            call.app = app


def _check(grant: LlmGrant) -> None:
    """Raises `NotGranted` unless the grant allows everything that a body may hold."""
    if grant.has_spend_limit:
        reason = "bodies of this model are not read, so the cost has no bound"
        rule = "a call whose cost has no bound is refused under a limit in dollars"
        raise NotGranted(f"{reason} ({rule}): use Converse", param="model")
    if grant.max_tokens is not None or grant.approved_prompt is not None:
        reason = "bodies of this model are not read, but max_tokens or approved_prompt of the grant"
        raise NotGranted(f"{reason} has to be checked: use Converse", param="model")
    if "*" not in grant.tools or "*" not in grant.fields:
        reason = "bodies of this model are not read, so tools and allow (fields) of the grant must"
        raise NotGranted(f"{reason} be '*': use Converse", param="model")


def _is_passed(name: str) -> bool:
    return name == "content-type" or name.startswith("x-amzn-bedrock-")
