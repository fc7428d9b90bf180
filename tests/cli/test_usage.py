"""`anaphora usage`: what agent programs cost, and why."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from support.fleet_logs import SCRIPTS, logged, runs
from support.usage_home import CANARY, IDLE, MORNING, STEADY, claude_session, write_home
from support.waiting import PATIENCE

from anaphora.cli.usage import VIEWS
from anaphora.usage import collect, tasks

ROOT = Path(__file__).parents[2]
SESSION, LOG = (
    str(ROOT / "docs" / "examples" / f"{name}.jsonl") for name in ("session", "requests")
)
SHARED = ROOT.parent / "shared" / "sessions"
NAMED = "CLAUDE_CONFIG_DIR CODEX_HOME GEMINI_CLI_HOME OPENCODE_DATA_DIR COPILOT_HOME".split()
NAMED += "PI_CODING_AGENT_DIR PI_CODING_AGENT_SESSION_DIR OPENCODE_DB XDG_CONFIG_HOME".split()
NAMED += "XDG_DATA_HOME XDG_CACHE_HOME".split()


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in NAMED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    return tmp_path


@pytest.fixture
def home(empty_home: Path) -> Path:
    return write_home(empty_home)


@pytest.fixture
def usage(run: Any) -> Callable[..., str]:
    """The output of a run that succeeds."""

    def usage(*arguments: str, **extra: str) -> str:
        done = run("usage", *arguments, **extra)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    return usage


def report(usage: Callable[..., str], *arguments: str) -> Any:
    return json.loads(usage(*arguments, "--json"))


@contextmanager
def killed(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()


def test_the_page_answers_how_much_and_why(home: Path, usage: Any) -> None:
    page = usage()
    first, parts, second, *_ = page.splitlines()
    assert re.fullmatch(r"of this \$0\.\d+ \D+\$0\.\d+ \D+\$0\.\d+ \D+ and \$0\.\d+ \D+", parts)
    assert first == (
        "$0.2984 at API prices from 2026-11-02 to 2026-11-03: 8 calls of Claude Code and Codex"
    )
    assert second == (
        "$0.0718 (24%) of it billed again for 20.8k tokens that had been cached,"
        " none of that avoidable by a setting or a habit"
    )
    assert re.search(r"^2026-11-02 +4 +84k +50% +240 +\$0.1751  \$0.0718$", page, re.MULTILINE)
    assert re.search(r"^Codex +1 +9k +46% +70 +\$0.0287$", page, re.MULTILINE)
    assert "   $0.0718  cache entry expired: 1 call, 20.8k tokens\n" in page
    assert "\x1b" not in page
    assert "█" not in page
    assert usage() == page, "a later run reads nothing"


@pytest.mark.parametrize("view", [view for view in VIEWS if view != "losses"])
def test_views_have_the_same_total(home: Path, usage: Any, view: str) -> None:
    shown = report(usage, view)
    assert shown["by"] == view
    assert shown["total"]["calls"] == sum(row["calls"] for row in shown["rows"]) == 8
    total = sum(Decimal(row["usd"]) for row in shown["rows"])
    assert Decimal(shown["total"]["usd"]) == total
    assert sum(Decimal(row["lost_usd"]) for row in shown["rows"]) == Decimal(
        shown["total"]["lost_usd"]
    )
    assert usage(view).splitlines()[0].startswith("$0.2984 at API prices")


@pytest.mark.parametrize(
    "arguments, calls",
    [
        (["--program", "codex"], 1),
        (["--program", "claude_code", "--program", "codex"], 8),
        (["--project", "/work/shop"], 7),
        (["--project", "api"], 3),
        (["--since", "2026-11-03"], 4),
        (["--until", "2026-11-02"], 4),
        (["--since", "2026-11-02", "--until", "2026-11-02T09:30"], 2),
        (["session", STEADY[:8]], 3),
    ],
)
def test_filters(home: Path, usage: Any, arguments: list[str], calls: int) -> None:
    shown = report(usage, *arguments)
    assert shown.get("usage", shown)["total"]["calls"] == calls


def test_nothing_in_the_time_is_no_error(home: Path, usage: Any) -> None:
    assert (
        usage("--since", "2026-12-01")
        == "no calls in this time, of these programs and of this project;"
        " there are some from 2026-11-02 to 2026-11-03\n"
    )
    one = ("--since", "2026-12-01", "--program", "codex")
    assert usage(*one).endswith("; there are some on 2026-11-03\n")
    assert report(usage, *one)["days"] == ["2026-11-03", "2026-11-03"]
    assert usage("--since", "2026-12-01", "--project", "/none").endswith("of this project\n")
    logs = str(ROOT / "docs" / "examples" / "requests.jsonl")
    days = report(usage, logs)["rows"]
    none = report(usage, logs, "--since", "2036-12-01")
    assert none["days"] == [days[0]["name"], days[-1]["name"]]


def test_remedy_that_its_user_cannot_apply_is_not_shown(home: Path, usage: Any, run: Any) -> None:
    """Claude Code has no setting that keeps a prefix warm; its user can ask for a longer TTL."""
    for page in (
        usage("session", IDLE),
        run("explain", *map(str, home.rglob(f"{IDLE}.jsonl"))).stdout,
    ):
        assert "Miss: none of 20,800 cached tokens read" in page
        assert "warm" not in page
    # The dearer writes of both sessions would have cost more than the one loss.
    assert "No lifetime would have paid" in usage()
    assert "promptCacheTtl" not in usage()


def test_losses_have_their_file_and_line(home: Path, usage: Any) -> None:
    page = usage("losses")
    assert "1. $0.0718  cache entry expired, 20,800 tokens billed again\n" in page
    assert f"~/.claude/projects/-work-shop/{IDLE}.jsonl:6\n" in page
    (row,) = report(usage, "losses")["most_expensive"]
    assert (row["cause"], row["line"], row["session"]) == ("expired", 6, IDLE)
    assert usage("losses", "--since", "2026-11-03").count("again") == 2
    for name in map("{:08x}-1111-4222-8333-444455556666".format, range(12)):
        file = home / ".claude" / "projects" / "-work-shop" / f"{name}.jsonl"
        file.write_bytes(claude_session(name, MORNING, [0, 1, 60, 1], "/work/shop"))
    page = usage("losses")
    assert "\n10. $" in page
    assert "and 3 losses more: anaphora usage losses all\n" in page
    assert "\n13. $" in usage("losses", "all")
    assert len(report(usage, "losses")["most_expensive"]) == 13


def test_losses_print_a_command_that_works(home: Path, usage: Any, tmp_path: Path) -> None:
    elsewhere = tmp_path / "my sessions"
    (home / ".claude").rename(elsewhere)
    lines = usage("losses", str(elsewhere)).splitlines()
    [command] = [line for line in lines if line.startswith(f"   anaphora usage session {IDLE}")]
    page = usage(*shlex.split(command)[2:])
    assert page == usage("session", IDLE, str(elsewhere))
    assert "20,800" in page


def test_a_session_call_by_call(home: Path, usage: Any, run: Any) -> None:
    page = usage("session", IDLE[:6])
    assert page.startswith(f"Claude Code, /work/shop\nsession {IDLE}\n")
    assert "turn 3 (+60 min): Miss: none of 20,800 cached tokens read" in page
    shown = report(usage, "session", IDLE)
    assert [call["result"] for call in shown["calls"]] == ["first", "hit", "miss", "hit"]
    assert shown["usage"]["total"]["calls"] == 4
    missing = run("usage", "session", "zzz")
    assert missing.returncode == 2
    assert "no session's id begins with 'zzz'" in missing.stderr


def test_text_of_prompts_is_shown_on_request_only(
    home: Path, usage: Any, run: Any, tmp_path: Path
) -> None:
    outputs = [usage(view, *form) for view in VIEWS for form in ((), ("--json",))]
    outputs += [usage("session", IDLE), usage("session", IDLE, "--json"), usage("--html", "-")]
    (home / ".claude" / "projects" / "broken.jsonl").write_text(f'{{"type": "{CANARY}\n')
    done = run("usage", "project")
    outputs += [done.stdout, done.stderr]
    assert CANARY not in "".join(outputs)
    kept = [*(home / ".cache" / "anaphora").iterdir()]
    assert len(kept) >= 2
    for file in kept:
        assert CANARY.encode() not in file.read_bytes()
        assert file.stat().st_mode & 0o077 == 0
    shown = usage("session", IDLE)
    assert re.search(
        r"^anaphora explain \S+\.jsonl shows text of the prompts$", shown, re.MULTILINE
    )


def test_a_broken_line_is_named(home: Path, usage: Any) -> None:
    file = home / ".claude" / "projects" / "-work-shop" / f"{IDLE}.jsonl"
    file.write_bytes(file.read_bytes() + b'{"message": {"usage": \n' + b'{"type": "summary"}\n')
    page = usage()
    assert "8 calls" in page
    assert "Problems: 1\n" in page
    assert f"{IDLE}.jsonl:9: " in page


def test_names_are_neither_formulas_nor_commands_to_a_terminal(home: Path, usage: Any) -> None:
    new = claude_session("new", MORNING, [0, 1], "=1+1\x1b[31m\n")
    (home / ".claude" / "projects" / "-work-shop" / "new.jsonl").write_bytes(new)
    outputs = [usage("project", *form) for form in ((), ("--json",))]
    assert not any("\x1b" in shown for shown in outputs)


def test_unknown_models_are_listed_with_their_tokens(home: Path, usage: Any) -> None:
    new = claude_session("new", MORNING, [0, 1], "/work/new", model="claude-next-9")
    (home / ".claude" / "projects" / "-work-shop" / "new.jsonl").write_bytes(new)
    page = usage()
    assert page.startswith("$0.2984+ at API prices")
    assert "  anthropic/claude-next-9: 2 calls, 41.3k tokens\n" in page
    assert "unknown" in usage("model").split("claude-next-9")[1].splitlines()[0]


def test_files_and_folders_that_are_named(home: Path, usage: Any, tmp_path: Path) -> None:
    folder = home / ".claude" / "projects" / "-work-shop"
    assert report(usage, str(folder))["total"]["calls"] == 4
    both = [str(folder), str(home / ".codex")]
    assert report(usage, "model", *both)["total"]["calls"] == 5
    example = ROOT / "docs" / "examples" / "session.jsonl"
    assert report(usage, str(example))["total"]["calls"] > 1


def test_a_copy_counts_once(home: Path, usage: Any) -> None:
    folder = home / ".claude" / "projects" / "-work-shop"
    shutil.copy(folder / f"{IDLE}.jsonl", folder / "resumed.jsonl")
    assert report(usage)["total"]["calls"] == 8


def test_places_are_listed_if_nothing_is_found(empty_home: Path, run: Any) -> None:
    done = run("usage", CODEX_HOME="/nowhere")
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == "anaphora: no session file of an agent program was found in these places:"
    assert lines[1].startswith("  Claude Code: ~/.claude, ~/.config/claude (CLAUDE_CONFIG_DIR")
    assert "  Codex: /nowhere (CODEX_HOME names another)" in lines
    assert len(lines) == 8


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["dayly"], "'dayly' is neither a view (daily, weekly,"),
        (["dayly"], "Did you mean 'daily'?"),
        ([".", "session"], "the view comes first: anaphora usage session ..."),
        (["--json", "--html", "-"], "--json or --html, not both"),
        (["--watch", "--html", "-"], "--watch prints to the terminal: leave --html out"),
        ([LOG, "--watch"], "--watch cannot be used with logs"),
        ([LOG, SESSION], f"{LOG} is a log, {SESSION} is not"),
        (["nowhere.jsonl"], "'nowhere.jsonl' is neither a view"),
        (["--on", "ray"], "--on and --out are for logs"),
        (["session", IDLE, "--html", "-"], "one session is printed as text or with --json"),
        (["--since", "tomorrow"], "'tomorrow' is neither a date (2026-11-30"),
        (["--program", "vim"], "'vim' is not one of 'claude-code'"),
    ],
)
@pytest.mark.long
def test_usage_errors(home: Path, run: Any, arguments: list[str], message: str) -> None:
    done = run("usage", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_file_of_no_program_is_a_usage_error(empty_home: Path, run: Any) -> None:
    (empty_home / "notes.jsonl").write_text('{"hello": 1}\n')
    done = run("usage", str(empty_home / "notes.jsonl"))
    assert done.returncode == 2
    assert "notes.jsonl: no session file of an agent program" in done.stdout


def test_many_rows_are_cut_with_a_notice(home: Path, usage: Any) -> None:
    folder = home / ".claude" / "projects" / "-many"
    folder.mkdir()
    for number in range(40):
        content = claude_session(f"many-{number:02}", MORNING, [0], f"/work/many/{number:02}")
        (folder / f"{number}.jsonl").write_bytes(content)
    assert "and 12 projects that cost less: --json has them\n" in usage("project")
    assert len(report(usage, "project")["rows"]) == 43


def test_a_terminal_has_bars_in_colour(home: Path, usage: Any) -> None:
    page = usage(FORCE_COLOR="1", COLUMNS="80")
    assert "\x1b[36m█" in page
    assert "\x1b[31m▒" in page
    plain = usage(FORCE_COLOR="1", NO_COLOR="1", COLUMNS="80")
    assert "\x1b[36m" not in plain
    assert all(len(line) <= 80 for line in plain.splitlines())
    narrow = usage(FORCE_COLOR="1", NO_COLOR="1", COLUMNS="36")
    assert "█" not in narrow
    assert all(len(line) <= 36 for line in narrow.splitlines())


@pytest.mark.parametrize("kind", [tasks.ReadTask, tasks.JudgeTask])
def test_an_interrupted_run_prints_what_is_known(
    home: Path, run: Any, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    def interrupted(given: list[Any]) -> Any:
        if isinstance(given[0], kind):
            raise KeyboardInterrupt
        return tasks.work(given)

    monkeypatch.setattr(collect, "work", interrupted)
    ended = run("usage")
    assert (ended.returncode, ended.stderr) == (130, "")
    if kind is tasks.ReadTask:
        assert ended.stdout == "interrupted before any call was read\n"
    else:
        assert ended.stdout.startswith(
            "$0.2984 at API prices from 2026-11-02 to 2026-11-03: 8 calls"
        )
        assert "incomplete: interrupted before all calls were read and judged\n" in ended.stdout


def test_progress_is_shown_on_a_terminal(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import sys\nfrom anaphora.cli import usage_sources\nusage_sources._PATIENCE = 0\n"
        "from anaphora.cli.main import main\nsys.exit(main(['usage', 'program']))"
    )
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:
            pass  # the other end is closed
        assert process.wait(PATIENCE) == 0
    os.close(ours)
    assert b"reading: " in shown
    assert b" so far; Ctrl-C shows what is known" in shown
    assert shown.endswith(b"\r\x1b[2K")


def test_watch_shows_what_is_added_until_it_is_interrupted(home: Path) -> None:
    words = [sys.executable, "-m", "anaphora", "usage", "--watch", "--json"]
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
        killed(process),
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["total"]["calls"] == 8
        later = claude_session("later", MORNING, [0, 1], "/work/later")
        (home / ".claude" / "projects" / "-work-shop" / "later.jsonl").write_bytes(later)
        assert json.loads(process.stdout.readline())["total"]["calls"] == 10
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
        assert process.stderr.read() == b""


def test_html_is_one_private_file(home: Path, run: Any, tmp_path: Path) -> None:
    file = tmp_path / "usage.html"
    done = run("usage", "--html", str(file))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr == f"the report is in {file}\n"
    assert file.stat().st_mode & 0o777 == 0o600
    text = file.read_text()
    for words in ("cache entry expired", "By project", "Most expensive losses", "$0.0718"):
        assert words in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_completion_offers_views_and_files(home: Path, run_process: Any) -> None:
    def complete(*words: str) -> list[str]:
        line = " ".join(("anaphora", "usage", *words))
        found = run_process(
            _ANAPHORA_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) + 1)
        )
        return [text for text in found.stdout.splitlines() if text.startswith("plain,")]

    assert complete("mo") == ["plain,monthly", "plain,model"]
    assert complete("--program", "co") == ["plain,codex", "plain,copilot"]


def test_request_logs(empty_home: Path, usage: Any, tmp_path: Path) -> None:
    log = tmp_path / "gateway.jsonl"
    calls = [
        logged(one, f"c-{n}") for n, run in enumerate(runs("openai_chat")) for one in run.exchanges
    ]
    log.write_text("".join(json.dumps(call) + "\n" for call in calls))
    shown = report(usage, "model", str(log))
    assert shown["total"]["calls"] == len(calls)
    assert {row["cause"] for row in shown["causes"]} == set(filter(None, SCRIPTS.values()))
    assert "Why cached tokens were billed again\n" in usage(str(log))
    losses = usage("losses", str(log))
    assert "1. $" in losses
    assert "usage session" not in losses  # it does not read logs
    assert usage(str(log), "--html", "-").startswith("<!doctype html>")


@pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"no session files beside the repository ({SHARED})"
)
@pytest.mark.long
def test_real_sessions(empty_home: Path, usage: Any) -> None:
    folder = empty_home / ".claude" / "projects" / "-real"
    folder.mkdir(parents=True)
    for file in (SHARED / "claude_code").glob("*.gz"):
        (folder / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    shown = report(usage, "session")
    assert shown["total"]["calls"] > 500
    assert Decimal(shown["total"]["lost_usd"]) > 1
    assert not shown["problems"]
    most_expensive = max(shown["rows"], key=lambda row: Decimal(row["usd"]))
    page = usage("session", most_expensive["name"][:12])
    assert f"session {most_expensive['name']}\n" in page
    assert "Call by call\n" in page
