"""From session files to a report: progress, Ctrl-C, files that cannot be read, and processes."""

from __future__ import annotations

import gzip
import os
import signal
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from support.deadly_work import work_or_die
from support.usage_files import CANARY, answer, files_in, session_file

from anaphora.usage import collect, pieces
from anaphora.usage import tasks as usage_tasks
from anaphora.usage.collect import UsageProgress, usage
from anaphora.usage.places import SessionFile
from anaphora.usage.processes import WorkProcesses
from anaphora.usage.report import UsageReport
from anaphora.usage.sums import UsageQuery
from anaphora.usage.tasks import ReadTask


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five files with ten calls each, of which each next one repeats five."""
    found = tmp_path / "sessions"
    found.mkdir()
    for number in range(5):
        lines = [
            answer(f"m{n}", 1_780_000_000 + 60 * n, sessionId=f"s{number}", hour=100 * n)
            for n in range(5 * number, 5 * number + 10)
        ]
        (found / f"{number}.jsonl").write_bytes(b"".join(lines))
        os.utime(found / f"{number}.jsonl", (1_790_000_000, 1_790_000_000))
    return found


def report(folder: Path, tmp_path: Path, **given: Any) -> UsageReport:
    given.setdefault("index", tmp_path / "i.sqlite")
    given.setdefault("processes", 1)
    return usage(UsageQuery(by="session"), files_in(folder), **given)


def in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes are enough for processes of their own."""
    for name in ("_MANY_TO_READ", "_MANY_TO_JUDGE"):
        monkeypatch.setattr(collect, name, 1)
    for name in ("PIECE", "_BATCH_TO_JUDGE"):
        monkeypatch.setattr(collect, name, 4000)


@pytest.mark.long
def test_processes_give_the_same_report(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = report(folder, tmp_path, causes=True)
    assert expected.total.calls == 30
    in_processes(monkeypatch)
    other = report(folder, tmp_path, causes=True, processes=2, index=tmp_path / "j.sqlite")
    assert other == expected


def test_default_files_are_those_of_this_machine(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    projects = tmp_path / "claude" / "projects" / "p"
    projects.parent.mkdir(parents=True)
    folder.rename(projects)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("CODEX_HOME", "COPILOT_HOME", "GEMINI_CLI_HOME", "PI_CODING_AGENT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    assert (usage().files, usage().total.calls) == (5, 30)
    assert (tmp_path / "home" / "anaphora" / "usage.sqlite").exists()


def test_progress_has_files_bytes_and_dollars(folder: Path, tmp_path: Path) -> None:
    seen: list[UsageProgress] = []
    report(folder, tmp_path, causes=True, progress=seen.append)
    size = sum(file.stat().st_size for file in folder.iterdir())
    read, judged = (
        [one for one in seen if one.doing == doing][-1] for doing in ("reading", "judging")
    )
    assert (read.files, read.all_files, read.bytes, read.all_bytes) == (5, 5, size, size)
    assert read.usd > 0
    assert (judged.files, judged.bytes) == (judged.all_files, judged.all_bytes)
    seen.clear()
    report(folder, tmp_path, causes=True, progress=seen.append)
    assert not seen


@pytest.mark.parametrize("processes", [1, 2])
def test_interrupt_returns_what_is_known(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    in_processes(monkeypatch)

    def interrupt(progress: UsageProgress) -> None:
        if progress.files == 2:
            os.kill(os.getpid(), signal.SIGINT)

    found = report(folder, tmp_path, progress=interrupt, processes=processes)
    assert not found.complete
    assert 10 <= found.total.calls < 30
    whole = report(folder, tmp_path)
    assert whole.complete
    assert whole == report(folder, tmp_path, index=tmp_path / "fresh.sqlite")


def test_interrupt_while_judging(folder: Path, tmp_path: Path) -> None:
    def interrupt(progress: UsageProgress) -> None:
        if progress.doing == "judging":
            raise KeyboardInterrupt

    found = report(folder, tmp_path, causes=True, progress=interrupt)
    assert (found.complete, found.total.calls) == (False, 30)
    whole = report(folder, tmp_path, causes=True)
    assert whole == report(folder, tmp_path, causes=True, index=tmp_path / "fresh.sqlite")


def test_broken_lines_are_named_and_counted(folder: Path, tmp_path: Path) -> None:
    broken = f'{{"type":"assistant","usage":"{CANARY}\n'.encode()
    with (folder / "0.jsonl").open("ab") as file:
        file.write(broken * 8 + answer("m99"))
    found = report(folder, tmp_path)
    assert found.total.calls == 31
    place = f"{folder / '0.jsonl'}:11: "
    assert found.problems[0].startswith(place)
    assert found.problems[-1] == f"{folder / '0.jsonl'}: 3 more broken lines"
    assert len(found.problems) == 6
    assert CANARY not in str(found)
    assert report(folder, tmp_path).problems == found.problems


def test_unfinished_line_is_a_notice(folder: Path, tmp_path: Path) -> None:
    with (folder / "0.jsonl").open("ab") as file:
        file.write(answer("m99")[:-30])
    found = report(folder, tmp_path)
    assert (found.total.calls, found.problems) == (30, ())
    (notice,) = found.notices
    assert notice.startswith(f"{folder / '0.jsonl'}: the last line is not complete")


def test_file_that_cannot_be_read_is_a_problem(folder: Path, tmp_path: Path) -> None:
    gone = session_file(folder / "4.jsonl")._replace(path=folder / "gone.jsonl")
    beside = SessionFile(folder, "claude_code", 0.0, 0, folder)
    given = [*files_in(folder), gone, beside]
    found = usage(UsageQuery(), given, index=tmp_path / "i.sqlite", processes=1)
    assert (found.total.calls, found.files) == (30, 5)
    assert [problem.split(": ")[0] for problem in found.problems] == [
        str(folder / "gone.jsonl"),
        str(folder),
    ]


def test_packed_file_that_is_cut_off_keeps_its_lines(folder: Path, tmp_path: Path) -> None:
    content = (folder / "4.jsonl").read_bytes()
    packed = gzip.compress(content, compresslevel=0)
    (folder / "4.jsonl").unlink()
    (folder / "4.jsonl.gz").write_bytes(packed[: len(packed) * 3 // 4])
    found = report(folder, tmp_path)
    assert 25 < found.total.calls < 30
    (problem,) = found.problems
    assert problem.startswith(f"{folder / '4.jsonl.gz'}: the file is cut off or damaged")


# ── Processes ────────────────────────────────────────────────────────────────────────────────────


def tasks(folder: Path) -> list[Any]:
    found = []
    for file in files_in(folder):
        state = pieces.file_state(file)
        found.append(ReadTask("claude_code", str(file.path), b"", state, state.size))
    return found


def test_file_of_a_process_that_dies_is_a_problem(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others of its list are read by another one."""
    in_processes(monkeypatch)
    monkeypatch.setattr(collect, "work", work_or_die)
    (folder / "2.jsonl").rename(deadly := folder / "deadly.jsonl")
    found = report(folder, tmp_path, processes=2)
    assert found.problems == (f"{deadly}: the process that read it ended with 9",)
    deadly.unlink()
    others = report(folder, tmp_path, index=tmp_path / "fresh.sqlite")
    assert (found.total, found.files) == (others.total, others.files)


def test_stop_ends_processes_at_work(folder: Path) -> None:
    pool = WorkProcesses(2)
    for task in tasks(folder):
        pool.submit(usage_tasks.work, [task])
    pool.next()
    pool.stop()
    assert all(process.poll() is not None for process in pool._processes)


def test_batches_are_of_a_size_and_largest_first(folder: Path) -> None:
    found = usage_tasks.batches(tasks(folder), 9000)
    sizes = [[task.size for task in part] for part in found]
    assert [*chain(*sizes)] == sorted(chain(*sizes), reverse=True)
    assert all(sum(part) <= 9000 or len(part) == 1 for part in sizes)
