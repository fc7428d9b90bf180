"""`anaphora record` and `anaphora replay -- COMMAND`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.emulated_client import AT_ONCE
from support.recordings import reported

from anaphora import emulator
from anaphora.emulator.server import Emulator
from anaphora.replay.store import FixtureStore

CANARY = "sk-ant-canary-0123456789abcdef"
#: Asks a provider each question, through the proxies of the environment; ends with 1 at an error.
AGENT = """
import json, os, sys, urllib.error, urllib.request
ANTHROPIC = {"model": "claude-sonnet-5", "max_tokens": 40, "stream": True}
REQUESTS = {
    "anthropic": lambda text: ("ANTHROPIC_BASE_URL", "/v1/messages", "ANTHROPIC_API_KEY", "x-api-key",
        {**ANTHROPIC, "messages": [{"role": "user", "content": text}]}),
    "openai": lambda text: ("OPENAI_BASE_URL", "/responses", "OPENAI_API_KEY", "authorization",
        {"model": "gpt-5.1", "input": text}),
    "google": lambda text: ("GOOGLE_GEMINI_BASE_URL", "/v1beta/models/gemini-2.5-flash:generateContent",
        "GEMINI_API_KEY", "x-goog-api-key", {"contents": [{"role": "user", "parts": [{"text": text}]}]}),
}
for question in sys.argv[2:]:
    address, path, key, header, body = REQUESTS[sys.argv[1]](question)
    key = os.environ[key]
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    headers[header] = f"Bearer {key}" if header == "authorization" else key
    request = urllib.request.Request(os.environ[address] + path, json.dumps(body).encode(), headers)
    try:
        print(urllib.request.urlopen(request).read().decode())
    except urllib.error.HTTPError as problem:
        sys.exit(problem.read().decode())
"""
VARIABLES = {
    "anthropic": ("ANTHROPIC_BASE_URL", "", "ANTHROPIC_API_KEY"),
    "openai": ("OPENAI_BASE_URL", "/v1", "OPENAI_API_KEY"),
    "google": ("GOOGLE_GEMINI_BASE_URL", "", "GEMINI_API_KEY"),
}
#: Without a route to any provider: what is not replayed fails.
NO_NETWORK = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def emu() -> Iterator[Emulator]:
    with emulator.running(emulator.EmulatorOptions(latency=AT_ONCE)) as started:
        yield started


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command; in the environment are no keys and addresses of providers."""
    for name in list(os.environ):
        if name.endswith(("_API_KEY", "_BASE_URL", "_API_BASE")):
            monkeypatch.delenv(name)
    file = tmp_path / "agent.py"
    file.write_text(AGENT)
    return [sys.executable, str(file)]


def recorded_in(name: str, emu: Emulator) -> dict[str, str]:
    address, path, key = VARIABLES[name]
    return {address: f"{emu.url}{path}", key: CANARY}


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.long
def test_recorded_run_is_replayed_without_network_and_key(
    run: Any,
    emu: Emulator,
    agent: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    name: str,
) -> None:
    made = tmp_path / "made"
    words = ["--dir", str(made), "--", *agent, name, "One?", "Two?"]
    live = run("record", *words, **recorded_in(name, emu))
    answers, printed = capfd.readouterr()
    assert live.returncode == 0, printed
    assert live.stderr == f"anaphora: 2 exchanges recorded in {made}\n"
    before = len(emu.requests())
    again = run("replay", *words, **NO_NETWORK)
    assert again.stderr == f"anaphora: 2 exchanges replayed from {made}\n"
    assert (again.returncode, capfd.readouterr().out) == (0, answers)
    assert answers.strip()
    assert len(emu.requests()) == before
    for file in made.iterdir():
        assert CANARY.encode() not in file.read_bytes()
    assert CANARY not in answers + printed + live.stderr


@pytest.fixture(scope="module")
def recordings(
    tmp_path_factory: pytest.TempPathFactory, emu: Emulator
) -> tuple[Path, dict[str, str]]:
    """A folder with the answer to "One?" of OpenAI."""
    return tmp_path_factory.mktemp("recordings") / "made", recorded_in("openai", emu)


@pytest.fixture
def folder(run: Any, recordings: tuple[Path, dict[str, str]], agent: list[str]) -> Path:
    path, environ = recordings
    if not path.exists():
        done = run("record", "--dir", str(path), "--", *agent, "openai", "One?", **environ)
        assert done.returncode == 0, done.stderr
    return path


def test_miss_is_1_though_the_command_ended_with_0(
    run: Any, folder: Path, agent: list[str]
) -> None:
    text = f"import subprocess; subprocess.run({[*agent, 'openai', 'Two?']!r})"
    done = run("replay", "--dir", str(folder), "--", sys.executable, "-c", text)
    assert done.returncode == 1
    assert (
        "anaphora: no recording: POST /v1/responses: nearest is POST /v1/responses" in done.stderr
    )
    assert 'recorded "One?", asked "Two?"' in done.stderr


def test_code_of_the_command_wins_over_a_miss(run: Any, folder: Path, agent: list[str]) -> None:
    text = f"import subprocess; subprocess.run({[*agent, 'openai', 'Two?']!r}); raise SystemExit(9)"
    done = run("replay", "--dir", str(folder), "--", sys.executable, "-c", text)
    assert done.returncode == 9
    assert "no recording" in done.stderr


def test_nearest_recording_and_repeated_answers(run: Any, folder: Path, agent: list[str]) -> None:
    command = ["--", *agent, "openai"]
    near = run("replay", "--dir", str(folder), *command, "Two?")
    assert near.returncode == 1, near.stderr
    assert "no recording: POST /v1/responses: nearest is POST /v1/responses" in near.stderr
    twice = run("replay", "--dir", str(folder), *command, "One?", "One?")
    assert (twice.returncode, reported(twice.stderr)) == (1, (0, 1, 1))
    repeated = run("replay", "--dir", str(folder), "--repeat", "last", *command, "One?", "One?")
    assert repeated.returncode == 0, repeated.stderr


def test_match_rules_of_the_user(
    run: Any, folder: Path, agent: list[str], tmp_path: Path, emu: Emulator
) -> None:
    rules, made = tmp_path / "rules.toml", tmp_path / "made"
    rules.write_text('[[rule]]\npattern = "ticket [0-9]+"\nplaceholder = "<ticket>"\n')
    options = ["--dir", str(made), "--rules", str(rules), "--", *agent, "openai"]
    done = run("record", *options, "Close ticket 17.", **recorded_in("openai", emu))
    assert done.returncode == 0, done.stderr
    done = run("replay", *options, "Close ticket 18.", **NO_NETWORK)
    assert done.returncode == 0, done.stderr


def test_modes(run: Any, agent: list[str], tmp_path: Path, emu: Emulator) -> None:
    made = tmp_path / "made"

    def record(mode: str, *questions: str) -> tuple[int, tuple[int, int, int]]:
        options = ["--dir", str(made), "--mode", mode, "--", *agent, "openai"]
        done = run("record", *options, *questions, **recorded_in("openai", emu))
        return done.returncode, reported(done.stderr)

    assert record("once", "One?") == (0, (1, 0, 0))
    assert record("once", "One?", "Two?") == (1, (0, 1, 1))
    assert record("new", "One?", "Two?") == (0, (1, 1, 0))
    assert record("all", "One?") == (0, (1, 0, 0))
    assert len(FixtureStore.open(made)) == 2


def test_other_upstream(run: Any, agent: list[str], tmp_path: Path, emu: Emulator) -> None:
    """As clients write it, with /v1."""
    made = ["--dir", str(tmp_path / "made"), "--upstream"]
    command = ["--", *agent, "openai", "One?"]
    done = run("record", *made, f"openai={emu.url}/v1", *command, OPENAI_API_KEY=CANARY)
    assert done.returncode == 0, done.stderr
    done = run("replay", *made, "opnai=http://127.0.0.1:9", *command)
    assert (done.returncode, "Did you mean 'openai'?" in done.stderr) == (2, True)


def test_what_fails_before_the_command_starts(
    run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    touched = ["--", "touch", str(tmp_path / "touched")]
    missing = run("replay", "--dir", str(tmp_path / "nosuch"), *touched)
    assert (missing.returncode, "nosuch: there is no such folder" in missing.stderr) == (2, True)
    assert "create it with: anaphora record -- COMMAND" in missing.stderr
    for command in ("record", "replay"):
        done = run(command, "--dir", str(tmp_path / "nosuch"), "--", "nosuchcommand")
        assert done.returncode == 2
        assert "cannot run nosuchcommand: command not found in PATH" in done.stderr
        done = run(command, "--rules", str(tmp_path / "nosuch"), *touched)
        assert done.returncode == 2
        done = run(command, "--dir", str(folder), *touched, OPENAI_BASE_URL="nonsense")
        assert (done.returncode, "OPENAI_BASE_URL" in done.stderr) == (2, True)
    assert not (tmp_path / "nosuch").exists()
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in folder.iterdir():
        data = file.read_bytes()
        changed = data.replace(b"One?", b"Two?") if file.suffix == ".json" else data
        (broken / file.name).write_bytes(changed)
    done = run("replay", "--dir", str(broken), *touched)
    assert done.returncode == 5
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    "words, message",
    [
        ("replay", "Usage: anaphora replay [OPTIONS] -- COMMAND..."),
        ("replay --", "No command to run. Write: anaphora replay -- COMMAND..."),
        ("replay python agent.py", "To run a command, write: anaphora replay -- python agent.py"),
        ("replay verfy DIR", "Did you mean 'verify'?"),
        (
            "replay --pace verify DIR",
            "--pace needs a command after --; it cannot be used with 'verify'",
        ),
        ("record", "Missing argument"),
    ],
)
def test_command_lines_that_are_wrong(run: Any, words: str, message: str) -> None:
    done = run(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_subcommands_may_have_dashes_of_their_own(run: Any, folder: Path) -> None:
    assert run("replay", "verify", "--", str(folder)).returncode == 0


def test_exit_codes_of_signals(run: Any, folder: Path) -> None:
    done = run("replay", "--dir", str(folder), "--", "sh", "-c", "kill -TERM $$")
    assert done.returncode == 143


# ── Elsewhere ────────────────────────────────────────────────────────────────────────────────────

#: Asks where it is, and prints the answer.
WHERE = """
import json, os, sys, urllib.request
text = f"You are in {os.getcwd()}.\\nRun id: {sys.argv[1]}\\nWhere?"
body = {"model": "gpt-5.1", "input": [{"role": "user", "content": text}]}
headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
address = os.environ["OPENAI_BASE_URL"] + "/responses"
request = urllib.request.Request(address, json.dumps(body).encode(), headers)
reply = json.loads(urllib.request.urlopen(request).read())
print(reply["output"][-1]["content"][0]["text"])
"""


@pytest.fixture
def moved(
    run: Any, tmp_path: Path, agent: list[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, list[str]]:
    """A recording of a run in another directory, and the command."""
    file = tmp_path / "where.py"
    file.write_text(WHERE)
    command = [sys.executable, str(file)]
    place = tmp_path / "one" / "work"
    place.mkdir(parents=True)
    script = emulator.Script.decode(f"replies: [{{reply: {{text: 'At {place}/x.'}}}}]", "script")
    options = emulator.EmulatorOptions(script=script, latency=AT_ONCE)
    with emulator.running(options) as emu:
        words = ("--dir", str(tmp_path / "one.made"), "--", *command, "r-1001")
        monkeypatch.chdir(place)
        done = run("record", *words, **recorded_in("openai", emu))
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    return tmp_path / "one.made", command


def test_run_is_replayed_in_another_directory(
    run: Any, moved: tuple[Path, list[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made, command = moved
    words = ("replay", "--dir", str(made))
    done = run(*words, "--", *command, "r-1001", **NO_NETWORK)
    assert done.returncode == 0, done.stderr
    assert f"At {tmp_path}/x.\n" in capfd.readouterr().out
    missed = run(*words, "--", *command, "r-3003", **NO_NETWORK)
    assert missed.returncode == 1
    assert "Run id: r-1001\\nWhere?" in missed.stderr
    assert "differs in input[0].content[0].text at character" in missed.stderr
    # A rule finds the run's id.
    rule = 'pattern = "Run id: (?P<value>[^\\\\n]+)"\nplaceholder = "{{run_id}}"\n'
    (made / "replay.toml").write_text(f"[[rule]]\n{rule}")
    assert run("replay", "accept-rules", str(made)).returncode == 0
    done = run(*words, "--", *command, "r-3003", **NO_NETWORK)
    assert done.returncode == 0, done.stderr
