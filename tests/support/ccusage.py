"""ccusage, and what it says about the session files in a folder.

ccusage = Ccusage(folder)          # with `claude` and `codex` folders, as the programs leave them
ccusage.report("claude", "daily")  # its JSON
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from support.agent_programs import BIN
from support.servers import ServerMissing
from support.waiting import PATIENCE

Json = dict[str, Any]


class Ccusage:
    def __init__(self, folder: Path) -> None:
        self._folder, self._program = folder, BIN / "ccusage"
        if not self._program.exists():
            raise ServerMissing(
                "ccusage is not installed: INSTALL_SERVERS=1 sh scripts/programs.sh"
            )

    def environ(self) -> dict[str, str]:
        home = self._folder / "home"
        home.mkdir(exist_ok=True)
        return {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(home),
            "CLAUDE_CONFIG_DIR": str(self._folder / "claude"),
            "CODEX_HOME": str(self._folder / "codex"),
        }

    def report(self, *words: str) -> Json:
        done = subprocess.run(
            [str(self._program), *words, "--json", "--offline", "--timezone", "UTC"],
            env=self.environ(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found: Json = json.loads(done.stdout)
        return found
