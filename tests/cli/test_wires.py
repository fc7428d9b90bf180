"""`anaphora wires`: providers and their wires."""

from __future__ import annotations

import json

from click.testing import CliRunner

from anaphora import catalog, wire
from anaphora.cli.models import wires


def test_every_row_is_listed() -> None:
    run = CliRunner().invoke(wires)
    assert run.exit_code == 0
    listed = [line.split()[0] for line in run.stdout.splitlines()[1:] if not line.startswith(" ")]
    assert listed == [row.name for row in catalog.dialects().rows]
    for name in listed:
        assert wire.get(name)


def test_pattern() -> None:
    run = CliRunner().invoke(wires, ["deepseek/"])
    assert {line.split("/")[0] for line in run.stdout.splitlines()[1:]} == {"deepseek"}


def test_json_output() -> None:
    run = CliRunner().invoke(wires, ["deepseek/openai_chat", "--json"])
    (row,) = json.loads(run.stdout)
    assert row["base_url"] == "https://api.deepseek.com"
    assert row["source"]


def test_no_match() -> None:
    run = CliRunner().invoke(wires, ["carrier-pigeon"])
    assert run.exit_code == 1
    assert "carrier-pigeon" in run.stderr
