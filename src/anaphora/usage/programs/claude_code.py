"""Bills in session files of Claude Code: `<folder>/projects/**/*.jsonl`.

Each block of a reply is on a line of its own, with the usage so far. Lines of subagents are in the
same file or below `subagents`, and may be repeated as `progress`. Replies of `<synthetic>` were
written by the program itself. What advisors and compaction cost is listed as `iterations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from anaphora.analysis.trace.answers import answer_of, digest
from anaphora.analysis.trace.programs.claude_code import usage_from
from anaphora.usage.records import COUNTS, CallBill, moment

from .lines import BillReader, Tokens, decoder, fields, tier_of

_COUNTS = {
    "input_tokens": Tokens,
    "cache_read_input_tokens": Tokens,
    "cache_creation_input_tokens": Tokens,
    "cache_creation": fields(ephemeral_1h_input_tokens=Tokens),
    "output_tokens": Tokens,
}
_Iteration = fields("type model", **_COUNTS)
_Usage = fields("service_tier speed", iterations=[_Iteration], **_COUNTS)
_Message = msgspec.defstruct(
    "Message",
    [
        ("id", Any, None),
        ("model", Any, None),
        ("usage", _Usage | None, None),
        ("stop_reason", Any, ""),
    ],
)
_Line = fields("type timestamp requestId sessionId agentId isSidechain cwd", message=_Message)
_decode = decoder(_Line)
_decode_progress = decoder(fields(data=fields(message=_Line)))
_decode_untyped = decoder(dict[str, Any])


class ClaudeCodeBills(BillReader):
    """Every line is complete in itself."""

    def __init__(self) -> None:
        super().__init__()
        self._id = ""
        self._key = b""
        """Of the last reply, which has a line for each block."""

    def read(self, line: bytes, number: int) -> Iterable[CallBill]:
        if b'"assistant"' not in line:
            return ()
        of_file = one = _decode(line)
        if one.type == "progress" and (data := _decode_progress(line).data) is not None:
            one = data.message or one
        message = one.message
        if one.type != "assistant" or message is None or message.usage is None:
            return ()
        usage, at = message.usage, moment(one.timestamp)
        counts = _counts(usage)
        if message.model == "<synthetic>" or not any(counts[:-1]):
            return ()
        id = str(message.id or one.requestId or "")
        if not id:
            key = _unnamed(at, line)
        elif id == self._id:
            key = self._key
        else:
            key = self._key = digest("id", id)
            self._id = id
        call = CallBill(
            key,
            at,
            str(of_file.sessionId or ""),
            "anthropic",
            str(message.model or ""),
            *counts,
            number,
            str(of_file.cwd or ""),
            "fast" if usage.speed == "fast" else tier_of(usage.service_tier),
            bool(one is not of_file or one.isSidechain or one.agentId),
            # The tokens of when the reply began: older versions write no other, for subagents too.
            partial=message.stop_reason is None,
        )
        more = usage.iterations
        return (call,) if more is None or len(more) < 2 else _with_iterations(call, more)


def _counts(usage: Any) -> tuple[int, int, int, int, int, int]:
    """In the order of COUNTS."""
    written, split = usage.cache_creation_input_tokens or 0, usage.cache_creation
    hour = 0 if split is None else split.ephemeral_1h_input_tokens or 0
    kept = max(0, written - hour), 0, hour
    read = usage.cache_read_input_tokens or 0
    return usage.input_tokens or 0, read, *kept, usage.output_tokens or 0


def _with_iterations(call: CallBill, iterations: list[Any]) -> Iterator[CallBill]:
    """The call, and the calls to other models and summaries that its usage does not include."""
    yield call
    for index, one in enumerate(iterations):
        if one.type not in (None, "message"):
            counts = dict(zip(COUNTS, _counts(one), strict=True))
            key, model = digest(call.key.hex(), index), str(one.model or call.model)
            yield msgspec.structs.replace(call, key=key, model=model, **counts)


def _unnamed(at: float | None, line: bytes) -> bytes:
    """The key of an answer without an id, by its content."""
    message = _decode_untyped(line)["message"]
    content, usage = message.get("content") or [], usage_from(message.get("usage"))
    assert usage is not None
    return answer_of("", at, usage, content if isinstance(content, list) else [content]).key
