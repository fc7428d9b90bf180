"""Batches: requests that run later, at half the price."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from anaphora.emulator.exchange import EmulatorResponse
from anaphora.emulator.journal import CallRecord
from anaphora.errors import NotFound

from .host import RoutedRequest

#: Batches of all workspaces, and the bytes of their requests and results; the oldest go first.
_MAX_BATCHES, _MAX_BYTES = 1_000, 64 * 1024 * 1024
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
            self._size > _MAX_BYTES and len(self._batches) > 1
        ):
            self._size -= self._batches.popitem(last=False)[1].size


def _request_id(response: EmulatorResponse) -> str:
    headers = response.headers
    return headers.get("request-id") or headers.get("x-request-id") or ""
