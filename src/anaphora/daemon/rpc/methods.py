"""The methods of apps: their params, results and implementations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from anaphora.client.provider_errors import event_error
from anaphora.daemon import LLM_COMPLETE_METHOD, LlmCompleteInput, LlmCompleteResponse
from anaphora.daemon.access.grants import NARROW, dollars
from anaphora.daemon.access.tokens import LONGEST, LONGEST_LABEL, NarrowedToken
from anaphora.daemon.calls.call import AppCall
from anaphora.daemon.calls.delegation import CallStream
from anaphora.errors import InvalidRequest, Transport
from anaphora.values import ReplyFail
from anaphora.version import __version__

from .completion import (
    CompleteParams,
    CompleteResult,
    DeltaParams,
    DeltaWriter,
    PromptParams,
    call_of,
    nexo_call,
    nexo_result,
    result_of,
)
from .method import MethodContext, RpcMethod


class EmptyParams(msgspec.Struct, frozen=True):
    """No params."""


class CancelParams(msgspec.Struct, frozen=True):
    id: str | int | float | None
    """The id of a running request, on the same stdio connection or else of the same app."""


class CancelResult(msgspec.Struct, frozen=True):
    cancelled: bool
    """False if no such request was running."""


class NarrowParams(msgspec.Struct, frozen=True, kw_only=True):
    usd: Annotated[float, Meta(gt=0)]
    """What the token may spend in its life, with those narrowed from it."""
    expires_s: Annotated[float, Meta(gt=0, le=LONGEST)]
    """Its life in seconds. It ends with the calling token at the latest."""
    models: Annotated[tuple[str, ...], Meta(extra_json_schema={"minItems": 1})] | None = None
    """Globs of models that the calling token may use; by default all of those."""
    label: Annotated[str, Meta(extra_json_schema={"maxLength": LONGEST_LABEL})] = ""
    """For the spend, the audit log and pages: printable characters."""


class NarrowResult(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    """It is not shown again."""
    token_id: str
    """Also the id of its budget."""
    usd: str
    models: tuple[str, ...]
    """The globs; empty: those of the calling token."""
    label: str
    expires: float
    """Seconds since 1970."""


class RpcBudget(msgspec.Struct, frozen=True, kw_only=True):
    token_id: str
    parent: str
    """The id of the token that it was narrowed from; empty: the operator made it."""
    label: str
    usd: str
    spent_usd: str | None
    """With the tokens narrowed from it. None if that would show what other apps cache."""
    held_usd: str | None
    """For running calls; None as for `spent_usd`."""
    expires: float


class BudgetList(msgspec.Struct, frozen=True):
    budgets: tuple[RpcBudget, ...]
    """The calling token's own, and those of valid tokens narrowed from it."""


class ExplainParams(msgspec.Struct, frozen=True):
    request_id: str
    """The request id in a call's result."""


class TokenCount(msgspec.Struct, frozen=True):
    tokens: int
    exact: bool
    """Whether the provider counted them; otherwise estimated."""


class RpcModel(msgspec.Struct, frozen=True, kw_only=True):
    provider: str
    model: str
    context: int | None
    """Tokens of the context window, if known."""
    max_output: int | None


class ModelList(msgspec.Struct, frozen=True):
    models: tuple[RpcModel, ...]
    """The models that the app may call."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    version: str
    app: str | None
    """The app of the caller's token; null for an administrator."""


# ── The methods ──────────────────────────────────────────────────────────────────────────────────


async def nexo_complete(context: MethodContext, params: LlmCompleteInput) -> LlmCompleteResponse:
    call = context.app_call(params, await context.work(lambda: nexo_call(params)))
    reply = await context.calls.complete(call)
    context.notices.extend((*call.notices, *reply.notices))
    return nexo_result(reply)


async def complete(context: MethodContext, params: CompleteParams) -> CompleteResult:
    call = context.app_call(params, await context.work(lambda: call_of(params)))
    if params.stream:
        return await _stream(context, call)
    reply = await context.calls.complete(call)
    return result_of(reply, (*call.notices, *context.ignored_notices()))


async def _stream(context: MethodContext, call: AppCall) -> CompleteResult:
    stream = context.calls.stream(call)
    return await stream.run(_write_deltas(context, stream, call))


async def _write_deltas(
    context: MethodContext, stream: CallStream, call: AppCall
) -> CompleteResult:
    deltas = DeltaWriter(context.id)
    failure: ReplyFail | None = None
    await stream.head()
    async for piece in stream:
        if lines := deltas.lines(piece.events):
            await context.notify(lines)
        if piece.events and isinstance(piece.events[-1], ReplyFail):
            failure = piece.events[-1]
    if stream.reply is None:
        raise event_error(failure) if failure else Transport("the stream broke", phase="body")
    return result_of(stream.reply, (*call.notices, *context.ignored_notices()))


async def cancel(context: MethodContext, params: CancelParams) -> CancelResult:
    return CancelResult(context.requests.cancel(context, params.id))


async def models(context: MethodContext, _: EmptyParams) -> ModelList:
    app = context.app
    may_call = app is not None and "llm_complete" in app.grant.capabilities
    granted = context.calls.models(context.calling_app) if may_call else ()
    return ModelList(
        tuple(
            RpcModel(
                provider=one.provider,
                model=one.model,
                context=one.context,
                max_output=one.max_output,
            )
            for one in granted
            if not one.is_route
        )
    )


async def count_tokens(context: MethodContext, params: PromptParams) -> TokenCount:
    call = context.app_call(params, await context.work(lambda: call_of(params)))
    return TokenCount(*await context.calls.count_tokens(call))


async def explain(context: MethodContext, params: ExplainParams) -> dict[str, Any]:
    app = context.app
    explained = None if app is None else context.calls.explain(app, params.request_id)
    if explained is None:
        raise InvalidRequest("no recent call of this app has this id", path="request_id")
    return explained


async def narrow(context: MethodContext, params: NarrowParams) -> NarrowResult:
    app = context.calling_app
    wanted = NarrowedToken.checked(
        usd=params.usd,
        models=params.models,
        seconds=params.expires_s,
        label=params.label,
    )
    if app.grant.llm.requests_per_minute is not None:
        context.calls.tools.rates.admit(app, 0)
    new = await context.tokens.narrow(app.id, wanted, parent=app.token_id)
    row = new.row
    return NarrowResult(
        token=new.token.reveal(),
        token_id=row.id,
        usd=dollars(row.nano_usd or 0),
        models=row.models,
        label=row.label,
        expires=row.expires or 0.0,
    )


async def budgets(context: MethodContext, _: EmptyParams) -> BudgetList:
    app = context.app
    if app is None:
        return BudgetList(())
    shows = not context.calls.hides_reads(app.id)
    found = await context.tokens.budgets(app)
    return BudgetList(
        tuple(
            RpcBudget(
                token_id=one.token.id,
                parent=one.token.parent,
                label=one.token.label,
                usd=dollars(one.token.nano_usd or 0),
                spent_usd=dollars(one.spent) if shows else None,
                held_usd=dollars(one.held) if shows else None,
                expires=one.token.expires or 0.0,
            )
            for one in found
        )
    )


async def health(context: MethodContext, _: EmptyParams) -> Health:
    app = None if context.app is None else context.app.id
    return Health(status="ok", version=__version__, app=app)


_METHODS = (
    RpcMethod(
        name=LLM_COMPLETE_METHOD,
        params=LlmCompleteInput,
        result=LlmCompleteResponse,
        run=nexo_complete,
        capability="llm_complete",
        calls_provider=True,
        notified=False,
    ),
    RpcMethod(
        name="llm.complete",
        params=CompleteParams,
        result=CompleteResult,
        run=complete,
        capability="llm_complete",
        calls_provider=True,
        notified=False,
    ),
    RpcMethod(
        name="llm.count_tokens",
        params=PromptParams,
        result=TokenCount,
        run=count_tokens,
        capability="llm_complete",
        calls_provider=True,
        notified=False,
    ),
    RpcMethod(
        name="llm.narrow",
        params=NarrowParams,
        result=NarrowResult,
        run=narrow,
        capability=NARROW,
        notified=False,
    ),
    RpcMethod(name="llm.budgets", params=EmptyParams, result=BudgetList, run=budgets),
    RpcMethod(name="llm.cancel", params=CancelParams, result=CancelResult, run=cancel),
    RpcMethod(name="llm.models", params=EmptyParams, result=ModelList, run=models),
    RpcMethod(name="llm.explain", params=ExplainParams, result=dict[str, Any], run=explain),
    RpcMethod(name="health", params=EmptyParams, result=Health, run=health),
)

METHODS: Mapping[str, RpcMethod] = {method.name: method for method in _METHODS}


def schemas(methods: Mapping[str, RpcMethod] = METHODS) -> dict[str, Any]:
    """JSON Schemas of the params and the result of each method, and of the params of
    `llm.delta`."""
    kinds = [kind for method in methods.values() for kind in (method.params, method.result)]
    found, definitions = msgspec.json.schema_components(
        [*kinds, DeltaParams], ref_template="#/$defs/{name}"
    )
    written = iter(found)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "methods": {name: {"params": next(written), "result": next(written)} for name in methods},
        "notifications": {"llm.delta": {"params": next(written)}},
        "$defs": definitions,
    }
