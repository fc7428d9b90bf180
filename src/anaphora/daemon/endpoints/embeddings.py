"""`/v1/embeddings`: checked against the grant, held and settled by its input, and audited.

A request is sent once, to one model: vectors of different models cannot be compared, so there is no
fallback. Apps need `embeddings` in `allow`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from anaphora.canonical import string
from anaphora.client.costs.bounds import nano_usd
from anaphora.client.target import Target
from anaphora.daemon.access.checks import is_granted, is_model_granted
from anaphora.daemon.access.grants import NANO, LlmGrant
from anaphora.daemon.calls.call import AppCall
from anaphora.daemon.calls.pipeline import CallTools
from anaphora.daemon.calls.steps.request import PermitCall
from anaphora.daemon.calls.translation import with_members
from anaphora.daemon.faces import face_of
from anaphora.daemon.faces.face import JSON, Route, model_in
from anaphora.daemon.values import App
from anaphora.errors import NotGranted, RequestRejected
from anaphora.redaction import quoted
from anaphora.serving.exchange import CompleteResponse
from anaphora.tokens import tokens_in
from anaphora.wire.reading import DECODE_ERRORS
from anaphora.wire.strict_json import is_heavy

from .body import JsonBody, read_object
from .charges import ProviderCharge, ProviderCharges
from .forwarding import Forwarder, ProviderResponse
from .headers import PROVIDER, forwarded_headers, own_headers, provider_request_id, returned_headers

if TYPE_CHECKING:
    from anaphora.audit.log import AuditLog

_KNOWN = frozenset(("model", "input", "encoding_format", "dimensions", "user"))
#: Endings of providers' generation paths.
_GENERATE = ("/chat/completions", "/responses")
#: Tokens that a model may add to each input, such as begin and end tokens.
_ADDED = 2
_MILLION = 1_000_000


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    total_tokens: int | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode


class Embeddings:
    """Requests for embeddings."""

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
        self._audit = audit
        self._clock = clock
        self._charges = ProviderCharges(
            tools.ledger, clock, audit, method="/v1/embeddings", operation="embeddings"
        )
        self._running: set[asyncio.Task[ProviderResponse]] = set()

    async def handle(self, route: Route, call: AppCall) -> None:
        """Answers a request. Raises `Denied` if the grant does not allow it."""
        exchange, app, grant = call.exchange, call.app, call.app.grant.llm
        assert exchange is not None
        if "embeddings" not in grant.permissions:
            reason = "an embedding is not in allow (embeddings) of the grant"
            raise NotGranted(reason, param="model")
        body = await read_object(exchange, self._tools.off_loop, app.id)
        for name in body.members:
            if name not in _KNOWN and not is_granted(name, grant.fields):
                reason = f"field {name[:64]!r} is not in allow (fields) of the grant"
                raise NotGranted(reason, param=name)
        given = body.value.get("input")
        if is_heavy(body.data):
            most = await self._tools.off_loop.run(app.id, lambda: most_tokens(given))
        else:
            most = most_tokens(given)
        call.provider = exchange.headers.get(PROVIDER)
        call.model = model_in(body.value.get("model"))
        target = self._target(call)
        if self._audit is not None:
            self._audit.check()
        estimated = tokens_in(most, target.profile.bytes_per_token.value)
        call.rated = self._tools.rates.admit(app, estimated)
        cost = _cost_of(target, grant, self._clock())
        # Continues if the app disconnects: the bill of the sent request is needed.
        task = asyncio.create_task(self._send(call, target, body, (estimated, most), cost))
        self._running.add(task)
        task.add_done_callback(self._ended)
        await exchange.respond(self._response(route, call, await asyncio.shield(task)))

    async def close(self) -> None:
        if self._running:
            await asyncio.wait(self._running)

    def _ended(self, task: asyncio.Task[ProviderResponse]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the app may have left

    def _target(self, call: AppCall) -> Target:
        """The model at the first granted provider that has embeddings."""
        pool, app = self._tools.pool, call.app
        names = tuple(
            name
            for name in app.grant.llm.providers
            if name in pool.routes or self._has_embeddings(name)
        )
        if names:
            llm = replace(app.grant.llm, providers=names)
            if call.provider is None:
                call.provider = self._pricing(app, names, call.model or "")
            call.app = replace(app, grant=replace(app.grant, llm=llm))
            try:
                targets, _ = self._permit.find_targets(call)
            finally:
                call.app = app
            for target in targets:
                if self._has_embeddings(target.endpoint.id):
                    return target
        wires = " or ".join(sorted(face_of("openai_chat").keepers))
        reason = f"no granted provider has embeddings: they need one whose wire is {wires}"
        raise NotGranted(reason, param="provider")

    def _pricing(self, app: App, names: tuple[str, ...], model: str) -> str | None:
        """The first provider with a price of a model, since the catalog lists no embedding models.
        An app may name the provider: `openai/MODEL`."""
        now, pool = self._clock(), self._tools.pool
        named = model.partition("/")[0]
        for name in (named,) if named in names else names:
            if name in pool.providers and not pool.routes.get(model):
                price = pool.endpoint(pool.providers[name]).target(model).price(now)
                if price is not None and price.input is not None:
                    if not is_model_granted(model, app.grant.llm):
                        reason = f"the model {quoted(model)} is not granted to {app.id}"
                        raise NotGranted(reason, param="model")
                    return name
        return None

    def _has_embeddings(self, provider: str) -> bool:
        return self._forwarder.provider_for("openai_chat", (provider,)) is not None

    async def _send(
        self,
        call: AppCall,
        target: Target,
        body: JsonBody,
        tokens: tuple[int, int],
        cost: Callable[[int], int | None],
    ) -> ProviderResponse:
        """`tokens` are the estimate and the maximum. Bill and rates are settled after the
        answer."""
        (estimated, most), endpoint = tokens, target.endpoint
        exchange = call.exchange
        assert exchange is not None
        data = body.data
        if body.value.get("model") != target.model:
            data = with_members(data, body.members, {"model": string(target.model)})
        headers, notices = forwarded_headers(exchange.headers, "openai_chat", call.app.grant.llm)
        deadline = time.monotonic() + endpoint.config.timeouts.total
        async with (
            target.gate.admit(estimated, deadline),
            self._charges.held(target, call.app, call.request_id, most, cost, most) as charge,
        ):
            response = await self._forwarder.send(
                endpoint.id,
                "POST",
                _path_at(target),
                headers=(*headers, ("content-type", JSON)),
                body=data,
                on_write=charge.sending,
            )
            charge.settle(_reported(response.body))
            self._settled(call, charge)
        call.provider, call.notices = endpoint.id, notices
        return response

    def _settled(self, call: AppCall, charge: ProviderCharge) -> None:
        if charge.billed is not None:
            call.shown_usd = Decimal(charge.billed) / NANO
        if call.rated is not None and charge.tokens is not None:
            self._tools.rates.correct(call.rated, charge.tokens)

    def _response(
        self, route: Route, call: AppCall, response: ProviderResponse
    ) -> CompleteResponse:
        own = own_headers(
            route.wire,
            call.request_id,
            provider=call.provider or "",
            notices=call.notices,
            cost_usd=call.shown_usd,
            provider_request_id=provider_request_id(response.headers),
        )
        headers = {**returned_headers(response.headers), "content-type": JSON, **own}
        return CompleteResponse(200, headers, response.body)


def most_tokens(given: Any) -> int:
    """The maximum number of tokens of an input: the UTF-8 bytes of a text. Raises `RequestRejected`
    if it is neither text, nor tokens, nor a list of these."""
    listed = given if isinstance(given, list) and not _are_tokens(given) else [given]
    tokens = 0
    for one in listed:
        if isinstance(one, str):
            tokens += len(one.encode("utf-8", "replace"))
        elif _are_tokens(one):
            tokens += len(one)
        else:
            reason = "input: must be a text, a list of texts, or tokens"
            raise RequestRejected(reason, status=400, param="input")
    return tokens + _ADDED * len(listed)


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


def _path_at(target: Target) -> str:
    endpoint = target.endpoint
    dialect = endpoint.resolved.dialect
    path = "" if dialect is None else dialect.path
    path = path or face_of(endpoint.base_wire).generate_path
    for end in _GENERATE:
        path = path.removesuffix(end)
    return f"{path}/embeddings"


def _cost_of(target: Target, grant: LlmGrant, at: float) -> Callable[[int], int | None]:
    """Nano-dollars by input tokens; None if no price is known and the grant has no limit in
    dollars."""
    price = target.price(at)
    if price is None or price.input is None:
        if grant.has_spend_limit:
            raise NotGranted(
                f"no price is known for {target.model} at {target.endpoint.id} (a call whose cost"
                " has no bound is refused under a limit in dollars): write it in `prices` of"
                " llm.yaml",
                param="model",
            )
        return lambda _: None

    def cost(tokens: int) -> int:
        rate = price.at(tokens).input or price.input or Decimal(0)
        return nano_usd(rate * tokens / _MILLION)

    return cost


def _reported(body: bytes) -> int | None:
    try:
        usage = _decode_answer(body).usage
    except DECODE_ERRORS:
        return None
    if usage is None:
        return None
    tokens = usage.prompt_tokens if usage.prompt_tokens is not None else usage.total_tokens
    return tokens if tokens is not None and tokens >= 0 else None
