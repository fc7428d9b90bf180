"""Where agent programs keep their session files on this machine.

for file in session_files((), os.environ, Path.home(), problems): ...     of all programs
for file in session_files((folder,), …): ...                              named ones
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from anaphora.analysis.trace.log_lines import Problem
from anaphora.analysis.trace.programs import PROGRAMS, ProgramName
from anaphora.cache.verdict.advice import PROGRAM_TITLES

from . import opencode_files
from .log_files import DETECT_LINES, detect, files_in, lines_of, records_of


class SessionFolder(NamedTuple):
    """A folder of a program's sessions."""

    program: ProgramName
    variable: str
    """Environment variable with other folders, separated by commas."""
    defaults: tuple[str, ...]
    """Paths in the user's home, without the variable; all are looked into. The first part may be
    another variable, as `$XDG_CONFIG_HOME:.config/claude`."""
    patterns: tuple[str, ...]
    """Patterns of the files in the folder."""
    below: str = ""
    """Path below the folders that the variable names."""

    @property
    def title(self) -> str:
        return PROGRAM_TITLES[self.program]

    def paths(self, environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
        value = environ.get(self.variable, "")
        named = [value] if Path(value).is_dir() else [part.strip() for part in value.split(",")]
        if any(named):
            return _distinct(Path(part).expanduser() / self.below for part in named if part)
        return _distinct(_default(path, environ, home) for path in self.defaults)


_CLAUDE = (".claude", "$XDG_CONFIG_HOME:.config/claude")
_CODEX = ("sessions/**/*.jsonl", "archived_sessions/**/*.jsonl")
_GEMINI = ("tmp/*/chats/**/*.json", "tmp/*/chats/**/*.jsonl")
_OPENCODE = ("$XDG_DATA_HOME:.local/share/opencode",)
_DATABASES = ("opencode*.db", "storage")
_PROJECTS, _SESSIONS = ("projects/**/*.jsonl",), ("sessions/**/*.jsonl",)
_COPILOT = ("session-state/**/*.jsonl",)
FOLDERS = (
    SessionFolder("claude_code", "CLAUDE_CONFIG_DIR", _CLAUDE, _PROJECTS),
    SessionFolder("codex", "CODEX_HOME", (".codex",), _CODEX),
    SessionFolder("gemini_cli", "GEMINI_CLI_HOME", (".gemini",), _GEMINI, ".gemini"),
    SessionFolder("opencode", "OPENCODE_DATA_DIR", _OPENCODE, _DATABASES),
    SessionFolder("copilot", "COPILOT_HOME", (".copilot",), _COPILOT),
    SessionFolder("pi", "PI_CODING_AGENT_DIR", (".pi/agent",), _SESSIONS),
)


class SessionFile(NamedTuple):
    """A file, or the tree of files of an older opencode. It was changed if time or size did."""

    path: Path
    program: ProgramName
    mtime: float
    size: int
    folder: Path
    """The program's folder, or the place that was named."""


#: Between a repository and its worktrees, where Claude Code makes them.
_WORKTREES = "/.claude/worktrees/"
_MOST_BYTES = 4096


def repository(folder: str, others: Iterable[str] = ()) -> str:
    """The git repository that a folder is in, as a folder or a worktree: one project. `others` are
    the folders of the same session: of a folder that is gone, the one that contains it."""
    path = Path(folder)
    for parent in (path, *path.parents) if path.is_absolute() else ():
        if (found := _repository_at(parent / ".git")) is not None:
            return str(found)
    outer = folder.replace("\\", "/").partition(_WORKTREES)[0]
    inside = [each for each in others if outer.startswith(each.replace("\\", "/") + "/")]
    return min(inside, key=len, default=folder[: len(outer)])


def _repository_at(git: Path) -> Path | None:
    """None if there is none. In a worktree, `.git` is a file that names the repository's."""
    try:
        if git.is_dir():
            return git.parent
        with git.open("rb") as file:
            line = file.read(_MOST_BYTES).decode(errors="replace").strip()
    except (OSError, ValueError):
        return None
    head, found, _ = line.removeprefix("gitdir: ").replace("\\", "/").partition("/.git/worktrees/")
    return Path(head) if found else git.parent


def session_files(
    places: Iterable[Path],
    environ: Mapping[str, str],
    home: Path,
    problems: list[Problem],
    program: ProgramName | None = None,
) -> Iterator[SessionFile]:
    """The session files in these places, recognised by their content; without places, those of
    all programs on this machine, in the order of FOLDERS and of their names. `program` chooses
    one. Folders that cannot be read are problems."""
    named = tuple(places)
    for place in named:
        yield from _in_place(place, problems, program)
    for folder in () if named else FOLDERS:
        if program in (None, folder.program):
            yield from _in_folder(folder, environ, home, problems)


def _in_place(
    place: Path, problems: list[Problem], program: ProgramName | None
) -> Iterator[SessionFile]:
    for file in files_in((place,), problems):
        found = program_in(file, problems)
        if found is not None and program in (None, found):
            yield from _session_file(file, found, place, problems)


def program_in(file: Path, problems: list[Problem]) -> ProgramName | None:
    """The program that wrote a file, by its first lines. A file of no program is a problem."""
    if file.is_dir() or opencode_files.is_database_file(file):
        return "opencode"
    own: list[Problem] = []  # of a file that is read, they are reported then
    lines = [*islice(lines_of(file, own), DETECT_LINES)]
    found = detect(lines)
    if found is None and len(lines) > 1 and lines[0].data.strip()[-1:] in b"{[,:":
        found = detect([*islice(records_of(file, own), DETECT_LINES)])
    program = next((name for name in PROGRAMS if name == found), None)
    if program is None:
        problems += own or [Problem(str(file), "no session file of an agent program", "skipped")]
    return program


def _in_folder(
    folder: SessionFolder, environ: Mapping[str, str], home: Path, problems: list[Problem]
) -> Iterator[SessionFile]:
    roots = folder.paths(environ, home)
    for root in roots:
        for pattern in folder.patterns:
            for path in _matching(root, tuple(pattern.split("/")), problems):
                yield from _session_file(path, folder.program, root, problems)
    for path in _named_directly(folder.program, roots[0], environ, problems):
        yield from _session_file(path, folder.program, path.parent, problems)


def _named_directly(
    program: ProgramName, root: Path, environ: Mapping[str, str], problems: list[Problem]
) -> Iterator[Path]:
    """Sessions that a variable names beside the folder: opencode's database, pi's sessions."""
    database = environ.get("OPENCODE_DB") if program == "opencode" else None
    sessions = environ.get("PI_CODING_AGENT_SESSION_DIR") if program == "pi" else None
    if database and (root / database).is_file() and not fnmatchcase(database, "opencode*.db"):
        yield root / database
    if sessions:
        yield from _matching(root / sessions, ("**", "*.jsonl"), problems)


def _session_file(
    path: Path, program: ProgramName, folder: Path, problems: list[Problem]
) -> Iterator[SessionFile]:
    try:
        if path.is_dir():
            if not opencode_files.is_storage(path):
                return
            states = [file.stat() for file in opencode_files.storage_files(path)]
        else:
            log = path.with_name(f"{path.name}-wal")
            states = [path.stat()]
            if program == "opencode" and log.exists():
                states.append(log.stat())
    except FileNotFoundError:
        return  # removed meanwhile
    except OSError as problem:
        problems.append(_unreadable(path, problem))
        return
    mtime = max((state.st_mtime for state in states), default=0.0)
    yield SessionFile(path, program, mtime, sum(state.st_size for state in states), folder)


def _matching(folder: Path, parts: tuple[str, ...], problems: list[Problem]) -> Iterator[Path]:
    """The files and folders that match a pattern, sorted. `**` follows no links."""
    deep = parts[0] == "**"
    name, *rest = parts[deep:]
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as problem:
        problems.append(_unreadable(folder, problem))
        return
    for entry in found:
        path = Path(entry.path)
        if deep and entry.is_dir(follow_symlinks=False):
            yield from _matching(path, parts, problems)
        if not fnmatchcase(entry.name, name):
            continue
        if rest:
            yield from _matching(path, tuple(rest), problems)
        elif entry.is_file() or (not deep and entry.is_dir()):
            yield path


def _default(path: str, environ: Mapping[str, str], home: Path) -> Path:
    """A default folder; `$XDG:a/b/name` is `name` in the variable's folder, or `a/b/name`."""
    if not path.startswith("$"):
        return home / path
    variable, _, default = path[1:].partition(":")
    named = environ.get(variable, "")
    return Path(named) / Path(default).name if named else home / default


def _distinct(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Without folders that are links to others."""
    return tuple({os.path.realpath(path): path for path in reversed([*paths])}.values())[::-1]


def _unreadable(path: Path, problem: OSError) -> Problem:
    return Problem(str(path), f"cannot be read: {problem.strerror or problem}")
