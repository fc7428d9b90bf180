"""Agent programs as users start them.

A program runs in a home and a working directory of its own. The emulator's script makes it call its
shell twice before it answers, so that a run is a loop of three calls. Claude Code and Codex are pinned
in requirements/programs.txt; soak/strangers/more_agents.py has more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from support.servers import ServerMissing
from support.waiting import PATIENCE

from anaphora.emulator import EmulatorOptions, Script

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".programs" / "node_modules" / ".bin"
KEY = "sk-canary-5fLx93Qz81"
QUESTION = "Count the files."
FIRST, SECOND = "first-4711", "second-4711"
FINAL = "There are 4711 files."
_KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "CODEX_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")


def tool_loop(tool: str, argument: str, **more: Any) -> list[dict[str, Any]]:
    """Replies that call a shell twice, and answer."""

    def call(word: str) -> dict[str, Any]:
        arguments = {argument: f"echo {word}", **more}
        return {"tool_calls": [{"name": tool, "arguments": arguments}]}

    return [
        {"match": {"text": "Count the files", "tool": tool}, "reply": call(FIRST)},
        {"match": {"result_of": tool, "result": FIRST}, "reply": call(SECOND)},
        {"match": {"result_of": tool, "result": SECOND}, "reply": {"text": FINAL}},
        {"match": {"schema": False}, "reply": {"text": "Understood."}},
    ]


class AgentProgram(NamedTuple):
    name: str
    command: tuple[str, ...]
    """Of `watch`, `record` and `replay`; for the daemon, `anaphora apps add --for` prints another."""
    words: tuple[str, ...]
    """What follows the command."""
    again: tuple[str, ...]
    """The same conversation in another process."""
    replies: list[dict[str, Any]]
    provider: str
    grant: str
    """Its name for `anaphora apps add --for`."""
    variables: Mapping[str, str] = {}
    files: Mapping[str, str] = {}
    """In its home or, without ~/, in the working directory."""
    family: str = ""
    """The list in soak/strangers/requirements that it is installed by."""
    verdict: str = "hit"
    """On each call after the first one: `partial` if the program moves messages."""

    def options(self, **more: Any) -> EmulatorOptions:
        """Of an emulator that plays the loop."""
        text = json.dumps({"replies": self.replies})
        return EmulatorOptions(script=Script.decode(text, f"the script of {self.name}"), **more)


_CODEX = (
    "--skip-git-repo-check",
    "--dangerously-bypass-approvals-and-sandbox",
    "-c",
    "analytics.enabled=false",
    "-m",
    "gpt-5.1",
)
_CLAUDE = ("--model", "claude-sonnet-4-5", "--allowedTools", "Bash")
_BEDROCK = ("--model", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "--allowedTools", "Bash")
PROGRAMS = {
    "claude": AgentProgram(
        "Claude Code",
        ("claude",),
        ("-p", QUESTION, *_CLAUDE),
        ("-p", "And again?", "--continue", *_CLAUDE),
        tool_loop("Bash", "command"),
        "anthropic",
        "claude-code",
        {
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
        },
    ),
    "codex": AgentProgram(
        "Codex",
        ("codex",),
        ("exec", *_CODEX, QUESTION),
        ("exec", "resume", "--last", *_CODEX, "And again?"),
        tool_loop("exec_command", "cmd"),
        "openai",
        "codex",
    ),
}
#: The same at Amazon Bedrock, with the keys that the emulator verifies; its URL comes with a run.
ON_BEDROCK = PROGRAMS["claude"]._replace(
    words=("-p", QUESTION, *_BEDROCK),
    again=("-p", "And again?", "--continue", *_BEDROCK),
    provider="bedrock",
    variables={
        **PROGRAMS["claude"].variables,
        "CLAUDE_CODE_USE_BEDROCK": "1",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "AKIAEMULATED00000000",
        "AWS_SECRET_ACCESS_KEY": KEY,
    },
)

_VERTEX = ("--model", "claude-sonnet-4-5@20250929", "--allowedTools", "Bash")
#: At Vertex AI, with a token of a gateway instead of Google's credentials.
ON_VERTEX = PROGRAMS["claude"]._replace(
    words=("-p", QUESTION, *_VERTEX),
    again=("-p", "And again?", "--continue", *_VERTEX),
    provider="vertex",
    variables={
        **PROGRAMS["claude"].variables,
        "CLAUDE_CODE_USE_VERTEX": "1",
        "CLAUDE_CODE_SKIP_VERTEX_AUTH": "1",
        "CLOUD_ML_REGION": "global",
        "ANTHROPIC_VERTEX_PROJECT_ID": "p",
        "ANTHROPIC_AUTH_TOKEN": KEY,
    },
)


class ProgramPlace:
    """A home and a working directory, in which a program is run."""

    def __init__(
        self, program: AgentProgram, root: Path, work: str = "work", *, folder: Path = BIN
    ) -> None:
        if not (folder / program.command[0]).exists():
            raise ServerMissing(
                f"{program.name} is not installed: INSTALL_SERVERS=1 sh scripts/programs.sh"
            )
        self.program, self.home, self.work, self._folder = program, root, root / work, folder
        self.work.mkdir(parents=True)
        (self.home / ".codex").mkdir()
        self.write(program.files)

    def write(self, files: Mapping[str, str]) -> None:
        for name, content in files.items():
            file = self.home / name[2:] if name.startswith("~/") else self.work / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)

    def run(
        self,
        *before: str,
        again: bool = False,
        key: str = KEY,
        command: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> subprocess.CompletedProcess[str]:
        """One run, after the words of an anaphora command. Without `key` no key is set. A library
        in LD_PRELOAD is for the program alone."""
        more = dict(variables)
        preload = more.pop("LD_PRELOAD", "")
        environ = {
            "PATH": os.pathsep.join((str(self._folder), os.environ.get("PATH", ""))),
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
            "CODEX_HOME": str(self.home / ".codex"),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT / "src"),
            **(dict.fromkeys(_KEYS, key) if key else {}),
            **self.program.variables,
            **more,
        }
        rest = self.program.again if again else self.program.words
        words = (*(command or self.program.command), *rest)
        if preload:
            words = ("env", f"LD_PRELOAD={preload}", *words)
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
