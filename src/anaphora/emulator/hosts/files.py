"""Files that clients upload, and batches of requests that run later, at half the price: kept in
memory, and named in later requests."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from anaphora.emulator.exchange import EmulatorRequest, EmulatorResponse, whole_number
from anaphora.emulator.journal import CallRecord
from anaphora.errors import NotFound, RequestRejected, TooLarge

from .host import Operation, RoutedRequest

#: Files of all workspaces, and their bytes; the oldest go first.
MAX_FILES, MAX_BYTES = 1_000, 64 * 1024 * 1024
_BOUNDARY = re.compile(r'boundary="?([^";,]{1,200})"?')
_PARAMETER = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
#: The name of a file that is sent without one.
_UNNAMED = "upload"

T = TypeVar("T")

#: By method, whether the path names a file, and what follows.
FILE_OPERATIONS: dict[tuple[str, bool, str], Operation] = {
    ("POST", False, ""): "files",
    ("GET", False, ""): "files",
    ("GET", True, ""): "file",
    ("DELETE", True, ""): "file",
    ("GET", True, "content"): "file_content",
}


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    media_type: str
    purpose: str
    """OpenAI: what it is for."""
    data: bytes
    created: float


class FileStore:
    """The files of one host."""

    def __init__(self) -> None:
        self._files: OrderedDict[tuple[str, str], StoredFile] = OrderedDict()
        self._bytes = 0

    def add(self, workspace: str, file: StoredFile) -> StoredFile:
        if len(file.data) > MAX_BYTES:
            reason = f"the emulator keeps files of up to {MAX_BYTES:,} bytes"
            raise TooLarge(reason, status=413)
        self._files[workspace, file.id] = file
        self._bytes += len(file.data)
        while len(self._files) > MAX_FILES or self._bytes > MAX_BYTES:
            self._bytes -= len(self._files.popitem(last=False)[1].data)
        return file

    def get(self, workspace: str, name: str) -> StoredFile:
        file = self._files.get((workspace, name))
        if file is None:
            raise NotFound(f"File not found: {name}", status=404, code="not_found_error")
        return file

    def delete(self, workspace: str, name: str) -> None:
        self._bytes -= len(self.get(workspace, name).data)
        del self._files[workspace, name]

    def list(self, workspace: str) -> list[StoredFile]:
        """The files of a workspace, the newest first."""
        return [file for key, file in reversed(self._files.items()) if key[0] == workspace]


def uploaded_file(request: EmulatorRequest, file_id: str) -> StoredFile:
    """The file of a request in `multipart/form-data`."""
    fields = dict[str, bytes]()
    upload: tuple[str, str, bytes] | None = None
    for headers, data in _form_parts(request):
        parameters = dict(_PARAMETER.findall(headers.get("content-disposition", "")))
        name = parameters.get("name", "")
        # SDKs send bytes without a file name, and with a type, which plain fields do not have.
        if name == "file" and ("filename" in parameters or "content-type" in headers):
            kind = headers.get("content-type", "application/octet-stream")
            upload = parameters.get("filename", _UNNAMED), kind, data
        else:
            fields[name] = data
    if upload is None:
        raise RequestRejected("the form has no file", status=400, param="file")
    filename, media_type, data = upload
    return StoredFile(
        id=file_id,
        name=filename,
        media_type=media_type,
        purpose=fields.get("purpose", b"").decode(errors="replace"),
        data=data,
        created=request.now,
    )


def _form_parts(request: EmulatorRequest) -> Iterator[tuple[dict[str, str], bytes]]:
    """Headers and content of each part of a form."""
    kind = request.headers.get("content-type", "")
    match = _BOUNDARY.search(kind)
    if not kind.lower().startswith("multipart/form-data") or match is None:
        reason = "the body must be multipart/form-data with a boundary"
        raise RequestRejected(reason, status=400)
    for part in (b"\r\n" + request.body).split(b"\r\n--" + match[1].encode("latin-1"))[1:]:
        head, separator, data = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        if not separator:
            continue  # the end, or a part without headers
        lines = (line.partition(":") for line in head.decode(errors="replace").split("\r\n"))
        yield {name.strip().lower(): value.strip() for name, _, value in lines}, data


def page_of(
    items: Sequence[T], ids: Sequence[str], query: Mapping[str, str], default: int
) -> tuple[Sequence[T], dict[str, Any]]:
    """A page of a list, and the fields that describe it. Anthropic's `after_id` and OpenAI's
    `after` are the last id of the page before."""
    after, before = query.get("after_id") or query.get("after"), query.get("before_id")
    limit = max(1, whole_number(query.get("limit") or str(default), "limit"))
    start, end = ids.index(after) + 1 if after in ids else 0, len(items)
    if before in ids:
        end = ids.index(before)
        start = max(start, end - limit)
    stop = min(end, start + limit)
    page = ids[start:stop]
    return items[start:stop], {
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
        "has_more": start > 0 if before in ids else stop < end,
    }


#: Batches of all workspaces, and the bytes of their requests and results; the oldest go first.
_MAX_BATCHES, _BATCH_BYTES = 1_000, 64 * 1024 * 1024
#: Requests that run when a batch is looked at: more would keep other clients waiting.
_MAX_AT_ONCE = 500


class BatchedRequest(msgspec.Struct, frozen=True):
    custom_id: str
    path: str
    body: bytes


class BatchResult(msgspec.Struct, frozen=True):
    custom_id: str
    request_id: str
    status: int
    body: bytes


class Batch(msgspec.Struct, kw_only=True, eq=False):
    id: str
    requests: tuple[BatchedRequest, ...]
    created: float
    results: list[BatchResult] = []
    size: int = 0
    ended: float | None = None
    canceled: float | None = None
    endpoint: str = ""
    input_file: str = ""
    metadata: msgspec.Raw = msgspec.Raw(b"null")
    files: tuple[str | None, str | None] = (None, None)
    """OpenAI: the files of results and errors."""

    @property
    def failed(self) -> int:
        return sum(result.status >= 400 for result in self.results)


class BatchStore:
    """The batches of one host. A batch runs when it is looked at, `Host.background` seconds after
    it was created."""

    def __init__(self) -> None:
        self._batches: OrderedDict[tuple[str, str], Batch] = OrderedDict()
        self._size = 0

    def add(self, workspace: str, batch: Batch) -> None:
        self._batches[workspace, batch.id] = batch
        self._grow(batch, sum(len(request.body) for request in batch.requests))

    def get(self, request: RoutedRequest, name: str) -> Batch:
        batch = self._batches.get((request.workspace, name))
        if batch is None:
            raise NotFound(f"No batch {name}", status=404, code="not_found_error")
        self._advance(request, batch)
        return batch

    def list(self, request: RoutedRequest) -> list[Batch]:
        """The batches of a workspace, the newest first."""
        own = [
            batch for key, batch in reversed(self._batches.items()) if key[0] == request.workspace
        ]
        for batch in own:
            self._advance(request, batch)
        return own

    def cancel(self, request: RoutedRequest, name: str) -> Batch:
        """Requests that have not run will not."""
        batch = self.get(request, name)
        if batch.ended is None:
            batch.canceled = batch.canceled or request.now
        return batch

    def delete(self, request: RoutedRequest, name: str) -> None:
        self.get(request, name)
        self._size -= self._batches.pop((request.workspace, name)).size

    def _advance(self, request: RoutedRequest, batch: Batch) -> None:
        """Runs what is due. A batch that is canceled ends when it is looked at again."""
        if batch.ended is not None or request.now < batch.created + request.host.background:
            return
        if batch.canceled is None:
            done, calls = len(batch.results), list[CallRecord]()
            for one in batch.requests[done : done + _MAX_AT_ONCE]:
                response = request.host.run(request, one.path, one.body)
                result = BatchResult(
                    one.custom_id, _request_id(response), response.status, response.body
                )
                batch.results.append(result)
                self._grow(batch, len(result.body))
                calls += [] if response.call is None else [response.call]
            for call in calls:  # they ran side by side: none reads what another wrote
                call.end(request.now)
        if batch.canceled is not None or len(batch.results) == len(batch.requests):
            batch.ended = request.now

    def _grow(self, batch: Batch, size: int) -> None:
        batch.size += size
        self._size += size
        while len(self._batches) > _MAX_BATCHES or (
            self._size > _BATCH_BYTES and len(self._batches) > 1
        ):
            self._size -= self._batches.popitem(last=False)[1].size


def _request_id(response: EmulatorResponse) -> str:
    headers = response.headers
    return headers.get("request-id") or headers.get("x-request-id") or ""
