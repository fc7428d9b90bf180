"""Configurations that nobody wrote: from the usual variables for keys, or for the emulator."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping

from anaphora import catalog
from anaphora.catalog import Dialect
from anaphora.client.config.values import ClientConfig

#: The variables of those that do not call theirs NAME_API_KEY.
_VARIABLES = {
    "alibaba": ("DASHSCOPE_API_KEY",),
    "google": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "huggingface": ("HF_TOKEN",),
}

#: Room for a long answer on wires that demand a limit. Nobody configured one, and an answer that is
#: cut off has to be paid for twice.
_ROOM = 8192

#: Any will do there, and it is in nobody's environment.
EMULATED = {"ANAPHORA_EMULATED_KEY": "emulated"}


def variables() -> dict[str, tuple[str, ...]]:
    """Where each provider's key usually is, for all that are found without an account's name."""
    return {
        row.provider: _VARIABLES.get(row.provider, (f"{row.provider.upper()}_API_KEY",))
        for row in _usual()
        # A server of one's own has no key that is worth looking for.
        if row.base_url.startswith("https:") and "{" not in row.base_url and row.auth != "none"
    }


def from_environment(environ: Mapping[str, str]) -> ClientConfig:
    """Every provider whose key is set, by its name in the catalog."""
    found = {
        provider: next((name for name in names if environ.get(name)), None)
        for provider, names in variables().items()
    }
    return ClientConfig.from_mapping(
        {
            "providers": {
                provider: {"dialect": provider, "key": {"env": name}, "max_tokens": _ROOM}
                for provider, name in found.items()
                if name is not None
            }
        }
    )


def for_emulator(url: str) -> ClientConfig:
    """Every provider of the catalog, as the emulator at that address has it. The first is the one
    whose cache shows most."""
    (key,) = EMULATED
    names = sorted((row.provider for row in _usual()), key=lambda name: name != "anthropic")
    return ClientConfig.from_mapping(
        {
            "providers": {
                name: {
                    "dialect": name,
                    "base_url": f"{url}/{name}",
                    "key": {"env": key},
                    "max_tokens": _ROOM,
                }
                for name in names
            }
        }
    )


def usual_model(provider: str, today: datetime.date) -> str | None:
    """The first that the catalog has of a provider and that still answers."""
    for profile in catalog.models(provider):
        if profile.retires is None or profile.retires.value > today:
            return profile.id
    return None


def _usual() -> Iterator[Dialect]:
    """The first row of each provider: its usual wire."""
    seen = set()
    for row in catalog.dialects().rows:
        if row.provider not in seen:
            seen.add(row.provider)
            yield row
