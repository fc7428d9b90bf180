"""`anaphora lint`: text and JSON output, without keys."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from click.testing import CliRunner, Result
from support.planted import GUIDE, PLACES, body, spec

from anaphora.cli.common import anaphora
from anaphora.cli.main import main

Json = dict[str, Any]
Run: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]

CLOCK = "You are kind.\nThe current time is 09:41:07.\n" + GUIDE


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own for each test."""
    monkeypatch.chdir(tmp_path)


def lint(*arguments: str) -> Result:
    return CliRunner().invoke(anaphora, ["lint", *arguments])


def wrote(name: str, text: str | bytes) -> str:
    Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
    return name


def clean() -> Json:
    return {**spec(), "system": ["You are a careful agent.", GUIDE]}


def test_clean_prompt() -> None:
    done = lint(wrote("p.md", "You are kind.\n" + GUIDE))
    assert (done.exit_code, done.stdout) == (0, "nothing found\n")


def test_finding_has_place_rule_reason_and_fix(run: Run, tmp_path: Path) -> None:
    wrote("p.md", CLOCK)
    done = run("lint", str(tmp_path / "p.md"), "--model", "claude-sonnet-4-5")
    assert done.returncode == 1
    assert "p.md:2:21: warning [volatile-clock] a clock time in a stable block" in done.stdout
    assert "The current time is 09:41:07." in done.stdout
    assert "per 1,000 calls" in done.stdout
    assert "fix: move it to the last message" in done.stdout


def test_without_a_model_only_tokens_are_shown() -> None:
    done = lint(wrote("p.md", CLOCK))
    assert "tokens after it" in done.stdout
    assert "$" not in done.stdout


@pytest.mark.parametrize("wire", ["anthropic", "openai_chat", "openai_responses"])
def test_requests_of_every_wire_are_recognised(wire: str) -> None:
    place = PLACES[wire]
    done = lint(wrote("a.json", body(place, spec())))
    assert done.exit_code == 1
    assert "[volatile-date]" in done.stdout
    assert lint(wrote("b.json", body(place, clean()))).exit_code == 0


def test_model_in_the_path() -> None:
    file = wrote("a.json", body(PLACES["gemini"], spec()))
    assert main(["lint", file]) == 2
    assert lint(file, "--model", "gemini-2.5-pro").exit_code == 1


def test_json_output() -> None:
    done = lint("--json", wrote("p.md", CLOCK))
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["rule"], finding["severity"]) == ("volatile-clock", "warning")
    assert (finding["file"], finding["line"], finding["column"]) == ("p.md", 2, 21)
    assert {"excerpt", "why", "fix", "tokens", "cost_usd"} <= set(finding)


def test_notes_do_not_count() -> None:
    file = wrote("p.md", "Date: 2026-11-15\n" + GUIDE)
    done = lint(file)
    assert (done.exit_code, done.stdout) == (0, "1 note (--json has the notes)\n")
    (note,) = json.loads(lint(file, "--json").stdout)["findings"]
    assert note["severity"] == "note"


def test_samples_show_what_differs() -> None:
    place = PLACES["openai_chat"]
    other = clean()
    other["tools"].reverse()
    files = wrote("a.json", body(place, clean())), wrote("b.json", body(place, other))
    assert lint(*files).exit_code == 0
    done = lint("--samples", *files)
    assert done.exit_code == 1
    assert "error [unordered-list]" in done.stdout
    assert lint("--samples", files[0]).exit_code != 0


def test_lines_of_a_log_are_samples() -> None:
    place = PLACES["openai_chat"]
    keyed = [{**clean(), "params": {"prompt_cache_key": key}} for key in ("one", "two")]
    lines = b"\n".join(body(place, prompt) for prompt in keyed)
    done = lint("--samples", wrote("log.jsonl", lines))
    assert done.exit_code == 1
    assert "[cache-key-changes]" in done.stdout


# ── Suppressions ─────────────────────────────────────────────────────────────────────────────────


def test_suppressions_in_the_text() -> None:
    excused = (
        "You are kind. <!-- anaphora: ignore[volatile-clock] frozen -->\nIt is 09:41.\n" + GUIDE
    )
    done = lint(wrote("p.md", excused))
    assert (done.exit_code, done.stdout) == (0, "nothing found, 1 suppressed\n")


# ── Markers ──────────────────────────────────────────────────────────────────────────────────────

MARKER = {"type": "ephemeral"}


def marked(text: str, marker: Json | None = MARKER) -> Json:
    return {"type": "text", "text": text} | ({} if marker is None else {"cache_control": marker})


def request(*messages: tuple[str, Json], system: Json | None = None, **fields: Any) -> str:
    sent = [{"role": role, "content": [block]} for role, block in messages]
    data = {"model": "claude-opus-4-8", "max_tokens": 9, "messages": sent, **fields}
    return json.dumps(data | {"system": [system or marked(GUIDE)]})


def marker_findings(*arguments: str) -> list[Json]:
    found = json.loads(lint("--json", *arguments).stdout)["findings"]
    return [finding for finding in found if finding["rule"] == "wasted-marker"]


@pytest.mark.parametrize("question", ["Go.", GUIDE])
def test_marker_on_a_thinking_block_is_found_in_requests_of_any_length(question: str) -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s", "cache_control": MARKER}
    turns = [("user", marked(question, None)), ("assistant", thinking), ("user", marked("And?"))]
    (found,) = marker_findings(wrote("a.json", request(*turns)))
    assert (found["path"], found["severity"]) == ("messages[1].content[0]", "error")
    assert "a thinking block may not carry a marker" in found["why"]


@pytest.mark.parametrize("automatic", [False, True])
def test_marker_on_a_system_message_at_the_end_is_found(automatic: bool) -> None:
    note = ("system", marked("9 tokens left", None if automatic else MARKER))
    fields: Json = {"cache_control": MARKER} if automatic else {}
    (found,) = marker_findings(
        wrote("a.json", request(("user", marked("Go.", None)), note, **fields))
    )
    assert (found["path"], found["severity"]) == ("messages[1].content[0]", "warning")
    assert found["why"].startswith("it is on a system message at the end of the messages")
    followed = [("user", marked("Go.", None)), note, ("assistant", marked("Yes.", None))]
    if not automatic:
        assert marker_findings(wrote("b.json", request(*followed))) == []


def test_marker_on_what_differs_between_samples() -> None:
    def samples(system: Json) -> list[str]:
        texts = ("What is a cat?", "What is a dog?")
        return [
            wrote(f"{index}.json", request(("user", marked(text)), system=system))
            for index, text in enumerate(texts)
        ]

    (alone,) = marker_findings("--samples", *samples(marked(GUIDE, None)))
    assert (alone["path"], alone["severity"]) == ("messages[0].content[0]", "warning")
    assert "at character 10 of messages[0].content[0].text" in alone["why"]
    assert alone["fix"] == "put a marker at the end of the shared prefix (system[0])"
    assert float(alone["cost_usd"]) > 0
    # With a marker on what they share, the other one may serve later turns.
    (behind,) = marker_findings("--samples", *samples(marked(GUIDE)))
    assert (behind["severity"], behind["path"]) == ("note", "messages[0].content[0]")
    same = [wrote(f"{name}.json", request(("user", marked("Go.")))) for name in "ab"]
    assert marker_findings("--samples", *same) == []


# ── Bad input, secrets ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name, data, message",
    [
        ("a.json", b"{", "not JSON"),
        ("a.json", b'{"a": 1}', "not a request"),
        ("a.md", b"\xff\xfe\x00", "neither a request nor text"),
        ("a.jsonl", b'{"model": 1, "input": "x"}', "a.jsonl:1"),
    ],
)
def test_unreadable_input_is_named(
    name: str, data: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lint", wrote(name, data)]) == 2
    report = capsys.readouterr().err
    assert message in report
    assert name in report


def test_headers_and_keys_are_never_shown() -> None:
    canary = "CANARY7f3d"
    place = PLACES["openai_chat"]
    prompt = clean()
    secret = f"api_key={canary}abcdefgh It is 09:41. Authorization: Bearer {canary}-abcdefghijk"
    prompt["system"][0] = secret
    prompt["params"] = {"prompt_cache_key": f"{canary}-3f9a21c4b7", "user": canary}
    other = {**prompt, "params": {"prompt_cache_key": f"{canary}-b"}}
    request = json.loads(body(place, prompt))
    headers = {"authorization": f"Bearer {canary}"}
    answer: Json = {"choices": [], "usage": {}}
    wrapped = {"request": request, "response": answer, "headers": headers}
    files = [
        wrote("p.md", secret),
        wrote("a.json", json.dumps(wrapped)),
        wrote("b.json", body(place, other)),
    ]
    for options in ((), ("--json",)):
        for done in (lint(*files, *options), lint("--samples", *files[1:], *options)):
            assert done.exit_code == 1
            assert "volatile-clock" in done.stdout
            assert canary not in done.output


def test_model_without_price_is_named() -> None:
    file = wrote("p.md", CLOCK)
    chosen = ("--provider", "anthropic", "--model", "claude-fable-5-2")
    assert "no price is known for anthropic/claude-fable-5-2" in lint(file, *chosen).stdout
    assert json.loads(lint(file, *chosen, "--json").stdout)["unpriced"] == [
        "anthropic/claude-fable-5-2"
    ]
    assert "no price" not in lint(file, "--model", "claude-sonnet-4-5").stdout
