"""A recorded conversation as chunks, as a prompt would have them."""

from __future__ import annotations

from typing import Any

from anaphora.canonical import dumps, encode_decoded
from anaphora.rendered import ChunkLog, ChunkRun, Kind, LogAppend
from anaphora.values import CachePolicy

from .format import BLOCK_KINDS, Trace


def message_log(trace: Trace) -> tuple[ChunkLog, list[int]]:
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


def tools_run(trace: Trace) -> ChunkRun | None:
    """All tools, one chunk for each; None if the recording has none."""
    if not trace.tools:
        return None
    addition = LogAppend()
    for index, tool in enumerate(trace.tools):
        addition.chunk(Kind.TOOL, (b"," if index else b"") + dumps(tool), -1)
    labels = [f"tool {index}" for index in range(len(trace.tools))]
    log = ChunkLog.of(addition, labels, [CachePolicy.NONE] * len(labels))
    return ChunkRun("tools", log, len(log), lead=b'"tools":[', source=tuple(labels))
