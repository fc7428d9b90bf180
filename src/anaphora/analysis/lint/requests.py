"""A request: its tools and system prompt are meant to stay the same, its history was said once and
stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anaphora.cache.verdict.json_blocks import UNREADABLE, block_of
from anaphora.rendered import Chunk, Plan, Rendered
from anaphora.tokens import Counts

from .costs import Costs
from .markers import lint_markers
from .patterns import hits
from .texts import around
from .values import RULES, Finding, found


def lint_request(
    rendered: Rendered, file: str, costs: Costs | None = None, plan: Plan | None = None
) -> Iterator[Finding]:
    """What is volatile where it costs, what is too short, which marker is wasted. `plan` are the
    markers, where the request does not carry them itself."""
    costs = costs or Costs()
    plan = plan or Plan(marks=rendered.marks, automatic=rendered.automatic)
    counts = Counts(rendered)
    total = counts.total
    short = total < costs.minimum
    volatile: set[int] = set()
    for chunk, finding in _volatile(rendered, file, costs, counts, short):
        if finding.severity != "note" and not RULES[finding.rule].seldom:
            volatile.add(chunk)
        yield finding
    if short:
        why = f"about {total:,} tokens, and fewer than {costs.minimum:,} are not cached"
        yield found("too-short", file=file, path="$", why=why)
    if costs.rules is not None:
        yield from lint_markers(rendered, plan, costs, file, volatile)
    yield from _key(rendered, file)


def _volatile(
    rendered: Rendered, file: str, costs: Costs, counts: Counts, short: bool
) -> Iterator[tuple[int, Finding]]:
    total = counts.total
    for chunk in stable(rendered):
        start = rendered.offset(chunk.index)
        for path, text in strings(chunk):
            for hit in hits(text):
                said = text[hit.start : hit.end]
                inside = max(0, chunk.data.find(said.encode(errors="replace")))
                behind = 0 if short else total - counts.before(start + inside)
                finding = found(
                    hit.rule,
                    severity=hit.severity,
                    file=file,
                    path=path,
                    excerpt=around(text, hit.start, hit.end),
                    tokens=behind,
                    cost_usd=costs.per_thousand(behind, total),
                )
                yield chunk.index, finding


def stable(rendered: Rendered) -> Iterator[Chunk]:
    """The chunks that every call of an app begins with."""
    first = 0
    for run in rendered.runs:
        if run.section != "messages":
            yield from (rendered.chunk(first + at) for at in range(run.count))
        first += run.count


def strings(chunk: Chunk) -> Iterator[tuple[str, str]]:
    """The texts in a chunk, with their paths in the body."""
    value = block_of(chunk).value
    if value is UNREADABLE:
        return
    if isinstance(value, dict) and len(value) == 1 and chunk.path.split("[")[0] in value:
        value = next(iter(value.values()))  # a field of the body is its own block
    yield from _strings(value, chunk.path)


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, item in value.items():
            # What a schema shows as an example is one.
            if name not in ("examples", "example", "default", "const", "enum", "input_examples"):
                yield from _strings(item, f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _strings(item, f"{path}[{index}]")


def _key(rendered: Rendered, file: str) -> Iterator[Finding]:
    """A cache key that looks as if it were made for this one request. It is not shown."""
    key = (
        dict(rendered.envelope.cache_params)
        .get("cache_key", b"")
        .decode(errors="replace")
        .strip('"')
    )
    marked = f"request {key}" if key else ""
    if any(
        hit.rule in ("volatile-uuid", "volatile-nonce", "volatile-clock") for hit in hits(marked)
    ):
        yield found(
            "cache-key-changes",
            severity="note",
            file=file,
            path="$.prompt_cache_key",
            why="it looks like an id of this one request; with another key nothing is shared",
        )
