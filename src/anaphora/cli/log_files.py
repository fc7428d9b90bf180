"""Recorded calls in files: found, and read, each answer once; and their prices."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec
from msgspec.structs import replace

from anaphora import catalog
from anaphora.analysis import trace
from anaphora.analysis.trace.answers import AnswerIndex
from anaphora.analysis.trace.format import models_of, stand_in, unsupported
from anaphora.analysis.trace.log_lines import FoundTrace, Problem, ProblemKind, TraceEntry
from anaphora.analysis.trace.programs import PROGRAMS
from anaphora.cache.verdict.advice import PROGRAM_TITLES
from anaphora.traffic import log_traces
from anaphora.traffic.request_log import why_no_request
from anaphora.usage.log_files import detect, files_in, records_of, unrecognised
from anaphora.usage.places import FOLDERS, session_files
from anaphora.wording import counted

from .common import FOUND, USAGE, report_problems, stop

#: How many models without a price a note names.
_NAMED_MODELS = 5
#: How many session files are read if none are given.
_NEWEST = 20


class SkippedInput(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the input and why it was skipped."""

    place: str
    reason: str


def problems_of(problems: list[Problem], *kinds: ProblemKind) -> tuple[SkippedInput, ...]:
    return tuple(
        SkippedInput(place=problem.place, reason=problem.reason)
        for problem in problems
        if problem.kind in kinds
    )


def stop_empty(problems: Iterable[object], message: str) -> NoReturn:
    """Report why there is nothing to work on, and stop."""
    report_problems([*problems, message])
    stop(USAGE)


def stop_for(problems: list[Problem], read: Iterable[str], *, found: bool = False) -> None:
    """Stop with 2 if input was rejected, with 1 if a file had only problems or if `found`. `read`
    are the places of valid input."""
    if rejected := [problem for problem in problems if problem.kind == "rejected"]:
        report_problems(rejected)
        stop(USAGE)
    files = {_file_of(place) for place in read}
    if found or any(not one.harmless and _file_of(one.place) not in files for one in problems):
        stop(FOUND)


def _file_of(place: str) -> str:
    """The file of `file:line`."""
    file, _, line = place.rpartition(":")
    return file if line.isdigit() else place


def gather(
    places: list[Path], provider: str | None = None
) -> tuple[list[FoundTrace], list[Problem]]:
    """All conversations that can be simulated, and the problems with the others. `provider`
    replaces the recorded provider."""
    problems: list[Problem] = []
    files = [(str(file), [*_read(file)]) for file in files_in(places, problems)]
    answers = AnswerIndex()
    for file, entries in files:
        answers.add_all(file, entries)
    once = (entry for file, entries in files for entry in answers.once(file, entries))
    return playable(once, problems, provider), problems


def playable(
    entries: Iterable[TraceEntry],
    problems: list[Problem],
    provider: str | None = None,
) -> list[FoundTrace]:
    """The conversations that can be simulated, each with an id of its own."""
    found: dict[str, FoundTrace] = {}
    notices: dict[str, list[str]] = {}
    for entry in entries:
        if isinstance(entry, Problem):
            problems.append(entry)
            continue
        trace = entry.trace
        reason = unsupported(trace.provider, trace.model)
        if provider is not None:
            if (recorded := catalog.provider_named(trace.provider)) not in (None, provider):
                replaced = f"recorded as a call to {recorded}, simulated as one to {provider}"
                notices.setdefault(replaced, []).append(entry.place)
            trace = replace(trace, provider=provider)
        elif reason is not None:
            problems.append(Problem(entry.place, reason, "rejected"))
            continue
        for notice in filter(None, (stand_in(trace.provider, one) for one in models_of(trace))):
            notices.setdefault(notice, []).append(entry.place)
        if trace.id in found:
            trace = replace(trace, id=f"{trace.id} ({entry.place})")
        found[trace.id] = entry._replace(trace=trace)
    for notice, places in notices.items():
        more = f" (and {counted(len(places) - 1, 'more conversation')})" if places[1:] else ""
        problems.append(Problem(places[0], notice + more, "notice"))
    return list(found.values())


def _read(file: Path) -> Iterator[TraceEntry]:
    problems: list[Problem] = []
    lines = [*records_of(file, problems)]
    yield from problems
    format_ = detect(lines)
    if format_ == "requests":
        yield from _of_account(log_traces.read(iter(lines)), file)
    elif format_ == "trace":
        yield from _of_account(trace.read(format_, iter(lines)), file)
    elif format_ is not None:
        yield from trace.read(format_, iter(lines))  # a file is one session, of one account
    elif lines:
        reason = "neither a trace, a session nor a request log"
        reason = why_no_request(lines[0].data) or reason
        yield unrecognised(lines, Problem(str(file), reason))


def answers_in(files: list[Path], is_request: Callable[[dict[str, Any]], bool]) -> AnswerIndex:
    """The answers in all session files, so that each counts once. A single file is not read."""
    index = AnswerIndex()
    for file in files if len(files) > 1 else ():
        lines = [*records_of(file, [])]
        detected = detect(lines, is_request)
        program = next((name for name in PROGRAMS if name == detected), None)
        if program is not None:
            index.add_all(str(file), trace.read(program, iter(lines)))
    return index


def _of_account(entries: Iterator[TraceEntry], file: Path) -> Iterator[TraceEntry]:
    """The conversations, with the file as their account if none is recorded."""
    for entry in entries:
        if isinstance(entry, FoundTrace) and entry.trace.account is None:
            entry = entry._replace(trace=replace(entry.trace, account=str(file)))
        yield entry


def unpriced_note(unpriced: tuple[str, ...]) -> str:
    some = ", ".join(unpriced[:_NAMED_MODELS])
    more = f" and {len(unpriced) - _NAMED_MODELS} more" if len(unpriced) > _NAMED_MODELS else ""
    return f"no price is known for {some}{more} (price table of {catalog.price_table_date()})"


# ── Session files of this machine ─────────────────────────────────────────────────────────────────


def found_sessions(problems: list[Problem]) -> tuple[Path, ...]:
    """The newest session files of all programs, the oldest of them first. How many there are of
    each program is a notice. Raises if there is none."""
    try:
        home = Path.home()
    except RuntimeError:
        raise click.UsageError("no FILES are given, and no home folder is known") from None
    files = [*session_files((), os.environ, home, problems)]
    for (folder, program), number in Counter((one.folder, one.program) for one in files).items():
        kept = f"{counted(number, 'session file')} of {PROGRAM_TITLES[program]}"
        problems.append(Problem(_shown(folder, home), kept, "notice"))
    if not files:
        places = (path for one in FOLDERS for path in one.paths(os.environ, home))
        looked = ", ".join(_shown(path, home) for path in places)
        raise click.UsageError(
            f"no FILES are given, and no session file of an agent program is in {looked}"
        )
    files.sort(key=lambda one: (one.mtime, one.path))
    if len(files) > _NEWEST:
        reason = f"the newest {_NEWEST:,} of {len(files):,} are explained; name others as FILES"
        problems.append(Problem("session files", reason, "notice"))
    return tuple(one.path for one in files[-_NEWEST:])


def _shown(path: Path, home: Path) -> str:
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
