"""`anaphora map`: the real command against the real emulator."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.waiting import PATIENCE, wait_until

import anaphora
from anaphora import emulator
from anaphora.emulator import Emulator, EmulatorOptions
from anaphora.emulator.faults import Faults

CANARY = "sk-canary-8e21"
LONG = "You are terse, and you never say a word too much. " * 300
#: The first ten calls are answered at once, the others in a minute.
SLOW = """
faults:
  - {fault: slow-first-byte, seconds: 60, nth: [11, 12, 13, 14, 15, 16, 17, 18, 19, 20]}
"""
Map = Callable[..., "subprocess.CompletedProcess[str]"]


def wait_for_results(process: subprocess.Popen[Any], file: Path, count: int) -> None:
    def written() -> bool:
        assert process.poll() is None
        return file.exists() and file.read_bytes().count(b"\n") >= count

    wait_until(written, f"{count} results are written")


@pytest.fixture(scope="module")
def emu() -> Iterator[Emulator]:
    with emulator.running(EmulatorOptions(batch_seconds=0)) as running:
        yield running


@pytest.fixture(autouse=True)
def _fresh(emu: Emulator) -> None:
    emu.reset()


@pytest.fixture
def folder(tmp_path: Path, emu: Emulator, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with llm.yaml and twenty questions, which the command runs in."""
    configure(tmp_path, emu)
    questions = [
        {"prompt": f"What is {number}?", "id": f"q{number}", "system": LONG} for number in range(20)
    ]
    write(tmp_path / "questions.jsonl", questions)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def mapped(run: Map, folder: Path) -> Map:
    def mapped(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return run("map", *arguments, KEY=CANARY, **extra)

    return mapped


def configure(folder: Path, emu: Emulator) -> None:
    common = {"base_url": emu.url, "key": {"env": "KEY"}, "max_tokens": 64}
    providers = {
        "claude": {"wire": "anthropic", "model": "claude-sonnet-5-5", **common},
        "gpt": {"wire": "openai_responses", "model": "gpt-5.6", **common},
    }
    (folder / "llm.yaml").write_text(yaml.safe_dump({"providers": providers}, sort_keys=False))


def write(file: Path, lines: list[Any]) -> None:
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def results(folder: Path, name: str = "questions") -> list[dict[str, Any]]:
    text = (folder / f"{name}.results.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def generated(emu: Emulator) -> list[dict[str, Any]]:
    return [entry for entry in emu.requests() if "read" in entry]


@pytest.mark.long
def test_twenty_lines_cost_less_than_a_third_of_sending_them_at_once(
    mapped: Map, emu: Emulator, folder: Path
) -> None:
    done = mapped("questions.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["total"], summary["done"], summary["calls"]) == (20, 20, 20)
    calls = generated(emu)
    assert sum(sum(call["written"].values()) > 1000 for call in calls) <= 2
    assert float(summary["cost_usd"]) == pytest.approx(sum(float(c["cost_usd"]) for c in calls))
    assert summary["read_share"] > 0.9
    assert [line["id"] for line in results(folder)] == [f"q{number}" for number in range(20)]
    emu.reset()
    questions = [f"What is {number}?" for number in range(20)]
    with anaphora.Client.from_config("llm.yaml", environ={"KEY": CANARY}) as client:
        at_once = client.map(questions, "claude", system=LONG, warm="off").result()
    assert float(summary["cost_usd"]) <= 0.3 * float(at_once.cost_usd or 0)


@pytest.mark.long
def test_files_are_private_and_hold_no_key(mapped: Map, folder: Path) -> None:
    (folder / "questions.results.jsonl").touch(0o644)
    done = mapped("questions.jsonl")
    assert done.returncode == 0
    for name in ("questions.results.jsonl", "questions.state.jsonl"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
        assert CANARY not in (folder / name).read_text()
    assert CANARY not in done.stdout + done.stderr


@pytest.mark.long
def test_a_killed_run_is_finished_by_ten_more_calls(
    folder: Path, emu: Emulator, mapped: Map, environment: Callable[..., dict[str, str]]
) -> None:
    """In any order of the file."""
    with emulator.running(EmulatorOptions(faults=Faults.decode(SLOW, "slow.yaml"))) as slow:
        configure(folder, slow)
        command = [sys.executable, "-m", "anaphora", "map", "questions.jsonl"]
        process = subprocess.Popen(
            command,
            env=environment(KEY=CANARY),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for_results(process, folder / "questions.results.jsonl", 10)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    configure(folder, emu)
    lines = (folder / "questions.jsonl").read_text().splitlines()
    (folder / "questions.jsonl").write_text("\n".join(reversed(lines)))
    done = mapped("questions.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["resumed"], summary["calls"], summary["done"]) == (10, 10, 20)
    assert len(generated(emu)) == 10
    assert [line["id"] for line in results(folder)] == [f"q{19 - number}" for number in range(20)]
    assert [line["line"] for line in results(folder)] == list(range(1, 21))


def test_every_form_of_a_line_is_sent(mapped: Map, folder: Path, emu: Emulator) -> None:
    messages = [{"role": "user", "content": "Hello?"}]
    claude = {"model": "claude-sonnet-5-5", "max_tokens": 9, "system": "S", "messages": messages}
    gpt = {"model": "gpt-5.6", "input": "Hello?", "max_output_tokens": 16}
    forms: list[Any] = [
        "Hello?",
        {"prompt": "Hello?"},
        {"prompt": messages, "model": "gpt/gpt-5.6", "max_tokens": 16, "id": 7},
        claude,
        gpt,
        {"custom_id": "a", "params": claude},
        {"custom_id": "b", "method": "POST", "url": "/v1/responses", "body": gpt},
    ]
    write(folder / "forms.jsonl", forms)
    done = mapped("forms.jsonl")
    assert done.returncode == 0, done.stderr
    assert [line.get("id") for line in results(folder, "forms")] == [
        None,
        None,
        7,
        None,
        None,
        "a",
        "b",
    ]
    assert [line["record"]["provider"] for line in results(folder, "forms")] == [
        "claude", "claude", "gpt", "claude", "gpt", "claude", "gpt",
    ]  # fmt: skip
    assert len(generated(emu)) == 7


def test_the_command_line_completes_every_line(mapped: Map, folder: Path, emu: Emulator) -> None:
    (folder / "system.txt").write_text(LONG)
    write(folder / "short.jsonl", ["One?", {"prompt": "Two?", "max_tokens": 20}])
    done = mapped(
        "short.jsonl", "--system-file", "system.txt", "-m", "gpt/gpt-5.6", "--max-tokens", "16"
    )
    assert done.returncode == 0, done.stderr
    assert {call["model"] for call in generated(emu)} == {"gpt-5.6"}
    assert all(call["read"] or call["written"] for call in generated(emu))
    write(folder / "whole.jsonl", [{"model": "gpt-5.6", "input": "Hi"}])
    refused = mapped("whole.jsonl", "-s", "Be terse.")
    assert refused.returncode == 2
    assert (
        "whole.jsonl:1: a whole request has its own system prompt; leave out -s" in refused.stderr
    )


def test_invalid_lines_are_all_named_and_nothing_is_sent(
    mapped: Map, folder: Path, emu: Emulator
) -> None:
    bad = folder / "bad.jsonl"
    bad.write_text(
        '{"prompt": "fine"}\n\nwords\n{"prompt": 5}\n{"a": 1}\n{"prompt": "x", "max_token": 5}\n'
        '[1]\n{"prompt": "x", "id": []}\n{"prompt": "x", "model": "nosuch/model-1"}\n'
    )
    done = mapped("bad.jsonl")
    assert done.returncode == 2
    for number, reason in {
        3: "not JSON",
        4: "prompt: must be a text or a list of messages",
        5: "not a request of a known wire",
        6: "max_token: unknown keyword; did you mean `max_tokens`?",
        7: 'a line is a request, {"prompt": …} or a text',
        8: "id: must be a text or a number",
        9: "model",
    }.items():
        (line,) = [each for each in done.stderr.splitlines() if f"bad.jsonl:{number}: " in each]
        assert reason in line
    assert not emu.requests()
    assert not (folder / "bad.results.jsonl").exists()


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_file_without_lines_is_refused(mapped: Map, folder: Path, text: str) -> None:
    (folder / "empty.jsonl").write_text(text)
    done = mapped("empty.jsonl")
    assert (done.returncode, done.stderr) == (2, "anaphora: empty.jsonl: no line to send\n")


def test_one_failed_call_is_reported_with_its_line(mapped: Map, folder: Path) -> None:
    write(folder / "mixed.jsonl", ["Fine?", {"prompt": "Long?", "max_tokens": 900_000}])
    done = mapped("mixed.jsonl")
    assert done.returncode == 1
    assert "anaphora: mixed.jsonl:2: RequestRejected: " in done.stderr
    assert "1 of 2 done" in done.stdout
    first, second = results(folder, "mixed")
    assert first["text"]
    assert second["error"]["type"] == "RequestRejected"
    again = mapped("mixed.jsonl", "--json")
    assert json.loads(again.stdout)["resumed"] == 1
    assert json.loads(again.stdout)["errors"][0]["line"] == 2


@pytest.mark.long
def test_the_budget_ends_a_run_and_a_higher_one_goes_on(
    mapped: Map, folder: Path, emu: Emulator
) -> None:
    done = mapped("questions.jsonl", "--max-cost-usd", "0.03", "--json")
    summary = json.loads(done.stdout)
    assert done.returncode == 1
    assert summary["stop_reason"] == "cost_usd"
    assert 0 < summary["done"] < 20
    assert float(summary["cost_usd"]) <= 0.03
    again = json.loads(mapped("questions.jsonl", "--max-cost-usd", "1", "--json").stdout)
    assert again["resumed"] == summary["done"]
    assert len(generated(emu)) == again["done"] == 20
    little = mapped("questions.jsonl", "--max-cost-usd", "0.00001", "--restart")
    assert "and $0.00001 of $0.00001 are left (max_cost_usd)" in little.stderr
    wrong = mapped("questions.jsonl", "--max-cost-usd", "much")
    assert wrong.returncode == 2
    assert "max_cost_usd: must be an amount in dollars" in wrong.stderr


def test_results_cannot_be_standard_output(mapped: Map, folder: Path, emu: Emulator) -> None:
    done = mapped("questions.jsonl", "-o", "-")
    assert done.returncode == 2
    assert "--results needs a file, which an interrupted run continues from" in done.stderr
    assert not (folder / "-").exists()
    assert generated(emu) == []


def test_the_cost_of_a_pre_warm_is_shown(mapped: Map, emu: Emulator) -> None:
    done = mapped("questions.jsonl", "-m", "gpt")
    assert "of it for pre-warming" in done.stdout
    assert len(generated(emu)) == 22


@pytest.mark.parametrize("provider", ["claude", "gpt"])
def test_batches_cost_half_and_are_primed_by_one_request(
    mapped: Map, folder: Path, emu: Emulator, provider: str
) -> None:
    done = mapped("questions.jsonl", "-m", provider, "--batch", "--json")
    assert done.returncode == 0, done.stderr
    calls = generated(emu)
    assert len(calls) == 20
    assert all(call["batch"] for call in calls)
    assert sum(sum(call["written"].values()) > 1000 for call in calls) == 1
    assert float(json.loads(done.stdout)["cost_usd"]) == pytest.approx(
        sum(float(call["cost_usd"]) for call in calls)
    )
    assert json.loads(mapped("questions.jsonl", "-m", provider, "--json").stdout)["calls"] == 0


@pytest.mark.long
def test_a_schema_holds_for_every_answer(mapped: Map, folder: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    (folder / "schema.json").write_text(json.dumps(schema))
    assert mapped("questions.jsonl", "--schema", "schema.json").returncode == 0
    assert all(set(json.loads(line["text"])) == {"n"} for line in results(folder))


@pytest.mark.parametrize(
    "arguments, code, reason",
    [
        (["-"], 2, "name a file for the results: --results FILE"),
        (["questions.jsonl", "-s", "a", "--system-file", "llm.yaml"], 2, "not both"),
        (["nothing.jsonl"], 2, "does not exist"),
        (["questions.jsonl", "--concurrency", "0"], 2, "--concurrency"),
        (["questions.jsonl", "-m", "nobody/x"], 2, "nobody"),
        (["questions.jsonl", "-o", "missing/folder.jsonl"], 2, "cannot be written"),
        (["questions.jsonl", "-o", "questions.jsonl"], 2, "not a file of results"),
    ],
)
def test_wrong_options_are_named(
    mapped: Map, folder: Path, emu: Emulator, arguments: list[str], code: int, reason: str
) -> None:
    before = (folder / "questions.jsonl").read_bytes()
    done = mapped(*arguments)
    assert done.returncode == code
    assert reason in done.stderr
    assert not emu.requests()
    assert (folder / "questions.jsonl").read_bytes() == before


def test_a_missing_key_and_a_rejected_one_are_exit_code_7(run: Map, folder: Path) -> None:
    missing = run("map", "questions.jsonl")
    assert missing.returncode == 7
    assert "KEY" in missing.stderr
    with emulator.running(EmulatorOptions(keys=frozenset(["another"]))) as strict:
        configure(folder, strict)
        assert run("map", "questions.jsonl", KEY=CANARY).returncode == 7
        assert len(strict.requests()) == 1


def test_the_emulator_needs_no_key(run: Map, folder: Path) -> None:
    done = run("map", "questions.jsonl", "--emulate", "-m", "gpt-5.6")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("20 of 20 done: $")
    assert done.stderr == ""


def test_progress_is_shown_on_a_terminal_only(
    folder: Path, environment: Callable[..., dict[str, str]]
) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "anaphora", "map", "questions.jsonl", "-m", "gpt"],
        env=environment(KEY=CANARY),
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 65536):
            shown += data
    except OSError:  # the terminal was closed
        pass
    finally:
        os.close(ours)
        assert process.wait(PATIENCE) == 0
    assert b"20/20" in shown
    assert b"read from the cache" in shown


@pytest.mark.long
def test_an_interrupted_run_says_how_to_go_on(
    folder: Path, environment: Callable[..., dict[str, str]]
) -> None:
    with emulator.running(EmulatorOptions(faults=Faults.decode(SLOW, "slow.yaml"))) as slow:
        configure(folder, slow)
        process = subprocess.Popen(
            [sys.executable, "-m", "anaphora", "map", "questions.jsonl"],
            env=environment(KEY=CANARY),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_for_results(process, folder / "questions.results.jsonl", 10)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "10 of 20 done" in errors
    assert re.search(r"\(\$0\.\d+ \(about \$0\.\d+ of it for \d+ calls? in flight\), ", errors)
    assert "the same command continues from questions.results.jsonl" in errors


@pytest.mark.long
def test_the_commands_of_the_page_work(mapped: Map, folder: Path) -> None:
    (folder / "manual.txt").write_text(LONG)
    page = (Path(__file__).parents[2] / "docs" / "fanout.md").read_text()
    commands = re.findall(r"^anaphora map (questions.*)$", page, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        done = mapped(*shlex.split(command))
        assert done.returncode == 0, done.stderr
