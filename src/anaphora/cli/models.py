"""`anaphora models` and `anaphora wires`: what the catalog lists."""

from __future__ import annotations

import datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import click
from click.shell_completion import CompletionItem

from anaphora import catalog, wire
from anaphora.catalog import CacheRules, Figure, Price, Profile

from .common import FOUND, print_json, stop
from .parameters import ProviderName, WireName, completions
from .terminal import print_report, table

#: The columns after the model's name; those of words are aligned to the left.
_TITLES = (
    *("context", "output", "tokenizer", "cache", "minimum", "ttls", "read", "write"),
    *("$ in", "$ out", "retires"),
)
_WORDS = ("tokenizer", "cache", "ttls", "retires")


def _complete_model(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return completions(map(_name, catalog.models(ctx.params.get("provider"))), incomplete)


@click.command()
@click.argument("pattern", default="", shell_complete=_complete_model)
@click.option("--provider", type=ProviderName(), help="Only this provider's models.")
@click.option("--wire", "on", type=WireName(), help="Show the cache rules on this wire.")
@click.option("--json", "as_json", is_flag=True, help="Print everything, with sources, as JSON.")
def command(pattern: str, provider: str | None, on: str | None, as_json: bool) -> None:
    """List known models and their cache rules.

    PATTERN filters by substring of `provider/model`, or with a * as a glob. A ~ marks a
    conservative default: no source states the figure. Cache prices are multiples of the input
    price; prices are current US dollars per million tokens, for a short prompt. With --provider,
    the last row holds the defaults for models that are not listed.
    """
    profiles = [*catalog.models(provider)]
    if provider is not None and not pattern:
        profiles.append(catalog.profile(provider, "*"))
    kept = [profile for profile in profiles if _matches(pattern.lower(), _name(profile).lower())]
    if not kept:
        ids = {profile.id: _name(profile) for profile in profiles}
        near = get_close_matches(pattern, [*map(_name, profiles), *ids], n=5)
        advice = "`anaphora models` lists all of them"
        if near:
            advice = f"did you mean {', '.join(dict.fromkeys(ids.get(n, n) for n in near))}?"
        of = f" of {provider}" if provider else ""
        if as_json:
            print_json([])
        click.echo(f"no model{of} with {pattern!r} in its name; {advice}", err=True)
        stop(FOUND)
    now = datetime.datetime.now(datetime.UTC)
    rows = []
    for profile in kept:
        rules = catalog.rules(profile.provider, profile.id, on)
        price = catalog.price(profile.provider, profile.id, now, rules=rules)
        rows.append((profile, rules, price))
    listed = table("model", *_TITLES, right=[title for title in _TITLES if title not in _WORDS])
    for row in rows:
        listed.add_row(*_cells(*row, now.date()))
    names = ("profile", "rules", "price")
    fields = [
        {"provider": row[0].provider, "id": row[0].id, **dict(zip(names, row, strict=True))}
        for row in rows
    ]
    print_report(fields, [listed], as_json=as_json)


def _name(profile: Profile) -> str:
    return f"{profile.provider}/{profile.id}"


def _matches(pattern: str, name: str) -> bool:
    return fnmatchcase(name, pattern) if "*" in pattern else pattern in name


def _cells(
    profile: Profile, rules: CacheRules, price: Price | None, today: datetime.date
) -> list[str]:
    ttls = rules.ttls.value
    writes = [rules.write_price.get(ttl) for ttl in ttls]
    rates = [None, None] if price is None else [price.input, price.output]
    retires = "" if profile.retires is None else str(profile.retires.value)
    if profile.retires is not None and profile.retires.value <= today:
        retires += " (gone)"
    return [
        _name(profile),
        _tokens(profile.context_tokens),
        _tokens(profile.output_tokens),
        _marked(profile.tokenizer, profile.tokenizer.value),
        _marked(rules.mechanism, rules.mechanism.value),
        _tokens(rules.minimum_tokens),
        _marked(rules.ttls, " ".join(ttls)),
        _marked(rules.read_price, f"{rules.read_price.value:g}"),
        " ".join("1" if write is None else _marked(write, f"{write.value:g}") for write in writes),
        *("unknown" if rate is None else f"{rate:f}" for rate in rates),
        retires,
    ]


def _tokens(figure: Figure[int] | None) -> str:
    """1M, 272k, 131k: three digits."""
    if figure is None:
        return ""
    count = figure.value
    short = f"{count / 1000:.3g}k" if count >= 10_000 else str(count)
    return _marked(figure, f"{count / 1_000_000:.3g}M" if count >= 1_000_000 else short)


def _marked(figure: Figure[Any], text: str) -> str:
    return text if figure.verified else f"~{text}"


@click.command()
@click.argument("pattern", default="")
@click.option("--json", "as_json", is_flag=True, help="Print every row as one JSON array.")
def wires(pattern: str, as_json: bool) -> None:
    """List providers and the wires (API formats) they support.

    PATTERN filters by substring of the name. `anaphora translate --to` accepts the names
    in the first column; a provider's name alone stands for its first wire.
    """
    rows = [row for row in catalog.dialects().rows if pattern in row.name]
    listed = table("name", "wire", "key header", "address")
    for row in rows:
        address = row.base_url + (row.path or "")
        listed.add_row(row.name, wire.WIRES.get(row.wire, row.wire), row.auth, address)
    if rows or as_json:
        print_report(rows, [listed], as_json=as_json)
    if not rows:
        click.echo(f"no provider or wire with {pattern!r} in its name", err=True)
        stop(FOUND)
