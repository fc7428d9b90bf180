"""`anaphora rpc`: its options. What it relays is tested in tests/spec/test_d_streaming.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anaphora.cli.main import main


def test_schema_describes_every_method(capsys: pytest.CaptureFixture[str]) -> None:
    """D7."""
    assert main(["rpc", "--schema"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["methods"]["llm.complete"]) == {"params", "result"}
    assert "llm.delta" in document["notifications"]


@pytest.mark.parametrize("options, message", [
    ([], "either --stdio or --schema"),
    (["--stdio", "--schema"], "either --stdio or --schema"),
    (["--stdio", "--app", "a"], "--app and --token-file need each other"),
    (["--stdio", "--token-file", __file__], "--app and --token-file need each other"),
    (["--stdio", "--app", "a", "--token-file", __file__], "holds no token"),
    (["--stdio", "--token", "ana_x"], "a key is never an argument"),
    (["--stdio"], "is not a daemon's home"),
])  # fmt: skip
def test_options_that_do_not_fit_are_exit_code_2(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rpc", "--home", str(tmp_path), *options]) == 2
    assert message in capsys.readouterr().err
