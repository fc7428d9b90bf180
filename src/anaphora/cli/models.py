"""`anaphora models`"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from ._wires import WireName

if TYPE_CHECKING:
    from anaphora.catalog import CacheRules, Figure, Price, Profile

_THOUSAND, _MILLION = 1_000, 1_000_000

#: A row is one line where nobody looks at it.
_PIPED_WIDTH = 200

#: Behind the model's name.
_TITLES = (
    *("context", "output", "tokenizer", "cache", "minimum", "ttls", "read", "write"),
    *("$ in", "$ out", "retires"),
)


class ProviderName(click.ParamType[str]):
    """A provider of the catalog."""

    name = "provider"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from anaphora import catalog

        known = catalog.shipped().providers
        if value not in known:
            self.fail(f"{value!r} is no provider here; there are {', '.join(known)}", param, ctx)
        return value

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        from anaphora import catalog

        known = catalog.shipped().providers
        return [CompletionItem(name) for name in sorted(known) if name.startswith(incomplete)]


def _complete_model(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[CompletionItem]:
    found = _names(ctx.params.get("provider"))
    return [CompletionItem(name) for name in found if name.startswith(incomplete)]


@click.command()
@click.argument("pattern", default="", shell_complete=_complete_model)
@click.option("--provider", type=ProviderName(), help="Only this provider's models.")
@click.option("--wire", "on", type=WireName(), help="The cache rules on this wire.")
@click.option("--json", "as_json", is_flag=True, help="Print everything, with sources, as JSON.")
def command(pattern: str, provider: str | None, on: str | None, as_json: bool) -> None:
    """List the models that are known, and how their caches behave.

    PATTERN keeps those that have it in `provider/model`, or match it where it has a * in it. A
    figure with a ~ is a careful stand-in: no source states it. Cache prices are multiples of the
    input price, prices dollars per million tokens as of now, for a short prompt. With --provider
    the last row is what is assumed of any model that is not listed.
    """
    from anaphora import catalog

    profiles = [*catalog.models(provider)]
    if provider is not None and not pattern:
        profiles.append(catalog.profile(provider, "*"))
    kept = [profile for profile in profiles if _matches(pattern, _name(profile))]
    if not kept:
        click.echo(_nothing(pattern, provider), err=True)
        raise click.exceptions.Exit(1)
    rows = [(profile, catalog.rules(profile.provider, profile.id, on)) for profile in kept]
    if as_json:
        _print_json(rows)
    else:
        _print_table(rows)


def _name(profile: Profile) -> str:
    return f"{profile.provider}/{profile.id}"


def _names(provider: str | None) -> list[str]:
    from anaphora import catalog

    return [_name(profile) for profile in catalog.models(provider)]


def _matches(pattern: str, name: str) -> bool:
    from fnmatch import fnmatchcase

    pattern, name = pattern.lower(), name.lower()
    return fnmatchcase(name, pattern) if "*" in pattern else pattern in name


def _nothing(pattern: str, provider: str | None) -> str:
    """What to do when nothing was found: names that are near, or where to look."""
    from difflib import get_close_matches

    names = _names(provider)
    ids = {name.partition("/")[2]: name for name in names}
    near = get_close_matches(pattern, [*names, *ids], n=5)
    said = f"no model{' of ' + provider if provider else ''} with {pattern!r} in its name"
    if near:
        return f"{said}; did you mean {', '.join(dict.fromkeys(ids.get(n, n) for n in near))}?"
    return f"{said}; `anaphora models` lists all of them"


# ── Prices ───────────────────────────────────────────────────────────────────────────────────────


def _prices(rows: list[tuple[Profile, CacheRules]]) -> list[Price | None]:
    """As of now."""
    from anaphora import catalog

    now = datetime.datetime.now(datetime.UTC)
    return [
        catalog.price(profile.provider, profile.id, now, rules=rules) for profile, rules in rows
    ]


# ── Printing ─────────────────────────────────────────────────────────────────────────────────────


def _print_json(rows: list[tuple[Profile, CacheRules]]) -> None:
    import msgspec

    prices = _prices(rows)
    told: list[dict[str, Any]] = [
        {
            "provider": profile.provider,
            "id": profile.id,
            "profile": profile,
            "rules": rules,
            "price": prices[at],
        }
        for at, (profile, rules) in enumerate(rows)
    ]
    click.echo(msgspec.json.format(msgspec.json.encode(told), indent=2))


def _print_table(rows: list[tuple[Profile, CacheRules]]) -> None:
    from rich.table import Table

    from ._console import Terminal

    prices = _prices(rows)
    table = Table(box=None, pad_edge=False)
    table.add_column("model", no_wrap=True)
    words = {"tokenizer", "cache", "ttls", "retires"}
    for title in _TITLES:
        table.add_column(title, justify="left" if title in words else "right")
    today = datetime.datetime.now(datetime.UTC).date()
    for at, (profile, rules) in enumerate(rows):
        last = _retires(profile, today)
        table.add_row(*_cells(profile, rules), *_price_cells(prices[at]), last)
    terminal = Terminal()
    if not terminal.is_terminal:
        terminal.width = _PIPED_WIDTH
    terminal.page(table)


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
    """1M, 272k, 131k: to three digits, which is what anybody remembers."""
    if count >= _MILLION:
        return f"{count / _MILLION:.3g}M"
    return f"{count / _THOUSAND:.3g}k" if count >= 10 * _THOUSAND else str(count)


def _marked(figure: Figure[Any], text: str) -> str:
    return text if figure.verified else f"~{text}"
