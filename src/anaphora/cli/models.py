"""`anaphora models`"""

from __future__ import annotations

import datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import click
from click.shell_completion import CompletionItem

from anaphora import catalog
from anaphora.catalog import CacheRules, Figure, Price, Profile

from .common import FOUND, ProviderName, WireName, completions, print_json, stop
from .terminal import Terminal, table

#: The columns behind the model's name; those of words are aligned to the left.
_TITLES = (
    *("context", "output", "tokenizer", "cache", "minimum", "ttls", "read", "write"),
    *("$ in", "$ out", "retires"),
)
_WORDS = ("tokenizer", "cache", "ttls", "retires")


def _complete_model(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return completions(_names(ctx.params.get("provider")), incomplete)


@click.command()
@click.argument("pattern", default="", shell_complete=_complete_model)
@click.option("--provider", type=ProviderName(), help="Only this provider's models.")
@click.option("--wire", "on", type=WireName(), help="Show the cache rules on this wire.")
@click.option("--json", "as_json", is_flag=True, help="Print everything, with sources, as JSON.")
def command(pattern: str, provider: str | None, on: str | None, as_json: bool) -> None:
    """List known models and their cache rules.

    PATTERN keeps the models that have it in `provider/model`; with a *, those that match it. A ~
    marks a conservative default: no source states the figure. Cache prices are multiples of the
    input price; prices are current US dollars per million tokens, for a short prompt. With
    --provider, the last row holds the defaults for models that are not listed.
    """
    profiles = [*catalog.models(provider)]
    if provider is not None and not pattern:
        profiles.append(catalog.profile(provider, "*"))
    kept = [profile for profile in profiles if _matches(pattern, _name(profile))]
    if not kept:
        click.echo(_no_match(pattern, provider), err=True)
        stop(FOUND)
    now = datetime.datetime.now(datetime.UTC)
    rows = []
    for profile in kept:
        rules = catalog.rules(profile.provider, profile.id, on)
        price = catalog.price(profile.provider, profile.id, now, rules=rules)
        rows.append((profile, rules, price))
    if as_json:
        print_json([_fields(*row) for row in rows])
    else:
        _print_table(rows, now.date())


def _name(profile: Profile) -> str:
    return f"{profile.provider}/{profile.id}"


def _names(provider: str | None) -> list[str]:
    return [_name(profile) for profile in catalog.models(provider)]


def _matches(pattern: str, name: str) -> bool:
    pattern, name = pattern.lower(), name.lower()
    return fnmatchcase(name, pattern) if "*" in pattern else pattern in name


def _no_match(pattern: str, provider: str | None) -> str:
    """An error that suggests similar names."""
    names = _names(provider)
    ids = {name.partition("/")[2]: name for name in names}
    near = get_close_matches(pattern, [*names, *ids], n=5)
    message = f"no model{' of ' + provider if provider else ''} with {pattern!r} in its name"
    if near:
        return f"{message}; did you mean {', '.join(dict.fromkeys(ids.get(n, n) for n in near))}?"
    return f"{message}; `anaphora models` lists all of them"


def _fields(profile: Profile, rules: CacheRules, price: Price | None) -> dict[str, Any]:
    return {
        "provider": profile.provider,
        "id": profile.id,
        "profile": profile,
        "rules": rules,
        "price": price,
    }


# ── The table ────────────────────────────────────────────────────────────────────────────────────


def _print_table(
    rows: list[tuple[Profile, CacheRules, Price | None]], today: datetime.date
) -> None:
    numbers = [title for title in _TITLES if title not in _WORDS]
    listed = table("model", *_TITLES, right=numbers)
    listed.columns[0].no_wrap = True
    for profile, rules, price in rows:
        listed.add_row(*_cells(profile, rules), *_price_cells(price), _retires(profile, today))
    Terminal(piped_width=200).page(listed)


def _cells(profile: Profile, rules: CacheRules) -> list[str]:
    ttls = rules.ttls.value
    writes = [rules.write_price.get(ttl) for ttl in ttls]
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
    ]


def _price_cells(price: Price | None) -> list[str]:
    rates = [None, None] if price is None else [price.input, price.output]
    return ["unknown" if rate is None else f"{rate:f}" for rate in rates]


def _retires(profile: Profile, today: datetime.date) -> str:
    if profile.retires is None:
        return ""
    day = profile.retires.value
    return f"{day} (gone)" if day <= today else f"{day}"


def _tokens(figure: Figure[int] | None) -> str:
    return "" if figure is None else _marked(figure, _short(figure.value))


def _short(count: int) -> str:
    """1M, 272k, 131k: three digits."""
    if count >= 1_000_000:
        return f"{count / 1_000_000:.3g}M"
    return f"{count / 1000:.3g}k" if count >= 10_000 else str(count)


def _marked(figure: Figure[Any], text: str) -> str:
    return text if figure.verified else f"~{text}"
