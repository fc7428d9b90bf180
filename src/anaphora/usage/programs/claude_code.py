"""Bills in session files of Claude Code: `<folder>/projects/**/*.jsonl`.

Each block of a reply is on a line of its own, with the usage so far. Lines of subagents are in the
same file or below `subagents`. Replies of `<synthetic>` were written by the program itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.analysis.trace.answers import answer_of, digest
from anaphora.analysis.trace.format import TraceUsage
from anaphora.usage.records import BilledCall

from .lines import Stamp, Tokens, decoder, moment, tier_of


class _Written(msgspec.Struct):
    ephemeral_1h_input_tokens: Tokens = None


class _Details(msgspec.Struct):
    thinking_tokens: Tokens = None


class _Usage(msgspec.Struct):
    input_tokens: Tokens = None
    cache_read_input_tokens: Tokens = None
    cache_creation_input_tokens: Tokens = None
    cache_creation: _Written | None = None
    output_tokens: Tokens = None
    output_tokens_details: _Details | None = None
    service_tier: str | None = None
    speed: str | None = None


class _Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    usage: _Usage | None = None


class _Line(msgspec.Struct):
    type: str | None = None
    message: _Message | None = None
    timestamp: Stamp = None
    requestId: str | None = None
    sessionId: str | None = None
    agentId: str | None = None
    isSidechain: bool | None = None
    cwd: str | None = None


class _Contents(msgspec.Struct):
    content: Any = None


class _ContentLine(msgspec.Struct):
    message: _Contents


_decode = decoder(_Line)
_decode_content = decoder(_ContentLine)


class ClaudeCodeBills:
    """Every line is complete in itself."""

    def __init__(self) -> None:
        self._id = ""
        self._key = b""
        """Of the last reply, which has a line for each block."""

    def state(self) -> None:
        return None

    def restore(self, state: Any) -> None:
        del state

    def read(self, line: bytes, number: int) -> tuple[BilledCall, ...]:
        if b'"assistant"' not in line:
            return ()
        fields = _decode(line)
        message = fields.message
        if fields.type != "assistant" or message is None or message.usage is None:
            return ()
        usage, model = message.usage, message.model or ""
        uncached, read = usage.input_tokens or 0, usage.cache_read_input_tokens or 0
        written, split = usage.cache_creation_input_tokens or 0, usage.cache_creation
        hour = (split.ephemeral_1h_input_tokens or 0) if split is not None else 0
        if model == "<synthetic>" or not (uncached or read or written or hour):
            return ()
        at = moment(fields.timestamp)
        call = BilledCall(
            self._answer(message.id or fields.requestId or "", at, usage, line),
            at,
            fields.sessionId or "",
            "anthropic",
            model,
            uncached,
            read,
            max(0, written - hour),
            hour,
            usage.output_tokens or 0,
            number,
            fields.cwd or "",
            "fast" if usage.speed == "fast" else tier_of(usage.service_tier),
            bool(fields.isSidechain or fields.agentId),
        )
        return (call,)

    def _answer(self, id: str, at: float | None, usage: _Usage, line: bytes) -> bytes:
        """The key of an answer: see `answer_of`."""
        if not id:
            return _unnamed(at, usage, line)
        if id != self._id:
            self._id, self._key = id, digest("id", id)
        return self._key


def _unnamed(at: float | None, usage: _Usage, line: bytes) -> bytes:
    """The key of an answer without an id, by its content."""
    split, details = usage.cache_creation, usage.output_tokens_details
    hour = (split.ephemeral_1h_input_tokens or 0) if split is not None else 0
    counts = TraceUsage(
        input=usage.input_tokens or 0,
        cache_read=usage.cache_read_input_tokens or 0,
        cache_write_5m=max(0, (usage.cache_creation_input_tokens or 0) - hour),
        cache_write_1h=hour,
        output=usage.output_tokens or 0,
        reasoning=None if details is None else details.thinking_tokens,
    )
    content = _decode_content(line).message.content or []
    return answer_of("", at, counts, content if isinstance(content, list) else [content]).key
