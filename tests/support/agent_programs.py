"""Agent programs as users start them: Claude Code and Codex, pinned in requirements/programs.txt.

A program runs in a home and a working directory of its own. The emulator's script makes it call its
shell twice before it answers, so that a run is a loop of three calls.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from support.servers import ServerMissing
from support.waiting import PATIENCE

from anaphora.emulator import EmulatorOptions, Script

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".programs" / "node_modules" / ".bin"
KEY = "sk-canary-5fLx93Qz81"
QUESTION = "Count the files."
FINAL = "There are 4711 files."

_SCRIPT = """
replies:
  - match: {{text: Count the files, tool: {tool}}}
    reply: {{tool_calls: [{{name: {tool}, arguments: {{{name}: echo first-4711}}}}]}}
  - match: {{result_of: {tool}, result: first-4711}}
    reply: {{tool_calls: [{{name: {tool}, arguments: {{{name}: echo second-4711}}}}]}}
  - match: {{result_of: {tool}, result: second-4711}}
    reply: {{text: There are 4711 files.}}
  - reply: {{text: Understood.}}
"""


class AgentProgram(NamedTuple):
    name: str
    words: tuple[str, ...]
    again: tuple[str, ...]
    """The same conversation in another process."""
    variables: dict[str, str]
    tool: str
    argument: str
    provider: str
    grant: str
    """Its name for `anaphora apps add --for`."""

    def options(self, **more: object) -> EmulatorOptions:
        """Of an emulator that plays the loop."""
        text = _SCRIPT.format(tool=self.tool, name=self.argument)
        script = Script.decode(text, f"the script of {self.name}")
        return EmulatorOptions(script=script, **more)  # type: ignore[arg-type]


_CODEX = (
    "--skip-git-repo-check",
    "--dangerously-bypass-approvals-and-sandbox",
    "-c",
    "analytics.enabled=false",
    "-m",
    "gpt-5.1",
)
_CLAUDE = ("--model", "claude-sonnet-4-5", "--allowedTools", "Bash")
PROGRAMS = {
    "claude": AgentProgram(
        "Claude Code",
        ("claude", "-p", QUESTION, *_CLAUDE),
        ("claude", "-p", "And again?", "--continue", *_CLAUDE),
        {
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
        },
        "Bash",
        "command",
        "anthropic",
        "claude-code",
    ),
    "codex": AgentProgram(
        "Codex",
        ("codex", "exec", *_CODEX, QUESTION),
        ("codex", "exec", "resume", "--last", *_CODEX, "And again?"),
        {},
        "exec_command",
        "cmd",
        "openai",
        "codex",
    ),
}


class ProgramPlace:
    """A home and a working directory, in which a program is run."""

    def __init__(self, program: AgentProgram, root: Path, work: str = "work") -> None:
        if not (BIN / program.words[0]).exists():
            raise ServerMissing(
                f"{program.name} is not installed: INSTALL_SERVERS=1 sh scripts/programs.sh"
            )
        self.program, self.home, self.work = program, root, root / work
        self.work.mkdir(parents=True)

    def run(
        self,
        *before: str,
        again: bool = False,
        key: str = KEY,
        command: Sequence[str] = (),
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        """One run, after the words of an anaphora command. Without `key` no key is set."""
        keys = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "CODEX_API_KEY")
        environ = {
            "PATH": os.pathsep.join((str(BIN), os.environ.get("PATH", ""))),
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
            "CODEX_HOME": str(self.home / ".codex"),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT / "src"),
            **(dict.fromkeys(keys, key) if key else {}),
            **self.program.variables,
            **variables,
        }
        (self.home / ".codex").mkdir(exist_ok=True)
        words = self.program.again if again else self.program.words
        if command:  # how the program is started, before the words of this run
            words = (*command, *words[1:])
        if before:
            words = (sys.executable, "-m", "anaphora", *before, "--", *words)
        return subprocess.run(
            words,
            cwd=self.work,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
