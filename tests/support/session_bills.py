"""The bills of a session file, as the reader of bills and the reader of conversations see them."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from anaphora.analysis import trace
from anaphora.analysis.trace.format import TraceUsage
from anaphora.analysis.trace.log_lines import FoundTrace, Problem, numbered
from anaphora.analysis.trace.programs import ProgramName
from anaphora.usage.pieces import is_whole, read_file
from anaphora.usage.places import SessionFile
from anaphora.usage.programs import READERS, bills
from anaphora.usage.records import CallBill

SHARED = Path(__file__).parents[3] / "shared" / "sessions"


class SeenBill(NamedTuple):
    """What both readers see."""

    provider: str
    model: str
    uncached: int
    read: int
    written_5m: int
    written_30m: int
    written_1h: int
    output: int
    untimed: bytes
    copied: bool


Seen = dict[bytes, SeenBill]


def shared_session(program: str, name: str) -> list[bytes]:
    file = SHARED / program / name
    if not file.is_file():
        pytest.skip(f"{file} is not there")
    return gzip.decompress(file.read_bytes()).splitlines(keepends=True)


def shared_names(program: str) -> list[str]:
    return sorted(file.name for file in (SHARED / program).glob("*.jsonl.gz")) or ["missing"]


def bills_in(file: SessionFile) -> Iterator[CallBill | Problem]:
    if is_whole(file.path, file.program):
        yield from read_file(file.path, file.program)
        return
    with file.path.open("rb") as lines:
        yield from bills(READERS[file.program](), lines, str(file.path))


def calls_once(files: Iterable[SessionFile], problems: list[Problem]) -> list[CallBill]:
    """The bills of all files, each answer once."""
    once: dict[bytes, CallBill] = {}
    for file in files:
        for one in bills_in(file):
            if isinstance(one, Problem):
                problems.append(one)
            elif one.key not in once or once[one.key].output <= one.output:
                once[one.key] = one
    return [*once.values()]


def in_conversations(program: ProgramName, lines: Iterable[bytes]) -> Seen:
    """By the reader of conversations. Of copies of an answer, the one with the most output."""
    seen: Seen = {}
    for entry in trace.read(program, numbered(lines, "file")):
        if not isinstance(entry, FoundTrace):
            continue
        for answer, call in zip(entry.answers, entry.trace.calls, strict=True):
            usage = call.usage or TraceUsage()
            _keep(
                seen,
                answer.key,
                SeenBill(
                    entry.trace.provider,
                    call.model or entry.trace.model,
                    usage.input,
                    usage.cache_read,
                    usage.cache_write_5m,
                    usage.cache_write_30m,
                    usage.cache_write_1h,
                    usage.output or 0,
                    answer.untimed,
                    answer.copied,
                ),
            )
    return seen


def billed(entries: Iterable[CallBill | Problem]) -> Seen:
    seen: Seen = {}
    for one in entries:
        if isinstance(one, CallBill) and (one.input or not one.partial):
            _keep(
                seen,
                one.key,
                SeenBill(
                    one.provider,
                    one.model,
                    one.uncached,
                    one.read,
                    one.written_5m,
                    one.written_30m,
                    one.written_1h,
                    one.output,
                    one.untimed,
                    one.copied,
                ),
            )
    return seen


def _keep(seen: Seen, key: bytes, bill: SeenBill) -> None:
    if key not in seen or seen[key].output <= bill.output:
        seen[key] = bill


def continued(
    program: ProgramName, lines: list[bytes], cuts: Iterable[int]
) -> Iterator[CallBill | Problem]:
    """The file read in parts, each by a reader that knows only the state of the one before."""
    reader, start = READERS[program](), 0
    for end in (*cuts, len(lines)):
        yield from bills(reader, lines[start:end], "file", start + 1)
        state = msgspec.msgpack.encode(reader.known)
        reader, start = READERS[program](), end
        reader.restore(msgspec.msgpack.decode(state))
