"""docs/daemon/operating.md: its settings and commands are valid, its defaults are the code's."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path

import msgspec
import pytest

from anaphora.cli.common import anaphora
from anaphora.client.config import ClientConfig
from anaphora.daemon.home.config import DaemonConfig, daemon_config
from anaphora.daemon.monitoring import DaemonMetrics

PAGE = (Path(__file__).parents[2] / "docs" / "daemon" / "operating.md").read_text()


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


def test_commands_of_the_unit_exist() -> None:
    (text,) = re.findall(r"```text\n(\[Unit\].*?)```", PAGE, re.DOTALL)
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    service = unit["Service"]
    for command in (service["ExecStartPre"], service["ExecStart"]):
        program, name, *arguments = shlex.split(command)
        assert program.endswith("/anaphora")
        found = anaphora.get_command(anaphora.make_context("anaphora", [name]), name)
        assert found is not None
        found.make_context(name, arguments)
    seconds = int(service["TimeoutStopSec"])
    assert seconds > DaemonConfig().drain_timeout


def test_metrics_have_their_names() -> None:
    metrics = DaemonMetrics()
    metrics.request("demo", "GET", "/healthz", 200, 0.1)
    families = {family.name for family in metrics._families(())}
    shown = set(re.findall(r"`(anaphora_daemon_\w+)", PAGE))
    assert {"anaphora_daemon_requests", "anaphora_daemon_request_seconds"} <= families
    assert {f"{name}_total" for name in families if "seconds" not in name} <= shown
