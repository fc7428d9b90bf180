"""docs/matrix.md, made from what really becomes of every feature on every wire and dialect."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from support.feature import Feature
from support.features import FEATURES
from support.outcomes import Outcome, Target, best

from anaphora import catalog, wire
from anaphora.catalog import Dialect

#: For each wire two models of its provider that differ in what they take.
MODELS = {
    "anthropic": ("claude-sonnet-4-5", "claude-opus-5-5"),
    "openai_chat": ("gpt-5.6", "gpt-4.1"),
    "openai_responses": ("gpt-5.6", "gpt-4.1"),
    "gemini": ("gemini-2.5-flash", "gemini-3.8-flash"),
    "ollama": ("qwen3", "gpt-oss:20b"),
}

INTRO = """\
# What is lost between wires

Whatever a request asks for and another wire cannot say is told in a notice or refused with an error,
and never dropped in silence. So read a request from any wire, render it for any other, and the
notices are the list of what did not come along; for your own request the command below prints them.

```text
anaphora translate request.json --to gemini
```

This page is made by `tests/laws/test_matrix.py`, which renders a call with each feature, reads it
back and looks. To make it anew, run that test with `ANAPHORA_UPDATE_DOCS=1`.

## By feature and target

It makes no difference which wire a request came from: what a call says, it says on every target as
the column has it. *Its own* is what the target's provider gave or understands, *another's* what
somebody else's does.

- **said**: it is in the request, and means the same. A code beside it tells of a side effect.
- **changed**: something near it is in the request, and the notice with this code says what.
- **left out**: it is not in the request, and the notice with this code says so.
- **refused**: rendering raises `InvalidRequest` with this path.
- \\*: not so for every model; the catalog knows which.
"""

DIALECTS = """\
## By dialect

A dialect is a wire as one provider speaks it. This is what each says otherwise than its wire does
for the same model: what it says though the wire has no place for it, what it says elsewhere, and
what it leaves out (with a notice). Names are those that `--to` takes.
"""


def page() -> str:
    return "\n".join([INTRO, *_by_feature(), DIALECTS, *_by_dialect()])


def targets(name: str) -> list[Target]:
    """A wire as its own provider's models take it."""
    return [Target(name, wire.PROVIDERS[name], model) for model in MODELS[name]]


# ── Features and wires ───────────────────────────────────────────────────────────────────────────


def _by_feature() -> Iterator[str]:
    for group, features in itertools.groupby(FEATURES, lambda feature: feature.group):
        yield f"### {group}\n"
        yield _row("", *(wire.WIRES[name] for name in MODELS))
        yield _row(*["---"] * (1 + len(MODELS)))
        for feature in features:
            yield _row(feature.name, *(_cell(name, feature) for name in MODELS))
        yield ""


def _cell(name: str, feature: Feature) -> str:
    found, same = best(targets(name), feature, feature.make(name))
    return _told(found) + ("" if same else " \\*")


def _told(found: Outcome) -> str:
    return f"{found.fate} ({_quoted(found.codes)})" if found.codes else found.fate


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


# ── Dialects ─────────────────────────────────────────────────────────────────────────────────────


def dialect_targets(row: Dialect, name: str) -> list[Target]:
    """A model of the provider's that the catalog knows, and one that it does not."""
    known = [profile.id for profile in catalog.models(row.provider)[:1]]
    return [Target(name, row.provider, model) for model in (*known, "unheard-of")]


def _by_dialect() -> Iterator[str]:
    yield _row("", "says besides", "says elsewhere", "leaves out")
    yield _row(*["---"] * 4)
    plain = []
    for row in catalog.dialects().rows:
        besides, elsewhere, unsaid = differences(row)
        if besides or elsewhere or unsaid:
            cells = ("; ".join(told) for told in (besides, elsewhere, unsaid))
            yield _row(f"`{row.name}`", *cells)
        else:
            plain.append(f"`{row.name}`")
    yield f"\nJust like their wires: {', '.join(plain)}.\n"


def differences(row: Dialect) -> tuple[list[str], list[str], list[str]]:
    """What the dialect says besides its wire, in other places, and not at all."""
    besides, elsewhere, unsaid = [], [], []
    for feature in FEATURES:
        asked = feature.make(row.wire)
        usual, _ = best(dialect_targets(row, row.wire), feature, asked)
        here, _ = best(dialect_targets(row, row.name), feature, asked)
        if here.fate in ("left out", "refused", "silent loss"):
            if here.fate != usual.fate:
                unsaid.append(feature.name)
        elif usual.fate in ("left out", "refused"):
            besides.append(_placed(feature, here, usual))
        elif here != usual:
            elsewhere.append(_placed(feature, here, usual))
    return besides, elsewhere, unsaid


def _placed(feature: Feature, here: Outcome, usual: Outcome) -> str:
    """The feature, and where it is said: what is new in the request, or what is not in it."""
    new = [place for place in here.places if place not in usual.places]
    missing = [place for place in usual.places if place not in here.places]
    where = _quoted(new) or f"without {_quoted(missing)}"
    codes = f" ({_quoted(here.codes)})" if here.codes else ""
    return f"{feature.name}: {where}{codes}"


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)
