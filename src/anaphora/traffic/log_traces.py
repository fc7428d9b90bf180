"""Request logs as traces: a request that continues an earlier one belongs to the same conversation.

    for entry in read(lines): ...         a whole log as traces, see `analysis.trace`

A request is split into blocks by its wire, markers included.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from anaphora.analysis.trace import read_session
from anaphora.analysis.trace.format import Breakpoint, Trace, TraceCall, TraceMessage, TraceUsage
from anaphora.analysis.trace.log_lines import FoundTrace, LogLine, Problem, TraceEntry
from anaphora.errors import InvalidRequest
from anaphora.rendered import Kind, Rendered
from anaphora.rendered.media import Size
from anaphora.tokens import Counts
from anaphora.values import Usage
from anaphora.wire.cutting import cut

from .request_log import read_fields, why_unbilled


def read(lines: Iterator[LogLine]) -> Iterator[TraceEntry]:
    """The conversations of a request log, and problems with its lines."""
    return read_session(lines, _RequestLog())


class _Options(msgspec.Struct):
    prompt_cache_options: Any = None


def _is_explicit(request: bytes) -> bool:
    """Whether a request to OpenAI is cached only at its own breakpoints."""
    options = msgspec.json.decode(request, type=_Options).prompt_cache_options
    return isinstance(options, dict) and options.get("mode") == "explicit"


class _LoggedConversation(msgspec.Struct):
    place: str
    head: Trace
    """Everything but its calls and messages."""
    calls: list[TraceCall] = []
    messages: list[TraceMessage] = []


class _RequestLog:
    """Appends each request to the conversation that it continues."""

    missing = ""

    def __init__(self) -> None:
        self._conversations: list[_LoggedConversation] = []
        self._ends: dict[bytes, _LoggedConversation] = {}
        """By the digest of its last request."""

    def read(self, place: str, fields: dict[str, Any]) -> Problem | None:
        if reason := why_unbilled(fields):
            return Problem(place, reason, "not_compared")
        logged = read_fields(fields)
        codec, provider = logged.codec()
        rendered = cut(codec, logged.request, logged.path)
        model = logged.model or rendered.model
        tools, tools_sizes, messages, breakpoints = _blocks(rendered)
        call = TraceCall(
            messages=len(messages),
            t=logged.started,
            t_end=logged.ended,
            usage=_trace_usage(logged.reply(codec).usage),
            breakpoints=breakpoints,
            explicit=_is_explicit(logged.request),
            place=place,
        )
        digest = blake3(msgspec.json.encode([(provider, model, logged.wire), tools])).digest(16)
        digests = [digest]
        for message in messages:
            digest = blake3(digest + msgspec.json.encode(message, enc_hook=str)).digest(16)
            digests.append(digest)
        known = [one for one in digests[1:] or digests if one in self._ends]
        if known:
            conversation = self._ends.pop(known[-1])
        else:
            head = Trace(
                id=logged.id or place.rpartition(":")[2],
                provider=provider,
                model=model,
                calls=(),
                messages=(),
                tools=tools,
                tools_sizes=tools_sizes,
                source="requests",
                wire=logged.wire,
            )
            conversation = _LoggedConversation(place, head)
            self._conversations.append(conversation)
        conversation.messages = messages
        conversation.calls.append(call)
        self._ends[digest] = conversation
        return None

    def traces(self, file: str) -> list[FoundTrace]:
        found = []
        for one in self._conversations:
            calls, messages = tuple(one.calls), tuple(one.messages)
            trace = replace(one.head, group=file, calls=calls, messages=messages)
            found.append(FoundTrace(one.place, trace))
        return found


def _trace_usage(usage: Usage) -> TraceUsage:
    if usage.uncached is None:
        raise InvalidRequest("the response reports no usage", path="response")
    fields = {
        "input": usage.uncached,
        "cache_read": usage.read or 0,
        "output": usage.output,
        "reasoning": usage.reasoning,
    }
    for ttl, tokens in (usage.written or {}).items():
        name = f"cache_write_{'5m' if ttl == 'unsplit' else ttl}"
        fields[name] = tokens + (fields.get(name) or 0)
    return msgspec.convert(fields, TraceUsage)


def _blocks(
    rendered: Rendered,
) -> tuple[list[str] | None, tuple[Size, ...] | None, list[TraceMessage], tuple[Breakpoint, ...]]:
    """A request as a trace: its tools and their sizes, one message for each block, so that markers
    and look-back count as the provider counts, and the markers."""
    tools: list[str] = []
    sizes: list[Size] = []
    messages: list[TraceMessage] = []
    places: dict[int, tuple[str | int, ...]] = {}
    for chunk, size in zip(rendered, Counts(rendered).sizes(), strict=True):
        text = chunk.data.decode(errors="replace")
        if chunk.section == "tools":
            places[chunk.index] = "tools", len(tools)
            tools.append(text)
            sizes.append(size)
        else:
            places[chunk.index] = (len(messages),)
            messages.append(replace(_message(rendered, chunk.index, chunk.kind, text), size=size))
    breakpoints: list[Breakpoint] = [(*places[mark.chunk], mark.ttl) for mark in rendered.marks]
    if rendered.automatic is not None:
        breakpoints.append(("automatic", rendered.automatic))
    return tools or None, tuple(sizes) if tools else None, messages, tuple(breakpoints)


def _message(rendered: Rendered, index: int, kind: Kind, text: str) -> TraceMessage:
    run, offset = rendered.locate(index)
    if run.section == "system":
        return TraceMessage(role="system", content=text)
    if kind is Kind.TOOL_RESULT:
        return TraceMessage(role="tool", content=text)
    if kind is Kind.TOOL_CALL:
        return TraceMessage(role="assistant", tool_calls=[text])
    if kind is Kind.THINKING:
        return TraceMessage(role="assistant", content=[{"type": "thinking", "thinking": text}])
    role = run.log.role_of(offset)
    roles = {"developer": "system", "model": "assistant"}
    known = role if role in ("system", "assistant") else "user"
    return TraceMessage(role=roles.get(role, known), content=text)
