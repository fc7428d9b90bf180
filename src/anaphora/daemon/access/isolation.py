"""Hides from an app what other apps have cached at a provider that they share.

If a provider has cache keys or salts, each app gets its own. Otherwise a call may read what another
app wrote, and the app sees its usage as if it were alone. It is still charged the provider's bill,
which an app can measure by trying different `max_tokens` at its limit. `shared_caches` warns about
apps that share a cache without `share_cache`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from anaphora import catalog
from anaphora.cache.simulator.outcome import Prediction
from anaphora.catalog import CacheRules
from anaphora.client.config import Hop
from anaphora.client.config.secrets import ResolvedProvider
from anaphora.redaction import hides_arguments
from anaphora.rendered import Plan
from anaphora.values import TTL_SECONDS, Extras, Reply, Usage
from anaphora.values.reply import WriteTtl
from anaphora.wire.reading import DECODE_ERRORS, decode_members, encode_members

from .checks import is_granted
from .granted_models import Routes, models_of
from .grants import AppGrant

#: Members of replies, besides the usage, that show cache reads.
_CACHE_MEMBERS = frozenset(
    ("timings", "time_info", "x_groq", "usage_breakdown", "prompt_cache_diagnostics", "__verbose")
)
#: The share of a prefix that counts as all of it: how precisely an app's own writes are known.
_NEARLY = 0.9


class SharedProviders:
    """Providers that several apps may use. Entries with the same address and key share a cache and
    count as one."""

    def __init__(self) -> None:
        self._users: Mapping[Hashable, set[str]] | None = None
        self.accounts: Mapping[str, Hashable] = {}
        """The account of each entry of llm.yaml."""
        self.only_users: Mapping[str, str] = {}
        """The app that alone may use an entry's cache, by entry."""

    def use(
        self,
        grants: Iterable[AppGrant],
        routes: Mapping[str, Sequence[Hop]],
        providers: Mapping[str, ResolvedProvider],
    ) -> None:
        self.accounts = {name: account_of(one) for name, one in providers.items()}
        users: dict[Hashable, set[str]] = {}
        for grant in grants:
            for name in grant.llm.providers:
                named = [hop.provider for hop in routes[name]] if name in routes else [name]
                for provider in named:
                    account = self.accounts.get(provider, provider)
                    users.setdefault(account, set()).add(grant.app)
        self._users = users
        self.only_users = {
            name: next(iter(users[account]))
            for name, account in self.accounts.items()
            if len(users.get(account, ())) == 1
        }

    def isolates(self, app: AppGrant, provider: str) -> bool:
        """Whether other apps' cache reads at a provider are hidden from an app. They are until the
        grants of all apps are known."""
        if app.llm.share_cache:
            return False
        if self._users is None:
            return True
        users = self._users.get(self.account(provider), set())
        return bool(users - {app.app})

    def hides_from(self, app: AppGrant) -> bool:
        """Whether it is so at any of the app's providers."""
        if app.llm.share_cache or self._users is None:
            return not app.llm.share_cache
        return any(app.app in users and len(users) > 1 for users in self._users.values())

    def account(self, provider: str) -> Hashable:
        """The account of an entry of llm.yaml."""
        return self.accounts.get(provider, provider)


@hides_arguments
def account_of(one: ResolvedProvider) -> Hashable:
    """Provider, address, a digest of the key and the credentials: entries of llm.yaml that are
    equal in these share a cache."""
    key = b"" if one.secret is None else blake3(one.secret.reveal().encode()).digest()
    return one.system, one.base_url, key, one.provider.credentials


def keys_separate(rules: CacheRules) -> bool:
    """Whether requests with different cache keys share no cache. Other providers use a key only for
    routing, or ignore it."""
    changed = rules.invalidates.get("cache_key")
    return rules.key_requests is not None and changed is not None and bool(changed.value)


def salt_field(resolved: ResolvedProvider) -> str:
    """The request field of a salt that separates the caches of apps, empty if there is none."""
    return "" if resolved.dialect is None else resolved.dialect.salt_field


def app_key(app: str, key: str) -> str:
    """An app's own cache key or salt."""
    return blake3(f"{app}\0{key}".encode(errors="replace")).hexdigest(length=16)


class OwnReads(msgspec.Struct, frozen=True, array_like=True):
    """How much of a cache read can be the app's own."""

    most: int
    """A read of at most this many tokens is the app's own;"""
    shown: int
    """of a longer one, this many tokens are."""

    @classmethod
    def of(cls, expected: Prediction | None) -> OwnReads:
        """Computed from the preceding call."""
        if expected is None:
            return NO_READS
        held = expected.read >= _NEARLY * expected.left
        own = max(expected.read, expected.left if held else 0)
        return cls(own, own)

    def joined(self, other: OwnReads) -> OwnReads:
        return OwnReads(max(self.most, other.most), max(self.shown, other.shown))


NO_READS = OwnReads(0, 0)


def own_usage(usage: Usage, own: OwnReads | None, plan: Plan) -> tuple[Usage, int]:
    """The usage of a call as if its app were alone, and how many tokens it read that other apps
    wrote. `own` is how much it may read of the app's earlier calls. The form of the usage does not
    tell whether there are such tokens: the provider's raw usage is dropped and a missing read count
    becomes 0."""
    read, own = usage.read or 0, own or NO_READS
    hidden = 0 if read <= own.most else read - min(read, own.shown)
    changed = replace(usage, read=read - hidden, raw=None)
    if not hidden:
        return changed, 0
    if not plan.marks and plan.automatic is None:
        return replace(changed, uncached=(usage.uncached or 0) + hidden), hidden
    ttls = [mark.ttl for mark in plan.marks] or [plan.automatic or "5m"]
    shortest = min(ttls, key=TTL_SECONDS.__getitem__)
    written = dict(usage.written or {})
    ttl: WriteTtl = "unsplit" if "unsplit" in written else shortest
    written[ttl] = written.get(ttl, 0) + hidden
    return replace(changed, written=written), hidden


def own_reply(reply: Reply, usage: Usage) -> Reply:
    """The reply with the usage that its app may see, and no other cache data."""
    return replace(reply, usage=usage, extras=own_extras(reply.extras))


def own_extras(extras: Extras | None) -> Extras | None:
    """Extras without the members that show cache reads."""
    if extras is None:
        return None
    return {wire: without_members(text, _CACHE_MEMBERS) for wire, text in extras.items()}


def without_members(text: str, names: Collection[str]) -> str:
    """The JSON of an object without these members; unchanged if it has none of them."""
    if not any(f'"{name}"' in text for name in names):
        return text
    try:
        members = decode_members(text.encode())
    except DECODE_ERRORS:
        return text
    return encode_members({n: raw for n, raw in members.items() if n not in names}).decode()


#: Maximum number of names in one warning.
_MOST_NAMES = 8


class SharedCache(msgspec.Struct, frozen=True):
    """Apps without `share_cache` that use the same accounts."""

    apps: tuple[str, ...]
    providers: tuple[str, ...]
    """Entries of llm.yaml."""

    def __str__(self) -> str:
        return (
            f"{_listed(self.apps)} use one key at {_listed(self.providers)}. An app can find out"
            " from its charges whether another one sent the same text recently. Give each app a"
            " provider in llm.yaml with a key of another account, or accept it: `share_cache: true`"
            " in the grants"
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
    found: dict[tuple[str, ...], set[str]] = {}
    for account in users.values():
        entries = {name: apps for name, apps in account.items() if _is_open(providers[name], apps)}
        names = {grant.app for apps in entries.values() for grant in apps}
        if len(names) > 1:
            found.setdefault(tuple(sorted(names)), set()).update(entries)
    return [SharedCache(apps, tuple(sorted(entries))) for apps, entries in found.items()]


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
