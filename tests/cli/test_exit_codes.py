"""Exit codes: every command with every kind of wrong input.

0 ok; 1 a check found something, or a part of the input could not be read; 2 invalid options, or
nothing in the input can be read; 7 a key or a package is missing; 130 interrupted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.rich import REQUESTS
from support.tables import each_row
from support.waiting import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
#: What a file may hold that no command can use.
UNREADABLE: dict[str, bytes] = {
    "empty.json": b"",
    "empty.jsonl": b"",
    "blank.jsonl": b"\n \n",
    "words.json": b"not JSON\n",
    "words.jsonl": b"not JSON\n",
    "binary.json": b"\xff\xfe\x00",
    "binary.jsonl": b"\xff\xfe\x00",
    "binary.dat": b"\xff\xfe\x00",
    "cut.json": b'{"model": "claude-sonnet-4-5", "messages": [',
    "cut.jsonl.gz": b"\x1f\x8b\x08\x00",
    "object.json": b'{"a": 1}',
    "object.jsonl": b'{"a": 1}\n',
    "list.json": b"[]",
    "number.json": b"5",
    "null.jsonl": b"null\n",
}
#: Commands that read files, and whether they take several; `good` is a file that each accepts.
READERS: dict[str, bool] = {
    "explain": True,
    "simulate": True,
    "lint": True,
    "translate --to openai": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name, data in UNREADABLE.items():
        (folder / name).write_bytes(data)
    (folder / "folder").mkdir()
    (folder / "notes").mkdir()
    (folder / "notes" / "notes.txt").write_text("no log")
    (folder / "session.jsonl").write_bytes((EXAMPLES / "session.jsonl").read_bytes())
    (folder / "request.json").write_text(json.dumps(REQUESTS["anthropic"]))
    (folder / "prompt.txt").write_text("You are terse.")
    return folder


GOOD = {"explain": "session.jsonl", "simulate": "session.jsonl", "lint": "prompt.txt"}


def long(*values: object) -> Any:
    """Values of a test that starts a process: others like them are kept in each run."""
    return pytest.param(*values, marks=pytest.mark.soak)


def failed(done: Any, code: int, name: str = "") -> None:
    """The exit code, nothing on standard output, and a message without a traceback."""
    assert (done.returncode, done.stdout) == (code, ""), (done.args, done.stderr)
    assert done.stderr.strip(), done.args
    assert name in done.stderr, done.args
    assert "internal error" not in done.stderr, done.args
    assert "Traceback" not in done.stderr, done.args


@pytest.mark.parametrize("command", READERS)
def test_nothing_readable_is_2(run: Any, folder: Path, command: str) -> None:
    options: list[list[str]] = [[]]
    if command != "lint" and "--json" in run(*command.split(), "--help").stdout:
        options.append(["--json"])
    for name in UNREADABLE:
        for option in options:
            done = run(*command.split(), *option, str(folder / name))
            failed(done, 2, "" if command.startswith("translate") else name)


@pytest.mark.parametrize("command", READERS)
def test_lone_surrogate_is_named(run: Any, tmp_path: Path, command: str) -> None:
    r"""Also near the end of a file. `\\ud800` is six characters, and a pair is one."""
    file = tmp_path / "request.json"
    for text, byte in ((r"\ud800", 59), (r"\ud83d\ude00 \\ud800 \udE00 x", 80)):
        start = '{"model":"gpt-5.2","messages":[{"role":"user","content":"a '
        file.write_text(f'{start}{text}"}}]}}')
        result = run(*command.split(), str(file))
        code = text.split("u")[-1][:4].upper()
        assert f"lone surrogate U+{code} at byte {byte} is not valid Unicode" in result.stderr
        assert result.returncode == 2


@pytest.mark.parametrize("command", READERS)
def test_no_file_and_folder_without_logs_are_2(run: Any, folder: Path, command: str) -> None:
    for name in ("missing.json", "folder", "notes"):
        failed(run(*command.split(), str(folder / name)), 2, name)


@pytest.mark.parametrize("command", GOOD)
@pytest.mark.long
def test_one_unreadable_file_of_two_is_1(run: Any, folder: Path, command: str) -> None:
    """The other one is worked on, and the unreadable one is named."""
    good = str(folder / GOOD[command])
    alone = run(*command.split(), good)
    assert alone.returncode in (0, 1)
    for name in UNREADABLE.keys() - {"binary.dat"}:
        bad = str(folder / name)
        for files in ((good, bad), (bad, good)):
            done = run(*command.split(), *files)
            assert done.returncode == 1, done.args
            assert bad in done.stdout + done.stderr
            assert alone.stdout.splitlines()[0] in done.stdout, done.args
        both = run(*command.split(), "--json", good, bad)
        assert both.returncode == 1, both.args
        assert json.loads(both.stdout), both.args


@pytest.mark.parametrize("command", READERS)
def test_file_that_cannot_be_read_is_2(run: Any, tmp_path: Path, command: str) -> None:
    if os.geteuid() == 0:  # every permission, but no page at address 0
        (tmp_path / "secret.json").symlink_to("/proc/self/mem")
    else:
        (tmp_path / "secret.json").touch(0o000)
    failed(run(*command.split(), str(tmp_path / "secret.json")), 2, "secret.json")


@pytest.mark.parametrize("command", GOOD)
def test_file_that_fails_while_it_is_read_is_named(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Permission lost, a disk error: the others are still worked on."""
    real = Path.open

    def fail(self: Path, *arguments: Any, **options: Any) -> Any:
        if self.name == "torn.jsonl":
            raise OSError(5, "Input/output error")
        return real(self, *arguments, **options)

    torn = folder / "torn.jsonl"
    torn.write_text("{}")
    monkeypatch.setattr(Path, "open", fail)
    failed(run(*command.split(), str(torn)), 2, "torn.jsonl: cannot be read: Input/output error")
    done = run(*command.split(), str(folder / GOOD[command]), str(torn))
    assert done.returncode == 1
    assert "Input/output error" in done.stdout + done.stderr
    torn.unlink()


@each_row(
    "arguments, message",
    [
        ("simulate {session} --as nosuch/model", "unknown provider 'nosuch'"),
        ("simulate {session} --as nosuch", "not of the form provider/model"),
        ("explain {session} --gap -1", "'-1' is out of range: at least 0"),
        ("explain {session} --gap soon", "'soon' is not a time; write 500ms, 30s, 5m"),
        ("apps rotate app --overlap 1x", "'1x' is not a time; write 30m, 12h, 7d, or a number of"),
        ("apps rotate app --overlap 400d", "'400d' is out of range: at least 0 and at most 8784"),
        ("apps rotate app --overlap nan", "'nan' is not a time"),
        ("admin token --days 0h", "'0h' is out of range: more than 0 and at most 366 days"),
        ("store prune --keep-days long", "'long' is not a time; write 12h, 30d, 8w"),
        ("audit prune log --keep-days long", "'long' is not a time; write 12h, 30d, 8w"),
        ("lint {prompt} --samples", "needs at least two samples"),
        ("translate {request} --to nosuch", "'nosuch'"),
        ("translate {request}", "--to"),
        ("config check {words}", "No such command 'check'"),
        ("admin list", "No such command 'list'"),
        ("spend --watch", "No such option '--watch'"),
        ("emulate --port abc", "'abc'"),
        ("emulate --port 99999", "99999"),
        ("emulate --port -1", "-1"),
        ("emulate --script {binary}", "binary.json"),
        ("emulate --faults {binary}", "binary.json"),
        ("emulate --script {words}", "words.json"),
        ("emulate --faults {object}", "object.json"),
        ("emulate --latency soon", "'soon'"),
        ("emulate --providers nosuch", "'nosuch'"),
        ("ask --emulate -m nosuch/x hi", "nosuch"),
        ("ask --emulate --continue hi", "No such option"),
        ("rules show anthropic", "No such command 'rules'"),
        ("ask --emulate --schema {words} hi", "words.json"),
        ("ask --emulate --schema {binary} hi", "binary.json"),
        ("ask --emulate -f {binary} hi", "binary.json"),
        ("ask --emulate -f nosuch.txt hi", "nosuch.txt"),
        ("completion cmd", "'cmd'"),
        ("config", ""),
    ],
)
def test_invalid_options_are_2(
    run: Any, folder: Path, tmp_path: Path, arguments: str, message: str
) -> None:
    places = {
        "session": "session.jsonl",
        "words": "words.json",
        "binary": "binary.json",
        "object": "object.json",
        "prompt": "prompt.txt",
        "request": "request.json",
    }
    files = {name: str(folder / file) for name, file in places.items()}
    words = [word.format(**files) for word in arguments.split()]
    failed(run(*words, XDG_DATA_HOME=str(tmp_path), HOME=str(tmp_path)), 2, message)


@pytest.mark.parametrize(
    "wrong, meant",
    [
        ("modls", "'models'"),
        ("simulat", "'simulate'"),
        ("config schem", "'schema'"),
        ("ask --emulat", "--emulate"),
        ("xyzzy", ""),
    ],
)
def test_misspelled_commands_and_options(run: Any, wrong: str, meant: str) -> None:
    done = run(*wrong.split())
    failed(done, 2, meant)
    assert ("Did you mean" in done.stderr) == bool(meant)


def test_no_match_is_1(run: Any) -> None:
    for options in ((), ("--json",)):
        done = run("models", "nosuch", *options)
        assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize("command", ["demo", "emulate", "ask --emulate hi"])
def test_missing_package_is_7(run: Any, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    failed(run(*command.split()), 7, "pip install 'anaphora[emulator]'")


@pytest.mark.parametrize(
    "command, code",
    [
        long("ask --emulate hi <&-", 0),
        ("ask --emulate <&-", 2),
        long("ask --emulate - <&-", 2),
        long("ask --emulate -f - hi <&-", 2),
        ("translate --to openai - <&-", 2),
        ("ask --emulate hi >&-", 0),
        long("ask --emulate hi 2>&-", 0),
        ("models >&-", 0),
        long("models --json >&-", 0),
        ("nosuch 2>&-", 2),
    ],
)
@pytest.mark.long
def test_closed_streams(environment: Any, command: str, code: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m anaphora {command}"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == code, done.stderr
    assert "internal error" not in done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("head") is None, reason="no head here")
@pytest.mark.parametrize(
    "command", [long("models"), "models --json", long("--help"), "ask --emulate hi"]
)
@pytest.mark.long
def test_closed_pipe_is_silent(environment: Any, command: str) -> None:
    line = f"set -o pipefail; {sys.executable} -m anaphora {command} | head -c 1 > /dev/null"
    done = subprocess.run(
        ["bash", "-c", line], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "Broken pipe" not in done.stderr


@pytest.mark.parametrize("command", ["translate --to openai -", "ask --emulate -"])
def test_interrupted_is_130(run: Any, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """While it waits for standard input."""

    def wait(size: int = -1) -> bytes:
        raise KeyboardInterrupt

    stdin = SimpleNamespace(buffer=SimpleNamespace(read=wait), isatty=lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)
    done = run(*command.split())
    failed(done, 130, "anaphora: interrupted")
