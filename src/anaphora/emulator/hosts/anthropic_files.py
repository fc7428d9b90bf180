"""Anthropic's files and message batches."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from anaphora.canonical import dumps
from anaphora.emulator.exchange import NULL, EmulatorResponse, json_response
from anaphora.emulator.replies.text import IdGenerator
from anaphora.errors import RequestRejected
from anaphora.wire.reading import DECODE_ERRORS

from .files import (
    FILE_OPERATIONS,
    Batch,
    BatchedRequest,
    BatchStore,
    FileStore,
    StoredFile,
    page_of,
    uploaded_file,
)
from .host import Operation, RoutedRequest

_BATCHES = "/messages/batches"
#: By method, whether the path names a batch, and what follows.
_BATCH_OPERATIONS: dict[tuple[str, bool, str], Operation] = {
    ("POST", False, ""): "batches",
    ("GET", False, ""): "batches",
    ("GET", True, ""): "batch",
    ("DELETE", True, ""): "batch",
    ("POST", True, "cancel"): "batch_cancel",
    ("GET", True, "results"): "batch_results",
}


class AnthropicFiles:
    """The files and batches of one host."""

    def __init__(self, ids: IdGenerator) -> None:
        self._ids = ids
        self._files = FileStore()
        self._batches = BatchStore()

    @staticmethod
    def operation(method: str, path: str) -> tuple[Operation, str] | None:
        for begin, names in ((_BATCHES, _BATCH_OPERATIONS), ("/files", FILE_OPERATIONS)):
            if path == begin or path.startswith(begin + "/"):
                name, _, rest = path[len(begin) + 1 :].partition("/")
                operation = names.get((method, bool(name), rest))
                return None if operation is None else (operation, name)
        return None

    def handle(self, request: RoutedRequest) -> bytes | EmulatorResponse:
        if request.route.operation.startswith("file"):
            return self._handle_file(request)
        return self._handle_batch(request)

    # ── Files ────────────────────────────────────────────────────────────────────────────────────

    def _handle_file(self, request: RoutedRequest) -> bytes:
        files, workspace, name = self._files, request.workspace, request.route.name
        if request.route.operation == "files":
            if request.method == "POST":
                return dumps(
                    _file_fields(
                        files.add(workspace, uploaded_file(request, self._ids.next("file_01")))
                    )
                )
            return dumps(_list_files(files.list(workspace), request.query))
        file = files.get(workspace, name)
        if request.route.operation == "file_content":
            reason = "only files that a tool generated can be downloaded"
            raise RequestRejected(reason, status=400, code="file_not_downloadable")
        if request.method == "DELETE":
            files.delete(workspace, name)
            return dumps({"id": name, "type": "file_deleted"})
        return dumps(_file_fields(file))

    # ── Batches ──────────────────────────────────────────────────────────────────────────────────

    def _handle_batch(self, request: RoutedRequest) -> bytes | EmulatorResponse:
        batches, name, operation = self._batches, request.route.name, request.route.operation
        if operation == "batches" and request.method == "POST":
            batch = Batch(
                id=self._ids.next("msgbatch_01"), requests=_batched(request), created=request.now
            )
            batches.add(request.workspace, batch)
            return dumps(_batch_fields(batch, request))
        if operation == "batches":
            own = batches.list(request)
            page, ends = page_of(own, [batch.id for batch in own], request.query, 20)
            return dumps({"data": [_batch_fields(batch, request) for batch in page], **ends})
        if operation == "batch_cancel":
            return dumps(_batch_fields(batches.cancel(request, name), request))
        batch = batches.get(request, name)
        if operation == "batch_results":
            return _batch_results(batch)
        if request.method == "DELETE":
            if batch.ended is None:
                raise RequestRejected("a batch in progress cannot be deleted", status=400)
            batches.delete(request, name)
            return dumps({"id": name, "type": "message_batch_deleted"})
        return dumps(_batch_fields(batch, request))


def _file_fields(file: StoredFile) -> dict[str, Any]:
    return {
        "type": "file",
        "id": file.id,
        "filename": file.name,
        "mime_type": file.media_type,
        "size_bytes": len(file.data),
        "created_at": _date(file.created),
        "downloadable": False,
    }


def _list_files(files: list[StoredFile], query: Mapping[str, str]) -> dict[str, Any]:
    """A page of files. Its cursor is the id of its last file; older clients send that id itself."""
    cursor = query.get("page", "").removeprefix("page_")
    query = {**query, "after_id": cursor} if cursor else query
    page, ends = page_of(files, [file.id for file in files], query, 20)
    cursor = f"page_{ends['last_id']}" if ends["has_more"] else ""
    return {"data": [_file_fields(file) for file in page], **ends, "next_page": cursor or None}


def _batched(request: RoutedRequest) -> tuple[BatchedRequest, ...]:
    """The requests of a new batch."""
    try:
        listed = msgspec.json.decode(request.fields.get("requests", NULL), type=list[_BatchItem])
    except DECODE_ERRORS as problem:
        raise RequestRejected(f"requests: {problem}", status=400) from None
    if not listed or len({item.custom_id for item in listed}) < len(listed):
        reason = "requests: must not be empty, and every custom_id must be unique"
        raise RequestRejected(reason, status=400)
    path = request.path.partition("/batches")[0]
    return tuple(BatchedRequest(item.custom_id, path, bytes(item.params)) for item in listed)


class _BatchItem(msgspec.Struct):
    custom_id: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    params: msgspec.Raw


def _batch_fields(batch: Batch, request: RoutedRequest) -> dict[str, Any]:
    ended, failed, done = batch.ended is not None, batch.failed, len(batch.results)
    left = len(batch.requests) - done
    status = "ended" if ended else "in_progress" if batch.canceled is None else "canceling"
    root = request.path.partition("/batches")[0]
    host = request.headers.get("host", "127.0.0.1")
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": {
            "processing": 0 if ended else left,
            "succeeded": done - failed,
            "errored": failed,
            "canceled": left if ended else 0,
            "expired": 0,
        },
        "created_at": _date(batch.created),
        "expires_at": _date(batch.created + 86_400),
        "ended_at": None if batch.ended is None else _date(batch.ended),
        "cancel_initiated_at": None if batch.canceled is None else _date(batch.canceled),
        "archived_at": None,
        "results_url": f"http://{host}{root}/batches/{batch.id}/results" if ended else None,
    }


def _batch_results(batch: Batch) -> EmulatorResponse:
    """One line for each request, whether it ran or not."""
    if batch.ended is None:
        raise RequestRejected("the batch has not ended: it has no results yet", status=400)
    lines = []
    for result in batch.results:
        body: dict[str, Any] = msgspec.json.decode(result.body)
        if result.status < 400:
            body["usage"]["service_tier"] = "batch"
            outcome = {"type": "succeeded", "message": body}
        else:
            outcome = {"type": "errored", "error": body}
        lines.append(dumps({"custom_id": result.custom_id, "result": outcome}))
    lines += [
        dumps({"custom_id": one.custom_id, "result": {"type": "canceled"}})
        for one in batch.requests[len(batch.results) :]
    ]
    data = b"".join(line + b"\n" for line in lines)
    return json_response(data, headers={"content-type": "application/x-jsonl"})


def _date(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(int(seconds), datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
