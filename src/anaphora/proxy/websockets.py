"""WebSockets of programs: relayed message by message, and given to observers as calls.

OpenAI's Responses over a WebSocket: each `response.create` is a call with the body of a POST, and
the events up to its end are the stream that answers it. Realtime: each `response.done` is a call
that is billed by its usage, and not compared with other calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias
from urllib.parse import parse_qs

import aiohttp
import msgspec
from yarl import URL

from anaphora.client.config import Timeouts
from anaphora.client.failures import log
from anaphora.client.transport.errors import connect_error, read_url, tls_context
from anaphora.errors import Overloaded, RequestRejected, Transport, Upstream
from anaphora.serving.websocket import ServedWebSocket
from anaphora.traffic.calls import (
    KEPT_BYTES,
    Headers,
    ProxyRoute,
    RealtimeBill,
    RelayedCall,
    ResponsePiece,
)
from anaphora.values import Usage
from anaphora.wire.reading import DECODE_ERRORS

from .routes import environment_proxy

_RESPONSES, _REALTIME = "/responses", "/realtime"
#: Members of a `response.create` that a POST does not have.
_OWN_MEMBERS = ("type", "event_id", "stream_id", "generate")
#: Events that end a response.
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
_BAD_REQUEST = 400
_TIMEOUTS = Timeouts(connect=30.0)
_CLOSE_SECONDS = 5.0
_NORMAL = 1000
#: Close codes that stand for a missing or invalid close frame, and are never sent.
_UNSENT_CODES = frozenset({1005, 1006, 1015})

Members: TypeAlias = dict[str, msgspec.Raw]
_members = msgspec.json.Decoder(Members).decode


class _Event(msgspec.Struct):
    """The fields read of an event."""

    type: str = ""
    stream_id: str = ""
    status: int = _BAD_REQUEST
    error: msgspec.Raw = msgspec.Raw(b"null")
    response: msgspec.Raw = msgspec.Raw(b"{}")
    session: msgspec.Raw = msgspec.Raw(b"{}")


_event = msgspec.json.Decoder(_Event).decode


class WebSocketUpstream:
    """Connections to providers; proxies and certificates as for HTTP."""

    def __init__(self, ca: str | None = None) -> None:
        self._tls = None if ca is None else tls_context(ca)
        self._session: aiohttp.ClientSession | None = None

    async def connect(
        self, base: str, path: str, query: str, headers: Headers, protocols: list[str]
    ) -> aiohttp.ClientWebSocketResponse:
        """Raises `Upstream` with the provider's status, or `Transport`."""
        url = read_url(f"{base}{path}{f'?{query}' if query else ''}")
        proxy, proxy_headers = environment_proxy(url)
        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        try:
            return await self._session.ws_connect(
                _websocket_url(url),
                headers=headers,
                protocols=protocols,
                proxy=proxy,
                proxy_headers=dict(proxy_headers) or None,
                ssl=True if self._tls is None else self._tls,
                max_msg_size=0,
                timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_SECONDS),
            )
        except aiohttp.WSServerHandshakeError as problem:
            reason = f"the provider refused the WebSocket with status {problem.status}"
            status = problem.status if problem.status >= _BAD_REQUEST else 502
            failure: Exception = RequestRejected(reason, status=status)
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            failure = connect_error(problem, _TIMEOUTS, url, proxy)
        raise failure from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _websocket_url(url: URL) -> URL:
    return url.with_scheme("wss" if url.scheme == "https" else "ws")


async def relay(
    client: ServedWebSocket,
    provider: aiohttp.ClientWebSocketResponse,
    seen: SeenMessages | None,
) -> None:
    """Relays messages both ways, until one side closes."""

    async def to_provider() -> None:
        while (message := await client.receive()) is not None:
            await _send(provider, message)
            if seen is not None:
                _observe(seen.sent, message)
        await provider.close()

    async def to_client() -> None:
        async for message in provider:
            if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                await client.send(message.data)
                if seen is not None:
                    _observe(seen.received, message.data)
        code = provider.close_code or _NORMAL
        await client.close(_NORMAL if code in _UNSENT_CODES else code)

    try:
        await _until_first(to_provider(), to_client())
    finally:
        if seen is not None:
            seen.end()
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await provider.close()


def _observe(note: Callable[[str | bytes], None], message: str | bytes) -> None:
    """A failure here loses no message."""
    try:
        note(message)
    except Exception as problem:
        log(logging.ERROR, f"reading a WebSocket message failed: {type(problem).__name__}", problem)


async def _send(provider: aiohttp.ClientWebSocketResponse, message: str | bytes) -> None:
    with contextlib.suppress(ConnectionError):  # it has closed; `to_client` closes the other side
        if isinstance(message, str):
            await provider.send_str(message)
        else:
            await provider.send_bytes(message)


async def _until_first(*ways: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.create_task(way) for way in ways]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class SeenMessages:
    """Turns the messages of one connection into calls, and gives each to `ended`."""

    def __init__(
        self,
        route: ProxyRoute,
        path: str,
        query: str,
        headers: Headers,
        *,
        begin: Callable[[], int],
        ended: Callable[[RelayedCall], None],
    ) -> None:
        """`begin` is called for each call, and returns its number."""
        self._route, self._path, self._query, self._headers = route, path, query, headers
        self._begin, self._ended = begin, ended
        self._open: dict[str, _OpenCall] = {}
        """Calls whose response has not ended, by their stream; a connection may have several."""
        self._warming: dict[str, Members] = {}
        """Requests that generate nothing, by stream until they are answered,"""
        self._warm: dict[str, Members] = {}
        """and then by the ids with which the next request continues them."""
        self._model = parse_qs(query).get("model", [""])[0]
        self._is_realtime = path.endswith(_REALTIME)
        self._asked = time.monotonic()

    def sent(self, message: str | bytes) -> None:
        """A message of the program."""
        if not isinstance(message, str) or '"response.create"' not in message:
            return
        self._asked = time.monotonic()
        if self._is_realtime:
            return
        try:
            members = _members(message)
            kind = _event(message)
        except (*DECODE_ERRORS, UnicodeError):
            return  # the provider says what is wrong
        if kind.type != "response.create":
            return
        generates = bytes(members.get("generate", b"true")) != b"false"
        for name in _OWN_MEMBERS:
            members.pop(name, None)
        if not generates:
            self._warming[kind.stream_id] = members
            return
        body = msgspec.json.encode({**self._completed(members), "stream": True})
        self._open[kind.stream_id] = _OpenCall(self._call("POST", body))

    def _completed(self, members: Members) -> Members:
        """The members of a request, merged with those of the request sent ahead of it."""
        before = self._warm.pop(_text(members.get("previous_response_id")), None)
        if before is None:
            return members
        members = {name: members[name] for name in members if name != "previous_response_id"}
        items = [item for each in (before, members) for item in _items(each.get("input"))]
        return {**before, **members, "input": msgspec.Raw(msgspec.json.encode(items))}

    def received(self, message: str | bytes) -> None:
        """A message of the provider."""
        if not isinstance(message, str):
            return
        try:
            event = _event(message)
            if self._is_realtime:
                self._note_realtime(event)
                return
        except (*DECODE_ERRORS, UnicodeError):
            return
        if event.stream_id in self._warming:
            if event.type in _ENDS:
                named = msgspec.json.decode(event.response, type=_Named).id
                self._warm[named] = self._warming.pop(event.stream_id)
            return
        key = event.stream_id if event.stream_id in self._open else next(iter(self._open), None)
        if key is None or not event.type:
            return
        self._open[key].add(event, message)
        if event.type in _ENDS:
            self._finish(self._open.pop(key))

    def end(self) -> None:
        """The connection is closed."""
        for one in self._open.values():
            one.call.outcome, one.call.error = "failed", "the WebSocket was closed"
            self._finish(one)
        self._open.clear()

    def _finish(self, one: _OpenCall) -> None:
        one.call.ended = time.monotonic() - one.began
        self._ended(one.call)

    def _note_realtime(self, event: _Event) -> None:
        if event.type in ("session.created", "session.updated"):
            self._model = msgspec.json.decode(event.session, type=_Session).model or self._model
        if event.type != "response.done":
            return
        usage = msgspec.json.decode(event.response, type=_RealtimeResponse).usage
        call = self._call("GET", None)
        call.status, call.ended = 200, time.monotonic() - self._asked
        call.began = call.ended
        call.realtime = RealtimeBill(self._model, None if usage is None else usage.read())
        if usage is not None and usage.has_other_media:
            call.realtime.reason = "it has audio or images, which have prices of their own"
        self._ended(call)

    def _call(self, method: str, body: bytes | None) -> RelayedCall:
        return RelayedCall(
            number=self._begin(),
            started=time.time(),
            method=method,
            route=self._route,
            path=self._path,
            query=self._query,
            request_headers=self._headers,
            request_body=body if body is None or len(body) <= KEPT_BYTES else None,
        )


class _OpenCall:
    """A call of the Responses API whose events arrive."""

    def __init__(self, call: RelayedCall) -> None:
        self.call = call
        self.began = time.monotonic()
        self._size = 0
        call.pieces = []

    def add(self, event: _Event, message: str) -> None:
        call, now = self.call, time.monotonic() - self.began
        if call.began is None:
            call.status, call.began = 200, now
            call.response_headers = (("content-type", "text/event-stream"),)
        if event.type == "error":
            call.status = event.status
            call.response_headers = (("content-type", "application/json"),)
            call.pieces = [ResponsePiece(now, b'{"error":' + bytes(event.error) + b"}")]
            return
        data = f"event: {event.type}\ndata: {message}\n\n".encode()
        self._size += len(data)
        if call.pieces is not None and self._size <= KEPT_BYTES:
            call.pieces.append(ResponsePiece(now, data))
        else:
            call.pieces = None


class _Session(msgspec.Struct):
    model: str = ""


class _Named(msgspec.Struct):
    id: str = ""


def _text(value: msgspec.Raw | None) -> str:
    found = "" if value is None else msgspec.json.decode(value)
    return found if isinstance(found, str) else ""


def _items(value: msgspec.Raw | None) -> list[Any]:
    """The items of an `input`, which may be a string."""
    found = [] if value is None else msgspec.json.decode(value)
    return [{"role": "user", "content": found}] if isinstance(found, str) else list(found)


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int = 0
    audio_tokens: int = 0
    image_tokens: int = 0


class _RealtimeUsage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_token_details: _Details = _Details()
    output_token_details: _Details = _Details()

    @property
    def has_other_media(self) -> bool:
        details = self.input_token_details, self.output_token_details
        return any(one.audio_tokens or one.image_tokens for one in details)

    def read(self) -> Usage:
        cached = self.input_token_details.cached_tokens
        return Usage(
            uncached=max(0, self.input_tokens - cached), read=cached, output=self.output_tokens
        )


class _RealtimeResponse(msgspec.Struct):
    usage: _RealtimeUsage | None = None


def refusal(problem: Exception) -> Upstream:
    """The error that answers the handshake."""
    if isinstance(problem, Transport):
        return Overloaded(f"the proxy got no WebSocket: {problem}", status=502)
    assert isinstance(problem, Upstream)
    return problem


def is_known(path: str) -> bool:
    """Whether calls on a WebSocket at this path can be read."""
    return path.endswith((_RESPONSES, _REALTIME))
