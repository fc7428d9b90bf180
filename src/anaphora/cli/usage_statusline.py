"""`anaphora statusline --install`, a field of Claude Code's settings; and the sums that the
status line shows."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from anaphora.errors import AnaphoraError, InvalidConfig, Io
from anaphora.usage.index import index_file
from anaphora.usage.report import UsageRow

from .common import MissingPackage
from .html_file import HtmlFile

_SCRIPT = "anaphora-statusline"
#: Seconds after which Claude Code runs it again: minutes until the cache expires count down.
_REFRESH = 30


#: Seconds for which the cost of a session is kept for the status line.
_KEPT = 7 * 86_400


def keep_today(usd: Decimal, sessions: Iterable[UsageRow]) -> None:
    """Write what today cost, and each session until now; nothing if it cannot be written."""
    now = time.time()
    recent = [row for row in sessions if row.ended is not None and row.ended > now - _KEPT]
    kept = {
        "version": 1,
        "day": time.strftime("%Y-%m-%d", time.localtime(now)),
        "at": now,
        "usd": float(usd),
        "sessions": {row.name: float(row.usd) for row in recent},
    }
    with suppress(AnaphoraError, OSError), HtmlFile(index_file().with_name("today.json")) as file:
        file.write(json.dumps(kept).encode())


def install() -> None:
    """Set `statusLine` in the user's settings; the old file is kept beside it."""
    folder = os.environ.get("CLAUDE_CONFIG_DIR", "").partition(",")[0].strip() or "~/.claude"
    path = (Path(folder).expanduser() / "settings.json").resolve()
    settings = _settings(path)
    wanted = {"type": "command", "command": _command(), "refreshInterval": _REFRESH}
    old = settings.get("statusLine")
    if old == wanted:
        click.echo(f"{path}: the status line is already this one")
        return
    kept = _keep(path)
    text = json.dumps({**settings, "statusLine": wanted}, indent=2, ensure_ascii=False)
    mode = path.stat().st_mode & 0o777 if kept else 0o600
    path.parent.mkdir(parents=True, exist_ok=True)
    with HtmlFile(path) as file:
        file.write(text.encode() + b"\n")
    path.chmod(mode)
    click.echo(f"{path}: the status line is set. Claude Code shows it in new sessions.")
    undo = f"cp {shlex.quote(str(kept))} {shlex.quote(str(path))}" if kept else f"rm {path}"
    click.echo(f"To undo it: {undo}")


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_bytes().decode("utf-8-sig") or "{}")
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise Io(f"{path}: cannot be read: {problem.strerror or problem}") from None
    except (ValueError, RecursionError) as problem:
        raise InvalidConfig(f"not JSON ({problem}); nothing was changed", file=str(path)) from None
    if not isinstance(settings, dict):
        raise InvalidConfig("not a JSON object; nothing was changed", file=str(path))
    return settings


def _command() -> str:
    """The script by its path: the shell of Claude Code may have another PATH."""
    found = shutil.which(_SCRIPT, path=str(Path(sys.executable).parent)) or shutil.which(_SCRIPT)
    folders = set(Path(sys.prefix).parts)
    if found is None or "archive-v0" in folders or {"pipx", ".cache"} <= folders:  # uvx, pipx run
        raise MissingPackage(
            f"{_SCRIPT} is in no permanent environment, and the setting names its path. Install"
            " anaphora first: pipx install anaphora, or uv tool install anaphora"
        )
    return shlex.quote(found)


def _keep(path: Path) -> Path | None:
    """A copy of the file, if there is one."""
    if not path.exists():
        return None
    copy = path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        shutil.copy2(path, copy)
    except OSError as problem:
        raise Io(f"{copy}: cannot be written: {problem.strerror or problem}") from None
    return copy
