"""What OpenAI stores: chat completions that were made with `store: true`, responses, files, and the
batches that are made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from anaphora.canonical import dumps
from anaphora.emulator.exchange import (
    NULL,
    SSE,
    EmulatorResponse,
    ResponseChunk,
    decode_value,
    json_response,
    whole_number,
)
from anaphora.emulator.replies.text import stream_events
from anaphora.errors import NotFound, RequestRejected
from anaphora.values import Reply
from anaphora.wire import Wire
from anaphora.wire.reading import DECODE_ERRORS

from .host import Operation, RoutedRequest
from .stored import (
    Batch,
    BatchedRequest,
    FilesAndBatches,
    StoredFile,
    StoredObjects,
    openai_pages,
    page_of,
)

_PATH = "/chat/completions"
_PROVIDERS = ("openai", "azure")
#: What is stored over all workspaces; the oldest goes first.
_MAX_COMPLETIONS, _MAX_BYTES = 10_000, 32 * 1024 * 1024
_PAGES, _FILE_PAGES = openai_pages(), openai_pages(10_000, 10_000)
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
        self._stored: StoredObjects[StoredCompletion] = StoredObjects(
            "Chat completion {} not found", lambda one: one.size, _MAX_COMPLETIONS, _MAX_BYTES
        )

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
        self._stored.add(request.workspace, reply.id, stored)

    def handle(self, request: RoutedRequest) -> bytes:
        name = request.route.name
        if request.route.provider not in _PROVIDERS:
            raise NotFound("nothing is stored here", status=404, code="not_found_error")
        if not name:
            return self._list(request)
        stored = self._stored.get(request.workspace, name)
        if request.route.operation == "stored_items":
            messages = enumerate(decode_value(stored.messages, "messages"))
            listed = [{"id": f"{name}-{at}", **message} for at, message in messages]
            return _page(request.query, listed)
        if request.method == "DELETE":
            self._stored.delete(request.workspace, name)
            return dumps({"object": "chat.completion.deleted", "id": name, "deleted": True})
        if request.method == "POST":
            stored.completion["metadata"] = request.fields.get("metadata", NULL)
            self._stored.measure(request.workspace, name)
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
        for stored in reversed(self._stored.list(request.workspace)):
            fields = {name: decode_value(raw, name) for name, raw in stored.completion.items()}
            own = fields["metadata"] or {}
            labelled = all(own.get(name) == value for name, value in labels.items())
            if labelled and model in (None, fields["model"]):
                found.append(fields)
        return _page(query, found)


def _page(query: Mapping[str, str], items: list[dict[str, Any]], order: str = "asc") -> bytes:
    """Of a list that is in order of time; `order` counts where the query has none."""
    if query.get("order", order) == "desc":
        items = items[::-1]
    page, ends = page_of(items, [item["id"] for item in items], query, _PAGES)
    return msgspec.json.encode({"object": "list", "data": page, **ends})


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

    def list_items(self, query: Mapping[str, str]) -> bytes:
        """A page of the input items, the latest first."""
        items = [_listed(at, decode_value(item, "input")) for at, item in enumerate(self.items)]
        return _page(query, items, "desc")


def _listed(index: int, item: dict[str, Any]) -> dict[str, Any]:
    """An item of a list; a message has its type there, and a list of parts."""
    if "role" in item:
        item = {"type": "message", **item}
        if isinstance(item.get("content"), str):
            kind = "output_text" if item["role"] == "assistant" else "input_text"
            item["content"] = [{"type": kind, "text": item["content"]}]
    return item if item.get("id") else {**item, "id": f"item_{index}"}


# ── Files and batches ────────────────────────────────────────────────────────────────────────────

_ENDPOINTS = ("/v1/chat/completions", "/v1/responses")
_JSONL = "application/jsonl"


class _BatchLine(msgspec.Struct):
    custom_id: str
    url: str
    body: msgspec.Raw


class OpenAIFiles(FilesAndBatches):
    """OpenAI's files, and the batches that are made of them."""

    file_prefix = "file-"
    pages = _PAGES
    deleted_file: ClassVar = {"object": "file", "deleted": True}
    list_fields: ClassVar = {"object": "list"}

    def check_file(self, file: StoredFile) -> None:
        if not file.purpose:
            raise RequestRejected("'purpose' is a required property", status=400)

    def file_fields(self, file: StoredFile) -> dict[str, Any]:
        return {
            "object": "file",
            "id": file.id,
            "bytes": len(file.data),
            "created_at": int(file.created),
            "filename": file.name,
            "purpose": file.purpose,
            "status": "processed",
            "expires_at": None,
        }

    def list_files(self, files: list[StoredFile], query: Mapping[str, str]) -> dict[str, Any]:
        purpose = query.get("purpose")
        own = [file for file in files if purpose in (None, file.purpose)]
        if query.get("order") == "asc":
            own.reverse()
        page, ends = page_of(own, [file.id for file in own], query, _FILE_PAGES)
        return {**self.list_fields, "data": [self.file_fields(file) for file in page], **ends}

    def file_content(self, file: StoredFile) -> EmulatorResponse:
        return json_response(file.data, headers={"content-type": "application/octet-stream"})

    def new_batch(self, request: RoutedRequest) -> Batch:
        endpoint = request.value("endpoint")
        if endpoint not in _ENDPOINTS:
            reason = f"endpoint must be one of {', '.join(_ENDPOINTS)} here"
            raise RequestRejected(reason, status=400, param="endpoint")
        file = self.files.get(request.workspace, str(request.value("input_file_id", "")))
        path = request.path.partition("/batches")[0].removesuffix("/v1") + endpoint
        requests, known = [], set[str]()
        for number, line in enumerate(file.data.splitlines(), 1):
            if not line.strip():
                continue
            try:
                one = msgspec.json.decode(line, type=_BatchLine)
            except DECODE_ERRORS as problem:
                reason = f"line {number} of {file.id}: {problem}"
                raise RequestRejected(reason, status=400, param="input_file_id") from None
            if one.url != endpoint:
                reason = f"line {number} of {file.id}: url is {one.url!r}, not {endpoint!r}"
                raise RequestRejected(reason, status=400, param="input_file_id")
            if one.custom_id in known:
                reason = f"line {number} of {file.id}: custom_id {one.custom_id!r} is used twice"
                raise RequestRejected(reason, status=400, param="input_file_id")
            known.add(one.custom_id)
            requests.append(BatchedRequest(one.custom_id, path, bytes(one.body)))
        if not requests:
            reason = f"{file.id} has no requests"
            raise RequestRejected(reason, status=400, param="input_file_id")
        return Batch(
            id=self.ids.next("batch_"),
            requests=tuple(requests),
            created=request.now,
            endpoint=endpoint,
            input_file=file.id,
            metadata=request.fields.get("metadata", NULL),
        )

    def batch_fields(self, batch: Batch, request: RoutedRequest) -> dict[str, Any]:
        """A batch, and its results in files once it has ended."""
        if batch.ended is not None and batch.files == (None, None):
            good = [result for result in batch.results if result.status < 400]
            bad = [result for result in batch.results if result.status >= 400]
            batch.files = (
                self._write(request, batch, good, "output"),
                self._write(request, batch, bad, "errors"),
            )
        created, failed = int(batch.created), batch.failed
        ended = None if batch.ended is None else int(batch.ended)
        canceled = None if batch.canceled is None else int(batch.canceled)
        status = "completed" if ended is not None else "in_progress"
        if canceled is not None:
            status = "cancelled" if ended is not None else "cancelling"
        output, errors = batch.files
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.endpoint,
            "errors": None,
            "input_file_id": batch.input_file,
            "completion_window": "24h",
            "status": status,
            "output_file_id": output,
            "error_file_id": errors,
            "created_at": created,
            "in_progress_at": created,
            "expires_at": created + 86_400,
            "finalizing_at": ended,
            "completed_at": None if canceled is not None else ended,
            "cancelling_at": canceled,
            "cancelled_at": None if canceled is None else ended,
            "failed_at": None,
            "expired_at": None,
            "request_counts": {
                "total": len(batch.requests),
                "completed": len(batch.results) - failed,
                "failed": failed,
            },
            "metadata": batch.metadata,
        }

    def _write(
        self, request: RoutedRequest, batch: Batch, results: list[Any], kind: str
    ) -> str | None:
        if not results:
            return None
        lines = (
            {
                "id": self.ids.next("batch_req_"),
                "custom_id": result.custom_id,
                "response": {
                    "status_code": result.status,
                    "request_id": result.request_id,
                    "body": msgspec.Raw(result.body),
                },
                "error": None,
            }
            for result in results
        )
        file = StoredFile(
            id=self.ids.next("file-"),
            name=f"{batch.id}_{kind}.jsonl",
            media_type=_JSONL,
            purpose="batch_output",
            data=b"".join(msgspec.json.encode(line) + b"\n" for line in lines),
            created=request.now,
        )
        return self.add_file(request.workspace, file).id
