"""Grants: what each app may do, from `extensions.yaml`. Deny by default."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from anaphora.client import costs

NANO = costs.NANO
"""Nano-dollars in a dollar: all amounts of the ledger are whole nano-dollars."""

PROMPT_PREFIX = "prompt2:"
"""Prefix of prompt fingerprints. Its number changes with the algorithm."""
_FINGERPRINT = re.compile(PROMPT_PREFIX + "[0-9a-f]{64}")

APP_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
"""Form of the ids of apps and the names of groups, which appear in tables, logs and metrics."""

Capability: TypeAlias = Literal["llm_complete", "llm_stream", "llm_narrow"]

OverMaxTokens: TypeAlias = Literal["refuse", "clamp"]

Permission: TypeAlias = Literal[
    "server_tools",
    "remote_mcp",
    "stored_responses",
    "stored_prompts",
    "service_tiers",
    "embeddings",
]


class LlmGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The `llm` section of an app."""

    providers: tuple[str, ...] = ()
    """Ids of providers and routes in llm.yaml."""
    models: tuple[str, ...] = ()
    """Anchored globs."""
    max_tokens: int | None = None
    over_max_tokens: OverMaxTokens = "refuse"
    """`clamp`: a limit above `max_tokens` is lowered to it, with a notice."""
    n: int = 1
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_body_bytes: int | None = None
    """Maximum size of a request body; None: the daemon's limit."""
    nano_usd_per_day: int | None = None
    """None for `unlimited`."""
    nano_usd_per_month: int | None = None
    has_other_limit: bool = False
    """Whether another limit in dollars applies as well: that of the group, or of a narrowed
    token."""
    narrowed: tuple[tuple[str, ...], ...] = ()
    """Of a narrowed token: its model globs and those of the tokens that it was narrowed from, the
    outermost first. A model must match all that are not empty."""
    tools: tuple[str, ...] = ()
    """Globs that match whole names of function tools."""
    permissions: frozenset[Permission] = frozenset()
    betas: frozenset[str] = frozenset()
    """Globs that match the whole name, as for `fields`."""
    fields: frozenset[str] = frozenset()
    """Top-level request fields that are unknown to the daemon and passed on."""
    approved_prompt: str | None = None
    place_markers: bool = True
    share_cache: bool = False
    cold_above: int | None = None
    """Calls that cost so many nano-dollars more because their cached beginning is gone are refused
    once; None: none are."""

    @property
    def has_spend_limit(self) -> bool:
        own = self.nano_usd_per_day is not None or self.nano_usd_per_month is not None
        return own or self.has_other_limit

    @property
    def prompt_problem(self) -> str | None:
        """Why `approved_prompt` approves nothing, or None."""
        prompt = self.approved_prompt
        if prompt is None or _FINGERPRINT.fullmatch(prompt):
            return None
        return "is not a fingerprint"


class GroupLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for all apps of a group together, in addition to their own."""

    nano_usd_per_day: int | None = None
    nano_usd_per_month: int | None = None

    @property
    def is_limited(self) -> bool:
        return self.nano_usd_per_day is not None or self.nano_usd_per_month is not None


class AppGrant(msgspec.Struct, frozen=True, kw_only=True):
    """One app of `extensions.yaml`."""

    app: str
    capabilities: frozenset[str] = frozenset()
    requires: frozenset[str] = frozenset()
    llm: LlmGrant = LlmGrant()
    uids: frozenset[int] = frozenset()
    """On the socket, the peer's user must be one of these."""
    group: str = ""
    """Apps of one group share a spend total; empty: no group."""
    group_limits: GroupLimits | None = None
    """None: the file has no limits for groups, or the app has no group."""

    @property
    def missing(self) -> frozenset[str]:
        """Required capabilities that are not granted: the app's calls are refused."""
        return self.requires - self.capabilities

    @property
    def may_call(self) -> bool:
        """Whether the app may make calls that cost something."""
        return "llm_complete" in self.capabilities and not self.missing


NARROW: Capability = "llm_narrow"
MOST_DEPTH = 3
"""How often a token can be narrowed."""


def narrowed_grant(grant: AppGrant, models: tuple[tuple[str, ...], ...]) -> AppGrant:
    """What a narrowed token may do under the grant of its app. `models` are those of `narrowed`."""
    if not models:
        return grant
    llm = replace(grant.llm, narrowed=models, has_other_limit=True)
    without = {NARROW} if len(models) >= MOST_DEPTH else set[str]()
    return replace(grant, llm=llm, capabilities=grant.capabilities - without)


def dollars(nano: int) -> str:
    """An exact decimal amount: `5.00`, `0.000000125`."""
    whole, part = divmod(abs(nano), NANO)
    decimals = f"{part:09d}".rstrip("0").ljust(2, "0")
    return f"{'-' if nano < 0 else ''}{whole}.{decimals}"


def exact_usd(nano: int) -> str:
    """The same for people: `$5.00`, `-$0.25`."""
    return f"{'-' if nano < 0 else ''}${dollars(abs(nano))}"
