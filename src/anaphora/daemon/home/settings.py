"""The settings in the files of a home, reloaded when the files change.

files = SettingsFiles(home)
settings = files.load()                 raises if a file is invalid
if files.changed():
    settings = files.reload()           keeps the settings in force if a file is invalid

With a store in PostgreSQL the grants in force are those of its latest generation, whatever
extensions.yaml says: `files.use_generation(generation)`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from anaphora.client.config import ClientConfig
from anaphora.client.config.secrets import ResolvedProvider
from anaphora.daemon.access.isolation import SharedCache, shared_caches
from anaphora.errors import AnaphoraError, InvalidConfig

from . import Home
from .config import DaemonConfig, daemon_config
from .extensions import Grants
from .private_files import SeenFiles, signature, signature_of
from .secrets import SecretsFolder, resolve_providers

if TYPE_CHECKING:
    from anaphora.daemon.nodes.generations import GrantGeneration

Providers: TypeAlias = Mapping[str, ResolvedProvider]


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    home: Path
    host: str | None = None
    """Overrides the value of llm.yaml."""
    port: int | None = None
    strict: bool = False
    """Refuse to start if an app requires a capability that it is not granted."""
    allow_env_keys: bool = False
    share_port: bool = False
    """Let other daemons that share theirs listen at the same port."""
    resolve: Callable[[ClientConfig], Providers] | None = None
    """Replaces the addresses and keys of providers, for an emulator, which accepts any key."""
    clock: Callable[[], float] = time.time
    progress: Callable[[str], None] = lambda _: None
    """Gets messages for people while the start is delayed, because the database is unreachable."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """llm.yaml, extensions.yaml and the keys, checked against each other."""

    config: ClientConfig
    daemon: DaemonConfig
    providers: Providers
    grants: Grants

    def shared_caches(self) -> list[SharedCache]:
        """Apps that share the cache of an account without `share_cache`."""
        return shared_caches(self.grants.apps.values(), self.config.routes, self.providers)


class SettingsFiles:
    """Reads a home's files and detects changes."""

    def __init__(
        self,
        home: Home,
        *,
        allow_env: bool = False,
        resolve: Callable[[ClientConfig], Providers] | None = None,
    ) -> None:
        """`resolve` replaces the secrets folder, for an emulator, which accepts any key."""
        self._home = home
        self._allow_env = allow_env
        self._resolve = resolve
        self._secrets = SecretsFolder(home.secrets)
        self._seen: SeenFiles = {}
        self._settings: Settings | None = None
        self._latest: GrantGeneration | None = None
        self._is_read = True
        """Whether the latest generation was read, even if it could not be used."""
        self.generation: GrantGeneration | None = None
        """The generation of grants in force; None: the grants of extensions.yaml are."""
        self.problems: tuple[str, ...] = ()
        """Why the last reload kept earlier settings; empty if it did not."""

    @property
    def current(self) -> Settings:
        """The settings in force."""
        return self._settings or self.load()

    def load(self) -> Settings:
        """Raises `InvalidConfig`, `MissingSecret` and `Io`, with file and line."""
        self._note_files()
        config, daemon, providers = self._read_config()
        grants = Grants()
        if daemon.store is None or self._home.extensions_yaml.exists():
            grants = self._read_grants(config)
        self._settings = Settings(config=config, daemon=daemon, providers=providers, grants=grants)
        self.problems = ()
        return self._settings

    def changed(self) -> bool:
        """Whether files changed since the last read, successful or not. One system call per file,
        so that every request can check."""
        if not self._is_read or have_changed(self._seen):
            return True
        return have_changed(self._secrets.seen)

    def reload(self) -> Settings:
        """Reads the files and returns the settings in force. With an invalid llm.yaml or key,
        providers and keys are kept; with an invalid extensions.yaml, the grants; `problems` says
        so."""
        before = self._settings
        if before is None:
            return self.load()
        self._note_files()
        problems: list[AnaphoraError] = []
        config, daemon, providers = before.config, before.daemon, before.providers
        try:
            config, daemon, providers = self._read_config()
        except AnaphoraError as problem:
            problems.append(problem)
        grants = before.grants
        try:
            if self._latest is None:
                grants = self._read_grants(config)
            else:
                grants, found = self._stored_grants(self._latest, config)
                problems += found
        except AnaphoraError as problem:
            problems.append(problem)
        self.problems = tuple(map(str, problems))
        self._settings = Settings(config=config, daemon=daemon, providers=providers, grants=grants)
        return self._settings

    # ── Grants of the store ──────────────────────────────────────────────────────────────────────

    def use_generation(self, generation: GrantGeneration) -> None:
        """Uses a generation from the next `reload` on, unless it is older than the one in force."""
        if self._latest is None or generation.number > self._latest.number:
            self._latest, self._is_read = generation, False

    def _stored_grants(
        self, generation: GrantGeneration, config: ClientConfig
    ) -> tuple[Grants, list[AnaphoraError]]:
        """The grants of a generation, and the differences from this node's files."""
        self._is_read = True
        stored = Grants.from_text(generation.text, generation.name)
        self.generation = generation
        grants, problems = stored.known_to(config)
        path = self._home.extensions_yaml
        try:
            if path.exists() and not self._read_grants(config).equals(stored):
                text = (
                    f"differs from {generation.name} of the grants in the store, which all nodes"
                    " serve; apply this file with: anaphora grants apply, or replace it with the"
                    " output of: anaphora grants show"
                )
                problems.append(InvalidConfig(text, file=str(path)))
        except AnaphoraError as problem:
            problems.append(problem)
        return grants, problems

    def _note_files(self) -> None:
        """Called before reading, so that later changes are detected."""
        for path in (self._home.llm_yaml, self._home.extensions_yaml):
            self._seen[str(path)] = signature_of(path)

    def _read_grants(self, config: ClientConfig) -> Grants:
        self._home.check_file(self._home.extensions_yaml)
        return Grants.read(self._home.extensions_yaml, config)

    def _read_config(self) -> tuple[ClientConfig, DaemonConfig, Providers]:
        self._home.check_file(self._home.llm_yaml)
        config = self._home.config()
        daemon = daemon_config(config)
        if self._resolve is not None:
            return config, daemon, self._resolve(config)
        folder = SecretsFolder(self._home.secrets)
        try:
            providers = resolve_providers(
                self._home, config, allow_env=self._allow_env, folder=folder
            )
        finally:
            self._secrets = folder
        return config, daemon, providers


def have_changed(files: SeenFiles) -> bool:
    """Whether a file was written, replaced or removed since it was read."""
    for path, seen in files.items():
        try:
            if signature(os.stat(path, follow_symlinks=False)) != seen:
                return True
        except OSError:
            if seen is not None:
                return True
    return False


def effective_config(config: DaemonConfig, options: ServeOptions) -> DaemonConfig:
    """The daemon section with the command line's options applied. Raises `InvalidConfig` if they do
    not fit."""
    if options.share_port and not hasattr(socket, "SO_REUSEPORT"):
        raise InvalidConfig(
            "--share-port: this system has no SO_REUSEPORT; give each daemon a port of its own"
        )
    given = {"host": options.host, "port": options.port}
    try:
        return msgspec.structs.replace(
            config, **{name: value for name, value in given.items() if value is not None}
        )
    except ValueError as problem:
        raise InvalidConfig(str(problem)) from None
