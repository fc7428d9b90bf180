"""A small home with sessions of Claude Code and Codex, whose prompts hold a canary."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

CANARY = "canary-prompt-7Qx1"
IDLE = "0b1c2d3e-1111-4222-8333-444455556666"
STEADY = "5f6a7b8c-1111-4222-8333-444455556666"
#: When the sessions begin: the morning of one day, and of the next.
MORNING = datetime.datetime(2026, 11, 2, 9, tzinfo=datetime.UTC)
MODEL = "claude-sonnet-4-5-20250929"


def stamp(at: datetime.datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def claude_session(
    session: str,
    began: datetime.datetime,
    minutes: list[float],
    project: str,
    *,
    model: str = MODEL,
    size: int = 20_000,
) -> bytes:
    """A conversation with a call after each number of minutes; one after more than five minutes
    finds nothing in the cache."""
    lines: list[dict[str, Any]] = []
    at, cached, parent = began, 0, None
    for number, gap in enumerate(minutes, 1):
        at += datetime.timedelta(minutes=gap)
        common = {"sessionId": session, "isSidechain": False, "cwd": project, "version": "2.1.0"}
        asked = {"role": "user", "content": f"{CANARY} {number}: " + "Why is the build red? " * 20}
        question = {"type": "user", "uuid": f"{session}-q{number}", "parentUuid": parent}
        lines.append({**question, **common, "timestamp": stamp(at), "message": asked})
        size += 400
        read = cached if gap <= 5 else 0
        written = size - read
        at += datetime.timedelta(seconds=4)
        ttls = {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0}
        usage = {
            "input_tokens": 4,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
            "cache_creation": ttls,
            "output_tokens": 60,
        }
        said = [{"type": "text", "text": f"{CANARY}: I look at the log."}]
        parent = f"{session}-a{number}"
        answer = {"type": "assistant", "uuid": parent, "parentUuid": question["uuid"]}
        message: dict[str, Any] = {
            "id": f"msg_{session}_{number}",
            "type": "message",
            "role": "assistant",
        }
        message |= {"model": model, "content": said, "usage": usage}
        request = {"requestId": f"req_{session}_{number}", "timestamp": stamp(at)}
        lines.append({**answer, **common, **request, "message": message})
        cached = size
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def codex_session() -> bytes:
    at = stamp(MORNING + datetime.timedelta(days=1))
    counts = {"input_tokens": 9_000, "cached_input_tokens": 4_096, "output_tokens": 70}
    asked: dict[str, Any] = {"type": "message", "role": "user"}
    asked |= {"content": [{"type": "input_text", "text": f"{CANARY}?"}]}
    info = {"last_token_usage": counts, "total_token_usage": {**counts, "total_tokens": 9_070}}
    entries = [
        ("session_meta", {"id": "c0de", "model_provider": "openai", "cwd": "/work/tea"}),
        ("turn_context", {"model": "gpt-5.5", "cwd": "/work/tea"}),
        ("response_item", asked),
        ("event_msg", {"type": "token_count", "info": info}),
    ]
    lines = [{"timestamp": at, "type": kind, "payload": payload} for kind, payload in entries]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def write_home(home: Path) -> Path:
    """Two sessions of Claude Code, one with a pause of an hour, and one of Codex."""
    projects = home / ".claude" / "projects"
    pause = claude_session(IDLE, MORNING, [0, 1, 60, 1], "/work/shop")
    steady = claude_session(
        STEADY, MORNING + datetime.timedelta(days=1), [0, 1, 1], "/work/shop/api"
    )
    files = {
        projects / "-work-shop" / f"{IDLE}.jsonl": pause,
        projects / "-work-shop-api" / f"{STEADY}.jsonl": steady,
        home / ".codex" / "sessions" / "2026" / "11" / "03" / "rollout-c0de.jsonl": codex_session(),
    }
    for file, content in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return home


def write_example_home(home: Path) -> Path:
    """Two weeks of the sessions that docs/why-is-my-bill-high.md shows."""
    write_home(home)
    for day in range(14):
        for number in range(1 + day * 5 % 4):
            name = f"{day:02x}{number:02x}4a1c-2f6e-4d0b-9c57-5e1f0a7b8d33"
            pauses = [47.0 if (day + number + turn) % 9 == 5 else 1.5 for turn in range(24)]
            began = MORNING + datetime.timedelta(days=day, hours=2 * number)
            project = ("/work/shop", "/work/shop/api", "/work/tea")[number % 3]
            file = home / ".claude" / "projects" / project.replace("/", "-") / f"{name}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            content = claude_session(name, began, [0.0, *pauses], project, size=60_000)
            file.write_bytes(content)
    return home
