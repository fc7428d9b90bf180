"""`anaphora roundtrip`: recorded exchanges parsed and rendered again."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.rich import PATHS, REQUESTS

from anaphora import wire
from anaphora.cli.main import main
from anaphora.cli.translate import roundtrip

SHARED = Path(__file__).parents[3] / "shared" / "exchanges" / "exchanges.jsonl.gz"

GOOD: dict[str, Any] = {
    "id": "good",
    "wire": "anthropic",
    "status": 200,
    "stream": False,
    "request": json.dumps(
        {
            "model": "claude-sonnet-4-5",
            "max_tokens": 5,
            "messages": [{"role": "user", "content": "hi"}],
        }
    ),
    "response": json.dumps(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "content": [{"type": "text", "text": "hello"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 3, "output_tokens": 1},
        }
    ),
}


def write(folder: Path, *rows: dict[str, Any], name: str = "x.jsonl") -> str:
    file = folder / name
    text = "\n".join(json.dumps(row) for row in rows).encode()
    file.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return str(file)


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_good_exchange(tmp_path: Path, name: str) -> None:
    run = CliRunner().invoke(roundtrip, [write(tmp_path, GOOD, name=name)])
    assert run.exit_code == 0, run.output
    assert "anthropic          1       1             1     1       0" in run.output
    assert "text content is a list with one text block" in run.output


def test_failures_are_named_and_exit_1(tmp_path: Path) -> None:
    rows = [
        {**GOOD, "id": "no-request", "request": '{"model":"m"}'},
        {**GOOD, "id": "no-answer", "response": '{"type":"message"}'},
        {**GOOD, "id": "elsewhere", "wire": "carrier-pigeon"},
    ]
    run = CliRunner().invoke(roundtrip, [write(tmp_path, *rows)])
    assert run.exit_code == 1
    assert "no-request: request not read: $.messages: is missing" in run.output
    assert "no-answer: response not read: $.content: is missing" in run.output
    assert "carrier-pigeon (1)" in run.output


def test_json_output(tmp_path: Path) -> None:
    run = CliRunner().invoke(roundtrip, ["--json", write(tmp_path, GOOD)])
    (outcome,) = json.loads(run.output)["outcomes"]
    assert outcome["id"] == "good"
    assert not outcome["changed"]


def test_broken_line_is_named_and_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, GOOD, {"id": "x"}, {**GOOD, "id": "last"})
    assert main(["roundtrip", "--json", file]) == 1
    out, err = capsys.readouterr()
    assert f"{file}:2: " in err
    assert [outcome["id"] for outcome in json.loads(out)["outcomes"]] == ["good", "last"]


def test_truncated_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(write(tmp_path, *[GOOD] * 50, name="x.jsonl.gz"))
    file.write_bytes(file.read_bytes()[:-20])
    other = write(tmp_path, {**GOOD, "id": "other"}, name="y.jsonl")
    assert main(["roundtrip", "--json", str(file), other]) == 1
    out, err = capsys.readouterr()
    assert f"{file}: the file is cut off" in err
    assert json.loads(out)["outcomes"][-1]["id"] == "other"


def test_unreadable_input_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["roundtrip", write(tmp_path, {"id": "x"})]) == 2
    assert "x.jsonl:1: " in capsys.readouterr().err


#: Bodies that some proxy put in place of an answer.
NO_ANSWERS = [
    "",
    "<html>Bad gateway</html>",
    "upstream timed out",
    "[1",
    "5",
    '"text"',
    "null",
    "[]",
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [200, 502])
@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_invalid_response_is_reported_and_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, status: int, stream: bool
) -> None:
    request = json.dumps(REQUESTS[name])
    odd = {"wire": name, "status": status, "stream": stream, "request": request}
    odd["path"] = PATHS.get(name, "")
    rows = [{**odd, "id": str(at), "response": body} for at, body in enumerate(NO_ANSWERS)]
    assert main(["roundtrip", "--json", write(tmp_path, *rows, GOOD)]) == 1
    outcomes = json.loads(capsys.readouterr().out)["outcomes"]
    assert len(outcomes) == len(rows) + 1
    assert all(each["unreadable"] or each["lost"] for each in outcomes[:-1])
    assert outcomes[-1]["id"] == "good"
    assert not outcomes[-1]["unreadable"]


def test_invalid_request_is_reported(tmp_path: Path) -> None:
    rows = [{**GOOD, "id": str(at), "request": body} for at, body in enumerate(NO_ANSWERS)]
    run = CliRunner().invoke(roundtrip, ["--json", write(tmp_path, *rows, GOOD)])
    assert run.exit_code == 1
    assert all(each["unparsed"] for each in json.loads(run.output)["outcomes"][:-1])


@pytest.mark.parametrize("name", sorted(wire.WIRES))
def test_every_shared_exchange_keeps_its_meaning(name: str) -> None:
    if not SHARED.exists():
        pytest.skip(f"no recorded exchanges beside the repository ({SHARED})")
    run = CliRunner().invoke(roundtrip, ["--wire", name, str(SHARED)])
    assert run.exit_code == (2 if "no exchanges" in run.output else 0), run.output
