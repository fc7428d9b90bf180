"""Checks the requests in a batch one by one against the app's grant.

Only an app without a spend limit may send batches: their bill comes up to a day later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from anaphora import wire as wires
from anaphora.daemon.access.checks import check_grant
from anaphora.daemon.access.grants import LlmGrant
from anaphora.daemon.faces import FACES, face_of
from anaphora.daemon.facts.handles import check_references, references
from anaphora.daemon.store.interface import Store
from anaphora.errors import NotGranted, RequestRejected
from anaphora.wire.facts.reading import read_facts
from anaphora.wire.reading import DECODE_ERRORS, Members

from .body import JsonBody, parse_object

#: Paths for the requests of a batch, and their wires.
_PATHS = {
    face.generate_path: name
    for name, face in FACES.items()
    if wires.features(name).batches == "file"
}
_MAX_REQUESTS = 50_000


class _InlineRequest(msgspec.Struct):
    custom_id: str
    params: msgspec.Raw


class _FileRequest(msgspec.Struct):
    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


_inline_requests = msgspec.json.Decoder(list[_InlineRequest]).decode
_file_request = msgspec.json.Decoder(_FileRequest).decode


class BatchCheck:
    """Checks batches. `read_file` returns the content of one of the app's files at the provider."""

    def __init__(
        self,
        store: Store,
        app: str,
        grant: LlmGrant,
        provider: str,
        read_file: Callable[[str], Awaitable[bytes]],
    ) -> None:
        self._store = store
        self._app = app
        self._grant = grant
        self._provider = provider
        self._read_file = read_file

    async def check(self, wire: str, body: JsonBody) -> None:
        """Raises `NotGranted` if the grant does not allow one of the requests."""
        if self._grant.approved_prompt is not None:
            raise NotGranted("batches are not possible with an approved_prompt", param="batch")
        if wires.features(wire).batches == "inline":
            await self._check_inline(wire, body)
        else:
            await self._check_file(body)

    async def _check_inline(self, wire: str, body: JsonBody) -> None:
        try:
            requests = _inline_requests(body.members.get("requests", b"[]"))
        except DECODE_ERRORS as problem:
            raise RequestRejected(f"requests: {problem}", status=400, param="requests") from None
        for index, one in enumerate(requests):
            place = f"requests[{index}].params"
            await self._check_one(wire, face_of(wire).generate_path, bytes(one.params), place)

    async def _check_file(self, body: JsonBody) -> None:
        path = body.value.get("endpoint")
        if path not in _PATHS:
            reason = f"endpoint must be one of {', '.join(_PATHS)}"
            raise RequestRejected(reason, status=400, param="endpoint")
        lines = (await self._read_file(str(body.value.get("input_file_id")))).splitlines()
        if len(lines) > _MAX_REQUESTS:
            reason = f"a batch has at most {_MAX_REQUESTS:,} requests"
            raise RequestRejected(reason, status=400, param="input_file_id")
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            parse_object(line)
            try:
                one = _file_request(line)
            except DECODE_ERRORS as problem:
                reason = f"line {number}: {problem}"
                raise RequestRejected(reason, status=400, param="input_file_id") from None
            if one.url != path or one.method != "POST":
                reason = f"line {number}: must be a POST to {path}"
                raise RequestRejected(reason, status=400, param="input_file_id")
            await self._check_one(_PATHS[path], path, bytes(one.body), f"line {number}")

    async def _check_one(self, wire: str, path: str, data: bytes, place: str) -> None:
        body = parse_object(data)
        rows = await check_references(self._store, self._app, references(body.value))
        if any(row.provider != self._provider for row in rows):
            reason = f"{place}: names stored objects of another provider"
            raise RequestRejected(reason, status=400)
        members: Members = body.members
        facts = read_facts(wire, members, path)
        model = body.value.get("model")
        check_grant(
            facts,
            self._grant,
            provider_ids=(self._provider,),
            models=(model,) if isinstance(model, str) else (),
        )
        if self._grant.max_tokens is not None and facts.max_tokens is None:
            reason = f"{place}: {facts.max_tokens_field} must be given in a batch"
            raise NotGranted(reason, param=facts.max_tokens_field)
