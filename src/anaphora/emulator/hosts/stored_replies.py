"""Replies that OpenAI stores: chat completions that were made with `store: true`, and responses."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

from anaphora.canonical import dumps
from anaphora.emulator.exchange import (
    NULL,
    SSE,
    EmulatorResponse,
    ResponseChunk,
    decode_object,
    decode_value,
    whole_number,
)
from anaphora.emulator.replies.text import stream_events
from anaphora.errors import NotFound, RequestRejected
from anaphora.values import Reply
from anaphora.wire import Wire

from .host import Operation, RoutedRequest

_PATH = "/chat/completions"
_PROVIDERS = ("openai", "azure")
#: What is stored over all workspaces; the oldest goes first.
_MAX_COMPLETIONS, _MAX_BYTES = 10_000, 32 * 1024 * 1024
_PAGE_SIZE = "20"
_Fields = dict[str, msgspec.Raw]


class StoredCompletion(msgspec.Struct, eq=False):
    completion: _Fields
    messages: bytes

    @property
    def size(self) -> int:
        return len(self.messages) + sum(map(len, map(bytes, self.completion.values())))


class StoredCompletions:
    """The stored chat completions of one engine."""

    def __init__(self) -> None:
        self._stored: OrderedDict[tuple[str, str], StoredCompletion] = OrderedDict()
        self._size = 0

    def operation(self, method: str, path: str) -> tuple[Operation, str] | None:
        if path == _PATH and method == "GET":
            return "stored", ""
        if not path.startswith(f"{_PATH}/"):
            return None
        name, _, rest = path.removeprefix(f"{_PATH}/").partition("/")
        if rest == "messages" and method == "GET":
            return "stored_items", name
        return ("stored", name) if not rest and method in ("GET", "POST", "DELETE") else None

    def keep(self, request: RoutedRequest, reply: Reply) -> None:
        if request.value("store") is not True or request.route.provider not in _PROVIDERS:
            return
        body = request.route.codec.write_reply(reply)
        fields = msgspec.json.decode(body, type=_Fields)
        fields["metadata"] = request.fields.get("metadata", msgspec.Raw(b"{}"))
        stored = StoredCompletion(fields, bytes(request.fields["messages"]))
        self._stored[request.workspace, reply.id] = stored
        self._size += stored.size
        while len(self._stored) > _MAX_COMPLETIONS or self._size > _MAX_BYTES:
            self._size -= self._stored.popitem(last=False)[1].size

    def handle(self, request: RoutedRequest) -> bytes:
        name = request.route.name
        if request.route.provider not in _PROVIDERS:
            raise NotFound("nothing is stored here", status=404, code="not_found_error")
        if not name:
            return self._list(request)
        stored = self._stored.get((request.workspace, name))
        if stored is None:
            reason = f"Chat completion {name} not found"
            raise NotFound(reason, status=404, code="not_found_error")
        if request.route.operation == "stored_items":
            return _page(request, _messages(name, stored.messages))
        if request.method == "DELETE":
            self._size -= self._stored.pop((request.workspace, name)).size
            return dumps({"object": "chat.completion.deleted", "id": name, "deleted": True})
        if request.method == "POST":
            self._size -= stored.size
            stored.completion["metadata"] = request.fields.get("metadata", NULL)
            self._size += stored.size
        return msgspec.json.encode(stored.completion)

    def _list(self, request: RoutedRequest) -> bytes:
        """Those of a workspace, the oldest first; by model and by labels where the query says."""
        query, model = request.query, request.query.get("model")
        labels = {
            name[len("metadata[") : -1]: value
            for name, value in query.items()
            if name.startswith("metadata[")
        }
        found = []
        for (workspace, _), stored in self._stored.items():
            fields = {name: decode_value(raw, name) for name, raw in stored.completion.items()}
            own = fields["metadata"] or {}
            labelled = all(own.get(name) == value for name, value in labels.items())
            if workspace == request.workspace and labelled and model in (None, fields["model"]):
                found.append(fields)
        return _page(request, found)


def _messages(name: str, raw: bytes) -> list[dict[str, Any]]:
    messages = decode_value(raw, "messages")
    return [{"id": f"{name}-{index}", **message} for index, message in enumerate(messages)]


def _page(request: RoutedRequest, items: list[dict[str, Any]]) -> bytes:
    query = request.query
    if query.get("order") == "desc":
        items = items[::-1]
    ids = [item["id"] for item in items]
    start = ids.index(query["after"]) + 1 if query.get("after") in ids else 0
    page = items[start : start + whole_number(query.get("limit", _PAGE_SIZE), "limit")]
    return msgspec.json.encode(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": start + len(page) < len(items),
        }
    )


#: About the bytes of a response without its input and what it repeats of the request.
_RESPONSE_BYTES = 2_000
#: The share of its time that a background response is queued.
_QUEUED = 0.2


class StoredResponse(msgspec.Struct):
    """A response with the input of its chain. It is written when fetched, which most never are."""

    items: tuple[bytes, ...]
    reply: Reply
    codec: Wire
    background: bool
    created: float
    done: float
    """When a background response is complete."""
    canceled: bool = False

    def shown(self, now: float) -> bytes:
        """The response as far as it has come."""
        if now >= self.done and not self.canceled:
            return self.response
        queued = now < self.created + (self.done - self.created) * _QUEUED
        status = "cancelled" if self.canceled else "queued" if queued else "in_progress"
        fields = msgspec.json.decode(self.response, type=dict[str, Any])
        return dumps({**fields, "status": status, "output": [], "usage": None})

    def cancel(self, now: float) -> None:
        if not self.background:
            raise RequestRejected("Cannot cancel a synchronous response.", status=400)
        self.canceled = self.canceled or now < self.done

    def stream(self, now: float, after: str | None) -> EmulatorResponse:
        """The events of a background response, from the one after the number `after` on."""
        if not self.background or self.canceled:
            reason = "only background responses that are not cancelled can be streamed again"
            raise RequestRejected(reason, status=400, param="stream")
        first = 0 if after is None else whole_number(after, "starting_after") + 1
        writer = self.codec.writer()
        data = b"".join(writer.write(event) for event in stream_events(self.reply, self.created))
        events = [event + b"\n\n" for event in data.split(b"\n\n") if event]
        chunks = [ResponseChunk(0.0, event) for event in events[first:]] or [ResponseChunk(0, b"")]
        chunks[0].delay = max(0.0, self.done - now)
        headers = {"content-type": SSE, "cache-control": "no-cache"}
        return EmulatorResponse(headers=headers, chunks=chunks, stream=True)

    @property
    def response(self) -> bytes:
        return self.codec.write_reply(self.reply)

    @property
    def output(self) -> list[bytes]:
        raw = msgspec.json.decode(self.response, type=dict[str, msgspec.Raw])["output"]
        return list(map(bytes, msgspec.json.decode(raw, type=list[msgspec.Raw])))

    @property
    def size(self) -> int:
        """About how many bytes it holds."""
        extras = self.reply.extras or {}
        return _RESPONSE_BYTES + sum(map(len, self.items)) + sum(map(len, extras.values()))

    def list_items(self) -> bytes:
        """The input items, the latest first."""
        items = enumerate(map(decode_object, self.items))
        data: list[dict[str, Any]] = [{"id": f"item_{at}", **item} for at, item in items][::-1]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
        return msgspec.json.encode({"object": "list", "data": data, **ends, "has_more": False})
