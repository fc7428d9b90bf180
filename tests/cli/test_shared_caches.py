"""`serve`, `serve --check` and `grants check` warn of apps that share a cache without saying so."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.daemon import GRANT, create_home, llm_yaml, started_daemon

from anaphora.emulator.server import Emulator

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def grants(*providers: str, models: str = "*", shares: bool = False) -> dict[str, Any]:
    """Of two apps."""
    llm = {**GRANT["llm"], "providers": list(providers), "models": [models], "share_cache": shares}
    return {app: {**GRANT, "llm": llm} for app in ("one", "two")}


def warnings_of(run: Run, home: Path) -> list[str]:
    lines = run("serve", "--home", str(home), "--check", COLUMNS="1000").stdout.splitlines()
    found = [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")]
    return [each for each in found if " use one key at " in each]


def test_all_commands_warn_and_say_what_to_do(emu: Emulator, tmp_path: Path, run: Run) -> None:
    home = tmp_path / "home"
    tokens = create_home(home, emu, extensions=grants("anthropic"))
    [warning] = warnings_of(run, home)
    assert warning.startswith(
        "one, two use one key at anthropic. An app can find out from its charges"
    )
    assert "share_cache: true" in warning
    assert "a provider in llm.yaml with a key of another account" in warning
    for _ in range(2):  # without a daemon, and through it
        checked = run("grants", "check", "one", "--home", str(home))
        assert f"warning: {warning}" in checked.stderr
        assert checked.returncode == 0
        with started_daemon(home, tokens) as daemon:
            checked = run("grants", "check", "two", "--home", str(home))
            assert f"warning: {warning}" in checked.stderr
        logged = [line for line in daemon.log_lines() if warning in line.get("message", "")]
        assert logged[0]["level"] == "warning"


@pytest.mark.parametrize(
    "extensions",
    [
        pytest.param(grants("anthropic", shares=True), id="they say so"),
        pytest.param(grants("openai-chat", models="gpt-5.2"), id="separate cache keys"),
        pytest.param({"one": grants("anthropic")["one"]}, id="one app"),
        pytest.param(
            {"one": grants("anthropic")["one"], "two": grants("gemini")["two"]}, id="two providers"
        ),
    ],
)
def test_no_warning_where_nothing_is_shared(
    extensions: dict[str, Any], emu: Emulator, tmp_path: Path, run: Run
) -> None:
    create_home(tmp_path / "home", emu, extensions=extensions)
    assert warnings_of(run, tmp_path / "home") == []


@pytest.mark.parametrize("same_key", [True, False])
def test_entries_with_one_key_are_one_account(
    same_key: bool, emu: Emulator, tmp_path: Path, run: Run
) -> None:
    llm = copy.deepcopy(llm_yaml(emu.url))
    llm["providers"]["again"] = {
        **llm["providers"]["anthropic"],
        "key": {"secret": "PROVIDER_KEY" if same_key else "OTHER_KEY"},
    }
    home = tmp_path / "home"
    extensions = {"one": grants("anthropic")["one"], "two": grants("again")["two"]}
    create_home(home, emu, extensions=extensions, llm=llm)
    other = home / "secrets" / "OTHER_KEY.txt"
    other.touch(mode=0o600)
    other.write_text("sk-another\n")
    found = warnings_of(run, home)
    assert [each.partition(". ")[0] for each in found] == (
        ["one, two use one key at again, anthropic"] if same_key else []
    )


def test_apps_that_share_several_keys_are_named_once(
    emu: Emulator, tmp_path: Path, run: Run
) -> None:
    llm = copy.deepcopy(llm_yaml(emu.url))
    llm["providers"]["gemini"]["key"] = {"secret": "OTHER_KEY"}
    home = tmp_path / "home"
    tokens = create_home(home, emu, extensions=grants("anthropic", "gemini"), llm=llm)
    other = home / "secrets" / "OTHER_KEY.txt"
    other.touch(mode=0o600)
    other.write_text("sk-another\n")
    [warning] = warnings_of(run, home)
    assert warning.startswith("one, two use one key at anthropic, gemini. ")
    with started_daemon(home, tokens) as daemon:
        (home / "llm.yaml").touch()
        daemon.daemon.reload()
        added = run("apps", "narrow", "one", "--usd", "1", "--expires", "1h", "--home", str(home))
        assert "warning" not in added.stderr
    logged = [line for line in daemon.log_lines() if line.get("message") == warning]
    assert len(logged) == 1
