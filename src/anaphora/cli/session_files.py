"""Session files of agent programs on this machine, for commands that are given none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import click

from anaphora.analysis.trace.log_lines import Problem
from anaphora.wording import counted

from . import opencode_files

#: How many sessions are explained by default.
NEWEST = 20


class SessionFolder(NamedTuple):
    """The folder of a program's sessions."""

    program: str
    variable: str
    """Environment variable with another folder."""
    below: str
    """Path below the folder that the variable names."""
    default: str
    """Path in the user's home, without the variable."""
    patterns: tuple[str, ...]
    """Patterns of the files in the folder."""

    def path(self, environ: Mapping[str, str], home: Path) -> Path:
        named = environ.get(self.variable, "")
        return Path(named) / self.below if named else home / self.default


FOLDERS = (
    SessionFolder("Claude Code", "CLAUDE_CONFIG_DIR", "", ".claude", ("projects/**/*.jsonl",)),
    SessionFolder(
        "Codex", "CODEX_HOME", "", ".codex", ("sessions/**/*.jsonl", "archived_sessions/*.jsonl")
    ),
    SessionFolder(
        "Gemini CLI",
        "GEMINI_CLI_HOME",
        ".gemini",
        ".gemini",
        ("tmp/*/chats/*.json", "tmp/*/chats/*.jsonl"),
    ),
    SessionFolder(
        "opencode",
        "XDG_DATA_HOME",
        "opencode",
        ".local/share/opencode",
        ("opencode*.db", "storage"),
    ),
    SessionFolder(
        "GitHub Copilot CLI", "COPILOT_HOME", "", ".copilot", ("session-state/**/*.jsonl",)
    ),
    SessionFolder("pi", "PI_CODING_AGENT_DIR", "", ".pi/agent", ("sessions/**/*.jsonl",)),
)


def found_sessions(newest: int | None, problems: list[Problem]) -> tuple[Path, ...]:
    """The newest session files of all programs, the oldest of them first. How many there are of
    each program is a notice. Raises if there is none."""
    try:
        home = Path.home()
    except RuntimeError:
        raise click.UsageError("no FILES are given, and no home folder is known") from None
    dated: list[tuple[float, Path]] = []
    for folder in FOLDERS:
        path = folder.path(os.environ, home)
        files = _files(path, folder.patterns)
        if files:
            kept = f"{counted(len(files), 'session file')} of {folder.program}"
            problems.append(Problem(_shown(path, home), kept, "notice"))
        dated += files
    if not dated:
        looked = ", ".join(_shown(one.path(os.environ, home), home) for one in FOLDERS)
        raise click.UsageError(
            f"no FILES are given, and no session file of an agent program is in {looked}"
        )
    most = NEWEST if newest is None else newest
    dated.sort()
    if len(dated) > most:
        reason = f"the newest {most:,} of {len(dated):,} are explained; --newest N for others"
        problems.append(Problem("session files", reason, "notice"))
    return tuple(file for _, file in dated[-most:])


def _files(folder: Path, patterns: tuple[str, ...]) -> list[tuple[float, Path]]:
    """The files, and when each was changed last; the tree of sessions of opencode counts as one."""
    found = []
    for pattern in patterns:
        for file in folder.glob(pattern):
            try:
                if file.is_file() or opencode_files.is_storage(file):
                    found.append((file.stat().st_mtime, file))
            except OSError:
                continue  # removed meanwhile
    return found


def _shown(path: Path, home: Path) -> str:
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
