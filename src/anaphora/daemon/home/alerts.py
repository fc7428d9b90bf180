"""The section `alerts` of `extensions.yaml`: which events are reported, and where to."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from anaphora.client.config import Key, Name
from anaphora.daemon.access.grants import APP_ID
from anaphora.redaction import quoted
from anaphora.yaml_values import Origin, seconds_in

Percent = Annotated[int, Meta(ge=1, le=100)]
CallCount = Annotated[int, Meta(ge=1, le=1000)]
Part = Annotated[float, Meta(gt=0, le=1)]

LogLevel: TypeAlias = Literal["info", "warning", "error"]

_LONGEST = 60.0


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the tables of this section."""


class CacheReadRule(_Table, frozen=True):
    """The last `calls` calls of an app within a day read less than `below` of their tokens from
    the cache."""

    example: ClassVar[str] = "write `cache_read: {below: 0.5, calls: 100}`"

    below: Part
    calls: CallCount
    apps: tuple[Name, ...] = ()
    """Empty: all apps."""


class Webhook(_Table, frozen=True):
    example: ClassVar[str] = (
        "write `webhook: {url: https://…, key: {secret: NAME}}`, or `url: {secret: NAME}`"
    )

    url: Key | str
    key: Key
    """Signs each request."""

    def __post_init__(self) -> None:
        for name, value in (("url", self.url), ("key", self.key)):
            if isinstance(value, Key) and value.secret is None:
                raise ValueError(f"{name}: write `{name}: {{secret: NAME}}`")
        if isinstance(self.url, str) and not is_url(self.url):
            raise ValueError("url: needs http:// or https://, and a host")


class AlertTarget(_Table, frozen=True):
    """Exactly one of `webhook`, `command` and `log`."""

    example: ClassVar[str] = "write `NAME: {log: warning}`"

    webhook: Webhook | None = None
    command: tuple[Name, ...] | None = None
    log: LogLevel | None = None
    timeout: float | str = 10.0
    """Seconds for an attempt of a webhook or a run of the command."""

    def __post_init__(self) -> None:
        given = [one for one in (self.webhook, self.command, self.log) if one is not None]
        if len(given) != 1:
            raise ValueError("name exactly one of `webhook`, `command` and `log`")
        if self.command == ():
            raise ValueError("command: write `command: [PROGRAM, ARGUMENT]`")
        if not 0 < self.seconds <= _LONGEST:
            raise ValueError(f"timeout: expected more than 0 s and at most {_LONGEST:.0f} s")

    @property
    def seconds(self) -> float:
        return seconds_in(self.timeout, "timeout")


class AlertRules(_Table, frozen=True, kw_only=True):
    example: ClassVar[str] = "write `alerts: {to: {log: {log: warning}}}`"

    limits: tuple[Percent, ...] = (50, 80, 100)
    """Percentages of each limit in dollars of apps and groups."""
    budgets: tuple[Percent, ...] = ()
    """Percentages of each budget of a narrowed token. Apps make these, and there may be many."""
    cache_read: CacheReadRule | None = None
    provider_down: bool = True
    """The circuit breaker of a provider is open."""
    to: dict[str, AlertTarget]


def checked_alerts(rules: AlertRules, apps: frozenset[str], origin: Origin) -> AlertRules:
    """Raises `InvalidConfig` for names that are invalid or unknown."""
    if not rules.to:
        raise origin.invalid("names no target; write `to: {log: {log: warning}}`", "alerts", "to")
    for name in rules.to:
        if not APP_ID.match(name):
            raise origin.invalid(
                "the name of a target has 1 to 64 letters, digits, dots, dashes and underscores,"
                " and begins with a letter or a digit",
                "alerts", "to", name,
            )  # fmt: skip
    for index, app in enumerate(rules.cache_read.apps if rules.cache_read else ()):
        if app not in apps:
            path = ("alerts", "cache_read", "apps", index)
            raise origin.invalid(f"this file has no app {quoted(app)}", *path)
    return rules


def is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
