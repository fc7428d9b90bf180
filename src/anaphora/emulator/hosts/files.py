"""Files that clients upload: kept in memory, and named in later requests."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from anaphora.emulator.exchange import EmulatorRequest, whole_number
from anaphora.errors import NotFound, RequestRejected, TooLarge

from .host import Operation

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
