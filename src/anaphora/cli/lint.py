"""`anaphora lint`"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from anaphora import catalog, wire
from anaphora.analysis.lint import (
    RULES,
    SEVERITIES,
    Costs,
    Finding,
    counts,
    suppressed,
)
from anaphora.analysis.lint.checks import (
    PER_TOKEN,
    lint_request,
    lint_samples,
    lint_text,
    lint_text_samples,
)
from anaphora.analysis.trace.log_lines import LogLine, numbered
from anaphora.catalog.pricing import PriceBook
from anaphora.errors import InvalidRequest, Io
from anaphora.traffic.request_log import holds_request, read_request, why_no_request
from anaphora.traffic.sent_requests import RequestDefaults, SentRequest
from anaphora.wording import counted, format_usd

from .common import (
    EXISTING_FILE,
    FOUND,
    read_bytes,
    report_problems,
    stop,
)
from .log_files import stop_empty, unpriced_note
from .parameters import provider_option
from .terminal import Line, print_report

_TEXT_SUFFIXES = (".txt", ".md", ".markdown", ".prompt", ".j2", ".jinja", ".jinja2", ".mustache")
_LINES_SUFFIXES = (".jsonl", ".ndjson")
_COLOURS = {"note": "cyan", "warning": "yellow", "error": "red"}
_CONTROLS = dict.fromkeys([*range(32), 127], " ")


@click.command()
@click.argument("files", nargs=-1, required=True, type=EXISTING_FILE)
@click.option("--samples", is_flag=True, help="Compare FILES as samples of one prompt.")
@click.option("--model", help="Model, if the requests do not name it.")
@provider_option
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(
    files: tuple[Path, ...], samples: bool, model: str | None, provider: str | None, as_json: bool
) -> None:
    """Find what will break a cached prefix, before it does.

    FILES are requests (JSON bodies of any wire; one a line in .jsonl) or prompts as plain text. In
    tools, system prompts and texts it looks for dates, clocks, UUIDs, nonces, counters, temporary
    paths and host names; in requests also for cache markers without effect and for prompts too
    short to be cached. With --samples it reports everything that differs: lists in another order,
    cache keys that change every time. Each finding states its cost per thousand calls.

    Suppress a finding with a reason in the text: `anaphora: ignore[rule] reason`.

    Input that cannot be read is reported on standard error. Exit code 1 when there is a warning or
    an error, or something could not be read, 2 when nothing could be read. Notes are in --json.
    """
    defaults = RequestDefaults(model=model, provider=provider)
    prompts = _Prompts(files, defaults)
    if not (prompts.requests or prompts.texts):
        stop_empty(prompts.problems, "nothing to check")
    report_problems([*prompts.problems, *prompts.guesses()])
    prices = PriceBook(time.time())
    findings = list(_findings(prompts, defaults, prices, samples=samples))
    report = {"findings": findings, "unpriced": prices.unpriced}
    print_report(report, _lines(findings, prices.unpriced), as_json=as_json)
    if prompts.problems or any(map(counts, findings)):
        stop(FOUND)


class _Prompts:
    """The prompts of the files, and what could not be read."""

    def __init__(self, files: tuple[Path, ...], defaults: RequestDefaults) -> None:
        self.requests: list[SentRequest] = []
        self.texts: list[tuple[str, str]] = []
        """Files, and their plain text."""
        self.problems: list[str] = []
        for file in files:
            for line in self._requests_in(file):
                try:
                    self.requests.append(read_request(line, defaults))
                except InvalidRequest as problem:
                    self.problems.append(str(problem))

    def guesses(self) -> Iterator[str]:
        """Why each wire was chosen that the requests do not prove, without repeats."""
        first = {request.guess: request for request in reversed(self.requests)}
        return (f"{one.place}: {guess}" for guess, one in first.items() if guess)

    def _requests_in(self, file: Path) -> Iterable[LogLine]:
        """The lines with requests. Adds the file to `texts` or `problems` if it has none."""
        name, suffix = str(file), file.suffix.lower()
        is_json = suffix == ".json"
        try:
            data = read_bytes(file)
            if not data.strip():
                self.problems.append(f"{file}: the file is empty")
                return []
            if suffix in _LINES_SUFFIXES:
                return numbered(data.splitlines(), name)
            if suffix not in _TEXT_SUFFIXES and holds_request(data, name, is_json=is_json):
                return [LogLine(name, data)]
            if is_json:
                self.problems.append(f"{file}: {why_no_request(data)}")
            else:
                self.texts.append((name, data.decode("utf-8-sig")))
        except UnicodeDecodeError as problem:
            reason = f"neither a request nor text: {problem.reason} at byte {problem.start}"
            self.problems.append(f"{file}: {reason}")
        except (InvalidRequest, Io) as problem:
            self.problems.append(str(problem))
        return []


def _findings(
    prompts: _Prompts,
    defaults: RequestDefaults,
    prices: PriceBook,
    *,
    samples: bool,
) -> Iterator[Finding]:
    """With `samples`, the first prompt is checked by itself, and the others against it."""
    last = 1 if samples else None
    requests, texts = prompts.requests, prompts.texts
    costs = [
        Costs(
            rules=request.rules,
            price=prices.price(request.provider, request.model, None, request.wire),
            marked=bool(request.sent.marks.marks) or request.sent.marks.automatic is not None,
        )
        for request in requests[:last]
    ]
    for request, cost in zip(requests, costs, strict=False):
        own = lint_request(request.sent.rendered, request.place, cost, request.sent.marks)
        yield from suppressed(own, request.place, "")
    text_cost, ratio = _text_costs(defaults, prices)
    for file, text in texts[:last]:
        own = lint_text(text, file, text_cost, ratio)
        yield from suppressed(own, file, text)
    if not samples:
        return
    if len(requests) < 2 and len(texts) < 2:
        raise InvalidRequest("needs at least two samples", path="--samples")
    compared: list[Finding] = []
    if len(requests) > 1:
        wires = sorted({request.wire for request in requests})
        if len(wires) > 1:
            names = ", ".join(wires)
            raise InvalidRequest(f"samples of one prompt must use one wire, not {names}")
        rendered = [(request.place, request.sent.rendered) for request in requests]
        compared += lint_samples(rendered, costs[0])
    if len(texts) > 1:
        compared += lint_text_samples(texts, text_cost, ratio)
    yield from compared


def _text_costs(defaults: RequestDefaults, prices: PriceBook) -> tuple[Costs, float]:
    """Costs and bytes per token of plain texts, for the provider of the command line."""
    model = defaults.model
    provider = defaults.provider or (None if model is None else _provider_of(model))
    if model is None or provider is None:
        return Costs(), PER_TOKEN
    rules, profile = catalog.rules(provider, model), catalog.profile(provider, model)
    price = prices.price(provider, model, None)
    marked = rules.mechanism.value == "explicit"
    return Costs(rules=rules, price=price, marked=marked), profile.bytes_per_token.value


def _provider_of(model: str) -> str | None:
    """The provider that makes a model, if that is unambiguous."""
    makers = {profile.provider for profile in catalog.models() if profile.id == model}
    native = [provider for provider in wire.PROVIDERS.values() if provider in makers]
    return native[0] if native else (makers.pop() if len(makers) == 1 else None)


def _lines(findings: list[Finding], unpriced: tuple[str, ...]) -> Iterator[Line]:
    for finding in filter(counts, findings):
        yield from _finding(finding)
    yield _total(findings), "bold"
    if unpriced and findings:
        yield unpriced_note(unpriced), "dim"


def _finding(finding: Finding) -> Iterator[Line]:
    where = f"{finding.file} {finding.path}".rstrip()
    if finding.line is not None:
        where = f"{finding.file}:{finding.line}:{finding.column}"
    rule = RULES[finding.rule]
    severity = (finding.severity, _COLOURS[finding.severity])
    yield [f"{where}: ", severity, f" [{finding.rule}] {rule.title}"]
    if finding.excerpt:
        yield f"    {finding.excerpt.translate(_CONTROLS)}", "bold"
    costs = []
    if finding.tokens:
        costs.append(f"{counted(finding.tokens, 'token')} after it")
    if finding.cost_usd:
        most = "up to " if rule.seldom else ""
        costs.append(f"{most}{format_usd(finding.cost_usd)} per 1,000 calls")
    yield f"    why: {finding.why}" + (f" ({', '.join(costs)})" if costs else "")
    yield f"    fix: {finding.fix}"


def _total(findings: list[Finding]) -> str:
    unsuppressed = [finding for finding in findings if finding.suppressed is None]
    numbers = Counter(finding.severity for finding in unsuppressed)
    found = [counted(numbers[each], each) for each in reversed(SEVERITIES) if numbers[each]]
    total = ", ".join(found) or "nothing found"
    if numbers["note"]:
        total += " (--json has the notes)"
    if left := len(findings) - len(unsuppressed):
        total += f", {left} suppressed"
    return total
