"""Lint prompts in text files, requests, and several samples of one prompt.

In a request, tools and system prompt should be stable; the history never changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from anaphora.cache.prefix_difference import first_difference, tokens_behind
from anaphora.cache.simulator import RenderedPrompt
from anaphora.cache.simulator.view import automatic_position
from anaphora.cache.verdict.changes import change_at
from anaphora.cache.verdict.json_blocks import (
    UNREADABLE,
    block_of,
    volatile_change,
)
from anaphora.catalog import CacheRules
from anaphora.rendered import Chunk, Mark, Plan, Rendered
from anaphora.tokens import Counts, tokens_in
from anaphora.values import TTL_SECONDS
from anaphora.wording import counted

from . import RULES, Costs, Finding, Severity, finding_of
from .patterns import Hit, LocatedText, hits

#: Bytes per token if no model is given.
PER_TOKEN = 4.0
_CHANGE_RULES: dict[str, str] = {
    "date": "volatile-date",
    "clock": "volatile-clock",
    "uuid": "volatile-uuid",
    "nonce": "volatile-nonce",
    "counter": "volatile-counter",
    "order": "unordered-list",
    "key_order": "unordered-list",
    "tool_moved": "unordered-list",
    "block_moved": "unordered-list",
}


def lint_text(
    text: str, file: str, costs: Costs | None = None, ratio: float = PER_TOKEN
) -> Iterator[Finding]:
    """Volatile content of a prompt or template; `ratio` is bytes per token."""
    costs = costs or Costs()
    total = _text_tokens(text, ratio)
    located = LocatedText(text)
    for hit in hits(text, template=True):
        behind = tokens_in(len(located.data) - located.byte(hit.start), ratio)
        line, column = located.line_and_column(hit.start)
        yield _volatile(hit, located, costs, behind, total, file=file, line=line, column=column)
    if 0 < total < costs.minimum:
        why = _too_short(total, costs)
        yield finding_of("too-short", file=file, line=1, column=1, why=why)


def _volatile(
    hit: Hit, text: LocatedText, costs: Costs, behind: int, total: int, **place: str | int
) -> Finding:
    return finding_of(
        hit.rule,
        severity=hit.severity,
        excerpt=text.excerpt(hit.start, hit.end),
        tokens=behind,
        cost_usd=costs.per_thousand(behind, total),
        **place,
    )


def lint_text_samples(
    samples: Sequence[tuple[str, str]], costs: Costs | None = None, ratio: float = PER_TOKEN
) -> Iterator[Finding]:
    """The first difference of each text from the first one."""
    costs = costs or Costs()
    (first_file, first), *others = samples
    reported: set[tuple[str, int]] = set()
    for file, other in others:
        if other == first:
            continue
        pairs = enumerate(zip(first, other, strict=False))
        shorter = min(len(first), len(other))
        offset = next((index for index, (one, two) in pairs if one != two), shorter)
        kind: str | None = volatile_change(first, other)
        if kind is None and sorted(first.splitlines()) == sorted(other.splitlines()):
            kind = "order"
        rule = _CHANGE_RULES.get(kind or "", "changes-between-samples")
        if (rule, offset) in reported:
            continue
        reported.add((rule, offset))
        behind = _text_tokens(first[offset:], ratio)
        texts = LocatedText(first), LocatedText(other)
        line, column = texts[1].line_and_column(min(offset, len(other)))
        excerpts = [text.excerpt(offset, offset + 1) for text in texts]
        yield finding_of(
            rule,
            severity="error",
            file=file,
            line=line,
            column=column,
            excerpt=" / ".join(excerpts),
            why=f"it differs from {first_file}",
            tokens=behind,
            cost_usd=costs.per_thousand(behind, _text_tokens(first, ratio)),
        )


def _text_tokens(text: str, ratio: float) -> int:
    return tokens_in(len(text.encode(errors="replace")), ratio)


def _too_short(tokens: int, costs: Costs) -> str:
    return f"about {tokens:,} tokens, below the minimum of {costs.minimum:,}"


def lint_request(
    rendered: Rendered, file: str, costs: Costs | None = None, plan: Plan | None = None
) -> Iterator[Finding]:
    """Volatile content in tools and system prompt, prompts that are too short, and wasted markers.
    `plan` has the markers if the request does not carry them."""
    costs = costs or Costs()
    plan = plan or Plan(marks=rendered.marks, automatic=rendered.automatic)
    counts = Counts(rendered)
    total = counts.total
    short = total < costs.minimum
    volatile: set[int] = set()
    for chunk in stable_chunks(rendered):
        start = rendered.offset(chunk.index)
        inside = 0
        for path, text in strings(chunk):
            located: LocatedText | None = None
            for hit in hits(text):
                located = located or LocatedText(text)
                match = text[hit.start : hit.end].encode(errors="replace")
                inside = max(inside, chunk.data.find(match, inside))
                behind = 0 if short else _behind(counts, start + inside, costs)
                if hit.severity != "note" and not RULES[hit.rule].seldom:
                    volatile.add(chunk.index)
                yield _volatile(hit, located, costs, behind, total, file=file, path=path)
    if short:
        yield finding_of("too-short", file=file, path="$", why=_too_short(total, costs))
    if costs.rules is not None:
        yield from _lint_markers(rendered, plan, costs, costs.rules, file, volatile)
    # A cache key that looks unique to this request. Findings do not show it.
    key = (_cache_key(rendered) or b"").decode(errors="replace").strip('"')
    ids = ("volatile-uuid", "volatile-nonce", "volatile-clock")
    if key and any(hit.rule in ids for hit in hits(f"request {key}")):
        yield finding_of(
            "cache-key-changes",
            severity="note",
            file=file,
            path="$.prompt_cache_key",
            why="it looks like an id of this one request; other keys do not share its cache",
        )


def _behind(counts: Counts, offset: int, costs: Costs) -> int:
    return tokens_behind(counts, len(counts), offset, costs.rules, marked=costs.marked)


def stable_chunks(rendered: Rendered) -> Iterator[Chunk]:
    """Tools and system prompt."""
    first = 0
    for run in rendered.runs:
        if run.section != "messages":
            yield from (rendered.chunk(first + index) for index in range(run.count))
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
            # Examples in a schema are stable.
            if name not in ("examples", "example", "default", "const", "enum", "input_examples"):
                yield from _strings(item, f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _strings(item, f"{path}[{index}]")


def _cache_key(rendered: Rendered) -> bytes | None:
    return dict(rendered.envelope.cache_params).get("cache_key")


def lint_samples(
    samples: Sequence[tuple[str, Rendered]], costs: Costs | None = None
) -> Iterator[Finding]:
    """The first difference of each request's tools and system prompt from the first one's, other
    cache keys, and markers after the prefix that all samples share."""
    costs = costs or Costs()
    (first_file, first), *others = samples
    counts = Counts(first)
    stable = sum(run.count for run in first.runs if run.section != "messages")
    reported: set[tuple[str, str]] = set()
    for file, other in others:
        offset = first_difference(first, other, stable)
        if offset is not None:
            change = change_at(first, other, offset)
            rule = _CHANGE_RULES.get(change.kind, "changes-between-samples")
            if (rule, change.path) not in reported:
                reported.add((rule, change.path))
                behind = _behind(counts, change.offset, costs)
                named = f" ({change.detail})" if change.detail else ""
                yield finding_of(
                    rule,
                    severity="error",
                    file=file,
                    path=change.path,
                    excerpt=f"{change.before} / {change.after}",
                    why=f"it differs from {first_file}{named}",
                    tokens=behind,
                    cost_usd=costs.per_thousand(behind, counts.total),
                )
        if _cache_key(first) != _cache_key(other) and ("key", "") not in reported:
            reported.add(("key", ""))
            yield finding_of("cache-key-changes", file=file, path="$.prompt_cache_key")
    if costs.rules is not None and costs.rules.slots.value:
        yield from _unshared_markers(samples, costs, costs.rules)


def _unshared_markers(
    samples: Sequence[tuple[str, Rendered]], costs: Costs, rules: CacheRules
) -> Iterator[Finding]:
    """Markers on content that differs between the samples. One after shared markers may still serve
    later turns of its conversation."""
    (file, first), *others = samples
    offsets = [(first_difference(first, other, len(first)), other) for _, other in others]
    differing = [(offset, other) for offset, other in offsets if offset is not None]
    if not differing:
        return
    offset, other = min(differing, key=lambda pair: pair[0])
    shared, counts = first.at_offset(offset), Counts(first)
    tokens = counts.tokens(shared)
    marks = _all_marks(first, Plan(marks=first.marks, automatic=first.automatic), rules)
    written = counts.tokens(
        max((mark.chunk + 1 for mark in marks if mark.chunk < shared), default=0)
    )
    for mark in marks:
        end = counts.tokens(mark.chunk + 1)
        if mark.chunk < shared or end < costs.minimum:
            continue
        place = change_at(first, other, offset).place
        why = f"it is on content that differs between the samples: {place}"
        fix, severity = "nothing, if later turns repeat that content; else remove it", "note"
        cost = costs.premium(end - written, counts.total, mark.ttl)
        if not written:
            why += "; no marker is before it, so no sample reads what another wrote"
            fix, severity = "move the differing content after the marker", "warning"
            if tokens >= costs.minimum:
                run, position = first.locate(shared - 1)
                fix = f"put a marker at the end of the shared prefix ({run.path(position)})"
                cost = costs.per_thousand(tokens, counts.total)
        run, position = first.locate(mark.chunk)
        path = run.path(position)
        yield finding_of(
            "wasted-marker",
            severity=severity,
            file=file,
            path=path,
            why=why,
            fix=fix,
            cost_usd=cost,
        )
        written = end


def _all_marks(rendered: Rendered, plan: Plan, rules: CacheRules) -> tuple[Mark, ...]:
    """The markers, and the one that a request asks the provider to place."""
    if plan.automatic is None:
        return plan.marks
    position = automatic_position(rules, RenderedPrompt(rendered, plan))
    known = position is None or any(mark.chunk == position for mark in plan.marks)
    return plan.marks if known else (*plan.marks, Mark(position or 0, plan.automatic))


class WastedMarker(msgspec.Struct, frozen=True):
    why: str
    severity: Severity = "warning"
    fix: str = RULES["wasted-marker"].fix
    written: bool = False
    """It costs a write that is never read."""


def _lint_markers(
    rendered: Rendered, plan: Plan, costs: Costs, rules: CacheRules, file: str, volatile: set[int]
) -> Iterator[Finding]:
    """`volatile` are the chunks that change from call to call."""
    counts = Counts(rendered)
    written = 0
    for index, mark in enumerate(_all_marks(rendered, plan, rules)):
        before, written = written, counts.tokens(mark.chunk + 1)
        waste = _wasted(rendered, plan, rules, index, written, volatile)
        if waste is None:
            continue
        cost: Decimal | None = Decimal(0)
        if waste.written:
            cost = costs.premium(written - before, counts.total, mark.ttl)
        run, position = rendered.locate(mark.chunk)
        yield finding_of(
            "wasted-marker",
            file=file,
            path=run.path(position),
            severity=waste.severity,
            why=waste.why,
            fix=waste.fix,
            cost_usd=cost,
        )


def _block_kind(rendered: Rendered, chunk: int) -> str:
    """The catalog's name of the block's kind."""
    value = block_of(rendered.chunk(chunk)).value
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text" and not value.get("text"):
        return "empty_text"
    return kind if isinstance(kind, str) else ""


def _wasted(
    rendered: Rendered, plan: Plan, rules: CacheRules, index: int, tokens: int, volatile: set[int]
) -> WastedMarker | None:
    mark = _all_marks(rendered, plan, rules)[index]
    if not rules.slots.value:
        why = f"{rules.provider} ignores markers for this model"
        return WastedMarker(why, "note", "nothing: it caches by itself, or not at all")
    kind = _block_kind(rendered, mark.chunk)
    if kind in rules.unmarkable.value:
        why = f"a {kind} block may not carry a marker: the request is rejected"
        return WastedMarker(why, "error", "put it on the nearest block before or after it")
    minimum = rules.minimum_tokens.value
    if tokens < minimum:
        why = f"the prefix of about {tokens:,} tokens is below the minimum of {minimum:,}"
        return WastedMarker(why)
    changing = [chunk for chunk in volatile if chunk <= mark.chunk]
    if changing:
        run, position = rendered.locate(min(changing))
        why = f"it is after volatile content ({run.path(position)}): written, but never read"
        fix = "put a marker before the volatile content, and the content after the last marker"
        return WastedMarker(why, "warning", fix, written=True)
    reused = rules.trailing_system_reused
    trailing = RenderedPrompt(rendered, plan).is_trailing_system(mark.chunk)
    if trailing and reused is not None and not reused.value:
        why = (
            "it is on a system message at the end of the messages: the next request finds no entry"
        )
        fix = "put it on the last block before that message"
        return WastedMarker(f"{why} that ends there", "warning", fix, written=True)
    if index >= len(plan.marks):
        return None
    slots = rules.slots.value
    if plan.automatic is not None:
        slots -= rules.automatic_slots.value
    more = rules.reads_beyond_slots is not None and rules.reads_beyond_slots.value
    if index >= slots and not more:
        why = f"at most {counted(slots, 'marker')} may be set: the request is rejected"
        return WastedMarker(why, "error")
    shortest = min(TTL_SECONDS[earlier.ttl] for earlier in plan.marks[: index + 1])
    if rules.longer_ttl_first.value and TTL_SECONDS[mark.ttl] > shortest:
        why = f"{mark.ttl} may not follow a shorter TTL: the request is rejected"
        return WastedMarker(why, "error", "put the longer TTL first")
    return None
