"""The endpoints as a part of the daemon's handler."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from anaphora.canonical import dumps
from anaphora.client.config.secrets import Secret
from anaphora.daemon.access.granted_models import name_nearest
from anaphora.daemon.faces import face_of, find_route, serves, wire_of
from anaphora.daemon.faces.face import JSON, Route, model_in
from anaphora.daemon.off_loop import OffLoop
from anaphora.daemon.store import HandleRow, Store
from anaphora.daemon.values import (
    ERROR_KEY,
    App,
    AppCall,
    AppReply,
    AppStream,
    Delegation,
    StreamHead,
    WireRequest,
    kind_of,
)
from anaphora.errors import AnaphoraError, Denied, NotFound, RequestRejected, StoreUnavailable
from anaphora.serving.exchange import CompleteResponse, HttpExchange
from anaphora.values import Notice
from anaphora.wire.reading import DECODE_ERRORS

from .body import JsonBody, check_headers, parse_object
from .body_memory import AppBodies, CallBody, read_whole
from .errors import error_response, of_provider
from .headers import BETA_NOT_GRANTED, PROVIDER, forwarded_headers, own_headers, query_fields
from .incoming import read_json_bytes
from .kept import KeptObjects
from .references import Reference, check_references, without_comparison
from .stored import ObjectRequests
from .writing import StreamBody, stream_headers, write_model, write_models, write_reply

#: With one of these permissions a reply may be kept, or name a container.
_KEEPING = frozenset({"stored_responses", "background", "server_tools"})
#: Seconds after which a call is watched: it ends when its client disconnects.
_WATCH_SECONDS = 0.25
#: Where the id of a request is kept for errors that the server writes.
_REQUEST_ID = "anaphora.request_id"
#: Bytes of a request about a model.
_LARGEST_QUESTION = 64 * 1024
_OLLAMA_VERSION = b'{"version":"0.12.0"}'


class Endpoints:
    """Answers requests at the paths of the providers."""

    def __init__(
        self,
        delegation: Delegation,
        store: Store,
        stored: ObjectRequests | None = None,
        *,
        off_loop: OffLoop,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._off_loop = off_loop
        self._delegation = delegation
        self._store = store
        self._stored = stored
        self._clock = clock
        self._bodies = AppBodies()
        self._kept = KeptObjects(store)

    def serves(self, _method: str, path: str) -> bool:
        """Whether a path is one of a provider; `handle` answers at each, if only with an error."""
        return serves(path)

    def token_of(self, exchange: HttpExchange) -> Secret | None:
        """The token of a request that has none: it goes on with an upload that a token began."""
        return None if self._stored is None else self._stored.uploads.token(exchange)

    def error(self, exchange: HttpExchange, problem: AnaphoraError) -> CompleteResponse:
        """A problem in the format that the caller of a path expects."""
        exchange.scope[ERROR_KEY] = kind_of(problem)
        wire = wire_of(exchange.path, exchange.headers)
        return error_response(wire, problem, exchange.scope.get(_REQUEST_ID, ""))

    async def handle(self, exchange: HttpExchange, app: App, request_id: str) -> None:
        """Answers a request of an app, within `exchange.run`. Problems are written in the caller's
        format."""
        exchange.scope[_REQUEST_ID] = request_id
        try:
            await self._answer(exchange, app, request_id)
        except AnaphoraError as problem:
            if exchange.started:
                raise
            response = self.error(exchange, of_provider(problem))
            await exchange.respond(response)

    async def _answer(self, exchange: HttpExchange, app: App, request_id: str) -> None:
        check_headers(exchange.header_pairs)
        route = find_route(exchange.method, _plain_path(exchange), exchange.headers)
        match route.operation:
            case "generate" | "stream" | "count":
                await self._call(exchange, route, app, request_id)
            case "models" | "model" | "show" | "version":
                body = await self._model_data(exchange, route, app)
                await self._respond(exchange, route, request_id, body)
            case _:
                if self._stored is None:
                    raise NotFound("there are no stored objects here", status=404)
                try:
                    await self._stored.handle(exchange, route, app, request_id)
                except Denied as error:
                    self._delegation.deny(app, route.path, error, request_id=request_id)
                    raise

    # ── Models ───────────────────────────────────────────────────────────────────────────────────

    async def _model_data(self, exchange: HttpExchange, route: Route, app: App) -> bytes:
        if route.operation == "version":
            return _OLLAMA_VERSION
        models = self._delegation.models(app)
        if route.operation == "models":
            return write_models(route.wire, models)
        name = route.name
        if route.operation == "show":
            exchange.max_body = min(exchange.max_body, _LARGEST_QUESTION)
            value = parse_object(await read_json_bytes(exchange)).value
            name = model_in(value.get("model") or value.get("name"))
        return write_model(route.wire, models, name)

    # ── Calls ────────────────────────────────────────────────────────────────────────────────────

    async def _call(self, exchange: HttpExchange, route: Route, app: App, request_id: str) -> None:
        streams = route.operation == "stream"
        self._delegation.check_before_body(app, route.path, stream=streams, request_id=request_id)
        data = await read_json_bytes(exchange)
        reading = self._bodies.reading(app.id, route.wire, data)
        large = reading.is_large
        body = await self._off_loop.run(app.id, reading) if large else reading()
        exchange.end_reading()
        headers, notices = forwarded_headers(exchange.headers, route.wire, app.grant.llm)
        stores = "stored_responses" in app.grant.llm.permissions
        if not stores and (changed := without_comparison(route.wire, body)) is not None:
            reading = self._bodies.reading(app.id, route.wire, changed[0])
            body = await self._off_loop.run(app.id, reading) if large else reading()
            notices += (changed[1],)
        rows: tuple[HandleRow, ...] = ()
        face = face_of(route.wire)
        if face.keeps_objects:
            try:
                rows = await self._referred(app, route, body, large)
            except Denied as error:  # those of calls are noted by the delegation
                self._delegation.deny(app, route.path, error, request_id=request_id)
                raise
        self._bodies.keep(app.id, route.wire, body, refers=bool(rows))
        call = AppCall(
            app=app,
            request_id=request_id,
            method=route.path,
            provider=exchange.headers.get(PROVIDER),
            stored_at=rows[0].provider if rows else None,
            model=face.model_of(route, body.value),
            stream=face.is_stream(route, body.value),
            is_large=large,
            request=WireRequest(
                wire=route.wire,
                path=_counted_path(route.path) if route.operation == "count" else route.path,
                body=body.data,
                members=body.members,
                headers=headers,
                elements=body.elements,
            ),
        )
        exchange.watch_later(_WATCH_SECONDS)
        try:
            if route.operation == "count":
                await self._count(exchange, route, call)
            elif call.stream:
                await self._stream(exchange, route, call, body, notices)
            else:
                await self._complete(exchange, route, call, body, notices)
        except NotFound as problem:
            models = self._delegation.models(app)
            if not problem.wire or any(one.model == call.model for one in models):
                raise
            raise problem.restated(f"{problem}{name_nearest(call.model or '', models)}") from None
        except RequestRejected as problem:
            if (named := _naming_left_out(problem, notices)) is not None:
                raise named from None
            raise

    async def _referred(
        self, app: App, route: Route, body: CallBody, large: bool
    ) -> tuple[HandleRow, ...]:
        """The rows of the stored objects that a body names."""
        try:
            found: tuple[Reference, ...]
            if large:
                found = await self._off_loop.run(app.id, lambda: tuple(body.references()))
            else:
                found = tuple(body.references())
            return await check_references(self._store, app.id, found) if found else ()
        except AnaphoraError:
            if not body.known:
                raise
        # The error is that of the whole body.
        whole = read_whole(route.wire, body.data)
        return await check_references(self._store, app.id, whole.references())

    async def _count(self, exchange: HttpExchange, route: Route, call: AppCall) -> None:
        tokens, exact = await self._delegation.count_tokens(call)
        fields = face_of(route.wire).count_fields(tokens)
        notices: tuple[Notice, ...] = ()
        if not exact:
            notices = (Notice("estimated", "the tokens are estimated, not counted by a provider"),)
        await self._respond(exchange, route, call.request_id, dumps(fields), notices)

    async def _complete(
        self,
        exchange: HttpExchange,
        route: Route,
        call: AppCall,
        body: JsonBody,
        notices: tuple[Notice, ...],
    ) -> None:
        reply = await self._delegation.complete(call)
        notices += await self._keep(call, body, reply)
        head, data = write_reply(route.wire, reply, notices)
        await exchange.respond(CompleteResponse(200, head, data))

    async def _stream(
        self,
        exchange: HttpExchange,
        route: Route,
        call: AppCall,
        body: JsonBody,
        notices: tuple[Notice, ...],
    ) -> None:
        stream = self._delegation.stream(call)
        await stream.run(self._write_stream(stream, exchange, route, call, body, notices))

    async def _write_stream(
        self,
        stream: AppStream,
        exchange: HttpExchange,
        route: Route,
        call: AppCall,
        body: JsonBody,
        notices: tuple[Notice, ...],
    ) -> None:
        as_list = face_of(route.wire).streams_as_list and not _wants_sse(exchange)
        begun: StreamHead | None = None
        try:
            head = await stream.head()
            asks = _asks_usage(body.value)
            out = StreamBody(route.wire, head, asks_usage=asks, as_list=as_list)
            headers = stream_headers(route.wire, head, notices, as_list=as_list)
            if body.value.get("background") is True and head.wire == route.wire:
                begun = head
                await self._keep_begun(call, head)
            await exchange.start(200, headers)
            try:
                async for piece in stream:
                    if data := out.feed(piece):
                        await exchange.write(data, more=True)
            except AnaphoraError as problem:
                await exchange.write(out.fail(problem), more=True)
            if stream.reply is not None:
                stream.reply.notices += await self._keep(call, body, stream.reply)
            await exchange.write(out.finish(stream.reply))
        finally:
            if begun is not None and stream.reply is None:
                await stream.aclose()
                await self._keep_begun(call, begun)  # with what its bill is computed from

    async def _keep(self, call: AppCall, body: JsonBody, reply: AppReply) -> tuple[Notice, ...]:
        """Notes whose the stored objects of a reply are. The answer is paid for: a store that fails
        is a notice."""
        request, permissions = call.request, call.app.grant.llm.permissions
        if request is None or reply.wire != request.wire:
            return ()
        if not _KEEPING.intersection(permissions):
            return ()
        row = HandleRow(
            kind="response",
            id=reply.reply.id,
            app=call.app.id,
            provider=reply.provider,
            created=self._clock(),
            bill=self._late_bill(call, reply.reply.id),
        )
        try:
            usage = reply.most_usage or reply.usage
            kept = face_of(request.wire).kept_objects(body.value, reply.reply, usage)
            await self._kept.add(row, kept)
        except (AnaphoraError, *DECODE_ERRORS):
            text = "the stored response could not be recorded: its id cannot be used later"
            return (Notice("handle_not_stored", text),)
        return ()

    async def _keep_begun(self, call: AppCall, head: StreamHead) -> None:
        """A response in the background can be fetched when its stream has broken off."""
        if not head.reply_id:
            return
        with contextlib.suppress(StoreUnavailable):  # a notice at the end of the stream says so
            await self._store.add_handle(
                HandleRow(
                    kind="response",
                    id=head.reply_id,
                    app=call.app.id,
                    provider=head.provider,
                    created=self._clock(),
                    bill=self._late_bill(call, head.reply_id),
                )
            )

    def _late_bill(self, call: AppCall, id: str) -> str:
        return "" if self._stored is None else self._stored.background.stored_bill(call.app.id, id)

    async def _respond(
        self,
        exchange: HttpExchange,
        route: Route,
        request_id: str,
        body: bytes,
        notices: tuple[Notice, ...] = (),
    ) -> None:
        headers = {"content-type": JSON, **own_headers(route.wire, request_id, notices=notices)}
        await exchange.respond(CompleteResponse(200, headers, body))


def _naming_left_out(
    problem: RequestRejected, notices: tuple[Notice, ...]
) -> RequestRejected | None:
    """A provider refuses fields of a beta that was left out of the request: the error says that it
    was. None where none was left out."""
    left_out = [notice.message for notice in notices if notice.code == BETA_NOT_GRANTED]
    if not left_out:
        return None
    return problem.restated(f"{problem} ({'; '.join(left_out)})")


def _plain_path(exchange: HttpExchange) -> str:
    """The path, which must mean the same to every reader: without percent-encoding, but for `:`
    and `/` in names of models, and without empty and dot segments."""
    raw: bytes = exchange.scope.get("raw_path") or exchange.path.encode()
    return _checked_path(raw.partition(b"?")[0])


@lru_cache(maxsize=512)
def _checked_path(raw: bytes) -> str:
    path = raw.decode("latin-1")
    if "%" in path and path.startswith(("/v1beta/", "/v1alpha/", "/v1/models/")):
        for code, character in (("%3A", ":"), ("%2F", "/"), ("%40", "@")):
            path = path.replace(code, character).replace(code.lower(), character)
    segments = path.split("/")[1:]
    if "%" in path or "\\" in path or any(each in ("", ".", "..") for each in segments):
        reason = "the path has percent-encoded characters, or empty or dot segments"
        raise RequestRejected(reason, status=400)
    if not path.isascii() or not path.isprintable():
        raise RequestRejected("the path has characters that are not ASCII", status=400)
    return path


def _counted_path(path: str) -> str:
    """Of the request whose tokens are counted: Gemini's has the model."""
    return path.replace(":countTokens", ":generateContent")


def _wants_sse(exchange: HttpExchange) -> bool:
    return ("alt", "sse") in query_fields(exchange.query_string)


def _asks_usage(value: dict[str, Any]) -> bool:
    options = value.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True
