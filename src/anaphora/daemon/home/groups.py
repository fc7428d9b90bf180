"""Sections of `extensions.yaml` that are not apps: `alerts`, and `groups`, the limits that several
apps share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from anaphora.client.config import Key
from anaphora.daemon.access.grants import APP_ID, AppGrant, GroupLimits
from anaphora.redaction import quoted
from anaphora.yaml_values import Origin, from_python, nearest

from .amounts import nano_dollars

Percent = Annotated[int, Meta(ge=1, le=100)]

SECTIONS = ("groups", "alerts")
"""Names at the top of the file that are no app's id."""


class GroupTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    example: ClassVar[str] = "write `NAME: {usd_per_day: 20.00}`"

    usd_per_day: float | str | None = None
    usd_per_month: float | str | None = None


class Webhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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


class AlertRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    example: ClassVar[str] = "write `alerts: {webhook: {url: https://…, key: {secret: NAME}}}`"

    limits: tuple[Percent, ...] = (50, 80, 100)
    """Percentages of each limit in dollars of apps and groups."""
    budgets: tuple[Percent, ...] = ()
    """Percentages of each budget of a narrowed token. Apps make these, and there may be many."""
    webhook: Webhook


def is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        host = (parts.hostname or "").encode("idna")
        return parts.scheme in ("http", "https") and bool(host) and parts.port != 0
    except ValueError:  # also of a port that is no number, and a host with an empty label
        return False


class Sections(msgspec.Struct, frozen=True, kw_only=True):
    groups: dict[str, GroupTable] | None = None
    """None: the file has no such section, and any name of a group is valid."""
    alerts: AlertRules | None = None


def split_sections(
    data: Mapping[str, Any], app_fields: tuple[str, ...], origin: Origin
) -> tuple[dict[str, Any], Sections]:
    """The apps of the file, and its other sections. An app with the name of a section is an
    error."""
    found = {name: data[name] for name in SECTIONS if name in data}
    for name, value in found.items():
        if isinstance(value, dict) and any(_is_of_app(value, field) for field in app_fields):
            raise origin.invalid(
                f"is a section of this file and cannot be an app's id; rename the app, for example"
                f" to {name}-app, and create a token for the new id with: anaphora apps add"
                f" {name}-app",
                name,
            )
    apps = {name: value for name, value in data.items() if name not in found}
    return apps, from_python(found, Sections, origin)


def _is_of_app(value: Mapping[str, Any], field: str) -> bool:
    """Whether a field is one of an app, and not a group of the same name."""
    inner = value.get(field)
    is_group = isinstance(inner, dict) and set(inner) <= set(GroupTable.__struct_fields__)
    return field in value and not is_group


def read_groups(tables: Mapping[str, GroupTable], origin: Origin) -> dict[str, GroupLimits]:
    return {name: _limits(name, table, origin) for name, table in tables.items()}


def _limits(name: str, table: GroupTable, origin: Origin) -> GroupLimits:
    path = ("groups", name)
    if not APP_ID.match(name):
        raise origin.invalid(
            "the name of a group has 1 to 64 letters, digits, dots, dashes and underscores, and"
            " begins with a letter or a digit",
            *path,
        )
    if table.usd_per_day is None and table.usd_per_month is None:
        raise origin.invalid(
            "a group needs a limit in dollars: write `usd_per_day: 20.00`, `usd_per_month: 200.00`"
            " or `usd_per_day: unlimited`",
            *path,
        )
    return GroupLimits(
        nano_usd_per_day=nano_dollars(table.usd_per_day, origin, *path, "usd_per_day"),
        nano_usd_per_month=nano_dollars(table.usd_per_month, origin, *path, "usd_per_month"),
    )


def with_group_limits(
    apps: Mapping[str, AppGrant], groups: Mapping[str, GroupLimits], origin: Origin
) -> dict[str, AppGrant]:
    """The apps with the limits of their groups. Raises `InvalidConfig` for an unknown group, and
    for one without apps."""
    used = {grant.group for grant in apps.values()}
    for name in groups:
        if name not in used:
            raise origin.invalid(f"no app has `group: {name}`", "groups", name)
    return {app: _in_group(grant, groups, origin) for app, grant in apps.items()}


def _in_group(grant: AppGrant, groups: Mapping[str, GroupLimits], origin: Origin) -> AppGrant:
    if not grant.group:
        return grant
    limits = groups.get(grant.group)
    if limits is None:
        near = nearest(grant.group, groups)
        advice = f"; did you mean {near}?" if near else ""
        raise origin.invalid(f"`groups` has no {quoted(grant.group)}{advice}", grant.app, "group")
    llm = msgspec.structs.replace(grant.llm, has_other_limit=limits.is_limited)
    return msgspec.structs.replace(grant, llm=llm, group_limits=limits)
