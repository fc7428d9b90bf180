"""Commands over files with many records: one that cannot be read is reported, the others are used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anaphora.cli.main import main

REQUEST: dict[str, Any] = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 5,
    "system": "It is 2026-01-01 12:00:05.",
    "messages": [{"role": "user", "content": "hi " * 2000}],
}
ANSWER: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "hello"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 1},
}
GOOD: dict[str, Any] = {
    "path": "/v1/messages",
    "timestamp": "2026-01-01T00:00:00Z",
    "request": REQUEST,
    "response": ANSWER,
}
#: Records with something wrong, one for each part.
ODD: list[Any] = [
    {**GOOD, "response": "<html>Bad gateway</html>"},
    {**GOOD, "response": "[1"},
    {**GOOD, "response": [1]},
    {**GOOD, "response": 5},
    {**GOOD, "response": {**ANSWER, "usage": {"input_tokens": "many"}}},
    {**GOOD, "response": {**ANSWER, "content": 7}},
    {**GOOD, "request": "no JSON"},
    {**GOOD, "request": {**REQUEST, "messages": 7}},
    {**GOOD, "request": {**REQUEST, "messages": [{"role": "nobody", "content": "x"}]}},
    {**GOOD, "request": {**REQUEST, "model": 7}},
    {**GOOD, "url": "http://[::1"},
    {**GOOD, "timestamp": "yesterday"},
    {**GOOD, "timestamp": 1e300},
    {**GOOD, "duration": "long"},
    {**GOOD, "wire": "carrier-pigeon"},
    {**GOOD, "provider": 7},
    [GOOD],
    "text",
    None,
]


def write(folder: Path, *records: Any) -> str:
    file = folder / "log.jsonl"
    lines = [json.dumps(record) for record in records]
    file.write_text("\n".join([*lines[:-1], "{not JSON", lines[-1]]))
    return str(file)


COMMANDS = [("simulate", "--json"), ("explain", "--json"), ("lint", "--json")]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("odd", [[each] for each in ODD] + [ODD], ids=range(len(ODD) + 1))
def test_unreadable_record_does_not_end_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], odd: list[Any]
) -> None:
    file = write(tmp_path, GOOD, *odd, GOOD)
    code = main([*command, file])
    out, err = capsys.readouterr()
    assert code in (0, 1), err
    report = json.loads(out)
    assert "not JSON" in err + out or f"{file}:{len(odd) + 2}" in err + out
    if command[0] == "explain":
        assert len(report["turns"]) >= 2
    if command[0] == "lint":
        found = {finding["file"] for finding in report["findings"]}
        assert {f"{file}:1", f"{file}:{len(odd) + 3}"} <= found
