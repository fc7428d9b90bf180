"""`anaphora lint`"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import msgspec

from anaphora import catalog, wire
from anaphora.analysis.lint import (
    RULES,
    SEVERITIES,
    Costs,
    Finding,
    LintConfig,
    Severity,
    at_least,
    sarif,
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
from anaphora.traffic.request_log import holds_request, read_request
from anaphora.traffic.sent_requests import RequestDefaults, SentRequest
from anaphora.wording import counted

from .common import (
    EXISTING_FILE,
    FOUND,
    example_option,
    files_or_example,
    read_bytes,
    report_problems,
    stop,
)
from .log_files import stop_empty, unpriced_note
from .parameters import request_options
from .terminal import Line, print_report

CONFIG = ".anaphora-lint.toml"

_TEXT_SUFFIXES = (".txt", ".md", ".markdown", ".prompt", ".j2", ".jinja", ".jinja2", ".mustache")
_LINES_SUFFIXES = (".jsonl", ".ndjson")
_COLOURS = {"note": "cyan", "warning": "yellow", "error": "red"}
_CONTROLS = dict.fromkeys([*range(32), 127], " ")


@click.command()
@click.argument("files", nargs=-1, type=EXISTING_FILE)
@example_option
@click.option("--samples", is_flag=True, help="Compare FILES as samples of one prompt.")
@click.option(
    "--severity",
    type=click.Choice(("note", "warning", "error")),
    help="Lowest severity that counts; warning by default.",
)
@request_options
@click.option("--config", type=EXISTING_FILE, help=f"Used instead of ./{CONFIG}.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--sarif", "as_sarif", is_flag=True, help="Print the findings as SARIF 2.1.0.")
def command(
    files: tuple[Path, ...],
    example: bool,
    samples: bool,
    severity: Severity | None,
    config: Path | None,
    as_json: bool,
    as_sarif: bool,
    **request: Any,
) -> None:
    """Find what will break a cached prefix, before it does.

    FILES are requests (JSON bodies of any wire; one a line in .jsonl) or prompts as plain text. In
    tools, system prompts and texts it looks for dates, clocks, UUIDs, nonces, counters, temporary
    paths and host names; in requests also for cache markers without effect and for prompts too
    short to be cached. With --samples it reports everything that differs: lists in another order,
    cache keys that change every time. Each finding states its cost per thousand calls.

    Suppress a finding with a reason: `anaphora: ignore[rule] reason` in a text, or [[ignore]]
    entries with rule, reason, and file or path in .anaphora-lint.toml.

    Input that cannot be read is reported on standard error. Exit code 1 when something at or above
    the severity was found or something could not be read, 2 when nothing could be read.
    """
    files = files_or_example(files, example, "turn-1.json")
    if as_json and as_sarif:
        raise click.UsageError("--json or --sarif, not both")
    settings = _config(config)
    known = {"provider": settings.provider, "model": settings.model}
    defaults = RequestDefaults(**request | {name: request[name] or known[name] for name in known})
    threshold: Severity = severity or settings.severity or "warning"  # type: ignore[assignment]
    prompts = _Prompts(files, defaults)
    if not (prompts.requests or prompts.texts):
        stop_empty(prompts.problems, "nothing to check")
    report_problems([*prompts.problems, *prompts.guesses()])
    prices = PriceBook(time.time())
    findings = list(_findings(prompts, defaults, settings, prices, samples=samples))
    report: Any = {"findings": findings, "unpriced": prices.unpriced}
    if as_sarif:
        report = sarif(findings, version("anaphora"))
    page = _lines(findings, threshold, prices.unpriced)
    print_report(report, page, as_json=as_json or as_sarif)
    counted = (one for one in findings if one.suppressed is None and at_least(one, threshold))
    if (prompts.problems or any(counted)) and not example:
        stop(FOUND)


def _config(named: Path | None) -> LintConfig:
    """The named configuration, or the one in the current folder, or the defaults."""
    file = named or Path(CONFIG)
    if named is None and not file.is_file():
        return LintConfig()
    try:
        config = msgspec.toml.decode(read_bytes(file), type=LintConfig)
    except (msgspec.DecodeError, UnicodeError) as problem:
        raise InvalidRequest(str(problem), path=str(file)) from None
    if config.severity is not None and config.severity not in SEVERITIES:
        raise InvalidRequest(f"is one of {', '.join(SEVERITIES)}", path=f"{file}: severity")
    for index, ignore in enumerate(config.ignore):
        place = f"{file}: ignore[{index}]"
        if not ignore.reason.strip():
            raise InvalidRequest("a suppression needs a reason", path=f"{place}.reason")
        if "*" not in ignore.rule and ignore.rule not in RULES:
            raise InvalidRequest(f"there is no rule {ignore.rule!r}", path=f"{place}.rule")
    return config


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
                self.problems.append(f"{file}: not a request of a known wire")
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
    config: LintConfig,
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
        yield from suppressed(own, request.place, config.ignore, "")
    text_cost, ratio = _text_costs(defaults, prices)
    for file, text in texts[:last]:
        own = lint_text(text, file, text_cost, ratio)
        yield from suppressed(own, file, config.ignore, text)
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
    yield from suppressed(compared, "", config.ignore, "")


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


def _lines(
    findings: list[Finding], threshold: Severity, unpriced: tuple[str, ...]
) -> Iterator[Line]:
    for finding in findings:
        if finding.suppressed is None and at_least(finding, threshold):
            yield from _finding(finding)
    yield _total(findings, threshold), "bold"
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
        costs.append(f"{most}${finding.cost_usd:.2f} per 1,000 calls")
    yield f"    why: {finding.why}" + (f" ({', '.join(costs)})" if costs else "")
    yield f"    fix: {finding.fix}"


def _total(findings: list[Finding], threshold: Severity) -> str:
    unsuppressed = [finding for finding in findings if finding.suppressed is None]
    counts = [
        f"{counted(count, severity)}"
        for severity in reversed(SEVERITIES)
        if (count := sum(finding.severity == severity for finding in unsuppressed))
    ]
    total = ", ".join(counts) or "nothing found"
    hidden = sum(not at_least(finding, threshold) for finding in unsuppressed)
    if hidden:
        total += f" ({hidden} below {threshold} not shown)"
    if left := len(findings) - len(unsuppressed):
        total += f", {left} suppressed"
    return total
