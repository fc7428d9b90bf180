"""Programs of the clouds through `anaphora watch`, `record` and `replay`: signed again by their own
keys, and no secret in what is written."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import cloud_agent
from support.emulated_client import AT_ONCE
from support.signed_emulator import signed_emulator

from anaphora.cli.main import main
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.server import Emulator

ACCESS, SECRET = "AKIACANARY0000000000", "canary/secret+9aF3xLq8ZpQ7"
BEARER, AZURE = "ABSKcanary9aF3xLq8ZpQ7", "canary-azure-9aF3xLq8ZpQ7"
AGENT = (sys.executable, cloud_agent.__file__)


@pytest.fixture(scope="module")
def emu() -> Iterator[Emulator]:
    with signed_emulator(EmulatorOptions(latency=AT_ONCE), ACCESS, SECRET) as running:
        yield running


@pytest.fixture(autouse=True)
def variables(emu: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_", "ANTHROPIC_", "OPENAI_", "GOOGLE_")):
            monkeypatch.delenv(name)
    emu.reset()
    for name, value in {
        "HOME": str(tmp_path),
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": emu.url,
        "AZURE_OPENAI_ENDPOINT": emu.url,
        "AZURE_OPENAI_API_KEY": AZURE,
    }.items():
        monkeypatch.setenv(name, value)


def written(folder: Path) -> str:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return "".join(file.read_bytes().decode("utf-8", "replace") for file in files)


@pytest.mark.long
def test_recorded_and_replayed(
    emu: Emulator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """By boto3; the replay has neither keys nor a region."""
    command = ("--", *AGENT, "converse-stream", "invoke")
    folder = tmp_path / "recordings"
    assert main(["record", "--dir", str(folder), *command]) == 0
    recorded = capfd.readouterr()
    assert len(emu.requests()) == 4
    for secret in ("canary", ACCESS, "Signature="):
        assert secret not in written(folder) + recorded.err
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "DEFAULT_REGION"):
        monkeypatch.delenv(f"AWS_{name}")
    assert main(["replay", "--dir", str(folder), *command]) == 0
    replayed = capfd.readouterr()
    assert replayed.out == recorded.out
    assert "4 exchanges replayed" in replayed.err
    assert len(emu.requests()) == 4


@pytest.mark.parametrize("bearer", [False, True])
@pytest.mark.long
def test_watched_and_nothing_shows_a_secret(
    emu: Emulator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    bearer: bool,
) -> None:
    if bearer:
        monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", BEARER)
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    made = tmp_path / "made"
    made.mkdir()
    log = made / "calls.jsonl"
    options = ["--json", "--log", str(log), "--html", str(made / "report.html"), "--fix"]
    options += ["--record", str(made / "recordings"), "--audit", str(made / "audit")]
    assert main(["watch", *options, "--", *AGENT, "converse-unmarked"]) == 0
    shown = capfd.readouterr()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    calls = [line for line in lines if line["type"] == "call"]
    assert [call["kind"] for call in calls] == ["judged"] * 4
    assert any(call["placed"] for call in calls)
    assert calls[-1]["usage"]["read"] > 2000
    assert (BEARER in str(os.environ)) is bearer
    assert "canary" not in (shown.out + shown.err + written(made)).lower()
    assert ("is kept from the command" in shown.err) is bearer


def test_credentials_of_the_command_line_sign(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`env NAME=VALUE COMMAND` sets the program's environment, not that of the proxy."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOTHER00000000000")
    given = (f"AWS_ACCESS_KEY_ID={ACCESS}", f"AWS_SECRET_ACCESS_KEY={SECRET}")
    assert main(["watch", "--", "env", *given, *AGENT, "converse"]) == 0
    assert {call["status"] for call in emu.requests()} == {200}


def test_what_programs_elsewhere_must_unset(emu: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    from anaphora.proxy.programs import exports, unset_variables, upstreams_from
    from anaphora.proxy.routes import default_routes
    from anaphora.proxy.server import running

    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", BEARER)
    with running(default_routes(upstreams_from(os.environ))) as proxy:
        assert unset_variables(proxy, os.environ) == ["AWS_BEARER_TOKEN_BEDROCK"]
        assert exports(proxy, os.environ)["AZURE_OPENAI_ENDPOINT"] == f"{proxy.url}/azure"


def test_unreadable_files_of_aws_stop_no_other_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text("not a file of profiles")
    assert main(["watch", "--", sys.executable, "-c", ""]) == 0
