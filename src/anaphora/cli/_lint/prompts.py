"""Prompts out of files: requests of any wire, or plain texts."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import msgspec

from anaphora import catalog
from anaphora.analysis import lint
from anaphora.analysis.lint import Config, Costs, Finding
from anaphora.analysis.lint.texts import PER_TOKEN
from anaphora.analysis.trace.sources import Line, numbered
from anaphora.cli._explain.calls import Asked, Made, is_request, read
from anaphora.cli._simulate.money import Till
from anaphora.errors import InvalidRequest

_TEXTS = (".txt", ".md", ".markdown", ".prompt", ".j2", ".jinja", ".jinja2", ".mustache")
_LINES = (".jsonl", ".ndjson")


class Text(msgspec.Struct, frozen=True):
    file: str
    text: str


class Prompts(msgspec.Struct, frozen=True):
    requests: tuple[Made, ...]
    texts: tuple[Text, ...]
    problems: tuple[str, ...] = ()
    """What could not be read, and why."""


def load(files: tuple[Path, ...], asked: Asked) -> Prompts:
    """The prompts of the files; of a file or a line that cannot be read, the reason."""
    requests: list[Made] = []
    texts: list[Text] = []
    problems: list[str] = []
    for file in files:
        for one in _prompts(file, asked):
            if isinstance(one, str):
                problems.append(one)
            elif isinstance(one, Text):
                texts.append(one)
            else:
                requests.append(one)
    return Prompts(tuple(requests), tuple(texts), tuple(problems))


def _prompts(file: Path, asked: Asked) -> Iterator[Made | Text | str]:
    data = file.read_bytes()
    lines: list[Line] = []
    try:
        if file.suffix.lower() in _LINES:
            lines = list(numbered(data.splitlines(), str(file)))
        elif file.suffix.lower() not in _TEXTS and _is_request(data, file):
            lines = [Line(str(file), data)]
        else:
            yield Text(str(file), data.decode("utf-8-sig"))
    except UnicodeDecodeError as problem:
        reason = f"neither a request nor text: {problem.reason} at byte {problem.start}"
        yield f"{file}: {reason}"
    except InvalidRequest as problem:
        yield str(problem)
    for line in lines:
        try:
            yield read(line, asked)
        except InvalidRequest as problem:
            yield str(problem)


def _is_request(data: bytes, file: Path) -> bool:
    try:
        one = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        if file.suffix.lower() == ".json":
            raise InvalidRequest(f"not JSON: {problem}", path=str(file)) from None
        return False
    if isinstance(one, dict) and is_request(one):
        return True
    if file.suffix.lower() == ".json":
        raise InvalidRequest("not a request of any wire here", path=str(file))
    return False


class Linter:
    """Knows prices and suppressions."""

    def __init__(self, asked: Asked, config: Config) -> None:
        self._asked = asked
        self._ignores = config.ignore
        self._till = Till(datetime.datetime.now(datetime.UTC))

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Models without a known price."""
        return self._till.unpriced

    def findings(self, prompts: Prompts, *, samples: bool) -> list[Finding]:
        """With `samples`, only the first is looked at by itself, and the others beside it."""
        found: list[Finding] = []
        last = 1 if samples else None
        for made in prompts.requests[:last]:
            costs = self._costs(made)
            told = lint.lint_request(made.sent.rendered, made.place, costs, made.sent.marks)
            found += self._kept(told, made.place)
        costs, ratio = self._text_costs()
        for text in prompts.texts[:last]:
            told = lint.lint_text(text.text, text.file, costs, ratio)
            found += self._kept(told, text.file, text.text)
        if samples:
            found += self._kept(self._samples(prompts, costs, ratio), "")
        return found

    def _samples(self, prompts: Prompts, costs: Costs, ratio: float) -> Iterator[Finding]:
        requests = [(made.place, made.sent.rendered) for made in prompts.requests]
        texts = [(text.file, text.text) for text in prompts.texts]
        if len(requests) > 1:
            wires = {made.wire for made in prompts.requests}
            if len(wires) > 1:
                named = ", ".join(sorted(wires))
                raise InvalidRequest(f"samples of one prompt are on one wire, not on {named}")
            yield from lint.lint_samples(requests, self._costs(prompts.requests[0]))
        if len(texts) > 1:
            yield from lint.lint_text_samples(texts, costs, ratio)
        if len(requests) < 2 and len(texts) < 2:
            raise InvalidRequest("two samples or more, to see what differs", path="--samples")

    def _kept(self, findings: Iterator[Finding], file: str, text: str = "") -> Iterator[Finding]:
        return lint.suppressed(findings, file, self._ignores, text)

    def _costs(self, made: Made) -> Costs:
        marks = made.sent.marks
        return Costs(
            rules=made.rules,
            price=self._till.price(made.provider, made.model, None, made.wire),
            marked=bool(marks.marks) or marks.automatic is not None,
        )

    def _text_costs(self) -> tuple[Costs, float]:
        """Of texts only the command line says where they go."""
        provider, model = self._asked.provider, self._asked.model
        if model is None:
            return Costs(), PER_TOKEN
        provider = provider or _provider_of(model)
        if provider is None:
            return Costs(), PER_TOKEN
        rules, profile = catalog.rules(provider, model), catalog.profile(provider, model)
        price = self._till.price(provider, model, None)
        marked = rules.mechanism.value == "explicit"
        ratio = profile.bytes_per_token.value
        return Costs(rules=rules, price=price, marked=marked), ratio


def _provider_of(model: str) -> str | None:
    """Who makes a model of that name, when only one does."""
    makers = {profile.provider for profile in catalog.models() if profile.id == model}
    own = [name for name in ("anthropic", "openai", "google") if name in makers]
    return own[0] if own else (makers.pop() if len(makers) == 1 else None)
