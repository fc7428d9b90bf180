"""OpenAI's files, and the batches that are made of them."""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.canonical import dumps
from anaphora.emulator.exchange import EmulatorResponse, json_response
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

_BATCH_OPERATIONS: dict[tuple[str, bool, str], Operation] = {
    ("POST", False, ""): "batches",
    ("GET", False, ""): "batches",
    ("GET", True, ""): "batch",
    ("POST", True, "cancel"): "batch_cancel",
}
_ENDPOINTS = ("/v1/chat/completions", "/v1/responses")
_JSONL = "application/jsonl"


class OpenAIFiles:
    """The files and batches of one host."""

    def __init__(self, ids: IdGenerator) -> None:
        self._ids = ids
        self._files = FileStore()
        self._batches = BatchStore()

    @staticmethod
    def operation(method: str, path: str) -> tuple[Operation, str] | None:
        collection, _, rest = path[1:].partition("/")
        names = {"files": FILE_OPERATIONS, "batches": _BATCH_OPERATIONS}.get(collection)
        if names is None:
            return None
        name, _, rest = rest.partition("/")
        operation = names.get((method, bool(name), rest))
        return None if operation is None else (operation, name)

    def handle(self, request: RoutedRequest) -> bytes | EmulatorResponse:
        if request.route.operation.startswith("file"):
            return self._handle_file(request)
        return self._handle_batch(request)

    # ── Files ────────────────────────────────────────────────────────────────────────────────────

    def _handle_file(self, request: RoutedRequest) -> bytes | EmulatorResponse:
        files, workspace, name = self._files, request.workspace, request.route.name
        if request.route.operation == "files" and request.method == "POST":
            file = uploaded_file(request, self._ids.next("file-"))
            if not file.purpose:
                raise RequestRejected("'purpose' is a required property", status=400)
            return dumps(_file_fields(files.add(workspace, file)))
        if request.route.operation == "files":
            purpose = request.query.get("purpose")
            own = [file for file in files.list(workspace) if purpose in (None, file.purpose)]
            if request.query.get("order") == "asc":
                own.reverse()
            page, ends = page_of(own, [file.id for file in own], request.query, 10_000)
            return dumps({"object": "list", "data": [_file_fields(file) for file in page], **ends})
        file = files.get(workspace, name)
        if request.route.operation == "file_content":
            return json_response(file.data, headers={"content-type": "application/octet-stream"})
        if request.method == "DELETE":
            files.delete(workspace, name)
            return dumps({"id": name, "object": "file", "deleted": True})
        return dumps(_file_fields(file))

    # ── Batches ──────────────────────────────────────────────────────────────────────────────────

    def _handle_batch(self, request: RoutedRequest) -> bytes:
        batches, operation = self._batches, request.route.operation
        if operation == "batches" and request.method == "POST":
            batch = self._create(request)
            batches.add(request.workspace, batch)
            return msgspec.json.encode(_batch_fields(batch))
        if operation == "batches":
            own = batches.list(request)
            page, ends = page_of(own, [batch.id for batch in own], request.query, 20)
            data = [self._shown(request, batch) for batch in page]
            return msgspec.json.encode({"object": "list", "data": data, **ends})
        look = batches.cancel if operation == "batch_cancel" else batches.get
        return msgspec.json.encode(self._shown(request, look(request, request.route.name)))

    def _create(self, request: RoutedRequest) -> Batch:
        endpoint = request.value("endpoint")
        if endpoint not in _ENDPOINTS:
            reason = f"endpoint must be one of {', '.join(_ENDPOINTS)} here"
            raise RequestRejected(reason, status=400, param="endpoint")
        file = self._files.get(request.workspace, str(request.value("input_file_id", "")))
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
            id=self._ids.next("batch_"),
            requests=tuple(requests),
            created=request.now,
            endpoint=endpoint,
            input_file=file.id,
            metadata=request.fields.get("metadata", msgspec.Raw(b"null")),
        )

    def _shown(self, request: RoutedRequest, batch: Batch) -> dict[str, Any]:
        """A batch, and its results in files once it has ended."""
        if batch.ended is not None and batch.files == (None, None):
            good = [result for result in batch.results if result.status < 400]
            bad = [result for result in batch.results if result.status >= 400]
            batch.files = (
                self._write(request, batch, good, "output"),
                self._write(request, batch, bad, "errors"),
            )
        return _batch_fields(batch)

    def _write(
        self, request: RoutedRequest, batch: Batch, results: list[Any], kind: str
    ) -> str | None:
        if not results:
            return None
        lines = (
            {
                "id": self._ids.next("batch_req_"),
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
            id=self._ids.next("file-"),
            name=f"{batch.id}_{kind}.jsonl",
            media_type=_JSONL,
            purpose="batch_output",
            data=b"".join(msgspec.json.encode(line) + b"\n" for line in lines),
            created=request.now,
        )
        return self._files.add(request.workspace, file).id


class _BatchLine(msgspec.Struct):
    custom_id: str
    url: str
    body: msgspec.Raw


def _file_fields(file: StoredFile) -> dict[str, Any]:
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


def _batch_fields(batch: Batch) -> dict[str, Any]:
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
