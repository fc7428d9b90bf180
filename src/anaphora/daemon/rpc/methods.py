"""The methods of apps: their params, results, capabilities and implementations."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated, Any, Protocol, TypeVar, get_args

import msgspec
from msgspec import Meta

from anaphora.client.provider_errors import event_error
from anaphora.daemon import LLM_COMPLETE_METHOD, LlmCompleteInput, LlmCompleteResponse
from anaphora.daemon.access.grants import NARROW, Capability, dollars
from anaphora.daemon.access.identity import Directory
from anaphora.daemon.access.narrowing import LONGEST, LONGEST_LABEL, NarrowedToken
from anaphora.daemon.calls.call import AppCall
from anaphora.daemon.calls.delegation import CallService, CallStream
from anaphora.daemon.off_loop import OffLoop
from anaphora.daemon.values import App
from anaphora.errors import InvalidRequest, Transport
from anaphora.prompt import Call
from anaphora.values import Notice, ReplyFail
from anaphora.version import __version__
from anaphora.wire.reading import decode_members, decode_value, request_error

from .completion import (
    CompleteParams,
    CompleteResult,
    DeltaParams,
    DeltaWriter,
    PromptParams,
    RpcSystemBlock,
    call_of,
    nexo_call,
    nexo_result,
    result_of,
)
from .protocol import NULL, RequestKey

T = TypeVar("T")

#: Maximum number of ignored params that are named.
_MOST_IGNORED = 20
#: Words for expected and given types in errors about params.
_WANTED = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}
_GIVEN: dict[type, str] = {str: "a text", list: "a list", dict: "an object"}
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_EXPECTED = re.compile(r"Expected `([^`]*)`(?: ([<>]=? [\d.]+))?(?:, got `.*)?")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_decode_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


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
    reserve: bool = False
    """Carve the amount out of what the calling token may spend."""


class NarrowResult(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    """It is not shown again."""
    token_id: str
    """Also the id of its budget."""
    usd: str
    models: tuple[str, ...]
    """The globs; empty: those of the calling token."""
    label: str
    reserved: bool
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
    reserved: bool
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


class Cancels(Protocol):
    async def cancel(self, context: MethodContext, key: RequestKey) -> bool:
        """Cancels a request of the same caller. Returns whether one was running."""
        ...


class MethodContext(msgspec.Struct, kw_only=True, eq=False):
    """One request, and the objects that methods need to answer it."""

    calls: CallService
    tokens: Directory
    requests: Cancels
    app: App | None
    connection: str
    """Name of the caller's connection; empty over HTTP."""
    method: str
    request_id: str
    id: bytes = NULL
    ignored: tuple[str, ...] = ()
    off_loop: OffLoop | None = None
    """Reads large requests in threads."""
    notify: Callable[[bytes], Awaitable[None]]
    """Writes lines; returns when the caller can accept more."""
    notices: list[Notice]
    """Notices for the header of the response."""

    @property
    def calling_app(self) -> App:
        assert self.app is not None, "checked by the service"
        return self.app

    async def work(self, act: Callable[[], T]) -> T:
        """Runs `act`, whose time grows with the size of the request; in a thread if that is
        large."""
        if self.off_loop is None:
            return act()
        return await self.off_loop.run("" if self.app is None else self.app.id, act)

    def app_call(self, params: LlmCompleteInput | PromptParams, call: Call) -> AppCall:
        timeout = getattr(params, "timeout_ms", None)
        return AppCall(
            app=self.calling_app,
            request_id=self.request_id,
            method=self.method,
            provider=params.provider,
            model=params.model,
            stream=getattr(params, "stream", False),
            is_large=self.off_loop is not None,
            call=call,
            timeout=None if timeout is None else timeout / 1000,
            allows_cold=getattr(params, "cold", None) is not None,
            ignored=self.ignored,
        )

    def ignored_notices(self) -> tuple[Notice, ...]:
        return tuple(
            Notice("param_ignored", "unknown; it was ignored", name) for name in self.ignored
        )


Run = Callable[[MethodContext, Any], Awaitable[object]]


class RpcMethod(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    params: type[msgspec.Struct]
    result: Any
    run: Run
    capability: Capability | None = None
    calls_provider: bool = False
    notified: bool = True
    """Whether it is executed as a notification, whose answer is lost."""

    def read_params(self, data: bytes) -> Any:
        """Raises `InvalidRequest` with the path of the field."""
        try:
            return decode_value(data, self.params, "", request_error)
        except InvalidRequest as problem:
            path = problem.path.removeprefix(".")
            reason = _error_text(problem.reason, path, data, _choices(self.params, path))
            raise InvalidRequest(reason, path=path) from None

    def ignored_params(self, data: bytes) -> tuple[str, ...]:
        """Names of params and message fields unknown to the method."""
        known = {field.encode_name: field for field in msgspec.structs.fields(self.params)}
        members = decode_members(data)
        ignored = [name for name in members if name not in known]
        if "messages" in known and "messages" in members:
            ignored += _unknown_fields(members["messages"], known["messages"].type)
        return tuple(name[:64] for name in ignored[:_MOST_IGNORED])


def _choices(params: type[msgspec.Struct], path: str) -> tuple[str, ...]:
    """The allowed texts of the field at a path, if it is an enumeration."""
    name = path.rpartition(".")[2]
    fields = {field.name: field.type for field in msgspec.structs.fields(params)}
    if "messages" not in fields:
        return ()
    struct = RpcSystemBlock if name == "cache" else fields["messages"].__args__[0]
    for field in msgspec.structs.fields(struct):
        if field.name == name:
            return get_args(field.type)
    return ()


def _unknown_fields(messages: msgspec.Raw, kind: Any) -> list[str]:
    names = frozenset(kind.__args__[0].__struct_fields__)
    return [
        f"messages[{index}].{name}"
        for index, message in enumerate(_decode_objects(messages))
        for name in message
        if name not in names
    ]


def _error_text(reason: str, path: str, data: bytes, choices: Iterable[str] = ()) -> str:
    """msgspec's error for the value at `path` in our words. `choices` are its allowed texts."""
    if "matching regex" in reason:
        return "must not be blank"
    if (missing := _MISSING.fullmatch(reason)) is not None:
        return f"{missing[1]} is missing"
    given = _shown(_value_at(msgspec.json.decode(data), path))
    if reason.startswith("Invalid enum value"):
        return f"must be one of {', '.join(choices)}, not {given}"
    expected = _EXPECTED.fullmatch(reason)
    if expected is None:
        return reason
    names = [name for name in expected[1].split(" | ") if name != "null"]
    wanted = " or ".join(_WANTED.get(name, name) for name in names)
    bound = f" {expected[2].removesuffix('.0')}" if expected[2] else ""
    return f"must be {wanted}{bound}, not {given}"


def _value_at(value: Any, path: str) -> Any:
    for name, index in _STEP.findall(path):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and index and int(index) < len(value):
            value = value[int(index)]
        else:
            break
    return value


def _shown(value: Any) -> str:
    """The value for an error message; long values are not repeated."""
    if isinstance(value, str) and len(value) <= 40:
        return json.dumps(value, ensure_ascii=False)
    return _GIVEN.get(type(value)) or json.dumps(value)


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
    return CancelResult(await context.requests.cancel(context, params.id))


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
    explained = None if app is None else await context.calls.explain(app, params.request_id)
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
        reserved=params.reserve,
    )
    new = await context.tokens.narrow(app.id, wanted, parent=app.token_id)
    row = new.row
    return NarrowResult(
        token=new.token.reveal(),
        token_id=row.id,
        usd=dollars(row.nano_usd or 0),
        models=row.models,
        label=row.label,
        reserved=row.reserved,
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
                reserved=one.token.reserved,
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
