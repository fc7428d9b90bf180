"""All conversations of the files on the command line, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from anaphora.analysis.trace import unplayable
from anaphora.analysis.trace.sources import Problem, Source
from anaphora.errors import InvalidRequest

from . import files
from .files import Format


def gather(places: list[Path], format_: Format | None) -> tuple[list[Source], list[Problem]]:
    """The conversations that can be played, each under a name of its own, and what is wrong."""
    found: dict[str, Source] = {}
    problems: list[Problem] = []
    for file in files.files_in(places):
        for entry in files.read(file, format_):
            if isinstance(entry, Problem):
                problems.append(entry)
                continue
            trace = entry.trace
            why = unplayable(trace.provider, trace.model)
            if why is not None:
                problems.append(Problem(entry.place, why))
                continue
            if trace.id in found:
                trace = replace(trace, id=f"{trace.id} ({entry.place})")
            found[trace.id] = entry._replace(trace=trace)
    return list(found.values()), problems


def refuse(problems: list[Problem]) -> None:
    """Nothing, when all problems are harmless."""
    wrong = [problem for problem in problems if not problem.harmless]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise InvalidRequest(wrong[0].reason + more, path=wrong[0].place)
