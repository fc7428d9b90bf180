"""What a check looks at: the request as it came, and what is known of the model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from anaphora import errors
from anaphora import wire as wires
from anaphora.catalog import CacheRules, Overflow, Profile, overflow_of
from anaphora.emulator.core.asked import Asked
from anaphora.errors import Upstream

Object: TypeAlias = dict[str, Any]


class Case(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One request. Checks read `body`, whose values may be of any form; of a list of messages it
    holds what came, which `unusual` and `messages` read."""

    asked: Asked
    body: Object
    said: list[msgspec.Raw]
    """The messages, as they came."""
    unusual: list[tuple[int, Object]]
    """Those that are more than somebody's text, with their places: the others are in order, each
    by itself."""
    rules: CacheRules
    profile: Profile
    tokens: int
    """How many tokens the prompt is."""
    counts: bool = False
    """Its tokens are to be counted, and nothing is to be answered."""

    @functools.cached_property
    def messages(self) -> list[tuple[int, Object]]:
        """All of them, for those who look at what follows what."""
        return objects([msgspec.json.decode(raw) for raw in self.said])

    @property
    def model(self) -> str:
        named = self.body.get("model")
        return named if isinstance(named, str) else self.profile.id


Check: TypeAlias = Callable[[Case], Upstream | None]
"""The provider's error for one thing that it refuses; None where this is in order."""


def first(checks: tuple[Check, ...], case: Case) -> Upstream | None:
    """The first error there is: a provider tells one."""
    for check in checks:
        if (error := check(case)) is not None:
            return error
    return None


def rejected(message: str, *, param: str | None = None, code: str | None = None) -> Upstream:
    return errors.RequestRejected(message, status=400, code=code, param=param)


def objects(value: Any) -> list[tuple[int, Object]]:
    """The objects of a list with their places; nothing where it is no list."""
    if not isinstance(value, list):
        return []
    return [(at, item) for at, item in enumerate(value) if isinstance(item, dict)]


def word(value: Any) -> str:
    """A name or an id; what is no text is told as what it is, and compares."""
    return value if isinstance(value, str) else str(value)


def inside(body: Mapping[str, Any], *keys: str) -> Any:
    """What stands at the end of these keys; None where there is nothing."""
    value: Any = body
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def unknown(found: Mapping[str, Any], known: frozenset[str]) -> str | None:
    """The first field that is not in the list."""
    if found.keys() <= known:
        return None
    return next(key for key in found if key not in known)


def window(profile: Profile) -> int | None:
    """The most tokens that any source says may go in; None where nobody says."""
    limit = profile.context_tokens
    return None if limit is None or not limit.verified else max(limit.published)


def overflow_row(provider: str, wire: str) -> Overflow:
    """How a provider refuses too long a prompt; where no source says, how its wire's home does."""
    row = overflow_of(provider, wire) or overflow_of(wires.PROVIDERS[wire], wire)
    assert row is not None
    return row


def too_long(
    case: Case, provider: str, wire: str, *, param: str | None = None, limit: int | None = None
) -> Upstream | None:
    """The provider's error for a prompt that exceeds the window; None where it fits."""
    limit = window(case.profile) if limit is None else limit
    if limit is None or case.tokens <= limit:
        return None
    row = overflow_row(provider, wire)
    message, code = row.write(case.tokens, limit), row.code or "invalid_request_error"
    return errors.ContextOverflow(message, status=400, code=code, param=param)
