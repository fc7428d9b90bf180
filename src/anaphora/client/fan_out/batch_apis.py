"""The Batch APIs of Anthropic and OpenAI: submit requests, poll a batch, read its results.

Requests of a batch run within a day, at half the price and with a separate cache.

Neither API takes an idempotency key. A batch carries a mark that the client chose, by which its
owner finds it if its id did not arrive: OpenAI shows the metadata of each batch; Anthropic shows
the ids of its requests, with its results.
"""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

import msgspec

from anaphora import wire
from anaphora.catalog.api_limits import BatchLimits, batch_limits
from anaphora.client.provider_errors import status_error
from anaphora.client.target import Endpoint
from anaphora.client.transport import HttpResponse, read_answer, read_error_body
from anaphora.errors import (
    AnaphoraError,
    InvalidRequest,
    Overloaded,
    Parse,
    RequestRejected,
    Transport,
    Upstream,
)

Headers: TypeAlias = tuple[tuple[str, str], ...]

#: Attempts of one request, and the seconds before the second; each next wait is twice as long.
_ATTEMPTS, _FIRST_WAIT = 5, 1.0
#: Bytes of the results of one batch.
_MOST_BYTES = 4 * 1024**3
#: The metadata of a batch that has its mark.
_MARK = "anaphora_batch"
#: Failures after which the provider has surely not accepted the request; after others it may have.
_NOT_TAKEN = (503, 529)


class BatchRequest(msgspec.Struct, frozen=True):
    key: str
    body: bytes


class BatchStatus(msgspec.Struct, frozen=True):
    ended: bool
    done: int
    """Requests that ran."""
    total: int = 0
    places: tuple[str, ...] = ()
    """Paths of the results."""
    problem: str = ""
    """The reason if the provider refused the whole batch."""


class BatchOutcome(msgspec.Struct, frozen=True):
    """The result of one request: a body, or an error."""

    id: str
    """The id of the request: the mark of the batch, and the key."""
    body: bytes = b""
    error: Exception | None = None

    @property
    def key(self) -> str:
        return self.id.rpartition("_")[2]


class BatchApi(ABC):
    """The batches of one provider."""

    _under_path = False
    """Whether the path of batches continues that of a single request."""

    def __init__(
        self, endpoint: Endpoint, path: str, headers: Headers, limits: BatchLimits
    ) -> None:
        """Path and headers of a single request."""
        self.limits = limits
        self._endpoint = endpoint
        self._path = path
        self._headers = headers
        self._root = path.partition("/v1/")[0] + "/v1"
        self._batches = f"{path if self._under_path else self._root}/batches"

    @abstractmethod
    async def submit(self, requests: Sequence[BatchRequest], mark: str) -> str:
        """The id of the batch, which carries the mark."""

    def named(self, mark: str) -> str:
        """How the provider shows the batch with that mark."""
        return f"the batch whose requests have the ids {mark}_…"

    @abstractmethod
    async def status(self, batch: str) -> BatchStatus: ...

    @abstractmethod
    def _outcome(self, line: bytes) -> BatchOutcome: ...

    async def cancel(self, batch: str) -> None:
        await self._request("POST", f"{self._batches}/{batch}/cancel", again=True)

    async def results(self, status: BatchStatus) -> AsyncIterator[BatchOutcome]:
        """The outcome of each request, in any order."""
        for place in status.places:
            async with aclosing(self._lines(place)) as lines:  # type: ignore[type-var]
                async for line in lines:
                    if line.strip():
                        yield self._read(line)

    def _read(self, line: bytes) -> BatchOutcome:
        try:
            return self._outcome(line)
        except (msgspec.DecodeError, KeyError, TypeError) as problem:
            raise Parse(f"a line of the batch's results cannot be read: {problem}") from None

    async def _lines(self, path: str) -> AsyncIterator[bytes]:
        """The lines of a response as they arrive."""
        answer = await self._send("GET", path, b"", self._headers)
        try:
            if answer.status >= 300:
                raise status_error(self._endpoint, answer, await read_error_body(answer))
            rest = b""
            async for data in answer:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    yield line
            yield rest
        finally:
            await answer.close()

    async def _get(self, path: str) -> Any:
        return await self._request("GET", path, again=True)

    async def _request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Headers | None = None,
        *,
        again: bool = False,
    ) -> Any:
        """The decoded response. `again`: the request may safely be sent twice."""
        wait = _FIRST_WAIT
        for attempt in range(_ATTEMPTS):
            try:
                answer = await self._send(method, path, body, headers or self._headers)
                try:
                    data = await read_answer(answer)
                finally:
                    await answer.close()
                if answer.status >= 300:
                    raise status_error(self._endpoint, answer, data)
                return msgspec.json.decode(data)
            except msgspec.DecodeError as problem:
                raise Parse(f"the response to {method} {path} is not JSON: {problem}") from None
            except AnaphoraError as problem:
                self._endpoint.redactor.clean(problem)
                harmless = again or not may_have_arrived(problem)
                if attempt + 1 == _ATTEMPTS or not problem.retryable or not harmless:
                    raise
                await asyncio.sleep(getattr(problem, "retry_after", None) or wait)
                wait *= 2
        raise AssertionError("the last attempt returns or raises")

    async def _send(self, method: str, path: str, body: bytes, headers: Headers) -> HttpResponse:
        request = self._endpoint.outgoing_body(path, headers, body, method=method)
        request = msgspec.structs.replace(request, max_response_bytes=_MOST_BYTES)
        return await self._endpoint.transport.send(request)


class AnthropicBatches(BatchApi):
    _under_path = True

    async def submit(self, requests: Sequence[BatchRequest], mark: str) -> str:
        listed = [
            {"custom_id": f"{mark}_{each.key}", "params": msgspec.Raw(each.body)}
            for each in requests
        ]
        body = msgspec.json.encode({"requests": listed})
        return _id_of(await self._request("POST", self._batches, body))

    async def status(self, batch: str) -> BatchStatus:
        found = await self._get(f"{self._batches}/{batch}")
        counts = found["request_counts"]
        total = sum(counts.values())
        return BatchStatus(
            ended=found["processing_status"] == "ended",
            done=total - counts.get("processing", 0),
            total=total,
            places=(f"{self._batches}/{batch}/results",),
        )

    def _outcome(self, line: bytes) -> BatchOutcome:
        read = msgspec.json.decode(line, type=_AnthropicLine)
        result = read.result
        if result.type == "succeeded":
            return BatchOutcome(read.custom_id, bytes(result.message))
        if result.type == "errored":
            return BatchOutcome(
                read.custom_id, error=self._endpoint.wire.read_error(400, {}, bytes(result.error))
            )
        return BatchOutcome(read.custom_id, error=_not_run(result.type))


class OpenAIBatches(BatchApi):
    def named(self, mark: str) -> str:
        return f"the batch with the metadata {_MARK}: {mark}"

    async def submit(self, requests: Sequence[BatchRequest], mark: str) -> str:
        url = self._path[self._path.index("/v1/") :]
        lines = b"".join(
            msgspec.json.encode(
                {
                    "custom_id": f"{mark}_{each.key}",
                    "method": "POST",
                    "url": url,
                    "body": msgspec.Raw(each.body),
                }
            )
            + b"\n"
            for each in requests
        )
        headers, body = _form({"purpose": "batch"}, "requests.jsonl", lines)
        uploaded = await self._request("POST", f"{self._root}/files", body, headers, again=True)
        fields = {
            "input_file_id": uploaded["id"],
            "endpoint": url,
            "completion_window": "24h",
            "metadata": {_MARK: mark},
        }
        body = msgspec.json.encode(fields)
        return _id_of(await self._request("POST", self._batches, body))

    async def status(self, batch: str) -> BatchStatus:
        found = await self._get(f"{self._batches}/{batch}")
        counts = found.get("request_counts") or {}
        files = (found.get("output_file_id"), found.get("error_file_id"))
        problems = (found.get("errors") or {}).get("data") or [{}]
        return BatchStatus(
            ended=found["status"] in ("completed", "failed", "expired", "cancelled"),
            done=counts.get("completed", 0) + counts.get("failed", 0),
            total=counts.get("total", 0),
            places=tuple(f"{self._root}/files/{file}/content" for file in files if file),
            problem=problems[0].get("message", "") if found["status"] == "failed" else "",
        )

    def _outcome(self, line: bytes) -> BatchOutcome:
        read = msgspec.json.decode(line, type=_OpenAILine)
        if read.response is None:
            error = read.error or {}
            reason = str(error.get("message") or "the request did not run")
            code = None if error.get("code") is None else str(error["code"])
            return BatchOutcome(read.custom_id, error=RequestRejected(reason, code=code))
        status, body = read.response.status_code, bytes(read.response.body)
        if status >= 300:
            return BatchOutcome(
                read.custom_id, error=self._endpoint.wire.read_error(status, {}, body)
            )
        return BatchOutcome(read.custom_id, body)


_APIS: dict[str | None, type[BatchApi]] = {"inline": AnthropicBatches, "file": OpenAIBatches}


def batch_api(endpoint: Endpoint, path: str, headers: Headers) -> BatchApi:
    """The Batch API of a provider; raises if none is known."""
    own = wire.PROVIDERS.get(endpoint.base_wire) == endpoint.system
    api = _APIS.get(endpoint.features.batches) if own else None
    limits = batch_limits(endpoint.system)
    if api is None or limits is None:
        raise InvalidRequest(
            f"no Batch API is known for {endpoint.id}; Anthropic and OpenAI have one", path="batch"
        )
    return api(endpoint, path, headers, limits)


def may_have_arrived(problem: AnaphoraError) -> bool:
    """Whether the provider may have carried out the request."""
    match problem:
        case Transport():
            return problem.phase != "connect"
        case Overloaded():
            return problem.status not in _NOT_TAKEN
        case _:
            return isinstance(problem, Parse)


class _AnthropicResult(msgspec.Struct):
    type: str
    message: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")


class _AnthropicLine(msgspec.Struct):
    custom_id: str
    result: _AnthropicResult


class _OpenAIResponse(msgspec.Struct):
    status_code: int
    body: msgspec.Raw


class _OpenAILine(msgspec.Struct):
    custom_id: str
    response: _OpenAIResponse | None = None
    error: dict[str, Any] | None = None


def _not_run(reason: str) -> Upstream:
    error = Upstream(f"the batch ended before the request ran: {reason}", code=reason)
    error.retryable = True
    return error


def _id_of(made: Any) -> str:
    try:
        return str(made["id"])
    except (KeyError, TypeError):
        raise Parse("the response to a new batch has no id") from None


def _form(fields: dict[str, str], name: str, data: bytes) -> tuple[Headers, bytes]:
    """A form with one file, and its headers."""
    mark = uuid.uuid4().hex
    head = "".join(
        f'--{mark}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
        for field, value in fields.items()
    )
    file = (
        f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        "Content-Type: application/jsonl\r\n\r\n"
    )
    body = b"".join([head.encode(), file.encode(), data, f"\r\n--{mark}--\r\n".encode()])
    return (("content-type", f"multipart/form-data; boundary={mark}"),), body
