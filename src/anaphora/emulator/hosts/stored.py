"""Objects that a provider stores for its clients, in memory: files, batches of requests that run
later at half the price, and replies. Each host has its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import msgspec

from anaphora.emulator.exchange import NULL, EmulatorRequest, EmulatorResponse
from anaphora.emulator.journal import CallRecord
from anaphora.emulator.replies.text import IdGenerator
from anaphora.emulator.strict import rejected
from anaphora.errors import NotFound, TooLarge

from .host import Operation, RoutedRequest

#: Files or batches of all workspaces, and their bytes.
_MOST, _MOST_BYTES = 1_000, 64 * 1024 * 1024
#: Requests of a batch that run at one poll: more would delay other clients.
_MAX_AT_ONCE = 500
_BOUNDARY = re.compile(r'boundary="?([^";,]{1,200})"?')
_PARAMETER = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
#: The name of a file that is sent without one.
_UNNAMED = "upload"

T = TypeVar("T")

Operations: TypeAlias = Mapping[tuple[str, bool, str], Operation]
"""Keys: method, whether the path names an object, and the rest of the path."""

_FILE_OPERATIONS: Operations = {
    ("POST", False, ""): "files",
    ("GET", False, ""): "files",
    ("GET", True, ""): "file",
    ("DELETE", True, ""): "file",
    ("GET", True, "content"): "file_content",
}
BATCH_OPERATIONS: Operations = {
    ("POST", False, ""): "batches",
    ("GET", False, ""): "batches",
    ("GET", True, ""): "batch",
    ("POST", True, "cancel"): "batch_cancel",
}


class StoredObjects(Generic[T]):
    """Objects of all workspaces by their ids. Beyond a number of them, or of bytes, the oldest go
    first; the last one stays."""

    def __init__(self, missing: str, size: Callable[[T], int], most: int, most_bytes: int) -> None:
        """`missing` is the error for an id that is not known."""
        self._missing = missing
        self._size = size
        self._most, self._most_bytes = most, most_bytes
        self._objects: dict[tuple[str, str], T] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        self._bytes = 0

    def add(self, workspace: str, name: str, stored: T) -> None:
        self._objects[workspace, name] = stored
        self.measure(workspace, name)

    def measure(self, workspace: str, name: str) -> None:
        """Counts the bytes of a changed object again."""
        key = workspace, name
        if key not in self._objects:
            return  # it was dropped meanwhile
        size = self._size(self._objects[key])
        self._bytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        while len(self._objects) > self._most or (
            self._bytes > self._most_bytes and len(self._objects) > 1
        ):
            self.delete(*next(iter(self._objects)))

    def find(self, workspace: str, name: str) -> T | None:
        return self._objects.get((workspace, name))

    def get(self, workspace: str, name: str) -> T:
        stored = self.find(workspace, name)
        if stored is None:
            reason = self._missing.format(name)
            raise NotFound(reason, status=404, code="not_found_error")
        return stored

    def delete(self, workspace: str, name: str) -> None:
        del self._objects[workspace, name]
        self._bytes -= self._sizes.pop((workspace, name))

    def list(self, workspace: str) -> list[T]:
        """Those of a workspace, the newest first."""
        return [stored for key, stored in reversed(self._objects.items()) if key[0] == workspace]


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    media_type: str
    purpose: str
    """OpenAI: the field `purpose`."""
    data: bytes
    created: float


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
        raise rejected("the form has no file", param="file")
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
        raise rejected("the body must be multipart/form-data with a boundary")
    for part in (b"\r\n" + request.body).split(b"\r\n--" + match[1].encode("latin-1"))[1:]:
        head, separator, data = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        if not separator:
            continue  # the end, or a part without headers
        lines = (line.partition(":") for line in head.decode(errors="replace").split("\r\n"))
        yield {name.strip().lower(): value.strip() for name, _, value in lines}, data


#: Parameters that name a later page.
_CURSORS = ("after", "after_id", "before_id", "page", "pageToken")


def check_one_page(query: Mapping[str, str]) -> None:
    """Raises for a request for another page of a list: all objects are on the first one."""
    for name in _CURSORS:
        if query.get(name):
            reason = f"lists of the emulator have one page: leave out {name!r}"
            raise NotFound(reason, status=404, code="not_found_error", param=name)


def whole_list(objects: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of a list with all of its objects."""
    ids = [found["id"] for found in objects] or [None]
    return {"data": objects, "first_id": ids[0], "last_id": ids[-1], "has_more": False}


def openai_list(query: Mapping[str, str], items: list[dict[str, Any]], order: str = "asc") -> bytes:
    """A list in order of time; `order` is the default of the query's."""
    if query.get("order", order) == "desc":
        items = items[::-1]
    return msgspec.json.encode({"object": "list", **whole_list(items)})


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
    ended: float | None = None
    canceled: float | None = None
    endpoint: str = ""
    input_file: str = ""
    metadata: msgspec.Raw = NULL
    files: tuple[str | None, str | None] = (None, None)
    """OpenAI: the files of results and errors."""

    @property
    def size(self) -> int:
        return sum(len(request.body) for request in self.requests) + sum(
            len(result.body) for result in self.results
        )

    @property
    def failed(self) -> int:
        return sum(result.status >= 400 for result in self.results)


class FilesAndBatches:
    """The files and batches of one host. A batch runs at the first request about it that comes
    `Host.batch_seconds` after its creation."""

    batches_path: ClassVar[str] = "/batches"
    batch_operations: ClassVar[Operations] = BATCH_OPERATIONS
    file_prefix: ClassVar[str]
    deleted_file: ClassVar[Mapping[str, Any]]
    """Fields after the id in the response to a deletion."""
    list_fields: ClassVar[Mapping[str, Any]] = {}
    """Fields before the objects of a list."""

    def __init__(self, ids: IdGenerator) -> None:
        self.ids = ids
        self.files: StoredObjects[StoredFile] = StoredObjects(
            "File not found: {}", lambda file: len(file.data), _MOST, _MOST_BYTES
        )
        self._batches: StoredObjects[Batch] = StoredObjects(
            "No batch {}", lambda batch: batch.size, _MOST, _MOST_BYTES
        )

    def operation(self, method: str, path: str) -> tuple[Operation, str] | None:
        for begin, names in (
            (self.batches_path, self.batch_operations),
            ("/files", _FILE_OPERATIONS),
        ):
            if path == begin or path.startswith(begin + "/"):
                name, _, rest = path[len(begin) + 1 :].partition("/")
                operation = names.get((method, bool(name), rest))
                return None if operation is None else (operation, name)
        return None

    def handle(self, request: RoutedRequest) -> bytes | EmulatorResponse:
        is_file = request.route.operation.startswith("file")
        found = self._handle_file(request) if is_file else self._handle_batch(request)
        return found if isinstance(found, EmulatorResponse) else msgspec.json.encode(found)

    def add_file(self, workspace: str, file: StoredFile) -> StoredFile:
        if len(file.data) > _MOST_BYTES:
            reason = f"the emulator keeps files of up to {_MOST_BYTES:,} bytes"
            raise TooLarge(reason, status=413)
        self.files.add(workspace, file.id, file)
        return file

    def _handle_file(self, request: RoutedRequest) -> dict[str, Any] | EmulatorResponse:
        workspace, name = request.workspace, request.route.name
        if request.route.operation == "files" and request.method == "POST":
            file = uploaded_file(request, self.ids.next(self.file_prefix))
            self.check_file(file)
            return self.file_fields(self.add_file(workspace, file))
        if request.route.operation == "files":
            return self.list_files(self.files.list(workspace), request.query)
        file = self.files.get(workspace, name)
        if request.route.operation == "file_content":
            return self.file_content(file)
        if request.method == "DELETE":
            self.files.delete(workspace, name)
            return {"id": name, **self.deleted_file}
        return self.file_fields(file)

    def _handle_batch(self, request: RoutedRequest) -> dict[str, Any] | EmulatorResponse:
        workspace, name = request.workspace, request.route.name
        if request.route.operation == "batches" and request.method == "POST":
            batch = self.new_batch(request)
            self._batches.add(workspace, batch.id, batch)
            return self.batch_fields(batch, request)
        if request.route.operation == "batches":
            own = self._batches.list(workspace)
            for batch in own:
                self._advance(request, batch)
            listed = [self.batch_fields(batch, request) for batch in own]
            return {**self.list_fields, **whole_list(listed)}
        batch = self._batches.get(workspace, name)
        self._advance(request, batch)
        if request.route.operation == "batch_results":
            return self.batch_results(batch)
        if request.method == "DELETE":
            if batch.ended is None:
                raise rejected("a batch in progress cannot be deleted")
            self._batches.delete(workspace, name)
            return {"id": name, "type": "message_batch_deleted"}
        if request.route.operation == "batch_cancel" and batch.ended is None:
            batch.canceled = batch.canceled or request.now  # requests that have not run will not
        return self.batch_fields(batch, request)

    def _advance(self, request: RoutedRequest, batch: Batch) -> None:
        """Runs due requests. A canceled batch ends at the next request about it."""
        if batch.ended is not None or request.now < batch.created + request.host.batch_seconds:
            return
        if batch.canceled is None:
            done, calls = len(batch.results), list[CallRecord]()
            for one in batch.requests[done : done + _MAX_AT_ONCE]:
                response = request.host.run(request, one.path, one.body)
                headers = response.headers
                request_id = headers.get("request-id") or headers.get("x-request-id") or ""
                batch.results.append(
                    BatchResult(one.custom_id, request_id, response.status, response.body)
                )
                calls += [] if response.call is None else [response.call]
            for call in calls:  # concurrent calls: none reads what another wrote
                call.end(request.now)
            self._batches.measure(request.workspace, batch.id)
        if batch.canceled is not None or len(batch.results) == len(batch.requests):
            batch.ended = request.now

    # ── Differences between providers ────────────────────────────────────────────────────────────

    def check_file(self, file: StoredFile) -> None:
        """Raises for an upload that the provider rejects."""

    def file_fields(self, file: StoredFile) -> dict[str, Any]:
        raise NotImplementedError

    def list_files(self, files: list[StoredFile], query: Mapping[str, str]) -> dict[str, Any]:
        raise NotImplementedError

    def file_content(self, file: StoredFile) -> EmulatorResponse:
        raise NotImplementedError

    def new_batch(self, request: RoutedRequest) -> Batch:
        raise NotImplementedError

    def batch_fields(self, batch: Batch, request: RoutedRequest) -> dict[str, Any]:
        raise NotImplementedError

    def batch_results(self, batch: Batch) -> EmulatorResponse:
        raise NotImplementedError
