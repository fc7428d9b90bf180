"""docs/daemon/operating.md: its settings and commands are valid, its defaults are the code's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from anaphora.cli.common import anaphora
from anaphora.client.config import ClientConfig
from anaphora.daemon.home.config import DaemonConfig, daemon_config
from anaphora.daemon.monitoring import DaemonMetrics

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "daemon" / "operating.md").read_text()


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_settings_are_valid(text: str) -> None:
    assert daemon_config(ClientConfig.from_text(text, "operating.md")).is_exposed


def test_defaults_are_those_of_the_code() -> None:
    shown = re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE, re.MULTILINE)
    defaults = {field.name: field.default for field in msgspec.structs.fields(DaemonConfig)}
    assert len(shown) == 10
    assert {name: float(value) for name, value in shown} == {
        name: float(defaults[name]) for name, _ in shown
    }


def test_commands_exist() -> None:
    lines = re.findall(r"^(?:sudo .*?)?(?:\S*/)?anaphora (\w.*?)(?: +#.*)?$", PAGE, re.MULTILINE)
    assert {line.split()[0] for line in lines} >= {"init", "secrets", "apps", "serve"}
    for line in (line for line in lines if not line.endswith(" --help")):
        command: Any = anaphora
        words = shlex.split(line)
        while hasattr(command, "get_command") and words:
            found = command.get_command(anaphora.make_context("anaphora", [*words]), words[0])
            if found is None:
                break
            command, words = found, words[1:]
        assert command is not anaphora, line
        command.make_context("anaphora", words)


def test_steps_of_systemd_make_a_home_that_the_unit_may_write() -> None:
    """The unit runs as the user that the page makes, with the venv and the home that it makes."""
    unit = (ROOT / "deploy" / "systemd" / "anaphora.service").read_text()
    section = PAGE.partition("## systemd\n")[2].partition("\n## ")[0]
    user, home = "anaphora", "/srv/anaphora"
    for line in (f"User={user}", f"ReadWritePaths={home}", f"serve --home {home}"):
        assert line in unit
    steps = section.partition("```text\n")[2].partition("```")[0].splitlines()
    order = [
        steps.index(next(step for step in steps if step.startswith(start)))
        for start in (
            "useradd --system --user-group",
            "python3 -m venv /opt/anaphora",
            "/opt/anaphora/bin/pip install",
            f"/opt/anaphora/bin/anaphora init {home}",
            f"chown -R {user}:{user} {home}",
            "cp /opt/anaphora/share/anaphora/systemd/anaphora.service /etc/systemd/system/",
            "systemctl enable --now anaphora",
        )
    ]
    assert order == sorted(order)
    assert "ExecStart=/opt/anaphora/bin/anaphora serve" in unit
    assert "[Unit]" not in PAGE  # one unit


def test_metrics_have_their_names() -> None:
    metrics = DaemonMetrics()
    metrics.request("demo", "GET", "/healthz", 200, 0.1)
    families = {family.name for family in metrics._families(())}
    shown = set(re.findall(r"`(anaphora_daemon_\w+)", PAGE))
    assert {"anaphora_daemon_requests", "anaphora_daemon_request_seconds"} <= families
    assert {f"{name}_total" for name in families if "seconds" not in name} <= shown
