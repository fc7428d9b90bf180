"""SPEC E8: every exit code of the command line, where a user meets it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.audit_logs import written
from support.recordings import recorded_folder

from anaphora.cli.main import main
from anaphora.replay.signing import SigningKey

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def recordings(folder: Path) -> Path:
    recorded_folder(folder / "recordings")
    return folder / "recordings"


def edited(path: Path, old: bytes, new: bytes) -> Path:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    return path


def valid(folder: Path) -> list[str]:
    return ["replay", "verify", str(recordings(folder))]


def broken_prefix(folder: Path) -> list[str]:
    return ["explain", *(str(EXAMPLES / name) for name in ("turn-1.json", "turn-2-next-day.json"))]


def missing_folder(folder: Path) -> list[str]:
    return ["replay", "verify", str(folder / "missing")]


def other_signature(folder: Path) -> list[str]:
    path = recordings(folder)
    key = SigningKey.generate(folder / "signing.key")
    other = SigningKey.generate(folder / "other.key")
    assert key.public != other.public
    assert main(["replay", "sign", str(path), "--key", str(folder / "signing.key")]) == 0
    return ["replay", "verify", str(path), "--signed-by", other.public]


def cut_tail(folder: Path) -> list[str]:
    log, anchor = folder / "audit", folder / "anchor"
    written(log, anchor=anchor)
    segment = log / "000001.jsonl"
    segment.write_bytes(b"".join(segment.read_bytes().splitlines(keepends=True)[:-2]))
    return ["audit", "verify", str(log), "--anchor", str(anchor)]


def newer_schema(folder: Path) -> list[str]:
    path = recordings(folder)
    edited(path / "INDEX.toml", b"schema_version = 1", b"schema_version = 2")
    return ["replay", "verify", str(path)]


def changed_fixture(folder: Path) -> list[str]:
    path = recordings(folder)
    edited(next(path.glob("*.json")), b'"altered": false', b'"altered": true')
    return ["replay", "verify", str(path)]


def changed_row(folder: Path) -> list[str]:
    edited(written(folder / "audit") / "000001.jsonl", b"req-1", b"req-9")
    return ["audit", "verify", str(folder / "audit")]


def missing_key(folder: Path) -> list[str]:
    return ["ask", "--model", "claude-sonnet-5-5", "Hello?"]


def own_code(folder: Path) -> list[str]:
    return ["watch", "--", sys.executable, "-c", "raise SystemExit(9)"]


def own_signal(folder: Path) -> list[str]:
    return ["watch", "--", shutil.which("sh") or "sh", "-c", "kill -TERM $$"]


def unknown_command(folder: Path) -> list[str]:
    return ["record", "--dir", str(folder / "recordings"), "--", "no-such-command-here"]


@pytest.mark.parametrize(
    "arguments, code",
    [
        (valid, 0),
        (broken_prefix, 1),
        (missing_folder, 2),
        (unknown_command, 2),
        (other_signature, 3),
        (cut_tail, 3),
        (newer_schema, 4),
        (changed_fixture, 5),
        (changed_row, 6),
        (missing_key, 7),
        (own_code, 9),
        (own_signal, 128 + 15),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_e8_exit_codes(
    arguments: Callable[[Path], list[str]],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert main(arguments(tmp_path)) == code
