"""`anaphora ask`: the real command against the real emulator."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
from support.emulated_client import AT_ONCE
from support.waiting import PATIENCE

from anaphora import catalog, emulator
from anaphora.cli import ask as ask_command
from anaphora.cli.main import main
from anaphora.emulator import Emulator, EmulatorOptions
from anaphora.emulator.replies.script import Script
from anaphora.values import Part, to_json

CANARY = "sk-canary-51c7"
LONG = "You are terse, and you never say a word too much. " * 300

SCRIPT = """
replies:
  - match: {text: escape}
    reply: {text: "\\e]0;owned\\ared\\e[31m"}
  - match: {text: slowly}
    reply: {text: "one two three four five six seven eight nine ten eleven twelve", pace: 300ms}
  - match: {text: refuse}
    reply: {refusal: "No."}
  - match: {text: "cut off"}
    reply: {text: "It was a dark and", stop: length}
  - match: {text: prose}
    reply: {text: "Well, it depends."}
  - match: {text: hello}
    reply: {text: "Hello yourself."}
"""
SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}'


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(scope="module")
def running() -> Iterator[Emulator]:
    with emulator.running(
        EmulatorOptions(latency=AT_ONCE, script=Script.decode(SCRIPT, "script.yaml"))
    ) as emu:
        yield emu


@pytest.fixture
def emu(running: Emulator) -> Emulator:
    running.reset()
    return running


def llm_yaml(url: str) -> str:
    return f"""
providers:
  claude:
    wire: anthropic
    base_url: {url}
    key: {{env: CLAUDE_FOR_THIS_TEST}}
    model: claude-sonnet-4-5
  gpt:
    wire: openai_responses
    base_url: {url}
    key: {{env: CLAUDE_FOR_THIS_TEST}}
    known_models: [gpt-5.6, gpt-5.2]
  chat:
    wire: openai_chat
    base_url: {url}
    key: {{env: CLAUDE_FOR_THIS_TEST}}
    model: gpt-5.1
  gemini:
    wire: gemini
    base_url: {url}
    key: {{env: CLAUDE_FOR_THIS_TEST}}
    model: gemini-2.5-flash
  ollama:
    dialect: ollama
    base_url: {url}/ollama
    model: llama3.2
  keyless:
    dialect: deepseek
    key: {{env: NOBODY_SETS_THIS}}
    model: deepseek-v4-pro
  local:
    dialect: llamacpp
    base_url: {url}/llamacpp
  failing:
    wire: anthropic
    base_url: {url}
    key: {{env: CLAUDE_FOR_THIS_TEST}}
    model: claude-sonnet-4-5
    retry: {{max_attempts: 2, first_wait: 0.001}}
    headers: {{x-emulator-fault: "529"}}
routes:
  main:
    - {{provider: claude, weight: 1}}
    - {{provider: gpt, model: gpt-5.2}}
"""


@pytest.fixture
def home(tmp_path: Path, emu: Emulator, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an llm.yaml, and nothing of the user's in sight."""
    for name in list(os.environ):
        if name.endswith(("_API_KEY", "_TOKEN", "_BASE_URL")) or name == "ANAPHORA_CONFIG":
            monkeypatch.delenv(name)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("CLAUDE_FOR_THIS_TEST", CANARY)
    (tmp_path / "llm.yaml").write_text(llm_yaml(emu.url))
    (tmp_path / "schema.json").write_text(SCHEMA)
    monkeypatch.chdir(tmp_path)
    return tmp_path


Ask = Callable[..., CommandResult]


@pytest.fixture
def ask(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Ask]:
    """The command in this process, where it starts quickly."""
    everything: list[str] = []

    def ask(*arguments: str, stdin: bytes | None = None) -> CommandResult:
        file = home / "stdin"
        file.write_bytes(stdin or b"")
        with file.open() as opened:
            monkeypatch.setattr(sys, "stdin", opened)
            code = main(["ask", *arguments])
        out, err = capfd.readouterr()
        everything.extend((out, err))
        return CommandResult(code, out, err)

    yield ask
    assert CANARY not in "".join(everything)
    assert not (home / "data").exists(), "nothing is stored"


# ── Answers ──────────────────────────────────────────────────────────────────────────────────────


def test_answer_on_stdout_and_notes_on_stderr(ask: Ask, home: Path) -> None:
    result = ask("hello", "there")
    assert (result.code, result.out) == (0, "Hello yourself.\n")
    (line,) = result.err.splitlines()
    assert re.fullmatch(
        r"claude/claude-sonnet-4-5 · First call: nothing cached yet. · \$0.0\d+", line
    )
    assert ask("-q", "hello").err == ""


def test_emulator_needs_no_key_and_no_network(run: Any, tmp_path: Path) -> None:
    places = {"XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    result = run("ask", "--emulate", "What is an anaphora?", **places)
    assert result.returncode == 0
    assert result.stdout.strip()
    emulated, verdict = result.stderr.splitlines()
    assert emulated.startswith("emulated: no provider is called")
    assert emulated.endswith("each run begins with an empty cache")
    assert verdict.startswith("anthropic/claude-")


@pytest.mark.parametrize(
    "arguments, provider, model",
    [
        ((), "claude", "claude-sonnet-4-5"),
        (("-m", "claude-opus-5-5"), "claude", "claude-opus-5-5"),
        (("-m", "gpt-5.2"), "gpt", "gpt-5.2"),
        (("-m", "gpt/gpt-5.6"), "gpt", "gpt-5.6"),
        (("-m", "chat"), "chat", "gpt-5.1"),
        (("-m", "local/org/some-model"), "local", "org/some-model"),
        (("-m", "main"), "claude", "claude-sonnet-4-5"),
    ],
)
def test_provider_and_model_choice(
    ask: Ask, arguments: tuple[str, ...], provider: str, model: str
) -> None:
    fields = ask(*arguments, "--json", "hello").json
    assert (fields["provider"], fields["model"]) == (provider, model)


@pytest.mark.parametrize(
    "arguments, code, fields",
    [
        (("-m", "gpt", "hello"), 2, "choose a model of gpt with -m: gpt-5.6, gpt-5.2, …"),
        (("-m", "gpt/gpt-4", "hello"), 2, "'gpt-4' is not among the known_models of gpt"),
        (("-m", "keyless", "hello"), 7, "the environment variable $NOBODY_SETS_THIS is not set"),
        (("-m", "failing", "hello"), 1, "after 2 attempts; try again in a moment, or use another provider with -m"),
        (("--schema", "llm.yaml", "hello"), 2, "llm.yaml: not JSON: JSON is malformed"),
        ((), 2, "no question: anaphora ask"),
        (("-f", "-", "-"), 2, "standard input can be read only once"),
        (("-f", "nowhere.txt", "hello"), 2, "'nowhere.txt' does not exist"),
    ],
)  # fmt: skip
def test_errors_are_one_line_with_advice(
    ask: Ask, home: Path, arguments: tuple[str, ...], code: int, fields: str
) -> None:
    result = ask(*arguments)
    assert (result.code, result.out) == (code, "")
    assert fields in result.err
    assert (
        len(
            [
                line
                for line in result.err.splitlines()
                if "Usage" not in line and "Try" not in line and line
            ]
        )
        == 1
    )
    assert not (home / "data").exists()


# ── Configuration ────────────────────────────────────────────────────────────────────────────────


def test_configuration_search_order(
    ask: Ask, home: Path, emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every place counts for more than those after it."""

    def only(name: str) -> str:
        key = "key: {env: CLAUDE_FOR_THIS_TEST}, model: claude-opus-5"
        return f"providers:\n  {name}: {{wire: anthropic, base_url: '{emu.url}', {key}}}\n"

    def who() -> str:
        return str(ask("--json", "hello").json["provider"])

    (home / "config" / "anaphora").mkdir(parents=True)
    (home / "config" / "anaphora" / "llm.yaml").write_text(only("own"))
    (home / "variable.yaml").write_text(only("variable"))
    (home / "llm.yaml").write_text(only("here"))
    monkeypatch.setenv("ANAPHORA_CONFIG", str(home / "variable.yaml"))
    assert who() == "variable"
    monkeypatch.delenv("ANAPHORA_CONFIG")
    assert who() == "here"
    (home / "llm.yaml").unlink()
    assert who() == "own"
    monkeypatch.setenv("ANAPHORA_CONFIG", "nowhere.yaml")
    result = ask("hello")
    assert (result.code, result.err) == (
        2,
        "anaphora: $ANAPHORA_CONFIG names nowhere.yaml, which does not exist\n",
    )


def test_no_provider_configured(ask: Ask, home: Path) -> None:
    (home / "llm.yaml").unlink()
    result = ask("hello")
    assert (result.code, result.out) == (7, "")
    for fields in (
        "llm.yaml",
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
        "GEMINI_API_KEY",
        "--emulate",
    ):
        assert fields in result.err


@pytest.mark.parametrize(
    "variable, provider",
    [
        ("ANTHROPIC_API_KEY", "anthropic"),
        ("OPENAI_API_KEY", "openai"),
        ("GEMINI_API_KEY", "google"),
        ("GOOGLE_API_KEY", "google"),
        ("DASHSCOPE_API_KEY", "alibaba"),
        ("DEEPSEEK_API_KEY", "deepseek"),
    ],
)
def test_key_in_the_environment_is_enough(
    ask: Ask, home: Path, monkeypatch: pytest.MonkeyPatch, variable: str, provider: str
) -> None:
    (home / "llm.yaml").unlink()
    monkeypatch.setenv(variable, CANARY)
    result = ask("--preview", "hello")
    assert result.code == 0
    assert result.out.startswith(f"{provider}/")
    row = catalog.default_model_row(provider)
    assert row is not None
    default = f"{row.value} (default model of {row.date}; -m chooses another)"
    assert result.err == f"no llm.yaml: using {provider}/{default} with the key from ${variable}\n"


def test_answer_of_the_default_model(
    ask: Ask, home: Path, emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first provider that has a key, although DeepSeek's is set as well."""
    (home / "llm.yaml").unlink()
    for name in ("ANTHROPIC", "DEEPSEEK"):
        monkeypatch.setenv(f"{name}_API_KEY", CANARY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", emu.url)
    row = catalog.default_model_row("anthropic")
    assert row is not None
    result = ask("hello")
    assert result.code == 0
    line = result.err.splitlines()[0]
    assert f"using anthropic/{row.value} (default model of {row.date};" in line
    page = Path(__file__).parents[2] / "docs" / "ask.md"
    assert f"\n{line}\n" in page.read_text()
    assert emu.requests()[0]["model"] == row.value
    named = ask("-m", "claude-opus-5", "hello")
    assert "using anthropic/claude-opus-5 with the key from" in named.err


def test_no_key_offers_the_emulator(ask: Ask, home: Path) -> None:
    (home / "llm.yaml").unlink()
    refused = ask("hello")
    assert (refused.code, refused.out) == (7, "")
    assert refused.err.endswith('the local emulator: anaphora ask --emulate "…"\n')
    answered = ask("--emulate", "hello")
    assert answered.code == 0
    assert answered.out.strip()


def test_key_pair_of_aws_in_the_environment(
    ask: Ask, emu: Emulator, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "llm.yaml").unlink()
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", emu.url)
    model = "bedrock/us.anthropic.claude-sonnet-5"
    refused = ask("-m", model, "hello")
    assert refused.code == 7
    assert "this machine's credentials are not sent over http:" in refused.err
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    result = ask("-m", model, "hello")
    assert result.code == 0, result.err
    assert f"using {model} with credentials aws: ambient\n" in result.err
    assert "note: " not in result.err


def test_base_url_in_the_environment(
    ask: Ask, home: Path, emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "llm.yaml").unlink()
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", emu.url)
    fields = ask("--json", "-m", "anthropic/claude-opus-5", "hello").json
    assert (fields["provider"], fields["model"]) == ("anthropic", "claude-opus-5")


@pytest.mark.parametrize(
    "arguments, code, problem",
    [
        (("-m", "claude-opus-5"), 7, "set ANTHROPIC_API_KEY"),
        (("-m", "anthropic/claude-opus-5"), 7, "set ANTHROPIC_API_KEY"),
        (("-m", "openai/claude-opus-5"), 2, "claude-opus-5 is a model of anthropic"),
    ],
)
def test_errors_without_a_file(
    ask: Ask,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    problem: str,
) -> None:
    (home / "llm.yaml").unlink()
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    result = ask(*arguments, "hello")
    assert (result.code, result.out) == (code, "")
    assert problem in result.err


def test_misspelled_model_is_noted_once(
    ask: Ask, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "llm.yaml").unlink()
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    result = ask("--preview", "-m", "claude-sonet-5-5", "hello")
    assert result.code == 0
    assert result.err.count("did you mean claude-sonnet-5-5? [model_unknown]") == 1
    assert "Warning" not in result.err


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The parts of the question."""
    found: list[Any] = []
    real = ask_command._content

    def content(options: Any) -> tuple[Part, ...]:
        parts = real(options)
        found[:] = [json.loads(to_json(part)) for part in parts]
        return parts

    monkeypatch.setattr(ask_command, "_content", content)
    return found


# ── Content ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("arguments", [("-",), ()])
def test_question_from_stdin(ask: Ask, sent: list[Any], arguments: tuple[str, ...]) -> None:
    assert ask(*arguments, stdin="hello ✓\n".encode()).out == "Hello yourself.\n"
    assert sent == [{"type": "text", "text": "hello ✓\n"}]
    result = ask("-", stdin=b"\xff\xfe")
    assert (result.code, "standard input: neither UTF-8 text" in result.err) == (2, True)


def test_files_precede_the_question(ask: Ask, sent: list[Any], home: Path) -> None:
    (home / "a.py").write_text("print()")
    (home / "pic.png").write_bytes(b"\x89PNG")
    (home / "paper.pdf").write_bytes(b"%PDF-1.7\0")
    (home / "shape.svg").write_text("<svg/>\n")
    names = ("a.py", "pic.png", "paper.pdf", "shape.svg", "-")
    arguments = [word for name in names for word in ("-f", name)]
    result = ask(*arguments, "hello", stdin=b"piped")
    assert result.code == 0, result.err
    parts = sent
    assert [part["type"] for part in parts] == ["text", "image", "document", "text", "text", "text"]
    assert parts[0]["text"] == '<file name="a.py">\nprint()\n</file>\n'
    assert parts[1]["source"]["media_type"] == "image/png"
    assert parts[2]["title"] == "paper.pdf"
    assert parts[3]["text"] == '<file name="shape.svg">\n<svg/>\n</file>\n'
    assert parts[4]["text"] == '<file name="stdin">\npiped\n</file>\n'


def test_unsupported_files_are_rejected(ask: Ask, home: Path, emu: Emulator) -> None:
    (home / "program").write_bytes(b"\x7fELF\0")
    with (home / "huge.txt").open("wb") as file:
        file.truncate(20 * 1024 * 1024 + 1)
    for name, fields in (
        ("program", "program: neither UTF-8 text"),
        ("huge.txt", "huge.txt: larger than 20 MiB"),
    ):
        result = ask("-f", name, "hello")
        assert (result.code, result.out) == (2, "")
        assert fields in result.err
    assert emu.requests() == []


def test_structured_answers(ask: Ask) -> None:
    result = ask("--schema", "schema.json", "How many?")
    assert result.code == 0
    assert isinstance(result.json["n"], int)
    fields = ask("--schema", "schema.json", "--json", "How many?").json
    assert fields["parsed"] == json.loads(fields["answer"])
    result = ask("--schema", "schema.json", "In prose, please")
    assert (result.code, result.out) == (4, "")
    assert result.err == "Well, it depends.\nanaphora: claude: $: not JSON\n"


def test_answer_that_does_not_conform_is_not_lost(ask: Ask) -> None:
    result = ask("--schema", "schema.json", "--json", "In prose, please")
    assert result.code == 4
    assert result.json["answer"] == "Well, it depends."
    assert result.err == f"anaphora: {result.json['error']}\n"
    result = ask("--schema", "schema.json", "In prose, please")
    assert (result.code, result.out) == (4, "")
    assert "Well, it depends.\n" in result.err


@pytest.mark.parametrize("provider", ["claude", "gpt", "chat", "gemini", "ollama"])
def test_refusal_is_printed(ask: Ask, provider: str) -> None:
    question = ("-m", "gpt-5.6" if provider == "gpt" else provider, "Please refuse")
    result = ask(*question)
    fields = ask("--json", *question).json
    assert result.out == fields["answer"] + "\n" == "No.\n"
    assert fields["stop"] == "refusal"
    assert "the model refused to answer" in result.err


def test_early_stops(ask: Ask) -> None:
    result = ask("Be cut off")
    assert (result.code, result.out) == (0, "It was a dark and\n")
    assert "raise `max_tokens` in llm.yaml" in result.err
    result = ask("Please refuse")
    assert "the model refused to answer" in result.err


def test_json_output(ask: Ask, home: Path) -> None:
    result = ask("--json", "hello")
    fields = result.json
    assert result.err == ""
    assert (fields["answer"], fields["stop"]) == ("Hello yourself.", "end")
    assert fields["usage"]["input"] > 0
    assert fields["verdict"] == {"result": "first", "sentence": "First call: nothing cached yet."}
    assert float(fields["cost_usd"]) > 0
    assert [attempt["status"] for attempt in fields["attempts"]] == [200]
    assert fields["config"] == "llm.yaml"


def test_preview_sends_nothing_and_needs_no_key(ask: Ask, home: Path, emu: Emulator) -> None:
    result = ask("--preview", "-s", LONG, "hello")
    assert result.code == 0
    assert "to be written, $" in result.out
    assert result.out.endswith("Nothing was sent.\n")
    assert ask("--preview", "-m", "keyless", "hello").code == 0
    fields = ask("--preview", "--json", "-s", LONG, "hello").json
    assert sum(fields["usage"]["written"].values()) > 0
    assert emu.requests() == []
    assert not (home / "data").exists()


# ── Terminals and pipes ──────────────────────────────────────────────────────────────────────────


def on_a_terminal(home: Path, *arguments: str, **extra: str) -> bytes:
    """What a terminal would be given: both streams."""
    outer, inner = pty.openpty()
    command = [sys.executable, "-m", "anaphora", "ask", *arguments]
    environ = {**os.environ, "TERM": "xterm", "PYTHONUTF8": "1", **extra}
    with subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, cwd=home, env=environ):
        os.close(inner)
        seen = b""
        while True:
            try:
                piece = os.read(outer, 4096)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            seen += piece
    os.close(outer)
    return seen


@pytest.mark.long
def test_colours_and_control_characters(ask: Ask, home: Path) -> None:
    seen = on_a_terminal(home, "Please escape")
    answer, line = seen.splitlines()
    assert answer == b"]0;ownedred[31m"
    assert line.startswith(b"\x1b[2mclaude/")
    assert line.endswith(b"\x1b[0m")
    assert b"\x1b" not in on_a_terminal(home, "Please escape", NO_COLOR="1")
    result = ask("Please escape")
    assert result.out == "\x1b]0;owned\x07red\x1b[31m\n"
    assert "\x1b" not in result.err


@pytest.mark.long
def test_closed_pipe_is_no_error(home: Path) -> None:
    command = f"set -o pipefail; {sys.executable} -m anaphora ask slowly | head -c 3"
    done = subprocess.run(["bash", "-c", command], cwd=home, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"one", b"")


@pytest.mark.parametrize("how", [(), ("--json",)])
@pytest.mark.long
def test_interrupted_answer_is_printed(home: Path, emu: Emulator, how: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "anaphora", "ask", *how, "slowly"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=home, stdin=subprocess.DEVNULL, **pipes) as asking:  # type: ignore[call-overload]
        if how:
            while not emu.requests() and asking.poll() is None:
                time.sleep(0.01)
            time.sleep(1)
            begun = b""
        else:
            begun = asking.stdout.read(4)
        asking.send_signal(signal.SIGINT)
        out, err = asking.communicate(timeout=PATIENCE)
    assert asking.returncode == 130
    assert err == b"anaphora: interrupted\n"
    if how:
        fields = json.loads(out)
        assert fields["interrupted"]
        assert "one two".startswith(fields["answer"][:7])
    else:
        assert (begun + out).startswith(b"one")
        assert (begun + out).endswith(b"\n")
        assert b"twelve" not in out
    assert not (home / "data").exists()


# ── Secrets ──────────────────────────────────────────────────────────────────────────────────────


class Parrot(BaseHTTPRequestHandler):
    """A provider that refuses a key by repeating it."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        key = self.headers["x-api-key"]
        error = {"type": "authentication_error", "message": f"invalid\nx-api-key: {key}"}
        body = json.dumps({"type": "error", "error": error}).encode()
        self.send_response(401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def test_key_in_a_provider_error_is_hidden(ask: Ask, home: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Parrot) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        (home / "llm.yaml").write_text(llm_yaml(f"http://127.0.0.1:{server.server_port}"))
        result = ask("hello")
        server.shutdown()
        thread.join()
    assert (result.code, result.out) == (7, "")
    assert result.err == (
        "anaphora: claude: invalid x-api-key: <secret> (401);"
        " check the key ($CLAUDE_FOR_THIS_TEST)\n"
    )


def test_token_in_the_url_of_an_error_is_hidden(ask: Ask, home: Path) -> None:
    (home / "llm.yaml").write_text(llm_yaml(f"http://127.0.0.1:1/{CANARY}/gateway"))
    result = ask("hello")
    assert result.code != 0
    assert "http://127.0.0.1:1/…/gateway" in result.err


@pytest.mark.parametrize("option", ["--key", "--api-key"])
def test_key_is_not_an_argument(ask: Ask, option: str) -> None:
    result = ask(option, CANARY, "hello")
    assert result.code == 2
    assert "a key is never an argument" in result.err
    assert "key: {env: NAME}" in result.err


# ── Completion ───────────────────────────────────────────────────────────────────────────────────


def test_shell_completion(ask: Ask, home: Path, run: Any) -> None:
    def complete(*words: str) -> list[str]:
        line = " ".join(("anaphora", "ask", *words))
        result = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) + 1)}
        found = run(_ANAPHORA_COMPLETE="bash_complete", **result).stdout
        return [row.removeprefix("plain,") for row in found.split()]

    assert complete("-m", "ma") == ["main"]
    assert complete("-m", "gpt/") == ["gpt/gpt-5.6", "gpt/gpt-5.2"]
    assert "gpt-5.2" in complete("-m", "gpt-5.2")
    (home / "llm.yaml").write_text("what: is this")
    assert complete("-m", "c") == []
