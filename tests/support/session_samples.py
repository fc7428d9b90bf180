"""Small session files of each program, as lines. Every text in them is CANARY."""

from __future__ import annotations

import json
from typing import Any

from anaphora.analysis.trace.programs import ProgramName

CANARY = "CANARY my diagnosis"
Json = dict[str, Any]


def at(second: int) -> str:
    return f"2026-11-02T09:00:{second:02}.000Z"


def claude(second: int, id: str, output: int = 5, uuid: str = "", **more: Any) -> Json:
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 2000,
        "cache_creation_input_tokens": 300,
        "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200},
        "output_tokens": output,
        **more.pop("usage", {}),
    }
    content = [{"type": "text", "text": CANARY}]
    message = {"id": id, "role": "assistant", "content": content, "usage": usage}
    return {
        "type": "assistant",
        "uuid": uuid or f"u{second}",
        "sessionId": "s",
        "cwd": "/work",
        "timestamp": at(second),
        "message": {"model": "claude-sonnet-4-5", **message, **more.pop("message", {})},
        **more,
    }


def codex(second: int, kind: str, /, **payload: Any) -> Json:
    return {"timestamp": at(second), "type": kind, "payload": payload}


def codex_count(second: int, input: int, total: int) -> Json:
    last = {"input_tokens": input, "cached_input_tokens": 128, "output_tokens": 7}
    info = {"last_token_usage": last, "total_token_usage": {"total_tokens": total}}
    return codex(second, "event_msg", type="token_count", info=info)


def codex_reply(second: int, **more: Any) -> Json:
    return codex(second, "response_item", type="message", role="assistant", content=CANARY, **more)


def gemini(second: int, id: str, **tokens: int) -> Json:
    counts = {"input": 9000, "output": 5, "cached": 512, "thoughts": 2, "tool": 10, **tokens}
    reply = {"type": "gemini", "model": "gemini-2.5-pro", "content": CANARY, "tokens": counts}
    return {"id": id, "timestamp": at(second), **reply}


def event(number: int, type: str, data: Json, **more: Any) -> Json:
    parent = f"e{number - 1}" if number else None
    named = {"id": f"e{number}", "parentId": parent, "timestamp": at(number)}
    return {"type": type, "data": data, **named, **more}


def copilot_usage(call: str, input: int) -> Json:
    return {
        "usage": {
            "apiCallId": call,
            "model": "gpt-5.4",
            "inputTokens": input,
            "outputTokens": 9,
            "cacheReadTokens": 128,
            "cacheWriteTokens": 64,
        }
    }


def pi(number: int, type: str = "message", **more: Any) -> Json:
    parent = f"p{number - 1}" if number > 1 else None
    return {"type": type, "id": f"p{number}", "parentId": parent, "timestamp": at(number), **more}


def pi_reply(number: int, response: str | None) -> Json:
    message = {
        "role": "assistant",
        "content": [{"type": "text", "text": CANARY}],
        "provider": "anthropic",
        "model": "claude-sonnet-4-5",
        "usage": {"input": 3, "output": 5, "cacheRead": 1000, "cacheWrite": 70, "cacheWrite1h": 30},
    }
    return pi(number, message=message | ({"responseId": response} if response else {}))


def opencode_message(second: int, *steps: Json, **info: Any) -> Json:
    tokens = {"input": 7, "output": 5, "reasoning": 2, "cache": {"read": 100, "write": 20}}
    reply = {
        "id": f"msg_{second}",
        "role": "assistant",
        "providerID": "anthropic",
        "modelID": "claude-sonnet-4-5",
        "tokens": tokens,
        "path": {"cwd": "/work"},
        "time": {"created": 1_794_000_000_000 + second, "completed": 1_794_000_001_000 + second},
    }
    text = {"type": "text", "text": CANARY}
    finished = [{"type": "step-finish", "tokens": tokens | step} for step in steps]
    return {"info": reply | info, "parts": [text, *finished]}


META = {"id": "c", "model_provider": "openai", "cwd": "/work"}
LONG_ID = "call_0123456789abcdef"
FORK = {**META, "id": "d", "forked_from_id": "c"}
ASKED = codex(1, "response_item", type="message", role="user", content=CANARY)
TURN = codex(1, "turn_context", model="gpt-5.5", cwd="/work")
CALL = codex(2, "response_item", type="function_call", name="shell", call_id=LONG_ID)
OUTPUT = codex(3, "response_item", type="function_call_output", call_id=LONG_ID, output=CANARY)
RECORD = {"input_tokens": 900, "cached_input_tokens": 128, "cache_write_input_tokens": 256}

SAMPLES: dict[str, tuple[ProgramName, list[Json]]] = {
    "claude_code": (
        "claude_code",
        [
            {"type": "user", "uuid": "u0", "sessionId": "s", "message": {"content": CANARY}},
            claude(1, "m1", 1, parentUuid="u0", requestId="r1"),
            claude(2, "m1", 40, parentUuid="u1", requestId="r1"),
            claude(3, "m2", parentUuid="u2", isSidechain=True, agentId="a"),
            claude(4, "", parentUuid="u3", requestId="r3", usage={"speed": "fast"}),
            claude(5, "", parentUuid="u4", message={"content": CANARY}),
            claude(6, "m4", parentUuid="u5", message={"model": "<synthetic>"}),
            claude(7, "m5", parentUuid="u6", usage={"service_tier": "priority"}),
            claude(8, "m1", 2, parentUuid="u7", requestId="r1"),
        ],
    ),
    "codex": (
        "codex",
        [
            codex(0, "session_meta", **META),
            TURN,
            ASKED,
            CALL,
            codex_count(2, 900, 1),
            codex_count(2, 900, 1),
            OUTPUT,
            codex_reply(4),
            codex_count(5, 1000, 2),
            codex(6, "event_msg", type="agent_message", message=CANARY),
            codex_reply(6),
            codex(6, "compacted", message=CANARY),
            codex(6, "turn_context", model="gpt-5.4", cwd="/work"),
            codex_count(7, 500, 3),
            codex(8, "response_item", type="reasoning", encrypted_content="x" * 100),
            codex_count(9, 600, 4),
        ],
    ),
    "codex, with records": (
        "codex",
        [
            codex(0, "session_meta", **META),
            TURN,
            ASKED,
            codex_reply(2),
            codex(3, "token_usage_record", response_id="resp_1", usage=RECORD),
            codex_count(3, 900, 1),
            codex_reply(4),
            codex(5, "token_usage_record", usage=RECORD),
        ],
    ),
    "codex, a fork": (
        "codex",
        [
            codex(0, "session_meta", **FORK),
            codex(0, "session_meta", **META),
            TURN,
            codex_reply(2),
            codex_count(3, 900, 1),
        ],
    ),
    "gemini_cli": (
        "gemini_cli",
        [
            {"sessionId": "g", "projectHash": "h", "kind": "main"},
            {"id": "1", "timestamp": at(0), "type": "user", "content": CANARY},
            gemini(1, "2", output=1),
            gemini(1, "2", output=6),
            {"$rewindTo": "1"},
            gemini(2, "3"),
            {"$set": {"messages": [gemini(2, "3"), gemini(3, "4")]}},
        ],
    ),
    "copilot": (
        "copilot",
        [
            event(0, "session.start", {"sessionId": "o", "context": {"cwd": "/work"}}),
            event(1, "user.message", {"content": CANARY}),
            event(2, "assistant.message", {"content": CANARY, "apiCallId": "a1"}),
            event(3, "session.usage_record", copilot_usage("a1", 9000)),
            event(4, "session.usage_record", copilot_usage("a2", 9100), agentId="t"),
            event(5, "assistant.message", {"content": CANARY, "apiCallId": "a2"}, agentId="t"),
            event(
                6,
                "session.compaction_complete",
                {
                    "requestId": "r",
                    "summaryContent": CANARY,
                    "compactionTokensUsed": copilot_usage("", 800)["usage"],
                },
            ),
            event(7, "session.usage_record", copilot_usage("", 700)),
        ],
    ),
    "pi": (
        "pi",
        [
            {"type": "session", "id": "p", "cwd": "/work", "timestamp": at(0)},
            pi(1, message={"role": "user", "content": CANARY}),
            pi_reply(2, "msg_1"),
            pi_reply(3, None),
            pi(4, "model_change", provider="openai", modelId="gpt-5.5"),
            pi(5, "compaction", summary=CANARY, usage={"input": 50, "output": 4}),
        ],
    ),
    "opencode": (
        "opencode",
        [
            {
                "info": {"id": "ses_1", "parentID": "ses_0"},
                "messages": [
                    opencode_message(1),
                    opencode_message(2, {"input": 8}, {"input": 9}),
                    {"info": {"role": "user"}, "parts": [{"type": "text", "text": CANARY}]},
                ],
            }
        ],
    ),
}


def lines_of(name: str) -> tuple[ProgramName, list[bytes]]:
    program, lines = SAMPLES[name]
    compact = json.JSONEncoder(separators=(",", ":")).encode
    return program, [compact(line).encode() + b"\n" for line in lines]
