"""Completion of providers, models and conversations. Whatever is wrong, there is just nothing to
complete."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from .choosing import Source


def provider(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[CompletionItem]:
    source = _source(ctx)
    return [] if source is None else _beginning(source.names, incomplete)


def model(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[CompletionItem]:
    """Models of the provider that was named; without one, `provider/model` of all."""
    from .choosing import models_of

    source = _source(ctx)
    if source is None:
        return []
    with contextlib.suppress(Exception):
        if named := ctx.params.get("provider"):
            return _beginning(models_of(source, named), incomplete)
        names = (
            f"{name}/{model}"
            for name in source.config.providers
            for model in models_of(source, name)
        )
        return _beginning(names, incomplete)
    return []


def conversation(
    ctx: click.Context,  # noqa: ARG001
    param: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[CompletionItem]:
    from .conversations import listed
    from .report import listing

    return [
        CompletionItem(told["id"], help=told["question"])
        for told in listing(listed())
        if told["id"].startswith(incomplete)
    ]


def effort(
    ctx: click.Context,  # noqa: ARG001
    param: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[CompletionItem]:
    from typing import get_args

    from anaphora.catalog import Effort

    return _beginning(get_args(Effort), incomplete)


def _source(ctx: click.Context) -> Source | None:
    from .choosing import emulated, find

    with contextlib.suppress(Exception):
        if ctx.params.get("emulate"):
            return emulated("http://localhost")
        return find(ctx.params.get("config"))
    return None


def _beginning(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
