"""Control characters of apps and providers: never in a terminal, a log, a CSV file or a page."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon import GRANT, TestedDaemon, llm_yaml, running_daemon
from support.dashboard_data import fill_log, filled_daemon, hostile_calls
from support.event_loops import in_event_loop
from support.ledgers import NOON, Clock, an_app, opened
from support.scripted_provider import ScriptedProvider, scripted_provider
from support.tables import each_row
from support.ui import viewer

from anaphora.cli.common import report_problems
from anaphora.cli.terminal import AnswerPrinter, Line, Terminal, answer_on, print_lines
from anaphora.daemon.access.grants import NANO
from anaphora.daemon.access.identity import ADMIN
from anaphora.daemon.monitoring import JsonLog
from anaphora.emulator.server import Emulator
from anaphora.values import Usage
from anaphora.wording import visible, visible_json

Run = Callable[..., Any]

#: Clears a terminal, in the old form and in the 8-bit one; turns text around; begins a new line in
#: four ways.
HOSTILE = "evil\x1b[2J\x9b2J\u202egnp.exe\u2066\u2028\x85\r\nfake\tline\x7f\x07"
SHOWN = r"evil\u001b[2J\u009b2J\u202egnp.exe\u2066\u2028\u0085\r\nfake\tline\u007f\u0007"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
FORMULA = "=cmd|'/c calc'!A1"
PROVIDER = "ollama"
#: Blanks in HTML, wherever they stand, and what `<bdi>` isolates.
_BLANKS = str.maketrans("\t\r\u202e\u2066", "    ")
PAGES = ("", "/conversations", "/blocks", "/apps", "/providers", "/audit")


@each_row(
    "text, keep, expected",
    [
        ("plain", "", "plain"),
        ("naïve, 日本 and 👩‍🚀", "", "naïve, 日本 and 👩‍🚀"),
        (HOSTILE, "", SHOWN),
        ("a\n\tb\x1b", "\n\t", "a\n\tb\\u001b"),
        ("\ud800", "", r"\ud800"),
    ],
)
def test_visible(text: str, keep: str, expected: str) -> None:
    assert visible(text, keep) == expected


def test_visible_json_is_the_same_json() -> None:
    data = json.dumps({"a": HOSTILE}, ensure_ascii=False).encode()
    assert json.loads(visible_json(data)) == {"a": HOSTILE}
    assert CONTROL.search(visible_json(data).decode()) is None


@pytest.fixture(scope="module")
def provider() -> Iterator[ScriptedProvider]:
    with scripted_provider() as running:
        yield running


@pytest.fixture(scope="module")
def daemon(
    provider: ScriptedProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestedDaemon]:
    """A daemon after calls of an app, and answers of a provider, with hostile names in them."""
    llm = llm_yaml(provider.url)
    for entry in llm["providers"].values():
        entry["prices"] = {"*": {"input": 1, "output": 2}}
    folder = tmp_path_factory.mktemp("hostile")
    with running_daemon(folder, provider, llm=llm, extensions={"demo": GRANT}) as running:
        _make_calls(running, provider)
        yield running


def _make_calls(daemon: TestedDaemon, provider: ScriptedProvider) -> None:
    headers = {"anaphora-provider": PROVIDER, "user-agent": b"app/\xc2\x9b2J"}
    with daemon.client(headers={**daemon.headers(), **headers}) as http:
        body = {
            "model": "qwen3:0.6b",
            "messages": [{"role": "user", "content": HOSTILE}],
            "tools": [{"type": "function", "function": {"name": HOSTILE, "parameters": {}}}],
            "stream": False,
        }
        refused = http.post("/v1/chat/completions", json={**body, "model": HOSTILE})
        assert refused.status_code == 400
        for answering in (HOSTILE, FORMULA):
            provider.model = answering
            answer = http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
        error = json.dumps({"error": f"no {HOSTILE}"}, ensure_ascii=False)
        provider.error = 400, error.encode()
        assert http.post("/v1/chat/completions", json=body).status_code == 400
        for label in (HOSTILE, FORMULA):
            params = {
                "provider": PROVIDER,
                "model": "qwen3:0.6b",
                "system": [{"label": label, "text": "Be terse."}],
                "messages": [{"role": "user", "content": "Hello"}],
            }
            call = {"jsonrpc": "2.0", "id": 1, "method": "llm.complete", "params": params}
            reply = http.post("/rpc", json=call).json()
            assert "result" in reply, reply
        http.post("/v1/chat/completions", json={"model": HOSTILE, "messages": HOSTILE})
        http.get("/v1/models/%1b%5b2J%c2%9b")


def check_output(*texts: str) -> None:
    for text in texts:
        found = CONTROL.search(text)
        assert found is None, text[max(0, found.start() - 60) : found.end()]


@pytest.mark.parametrize(
    "command",
    [
        "spend --home HOME --by app,model,label",
        "spend --home HOME --json",
        "apps list --home HOME",
        "grants check demo --home HOME",
        "audit show HOME",
        "audit report HOME",
    ],
)
def test_commands_beside_a_daemon(daemon: TestedDaemon, run: Run, command: str) -> None:
    done = run(*command.replace("HOME", str(daemon.home)).split())
    assert done.returncode == 0, done.stderr
    check_output(done.stdout, done.stderr)
    if "label" in command:
        assert "evil" in done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a ledger and an audit log that hold hostile names: as written by an earlier
    version, or by another program."""
    home = tmp_path_factory.mktemp("stored")
    home.chmod(0o700)
    (home / "llm.yaml").write_text("providers: {}\n")

    @in_event_loop
    async def fill() -> None:
        async with opened(home / "store.sqlite", Clock(NOON)) as ledger:
            for name in (HOSTILE, FORMULA):
                hold = await ledger.hold(
                    an_app("shop"), provider=name, model=name, request_id=name, bound=NANO
                )
                await hold.settle(NANO, "billed", usage=Usage(uncached=9), labels={name: NANO})

    fill()
    fill_log(home / "audit", hostile_calls(NOON, (HOSTILE, FORMULA)))
    return home


@pytest.mark.parametrize(
    "command",
    [
        "spend --home HOME",
        "spend --home HOME --by app,model,label",
        "spend --home HOME --json",
        "audit show HOME/audit",
        "audit show HOME/audit --json",
        "audit show HOME/audit --row 1",
        "audit report HOME/audit",
        "audit report HOME/audit --json",
    ],
)
@pytest.mark.parametrize("columns", ["", "40"])
def test_stored_names_are_shown_as_escapes(
    home: Path, run: Run, command: str, columns: str
) -> None:
    """Also in columns that are folded, and in records."""
    words = command.replace("HOME", str(home)).split()
    done = run(*words, **({"COLUMNS": columns} if columns else {}))
    assert done.returncode == 0, done.stderr
    check_output(done.stdout, done.stderr)
    if "--row" not in command:
        assert r"\u202e" in done.stdout.replace("\n", "")


def test_pages_show_escapes(running_emulator: Emulator, tmp_path: Path) -> None:
    calls = hostile_calls(time.time(), (HOSTILE, FORMULA))
    with filled_daemon(tmp_path, running_emulator, calls) as daemon, viewer(daemon) as ui:
        ui.log_in(daemon.token(ADMIN))
        page = ui.until("/ui/audit?range=month", "evil")
        assert r"evil\u001b[2J\u009b2J" in page
        for path in PAGES:
            check_output(ui.get(f"/ui{path}?range=month").text.translate(_BLANKS))


def test_logs_have_escapes(daemon: TestedDaemon) -> None:
    for file in daemon.home.glob("*.log"):
        text = file.read_text()
        assert CONTROL.search(text) is None, file


def test_lines_of_pages_and_problems_have_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    """As `watch`, `explain`, `lint` and `replay` print them."""
    file = io.StringIO()
    lines: list[Line] = [HOSTILE, (f"\n{HOSTILE}", "bold"), [HOSTILE, (HOSTILE, "red")]]
    print_lines(Terminal(file=file), lines)
    assert file.getvalue().splitlines() == [
        SHOWN.replace(r"\t", "    "),
        "",
        SHOWN.replace(r"\t", "    "),
        SHOWN.replace(r"\t", "    ") + SHOWN.replace(r"\t", "    "),
    ]
    report_problems([HOSTILE])
    printer = AnswerPrinter(quiet=False, silent=False)
    printer.note(HOSTILE)
    printer.warn(HOSTILE)
    written = capsys.readouterr().err
    check_output(written)
    assert written.count("\n") == 3


def test_provider_errors_have_escapes(provider: ScriptedProvider, tmp_path: Path, run: Run) -> None:
    """What a provider writes into its error, on standard error of a command."""
    config = {"providers": {"p": {"wire": "ollama", "base_url": provider.url, "model": "m"}}}
    file = tmp_path / "llm.yaml"
    file.write_text(json.dumps(config))
    provider.error = 400, json.dumps({"error": HOSTILE}, ensure_ascii=False).encode()
    done = run("ask", "-m", "p/m", "Hello?", ANAPHORA_CONFIG=str(file))
    assert done.returncode != 0
    assert "evil" in done.stderr
    check_output(done.stdout, done.stderr)


def test_log_lines_have_escapes(tmp_path: Path) -> None:
    log = JsonLog(tmp_path / "daemon.log")
    log.line("warning", HOSTILE, app=HOSTILE)
    log.close()
    text = (tmp_path / "daemon.log").read_text()
    assert CONTROL.search(text) is None
    assert text.count("\n") == 1
    assert json.loads(text)["app"] == HOSTILE


def test_answers_keep_their_lines_on_a_terminal() -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    answer = "one\n\ttwo\x1b[2J\x9b\r\u200fthree"
    assert answer_on(Screen(), answer) == "one\n\ttwo[2J\u200fthree"
    assert answer_on(io.StringIO(), answer) == answer
