"""A recorded conversation of three calls, as a line of a trace file."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def usage(read: int, written: int, fresh: int = 3) -> Json:
    return {"input": fresh, "cache_read": read, "cache_write_5m": written, "output": 20}


def three_calls(last: Json, **changed: Any) -> Json:
    """`last` is the bill of the third call; the second reads what the first wrote."""
    messages = [
        {"role": "user" if at % 2 == 0 else "assistant", "content": f"m{at}"} for at in range(5)
    ]
    calls = [
        {"t": 1000.0, "messages": 1, "usage": usage(0, 5000)},
        {"t": 1010.0, "messages": 3, "usage": usage(5000, 200)},
        {"t": 1020.0, "messages": 5, "usage": last},
    ]
    whole = {
        "id": "talk",
        "provider": "anthropic",
        "model": "claude-sonnet-4-5",
        "system_tokens_unknown": True,
        "messages": messages,
        "calls": calls,
    }
    return {**whole, **changed}
