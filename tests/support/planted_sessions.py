"""Session files of agent programs, call by call, in the forms of their real lines."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

Json = dict[str, Any]

#: 2026-10-05T09:00:00Z
BEGAN = 1_791_190_800.0
CANARY = "kanarienvogel"
"""In every text of every message."""


class Call(NamedTuple):
    """One call: seconds since the session began, and its bill."""

    at: float
    read: int
    written: int
    uncached: int = 0
    model: str = "claude-sonnet-4-5"
    effort: str | None = None
    loop: bool = False
    """After a tool's result, not after a user's message."""
    compacted: bool = False
    """After a compaction."""
    diagnosis: str | None = None
    prompt: Json | None = None
    """More fields of the user's line."""
    reported: str | None = None
    """A cause that Claude Code sends to its status line."""

    @property
    def total(self) -> int:
        return self.read + self.written + self.uncached


def stamp(at: float) -> str:
    moment = datetime.datetime.fromtimestamp(BEGAN + at, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def claude_code(calls: Iterable[Call], session: str, agent: str | None = None) -> list[Json]:
    """`agent`: the file of a subagent."""
    lines: list[Json] = []
    side = {} if agent is None else {"isSidechain": True, "agentId": session, "sessionId": "main"}
    own = {"sessionId": session, "cwd": "/w", "version": "2.1.326", "isSidechain": False, **side}

    def add(type: str, at: float, **more: Any) -> None:
        parent = lines[-1]["uuid"] if lines and not more.pop("root", False) else None
        uuid = f"{session}-{len(lines)}"
        line = {"type": type, "uuid": uuid, "parentUuid": parent, "timestamp": stamp(at)}
        lines.append({**line, **own, **more})

    for number, call in enumerate(calls):
        content: Any = f"{CANARY} {number}"
        if call.compacted:
            boundary = {"subtype": "compact_boundary", "content": "Conversation compacted"}
            add("system", call.at, root=True, **boundary)
            summary = {"role": "user", "content": f"summary {content}"}
            add("user", call.at, message=summary, isCompactSummary=True)
        else:
            if call.loop:
                result = {"type": "tool_result", "tool_use_id": f"t{number - 1}"}
                content = [{**result, "content": content}]
            more = {} if call.loop else call.prompt or {}
            add("user", call.at, **{"message": {"role": "user", "content": content}, **more})
        diagnosis = call.diagnosis and {"cache_miss_reason": {"type": call.diagnosis}}
        message = {
            "id": f"msg_{session}_{number}",
            "role": "assistant",
            "model": call.model,
            "content": [{"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {}}],
            "diagnostics": diagnosis,
            "usage": {
                "input_tokens": call.uncached,
                "cache_read_input_tokens": call.read,
                "cache_creation_input_tokens": call.written,
                "output_tokens": 20,
            },
        }
        named = {"attributionAgent": agent} if agent else {}
        effort = {"effort": call.effort} if call.effort else {}
        add("assistant", call.at + 2, message=message, **effort, **named)
        if call.reported:
            miss = {"last_miss_at": BEGAN + call.at, "last_miss_cause": {"causes": [call.reported]}}
            lines.append({"session_id": session, "uuid": "", "prompt_cache": miss})
    return lines


def codex(calls: Iterable[Call], session: str) -> list[Json]:
    lines: list[Json] = []
    total = 0

    def add(type: str, at: float, payload: Json) -> None:
        lines.append({"timestamp": stamp(at), "type": type, "payload": payload})

    text = {"type": "input_text", "text": CANARY}
    add("session_meta", 0, {"id": session, "cwd": "/w", "model_provider": "openai"})
    for number, call in enumerate(calls):
        if call.compacted:
            history = [{"type": "message", "role": "user", "content": [text]}]
            add("compacted", call.at, {"message": "", "replacement_history": history})
        if call.loop:
            output = {"type": "function_call_output", "call_id": f"call_{number - 1:016}"}
            add("response_item", call.at, {**output, "output": CANARY})
        else:
            add("turn_context", call.at, {"model": call.model, "effort": call.effort or "high"})
            asked = {"type": "message", "role": "user", "content": [text]}
            add("response_item", call.at, asked)
        ran = {"type": "function_call", "call_id": f"call_{number:016}", "name": "exec_command"}
        add("response_item", call.at + 2, {**ran, "arguments": "{}"})
        total += call.total + 20
        last = {"input_tokens": call.total, "cached_input_tokens": call.read, "output_tokens": 20}
        last |= {"cache_write_input_tokens": call.written, "total_tokens": call.total + 20}
        info = {"last_token_usage": last, "total_token_usage": {"total_tokens": total}}
        add("event_msg", call.at + 2.1, {"type": "token_count", "info": info})
    return lines


def pi(calls: Iterable[Call], session: str) -> list[Json]:
    lines: list[Json] = [
        {"type": "session", "version": 3, "id": session, "timestamp": stamp(0), "cwd": "/w"}
    ]

    def add(type: str, at: float, **more: Any) -> None:
        parent = lines[-1]["id"] if len(lines) > 1 else None
        made = {"type": type, "id": f"e{len(lines)}", "parentId": parent, "timestamp": stamp(at)}
        lines.append({**made, **more})

    for number, call in enumerate(calls):
        if call.compacted:
            summary = {"summary": CANARY, "firstKeptEntryId": lines[-1]["id"], "tokensBefore": 9}
            add("compaction", call.at, **summary)
        if call.loop:
            result = {"role": "toolResult", "toolCallId": f"t{number - 1}", "toolName": "bash"}
            add(
                "message",
                call.at,
                message={**result, "content": [{"type": "text", "text": CANARY}]},
            )
        else:
            add("message", call.at, message={"role": "user", "content": CANARY})
        usage = {"input": call.uncached, "output": 20, "cacheRead": call.read}
        ran = {"type": "toolCall", "id": f"t{number}", "name": "bash", "arguments": {}}
        message = {
            "role": "assistant",
            "content": [ran],
            "provider": "anthropic",
            "model": call.model,
            "usage": {**usage, "cacheWrite": call.written},
            "timestamp": (BEGAN + call.at) * 1000,
        }
        add("message", call.at + 2, message=message)
    return lines


def opencode(calls: Iterable[Call], session: str) -> list[Json]:
    messages: list[Json] = []
    for number, call in enumerate(calls):
        at = int((BEGAN + call.at) * 1000)
        info = {"id": f"msg_{number:04}a", "role": "user", "time": {"created": at}}
        messages.append({"info": info, "parts": [{"type": "text", "text": CANARY}]})
        billed = {"input": call.uncached, "output": 20}
        answer = {
            "id": f"msg_{number:04}b",
            "role": "assistant",
            "providerID": "anthropic",
            "modelID": call.model,
            "time": {"created": at + 1, "completed": at + 2000},
            "tokens": {**billed, "cache": {"read": call.read, "write": call.written}},
        }
        messages.append({"info": answer, "parts": [{"type": "text", "text": CANARY}]})
    info = {"id": session, "directory": "/w", "time": {"created": int(BEGAN * 1000)}}
    return [{"info": info, "messages": messages}]


def copilot(calls: Iterable[Call], session: str) -> list[Json]:
    lines: list[Json] = []

    def add(type: str, at: float, data: Json) -> None:
        parent = lines[-1]["id"] if lines else None
        made = {"type": type, "data": data, "id": f"e{len(lines)}", "timestamp": stamp(at)}
        lines.append({**made, "parentId": parent})

    add("session.start", 0, {"sessionId": session, "selectedModel": "claude-sonnet-4-5"})
    for number, call in enumerate(calls):
        add("user.message", call.at, {"content": CANARY})
        add("assistant.turn_start", call.at, {"turnId": str(number)})
        counts = {"inputTokens": call.total, "cacheReadTokens": call.read}
        usage: Json = {"model": call.model, "modelProvider": "anthropic", "apiCallId": f"c{number}"}
        usage |= {**counts, "cacheWriteTokens": call.written, "outputTokens": 20, "duration": 1900}
        add("session.usage_record", call.at + 2, {"usage": usage})
        reply = {"messageId": f"m{number}", "apiCallId": f"c{number}", "model": call.model}
        add("assistant.message", call.at + 2, {**reply, "content": CANARY, "toolRequests": []})
    return lines


def gemini_cli(calls: Iterable[Call], session: str) -> list[Json]:
    lines: list[Json] = [
        {"sessionId": session, "projectHash": "h", "startTime": stamp(0), "lastUpdated": stamp(0)}
    ]
    for number, call in enumerate(calls):
        asked = {"id": f"u{number}", "timestamp": stamp(call.at), "type": "user"}
        lines.append({**asked, "content": CANARY})
        tokens = {"input": call.total, "output": 20, "cached": call.read, "thoughts": 0, "tool": 0}
        answer = {"id": f"r{number}", "timestamp": stamp(call.at + 2), "type": "gemini"}
        lines.append({**answer, "model": call.model, "content": CANARY, "tokens": tokens})
    return lines


#: By the program.
WRITERS: dict[str, Callable[[Iterable[Call], str], list[Json]]] = {
    "claude_code": claude_code,
    "codex": codex,
    "copilot": copilot,
    "gemini_cli": gemini_cli,
    "opencode": opencode,
    "pi": pi,
}


def write(file: Path, lines: Iterable[Json]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return file
