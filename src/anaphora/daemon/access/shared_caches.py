"""Warnings about apps that share the cache of one account at a provider without saying so.

What an app reads of another's is hidden from it, and charged as the provider bills it: an app that
tries different `max_tokens` at its limit can still measure what it was charged.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

import msgspec

from anaphora import catalog
from anaphora.client.config.secrets import ResolvedProvider

from .checks import is_granted
from .granted_models import Routes, models_of
from .grants import AppGrant
from .isolation import account_of, keys_separate, salt_field

#: Names in one warning.
_MOST_NAMES = 8


class SharedCache(msgspec.Struct, frozen=True):
    """Apps without `share_cache` that use one account."""

    apps: tuple[str, ...]
    providers: tuple[str, ...]
    """Entries of llm.yaml."""

    def __str__(self) -> str:
        one = len(self.providers) == 1
        return (
            f"{_listed(self.apps)} share a cache at {_listed(self.providers)}, which"
            f" {'has' if one else 'have'} one key and no separate cache keys: each can measure by"
            " its limit what others have in it. Give each app an entry in llm.yaml with a key of"
            " another account, or write `share_cache: true` for those that may know of each other"
        )


def shared_caches(
    grants: Iterable[AppGrant], routes: Routes, providers: Mapping[str, ResolvedProvider]
) -> list[SharedCache]:
    users: dict[Hashable, dict[str, list[AppGrant]]] = {}
    for grant in grants:
        if grant.llm.share_cache or "llm_complete" not in grant.capabilities:
            continue
        for name in grant.llm.providers:
            named = [hop.provider for hop in routes[name]] if name in routes else [name]
            for provider in dict.fromkeys(named):
                if (resolved := providers.get(provider)) is not None:
                    account = users.setdefault(account_of(resolved), {})
                    account.setdefault(provider, []).append(grant)
    found = []
    for account in users.values():
        entries = {name: apps for name, apps in account.items() if _is_open(providers[name], apps)}
        names = {grant.app for apps in entries.values() for grant in apps}
        if len(names) > 1:
            found.append(SharedCache(tuple(sorted(names)), tuple(sorted(entries))))
    return found


def _is_open(resolved: ResolvedProvider, apps: Iterable[AppGrant]) -> bool:
    """Whether a model that these apps may call has a cache without separate keys."""
    if salt_field(resolved):  # each app has its own
        return False
    granted = [grant.llm.models for grant in apps]
    models = [
        model
        for model in models_of(resolved)
        if any(is_granted(model, patterns) for patterns in granted)
    ]
    wire = resolved.wire if resolved.dialect is None else resolved.dialect.wire
    return any(
        not keys_separate(catalog.rules(resolved.system, model, wire)) for model in models or [""]
    )


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
