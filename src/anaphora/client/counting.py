"""The tokens of a prompt: counted by the provider, or estimated."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace

from anaphora.catalog import names
from anaphora.errors import AnaphoraError, Unauthenticated
from anaphora.prompt import Call
from anaphora.rendered import Plan
from anaphora.tokens import Counts
from anaphora.values import Notice
from anaphora.wire.counting import count_request
from anaphora.wire.reading import DECODE_ERRORS

from .provider_errors import status_error
from .target import Target
from .transport import HttpRequest, read_answer

#: Seconds after which a count is estimated instead.
_TIMEOUT = 10.0


class CountedTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The input tokens of a call."""

    tokens: int
    exact: bool
    """Whether the provider counted them; otherwise they are estimated, and a notice says why."""
    notices: tuple[Notice, ...] = ()


class _Answer(msgspec.Struct):
    input_tokens: int | None = None
    total_tokens: int | None = msgspec.field(default=None, name="totalTokens")
    converse_tokens: int | None = msgspec.field(default=None, name="inputTokens")


_decode = msgspec.json.Decoder(_Answer).decode


async def count_call(target: Target, call: Call) -> CountedTokens:
    """Raises `Unauthenticated` for an invalid key."""
    rendered = target.render(call)
    outgoing = target.endpoint.outgoing(target.endpoint.wire.assemble(rendered, Plan()))
    try:
        counted = await provider_count(target, outgoing)
    except Unauthenticated:
        raise
    except AnaphoraError as problem:
        counted = target.endpoint.redactor(str(problem))
    if isinstance(counted, int):
        return CountedTokens(tokens=counted, exact=True, notices=rendered.notices)
    notice = Notice("estimated", f"the tokens are estimated: {counted}")
    return CountedTokens(
        tokens=Counts(rendered).total, exact=False, notices=(*rendered.notices, notice)
    )


async def provider_count(target: Target, outgoing: HttpRequest) -> int | str:
    """The tokens of a request as the provider counts them, or why it does not. Raises the errors of
    its answer and of the network."""
    endpoint, model = target.endpoint, target.model
    if names.is_opaque(model):
        model = endpoint.listed_model(model)
    dialect = endpoint.resolved.dialect
    made = count_request(endpoint.base_wire, dialect, model, outgoing.path, outgoing.body)
    if made is None:
        return f"{endpoint.id} has no endpoint that counts them"
    request = replace(endpoint.outgoing_body(made.path, (), made.body), headers=outgoing.headers)
    try:
        async with asyncio.timeout(_TIMEOUT):
            answer = await endpoint.transport.send(request)
            try:
                data = await read_answer(answer)
            finally:
                await answer.close()
    except TimeoutError:
        return f"{endpoint.id} did not answer within {_TIMEOUT:g} seconds"
    if answer.status >= 300:
        raise status_error(endpoint, answer, data)
    try:
        count = _decode(data)
    except DECODE_ERRORS:
        return f"{endpoint.id} answered with something else"
    found = (count.input_tokens, count.total_tokens, count.converse_tokens)
    return next((each for each in found if each is not None), f"{endpoint.id} named no number")
