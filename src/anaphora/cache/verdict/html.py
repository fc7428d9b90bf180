"""A verdict in a notebook."""

from __future__ import annotations

from anaphora.values.html import box, code, escaped, faint, folded, table

from .values import Change, Result, Verdict

#: Readable on white and on black.
_COLOURS: dict[Result, str] = {
    "first": "#808080",
    "hit": "#2e9e5b",
    "partial": "#c98a1b",
    "miss": "#d9534f",
}


def verdict_html(verdict: Verdict) -> str:
    """The sentence, and the figures and texts behind it."""
    dot = f'<b style="color:{_COLOURS[verdict.result]}">●</b>'
    said = f"<div>{dot} {escaped(verdict.sentence or verdict.result)}</div>"
    return box(said, _figures(verdict), _causes(verdict), _change(verdict.change))


def _figures(verdict: Verdict) -> str:
    figures = [
        ("left by the call before", verdict.left),
        ("expected to be read", verdict.predicted),
        ("read, by the bill", verdict.billed),
        ("paid for again", verdict.lost or None),
    ]
    rows: list[tuple[object, object]] = [
        (name, f"{tokens:,} tokens") for name, tokens in figures if tokens is not None
    ]
    money = (("lost", verdict.cost_usd), ("saved", verdict.saved))
    rows += [
        (name, f"${cost_usd.normalize():f}") for name, cost_usd in money if cost_usd is not None
    ]
    return table(rows) if rows else ""


def _causes(verdict: Verdict) -> str:
    """The first is in the sentence; the others hold besides."""
    return "".join(faint(f"also: {cause.said}") for cause in verdict.causes[1:])


def _change(change: Change | None) -> str:
    if change is None:
        return ""
    where = f"byte {change.offset:,} in {change.label} ({change.path})"
    texts = faint("before") + code(change.before) + faint("after") + code(change.after)
    return folded(where, texts)
