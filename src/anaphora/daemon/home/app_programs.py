"""Known programs as apps of a daemon: the grant that each needs, and how to start it.

program = programs()["claude-code"]
setup = program_setup(program, "my-claude", config, url="http://127.0.0.1:7707")
setup.yaml                              the grant, for extensions.yaml
setup.environment(token)                variables to start the program with
"""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from anaphora.catalog.values import decode_structs, read_toml
from anaphora.client.config import ClientConfig
from anaphora.client.config.resolve import check
from anaphora.client.config.secrets import ResolvedProvider, Secret
from anaphora.daemon.access.checks import is_granted
from anaphora.daemon.access.granted_models import models_of
from anaphora.errors import InvalidConfig, InvalidRequest
from anaphora.redaction import quoted
from anaphora.yaml_values import nearest

from .extensions import Grants

_FILE = "app_programs.toml"
_USD_PER_DAY = 25.0
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
#: Unquoted words that YAML reads as other values.
_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))


class AppProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row of app_programs.toml, which describes the fields."""

    name: str
    title: str
    wires: tuple[str, ...]
    command: tuple[str, ...]
    max_tokens: int
    every_wire: bool = False
    avoid: dict[str, tuple[str, ...]] = {}
    allow: tuple[str, ...] = ()
    betas: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    by_wire: dict[str, dict[str, str]] = {}
    translated: dict[str, str] = {}
    """Additional variables if no provider speaks a wire of the program."""
    choose: tuple[str, ...] = ()
    files: dict[str, str] = {}
    model: dict[str, str] = {}


class ProgramSetup(msgspec.Struct, frozen=True, kw_only=True):
    """A program as an app of one daemon."""

    program: AppProgram
    app: str
    url: str
    grant: dict[str, Any]
    """The app's entry in extensions.yaml, as JSON values."""
    yaml: str
    model: str
    """Name of the model that the program uses; empty if llm.yaml names none."""
    wires: tuple[str, ...]
    """The program's wires that granted providers speak; empty: the daemon translates."""

    def environment(self, token: Secret) -> dict[str, str]:
        """Variables to start the program with; one of them holds the token."""
        program = self.program
        found = dict(program.variables)
        for name in self.wires or program.wires[:1]:
            found |= program.by_wire.get(name, {})
        if not self.wires:
            found |= program.translated
        values = {"{url}": self.url, "{token}": token.reveal(), "{model}": self.model}
        return {
            name: _replaced(text, values)
            for name, text in found.items()
            if self.model or "{model}" not in text
        }

    @property
    def command(self) -> list[str]:
        values = {"{url}": self.url, "{model}": self.model}
        words = self.program.command + (self.program.choose if self.model else ())
        return [_replaced(word, values) for word in words]


class ModelMaker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A provider whose model names are known by pattern. For other providers, all models are
    granted."""

    provider: str
    models: str
    embeddings: str = ""


class _Tables(NamedTuple):
    programs: dict[str, AppProgram]
    makers: dict[str, ModelMaker]


def _read_tables() -> _Tables:
    data = pkgutil.get_data(__package__, _FILE)
    assert data is not None
    rows, makers = decode_structs(
        read_toml(data.decode(), _FILE), _FILE, program=AppProgram, maker=ModelMaker
    )
    return _Tables({row.name: row for row in rows}, {row.provider: row for row in makers})


_TABLES = _read_tables()


def programs() -> dict[str, AppProgram]:
    """All programs by their names."""
    return _TABLES.programs


def program_setup(program: AppProgram, app: str, config: ClientConfig, *, url: str) -> ProgramSetup:
    """Raises `InvalidConfig` if `app` cannot be an app's id."""
    known = check(config)
    chosen = {name: list(_speaking(known, name, program)) for name in program.wires}
    wires = [name for name in program.wires if chosen[name]]
    if not program.every_wire:
        wires = wires[:1]
    providers = [one for name in wires for one in chosen[name]] or list(known.values())
    first = wires[0] if wires else program.wires[0]
    model = next(filter(None, map(_model_of, providers)), "")
    template = program.model.get(first, "{model}")
    grant = _grant(program, providers)
    text = grant_yaml(app, grant)
    Grants.from_text(text, "the grant", config)
    return ProgramSetup(
        program=program,
        app=app,
        url=url,
        grant=grant,
        yaml=text,
        model=template.replace("{model}", model) if model else "",
        wires=tuple(wires),
    )


def model_grant(
    models: Sequence[str], usd_per_day: Decimal, config: ClientConfig
) -> dict[str, Any]:
    """A grant of some models, by globs, at all providers that have one of them. Raises
    `InvalidRequest` for a glob without a model."""
    known = {
        id: None if one.provider.base_url else models_of(one) or None
        for id, one in check(config).items()
    }  # a server at the user's own address may have any model
    for pattern in models:
        if not any(_has(names, pattern) for names in known.values()):
            near = nearest(pattern, {name for names in known.values() for name in names or ()})
            hint = f"; did you mean {near}?" if near else ""
            reason = f"{quoted(pattern)} matches no model of the providers in llm.yaml{hint}"
            raise InvalidRequest(reason, path="--models")
    llm = {
        "providers": [id for id, names in known.items() if any(_has(names, one) for one in models)],
        "models": list(models),
        "usd_per_day": usd_per_day,
    }
    return {"capabilities_grant": ["llm_complete", "llm_stream"], "llm": llm}


def _has(names: Iterable[str] | None, pattern: str) -> bool:
    return names is None or any(is_granted(name, (pattern,)) for name in names)


def with_grant(text: str, file: str, app: str, added: str, config: ClientConfig) -> str:
    """The text of extensions.yaml with the YAML of a grant appended. Raises `InvalidConfig` if the
    app already has a grant or the result is invalid."""
    if app in Grants.from_text(text, file, config).apps:
        raise InvalidConfig(f"has a grant for {app} already; edit it there", file=file)
    gap = "\n" if not text or text.endswith("\n") else "\n\n"
    changed = f"{text}{gap}{added}"
    try:
        Grants.from_text(changed, file, config)
    except InvalidConfig:
        reason = "the grant cannot be added at its end; without --write it is printed instead"
        raise InvalidConfig(reason, file=file) from None
    return changed


def _speaking(
    known: Mapping[str, ResolvedProvider], wire: str, program: AppProgram
) -> Iterator[ResolvedProvider]:
    avoided = program.avoid.get(wire, ())
    for one in known.values():
        own = one.wire if one.dialect is None else one.dialect.wire
        if own == wire and one.system not in avoided:
            yield one


def _model_of(one: ResolvedProvider) -> str:
    return one.provider.model or next(iter(one.provider.known_models), "")


def _grant(program: AppProgram, providers: Iterable[ResolvedProvider]) -> dict[str, Any]:
    listed = list(providers)
    models: dict[str, None] = {}
    for one in listed:
        maker = _TABLES.makers.get(one.system)
        models |= dict.fromkeys(
            one.provider.known_models or ("*" if maker is None else maker.models,)
        )
        if "embeddings" in program.allow and maker is not None and maker.embeddings:
            models[maker.embeddings] = None
    allow: list[Any] = list(program.allow)
    allow += [{"betas": list(program.betas)}] if program.betas else []
    allow += [{"fields": list(program.fields)}] if program.fields else []
    llm: dict[str, Any] = {
        "providers": [one.id for one in listed],
        "models": ["*"] if "*" in models else list(models),
        "max_tokens": program.max_tokens,
        "over_max_tokens": "clamp",
        "usd_per_day": _USD_PER_DAY,
        "tools": ["*"],
    }
    if allow:
        llm["allow"] = allow
    return {"capabilities_grant": ["llm_complete", "llm_stream"], "llm": llm}


def grant_yaml(app: str, grant: dict[str, Any]) -> str:
    """The grant as an entry of extensions.yaml."""
    lines = [f"{_text(app)}:"]
    lines.append(f"  capabilities_grant: {_value(grant['capabilities_grant'])}")
    lines.append("  llm:")
    for name, value in grant["llm"].items():
        lines.append(f"    {name}: {_value(value)}")
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_value(one)}" for name, one in value.items())
    if isinstance(value, float | Decimal):  # dollars
        whole, _, part = f"{Decimal(str(value)):f}".partition(".")
        return f"{whole}.{part.ljust(2, '0')}"
    return _text(value) if isinstance(value, str) else str(value)


def _text(text: str) -> str:
    is_plain = _PLAIN.fullmatch(text) is not None and text.lower() not in _WORDS
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def _replaced(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text
