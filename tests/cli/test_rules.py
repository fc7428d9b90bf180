"""`anaphora rules`: figures with sources, and bills that contradict them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from anaphora import catalog
from anaphora.analysis import rules_check
from anaphora.cli import terminal
from anaphora.cli.common import anaphora
from anaphora.cli.main import main

SHARED = Path(__file__).parents[3] / "shared"
SESSION = Path(__file__).parents[2] / "docs" / "examples" / "session.jsonl"

Json = dict[str, Any]


def rules(*arguments: object) -> Any:
    return CliRunner().invoke(anaphora, ["rules", *map(str, arguments)], catch_exceptions=False)


def conversation(reads: list[int], **changed: Any) -> Json:
    calls = [
        {"t": 1000.0 + at, "messages": 1, "usage": {"input": 3, "cache_read": read}}
        for at, read in enumerate(reads)
    ]
    whole = {
        "id": "talk",
        "provider": "openai",
        "model": "gpt-4o-2024-08-06",
        "messages": [{"role": "user", "content": "Hello?"}],
        "calls": calls,
    }
    return {**whole, **changed}


@pytest.fixture
def log(tmp_path: Path) -> Callable[..., Path]:
    def write(*lines: Json | str) -> Path:
        file = tmp_path / "log.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        file.write_text("\n".join(texts) + "\n", encoding="utf-8")
        return file

    return write


# ── check ────────────────────────────────────────────────────────────────────────────────────────


def test_contradicted_rule_is_named_with_an_example(log: Callable[..., Path]) -> None:
    file = log(conversation([1024, 1100, 1152, 1101]))
    ran = rules("check", file)
    assert ran.exit_code == 1
    text = " ".join(ran.stdout.split())
    assert "rule openai granule_tokens = 128 contradicted by 2 of 4 calls, e.g." in text
    assert "talk turn 2" in text
    assert "1,100 read, 3 uncached; the rule: reads are multiples of 128" in text
    assert "row: openai.toml rules[" in text
    assert "source: real traffic: hits are multiples of 128" in text
    assert text.endswith("contradicted by more than 5%: openai granule_tokens")
    first = ran.stdout.splitlines()[1]
    assert first.startswith("✗  openai granule_tokens")


def test_agreement_is_exit_0(log: Callable[..., Path]) -> None:
    ran = rules("check", log(conversation([1024, 1152])))
    assert ran.exit_code == 0
    assert "no rule is contradicted" in ran.stdout
    assert "✗" not in ran.stdout


def test_no_comparable_calls(log: Callable[..., Path]) -> None:
    ran = rules("check", log(conversation([0])))
    assert ran.exit_code == 0
    assert ran.stdout.startswith("no rule to compare 1 billed call with\n")


def test_json_output(log: Callable[..., Path]) -> None:
    file = log(conversation([2048, 1100], model="gpt-5.5"))
    ran = rules("check", file, "--json")
    report: Json = json.loads(ran.stdout)
    assert ran.exit_code == 1
    assert (report["calls"], report["conversations"], report["threshold"]) == (2, 1, 0.05)
    row = next(row for row in report["rows"] if row["figure"] == "granule_tokens")
    figure = catalog.rules("openai", "gpt-5.5").granule_tokens
    assert (row["value"], row["source"], row["date"]) == (
        figure.value,
        figure.source,
        str(figure.date),
    )
    assert (row["looked_at"], row["supporting"], row["contradicting"]) == (2, 0, 2)
    assert [one["place"] for one in row["examples"]] == [f"{file}:1"] * 2
    assert [(other["value"], other["contradicting"]) for other in row["disputed"]] == [(2048, 1)]
    assert "openai granule_tokens" in report["failed"]


def test_contradicted_default_fails_and_names_its_row(log: Callable[..., Path]) -> None:
    figure = catalog.rules("mistral", "mistral-medium-latest").minimum_tokens
    assert not figure.verified
    file = log(
        conversation([0, figure.value // 2], provider="mistral", model="mistral-medium-latest")
    )
    ran = rules("check", file)
    assert ran.exit_code == 1
    text = " ".join(ran.stdout.split())
    assert f"rule mistral minimum_tokens = ~{figure.value} contradicted by 1 of 1 call" in text
    assert "row: mistral.toml rules[" in text
    assert "talk turn 2" in text
    report: Json = json.loads(rules("check", file, "--json").stdout)
    assert "mistral minimum_tokens" in report["failed"]


def test_row_is_the_one_that_states_the_figure() -> None:
    named = catalog.shipped().row_of
    assert named("anthropic", "claude-opus-4-7", "minimum_tokens").startswith("anthropic.toml")
    assert "claude-opus-4-7" in named("anthropic", "claude-opus-4-7", "minimum_tokens")
    assert named("zai", "glm-4.6", "granule_tokens") == "zai.toml rules[0]"
    assert named("zai", "glm-4.6", "invalidates.tools") == "defaults.toml rules[0]"
    assert named("zai", "glm-4.6", "lookback_unit") == ""
    assert named("openai", "gpt-5.6", "prewarm", "openai_responses").startswith("openai.toml")
    assert named("openai", "gpt-5.6", "prewarm", "openai_chat") == ""


def test_glm_reads_contradict_nothing(log: Callable[..., Path]) -> None:
    """GLM reads any number of tokens, as few as 43."""
    file = log(conversation([43, 1021, 1537], provider="zai", model="glm-4.6"))
    ran = rules("check", file)
    assert ran.exit_code == 0, ran.stdout


def test_fitting_disputed_value_is_named(log: Callable[..., Path]) -> None:
    file = log(conversation([1088], provider="deepseek", model="deepseek-chat"))
    assert "disputed: 64 would fit (the older model, before V4)" in rules("check", file).stdout


@pytest.mark.parametrize(
    "options, code",
    [
        (["--threshold", "0.5"], 0),
        (["--threshold", "0.4"], 1),
        (["--provider", "anthropic"], 2),
        (["--provider", "openai"], 1),
        (["--model", "gpt-4o"], 1),
        (["--model", "gpt-4*"], 1),
        (["--model", "gpt-5*"], 2),
    ],
)
def test_provider_and_model_options(
    log: Callable[..., Path], options: list[str], code: int
) -> None:
    assert rules("check", log(conversation([1024, 1100])), *options).exit_code == code


@pytest.mark.parametrize("requested", [0, 1, 2])
def test_examples_option(log: Callable[..., Path], requested: int) -> None:
    ran = rules("check", log(conversation([1100, 1101, 1102])), "--json", "--examples", requested)
    row = next(r for r in json.loads(ran.stdout)["rows"] if r["figure"] == "granule_tokens")
    assert len(row["examples"]) == requested


BROKEN = '{"id": "x", "provider": "openai"'


def test_invalid_input_is_skipped_and_counted(log: Callable[..., Path]) -> None:
    file = log(conversation([1024]), BROKEN)
    ran = rules("check", file)
    assert ran.exit_code == 0
    assert "Skipped: 1" in ran.stdout
    assert f"{file}:2" in ran.stdout.replace("\n", "")


def test_strict_fails_on_invalid_input(
    log: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = log(conversation([1024]), BROKEN)
    assert main(["rules", "check", str(file), "--strict"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{file}:2" in shown.err


@pytest.mark.parametrize("text", [BROKEN, "{}", "not json", '{"hello": 1}'])
def test_unreadable_file_is_exit_2(
    log: Callable[..., Path], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = log(text)
    assert main(["rules", "check", str(file)]) == 2
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["check"], ["check", "no-such-file"], ["nope"]])
def test_usage_errors(arguments: list[str]) -> None:
    assert rules(*arguments).exit_code == 2


def test_default_threshold() -> None:
    assert rules_check.THRESHOLD == 0.05
    assert "[default: 0.05;" in " ".join(rules("check", "--help").stdout.split())


def test_progress_bar_stays_out_of_the_report(
    log: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = log(conversation([1024, 1152]))
    plain = rules("check", file, "--json").stdout
    monkeypatch.setattr(terminal, "_LONG", 1)
    monkeypatch.setattr(click.testing._NamedTextIOWrapper, "isatty", lambda _: True)
    assert rules("check", file, "--json").stdout == plain


def test_documented_example() -> None:
    assert rules("check", SESSION).exit_code == 0


@pytest.mark.skipif(not (SHARED / "traces").is_dir(), reason="no recorded traces beside this")
def test_recorded_conversations() -> None:
    """What is contradicted there is so: 64 tokens read of an older DeepSeek behind the same name,
    and 1,100 of Gemini 2.5 Flash, of which the catalog holds both published minimums."""
    report: Json = json.loads(rules("check", SHARED / "traces", "--json").stdout)
    assert report["calls"] > 2500
    assert set(report["failed"]) == {"deepseek minimum_tokens", "google minimum_tokens"}
    anthropic = [row for row in report["rows"] if row["provider"] == "anthropic"]
    assert len(anthropic) >= 8
    assert sum(row["contradicting"] for row in anthropic) == 0


# ── show ─────────────────────────────────────────────────────────────────────────────────────────


def test_show_names_sources_and_disputes() -> None:
    ran = rules("show", "anthropic", "claude-opus-4-7")
    assert ran.exit_code == 0
    lines = ran.stdout.splitlines()
    assert lines[0] == "anthropic/claude-opus-4-7"
    at = next(at for at, line in enumerate(lines) if line.startswith("minimum_tokens"))
    assert lines[at].split() == [
        "minimum_tokens",
        "2048",
        "2026-08-22",
        "[Ad]",
        "prompt",
        "caching",
    ]
    assert lines[at + 1].split() == ["or", "4096", "[N]", "Bedrock's", "list"]


@pytest.mark.parametrize(
    "names, shown",
    [
        (["claude-opus-4-7"], "anthropic/claude-opus-4-7"),
        (["anthropic/claude-opus-4-7"], "anthropic/claude-opus-4-7"),
        (["gemini/gemini-3.8-flash"], "google/gemini-3.8-flash"),
        (["openrouter/openai/o3"], "openrouter/openai/o3"),
    ],
)
def test_show_finds_the_provider(names: list[str], shown: str) -> None:
    ran = rules("show", *names)
    assert (ran.exit_code, ran.stdout.splitlines()[0]) == (0, shown)


def test_show_marks_defaults() -> None:
    rows = rules("show", "anthropic", "claude-opus-4-7").stdout.splitlines()
    assert any(row.startswith("invalidates.betas") and " ~tools" in row for row in rows)


def test_show_json_equals_the_catalog() -> None:
    report: Json = json.loads(rules("show", "openai", "gpt-5.6", "--json").stdout)
    figures = catalog.rules("openai", "gpt-5.6")
    assert report["known"] is True
    assert report["figures"]["slots"]["value"] == figures.slots.value
    assert report["figures"]["slots"]["source"] == figures.slots.source
    assert report["figures"]["invalidates.tools"]["value"] == ["tools", "messages"]
    assert report["figures"]["invalidates.effort"]["verified"] is False
    assert "server_tool_ttl" not in report["figures"]  # a notion that it does not have


def test_show_on_a_wire() -> None:
    model = "MiniMax-M2.7"
    report = {
        wire: json.loads(rules("show", "minimax", model, "--wire", wire, "--json").stdout)
        for wire in ("anthropic", "openai_chat")
    }
    for wire, one in report.items():
        assert one["wire"] == wire
        expected = catalog.rules("minimax", model, wire).mechanism.value
        assert one["figures"]["mechanism"]["value"] == expected
    assert report["anthropic"]["figures"] != report["openai_chat"]["figures"]


def test_show_of_an_unknown_model() -> None:
    ran = rules("show", "anthropic", "claude-nobody-knows")
    assert ran.exit_code == 0
    assert "not a known model" in ran.stdout
    assert "Did you mean" not in ran.stdout
    misspelled = rules("show", "anthropic", "claude-sonet-5").stdout
    assert "defaults. Did you mean claude-sonnet-5?" in misspelled
    report: Json = json.loads(rules("show", "anthropic", "claude-nobody-knows", "--json").stdout)
    assert report["known"] is False


@pytest.mark.parametrize(
    "arguments", [["nobody", "m"], ["openai"], ["openai", "gpt-4o", "--wire", "x"]]
)
def test_show_usage_errors(arguments: list[str]) -> None:
    assert rules("show", *arguments).exit_code == 2
