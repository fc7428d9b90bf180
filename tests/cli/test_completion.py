"""`anaphora completion`: the scripts and their suggestions."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
from click.testing import CliRunner

from anaphora.cli.common import anaphora


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_printed(shell: str) -> None:
    printed = CliRunner().invoke(anaphora, ["completion", shell])
    assert printed.exit_code == 0
    assert f"_ANAPHORA_COMPLETE={shell}_complete" in printed.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_valid(shell: str, run: Any) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here to read it")
    script = run("completion", shell).stdout
    subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_unknown_shell_is_a_usage_error(run: Any) -> None:
    wrong = run("completion", "cmd")
    assert wrong.returncode == 2
    assert "'bash', 'zsh', 'fish'" in wrong.stderr


def test_commands_and_options_are_completed(run_process: Any) -> None:
    def complete(*words: str) -> str:
        line = " ".join(("anaphora", *words))
        found = run_process(
            _ANAPHORA_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words))
        )
        return str(found.stdout)

    assert complete("de") == "plain,demo\n"
    assert complete("demo", "--j") == "plain,--json\n"
    assert complete("completion", "f") == "plain,fish\n"
