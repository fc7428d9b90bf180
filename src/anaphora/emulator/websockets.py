"""Responses and Realtime over WebSockets, with the replies and bills of `POST /v1/responses`.

Realtime is emulated for text: sessions, items of messages and function results, and responses with
their events and usage. Audio and images get an error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from anaphora.bounded import BoundedMap
from anaphora.errors import RequestRejected
from anaphora.serving.exchange import CompleteResponse
from anaphora.serving.websocket import ServedWebSocket

from .engine import Engine
from .exchange import EmulatorRequest, EmulatorResponse

_RESPONSES, _REALTIME = "/responses", "/realtime"
#: Fields of a `response.create` that a POST does not have.
_OWN_MEMBERS = ("type", "event_id", "stream_id", "generate")
#: Responses of a connection that a later one may continue.
_KEPT_RESPONSES = 64
_OK, _BAD_REQUEST = 200, 400
_TEXT = frozenset({"input_text", "output_text", "text"})

Json = dict[str, Any]


class EmulatorWebSockets:
    """Serves the connections of an emulator."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def serve(self, socket: ServedWebSocket) -> None:
        headers, path = socket.headers, socket.path
        if not path.endswith((_RESPONSES, _REALTIME)):
            problem = RequestRejected(f"no WebSocket at {path}", status=404)
            codec = self._engine.codec("GET", path, headers)
            status, fields, body = codec.write_error(problem)
            await socket.deny(CompleteResponse(problem.status or status, fields, body))
            return
        await socket.accept(socket.protocols[0] if socket.protocols else None)
        connection: ResponsesConnection | RealtimeConnection
        if path.endswith(_RESPONSES):
            connection = ResponsesConnection(self._engine, socket)
        else:
            connection = RealtimeConnection(self._engine, socket)
            await connection.begin()
        while (message := await socket.receive()) is not None:
            try:
                event = msgspec.json.decode(message, type=Json)
            except msgspec.DecodeError as problem:
                await _send(socket, _error(f"the message is not a JSON object: {problem}"))
                continue
            await connection.receive(event)


class ResponsesConnection:
    """Responses by `response.create`. A response continues an earlier one of the connection by its
    id, whether that is stored or not."""

    def __init__(self, engine: Engine, socket: ServedWebSocket) -> None:
        self._engine, self._socket = engine, socket
        self._items = BoundedMap[str, list[Any]](_KEPT_RESPONSES)
        """Input and output of the connection's responses, by their ids."""
        self._count = 0

    async def receive(self, event: Json) -> None:
        stream = {"stream_id": event["stream_id"]} if event.get("stream_id") else {}
        if event.get("type") != "response.create":
            message = f"unknown event type {event.get('type')!r}; expected response.create"
            await _send(self._socket, {**_error(message), **stream})
            return
        body = {name: value for name, value in event.items() if name not in _OWN_MEMBERS}
        body, items = self._completed(body)
        if event.get("generate") is False:
            await self._warm_up(body, items, stream)
            return
        async for answer in post(self._engine, self._socket, self._socket.path, body):
            await _send(self._socket, {**answer, **stream})
            response = answer.get("response")
            if answer["type"] == "response.completed" and isinstance(response, dict):
                self._items[response["id"]] = [*items, *response.get("output", ())]

    async def _warm_up(self, body: Json, items: list[Any], stream: Json) -> None:
        """A request that generates nothing: the next one continues it by its id."""
        self._count += 1
        response: Json = {"id": f"resp_warm{self._count}", "object": "response", "output": []}
        self._items[response["id"]] = items
        for kind, status in (("created", "in_progress"), ("completed", "completed")):
            shown = {**response, "model": body.get("model"), "status": status, "usage": None}
            await _send(self._socket, {"type": f"response.{kind}", "response": shown, **stream})

    def _completed(self, body: Json) -> tuple[Json, list[Any]]:
        """The body with the items that it continues, and all of its items."""
        given = body.get("input", [])
        items = given if isinstance(given, list) else [{"role": "user", "content": given}]
        earlier = self._items.get(body.get("previous_response_id") or "")
        if earlier is None:
            return body, items
        items = [*earlier, *items]
        rest = {name: value for name, value in body.items() if name != "previous_response_id"}
        return {**rest, "input": items}, items


class RealtimeConnection:
    """A session with its items. Each response is generated by the Responses API and converted to
    Realtime events."""

    def __init__(self, engine: Engine, socket: ServedWebSocket) -> None:
        self._engine, self._socket = engine, socket
        model = dict(pair.split("=", 1) for pair in socket.query.split("&") if "=" in pair).get(
            "model", ""
        )
        self._session: Json = {"type": "realtime", "object": "realtime.session", "model": model}
        self._items: list[Json] = []
        self._count = 0

    async def begin(self) -> None:
        await self._send({"type": "session.created", "session": self._session})

    async def receive(self, event: Json) -> None:
        match event.get("type"):
            case "session.update":
                self._session |= event.get("session") or {}
                await self._send({"type": "session.updated", "session": self._session})
            case "conversation.item.create":
                await self._add(event.get("item") or {})
            case "response.create":
                await self._respond(event.get("response") or {})
            case other:
                reason = f"the emulator does not take the event {other!r}"
                await self._send(_error(reason, event.get("event_id")))

    async def _add(self, item: Json) -> None:
        for part in item.get("content") or ():
            if part.get("type") not in _TEXT:
                kind = part.get("type")
                await self._send(_error(f"the emulator takes text alone, got {kind!r}"))
                return
        self._count += 1
        item = {"id": f"item_{self._count}", "object": "realtime.item", **item}
        self._items.append(item)
        for kind in ("conversation.item.added", "conversation.item.done"):
            await self._send({"type": kind, "previous_item_id": None, "item": item})

    async def _respond(self, asked: Json) -> None:
        settings = {**self._session, **asked}
        body: Json = {
            "model": self._session["model"],
            "input": [_input_item(item) for item in self._items],
            "store": False,
        }
        for name in ("instructions", "tools"):
            if settings.get(name):
                body[name] = settings[name]
        path = self._socket.path.removesuffix(_REALTIME) + _RESPONSES
        async for answer in post(self._engine, self._socket, path, body):
            if answer["type"] == "error":
                await self._send(answer)
                return
            if "response" not in answer:
                await self._send(answer)
                continue
            response = answer["response"]
            shown = {
                "object": "realtime.response",
                "id": response["id"],
                "status": response["status"],
                "output": response["output"],
                "usage": _realtime_usage(response.get("usage")),
            }
            if answer["type"] == "response.created":
                await self._send({"type": "response.created", "response": shown})
            elif answer["type"] in ("response.completed", "response.incomplete"):
                self._items += response["output"]
                await self._send({"type": "response.done", "response": shown})

    async def _send(self, event: Json) -> None:
        await _send(self._socket, event)


async def post(
    engine: Engine, socket: ServedWebSocket, path: str, body: Json
) -> AsyncIterator[Json]:
    """The events of the stream that a POST would answer with, or one error."""
    response = engine.receive(
        EmulatorRequest(
            method="POST",
            path=path,
            headers=socket.headers,
            body=msgspec.json.encode({**body, "stream": True}),
            now=time.time(),
        )
    )
    call = response.call
    try:
        if response.status != _OK:
            error = msgspec.json.decode(response.body).get("error")
            yield {"type": "error", "status": response.status, "error": error}
            return
        async for event in _events(response):
            if call is not None:
                call.begin(time.time() + engine.offset)
            yield event
    finally:
        if call is not None:
            call.end(time.time() + engine.offset)


async def _events(response: EmulatorResponse) -> AsyncIterator[Json]:
    for chunk in response.chunks:
        if chunk.delay:
            await asyncio.sleep(chunk.delay)
        for line in chunk.data.splitlines():
            if line.startswith(b"data: {"):
                yield msgspec.json.decode(line.removeprefix(b"data: "))


def _input_item(item: Json) -> Json:
    """An item of Realtime as one of the Responses API."""
    kept = {name: value for name, value in item.items() if name not in ("object", "id", "status")}
    if kept.get("type") == "message" and kept.get("role") != "assistant":
        kept["content"] = [{**part, "type": "input_text"} for part in kept.get("content") or ()]
    return kept


def _realtime_usage(usage: Json | None) -> Json | None:
    if usage is None:
        return None
    cached = (usage.get("input_tokens_details") or {}).get("cached_tokens", 0)
    return {
        "total_tokens": usage["total_tokens"],
        "input_tokens": usage["input_tokens"],
        "output_tokens": usage["output_tokens"],
        "input_token_details": {
            "text_tokens": usage["input_tokens"],
            "audio_tokens": 0,
            "image_tokens": 0,
            "cached_tokens": cached,
        },
        "output_token_details": {"text_tokens": usage["output_tokens"], "audio_tokens": 0},
    }


def _error(message: str, event_id: Any = None) -> Json:
    error = {"type": "invalid_request_error", "message": message, "code": None, "param": None}
    if event_id is not None:
        error["event_id"] = event_id
    return {"type": "error", "status": _BAD_REQUEST, "error": error}


async def _send(socket: ServedWebSocket, event: Json) -> None:
    await socket.send(msgspec.json.encode(event).decode())
