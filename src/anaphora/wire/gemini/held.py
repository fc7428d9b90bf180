"""Explicit caching: the beginning of a prompt as a `cachedContents` resource.

A handle freezes the model, the system instruction, the tools and the tool config with the contents
it holds. A request that uses it may send none of these again, only the contents that follow.
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
from anaphora.rendered.plan import misfit, unholdable
from anaphora.rendered.request import Piece
from anaphora.wire import rendering
from anaphora.wire.fields import Fields
from anaphora.wire.reading import converts_errors, reply_error

from .address import VERSION
from .messages import CLOSE, GLUE
from .params import tool_config
from .request import CONTENTS

_HANDLE = re.compile(r"(?:projects/[\w.-]+/locations/[\w.-]+/)?cachedContents/[\w-]+\Z", re.ASCII)
_JSON = (("content-type", "application/json"),)


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What the provider says of a handle it gave."""

    handle: str
    expires: str | None = None
    """When it is gone, in RFC 3339."""
    tokens: int | None = None
    """How many it holds: what is billed by the hour."""


def assemble(rendered: Rendered, plan: Plan) -> Request:
    """The request; with a handle, only what comes behind the chunks that it holds."""
    if plan.held is None:
        return rendering.assemble(rendered, plan)
    wrong = misfit(rendered, plan.held)
    if wrong is not None:
        raise InvalidRequest(wrong.reason, path="plan.held")
    if plan.marks or plan.automatic is not None:
        raise InvalidRequest("no part takes a breakpoint here", path="plan.marks")
    envelope = rendered.envelope
    frozen = dict(envelope.cache_params).get("tool_choice")
    tail = envelope.tail if frozen is None else envelope.tail.removeprefix(tool_config(frozen))
    if "cachedContent" in Fields(b"{" + tail.removeprefix(b","), "$"):
        raise InvalidRequest("the call names a handle of its own already", path="plan.held")
    head = b'{"cachedContent":' + string(_handle(plan.held.handle)) + b"," + CONTENTS
    pieces: list[Piece] = [head, *_from(rendered, plan.held.chunks), tail]
    return Request(envelope.method, envelope.path, envelope.headers, Body(pieces))


def prelude(rendered: Rendered, wanted: Prelude) -> Request:
    """What the client sends before the request itself."""
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
    pieces = [b"{" + rendered.frozen_with + b",", *_up_to(rendered, wanted.chunks), lifetime]
    return Request("POST", f"{VERSION}cachedContents", _JSON, Body(pieces))


@converts_errors(reply_error)
def read_held(body: bytes) -> Kept:
    """The handle that creating one gave, or what became of it when it was extended."""
    fields = Fields(body, "$")
    usage = fields.nested("usageMetadata")
    return Kept(
        handle=fields.take("name", str),
        expires=fields.maybe("expireTime", str),
        tokens=usage.maybe("totalTokenCount", int) if usage is not None else None,
    )


def _up_to(rendered: Rendered, chunks: int) -> list[Piece]:
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


def _from(rendered: Rendered, chunk: int) -> list[Piece]:
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
