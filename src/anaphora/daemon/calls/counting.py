"""The tokens of a prompt by the provider's own count, which is not billed."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace

from anaphora.client.in_flight import PreparedRequest
from anaphora.client.target import Target
from anaphora.client.transport import read_answer
from anaphora.daemon.faces import face_of
from anaphora.errors import AnaphoraError
from anaphora.wire.reading import DECODE_ERRORS, decode_members

#: Seconds that a count may take; then it is estimated.
_TIMEOUT = 10.0


class _Count(msgspec.Struct):
    input_tokens: int | None = None
    total_tokens: int | None = msgspec.field(default=None, name="totalTokens")


_decode = msgspec.json.Decoder(_Count).decode


async def provider_count(target: Target, prepared: PreparedRequest) -> int | None:
    """The count of the target's provider; None where it has none, or does not answer."""
    endpoint, outgoing = target.endpoint, prepared.outgoing
    assert outgoing is not None
    if endpoint.resolved.dialect is not None:
        return None
    members = decode_members(outgoing.body)
    face = face_of(endpoint.base_wire)
    counted = face.count_request(target.model, members, outgoing.path)
    if counted is None:
        return None
    path, body = counted
    request = replace(endpoint.outgoing_body(path, (), body), headers=outgoing.headers)
    try:
        async with asyncio.timeout(_TIMEOUT):
            answer = await endpoint.transport.send(request)
            try:
                data = await read_answer(answer)
            finally:
                await answer.close()
        if answer.status >= 300:
            return None
        count = _decode(data)
    except (AnaphoraError, TimeoutError, *DECODE_ERRORS):
        return None
    return count.input_tokens if count.input_tokens is not None else count.total_tokens
