"""The endpoints as a part of the daemon's handler."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from anaphora.canonical import dumps
from anaphora.client.config.secrets import Secret
from anaphora.daemon.access.granted_models import with_nearest
from anaphora.daemon.calls.call import AppCall, AppReply
from anaphora.daemon.calls.delegation import CallService, CallStream
from anaphora.daemon.calls.steps.request import ReadBody
from anaphora.daemon.faces import PLAIN_ROUTES, STARTS, face_at, face_of, find_route
from anaphora.daemon.faces.face import JSON, Route, path_not_found
from anaphora.daemon.store import HandleRow
from anaphora.daemon.store.interface import Store
from anaphora.daemon.values import ERROR_KEY, REQUEST_ID_KEY, App, kind_of
from anaphora.errors import (
    AnaphoraError,
    Denied,
    NotFound,
    RequestRejected,
)
from anaphora.serving.exchange import CompleteResponse, HttpExchange
from anaphora.values import Notice
from anaphora.wire.reading import DECODE_ERRORS

from .body import check_headers
from .embeddings import Embeddings
from .errors import error_response, provider_error
from .headers import BETA_NOT_GRANTED, own_headers, query_fields
from .stored import KeptObjects, ObjectRequests
from .writing import StreamBody, stream_headers, write_model, write_models, write_reply

#: With this permission a reply may be stored.
_KEEPING = "stored_responses"
#: Seconds after which a call is watched for its client disconnecting.
_WATCH_SECONDS = 0.25
#: Beginnings of paths that name a model, whose name may be percent-encoded.
_NAMING_MODELS = tuple(
    f"/{name}/"
    for name in "v1beta v1beta1 v1alpha v1/models v1/projects model openai/deployments".split()
)


class Endpoints:
    """Answers requests at the paths of the providers."""

    def __init__(
        self,
        calls: CallService,
        store: Store,
        stored: ObjectRequests | None = None,
        embeddings: Embeddings | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._calls = calls
        self._store = store
        self._stored = stored
        self._embeddings = embeddings
        self._clock = clock
        self._kept = KeptObjects(store)
        self._checked_path = lru_cache(maxsize=512)(_checked_path)
        calls.pipeline.use(ReadBody(calls.tools, calls.permit, store))

    def serves(self, _method: str, path: str) -> bool:
        """Whether a path is in a provider's namespace. `handle` answers all of these, some with an
        error."""
        return path.startswith(STARTS)

    def token_of(self, exchange: HttpExchange) -> Secret | None:
        """The token for a request without one that continues an upload: the one that began it."""
        return None if self._stored is None else self._stored.uploads.token(exchange)

    def error(self, exchange: HttpExchange, problem: AnaphoraError) -> CompleteResponse:
        """A problem in the format that the caller of a path expects."""
        exchange.scope[ERROR_KEY] = kind_of(problem)
        face = face_at(exchange.path, exchange.headers)
        return error_response(face, problem, exchange.scope.get(REQUEST_ID_KEY, ""))

    async def handle(self, call: AppCall) -> None:
        """Answers a request of an app, within `exchange.run`. Problems are written in the caller's
        format."""
        exchange = call.exchange
        assert exchange is not None
        try:
            await self._answer(exchange, call)
        except AnaphoraError as problem:
            if exchange.started:
                raise
            response = self.error(exchange, provider_error(problem))
            await exchange.respond(response)

    async def _answer(self, exchange: HttpExchange, call: AppCall) -> None:
        check_headers(exchange.header_pairs)
        raw = (exchange.scope.get("raw_path") or exchange.path.encode()).partition(b"?")[0]
        method, path = exchange.method, self._checked_path(raw)
        route = PLAIN_ROUTES.get((method, path)) or find_route(method, path, exchange.headers)
        call.route = route
        app, request_id = call.app, call.request_id
        match route.operation:
            case "generate" | "stream" | "count":
                await self._call(exchange, route, call)
            case "embed":
                await self._embed(route, call)
            case "models" | "model":
                body = self._model_data(route, app)
                await self._respond(exchange, route, request_id, body)
            case _:
                if self._stored is None:
                    raise NotFound("there are no stored objects here", status=404)
                try:
                    await self._stored.handle(exchange, route, app, request_id)
                except Denied as error:
                    self._calls.deny(app, route.path, error, request_id=request_id)
                    raise

    async def _embed(self, route: Route, call: AppCall) -> None:
        if self._embeddings is None:
            raise path_not_found(route.path)
        call.method = route.path
        self._calls.permit.check_early(call, stream=False)
        try:
            await self._embeddings.handle(route, call)
        except Denied as error:
            self._calls.tools.refuse(call, error)
            raise

    # ── Models ───────────────────────────────────────────────────────────────────────────────────

    def _model_data(self, route: Route, app: App) -> bytes:
        models = self._calls.models(app)
        if route.operation == "models":
            return write_models(route.face, models)
        return write_model(route.face, models, route.name)

    # ── Calls ────────────────────────────────────────────────────────────────────────────────────

    async def _call(self, exchange: HttpExchange, route: Route, call: AppCall) -> None:
        await self._calls.pipeline.before["read"](call)
        exchange.watch_later(_WATCH_SECONDS)
        try:
            if route.operation == "count":
                await self._count(exchange, route, call)
            elif call.stream:
                stream = self._calls.stream(call)
                await stream.run(self._write_stream(stream, exchange, route, call))
            else:
                reply = await self._calls.complete(call)
                notices = call.notices
                if _KEEPING in call.app.grant.llm.permissions:
                    notices += await self._keep(call, reply)
                head, data = write_reply(route.face, reply, notices)
                await exchange.respond(CompleteResponse(200, head, data))
        except NotFound as problem:
            models = self._calls.models(call.app)
            if not problem.wire or any(one.model == call.model for one in models):
                raise
            text = with_nearest(str(problem), call.model or "", models)
            raise problem.restated(text) from None
        except RequestRejected as problem:
            if (named := _naming_left_out(problem, call.notices)) is not None:
                raise named from None
            raise

    async def _count(self, exchange: HttpExchange, route: Route, call: AppCall) -> None:
        tokens, exact = await self._calls.count_tokens(call)
        fields = face_of(route.face).count_fields(tokens)
        notices: tuple[Notice, ...] = ()
        if not exact:
            notices = (Notice("estimated", "the tokens are estimated, not counted by a provider"),)
        await self._respond(exchange, route, call.request_id, dumps(fields), notices)

    async def _write_stream(
        self, stream: CallStream, exchange: HttpExchange, route: Route, call: AppCall
    ) -> None:
        assert call.body is not None
        value = call.body.value
        as_list = face_of(route.face).streams_as_list and not _wants_sse(exchange)
        head = await stream.head()
        out = StreamBody(route.face, head, asks_usage=_asks_usage(value), as_list=as_list)
        headers = stream_headers(route.face, head, call.notices, as_list=as_list)
        await exchange.start(200, headers)
        try:
            async for piece in stream:
                if data := out.feed(piece):
                    await exchange.write(data, more=True)
        except AnaphoraError as problem:
            await exchange.write(out.fail(problem), more=True)
        if stream.reply is not None and _KEEPING in call.app.grant.llm.permissions:
            stream.reply.notices += await self._keep(call, stream.reply)
        await exchange.write(out.finish(stream.reply))

    async def _keep(self, call: AppCall, reply: AppReply) -> tuple[Notice, ...]:
        """Records the owner of a reply's stored objects. The answer is paid for, so a failing store
        only adds a notice."""
        request, body = call.request, call.body
        if request is None or body is None or reply.wire != request.wire:
            return ()
        row = HandleRow(
            kind="response",
            id=reply.reply.id,
            app=call.app.owner,
            provider=reply.provider,
            created=self._clock(),
        )
        try:
            usage = reply.most_usage or reply.usage
            kept = face_of(request.wire).kept_objects(body.value, reply.reply, usage)
            await self._kept.add(row, kept)
        except (AnaphoraError, *DECODE_ERRORS):
            text = "the stored response could not be recorded: its id cannot be used later"
            return (Notice("handle_not_stored", text),)
        return ()

    async def _respond(
        self,
        exchange: HttpExchange,
        route: Route,
        request_id: str,
        body: bytes,
        notices: tuple[Notice, ...] = (),
    ) -> None:
        headers = {"content-type": JSON, **own_headers(route.face, request_id, notices=notices)}
        await exchange.respond(CompleteResponse(200, headers, body))


def _naming_left_out(
    problem: RequestRejected, notices: tuple[Notice, ...]
) -> RequestRejected | None:
    """The error with a hint that a beta was left out of the request: the provider may refuse its
    fields. None if none was left out."""
    left_out = [notice.message for notice in notices if notice.code == BETA_NOT_GRANTED]
    if not left_out:
        return None
    return problem.restated(f"{problem} ({'; '.join(left_out)})")


def _checked_path(raw: bytes) -> str:
    """The path, if every reader reads it the same way: no percent-encoding, except of `:` and `/`
    in model names, and no empty or dot segments."""
    path = raw.decode("latin-1")
    if "%" in path and path.startswith(_NAMING_MODELS):
        for code, character in (("%3A", ":"), ("%2F", "/"), ("%40", "@")):
            path = path.replace(code, character).replace(code.lower(), character)
    segments = path.split("/")[1:]
    if "%" in path or "\\" in path or any(each in ("", ".", "..") for each in segments):
        reason = "the path has percent-encoded characters, or empty or dot segments"
        raise RequestRejected(reason, status=400)
    if not path.isascii() or not path.isprintable():
        raise RequestRejected("the path has characters that are not ASCII", status=400)
    return path


def _wants_sse(exchange: HttpExchange) -> bool:
    return ("alt", "sse") in query_fields(exchange.query_string)


def _asks_usage(value: dict[str, Any]) -> bool:
    options = value.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True
