"""`anaphora audit`: what it prints, exports and sums up."""

from __future__ import annotations

import csv
import io
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from support.audit_logs import envelope

from anaphora.audit import AuditBlock, AuditEnvelope, AuditLog, AuditUsage, calls
from anaphora.cli.audit_report import bar

DAY = 86_400.0
#: Noon of a day in UTC.
NOON = 1_800_014_400.0 // DAY * DAY + DAY / 2


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("audit") / "audit"
    block = AuditBlock(label="rules", kind="system", tokens=900, marker=True, ttl="1h", digest="d")
    usage = AuditUsage(uncached=100, read=800, written={"5m": 100}, output=50)
    with AuditLog(path, app="shop", node="n1") as log:
        for number in range(6):
            log.append(
                envelope(
                    number,
                    at=NOON + number // 2 * DAY,
                    model="claude-sonnet-5-5" if number % 2 else "gpt-6.1-sol",
                    usage=usage,
                    cost_nano_usd=1_500_000_000,
                    saved_nano_usd=500_000_000,
                    labels=("checkout",) if number < 4 else (),
                    blocks=(block,),
                )
            )
        log.append(
            envelope(
                6,
                at=NOON + 2 * DAY,
                outcome="ok",
                usage=usage,
                cost_nano_usd=None,
                broke=True,
                verdict="miss",
                cause="changed",
                change="date",
                changed="rules",
                lost=800,
                lost_nano_usd=200_000_000,
                labels=("=cmd()",),
            )
        )
        log.append(envelope(7, at=NOON + 3 * DAY, outcome="RateLimited", cost_nano_usd=None))
    return path


def test_verify_says_what_it_checked(run: Any, log: Path) -> None:
    done = run("audit", "verify", str(log))
    assert done.returncode == 0, done.stderr
    assert "the chain of 11 rows in 1 segment is whole" in done.stdout
    assert "without --anchor, a truncated log is not detected" in done.stdout
    value = json.loads(run("audit", "verify", str(log), "--json").stdout)
    assert (value["ok"], value["rows"], value["last"]) == (True, 11, 11)


def test_an_anchor_can_be_kept_by_another_program(run: Any, log: Path, tmp_path: Path) -> None:
    copy, anchor = tmp_path / log.name, str(tmp_path / "anchor")
    shutil.copytree(log, copy)
    assert run("audit", "verify", str(copy), "--update").returncode == 2
    assert run("audit", "verify", str(copy), "--anchor", anchor).returncode == 2
    assert run("audit", "verify", str(copy), "--anchor", anchor, "--update").returncode == 0
    with AuditLog(copy) as more:
        more.append(envelope(99))
    done = run("audit", "verify", str(copy), "--anchor", anchor, "--update")
    assert "the anchor names row 11, which is there" in done.stdout
    assert json.loads(Path(anchor).read_text())["seq"] == 14
    # The old log does not hold the rows that were added.
    done = run("audit", "verify", str(log), "--anchor", anchor, "--update")
    assert (done.returncode, "cut off" in done.stderr) == (3, True)
    assert json.loads(Path(anchor).read_text())["seq"] == 14


@pytest.mark.parametrize("name", ["show", "export", "report"])
def test_a_row_that_cannot_be_read_is_named(run: Any, tmp_path: Path, name: str) -> None:
    path = tmp_path / "audit"
    with AuditLog(path) as log:
        log.append(envelope())
    file = path / "000001.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"row":"call"', b'"row":"none"'))
    done = run("audit", name, str(path))
    assert done.returncode == 6
    assert "row 3 (000001.jsonl, line 3): not a row of an audit log" in done.stderr


def test_show_prints_the_newest_calls(run: Any, log: Path) -> None:
    done = run("audit", "show", str(log), "--last", "2")
    assert "RateLimited" in done.stdout
    assert "miss changed rules" in done.stdout
    assert len(done.stdout.splitlines()) == 3
    shown = json.loads(run("audit", "show", str(log), "--json").stdout)
    assert [row["seq"] for row in shown] == list(range(3, 11))
    assert shown[0]["row"] == "call"
    assert len(shown[0]["hash"]) == 64


def test_show_prints_what_was_charged_without_a_bill(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "audit"
    with AuditLog(path) as log:
        log.append(envelope(0, cost_nano_usd=1_200_000))
        log.append(
            envelope(1, outcome="interrupted", cost_nano_usd=None, unbilled_nano_usd=2_900_000)
        )
        log.append(envelope(2, cost_nano_usd=1_200_000, unbilled_nano_usd=100_000))
        log.append(envelope(3, outcome="NotGranted", cost_nano_usd=None))
    shown = run("audit", "show", str(path)).stdout
    assert "unknown" not in shown
    head, *lines = (line.split() for line in shown.splitlines())
    assert head[head.index("cost") + 1] == "unbilled"
    amounts = [[cell for cell in line[5:] if cell.startswith("$0.")] for line in lines]
    assert amounts == [["$0.0012"], ["$0.0029", "$0.0029"], ["$0.0013", "$0.0001"], []]
    total = run("audit", "report", str(path)).stdout
    assert "$0.0054" in total
    billed = run("audit", "show", str(path), "--outcome", "NotGranted").stdout
    assert "unbilled" not in billed


@pytest.mark.parametrize(
    "options, expected",
    [
        (["--model", "gpt-*"], [3, 5, 7]),
        (["--label", "checkout"], [3, 4, 5, 6]),
        (["--label", "rules"], [3, 4, 5, 6, 7, 8]),
        (["--outcome", "RateLimited"], [10]),
        (["--since", time.strftime("%Y-%m-%d", time.gmtime(NOON + 2 * DAY))], [7, 8, 9, 10]),
        (["--until", time.strftime("%Y-%m-%dT12:00", time.gmtime(NOON + DAY))], [3, 4]),
        (["--since", "1h"], [3, 4, 5, 6, 7, 8, 9, 10]),
        (["--model", "none"], []),
    ],
)
def test_filters(
    run: Any, log: Path, options: list[str], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOON + 1800)
    shown = json.loads(run("audit", "show", str(log), "--json", *options).stdout)
    assert [row["seq"] for row in shown] == expected
    if not expected:
        assert run("audit", "show", str(log), *options).stdout == "no calls\n"


def test_one_row_is_shown_with_its_blocks(run: Any, log: Path) -> None:
    done = run("audit", "show", str(log), "--row", "3")
    assert "rules" in done.stdout
    assert "1h" in done.stdout
    start = json.loads(run("audit", "show", str(log), "--row", "2", "--json").stdout)
    assert (start["row"], start["app"]) == ("start", "shop")
    done = run("audit", "show", str(log), "--row", "99")
    assert (done.returncode, "no row 99" in done.stderr) == (2, True)


@pytest.mark.parametrize("text", ["yesterday", "7x", ""])
def test_a_time_that_is_none_is_named(run: Any, log: Path, text: str) -> None:
    done = run("audit", "show", str(log), "--since", text)
    assert done.returncode == 2
    assert "neither a date" in done.stderr


def test_export_writes_json_lines_and_csv(run: Any, log: Path, tmp_path: Path) -> None:
    lines = run("audit", "export", str(log)).stdout.splitlines()
    assert [line.encode() for line in lines] == [row.line for row, _ in calls(log)]
    assert [json.loads(line)["seq"] for line in lines] == list(range(3, 11))
    file = tmp_path / "calls.csv"
    assert run("audit", "export", str(log), "-o", str(file)).returncode == 0
    table = list(csv.DictReader(io.StringIO(file.read_text())))
    assert [row["seq"] for row in table] == [str(seq) for seq in range(3, 11)]
    assert (table[0]["read"], table[0]["written"], table[0]["cost_nano_usd"]) == (
        "800",
        "100",
        "1500000000",
    )
    assert json.loads(table[0]["blocks"])[0]["label"] == "rules"
    assert table[7]["cost_nano_usd"] == ""
    assert json.loads(table[6]["labels"]) == ["=cmd()"], "no spreadsheet runs it"


def test_export_writes_parquet(run: Any, log: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "calls.parquet"
    done = run("audit", "export", str(log), "--output", str(file))
    assert done.returncode == 0, done.stderr
    rows = parquet.read_table(file).to_pylist()
    assert [row["seq"] for row in rows] == list(range(3, 11))
    assert rows[0]["blocks"][0]["ttl"] == "1h"
    assert rows[0]["at"].timestamp() == NOON
    assert rows[7]["cost_nano_usd"] is None
    done = run("audit", "export", str(log), "--format", "parquet")
    assert (done.returncode, "--output" in done.stderr) == (2, True)


def test_parquet_without_pyarrow_names_the_extra(
    run: Any, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    done = run("audit", "export", str(log), "-o", str(tmp_path / "x.parquet"))
    assert done.returncode == 7
    assert "pip install 'anaphora[parquet]'" in done.stderr


def test_html_report_has_the_sums_of_the_wanted_calls(run: Any, log: Path, tmp_path: Path) -> None:
    file = tmp_path / "audit.html"
    done = run("audit", "report", str(log), "--html", str(file))
    assert (done.returncode, done.stdout) == (0, "")
    assert file.stat().st_mode & 0o777 == 0o600
    report = file.read_text()
    assert "<script" not in report
    for text in ("$9.00", "Causes of loss", "By model", "By label"):
        assert text in report
    empty = run("audit", "report", str(log), "--model", "no-such-model", "--html", "-")
    assert "No calls" in empty.stdout
    assert run("audit", "report", str(log), "--html", "-", "--json").returncode == 2
    nowhere = run("audit", "report", str(log), "--html", str(tmp_path / "no" / "audit.html"))
    assert nowhere.returncode != 0
    assert "cannot be written" in nowhere.stderr


def test_a_file_is_no_log(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "notes.md"
    file.write_text("# Notes\n")
    for words in (("report",), ("show",), ("verify",)):
        done = run("audit", *words, str(file))
        assert done.returncode == 2
        assert f"{file}: is a file; an audit log is a folder" in done.stderr


def test_report_sums_up_by_model_label_and_day(run: Any, log: Path) -> None:
    report = json.loads(run("audit", "report", str(log), "--json").stdout)
    assert report["total"] == {
        "calls": 8,
        "failed": 1,
        "input": 7000,
        "read": 5600,
        "written": 700,
        "output": 350,
        "cost_nano_usd": 9_000_000_000,
        "unpriced": 1,
        "saved_nano_usd": 3_000_000_000,
        "breaks": 1,
        "lost": 800,
        "lost_nano_usd": 200_000_000,
        "unbilled_nano_usd": 0,
        "unreported": 0,
    }
    assert {name: sums["calls"] for name, sums in report["models"].items()} == {
        "gpt-6.1-sol": 3,
        "claude-sonnet-5-5": 5,
    }
    assert {name: sums["calls"] for name, sums in report["labels"].items()} == {
        "checkout": 4,
        "(no label)": 3,
        "=cmd()": 1,
    }
    assert [sums["calls"] for sums in report["days"].values()] == [2, 2, 3, 1]
    assert list(report["causes"]) == ["changed"]
    assert list(report["changed"]) == ["rules"]
    page = run("audit", "report", str(log)).stdout
    assert "8 calls, $9.00, 80% of the input read from the cache; 1 break" in page
    assert "the cost of 1 call is unknown" in page
    assert page.count("█" * 30) == 3


def test_prune_says_what_is_gone(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "audit"
    with AuditLog(path, segment_bytes=500) as log:
        for number in range(5):
            log.append(envelope(number))
            log.flush()
    done = run("audit", "prune", str(path), "--keep-days", "1")
    assert done.stdout == "no row is older than 1 days\n"
    value = json.loads(run("audit", "prune", str(path), "--keep-days", "1e-9", "--json").stdout)
    assert value["segments"] >= 3
    done = run("audit", "verify", str(path))
    assert f"rows 1 to {value['through']} were pruned, as a row of the log confirms" in done.stdout
    assert run("audit", "prune", str(path), "--keep-days", "0").returncode == 2
    with AuditLog(path):
        done = run("audit", "prune", str(path), "--keep-days", "1")
        assert (done.returncode, "is writing this log" in done.stderr) == (2, True)


@pytest.mark.parametrize("name", ["verify", "show", "export", "report"])
def test_what_is_no_log_is_refused(run: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "calls.jsonl").write_text("{}\n")
    (tmp_path / "words.db").write_text("no database at all, but long enough to be read as one")
    for path in ("empty", "calls.jsonl", "words.db", "missing"):
        done = run("audit", name, str(tmp_path / path))
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert path in done.stderr
        assert "Traceback" not in done.stderr


def test_no_command_changes_a_log(run: Any, log: Path) -> None:
    files = sorted(log.iterdir())
    before = [file.read_bytes() for file in files]
    for name in ("verify", "show", "export", "report"):
        assert run("audit", name, str(log)).returncode == 0
    assert [file.read_bytes() for file in files] == before


@pytest.mark.parametrize("share, text", [(0, ""), (1, "█" * 40), (0.5, "█" * 20), (1 / 80, "▌")])
def test_bars_have_eighths(share: float, text: str) -> None:
    assert bar(share) == text


def test_csv_quotes_names_that_begin_like_a_formula(run: Any, tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit") as log:
        log.append(AuditEnvelope(at=1.0, model="=cmd()", provider="\t=cmd()", app="a=b"))
    shown = run("audit", "export", str(tmp_path / "audit"), "--format", "csv").stdout
    (row,) = csv.DictReader(io.StringIO(shown))
    assert (row["model"], row["provider"], row["app"]) == ("'=cmd()", "'\t=cmd()", "a=b")
