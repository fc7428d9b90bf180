"""`anaphora explain`"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple, TypeAlias

import click
import msgspec
from msgspec.structs import replace

from anaphora.analysis import trace
from anaphora.analysis.trace.log_lines import FoundTrace, LogLine, Problem
from anaphora.analysis.trace.programs import PROGRAMS
from anaphora.analysis.trace.verdicts import judge_traces
from anaphora.cache.learned_steps import LearnedSteps
from anaphora.cache.prefix_index import EarlierCall
from anaphora.cache.verdict import Remedy, Verdict, as_side_call
from anaphora.cache.verdict.advice import advice, can_apply
from anaphora.cache.verdict.values import PROMPT_CHANGED
from anaphora.catalog.pricing import PriceBook
from anaphora.errors import InvalidRequest, Io
from anaphora.traffic.matching import judge_request, paired
from anaphora.traffic.request_log import (
    holds_request,
    is_request,
    read_request,
    why_no_request,
    why_unbilled,
)
from anaphora.traffic.sent_requests import RequestDefaults, ResponseChains, SentRequest
from anaphora.usage.log_files import LogFormat, detect, files_in, records_of, unrecognised
from anaphora.wire.reading import decode_reason

from .common import read_bytes, report_problems
from .explain_output import ExplainedCall, ExplainSummary, Explanation, page_lines
from .log_files import answers_in, found_sessions, playable, stop_empty, stop_for
from .parameters import Time, provider_option
from .terminal import RESULT_COLOURS, print_report

_Pair: TypeAlias = tuple[EarlierCall[SentRequest] | None, SentRequest]


class _LoggedCall(NamedTuple):
    """A call of a request log, with the fields that distinguish side calls."""

    explained: ExplainedCall
    session: tuple[str, str]
    like: str | None
    """The place of an earlier call in another conversation with the same beginning."""
    tools: int
    """The size of its tools in bytes."""


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--model", help="Model, if the requests do not name it.")
@provider_option
@click.option(
    "--gap",
    type=Time("s"),
    help="Time between two requests, if none are recorded: 30s, 5m, or a number of seconds.",
)
@click.option("--all", "everything", is_flag=True, help="Also show every hit.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def command(
    files: tuple[Path, ...],
    model: str | None,
    provider: str | None,
    gap: float | None,
    everything: bool,
    as_json: bool,
) -> None:
    """Explain why a prompt cache was missed, and what that cost.

    FILES are two or more requests of one conversation (JSON bodies, in the order they were sent),
    or logs: recorded traces, sessions of Claude Code, Codex, Gemini CLI, opencode, GitHub Copilot
    CLI or pi, or request logs with the bodies of requests and, if there are any, responses. Every
    call is compared with the one before it: the cause, the first bytes that differ, the cost. An
    answer that several sessions contain counts once.

    Without FILES, the newest sessions of these programs on this machine are explained; how many
    there are of each is printed.

    A cause is named if the requests, the clock or the provider's rules prove it. "Unknown" means
    that less was read than had been cached, and the file does not show why; `anaphora watch`
    compares the requests themselves. A compaction, an edited history and a resumed session are
    named as such.

    Input that cannot be read is reported on standard error and skipped. Exit code 1 when a prefix
    broke or a file could not be read, 2 when there is no call to explain or a provider is unknown
    (name it with --provider).
    """
    explainer = _Explainer(RequestDefaults(model=model, provider=provider))
    calls = tuple(explainer.calls(files or found_sessions(explainer.problems), gap))
    if not calls:
        stop_empty(explainer.problems, "nothing to explain")
    explained = explainer.explanation(calls)
    report_problems((*explained.problems, *explained.notices))
    print_report(explained, page_lines(explained, everything=everything), as_json=as_json)
    broke = explained.summary.broke > 0
    stop_for(explainer.problems, (call.place for call in calls), found=broke)


class _Explainer:
    def __init__(self, defaults: RequestDefaults) -> None:
        self.prices = PriceBook(time.time())
        self.steps = LearnedSteps()
        self.problems: list[Problem] = []
        self._defaults = defaults
        self._guesses: set[str] = set()

    def explanation(self, calls: tuple[ExplainedCall, ...]) -> Explanation:
        problems, notices = (
            tuple(str(problem) for problem in self.problems if problem.kind in kinds)
            for kinds in (("skipped", "rejected"), ("not_compared", "notice"))
        )
        return Explanation(
            turns=calls,
            summary=_summary(calls),
            problems=problems,
            notices=notices,
            unpriced=self.prices.unpriced,
            learned=self.steps.learned,
        )

    def calls(self, places: tuple[Path, ...], gap: float | None) -> Iterator[ExplainedCall]:
        singles = _single_requests(places)
        if singles is not None:
            yield from (one.explained for one in self._judged(self._in_order(singles, gap)))
            return
        files = files_in(places, self.problems)
        answers = answers_in(files, is_request)
        for file in files:
            lines = [*records_of(file, self.problems)]
            detected = detect(lines, is_request)
            if detected == "requests":
                pairs = paired(self._requests(lines), self.steps)
                yield from _with_side_calls(self._judged(pairs))
            elif detected is not None:
                found = answers.once(str(file), trace.read(detected, iter(lines)))
                recorded = self._recorded(playable(found, self.problems, self._defaults.provider))
                yield from (_for_users(call, detected) for call in recorded)
            elif lines:
                reason = why_no_request(lines[0].data) or "neither a log, a session nor requests"
                self.problems.append(unrecognised(lines, Problem(str(file), reason)))

    def _in_order(self, lines: list[LogLine], gap: float | None) -> Iterator[_Pair]:
        before: SentRequest | None = None
        earlier: EarlierCall[SentRequest] | None = None
        for index, request in enumerate(self._of_one_wire(lines)):
            if gap is not None:
                request = replace(request, sent=replace(request.sent, at=index * gap))
            if before is not None and before.wire != request.wire:
                reason = f"is for {request.wire}, but {before.place} is for {before.wire}"
                raise InvalidRequest(reason, path=request.place)
            yield earlier, request
            before = request
            earlier = EarlierCall(call=request, continues=True, chunks=0, latest=request)

    def _of_one_wire(self, lines: list[LogLine]) -> Iterator[SentRequest]:
        """Requests of one conversation. A request that fits several wires gets the wire of the
        others."""
        requests = [read_request(line, self._defaults) for line in lines]
        known = next((request.wire for request in requests if not request.guess), None)
        defaults = replace(self._defaults, origin=known)
        for line, request in zip(lines, requests, strict=True):
            if request.guess and known is not None:
                yield read_request(line, defaults)
            else:
                yield self._noted(request)

    def _requests(self, lines: list[LogLine]) -> Iterator[SentRequest]:
        chains = ResponseChains()
        for line in lines:
            try:
                fields = msgspec.json.decode(line.data)
                if isinstance(fields, dict) and (reason := why_unbilled(fields)):
                    self.problems.append(Problem(line.place, reason, "not_compared"))
                    continue
                yield self._noted(read_request(line, self._defaults, chains))
            except InvalidRequest as problem:
                self.problems.append(Problem(problem.path or line.place, problem.reason))
            except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
                reason = f"not JSON: {decode_reason(problem, line.data)}"
                self.problems.append(Problem(line.place, reason))

    def _noted(self, request: SentRequest) -> SentRequest:
        """Adds a notice, once, if the request fits several wires: why this one was chosen."""
        if request.guess and request.guess not in self._guesses:
            self._guesses.add(request.guess)
            self.problems.append(Problem(request.place, request.guess, "notice"))
        return request

    def _judged(self, pairs: Iterable[_Pair]) -> Iterator[_LoggedCall]:
        conversations: dict[str, tuple[str, int]] = {}
        names: set[str] = set()
        for earlier, request in pairs:
            provider, model, at = request.provider, request.model, request.sent.at
            if earlier is not None and earlier.continues:
                name, count = conversations[earlier.call.place]
            else:
                name, count = request.named or request.place, 0
                if name in names:  # side calls and subagents of a session
                    name = f"{name} ({request.place})"
                names.add(name)
            conversations[request.place] = name, count + 1
            price = self.prices.price(provider, model, at, request.wire)
            before, verdict, _ = judge_request(earlier, request, price)
            then = None if before is None else before.at
            explained = ExplainedCall(
                place=request.place,
                conversation=name,
                turn=count + 1,
                provider=provider,
                model=model,
                at=at,
                gap=None if at is None or then is None else at - then,
                broke=verdict.broke,
                sentence=str(verdict),
                verdict=verdict,
            )
            other = earlier is not None and not earlier.continues and before is not None
            like = earlier.call.place if earlier is not None and other else None
            session = request.hints.conversation, request.hints.user
            yield _LoggedCall(explained, session, like, request.tool_bytes)

    def _recorded(self, entries: list[FoundTrace]) -> Iterator[ExplainedCall]:
        places = {entry.trace.id: entry.place for entry in entries}
        for call, model, verdict in judge_traces(
            (entry.trace for entry in entries), self.prices.price, self.steps
        ):
            yield ExplainedCall(
                place=places[call.trace],
                conversation=call.trace,
                turn=call.call + 1,
                provider=call.provider,
                model=model,
                at=call.at,
                gap=call.gap,
                broke=verdict.broke,
                sentence=str(verdict),
                verdict=verdict,
            )


def _for_users(call: ExplainedCall, detected: LogFormat) -> ExplainedCall:
    """With what users of an agent program can do, not its authors: as `anaphora usage` says it."""
    program = next((name for name in PROGRAMS if name == detected), None)
    remedy = call.verdict.remedy
    if program is None or remedy is None:
        return call
    cause = call.verdict.causes[0].kind
    helps = remedy.kind != "nothing" and can_apply(cause, program)
    text = advice(cause, [program], helps=helps)[0].removesuffix(".")
    shown = (
        replace(remedy, text=text, fixable=False) if helps else Remedy(kind="nothing", text=text)
    )
    return replace(call, verdict=replace(call.verdict, remedy=shown))


def _with_side_calls(logged: Iterable[_LoggedCall]) -> Iterator[ExplainedCall]:
    """The calls in order. In a session with a longer conversation that has as many tools, a single
    call whose prefix no other call shares is a side call."""
    calls = list(logged)
    lengths = Counter(one.explained.conversation for one in calls)
    shared = {one.like for one in calls}
    most_tools: dict[tuple[str, str], int] = {}
    for one in calls:
        if lengths[one.explained.conversation] > 1:
            most_tools[one.session] = max(one.tools, most_tools.get(one.session, 0))
    for one in calls:
        call = one.explained
        alone = lengths[call.conversation] == 1 and call.place not in shared
        if (
            alone
            and call.verdict.result == "first"
            and call.verdict.cause not in PROMPT_CHANGED
            and one.tools <= most_tools.get(one.session, -1)
        ):
            verdict = as_side_call(call.verdict)
            call = replace(call, verdict=verdict, sentence=str(verdict))
        yield call


def verdicts_of_requests(places: Iterable[Path], provider: str | None) -> dict[str, Verdict]:
    """The verdicts on the calls of request logs, by file and line."""
    explainer = _Explainer(RequestDefaults(provider=provider))
    found = {}
    for file in files_in(tuple(places), []):
        lines = [*records_of(file, [])]
        if detect(lines, is_request) == "requests":
            pairs = paired(explainer._requests(lines), explainer.steps)
            for call in _with_side_calls(explainer._judged(pairs)):
                found[call.place] = call.verdict
    return found


def explain_session(session: str, files: tuple[Path, ...]) -> Explanation:
    """The calls of one session. A file may have others."""
    explainer = _Explainer(RequestDefaults())
    calls = tuple(explainer.calls(files, None))
    own = tuple(call for call in calls if session in call.conversation)
    return explainer.explanation(own or calls)


def _single_requests(places: tuple[Path, ...]) -> list[LogLine] | None:
    """The files as one request each, in the given order; None when they are logs."""
    if len(places) < 2 or any(place.is_dir() for place in places):
        return None
    try:
        lines = [LogLine(str(place), read_bytes(place)) for place in places]
    except Io:
        return None  # reported when the files are read one by one
    is_json = all(place.suffix == ".json" for place in places)
    if all(holds_request(line.data, line.place, is_json=is_json) for line in lines):
        return lines
    return None


def _summary(calls: tuple[ExplainedCall, ...]) -> ExplainSummary:
    counts = dict.fromkeys(RESULT_COLOURS, 0)
    cost: Decimal | None = Decimal(0)
    for call in calls:
        counts[call.verdict.result] += 1
        if call.verdict.lost:
            lost = call.verdict.cost_usd
            cost = None if cost is None or lost is None else cost + lost
    return ExplainSummary(
        turns=len(calls),
        **counts,
        broke=sum(call.broke for call in calls),
        lost=sum(call.verdict.lost for call in calls),
        cost_usd=cost,
    )
