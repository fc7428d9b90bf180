"""Answers JSON-RPC messages over HTTP: permissions, methods, batches and streams.

Checks of a request, in this order: the method exists (-32601), the app has the capability (-32004),
the params are valid (-32602); the grant and the provider are checked by the steps of a call.

A response is JSON. A streaming request gets a line of JSON for each `llm.delta`, with the response
as the last line (`application/x-ndjson`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import msgspec

from anaphora.client.failures import line_of, log
from anaphora.daemon.access.checks import CallSlots, check_capabilities
from anaphora.daemon.access.grants import Capability
from anaphora.daemon.access.identity import Directory
from anaphora.daemon.admin import AdminMethod
from anaphora.daemon.calls.delegation import CallService
from anaphora.daemon.endpoints.body import read_json_bytes
from anaphora.daemon.endpoints.headers import NOTICES, notices_text
from anaphora.daemon.off_loop import OffLoop
from anaphora.daemon.values import App
from anaphora.errors import (
    AnaphoraError,
    CapabilityDenied,
    Denied,
    InvalidRequest,
    NotificationDenied,
)
from anaphora.serving.exchange import CompleteResponse, ConnectionEnded, HttpExchange
from anaphora.values import Notice
from anaphora.wire.strict_json import is_heavy

from .method import MethodContext, RpcMethod
from .methods import METHODS
from .protocol import (
    CANCELLED_ERROR,
    INTERNAL,
    METHOD_NOT_FOUND,
    NULL,
    InvalidMessage,
    RequestKey,
    RpcBatch,
    RpcError,
    RpcMessage,
    RpcRequest,
    error_of,
    read_message,
    write_batch,
    write_error,
    write_result,
)

CONNECTION = "anaphora-connection"
"""The header with which the stdio bridge identifies its connections."""
JSON, LINES = "application/json", "application/x-ndjson"

_Key: TypeAlias = tuple[str, str, RequestKey]
Write: TypeAlias = Callable[[bytes], Awaitable[None]]


class RpcFailure(Exception):
    """A JSON-RPC error that has no exception class."""

    def __init__(self, error: RpcError) -> None:
        super().__init__(error.message)
        self.error = error


class RpcCaller(msgspec.Struct, frozen=True, kw_only=True):
    """The sender of a message, and the destination of deltas and notices."""

    app: App | None
    is_admin: bool = False
    connection: str = ""
    is_large: bool = False
    """The message is large and read in a thread."""
    notify: Write
    """Writes lines; returns when the caller can accept more."""
    notices: list[Notice]
    """Notices of methods whose result has no field for them."""


class RunningRequests:
    """Requests that `llm.cancel` can cancel."""

    def __init__(self) -> None:
        self._scopes: dict[_Key, list[asyncio.Timeout]] = {}

    @contextmanager
    def running(self, key: _Key, scope: asyncio.Timeout) -> Iterator[None]:
        self._scopes.setdefault(key, []).append(scope)
        try:
            yield
        finally:
            self._scopes[key].remove(scope)
            if not self._scopes[key]:
                del self._scopes[key]

    def cancel(self, context: MethodContext, key: RequestKey) -> bool:
        found = self._scopes.get((_owner(context.app), context.connection, key), ())
        for scope in found:
            if not scope.expired():
                scope.reschedule(0)
        return bool(found)


class RpcService:
    """JSON-RPC for apps and administrators."""

    def __init__(
        self,
        calls: CallService,
        admin_methods: Mapping[str, AdminMethod],
        slots: CallSlots,
        tokens: Directory,
        off_loop: OffLoop | None = None,
    ) -> None:
        self._off_loop = off_loop or OffLoop()
        self._calls = calls
        self._admin_methods = admin_methods
        self._slots = slots
        self._tokens = tokens
        self.running = RunningRequests()

    async def handle(
        self, exchange: HttpExchange, app: App | None, admin: bool, request_id: str
    ) -> None:
        """Answers `POST /rpc`. Run in `exchange.run`, which ends it with the connection. Raises
        `RequestRejected` if the content type is not JSON."""
        body = await read_json_bytes(exchange)
        response = RpcHttpResponse(exchange)
        caller = RpcCaller(
            app=app,
            is_admin=admin and app is None,
            connection=exchange.headers.get(CONNECTION, ""),
            is_large=is_heavy(body),
            notify=response.notify,
            notices=response.notices,
        )
        exchange.watch()
        if caller.is_large:
            message = await self._off_loop.run(
                _app_id(app), lambda: read_message(body, by_pieces=True)
            )
        else:
            message = read_message(body)
        exchange.end_reading()
        await response.finish(await self.answer(message, caller, request_id))

    async def answer(self, message: RpcMessage, caller: RpcCaller, request_id: str) -> bytes | None:
        """The response; None if there is nothing to answer."""
        if not isinstance(message, RpcBatch):
            return await self._answer_one(message, caller, request_id)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._answer_one(item, caller, f"{request_id}-{index}"))
                    for index, item in enumerate(message.items)
                ]
        except BaseExceptionGroup as ended:  # the connection failed: other errors are responses
            raise ended.exceptions[0] from None
        responses = [response for task in tasks if (response := task.result()) is not None]
        return write_batch(responses) if responses else None

    async def _answer_one(
        self, request: RpcRequest | InvalidMessage, caller: RpcCaller, request_id: str
    ) -> bytes | None:
        if isinstance(request, InvalidMessage):
            return write_error(request.id, request.error)
        id = request.id or NULL
        try:
            answer = write_result(id, await self._result(request, caller, request_id))
        except RpcFailure as failure:
            answer = write_error(id, failure.error)
        except AnaphoraError as problem:
            answer = write_error(id, error_of(problem))
        except ConnectionEnded:
            raise
        except Exception as problem:
            name, line = type(problem).__name__, line_of(problem.__traceback__)
            log(logging.ERROR, f"{request.method[:100]}: {name} at {line}", problem)
            answer = write_error(id, INTERNAL)
        return None if request.is_notification else answer

    async def _result(self, request: RpcRequest, caller: RpcCaller, request_id: str) -> object:
        method = METHODS.get(request.method)
        if method is None:
            return await self._run_admin(request, caller)
        context = MethodContext(
            calls=self._calls,
            tokens=self._tokens,
            requests=self.running,
            app=caller.app,
            connection=caller.connection,
            method=method.name,
            request_id=request_id,
            off_loop=self._off_loop if caller.is_large else None,
            id=request.id or NULL,
            notify=caller.notify,
            notices=caller.notices,
        )
        return await self._run(method, request, context)

    async def _run_admin(self, request: RpcRequest, caller: RpcCaller) -> object:
        admin = self._admin_methods.get(request.method) if caller.is_admin else None
        if admin is None:
            reason = f"there is no method {request.method[:100]!r}"
            raise RpcFailure(RpcError(METHOD_NOT_FOUND, reason))
        return await admin(msgspec.json.decode(_object_params(request)))

    async def _run(self, method: RpcMethod, request: RpcRequest, context: MethodContext) -> object:
        try:
            await context.work(lambda: _check_allowed(method, request, context.app))
        except Denied as problem:
            if context.app is not None:
                self._calls.deny(context.app, method.name, problem, request_id=context.request_id)
            raise
        given = _object_params(request)
        params = await context.work(lambda: method.read_params(given))
        context.ignored = await context.work(lambda: method.ignored_params(given))
        if not method.calls_provider:
            return await method.run(context, params)
        key = (_owner(context.app), context.connection, request.key)
        try:
            async with asyncio.timeout(None) as scope:
                with self._slots.running(_app_id(context.app)), self.running.running(key, scope):
                    return await method.run(context, params)
        except TimeoutError:
            if not scope.expired():
                raise
            raise RpcFailure(CANCELLED_ERROR) from None


class RpcHttpResponse:
    """The HTTP response to one message: JSON, or JSON lines if there are deltas."""

    def __init__(self, exchange: HttpExchange) -> None:
        self._exchange = exchange
        self._lock = asyncio.Lock()
        self.notices: list[Notice] = []

    async def notify(self, lines: bytes) -> None:
        """Sends lines and waits until the connection accepts more."""
        async with self._lock:
            if not self._exchange.started:
                await self._exchange.start(200, {"content-type": LINES})
            await self._exchange.write(lines, more=True)

    async def finish(self, answer: bytes | None) -> None:
        if self._exchange.started:
            await self._exchange.write((answer or b"") + b"\n")
            return
        headers = {NOTICES: notices_text(tuple(self.notices))} if self.notices else {}
        if answer is None:
            await self._exchange.respond(CompleteResponse(204, headers, b""))
            return
        headers["content-type"] = JSON
        await self._exchange.respond(CompleteResponse(200, headers, answer))


def _object_params(request: RpcRequest) -> bytes:
    if request.params is None:
        raise InvalidRequest(
            "must be an object: positional params are not supported", path="params"
        )
    return request.params


def _check_allowed(method: RpcMethod, request: RpcRequest, app: App | None) -> None:
    """Raises `NotificationDenied` and `CapabilityDenied`."""
    if request.is_notification and not method.notified:
        raise NotificationDenied(f"{method.name} must be sent with an id")
    if method.capability is None:
        return
    needed: list[Capability] = [method.capability]
    if _streams(request):
        needed.append("llm_stream")
    if app is None:
        raise CapabilityDenied(
            "an administrator's token makes no calls: use an app's",
            capability=method.capability,
            app="",
            method=method.name,
        )
    check_capabilities(app.grant, needed, method.name)


class _Streaming(msgspec.Struct, frozen=True):
    stream: Any = False


_decode_streaming = msgspec.json.Decoder(_Streaming).decode


def _streams(request: RpcRequest) -> bool:
    return request.params is not None and _decode_streaming(request.params).stream is True


def _app_id(app: App | None) -> str:
    return "" if app is None else app.id


def _owner(app: App | None) -> str:
    return "" if app is None else app.owner
