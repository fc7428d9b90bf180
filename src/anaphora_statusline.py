"""`anaphora-statusline`: one line about a session, for the status line of Claude Code.

It starts after each answer, so it is a module of its own that imports neither the package nor a
dependency. It reads the JSON on standard input, the end of the session's file if the JSON lacks
something, and the sums that `anaphora usage` wrote last. It never fails: what is unknown is left
out. Nothing of a prompt is printed.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False  # `typing` takes longer to load than all else here
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: Bytes at the end of a session's file that are read: an answer with a large file may come last.
_TAIL = 262_144
#: Seconds after which the sums of `anaphora usage` are marked as old.
_FRESH = 120
_TTLS = {"5m": 300, "1h": 3_600}


def main() -> int:
    try:
        given = json.loads(sys.stdin.buffer.read() or b"{}")
    except (ValueError, OSError, AttributeError, RecursionError):
        given = {}
    parts = list(_parts(given if isinstance(given, dict) else {}, time.time()))
    text = "".join(one if one.isprintable() else " " for one in " · ".join(parts) or "anaphora")
    try:
        sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\n")
        sys.stdout.flush()
    except (OSError, AttributeError):
        pass  # the reader is gone
    return 0


def _parts(given: dict[str, Any], now: float) -> Iterator[str]:
    model, window = _object(given, "model"), _object(given, "context_window")
    name = model.get("display_name") or model.get("id")
    if isinstance(name, str) and name:
        yield name[:60]
    used = _number(window.get("used_percentage"))
    if used is not None:
        yield f"context {used:.0f}%"
    session = _number(_object(given, "cost").get("total_cost_usd"))
    if session is not None:
        yield f"${session:,.2f} session"
    today = _today(str(given.get("session_id")), session or 0.0, now)
    if today is not None:
        yield today
    usage, cache = _object(window, "current_usage"), _object(given, "prompt_cache")
    last: dict[str, Any] = {}
    if not usage or not cache:
        last = _last_call(given.get("transcript_path"))
    share = _read_share(usage or _object(last, "usage"))
    if share is not None:
        yield f"cache {share:.0%} read"
    expires = _expiry(cache, last)
    if expires is not None:
        left = expires - now
        yield (
            f"expires in {left // 60:.0f} min"
            if left >= 60
            else ("expires in < 1 min" if left > 0 else "cache expired")
        )


def _today(session: str, cost: float, now: float) -> str | None:
    """What all programs cost today: the sums of the last `anaphora usage`, and what this session
    has cost since then. With ~ if they are old."""
    kept = _kept_sums()
    usd, at = _number(kept.get("usd")), _number(kept.get("at"))
    if usd is None or at is None:
        return None
    known = _number(_object(kept, "sessions").get(session)) or 0.0
    since = max(cost - known, 0.0)
    is_of_today = kept.get("day") == time.strftime("%Y-%m-%d", time.localtime(now))
    old = not is_of_today or not 0 <= now - at <= _FRESH or since >= 0.01
    return f"{'~' if old else ''}${(usd if is_of_today else 0.0) + since:,.2f} today"


def _kept_sums() -> dict[str, Any]:
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(folder):
        caches = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
        folder = os.path.expanduser(caches)
    try:
        with open(os.path.join(folder, "anaphora", "today.json"), "rb") as file:
            kept = json.loads(file.read(1 << 20))
    except (OSError, ValueError, RecursionError):
        return {}
    return kept if isinstance(kept, dict) and kept.get("version") == 1 else {}


def _read_share(usage: dict[str, Any]) -> float | None:
    read = _number(usage.get("cache_read_input_tokens")) or 0.0
    others = ("input_tokens", "cache_creation_input_tokens")
    total = read + sum(_number(usage.get(name)) or 0.0 for name in others)
    return read / total if total > 0 else None


def _expiry(cache: dict[str, Any], last: dict[str, Any]) -> float | None:
    """When the cached beginning expires: as Claude Code says, or by the time and the TTL of the
    last call."""
    if cache:
        return _number(cache.get("expires_at"))
    ended = last.get("at")
    return None if ended is None else ended + _TTLS[last["ttl"]]


def _last_call(path: Any) -> dict[str, Any]:
    """The usage of the session's last call, when it ended, and the TTL of its last write."""
    found: dict[str, Any] = {}
    for line in reversed(_last_lines(path)):
        if b'"usage"' not in line or b'"isSidechain":true' in line:
            continue
        try:
            entry = json.loads(line)
            usage = entry["message"]["usage"]
            at = _unix_time(entry["timestamp"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if not isinstance(usage, dict) or _read_share(usage) is None:
            continue
        if not found:
            found = {"usage": usage, "at": at, "ttl": "5m"}
        if usage.get("cache_creation_input_tokens"):
            written = _object(usage, "cache_creation").get("ephemeral_1h_input_tokens")
            found["ttl"] = "1h" if written else "5m"
            break
    return found


def _last_lines(path: Any) -> list[bytes]:
    try:
        if not os.path.isfile(path):  # reading a pipe may never end
            return []
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL, 0))
            lines = file.read(_TAIL).split(b"\n")
    except (OSError, TypeError, ValueError):
        return []
    return lines if size <= _TAIL else lines[1:]  # the first one is not whole


def _unix_time(text: str) -> float:
    import calendar

    return float(calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))


def _object(value: dict[str, Any], name: str) -> dict[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _number(value: Any) -> float | None:
    """A number, also as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 1e15 else None


if __name__ == "__main__":
    sys.exit(main())
