"""The keys of providers, from `secrets/<NAME>.txt` in the home folder, read strictly.

    providers = resolve_providers(home, config)
    providers["anthropic-default"].secret

Keys stay out of the environment, argv, logs, errors and core dumps. The client reads the same files
less strictly (`client.config.secrets`): it warns where this refuses.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from anaphora.client.config import ClientConfig, Key
from anaphora.client.config.resolve import check
from anaphora.client.config.secrets import (
    KEY_TEXT,
    ResolvedProvider,
    Secret,
    SecretVariables,
    find_key,
)
from anaphora.client.credentials.choosing import CredentialSource
from anaphora.errors import InvalidConfig, InvalidRequest, MissingSecret
from anaphora.redaction import hides_arguments, shown_name
from anaphora.yaml_values import Origin

from .private_files import (
    SeenFiles,
    UnsafeFile,
    check_folder,
    read_private,
    signature_of,
    write_private,
)

if TYPE_CHECKING:
    from . import Home

SECRET_NAME = re.compile(r"[A-Z][A-Z0-9_]{1,63}\Z")
MAX_BYTES = 8192
#: The longest file of a cloud's credentials.
MAX_FILE_BYTES = 64 * 1024

_FINAL_BREAK = re.compile(r"\r?\n\Z")

_NAMES = "2 to 64 capital letters, digits and underscores, and begins with a letter"


def check_name(name: str) -> str:
    """The name of a secret. Raises `InvalidRequest` if it is invalid."""
    if not SECRET_NAME.match(name):
        # The value may be a key, given by mistake: not shown.
        raise InvalidRequest(f"{shown_name(name)!r}: the name of a secret has {_NAMES}")
    return name


@hides_arguments
def clean_key(content: Secret) -> Secret:
    """The key in a file's content or an input, without one final line break. Raises `UnsafeFile`;
    `{}` in its message is replaced by the source."""
    key = Secret(_FINAL_BREAK.sub("", content.reveal()))
    size = len(key.reveal().encode(errors="replace"))
    if not size:
        raise UnsafeFile("{} is empty")
    if size > MAX_BYTES:
        raise UnsafeFile(f"{{}} is longer than {MAX_BYTES:,} bytes")
    if not KEY_TEXT.match(key.reveal()):
        raise UnsafeFile("{} is not a key: it contains spaces, line breaks or non-ASCII")
    return key


class SecretsFolder:
    """`secrets/` of a home. Reads files on demand and notes their signatures."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seen: SeenFiles = {}
        """Signatures of the files that were read."""

    def path(self, name: str) -> Path:
        return self._folder / f"{check_name(name)}.txt"

    @hides_arguments
    def read(self, name: str) -> Secret:
        """Raises `MissingSecret`, which shows nothing of the content."""
        path = self.path(name)
        self.seen[str(path)] = signature_of(path)
        try:
            check_folder(self._folder)
            content, self.seen[str(path)] = read_private(path, MAX_BYTES + len("\r\n"))
            return clean_key(content)
        except UnsafeFile as problem:
            raise MissingSecret(str(problem).format(path)) from None

    @hides_arguments
    def write(self, name: str, content: Secret) -> Path:
        """Writes a secret by rename, with mode 0600. Raises `InvalidRequest` and `Io`."""
        path = self.path(name)
        try:
            key = clean_key(content)
        except UnsafeFile as problem:
            raise InvalidRequest(str(problem).format("the input")) from None
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_private(path, key)
        return path


@hides_arguments
def resolve_providers(
    home: Home,
    config: ClientConfig,
    *,
    allow_env: bool = False,
    folder: SecretsFolder | None = None,
) -> dict[str, ResolvedProvider]:
    """Every provider with its key or its credentials. Raises `MissingSecret` for the first one
    that is missing. Credentials of this machine are used only by entries that say so."""
    folder = folder or SecretsFolder(home.secrets)
    keys = _Keys(home, config.origin, folder, allow_env)
    source = CredentialSource(
        origin=config.origin,
        folder=home.path,
        variables=SecretVariables(),
        find_key=keys.find,
        ambient_by_default=False,
    )
    return {id: _with_key(one, keys, source) for id, one in check(config).items()}


def _with_key(one: ResolvedProvider, keys: _Keys, source: CredentialSource) -> ResolvedProvider:
    key = one.provider.key
    if key is None or one.provider.credentials is not None:
        credentials = source.of(one)
        keys.check_google_file(one)
        return msgspec.structs.replace(one, credentials=credentials)
    return msgspec.structs.replace(one, secret=keys.find(key, ("providers", one.id, "key")))


class _Keys(msgspec.Struct, frozen=True):
    """Finds the secrets that a configuration names."""

    _home: Home
    _origin: Origin
    _folder: SecretsFolder
    _allow_env: bool

    @hides_arguments
    def find(self, key: Key, path: tuple[str, ...]) -> Secret:
        origin, folder = self._origin, self._folder
        if key.env is not None:
            if not self._allow_env:
                raise origin.invalid(
                    f"{key} is in the environment, which every process of the user can read: write"
                    f" `{path[-1]}: {{secret: NAME}}` and store it with `anaphora secrets set"
                    " NAME`, or start with --allow-env-keys",
                    *path,
                )
            return find_key(key, Path(), SecretVariables(), origin=origin, path=path)
        assert key.secret is not None
        try:
            return folder.read(key.secret)
        except InvalidRequest as problem:
            raise origin.error(str(problem), *path, "secret", kind=InvalidConfig) from None
        except MissingSecret as problem:
            advice = ""
            if not folder.path(key.secret).exists():
                name = shown_name(key.secret)
                advice = f"; store it with: anaphora secrets set {name} --home {self._home.path}"
            raise origin.error(f"{problem}{advice}", *path, kind=MissingSecret) from None

    def check_google_file(self, one: ResolvedProvider) -> None:
        """Refuses a file of credentials that others may read."""
        given = one.provider.credentials
        if given is None or given.google is None or given.google.file is None:
            return
        file = self._home.path / given.google.file
        try:
            read_private(file, MAX_FILE_BYTES)
        except UnsafeFile as problem:
            path = ("providers", one.id, "credentials", "google", "file")
            reason = str(problem).format(file)
            raise self._origin.error(reason, *path, kind=MissingSecret) from None


@hides_arguments
def read_password(home: Home, name: str, field: str) -> Secret:
    """The password of a database, named by a field of the daemon section. Raises
    `InvalidConfig` and `MissingSecret`."""
    folder = SecretsFolder(home.secrets)
    try:
        return folder.read(name)
    except InvalidRequest as problem:
        raise InvalidConfig(f"daemon.{field}: {problem}", file=str(home.llm_yaml)) from None
    except MissingSecret as problem:
        advice = ""
        if not folder.path(name).exists():
            advice = f"; store it with: anaphora secrets set {name} --home {home.path}"
        reason = f"daemon.{field}: {problem}{advice}"
        raise MissingSecret(reason, file=str(home.llm_yaml)) from None


def disable_core_dumps() -> None:
    """Disables core dumps of this process, whose memory holds keys."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        import ctypes

        # A core dump piped to a program ignores the limit.
        pr_set_dumpable = 4
        if ctypes.CDLL(None, use_errno=True).prctl(pr_set_dumpable, 0, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "core dumps cannot be disabled")
