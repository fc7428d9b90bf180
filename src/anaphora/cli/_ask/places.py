"""Where `ask` finds its configuration and keeps its conversations: XDG's folders."""

from __future__ import annotations

import os
from pathlib import Path

from anaphora.errors import InvalidConfig

FILE = "llm.yaml"
VARIABLE = "ANAPHORA_CONFIG"


def config_file(named: Path | None) -> Path | None:
    """The file that was named, or the first there is of those that are looked for."""
    if named is not None:
        return named
    if told := os.environ.get(VARIABLE):
        if not Path(told).is_file():
            raise InvalidConfig(f"${VARIABLE} names {told}, and there is no such file")
        return Path(told)
    return next((path for path in (Path(FILE), _own_config()) if path.is_file()), None)


def looked_at() -> str:
    """Where no configuration was, for people."""
    return f"./{FILE}, {_own_config()}"


def conversations() -> Path:
    return _folder("XDG_DATA_HOME", ".local/share") / "conversations"


def _own_config() -> Path:
    return _folder("XDG_CONFIG_HOME", ".config") / FILE


def _folder(variable: str, usual: str) -> Path:
    told = Path(os.environ.get(variable, ""))
    # XDG: what is not absolute is to be ignored.
    return (told if told.is_absolute() else Path.home() / usual) / "anaphora"
