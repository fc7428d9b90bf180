"""`anaphora models`: what the catalog lists."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import click
import msgspec
from click.shell_completion import CompletionItem

from anaphora import catalog, wire
from anaphora.catalog import CacheRules, Dialect, Figure, Price, Profile

from .common import FOUND, stop
from .parameters import completions
from .terminal import Line, print_report, table

#: The columns after the model's name; those of words are aligned to the left.
_TITLES = (
    *("context", "output", "tokenizer", "cache", "minimum", "ttls", "read", "write"),
    *("$ in", "$ out", "retires"),
)
_WORDS = ("tokenizer", "cache", "ttls", "retires")


def _complete_model(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return completions(map(_name, catalog.models()), incomplete)


@click.command()
@click.argument("name", default="", shell_complete=_complete_model)
@click.option("--json", "as_json", is_flag=True, help="Print everything, with sources, as JSON.")
def command(name: str, as_json: bool) -> None:
    """List known models, or print the cache rules of one.

    NAME is a model (`claude-sonnet-4-5`, `anthropic/claude-sonnet-4-5`), whose cache rules are
    printed with sources and dates; a provider, whose models, defaults for other models and wires
    (API formats) are listed; or a part of names, with a * a glob.

    A ~ marks a conservative default: no source states the figure. If sources disagree, the value in
    use comes first. Cache prices are multiples of the input price; prices are current US dollars
    per million tokens, for a short prompt.
    """
    now = datetime.datetime.now(datetime.UTC)
    one = _model_named(name)
    if one is not None:
        print_report(_fields(one, now), _model_lines(one, now), as_json=as_json)
        return
    provider = catalog.provider_named(name)
    profiles = [*catalog.models(provider)]
    if provider is None:
        profiles = [each for each in profiles if _matches(name.lower(), _name(each).lower())]
    else:
        profiles.append(catalog.profile(provider, "*"))
    if not profiles:
        click.echo(f"no model with {name!r} in its name; {_advice(name)}", err=True)
        stop(FOUND)
    makers = {profile.provider for profile in profiles}
    wires = [row for row in catalog.dialects().rows if row.provider in makers]
    fields = {"models": [_fields(profile, now) for profile in profiles], "wires": wires}
    page: list[Line] = [_models_table(profiles, now)]
    if provider is not None:
        page += ["", _wires_table(wires)]
    print_report(fields, page, as_json=as_json)


def _model_named(name: str) -> Profile | None:
    """The model with that name; also one that is not known, of a known provider."""
    if "*" in name or catalog.provider_named(name) is not None:
        return None
    first, _, rest = name.partition("/")
    provider = catalog.provider_named(first)
    if provider is None:
        provider, rest = catalog.maker_of(name), name
    if provider is None or not rest:
        return None
    profile = catalog.profile(provider, rest)
    found = any(_matches(name.lower(), _name(each).lower()) for each in catalog.models())
    return profile if profile.known or not found else None


def _advice(name: str) -> str:
    known = [*catalog.models()]
    ids = {profile.id: _name(profile) for profile in known}
    near = get_close_matches(name, [*map(_name, known), *ids], n=5)
    if not near:
        return "`anaphora models` lists all of them"
    return f"did you mean {', '.join(dict.fromkeys(ids.get(n, n) for n in near))}?"


# ── One model ────────────────────────────────────────────────────────────────────────────────────


def _fields(profile: Profile, now: datetime.datetime) -> dict[str, Any]:
    rules = catalog.rules(profile.provider, profile.id)
    return {
        "provider": profile.provider,
        "id": profile.id,
        "known": profile.known,
        "profile": profile,
        "rules": rules,
        "price": catalog.price(profile.provider, profile.id, now, rules=rules),
    }


def _model_lines(profile: Profile, now: datetime.datetime) -> Iterator[Line]:
    rules = catalog.rules(profile.provider, profile.id)
    if profile.known:
        yield _models_table([profile], now)
        yield ""
    else:
        yield _name(profile), "bold"
        near = catalog.similar_model(profile.provider, profile.id)
        hint = f" Did you mean {near}?" if near else ""
        yield f"not a known model: the provider's conservative defaults.{hint}", "dim"
    listed = table("figure", "value", "date", "source")
    for name, figure in _figures(rules):
        sure = "" if figure.verified else "~"
        listed.add_row(name, sure + _spelled(figure.value), str(figure.date), figure.source)
        for other in figure.disputed:
            listed.add_row("", f"or {_spelled(other.value)}", "", other.source, style="dim")
    yield listed
    yield "\n~ conservative default without a source; or: another source's value"


def _figures(rules: CacheRules) -> Iterator[tuple[str, Figure[Any]]]:
    """Every stated figure of the rules, by its name."""
    for field in msgspec.structs.fields(rules):
        value = getattr(rules, field.name)
        if isinstance(value, Figure):
            yield field.name, value
        elif isinstance(value, dict):
            yield from ((f"{field.name}.{key}", figure) for key, figure in value.items())


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


# ── Several ──────────────────────────────────────────────────────────────────────────────────────


def _models_table(profiles: Iterable[Profile], now: datetime.datetime) -> Line:
    listed = table("model", *_TITLES, right=[title for title in _TITLES if title not in _WORDS])
    for profile in profiles:
        rules = catalog.rules(profile.provider, profile.id)
        price = catalog.price(profile.provider, profile.id, now, rules=rules)
        listed.add_row(*_cells(profile, rules, price, now.date()))
    return listed


def _wires_table(rows: Iterable[Dialect]) -> Line:
    listed = table("wire", "format", "key header", "address")
    for row in rows:
        address = row.base_url + (row.path or "")
        listed.add_row(row.name, wire.WIRES.get(row.wire, row.wire), row.auth, address)
    return listed


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
