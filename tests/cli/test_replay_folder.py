"""`anaphora replay verify|list|show|accept-rules|sign`."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.emulated_client import AT_ONCE
from support.recordings import key_of, recorded_folder, small_fixture

from anaphora import emulator
from anaphora.replay import FixtureStore
from anaphora.replay.fixture import FixturePiece
from anaphora.replay.signing import SigningKey

CONTROL = "\x1b[31mred\x07"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four answers, an error of another model, and one with control characters."""
    recorded_folder(tmp_path / "recordings")
    store = FixtureStore.open(tmp_path / "recordings")
    change = msgspec.structs.replace
    store.add(change(small_fixture("old"), model="n", status=429, recorded=1e9, raw_hash=""))
    pieces = (FixturePiece(0.1, CONTROL.encode()), FixturePiece(0.2, b"\xff"))
    store.add(change(small_fixture("control"), pieces=pieces, raw_hash=""))
    return tmp_path / "recordings"


def test_verify(run: Any, folder: Path) -> None:
    done = run("replay", "verify", str(folder))
    assert (done.returncode, done.stdout) == (0, f"{folder}: 6 fixtures, unchanged\n")
    report = json.loads(run("replay", "verify", "--json", str(folder)).stdout)
    assert (report["ok"], report["fixtures"], report["problems"]) == (True, 6, [])


def test_verify_names_what_an_interrupted_recording_left(run: Any, folder: Path) -> None:
    (folder / ".tmp-0123").touch()
    done = run("replay", "verify", str(folder))
    assert done.returncode == 0
    assert "1 file of an interrupted recording" in done.stdout


@pytest.mark.parametrize("command", ["verify", "list", "show", "accept-rules", "sign --key {key}"])
def test_missing_folder_is_2(run: Any, tmp_path: Path, command: str) -> None:
    name, *options = command.format(key=tmp_path / "key").split()
    words = [name, str(tmp_path / "none"), *options] + (["x"] if name == "show" else [])
    done = run("replay", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no such folder" in done.stderr


def test_folder_without_index_is_5(run: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    done = run("replay", "verify", str(tmp_path))
    assert done.returncode == 5
    assert "INDEX.toml" in done.stdout


def test_list(run: Any, folder: Path) -> None:
    done = run("replay", "list", str(folder))
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) == 7
    assert lines[5].split()[-3:] == ["429", "1", "5"]
    assert "2001-09-09" in lines[5]
    rows = json.loads(run("replay", "list", str(folder), "--json").stdout)
    found = [(row["status"], row["model"], row["key"]) for row in rows if row["model"] == "n"]
    assert found == [(429, "n", key_of("old"))]


def test_show(run: Any, folder: Path) -> None:
    done = run("replay", "show", str(folder), key_of("0")[:8])
    assert done.returncode == 0
    assert "answer 0" in done.stdout
    assert '{"model":"m"}' in done.stdout
    one = json.loads(run("replay", "show", str(folder), key_of("0"), "--json").stdout)
    assert one["response"] == [{"seconds": 0.5, "text": "answer 0"}]
    done = run("replay", "show", str(folder), key_of("control"))
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout


@pytest.mark.parametrize("name, reason", [("", "6 fixtures begin with it"), ("zz", "no such")])
def test_show_of_no_single_fixture_is_2(run: Any, folder: Path, name: str, reason: str) -> None:
    done = run("replay", "show", str(folder), name)
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr


def test_the_first_signature_makes_its_key(run: Any, folder: Path, tmp_path: Path) -> None:
    key = tmp_path / "replay.key"
    done = run("replay", "sign", str(folder), "--key", str(key))
    assert done.returncode == 0
    made, _, public = done.stderr.strip().rpartition(" ")
    assert made == f"anaphora: {key} has a new private key; its public key is"
    assert public.startswith("ed25519:")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert "PRIVATE" in key.read_text()
    again = run("replay", "sign", str(folder), "--key", str(key))
    assert (again.returncode, again.stderr) == (0, "")
    assert public in again.stdout
    done = run("replay", "verify", str(folder))
    assert "--signed-by KEY requires yours" in done.stdout
    done = run("replay", "verify", str(folder), "--signed-by", public)
    assert (done.returncode, "requires yours" in done.stdout) == (0, False)
    assert f"signed with {public}" in done.stdout
    # A change needs the key.
    (folder / "replay.toml").write_text("")
    assert run("replay", "accept-rules", str(folder)).returncode == 2
    assert run("replay", "accept-rules", str(folder), "--sign", str(key)).returncode == 0
    assert run("replay", "verify", str(folder), "--signed-by", public).returncode == 0
    for file in folder.iterdir():
        assert b"PRIVATE" not in file.read_bytes()


def test_private_key_in_the_folder_or_readable_by_others_is_2(
    run: Any, folder: Path, tmp_path: Path
) -> None:
    SigningKey.generate(folder / ".key")
    done = run("replay", "sign", str(folder), "--key", str(folder / ".key"))
    assert done.returncode == 2
    assert "must not be in the folder that it signs" in done.stderr
    key = tmp_path / "key"
    (folder / ".key").rename(key)
    os.chmod(key, 0o644)
    done = run("replay", "sign", str(folder), "--key", str(key))
    assert done.returncode == 2
    assert "chmod 600" in done.stderr


@pytest.mark.parametrize("content", [b"", b"\xff", b"-----BEGIN PRIVATE KEY-----\nx\n"])
def test_what_is_no_key_is_2(run: Any, folder: Path, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    file.chmod(0o600)
    assert run("replay", "sign", str(folder), "--key", str(file)).returncode == 2
    assert run("replay", "verify", str(folder), "--signed-by", str(file)).returncode == 2


def test_missing_cryptography_is_7(
    run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("replay", "sign", str(folder), "--key", str(tmp_path / "key"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = run("replay", "sign", str(folder), "--key", str(tmp_path / "key"))
    assert done.returncode == 7
    assert "pip install 'anaphora[sign]'" in done.stderr
    done = run("replay", "verify", str(folder))
    assert (done.returncode, "signature not checked" in done.stdout) == (0, True)


#: Asks the emulator through the proxy, by the variable that the SDKs read.
AGENT = """
import os, sys, urllib.request
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
body = b'{"model":"claude-sonnet-4-5","max_tokens":9,"messages":[{"role":"user","content":"Hi"}]}'
headers = {"content-type": "application/json", "x-api-key": "canary-0123456789",
           "anthropic-version": "2023-06-01"}
print(urllib.request.urlopen(urllib.request.Request(url, body, headers)).read().decode())
"""


def test_record_and_replay_a_command_with_a_signature(
    run: Any, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, key = tmp_path / "recordings", tmp_path / "replay.key"
    agent = ["--", sys.executable, "-c", AGENT]
    with emulator.running(emulator.EmulatorOptions(latency=AT_ONCE)) as emu:
        first = run(
            "record", "--dir", str(folder), "--sign", str(key), *agent, ANTHROPIC_BASE_URL=emu.url
        )
    assert first.returncode == 0, first.stderr
    public = SigningKey.read(key).public
    assert f"{key} has a new private key; its public key is {public}" in first.stderr
    answer = capfd.readouterr().out  # of the command itself
    replay = ["replay", "--dir", str(folder), "--signed-by", public, *agent]
    again = run(*replay)
    assert (again.returncode, capfd.readouterr().out) == (0, answer)
    assert answer
    for file in folder.iterdir():
        assert b"canary" not in file.read_bytes()
    (folder / "INDEX.toml.sig").unlink()
    unsigned = run(*replay)
    assert (unsigned.returncode, unsigned.stdout, capfd.readouterr().out) == (3, "", "")
    assert "is not signed" in unsigned.stderr
