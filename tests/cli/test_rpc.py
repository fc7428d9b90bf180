"""`anaphora rpc`: its options. What it relays is tested in tests/spec/test_d_streaming.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from anaphora.cli.main import main


@pytest.mark.parametrize("options, message", [
    ([], "--stdio"),
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
