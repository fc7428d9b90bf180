"""What the files of a home say, and what they say after a change.

files = SettingsFiles(home)
settings = files.load()                 raises where a file is invalid
if files.changed():
    settings = files.reload()           keeps what is in force where a file is invalid

With a store in PostgreSQL the grants in force are those of its latest generation, whatever
extensions.yaml says: `files.use_generation(generation)`.
"""

from __future__ import annotations

import os
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
    """Replaces that of llm.yaml."""
    port: int | None = None
    strict: bool = False
    """Refuse to start where an app requires a capability that it is not granted."""
    allow_env_keys: bool = False
    resolve: Callable[[ClientConfig], Providers] | None = None
    """Replaces the addresses and keys of providers: for an emulator, which takes any key."""
    clock: Callable[[], float] = time.time
    progress: Callable[[str], None] = lambda _: None
    """Gets lines for people while a start takes long: the database cannot be reached."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """llm.yaml, extensions.yaml and the keys, checked against each other."""

    config: ClientConfig
    daemon: DaemonConfig
    providers: Providers
    grants: Grants

    def shared_caches(self) -> list[SharedCache]:
        """Apps that share the cache of an account without saying so."""
        return shared_caches(self.grants.apps.values(), self.config.routes, self.providers)


class SettingsFiles:
    """Reads a home's files, and knows when one of them has changed."""

    def __init__(
        self,
        home: Home,
        *,
        allow_env: bool = False,
        resolve: Callable[[ClientConfig], Providers] | None = None,
    ) -> None:
        """`resolve` replaces the secrets folder: for an emulator, which takes any key."""
        self._home = home
        self._allow_env = allow_env
        self._resolve = resolve
        self._secrets = SecretsFolder(home.secrets)
        self._seen: SeenFiles = {}
        self._settings: Settings | None = None
        self._latest: GrantGeneration | None = None
        self._is_read = True
        """Whether the latest generation was read, be it that it could not be used."""
        self.generation: GrantGeneration | None = None
        """Of the grants in the store, in force; None: those of extensions.yaml are."""
        self.problems: tuple[str, ...] = ()
        """Why the last reload kept something that was in force; empty: it did not."""

    @property
    def current(self) -> Settings:
        """What is in force."""
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
        """Since the last read, successful or not. A system call a file: for every request."""
        return not self._is_read or have_changed({**self._seen, **self._secrets.seen})

    def reload(self) -> Settings:
        """What is in force from now on. A broken llm.yaml or key keeps providers and keys, a broken
        extensions.yaml keeps the grants; `problems` says so."""
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
        """From the next `reload` on. An older one than that in force is not used."""
        if self._latest is None or generation.number > self._latest.number:
            self._latest, self._is_read = generation, False

    def _stored_grants(
        self, generation: GrantGeneration, config: ClientConfig
    ) -> tuple[Grants, list[AnaphoraError]]:
        """Those of a generation, and where this node's files do not agree with it."""
        self._is_read = True
        stored = Grants.from_text(generation.text, generation.name)
        self.generation = generation
        grants, problems = stored.known_to(config)
        path = self._home.extensions_yaml
        try:
            if path.exists() and self._read_grants(config).apps != stored.apps:
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
        """Before they are read: what changes meanwhile is read again."""
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
    """The daemon section with the options of the command line."""
    given = {"host": options.host, "port": options.port}
    try:
        return msgspec.structs.replace(
            config, **{name: value for name, value in given.items() if value is not None}
        )
    except ValueError as problem:
        raise InvalidConfig(str(problem)) from None
