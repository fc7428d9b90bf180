"""Session files of agent programs, a module for each program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

from anaphora.analysis.trace.log_lines import Problem, TraceEntry

from .claude_code import ClaudeCodeSession
from .codex import CodexSession
from .copilot import CopilotSession
from .gemini_cli import GeminiCliSession
from .opencode import OpencodeSessions
from .pi import PiSession

ProgramName: TypeAlias = Literal["claude_code", "codex", "gemini_cli", "opencode", "copilot", "pi"]


class SessionReader(Protocol):
    """Reads a file whose lines together are one conversation or several."""

    missing: str
    """The problem with a file in which no conversation was found; empty if it is none."""

    def read(self, place: str, fields: dict[str, Any]) -> Problem | None: ...

    def traces(self, file: str) -> Sequence[TraceEntry]: ...


_Reader: TypeAlias = type[
    ClaudeCodeSession
    | GeminiCliSession
    | CodexSession
    | CopilotSession
    | PiSession
    | OpencodeSessions
]

#: In the order in which they are tried.
PROGRAMS: dict[ProgramName, _Reader] = {
    "claude_code": ClaudeCodeSession,
    "gemini_cli": GeminiCliSession,
    "codex": CodexSession,
    "copilot": CopilotSession,
    "pi": PiSession,
    "opencode": OpencodeSessions,
}


def program_of(fields: dict[str, Any]) -> ProgramName | None:
    """The program that wrote an object; None if it is unknown."""
    return next((name for name, reader in PROGRAMS.items() if reader.recognises(fields)), None)
