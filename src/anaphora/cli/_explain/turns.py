"""Verdicts, turn by turn, on whatever was given."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from anaphora import catalog
from anaphora.analysis.trace import sources, unplayable
from anaphora.analysis.trace.sources import Entry, Line, Problem
from anaphora.analysis.trace.verdicts import judge_traces
from anaphora.cache.verdict import Verdict, judge
from anaphora.cli._simulate import files
from anaphora.cli._simulate.money import Till
from anaphora.errors import InvalidRequest

from .calls import Asked, Made, is_request, read
from .pairing import paired

Format = Literal["trace", "claude_code", "codex", "requests"]


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One call and its verdict."""

    place: str
    conversation: str
    turn: int
    """Counted within the conversation."""
    provider: str
    model: str
    at: float | None = None
    gap: float | None = None
    broke: bool = False
    sentence: str
    """What happened, for people,"""
    verdict: Verdict
    """and for programs."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    turns: int
    first: int
    hit: int
    partial: int
    miss: int
    broke: int
    lost: int
    cost_usd: Decimal | None
    """None where a loss has no known price."""


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    turns: tuple[Turn, ...]
    summary: Summary
    problems: tuple[str, ...] = ()
    unpriced: tuple[str, ...] = ()
    """Models without a known price."""


def explain(
    places: tuple[Path, ...], asked: Asked, format_: Format | None, gap: float | None
) -> Explained:
    till = Till(datetime.datetime.now(datetime.UTC))
    problems: list[Problem] = []
    singles = _singles(places) if format_ is None else None
    if singles is not None:
        turns = _requests(_in_order(singles, asked, gap), till)
    else:
        turns = _logs(places, asked, format_, till, problems)
    found = tuple(turns)
    return Explained(
        turns=found,
        summary=_summary(found),
        problems=tuple(str(problem) for problem in problems if not problem.harmless),
        unpriced=till.unpriced,
    )


# ── Requests, each in a file of its own ──────────────────────────────────────────────────────────


def _singles(places: tuple[Path, ...]) -> list[Line] | None:
    """The files as one request each, in the order they were given; None when they are logs."""
    if len(places) < 2 or any(place.is_dir() for place in places):
        return None
    lines = []
    for place in places:
        data = place.read_bytes()
        try:
            one = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
            if place.suffix == ".json":
                raise InvalidRequest(f"not JSON: {problem}", path=str(place)) from None
            return None
        if not isinstance(one, dict) or not is_request(one):
            if place.suffix == ".json" and not (isinstance(one, dict) and "calls" in one):
                raise InvalidRequest("not a request of any wire here", path=str(place))
            return None
        lines.append(Line(str(place), data))
    return lines


def _in_order(
    lines: list[Line], asked: Asked, gap: float | None
) -> Iterator[tuple[Made | None, Made]]:
    before: Made | None = None
    for index, line in enumerate(lines):
        made = read(line, asked)
        if gap is not None:
            made = replace(made, sent=replace(made.sent, at=index * gap))
        if before is not None and before.wire != made.wire:
            raise InvalidRequest(
                f"is for {made.wire}, and {before.place} for {before.wire}: nothing to compare",
                path=made.place,
            )
        yield before, made
        before = made


def _requests(pairs: Iterable[tuple[Made | None, Made]], till: Till) -> Iterator[Turn]:
    talks: dict[int, tuple[str, int]] = {}
    for before, made in pairs:
        name, count = talks.pop(id(before), (made.talk or made.place, 0))
        talks[id(made)] = name, count + 1
        verdict = judge(
            None if before is None else before.sent,
            made.sent,
            made.rules,
            price=till.price(made.provider, made.model, made.sent.at, made.wire),
            profile=catalog.profile(made.provider, made.model),
            diagnosis=made.diagnosis,
        )
        at, then = made.sent.at, None if before is None else before.sent.at
        yield Turn(
            place=made.place,
            conversation=name,
            turn=count + 1,
            provider=made.provider,
            model=made.model,
            at=at,
            gap=None if at is None or then is None else at - then,
            broke=verdict.broke,
            sentence=str(verdict),
            verdict=verdict,
        )


# ── Logs ─────────────────────────────────────────────────────────────────────────────────────────


def _logs(
    places: tuple[Path, ...],
    asked: Asked,
    format_: Format | None,
    till: Till,
    problems: list[Problem],
) -> Iterator[Turn]:
    for file in files.files_in(places):
        lines = list(files.lines_of(file, problems))
        found = format_ or _detect(lines)
        if found is None:
            what = "nothing in it" if not lines else "neither a log nor a session nor requests"
            problems.append(Problem(str(file), what))
        elif found == "requests":
            yield from _requests(paired(_made(lines, asked, problems)), till)
        else:
            yield from _recorded(sources.read(found, iter(lines)), till, problems)


def _detect(lines: list[Line]) -> Format | None:
    for one in sources.objects(lines[:50]):
        if isinstance(one, Problem):
            continue
        found: Format | None = sources.detect(one[1])
        if found is not None:
            return found
        if is_request(one[1]):
            return "requests"
    return None


def _made(lines: list[Line], asked: Asked, problems: list[Problem]) -> Iterator[Made]:
    from anaphora.cli._simulate.logged import status_of

    for line in lines:
        try:
            one = msgspec.json.decode(line.data)
            if isinstance(one, dict) and (status := status_of(one)) >= 400:
                why = f"answered with {status}: not billed"
                problems.append(Problem(line.place, why, harmless=True))
                continue
            yield read(line, asked)
        except InvalidRequest as problem:
            reason = problem.reason
            problems.append(Problem(problem.path or line.place, reason))
        except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
            problems.append(Problem(line.place, str(problem)))


def _recorded(entries: Iterator[Entry], till: Till, problems: list[Problem]) -> Iterator[Turn]:
    traces = {}
    for entry in entries:
        if isinstance(entry, Problem):
            problems.append(entry)
        elif (why := unplayable(entry.trace.provider, entry.trace.model)) is not None:
            problems.append(Problem(entry.place, why))
        else:
            trace = entry.trace
            if trace.id in traces:
                trace = replace(trace, id=f"{trace.id} ({entry.place})")
            traces[trace.id] = entry._replace(trace=trace)
    for one in judge_traces((entry.trace for entry in traces.values()), till.price):
        yield Turn(
            place=traces[one.trace].place,
            conversation=one.trace,
            turn=one.call + 1,
            provider=one.provider,
            model=one.model,
            at=one.at,
            gap=one.gap,
            broke=one.verdict.broke,
            sentence=str(one.verdict),
            verdict=one.verdict,
        )


def _summary(turns: tuple[Turn, ...]) -> Summary:
    counts = dict.fromkeys(("first", "hit", "partial", "miss"), 0)
    cost_usd: Decimal | None = Decimal(0)
    for turn in turns:
        counts[turn.verdict.result] += 1
        if turn.verdict.lost:
            lost = turn.verdict.cost_usd
            cost_usd = None if cost_usd is None or lost is None else cost_usd + lost
    return Summary(
        turns=len(turns),
        **counts,
        broke=sum(turn.broke for turn in turns),
        lost=sum(turn.verdict.lost for turn in turns),
        cost_usd=cost_usd,
    )
