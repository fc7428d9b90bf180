"""Explicit caching: the beginning of a prompt as a `cachedContents` resource.

Gemini takes no markers. A handle freezes the model, the system instruction, the tools and the tool
config with the contents it holds. A request that uses it may send none of these again, only the
contents that follow.
"""

from __future__ import annotations

import re

import msgspec

from anaphora.canonical import string
from anaphora.errors import InvalidRequest
from anaphora.rendered import (
    Body,
    CreateHandle,
    DeleteHandle,
    ExtendHandle,
    Plan,
    Prelude,
    Rendered,
    Request,
)
from anaphora.rendered.log import Piece
from anaphora.rendered.plan import misfit, unholdable
from anaphora.wire import rendering
from anaphora.wire.reading import converts_errors, decode_members, decode_value, reply_error

from .params import VERSION, tool_config
from .render import CLOSE, CONTENTS, GLUE

_HANDLE = re.compile(r"(?:projects/[\w.-]+/locations/[\w.-]+/)?cachedContents/[\w-]+\Z", re.ASCII)
_JSON = (("content-type", "application/json"),)


class CachedContent(msgspec.Struct, frozen=True, kw_only=True):
    """A handle as the provider describes it."""

    handle: str
    expires: str | None = None
    """When it expires, in RFC 3339."""
    tokens: int | None = None
    """The tokens it holds, which are billed by the hour."""


class _Usage(msgspec.Struct, frozen=True):
    totalTokenCount: int | None = None


class _Resource(msgspec.Struct, frozen=True):
    name: str
    expireTime: str | None = None
    usageMetadata: _Usage | None = None


def assemble(rendered: Rendered, plan: Plan) -> Request:
    """The request; with a handle, only the chunks after those that it holds."""
    if plan.held is None:
        return rendering.assemble(rendered, plan)
    wrong = misfit(rendered, plan.held)
    if wrong is not None:
        raise InvalidRequest(wrong.reason, path="plan.held")
    if plan.marks or plan.automatic is not None:
        raise InvalidRequest("no part takes a breakpoint here", path="plan.marks")
    envelope = rendered.envelope
    tail = envelope.tail.removeprefix(tool_config(envelope))
    if "cachedContent" in decode_members(b"{" + tail.removeprefix(b",")):
        raise InvalidRequest("the call names a handle of its own already", path="plan.held")
    head = b'{"cachedContent":' + string(_handle(plan.held.handle)) + b"," + CONTENTS
    pieces: list[Piece] = [head, *_chunks_from(rendered, plan.held.chunks), tail]
    return Request(envelope.method, envelope.path, envelope.headers, Body(pieces))


def prelude(rendered: Rendered, wanted: Prelude) -> Request:
    """The request that creates, extends or deletes a handle."""
    if isinstance(wanted, DeleteHandle):
        return Request("DELETE", VERSION + _handle(wanted.handle), (), Body([]))
    lifetime = b'"ttl":"%ds"}' % _seconds(wanted.seconds)
    if isinstance(wanted, ExtendHandle):
        path = f"{VERSION}{_handle(wanted.handle)}?updateMask=ttl"
        return Request("PATCH", path, _JSON, Body([b"{" + lifetime]))
    assert isinstance(wanted, CreateHandle)
    wrong = unholdable(rendered, wanted.chunks)
    if wrong is not None:
        raise InvalidRequest(wrong.reason, path="plan.preludes")
    assert rendered.frozen_with is not None
    head = b"{" + rendered.frozen_with + b","
    pieces = [head, *_chunks_up_to(rendered, wanted.chunks), lifetime]
    return Request("POST", f"{VERSION}cachedContents", _JSON, Body(pieces))


@converts_errors(reply_error)
def read_held(body: bytes) -> CachedContent:
    """The handle in the response to a create or extend request."""
    resource: _Resource = decode_value(body, _Resource, "$", reply_error)
    usage = resource.usageMetadata
    return CachedContent(
        handle=resource.name,
        expires=resource.expireTime,
        tokens=None if usage is None else usage.totalTokenCount,
    )


def _chunks_up_to(rendered: Rendered, chunks: int) -> list[Piece]:
    """The first chunks as members of a body, each with its comma."""
    pieces: list[Piece] = []
    for run in rendered.runs:
        take = min(chunks, run.count)
        if not take:
            break
        pieces += [run.lead, (run.log, 0, run.log.start(take))]
        if run.section != "messages":
            pieces.append(run.close)
        elif take == chunks:
            pieces.append(CLOSE + b",")
        chunks -= take
    return pieces


def _chunks_from(rendered: Rendered, chunk: int) -> list[Piece]:
    """The chunks from this one on. It begins a content, and goes without the glue before it."""
    pieces: list[Piece] = []
    for run in rendered.runs:
        if chunk >= run.count:
            chunk -= run.count
            continue
        begin = run.log.start(chunk) + len(GLUE) if chunk else 0
        if pieces:
            pieces.append(run.lead)
        pieces += [(run.log, begin, run.log.start(run.count)), run.close]
        chunk = 0
    return pieces


def _handle(handle: str) -> str:
    if not _HANDLE.match(handle):
        raise InvalidRequest("a handle is named cachedContents/…", path="plan.held.handle")
    return handle


def _seconds(seconds: int) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int) or seconds <= 0:
        raise InvalidRequest(f"must be a whole number of seconds, not {seconds!r}", path="seconds")
    return seconds
