"""SPEC E7 and E9: the audit envelope of a call, and the version of every row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.audit_logs import written

from anaphora import Client, PromptBlock, PromptIR
from anaphora.audit import AuditLog, rows
from anaphora.audit.envelope import decode
from anaphora.cli.main import main
from anaphora.client.session.preview import PrefixWarning
from anaphora.emulator.server import Emulator
from anaphora.errors import OtherSchema

E7 = "adapter model prompt_hash raw_hash usage at first seconds outcome"
E9 = "schema_version app request_id node epoch seq provider cost_nano_usd notices cause lost"
E9_BLOCK = "label kind tokens marker ttl digest"


@pytest.mark.breaks_prefix(reason="the row of a break has every field")
def test_e7_e9_a_row_has_every_field(emu: Emulator, tmp_path: Path) -> None:
    environ = {"ANTHROPIC_API_KEY": "any", "ANTHROPIC_BASE_URL": emu.url}
    with (
        AuditLog(tmp_path / "audit", app="shop", node="n1") as log,
        Client.from_env(environ, audit=log) as client,
    ):
        days = iter(("Monday", "Tuesday"))

        def prompt() -> PromptIR:
            rules = PromptBlock("rules", f"{next(days)} " + "You are terse. " * 1500)
            return PromptIR(system_blocks=(rules,))

        chat = client.session(model="claude-sonnet-4-5", prompt=prompt)
        chat.send("Hello?").result()
        with pytest.warns(PrefixWarning):
            chat.send("Hello?").result()
    lines = (tmp_path / "audit" / "000001.jsonl").read_bytes().splitlines()
    row = json.loads(lines[-2])
    left_out = {"adapter", "outcome"}  # the defaults `client` and `ok`
    assert {*E7.split(), *E9.split()} - set(row) <= left_out
    content = decode(lines[-2]).content
    assert (content.adapter, content.outcome) == ("client", "ok")  # type: ignore[union-attr]
    assert (row["cause"], row["lost"] > 1000) == ("system_changed", True)
    block = next(block for block in row["blocks"] if block.get("marker"))
    assert set(E9_BLOCK.split()) <= set(block)


def test_e9_every_row_has_its_schema_version_and_a_newer_one_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "audit", 2)
    assert {row.schema_version for row in rows(path)} == {1}
    file = path / "000001.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"schema_version":1', b'"schema_version":2'))
    with pytest.raises(OtherSchema, match="schema_version 2 is newer than 1"):
        list(rows(path))
    for command in ("verify", "show", "report"):
        assert main(["audit", command, str(path)]) == 4
