"""`anaphora translate`: a request converted to another wire, with notices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.tables import each_row

from anaphora.cli.main import main
from anaphora.cli.translate import command
from anaphora.errors import InvalidRequest
from anaphora.wire import WIRES, detect

ANTHROPIC = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 64,
    "system": [{"type": "text", "text": "Be terse.", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "look", "input_schema": {"type": "object", "properties": {}}}],
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"b": 1, "a": 2}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "seen"}],
        },
    ],
}


def translate(tmp_path: Path, request: dict[str, Any], *options: str) -> Any:
    file = tmp_path / "request.json"
    file.write_text(json.dumps(request))
    return CliRunner().invoke(command, [*options, str(file)])


def test_anthropic_to_chat(tmp_path: Path) -> None:
    run = translate(tmp_path, ANTHROPIC, "--to", "openai_chat", "--model", "gpt-5.6")
    assert run.exit_code == 0, run.output
    body = json.loads(run.stdout)
    assert body["model"] == "gpt-5.6"
    assert body["messages"][0]["role"] == "developer"
    assert body["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"b": 1, "a": 2}'
    assert body["messages"][3]["role"] == "tool"
    assert "[thinking_left_out]" in run.stderr
    assert "[ttl_changed]" in run.stderr


def test_round_trip(tmp_path: Path) -> None:
    plain = json.loads(json.dumps(ANTHROPIC))
    del plain["messages"][1]["content"][0]
    there = translate(tmp_path, plain, "--to", "openai_responses", "--model", "gpt-5.6").stdout
    back = translate(
        tmp_path, json.loads(there), "--to", "anthropic", "--model", "claude-sonnet-4-5"
    )
    assert back.exit_code == 0, back.output
    body = json.loads(back.stdout)
    assert body["messages"][1]["content"][0]["input"] == {"b": 1, "a": 2}
    assert body["messages"][2]["content"][0]["tool_use_id"] == "t1"
    assert body["system"][0]["text"] == "Be terse."


def test_json_output(tmp_path: Path) -> None:
    run = translate(tmp_path, ANTHROPIC, "--to", "anthropic", "--plan", "--json")
    fields = json.loads(run.stdout)
    assert (fields["method"], fields["path"]) == ("POST", "/v1/messages")
    assert "cache_control" in json.dumps(fields["body"])
    assert fields["notices"] == []


def test_required_output_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = {"model": "gpt-5", "messages": [{"role": "system", "content": "x"}]}
    request["messages"].append({"role": "user", "content": "hi"})  # type: ignore[attr-defined]
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(request))
    requested = ["translate", "--to", "anthropic", "--model", "claude-opus-5-5", str(file)]
    assert main(requested) == 2
    assert "params.max_tokens" in capsys.readouterr().err
    assert main([*requested, "--max-tokens", "100"]) == 0
    assert json.loads(capsys.readouterr().out)["max_tokens"] == 100


@each_row(
    "request_, wire",
    [
        (ANTHROPIC, "anthropic"),
        ({"model": "m", "input": "hi"}, "openai_responses"),
        ({"model": "m", "messages": [{"role": "developer", "content": "x"}]}, "openai_chat"),
        ({"model": "m", "messages": [{"role": "system", "content": "x"}]}, "openai_chat"),
        ({"model": "m", "messages": [], "n": 2}, "openai_chat"),
        (
            {"model": "m", "messages": [], "tools": [{"type": "function", "function": {}}]},
            "openai_chat",
        ),
        ({"model": "m", "messages": [], "system": "x"}, "anthropic"),
    ],
)
def test_wire_is_detected(request_: dict[str, Any], wire: str) -> None:
    assert detect(json.dumps(request_).encode()) == wire


@each_row(
    "body, message",
    [
        (b"nonsense", "not JSON"),
        (b"[]", "a JSON object"),
        (b"{}", "neither `messages` nor `input`"),
        (b'{"messages":[{"role":"user","content":"hi"}]}', "--from"),
        (b'{"messages":[],"system":"x","n":1}', "fields of both"),
    ],
)
def test_ambiguous_wire_is_an_error(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        detect(body)


def test_unknown_wire_is_a_usage_error(tmp_path: Path) -> None:
    run = translate(tmp_path, ANTHROPIC, "--to", "carrier-pigeon")
    assert run.exit_code == 2
    assert ", ".join(sorted(WIRES)) in run.output
    assert "anaphora wires" in run.output


def test_similar_name_is_suggested(tmp_path: Path) -> None:
    run = translate(tmp_path, ANTHROPIC, "--to", "depseek")
    assert "Did you mean deepseek?" in run.output


def test_request_in_a_dialect(tmp_path: Path) -> None:
    requested = {**ANTHROPIC, "thinking": {"type": "enabled", "budget_tokens": 2048}}
    run = translate(tmp_path, requested, "--to", "deepseek", "--model", "deepseek-v4-pro", "--json")
    assert run.exit_code == 0, run.output
    fields = json.loads(run.stdout)
    assert fields["path"] == "/chat/completions"
    assert fields["body"]["thinking"] == {"type": "enabled"}
    assert fields["body"]["messages"][0]["role"] == "system"


def test_model_in_the_path(tmp_path: Path) -> None:
    requested = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    run = translate(tmp_path, requested, "--to", "openai_chat")
    assert run.exit_code != 0
    assert "--model" in str(run.exception)
    path = "/v1beta/models/gemini-2.5-flash:generateContent"
    run = translate(tmp_path, requested, "--to", "openai_chat", "--path", path)
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["model"] == "gemini-2.5-flash"


def test_plan_follows_the_rules_of_the_wire(tmp_path: Path) -> None:
    # MiniMax takes markers on its Anthropic surface, and caches by itself on the other.
    marker = {"cache_control": {"type": "ephemeral"}}
    long = {**ANTHROPIC, "system": [{"type": "text", "text": "Be terse. " * 2_000, **marker}]}
    requested = ("--model", "MiniMax-M2.7", "--plan")
    marked = translate(tmp_path, long, "--to", "minimax/anthropic", *requested)
    plain = translate(tmp_path, long, "--to", "minimax/openai_chat", *requested)
    assert (marked.exit_code, plain.exit_code) == (0, 0)
    assert '"cache_control"' in marked.stdout
    assert '"cache_control"' not in plain.stdout
