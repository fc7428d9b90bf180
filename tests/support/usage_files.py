"""Session files of Claude Code, made for tests of usage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anaphora.usage.places import SessionFile

#: In a prompt: must appear nowhere else.
CANARY = "canary-2f1b"


def answer(id: str, at: float | str = 1_780_000_000, **given: Any) -> bytes:
    """The line of a reply; `given` are counts of its usage, or fields of the line."""
    counts = {"input_tokens": 3, "output_tokens": 5, "cache_read_input_tokens": 1000}
    counts |= {name: given.pop(name) for name in [*given] if name.endswith("tokens")}
    hour = given.pop("hour", 0)
    if hour:
        counts["cache_creation_input_tokens"] = counts.get("cache_creation_input_tokens", 0) + hour
        counts["cache_creation"] = {"ephemeral_1h_input_tokens": hour}  # type: ignore[assignment]
    message = {
        "id": id,
        "role": "assistant",
        "model": given.pop("model", "claude-sonnet-4-5"),
        "content": [{"type": "text", "text": CANARY}],
        "usage": counts,
    }
    line = {
        "type": "assistant",
        "sessionId": "s1",
        "cwd": "/home/me/app",
        "timestamp": at,
        "uuid": f"u-{id}-{at}",
        "parentUuid": None,
        "message": message,
        **given,
    }
    return json.dumps(line).encode() + b"\n"


def user(at: float = 1_780_000_000) -> bytes:
    message = {"role": "user", "content": CANARY}
    line = {"type": "user", "sessionId": "s1", "timestamp": at, "message": message}
    return json.dumps(line).encode() + b"\n"


def session_file(path: Path, program: Any = "claude_code") -> SessionFile:
    found = path.stat()
    return SessionFile(path, program, found.st_mtime, found.st_size, path.parent)


def files_in(folder: Path) -> list[SessionFile]:
    return [session_file(path) for path in sorted(folder.glob("*.jsonl*"))]
