"""Files that clients upload: OpenAI's, with the batches made of them, and Gemini's, with resumable
uploads: a request begins one, others send its bytes."""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from anaphora.bounded import BoundedMap
from anaphora.canonical import dumps
from anaphora.emulator.exchange import (
    NULL,
    EmulatorResponse,
    decode_object,
    decode_value,
    json_response,
    nested,
    whole_number,
)
from anaphora.emulator.replies.text import IdGenerator
from anaphora.emulator.strict import rejected
from anaphora.errors import Forbidden, NotFound, TooLarge
from anaphora.wire.reading import DECODE_ERRORS

from .host import Operation, RoutedRequest
from .stored import (
    Batch,
    BatchedRequest,
    FilesAndBatches,
    StoredFile,
    StoredObjects,
    whole_list,
)

_ENDPOINTS = ("/v1/chat/completions", "/v1/responses")
_JSONL = "application/jsonl"


class _BatchLine(msgspec.Struct):
    custom_id: str
    url: str
    body: msgspec.Raw


class OpenAIFiles(FilesAndBatches):
    """OpenAI's files, and the batches that are made of them."""

    file_prefix = "file-"
    deleted_file: ClassVar = {"object": "file", "deleted": True}
    list_fields: ClassVar = {"object": "list"}

    def check_file(self, file: StoredFile) -> None:
        if not file.purpose:
            raise rejected("'purpose' is a required property")

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
        return {**self.list_fields, **whole_list([self.file_fields(file) for file in own])}

    def file_content(self, file: StoredFile) -> EmulatorResponse:
        return json_response(file.data, headers={"content-type": "application/octet-stream"})

    def new_batch(self, request: RoutedRequest) -> Batch:
        endpoint = request.value("endpoint")
        if endpoint not in _ENDPOINTS:
            reason = f"endpoint must be one of {', '.join(_ENDPOINTS)} here"
            raise rejected(reason, param="endpoint")
        file = self.files.get(request.workspace, str(request.value("input_file_id", "")))
        path = request.path.partition("/batches")[0].removesuffix("/v1") + endpoint
        requests, known = [], set[str]()
        for number, line in enumerate(file.data.splitlines(), 1):
            if not line.strip():
                continue
            try:
                one = msgspec.json.decode(line, type=_BatchLine)
                if one.url != endpoint:
                    raise ValueError(f"url is {one.url!r}, not {endpoint!r}")
                if one.custom_id in known:
                    raise ValueError(f"custom_id {one.custom_id!r} is used twice")
            except (ValueError, *DECODE_ERRORS) as problem:
                reason = f"line {number} of {file.id}: {problem}"
                raise rejected(reason, param="input_file_id") from None
            known.add(one.custom_id)
            requests.append(BatchedRequest(one.custom_id, path, bytes(one.body)))
        if not requests:
            raise rejected(f"{file.id} has no requests", param="input_file_id")
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


# ── Gemini ───────────────────────────────────────────────────────────────────────────────────────

_PATH = re.compile(r"(?P<upload>/upload)?/v1(?:beta|alpha)?/files(?:/(?P<name>[^/:]+))?")
_MOST_FILES, _MOST_BYTES = 10_000, 256 * 1024 * 1024
_MOST_UPLOADS = 100
#: Size unit of all pieces of an upload but the last.
_GRANULARITY = 262_144
_KEPT = datetime.timedelta(hours=48)
_STATUS = "x-goog-upload-status"


class Upload(msgspec.Struct, eq=False):
    """A file that is still being uploaded."""

    workspace: str
    name: str
    media_type: str
    size: int
    data: bytearray


class GeminiFiles:
    def __init__(self, ids: IdGenerator) -> None:
        self._ids = ids
        self._files: StoredObjects[StoredFile] = StoredObjects(
            "", lambda file: len(file.data), _MOST_FILES, _MOST_BYTES
        )
        self._uploads = BoundedMap[str, Upload](_MOST_UPLOADS)

    def operation(self, method: str, path: str) -> tuple[Operation, str] | None:
        match = _PATH.fullmatch(path)
        if match is None:
            return None
        name = match["name"] or ""
        if match["upload"]:
            return ("upload", "") if method == "POST" and not name else None
        if name:
            return ("file", name) if method in ("GET", "DELETE") else None
        return ("files", "") if method == "GET" else None

    def workspace(self, query: Mapping[str, str]) -> str | None:
        """The workspace of an upload that a request continues, by the upload's id."""
        upload = self._uploads.get(query.get("upload_id", ""))
        return None if upload is None else upload.workspace

    def handle(self, request: RoutedRequest) -> bytes | EmulatorResponse:
        if request.route.operation == "upload":
            command = request.headers.get("x-goog-upload-command", "")
            return self._start(request) if command == "start" else self._continue(request, command)
        if request.route.operation == "files":
            own = [_fields(file) for file in self._files.list(request.workspace)]
            return dumps({"files": own} if own else {})
        file = self._files.find(request.workspace, request.route.name)
        if file is None:
            reason = "You do not have permission to access the File {} or it may not exist."
            reason = reason.format(request.route.name)
            raise Forbidden(reason, status=403, code="PERMISSION_DENIED")
        if request.method == "DELETE":
            self._files.delete(request.workspace, request.route.name)
            return b"{}"
        return dumps(_fields(file))

    def _start(self, request: RoutedRequest) -> EmulatorResponse:
        headers = request.headers
        if headers.get("x-goog-upload-protocol") != "resumable":
            raise rejected("only resumable uploads are known here")
        size = whole_number(headers.get("x-goog-upload-header-content-length", ""), "size")
        if size > _MOST_BYTES:
            raise TooLarge(f"the emulator keeps up to {_MOST_BYTES:,} bytes", status=413)
        described = decode_value(decode_object(request.body).get("file", b"{}"), "file")
        upload = Upload(
            request.workspace,
            str(nested(described, "displayName") or nested(described, "display_name") or ""),
            headers.get("x-goog-upload-header-content-type", "application/octet-stream"),
            size,
            bytearray(),
        )
        id = self._ids.next("upload-")
        self._uploads[id] = upload
        url = f"http://{headers.get('host', '')}{request.path}"
        return json_response(
            b"",
            headers={
                "x-goog-upload-url": f"{url}?upload_id={id}&upload_protocol=resumable",
                "x-goog-upload-chunk-granularity": str(_GRANULARITY),
                _STATUS: "active",
            },
        )

    def _continue(self, request: RoutedRequest, command: str) -> EmulatorResponse:
        id = request.query.get("upload_id", "")
        upload = self._uploads.get(id)
        if upload is None or upload.workspace != request.workspace:
            raise NotFound("no such upload", status=404)
        commands = {each.strip() for each in command.split(",")}
        received = {"x-goog-upload-size-received": str(len(upload.data))}
        if commands == {"query"}:
            return json_response(b"", headers={**received, _STATUS: "active"})
        if commands == {"cancel"}:
            del self._uploads[id]
            return json_response(b"", headers={_STATUS: "cancelled"})
        if not commands or not commands <= {"upload", "finalize"}:
            raise rejected(f"unknown upload command {command[:40]!r}")
        if "upload" in commands:
            offset = whole_number(request.headers.get("x-goog-upload-offset", ""), "offset")
            is_whole = "finalize" in commands or len(request.body) % _GRANULARITY == 0
            if offset != len(upload.data) or not is_whole:
                raise rejected("the piece does not fit the upload")
            upload.data += request.body
        if "finalize" not in commands:
            return json_response(b"", headers={_STATUS: "active"})
        if len(upload.data) != upload.size:
            raise rejected("the file has another size than was announced")
        del self._uploads[id]
        file = StoredFile(
            id=self._ids.next("").lower(),
            name=upload.name,
            media_type=upload.media_type,
            purpose="",
            data=bytes(upload.data),
            created=request.now,
        )
        self._files.add(upload.workspace, file.id, file)
        return json_response(dumps({"file": _fields(file)}), headers={_STATUS: "final"})


def _fields(file: StoredFile) -> dict[str, Any]:
    made = datetime.datetime.fromtimestamp(file.created, datetime.UTC)
    created = made.isoformat().replace("+00:00", "Z")
    digest = hashlib.sha256(file.data).hexdigest().encode()
    shown = {
        "name": f"files/{file.id}",
        "displayName": file.name,
        "mimeType": file.media_type,
        "sizeBytes": str(len(file.data)),
        "createTime": created,
        "updateTime": created,
        "expirationTime": (made + _KEPT).isoformat().replace("+00:00", "Z"),
        "sha256Hash": msgspec.json.encode(digest).decode().strip('"'),
        "uri": f"https://generativelanguage.googleapis.com/v1beta/files/{file.id}",
        "state": "ACTIVE",
        "source": "UPLOADED",
    }
    return {name: value for name, value in shown.items() if value}
