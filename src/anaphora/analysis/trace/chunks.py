"""A recorded conversation as chunks, as a prompt would have them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from anaphora.canonical import dumps, encode_decoded
from anaphora.rendered import ChunkLog, ChunkRun, Envelope, Kind, LogAppend, Rendered
from anaphora.values import CachePolicy, SegmentRole

from .format import BLOCK_KINDS, Trace


class RecordedPrompt:
    """The prompts of a recording as chunks, once they are needed; all calls share one log."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def _log(self) -> tuple[ChunkLog, list[int]]:
        return _message_log(self._trace)

    @cached_property
    def _tools(self) -> ChunkRun | None:
        return _tools_run(self._trace)

    @property
    def tools(self) -> int:
        """The chunks of the tools, which come first."""
        return 0 if self._tools is None else self._tools.count

    @property
    def ends(self) -> list[int]:
        """The number of chunks up to each message."""
        return self._log[1]

    def rendered(
        self, count: int, model: str, params: Mapping[str, bytes], bytes_per_token: float
    ) -> Rendered:
        """The prompt of a call that sent the first `count` messages."""
        runs = [] if self._tools is None else [self._tools]
        if count:
            log, ends = self._log
            sent = self._trace.messages[:count]
            role = SegmentRole.CONVERSATION
            runs.append(ChunkRun("messages", log, ends[count - 1], role=role, source=sent))
        cache_params = tuple(sorted(params.items()))
        return Rendered(
            wire="recorded",
            model=model,
            runs=tuple(run for run in runs if run.count),
            cacheable=sum(run.count for run in runs),
            envelope=Envelope(source=None, path="", head=b"", tail=b"", cache_params=cache_params),
            markers={},
            bytes_per_token=bytes_per_token,
        )


def _message_log(trace: Trace) -> tuple[ChunkLog, list[int]]:
    """All messages, one chunk for each block, and the number of chunks up to each message."""
    addition = LogAppend()
    ends: list[int] = []
    openings: dict[str, bytes] = {}
    for index, message in enumerate(trace.messages):
        role, content = message.role, message.content
        lead = openings.get(role)
        if lead is None:
            lead = openings[role] = b']},{"role":' + encode_decoded(role) + b',"content":['
        lead = lead if index else lead.removeprefix(b"]},")
        blocks: list[Any] = content if isinstance(content, list) else []
        if isinstance(content, str):
            blocks = [{"type": "text", "text": content}]
        calls = message.tool_calls or []
        if calls or not blocks:
            blocks = [*blocks, *calls] or [{}]
        addition.open("user" if role == "tool" else role)
        for position, block in enumerate(blocks):
            name = block.get("type") if isinstance(block, dict) else None
            kind = BLOCK_KINDS.get(str(name), Kind.TEXT)
            if role == "tool":
                kind = Kind.TOOL_RESULT
            elif position >= len(blocks) - len(calls):
                kind = Kind.TOOL_CALL
            addition.chunks.append((kind, -1, lead + encode_decoded(block)))
            lead = b","
        addition.end_message(f"m{index}")
        ends.append(len(addition.chunks))
    return ChunkLog().append(addition), ends


def _tools_run(trace: Trace) -> ChunkRun | None:
    """All tools, one chunk for each; None if the recording has none."""
    if not trace.tools:
        return None
    addition = LogAppend()
    for index, tool in enumerate(trace.tools):
        addition.chunk(Kind.TOOL, (b"," if index else b"") + dumps(tool), -1)
    labels = [f"tool {index}" for index in range(len(trace.tools))]
    log = ChunkLog.of(addition, labels, [CachePolicy.NONE] * len(labels))
    return ChunkRun("tools", log, len(log), lead=b'"tools":[', source=tuple(labels))
