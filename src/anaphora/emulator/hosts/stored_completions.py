"""Chat completions that were made with `store: true`: OpenAI lists, returns, labels and deletes
them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

from anaphora.canonical import dumps
from anaphora.emulator.exchange import NULL, decode_value, whole_number
from anaphora.errors import NotFound
from anaphora.values import Reply

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
