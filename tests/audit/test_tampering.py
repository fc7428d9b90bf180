"""Ways to change a log afterwards, each found by the check that claims it, with its exit code.

6   the chain is broken; the first row that does not fit is named
3   the chain is whole, but not the one that the anchor names
4   a newer schema_version
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.audit_logs import envelope, written

from anaphora.audit.chain import ChainHead, seal
from anaphora.audit.envelope import AuditRow, decode
from anaphora.cli.main import main

#: A log of three segments: rows 1 to 24, with an anchor on the last.
SEGMENT_BYTES = 2100
LAST = 24

Lines = list[bytes]


class Tampering(NamedTuple):
    change: Callable[[Lines], Lines]
    """Of all lines of a log; segments are cut as before."""
    code: int
    row: int | None = None
    """The row that must be named."""
    anchored: int | None = None
    """The exit code with the anchor, where that is another."""


def rechained(lines: Lines, start: int) -> Lines:
    """All rows from that index on with new hashes, as by someone who knows the format."""
    head = ChainHead()
    out = []
    for index, line in enumerate(lines):
        row = decode(line)
        if index < start:
            out.append(line)
            head = ChainHead(row.seq, row.hash)
            continue
        content: AuditRow = row.content
        if hasattr(content, "prev"):
            import msgspec

            content = msgspec.structs.replace(content, prev=head.hash)
        line, head = seal(head, content)
        out.append(line)
    return out


def edited(index: int, old: bytes, new: bytes) -> Callable[[Lines], Lines]:
    def change(lines: Lines) -> Lines:
        assert old in lines[index], lines[index]
        return [*lines[:index], lines[index].replace(old, new, 1), *lines[index + 1 :]]

    return change


def renumbered(lines: Lines) -> Lines:
    """Without row 8, and the numbers of the others closed up, but not their hashes."""
    kept = lines[:7] + lines[8:]
    return [
        line.replace(b'"seq":%d,' % decode(line).seq, b'"seq":%d,' % (index + 1), 1)
        for index, line in enumerate(kept)
    ]


def forged(lines: Lines) -> Lines:
    """A call's cost changed, and everything after it chained anew."""
    changed = edited(7, b'"cost_nano_usd":1000000', b'"cost_nano_usd":1')(lines)
    return rechained(changed, 7)


def inserted(lines: Lines) -> Lines:
    before = decode(lines[6])
    line, _ = seal(ChainHead(before.seq, before.hash), envelope(99))
    return [*lines[:7], line, *lines[7:]]


TAMPERINGS = {
    "edit an amount": Tampering(
        edited(7, b'"cost_nano_usd":1000000', b'"cost_nano_usd":1000001'), 6, 8
    ),
    "edit a model": Tampering(edited(7, b"sonnet", b"haiku"), 6, 8),
    "edit a time": Tampering(edited(9, b'"at":18000', b'"at":17000'), 6, 10),
    "edit a hash": Tampering(lambda lines: [*lines[:4], _other_hash(lines[4]), *lines[5:]], 6, 5),
    "upper-case a hash": Tampering(
        lambda lines: [*lines[:4], lines[4][:-66] + lines[4][-66:-2].upper() + b'"}', *lines[5:]],
        6,
        5,
    ),
    "add a blank": Tampering(edited(7, b'"row":"call",', b'"row":"call", '), 6, 8),
    "reorder fields": Tampering(
        edited(7, b'"schema_version":1,"seq":8', b'"seq":8,"schema_version":1'), 6, 8
    ),
    "escape a letter": Tampering(edited(7, b"claude", b"cl\\u0061ude"), 6, 8),
    "add a field": Tampering(edited(7, b'"row":"call",', b'"row":"call","x":1,'), 6, 8),
    "delete a row": Tampering(lambda lines: lines[:7] + lines[8:], 6, 8),
    "delete the first row": Tampering(lambda lines: lines[1:], 6, 1),
    "swap two rows": Tampering(
        lambda lines: [*lines[:7], lines[8], lines[7], *lines[9:]], 6, 8
    ),
    "insert a row": Tampering(inserted, 6, 9),
    "repeat a row": Tampering(lambda lines: [*lines[:8], lines[7], *lines[8:]], 6, 9),
    "renumber the rows": Tampering(renumbered, 6, 8),
    "insert an empty line": Tampering(lambda lines: [*lines[:8], b"", *lines[8:]], 6, 9),
    "append an empty line": Tampering(lambda lines: [*lines, b""], 6, LAST + 1),
    "append rubbish": Tampering(lambda lines: [*lines, b"rubbish"], 6, LAST + 1),
    "append binary rubbish": Tampering(lambda lines: [*lines, b"\xff\x00"], 6, LAST + 1),
    "cut inside a row": Tampering(
        lambda lines: [*lines[:-3], lines[-3][:40]], 6, LAST - 2
    ),
    "empty the log": Tampering(lambda lines: [], 2, None, 2),
    "cut off the end": Tampering(lambda lines: lines[:-3], 0, None, 3),
    "forge from the middle": Tampering(forged, 0, None, 3),
    "write the log anew": Tampering(lambda lines: rechained(lines, 0)[:-1], 0, None, 3),
    "raise the schema version": Tampering(
        edited(7, b'{"schema_version":1', b'{"schema_version":2'), 4
    ),
}  # fmt: skip


def _other_hash(line: bytes) -> bytes:
    return line[:-66] + b"0" * 64 + b'"}'


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    path = written(folder / "audit", 0, segment_bytes=SEGMENT_BYTES)
    shutil.rmtree(path)
    _write(path, folder / "audit.anchor")
    return folder


def _write(path: Path, anchor: Path) -> None:
    """24 rows: the segment rows depend on the size of the others."""
    from anaphora.audit import AuditLog

    with AuditLog(path, node="n", anchor=anchor, segment_bytes=SEGMENT_BYTES) as log:
        for number in range(100):
            log.append(envelope(number))
            log.flush()
            if log.head.seq >= LAST - 1:
                break


def _lines_of(path: Path) -> list[tuple[str, bytes]]:
    """The segment and the bytes of each row."""
    return [
        (file.name, line)
        for file in sorted(path.glob("*.jsonl"))
        for line in file.read_bytes().splitlines()
    ]


def _store(path: Path, before: list[tuple[str, bytes]], lines: Lines) -> None:
    """The lines in the segments where they were; what is new, where its neighbours are."""
    names = [name for name, _ in before]
    for file in path.glob("*.jsonl"):
        file.unlink()
    segments: dict[str, Lines] = {}
    for index, line in enumerate(lines):
        segments.setdefault(names[min(index, len(names) - 1)], []).append(line)
    for name, kept in segments.items():
        (path / name).write_bytes(b"".join(line + b"\n" for line in kept))


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_changed_log_is_found(
    name: str, logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tampering, path, anchor = TAMPERINGS[name], tmp_path / "audit", logs / "audit.anchor"
    shutil.copytree(logs / "audit", path)
    before = _lines_of(path)
    assert len(before) == LAST
    assert main(["audit", "verify", str(path), "--anchor", str(anchor)]) == 0
    capsys.readouterr()

    _store(path, before, tampering.change([line for _, line in before]))
    assert main(["audit", "verify", str(path)]) == tampering.code
    printed = capsys.readouterr()
    if tampering.row is not None:
        assert f"row {tampering.row:,}" in printed.err
        assert not printed.out
    anchored = tampering.code if tampering.anchored is None else tampering.anchored
    assert main(["audit", "verify", str(path), "--anchor", str(anchor), "--json"]) == anchored
    printed = capsys.readouterr()
    if anchored in (3, 4, 6):
        assert json.loads(printed.out)["ok"] is False


def test_segments_hold_several_rows_each(logs: Path) -> None:
    sizes = [len(file.read_bytes().splitlines()) for file in sorted((logs / "audit").glob("*"))]
    assert len(sizes) >= 3
    assert sum(sizes) == LAST


def test_a_deleted_or_replaced_segment_is_found(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [file.name for file in sorted((logs / "audit").glob("*"))]
    other = tmp_path / "other"
    _write(other, tmp_path / "other.anchor")
    for number, name in enumerate(names):
        first = decode((logs / "audit" / name).read_bytes().splitlines()[0]).seq
        deleted, replaced = tmp_path / f"deleted-{number}", tmp_path / f"replaced-{number}"
        for path in (deleted, replaced):
            shutil.copytree(logs / "audit", path)
        (deleted / name).unlink()
        shutil.copy(other / name, replaced / name)
        last = name == names[-1]
        assert main(["audit", "verify", str(deleted)]) == (0 if last else 6)
        errors_printed = capsys.readouterr().err
        assert last or ("row 1" if first == 1 else f"row {first}") in errors_printed
        if last:
            anchor = str(logs / "audit.anchor")
            assert main(["audit", "verify", str(deleted), "--anchor", anchor]) == 3
        assert main(["audit", "verify", str(replaced)]) == 6
        capsys.readouterr()


def test_an_anchor_that_is_none_or_newer_is_refused(logs: Path, tmp_path: Path) -> None:
    def verified(anchor: Any) -> int:
        file = tmp_path / "anchor"
        file.write_text(anchor if isinstance(anchor, str) else json.dumps(anchor))
        return main(["audit", "verify", str(logs / "audit"), "--anchor", str(file)])

    good = json.loads((logs / "audit.anchor").read_text())
    assert verified(good) == 0
    assert verified(good | {"hash": "0" * 64}) == 3
    assert verified(good | {"seq": LAST + 1}) == 3
    assert verified(good | {"schema_version": 2}) == 4
    assert verified("rubbish") == 3
    assert main(["audit", "verify", str(logs / "audit"), "--anchor", str(tmp_path / "none")]) == 2
