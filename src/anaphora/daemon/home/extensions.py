"""Reads `extensions.yaml`, the grants of all apps. Strict: deny by default.

    grants = Grants.read("extensions.yaml", config)
    grants.apps["marketing"].llm.nano_usd_per_day      5_000_000_000

Errors name file, line and field. A missing field grants nothing; no limit of an amount must be
written as `unlimited`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, get_args

import msgspec
from msgspec import Meta

from anaphora.client.config import ClientConfig, Count, Name, read_config_file
from anaphora.daemon.access.grants import (
    APP_ID,
    AppGrant,
    Capability,
    GroupLimits,
    LlmGrant,
    OverMaxTokens,
    Permission,
)
from anaphora.errors import AnaphoraError, InvalidConfig
from anaphora.redaction import hides_arguments, quoted, shown_name
from anaphora.yaml_values import Origin, from_python, nearest, read_yaml

from .amounts import UNLIMITED, nano_dollars
from .groups import AlertRules, read_groups, split_sections, with_group_limits

PERMISSIONS: tuple[Permission, ...] = get_args(Permission)

UserId = Annotated[int, Meta(ge=0, lt=2**32)]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all tables of the file."""


class _AllowedNames(_Table, frozen=True):
    """`betas: [...]` or `fields: [...]` in the list `allow`."""

    example: ClassVar[str] = "write `betas: [NAME]` or `fields: [NAME]`"

    betas: tuple[Name, ...] = ()
    fields: tuple[Name, ...] = ()


class LlmTable(_Table, frozen=True):
    example: ClassVar[str] = "write `llm: {providers: [ID], models: [NAME], usd_per_day: 5.00}`"

    providers: tuple[Name, ...] = ()
    models: tuple[Name, ...] = ()
    max_tokens: Count | None = None
    over_max_tokens: OverMaxTokens = "refuse"
    n: Count = 1
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    max_body_bytes: Count | None = None
    usd_per_day: float | str | None = None
    usd_per_month: float | str | None = None
    tools: tuple[Name, ...] = ()
    allow: tuple[_AllowedNames | str, ...] = ()
    approved_prompt: Name | None = None
    place_markers: bool = True
    share_cache: bool = False
    cold_above_usd: float | str | None = None

    def __post_init__(self) -> None:
        for word in self.allow:
            if isinstance(word, str) and word not in PERMISSIONS:
                there_are = f"{', '.join(PERMISSIONS)}, betas: [...], fields: [...]"
                raise ValueError(f"allow: {quoted(word)} is none of {there_are}")


class AppTable(_Table, frozen=True):
    example: ClassVar[str] = "write `capabilities_grant: [llm_complete]` and `llm: {...}` below it"

    requires: tuple[Capability, ...] = ()
    capabilities_grant: tuple[Capability, ...] = ()
    uids: tuple[UserId, ...] = ()
    group: Name | None = None
    llm: LlmTable = LlmTable()


class Grants(msgspec.Struct, frozen=True, kw_only=True):
    """The grants of all apps that are in force."""

    apps: Mapping[str, AppGrant] = {}
    groups: Mapping[str, GroupLimits] = {}
    alerts: AlertRules | None = None
    origin: Origin = Origin()

    @classmethod
    @hides_arguments
    def read(cls, path: str | os.PathLike[str], config: ClientConfig | None = None) -> Grants:
        """The grants in a file. With `config`, providers and routes must exist there."""
        return cls.from_text(read_config_file(path), os.fspath(path), config)

    @classmethod
    @hides_arguments
    def from_text(
        cls, text: str, file: str = "<text>", config: ClientConfig | None = None
    ) -> Grants:
        data, origin = read_yaml(text, file, dict[str, Any])
        return cls._checked(data, origin, config)

    @classmethod
    @hides_arguments
    def from_mapping(cls, data: Mapping[str, object], config: ClientConfig | None = None) -> Grants:
        return cls._checked(from_python(dict(data), dict[str, Any]), Origin(), config)

    @classmethod
    def _checked(cls, data: dict[str, Any], origin: Origin, config: ClientConfig | None) -> Grants:
        tables, sections = split_sections(data, AppTable.__struct_fields__, origin)
        apps: dict[str, AppGrant] = {}
        for app, table in from_python(tables, dict[str, AppTable], origin).items():
            reader = _AppReader(app, origin)
            apps[app] = reader.read(table)
            if config is not None:
                reader.check_providers(table.llm.providers, config)
        groups = read_groups(sections.groups or {}, origin)
        if sections.groups is not None:
            apps = with_group_limits(apps, groups, origin)
        return cls(apps=apps, groups=groups, alerts=sections.alerts, origin=origin)

    def group_of(self, app: str) -> str:
        """The group of an app; empty: none."""
        grant = self.apps.get(app)
        return "" if grant is None else grant.group

    def equals(self, other: Grants) -> bool:
        """Whether both say the same, wherever they were read."""
        return self.apps == other.apps and self.alerts == other.alerts

    def known_to(self, config: ClientConfig) -> tuple[Grants, list[AnaphoraError]]:
        """The grants without providers and routes missing in a configuration, and an error for
        each: a node serves what it can."""
        known, apps = {*config.providers, *config.routes}, dict(self.apps)
        problems: list[AnaphoraError] = []
        for app, grant in self.apps.items():
            names = grant.llm.providers
            if not known.issuperset(names):
                kept = tuple(name for name in names if name in known)
                llm = msgspec.structs.replace(grant.llm, providers=kept)
                apps[app] = msgspec.structs.replace(grant, llm=llm)
                problems += [
                    self.origin.invalid(
                        f"llm.yaml of this node has no provider or route {quoted(name)}",
                        app, "llm", "providers", index,
                    )
                    for index, name in enumerate(names)
                    if name not in known
                ]  # fmt: skip
        return msgspec.structs.replace(self, apps=apps), problems

    @property
    def unmet(self) -> dict[str, frozenset[str]]:
        """Apps with the capabilities that they require and are not granted."""
        return {app: grant.missing for app, grant in self.apps.items() if grant.missing}

    def warnings(self, token_apps: Collection[str]) -> tuple[str, ...]:
        """Valid settings that are probably mistakes. `token_apps` are the ids of apps with a
        token."""
        return tuple(
            f"{self.origin.file}:{self.origin.line(app)}: {shown_name(app)}: {reason}"
            for app, grant in self.apps.items()
            for reason in _doubts(grant, token_apps)
        )


def _doubts(grant: AppGrant, token_apps: Collection[str]) -> Iterator[str]:
    if grant.missing:
        names = ", ".join(sorted(grant.missing))
        yield f"requires {names}, which it is not granted: all its calls are refused"
    if grant.app not in token_apps:
        yield f"has no token; create one with: anaphora apps add {shown_name(grant.app)}"
    if "llm_complete" not in grant.capabilities:
        if "llm_stream" in grant.capabilities:
            yield "llm_stream is of no use without llm_complete"
        if grant.llm != LlmGrant():
            yield "has an llm section and no llm_complete in capabilities_grant"
        return
    if not grant.llm.providers:
        yield "llm.providers is empty: no provider is granted"
    if grant.llm.over_max_tokens == "clamp" and grant.llm.max_tokens is None:
        yield "llm.over_max_tokens has no effect without llm.max_tokens"
    if not grant.llm.models:
        yield "llm.models is empty: no model is granted"
    if (problem := grant.llm.prompt_problem) is not None:
        yield (
            f"llm.approved_prompt {problem}: all its calls are refused until it is replaced; print"
            " the value with: anaphora grants fingerprint REQUEST.json"
        )


class _AppReader(msgspec.Struct, frozen=True):
    _app: str
    _origin: Origin

    def _invalid(self, reason: str, *path: str | int) -> InvalidConfig:
        return self._origin.invalid(reason, self._app, *path)

    def read(self, table: AppTable) -> AppGrant:
        if not APP_ID.match(self._app):
            raise self._invalid(
                "an app's id has 1 to 64 letters, digits, dots, dashes and underscores, and begins"
                " with a letter or a digit"
            )
        if table.group is not None and not APP_ID.match(table.group):
            raise self._invalid(
                "the name of a group has 1 to 64 letters, digits, dots, dashes and underscores, and"
                f" begins with a letter or a digit, found {quoted(table.group)}",
                "group",
            )
        llm = table.llm
        per_day = self._nano_dollars(llm.usd_per_day, "usd_per_day")
        per_month = self._nano_dollars(llm.usd_per_month, "usd_per_month")
        has_limit = per_day is not None or per_month is not None or llm.usd_per_day == UNLIMITED
        if "llm_complete" in table.capabilities_grant and not has_limit:
            raise self._invalid(
                "llm_complete needs a limit in dollars: write `usd_per_day: 5.00`, or"
                " `usd_per_day: unlimited`",
                "llm",
            )
        named = [each for each in llm.allow if isinstance(each, _AllowedNames)]
        words = [each for each in PERMISSIONS if each in llm.allow]
        return AppGrant(
            app=self._app,
            capabilities=frozenset(table.capabilities_grant),
            requires=frozenset(table.requires),
            uids=frozenset(table.uids),
            group=table.group or "",
            llm=LlmGrant(
                providers=llm.providers,
                models=llm.models,
                max_tokens=llm.max_tokens,
                over_max_tokens=llm.over_max_tokens,
                n=llm.n,
                requests_per_minute=llm.requests_per_minute,
                tokens_per_minute=llm.tokens_per_minute,
                max_body_bytes=llm.max_body_bytes,
                nano_usd_per_day=per_day,
                nano_usd_per_month=per_month,
                tools=llm.tools,
                permissions=frozenset(words),
                betas=frozenset(name for each in named for name in each.betas),
                fields=frozenset(name for each in named for name in each.fields),
                approved_prompt=llm.approved_prompt,
                place_markers=llm.place_markers,
                share_cache=llm.share_cache,
                cold_above=self._nano_dollars(llm.cold_above_usd, "cold_above_usd"),
            ),
        )

    def _nano_dollars(self, value: float | str | None, *field: str) -> int | None:
        return nano_dollars(value, self._origin, self._app, "llm", *field)

    def check_providers(self, providers: tuple[str, ...], config: ClientConfig) -> None:
        known = [*config.providers, *config.routes]
        for index, name in enumerate(providers):
            if name not in known:
                near = nearest(name, known)
                advice = f"; did you mean {near}?" if near else ""
                raise self._invalid(
                    f"llm.yaml has no provider or route {quoted(name)}{advice}",
                    "llm", "providers", index,
                )  # fmt: skip
