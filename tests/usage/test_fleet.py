"""The logs of a fleet: files, partitions, processes and output."""

from __future__ import annotations

import gzip
import json
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import msgspec
import pyarrow.parquet as pq
import pytest
from support.fleet_logs import SCRIPTS, langfuse, litellm, logged, runs, telemetry
from support.killed_tasks import killed_always, killed_once

from anaphora.errors import InvalidRequest, Io, MissingExtra
from anaphora.replay.fixture import Fixture, FixturePiece, to_file
from anaphora.usage.fleet import parquet, shuffle, sources, usage_of_logs
from anaphora.usage.fleet.sums import FleetProgress
from anaphora.usage.processes import WorkProcesses

CANARY = "a-text-that-must-not-leave-the-log"
CAUSES = set(filter(None, SCRIPTS.values()))


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    return [
        json.dumps(logged(exchange, f"c-{number}")).encode()
        for number, run in enumerate(runs("openai_chat"))
        for exchange in run.exchanges
    ]


@pytest.fixture
def folder(tmp_path: Path, lines: list[bytes]) -> Path:
    """Four files; the calls of a conversation are in several of them, in no order."""
    for number in range(4):
        (tmp_path / f"gateway-{number}.jsonl").write_bytes(b"\n".join(lines[::-1][number::4]))
    return tmp_path


def test_processes_find_what_one_finds(folder: Path) -> None:
    seen: list[int] = []

    def note(state: FleetProgress) -> None:
        seen.append(state.read + state.judged)

    one = usage_of_logs([str(folder)], processes=1, now=0)
    two = usage_of_logs([str(folder)], processes=2, now=0, progress=note)
    assert msgspec.json.encode(one) == msgspec.json.encode(two)
    assert {row.cause for row in one.causes or ()} == CAUSES
    assert one.files == 4
    assert seen == sorted(seen)


def test_the_number_of_partitions_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = usage_of_logs([str(folder)], by="session", processes=1, now=0)
    monkeypatch.setattr(sources, "SLICE_BYTES", 64 * 1024)
    monkeypatch.setattr(shuffle, "_MOST_HELD", 100_000)
    monkeypatch.setattr(shuffle, "_MOST_READ", 1)
    monkeypatch.setattr("anaphora.usage.fleet._BUCKET_BYTES", 50_000)
    cut = usage_of_logs([str(folder)], by="session", processes=1, now=0)
    assert len(sources.slices_of([str(folder)])) == 8
    assert msgspec.json.encode(whole) == msgspec.json.encode(cut)


def test_lines_are_counted_across_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SLICE_BYTES", 1 << 20)
    file = tmp_path / "log.jsonl"
    sizes = [(number * 7919) % 30_000 for number in range(1, 400)]
    file.write_bytes(b"".join(b'{"n":%d,"x":"%b"}\n' % (n, b"x" * s) for n, s in enumerate(sizes)))
    read = [
        (place, fields)
        for part in sources.slices_of([str(file)])
        for place, fields, _ in sources.objects_in(part)
    ]
    assert [fields["n"] for _, fields in read if isinstance(fields, dict)] == [*range(len(sizes))]
    assert [place for place, _ in read] == [f"{file}:{n + 1}" for n in range(len(sizes))]


def test_broken_records_are_set_aside_with_their_places(tmp_path: Path, lines: list[bytes]) -> None:
    file = tmp_path / "log.jsonl"
    poisoned = json.dumps({"request": {"messages": 7, "model": CANARY}, "response": {"id": CANARY}})
    error = json.dumps({"request": {"messages": []}, "response": {}, "status": 529})
    broken = [b"{", b'{"other": 1}', poisoned.encode(), b"7", error.encode()]
    file.write_bytes(b"\n".join([*lines[:2], *broken, *lines[2:]]))
    report = usage_of_logs([str(file)])
    assert report.total.calls == len(lines)
    assert {row.cause for row in report.causes or ()} == CAUSES
    assert [each.partition(": ")[0] for each in report.problems] == [
        f"{file}:{number}" for number in (3, 4, 5, 6)
    ]
    assert "understood are audit rows" in report.problems[1]
    assert CANARY not in str(report)
    assert report.notices == ("1 call without a bill or an answer: not summed",)


def poisoned(value: Any, poison: Any) -> Iterator[Any]:
    """The value with the poison in each of its places."""
    yield poison
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from ({**value, key: one} for one in poisoned(inner, poison))
    for inner in value[:1] if isinstance(value, list) else ():
        yield from ([one, *value[1:]] for one in poisoned(inner, poison))


@pytest.mark.parametrize("poison", [None, [None], 1e20, 10**400, "\x1b[31m"])
@pytest.mark.long
def test_poison_is_at_most_a_problem_of_its_record(
    tmp_path: Path, lines: list[bytes], poison: Any
) -> None:
    exchange = runs("openai_chat")[1].exchanges[1]
    forms = (logged, litellm, langfuse, telemetry)
    found = [one for form in forms for one in poisoned(form(exchange, "poisoned"), poison)]
    (tmp_path / "log.jsonl").write_bytes(b"\n".join([*map(str.encode, map(json.dumps, found))]))
    (tmp_path / "good.jsonl").write_bytes(b"\n".join(lines))
    out = tmp_path / "rows.parquet"
    report = usage_of_logs([str(tmp_path)], by="session", out=str(out), processes=1)
    good = [row.calls for row in report.rows if row.name.startswith("c-")]
    assert sum(good) == len(lines)
    assert sum(
        row["conversation"].startswith("c-") for row in pq.read_table(out).to_pylist()
    ) == len(lines)


def test_copies_count_once(tmp_path: Path, lines: list[bytes]) -> None:
    for name in ("one.jsonl", "two.jsonl"):
        (tmp_path / name).write_bytes(b"\n".join(lines))
    assert usage_of_logs([f"{tmp_path}/*.jsonl"]).total.calls == len(lines)


def test_compressed_and_listed_files(tmp_path: Path, lines: list[bytes]) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines[:3])))
    (tmp_path / "b.json").write_bytes(b"[" + b",".join(lines[3:]) + b"]")
    assert usage_of_logs([str(tmp_path)]).total.calls == len(lines)


def test_recordings(tmp_path: Path) -> None:
    """Files of `anaphora record`."""
    (run, *_) = runs("anthropic")
    for number, exchange in enumerate(run.exchanges):
        fixture = Fixture(
            key=f"{number:064x}",
            provider="anthropic",
            path=exchange.path,
            request=exchange.body,
            pieces=(FixturePiece(1.0, exchange.answer),),
            recorded=exchange.at,
        )
        (tmp_path / f"{number}.json").write_bytes(to_file(fixture))
    report = usage_of_logs([str(tmp_path)], by="program")
    assert [row.name for row in report.rows] == ["recordings"]
    assert report.total.calls == len(run.exchanges)
    assert report.total.read == sum(call.usage.read or 0 for call in run.calls)


def test_days_are_in_utc_and_times_are_chosen(folder: Path) -> None:
    days = usage_of_logs([str(folder)])
    assert [row.name for row in days.rows] == ["2026-09-21", "2026-09-22"]
    first = days.rows[0].began
    assert first is not None
    some = usage_of_logs([str(folder)], since=first + 30, until=first + 60)
    assert 0 < some.total.calls < days.total.calls


def test_missing_files_and_extras(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequest, match="no log file found"):
        usage_of_logs([str(tmp_path / "none")])
    with pytest.raises(InvalidRequest, match="expected ray or ray=ADDRESS, got 'spark'"):
        usage_of_logs([str(folder)], on="spark")
    with pytest.raises(InvalidRequest, match="no such folder"):
        usage_of_logs([str(folder)], out=str(tmp_path / "none" / "rows.parquet"))
    for package in ("ray", "pyarrow", "fsspec", "fsspec.core"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"--on ray needs Ray; .*anaphora\[fleet\]"):
        usage_of_logs([str(folder)], on="ray")
    with pytest.raises(MissingExtra, match=r"Parquet needs pyarrow; .*anaphora\[fleet\]"):
        usage_of_logs([str(folder)], out=str(tmp_path / "rows.parquet"))
    with pytest.raises(MissingExtra, match=r"s3:// needs fsspec; .*anaphora\[fleet\]"):
        usage_of_logs(["s3://bucket/logs"])
    (tmp_path / "rows.parquet").touch()
    with pytest.raises(MissingExtra, match=r"Parquet needs pyarrow; .*anaphora\[fleet\]"):
        usage_of_logs([str(tmp_path / "rows.parquet")])


# ── Output, text, kills ──────────────────────────────────────────────────────────────────────────


def test_rows_in_parquet_have_no_text(tmp_path: Path, lines: list[bytes]) -> None:
    file, out = tmp_path / "log.jsonl", tmp_path / "rows.parquet"
    file.write_bytes(b"\n".join(lines).replace(b"Thank you.", CANARY.encode()))
    report = usage_of_logs([str(file)], out=str(out))
    table = pq.read_table(out)
    assert table.num_rows == len(lines) == report.total.calls
    assert table.column_names == [*parquet.COLUMNS]
    assert {*filter(None, table["loss_cause"].to_pylist())} == CAUSES
    assert sum(table["loss_tokens"].to_pylist()) == report.total.lost
    assert CANARY not in str(table.to_pylist())
    assert CANARY not in str(report)


def test_audit_rows_are_read_again(folder: Path, tmp_path: Path) -> None:
    """What was judged once can be summed later, without the text."""
    out = tmp_path / "rows.parquet"
    first = usage_of_logs([str(folder)], by="model", out=str(out))
    again = usage_of_logs([str(out)], by="model")
    assert again.total.calls == first.total.calls
    assert (again.total.usd, again.total.read) == (first.total.usd, first.total.read)
    # A row has one cause.
    assert {row.cause for row in again.causes or ()} <= CAUSES | {"system_changed"}


def test_parquet_logs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SLICE_ROWS", 5)
    file = tmp_path / "logs.parquet"
    with duckdb.connect() as database:
        database.execute(
            f"COPY (SELECT * FROM read_json('{folder}/*.jsonl',"
            " columns={account: 'VARCHAR', conversation: 'VARCHAR', path: 'VARCHAR',"
            " provider: 'VARCHAR', time: 'DOUBLE', duration: 'DOUBLE', request: 'VARCHAR',"
            f" response: 'VARCHAR'}})) TO '{file}' (FORMAT parquet)"
        )
    lines = usage_of_logs([f"{folder}/*.jsonl"], by="session", now=0)
    rows = usage_of_logs([str(file)], by="session", now=0)
    assert rows.total == lines.total
    assert [row.name for row in rows.rows] == [row.name for row in lines.rows]


def test_remote_files(lines: list[bytes]) -> None:
    system = fsspec.filesystem("memory")
    try:
        for number in range(2):
            system.pipe(f"/fleet/{number}.jsonl", b"\n".join(lines[number::2]))
        for url in ("memory://fleet", "memory://fleet/*.jsonl"):
            report = usage_of_logs([url], out="memory://fleet/rows.parquet", processes=1)
            assert report.total.calls == len(lines)
        assert system.cat("/fleet/rows.parquet").startswith(b"PAR1")
        with pytest.raises(InvalidRequest, match="no log file found"):
            usage_of_logs(["memory://nothing/*.jsonl"])
    finally:
        system.rm("/fleet", recursive=True)


def test_spilled_records_are_private_and_removed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "spill"
    left = home / f"anaphora-fleet-{2**22 + 1}-of-a-killed-run"
    left.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    modes: set[int] = set()

    def look(state: FleetProgress) -> None:
        modes.update(stat.S_IMODE(file.stat().st_mode) for file in home.rglob("*"))
        if state.judged:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        usage_of_logs([str(folder)], processes=1, progress=look)
    assert modes == {0o700, 0o600}
    assert [*home.iterdir()] == []


def test_a_killed_process_is_replaced(tmp_path: Path) -> None:
    tasks = [(number, str(tmp_path)) for number in range(4)]
    with WorkProcesses(2) as processes:
        assert [*processes.each(killed_once, tasks)] == [0, 1, 4, 9]
        assert (tmp_path / "killed").exists()
        with pytest.raises(Io, match="a process was killed 3 times"):
            [*processes.each(killed_always, tasks)]
