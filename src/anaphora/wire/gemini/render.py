"""Renders a call as a generateContent request: system instruction, tools and contents as chunks.

Every source message opens a content of its own, except that successive tool results share one:
Gemini requires all results of one turn's calls in one content. The glue before a chunk depends only
on the content before it, which makes appending cheap and exact.

Gemini takes no markers. Its explicit cache is a `cachedContents` resource: a handle freezes the
model, the system instruction, the tools, the tool config and its contents. A request that uses it
may send only the contents that follow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from anaphora.canonical import string
from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, PromptBlock, Segment
from anaphora.rendered import (
    Body,
    ChunkLog,
    ChunkRun,
    CreateHandle,
    DeleteHandle,
    ExtendHandle,
    Kind,
    LogAppend,
    Plan,
    Prelude,
    Rendered,
    Request,
)
from anaphora.rendered.held import misfit, unholdable
from anaphora.rendered.log import Piece
from anaphora.values import AnyTool, Message, Notice, ProviderTool, Tool, ToolCall, Ttl
from anaphora.values.codec import check_object
from anaphora.wire import rendering
from anaphora.wire.marks import Marking
from anaphora.wire.parts import (
    merged,
    note_foreign_fields,
    notices_below,
    render_items,
    system_blocks_of,
)
from anaphora.wire.reading import converts_errors, decode_members, decode_value, reply_error
from anaphora.wire.rendering import (
    cacheable_count,
    finish_rendering,
    previous_run,
    section_run,
    usable_previous,
    without_foreign_tools,
)
from anaphora.wire.runs import UNFINISHED_REASONING, AddMessages, message_runs

from . import params
from .params import VERSION, tool_config
from .parts import (
    FindCall,
    Notices,
    content_fields,
    open_content,
    sign_calls,
    write_parts,
    write_text,
)
from .types import FORM, MEMO, OWN, WIRE, json_schema, read_form

#: The bytes before and after the system instruction, the tools and the contents.
SYSTEM = b'"systemInstruction":{"parts":['
SYSTEM_CLOSE = b"]},"
SYSTEM_PLACE = "systemInstruction.parts"
TOOLS = b'"tools":['
CONTENTS = b'"contents":['
#: The end of a content before another, and the end of the last one and of the list.
GLUE = b"]},"
CLOSE = b"]}]"

FUNCTIONS = b'{"functionDeclarations":['
END_FUNCTIONS = b"]}"

#: Every TTL is accepted in a mark, since none is sent.
_ANY_TTL: dict[Ttl, Ttl] = {ttl: ttl for ttl in ("5m", "30m", "1h", "12h", "24h")}
#: Roles in the log. Contents of results are sent as `user`, but have their own role in the log,
#: since more results may join them.
_LOG_ROLES = {"assistant": "model", "tool": "tool"}
#: Looked up once: access to an enum member is slow.
_THINKING = Kind.THINKING


def render(call: Call, profile: Profile, previous: Rendered | None = None) -> Rendered:
    """The whole prompt as chunks.

    With the rendering of the turn before in `previous`, only what was added is rendered; the result
    is the same either way. `previous` may also be an older turn, another branch, or another
    conversation: equal messages are shared.
    """
    previous = usable_previous(previous, WIRE, call.model)
    envelope = params.envelope(call, profile, previous.envelope if previous is not None else None)
    own, foreign = without_foreign_tools(call.tools, OWN)
    messages, notices = message_runs(
        call.ir.body_runs(),
        previous,
        partial(_adder, signs=_signs_calls(profile), as_sent=profile.as_sent),
        opening=CONTENTS,
        glue=lambda _: GLUE,
        close=lambda _: CLOSE,
        place="contents",
        blocks="parts",
    )
    if not messages:
        raise InvalidRequest("Gemini needs at least one content with a part", path="ir")
    runs: list[ChunkRun] = []
    if blocks := system_blocks_of(call, profile):
        sides = {"lead": SYSTEM, "close": SYSTEM_CLOSE}
        runs.append(
            section_run("system", blocks, _system_log, previous, MEMO, place=SYSTEM_PLACE, **sides)
        )
    if own:
        runs.append(_tools(own, previous))
    runs += messages
    return finish_rendering(
        call,
        profile,
        envelope,
        runs,
        Marking({}, _ANY_TTL, lambda _: "no part takes a breakpoint here; Gemini caches by itself"),
        wire=WIRE,
        cacheable=cacheable_count(runs, previous, call.ir.cache.messages),
        notices=[*foreign, *_strict_notices(call.tools), *notices],
        frozen_with=params.frozen_with(envelope),
    )


# ── System instruction and tools ──────────────────────────────────────────────────────────────────


def _system_log(blocks: tuple[PromptBlock, ...]) -> ChunkLog:
    written = render_items(
        "system", blocks, lambda block: write_text(block.text, block.extras), None
    )
    return ChunkLog.of(written, [block.label for block in blocks], [b.cache for b in blocks])


def _tools(own: tuple[AnyTool, ...], previous: Rendered | None) -> ChunkRun:
    last = previous_run(previous, "tools")
    log = MEMO.section_log(own, last, _tools_log)
    if last is not None and last.log is log:
        return last
    _, paths, close = join_tools((isinstance(tool, Tool), False, b"") for tool in own)
    return ChunkRun("tools", log, len(log), lead=TOOLS, close=close, source=own, paths=paths)


def _tools_log(tools: tuple[AnyTool, ...]) -> ChunkLog:
    """A chunk for each tool, in any object."""
    written: list[tuple[bool, bool, bytes]] = []
    for index, tool in enumerate(tools):
        try:
            written.append((isinstance(tool, Tool), False, _tool_definition(tool)))
        except InvalidRequest as problem:
            raise problem.within(f"tools[{index}]") from None
    append = LogAppend()
    for chunk in join_tools(written)[0]:
        append.chunk(Kind.TOOL, chunk, None)
    return ChunkLog.of(append, [f"tool {tool.name}" for tool in tools], [t.cache for t in tools])


def join_tools(
    tools: Iterable[tuple[bool, bool, bytes]],
) -> tuple[list[bytes], tuple[str, ...], bytes]:
    """The bytes of each tool with the glue before it, its path, and the end of the list. A tool is
    given as: whether it is a function, whether it begins a new object, and its bytes. Successive
    functions share an object."""
    chunks: list[bytes] = []
    paths: list[str] = []
    outer, inner = -1, 0
    after_function = False
    for function, begins, data in tools:
        if function and after_function and not begins:
            glue, inner = b",", inner + 1
        else:
            glue, inner = b"," if chunks else b"", 0
            glue = (END_FUNCTIONS if after_function else b"") + glue
            glue += FUNCTIONS if function else b""
            outer += 1
        after_function = function
        chunks.append(glue + data)
        paths.append(f"tools[{outer}]" + (f".functionDeclarations[{inner}]" if function else ""))
    return chunks, tuple(paths), (END_FUNCTIONS if after_function else b"") + b"],"


def _tool_definition(tool: AnyTool) -> bytes:
    """A function's declaration, or one of Gemini's own tools unchanged."""
    if isinstance(tool, ProviderTool):
        return check_object(tool.json, path="json").encode()
    description = b',"description":' + string(tool.description) if tool.description else b""
    name = b'{"name":' + string(tool.name)
    return merged(name + description + _parameters(tool) + b"}", tool.extras, WIRE)


def _parameters(tool: Tool) -> bytes:
    """The schema, in the form in which it was read."""
    schema = check_object(tool.schema, path="schema").encode()
    for field, raw in read_form(tool.extras).items():
        if json_schema(bytes(raw), f"extras.{FORM}") == tool.schema:
            return b',"%b":%b' % (field.encode(), bytes(raw))
    return b',"parametersJsonSchema":' + schema


def _strict_notices(tools: tuple[AnyTool, ...]) -> list[Notice]:
    return [
        Notice(
            "param_left_out", "Gemini has no strict functions; left out", f"tools[{index}].strict"
        )
        for index, tool in enumerate(tools)
        if isinstance(tool, Tool) and tool.strict is not None
    ]


# ── Contents ──────────────────────────────────────────────────────────────────────────────────────


def _signs_calls(profile: Profile) -> bool | None:
    """Whether the model requires a signature on calls; None if the model is unknown, and calls stay
    as they are."""
    if profile.as_sent:
        return None
    return profile.refuses("unsigned_calls") or (None if profile.capabilities is None else False)


def _adder(segment: Segment, *, signs: bool | None, as_sent: bool) -> AddMessages:
    def add(append: LogAppend, messages: Sequence[Message], last_role: str | None) -> None:
        """The chunks of these messages, which end the segment. `last_role` is the role that the log
        ends with; None when it is empty, and its first chunk needs no glue."""
        calls = _Calls(segment.messages, append.message)
        for message in messages:
            index, role = append.message, message.role
            place = f"{segment.role.value}[{index}]"
            notices: Notices = []
            try:
                opening = open_content(message)
                find = None if as_sent else calls.before(index)  # a result keeps its own name
                parts = write_parts(message.parts, notices, find)
                if signs is not None and role == "assistant":
                    sign_calls(parts, signs)
            except InvalidRequest as problem:
                raise problem.within(place) from None
            if role == "system":
                why = "Gemini has no system message here; sent as user text"
                notices.append(Notice("system_as_user", why))
            ends = parts and not as_sent and all(kind is _THINKING for kind, _ in parts)
            if role == "assistant" and ends:
                notices.append(UNFINISHED_REASONING)
                parts = []
            elif not parts:
                notices.append(Notice("empty_message", "an empty message is left out"))
            for notice in notices_below(notices, place):
                append.notice(notice)
            joins = role == last_role == "tool" and not content_fields(message.parts)
            for at, (kind, data) in enumerate(parts):
                if at or joins:
                    data = b"," + data
                else:
                    data = (b"" if last_role is None else GLUE) + opening + data
                    last_role = _LOG_ROLES.get(role, "user")
                    append.open(last_role)
                append.chunk(kind, data, None)
            note_foreign_fields(append, message, WIRE, place)
            append.end_message(message.id)

    return add


class _Calls:
    """The calls of a segment, by id: nearest before a message first, and each message read once."""

    def __init__(self, messages: Sequence[Message], first: int):
        self._messages = messages
        self._calls: dict[str, ToolCall] = {}
        # The messages from `_low` up to `_high` are in `_calls`.
        self._low = self._high = first

    def before(self, last: int) -> FindCall:
        """Finds a call up to message `last`, the nearest one with the id."""
        while self._high <= last:
            self._calls.update(self._in_message(self._high))
            self._high += 1
        return self._find

    def _find(self, call_id: str) -> ToolCall | None:
        while call_id not in self._calls and self._low:
            self._low -= 1
            for other, call in self._in_message(self._low).items():
                self._calls.setdefault(other, call)
        return self._calls.get(call_id)

    def _in_message(self, index: int) -> dict[str, ToolCall]:
        parts = self._messages[index].parts
        return {part.id: part for part in parts if isinstance(part, ToolCall)}


# ── Handles ───────────────────────────────────────────────────────────────────────────────────────

_HANDLE = re.compile(r"(?:projects/[\w.-]+/locations/[\w.-]+/)?cachedContents/[\w-]+\Z", re.ASCII)
_JSON = (("content-type", "application/json"),)


class CachedContent(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's description of a handle."""

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
    """The chunks from this one on. It begins a content and is sent without the glue before it."""
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
