"""The files of `anaphora ask`: its configuration, from which a provider and model are chosen, and
its stored conversations, one file each with one JSON object a line.

    {"settings": {"provider": "claude", "model": "…", "system": "…"}}     the last one holds
    {"message": {"role": "user", …}}
    {"message": {"role": "assistant", …}}
    {"last_call": {"at": …, "usage": …}}                                  the bill of the last call

Lines are only appended, so a crash costs at most the line it happened in. Files are readable only
by the user.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from anaphora import catalog
from anaphora.client.choice import ProviderChooser
from anaphora.client.config import ClientConfig, Hop
from anaphora.client.config.environment import (
    MAX_TOKENS,
    Environment,
    default_rows,
    some_variables,
)
from anaphora.client.config.resolve import ResolvedProvider, check, resolve_each
from anaphora.errors import InvalidConfig, InvalidRequest, Io, MissingSecret, Parse
from anaphora.prompt import Params
from anaphora.values import Message, StopReason, Usage, Value, from_json, to_json

from .common import user_folder
from .terminal import one_line

_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*\Z")
_SUFFIX = ".jsonl"
#: Characters of a question in the list.
_QUESTION = 60


class ConversationSettings(Value, frozen=True, kw_only=True):
    """How a conversation is held, until the next settings."""

    provider: str
    model: str | None = None
    system: str = ""
    tools: tuple[str, ...] = ()
    """As given: `module:function`."""
    emulated: bool = False


class LastCall(Value, frozen=True, kw_only=True):
    """The last call, which the next one is compared with."""

    provider: str
    model: str
    prefix_digest: str
    """Of system prompt and tools."""
    params: Params
    id: str
    served_model: str
    stop_reason: StopReason
    usage: Usage
    at: float
    first_token_at: float


class StoredLine(Value, frozen=True, kw_only=True):
    """Exactly one of these."""

    settings: ConversationSettings | None = None
    message: Message | None = None
    last_call: LastCall | None = None


class StoredConversation:
    """A conversation and its file, which is created with the first line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings: ConversationSettings | None = None
        self.messages: list[Message] = []
        self.last_call: LastCall | None = None
        """None when messages follow it."""
        self.torn = False
        """The last line is incomplete and was removed."""
        self._file: int | None = None

    @property
    def id(self) -> str:
        return self.path.name.removesuffix(_SUFFIX)

    def append(self, line: StoredLine, settings: ConversationSettings) -> None:
        """Write a line or nothing; before it the settings, if they changed."""
        lines = [line] if settings == self.settings else [StoredLine(settings=settings), line]
        try:
            for one in lines:
                self._write(to_json(one) + b"\n")
                self._apply(one)
        except OSError as problem:
            raise Io(f"{self.path}: cannot be written: {problem.strerror}") from None

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def open(self) -> None:
        """Read the file, and lock it until `close`."""
        try:
            file = self._open()
            data = self.path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                self.torn = True
                os.ftruncate(file, whole)
        except OSError as problem:
            raise Io(f"{self.path}: cannot be read: {problem.strerror}") from None
        self._read(data[:whole])
        if self.settings is None:
            raise Parse(f"{self.path}: names no provider")

    def peek(self) -> None:
        """Read the file without locking it."""
        data = self.path.read_bytes()
        self._read(data[: data.rfind(b"\n") + 1])

    def _read(self, data: bytes) -> None:
        for number, text in enumerate(data.splitlines(), 1):
            try:
                self._apply(from_json(text, StoredLine))
            except Parse as problem:
                raise Parse(f"{self.path}:{number}: {problem}") from None

    def _apply(self, line: StoredLine) -> None:
        if line.settings is not None:
            self.settings = line.settings
        if line.message is not None:
            self.messages.append(line.message)
            self.last_call = None
        if line.last_call is not None:
            self.last_call = line.last_call

    def _write(self, data: bytes) -> None:
        """Write all of it or nothing: a full disk leaves no partial line behind."""
        if self._file is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._open(os.O_CREAT | os.O_EXCL)
        assert self._file is not None
        before = os.fstat(self._file).st_size
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            os.ftruncate(self._file, before)
            raise

    def _open(self, flags: int = 0) -> int:
        file = self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | flags, 0o600)
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # on Windows, where two processes may use one conversation
            pass
        except BlockingIOError:
            raise InvalidRequest(
                f"conversation {self.id} is in use by another process; wait for it",
                path="--continue",
            ) from None
        return file


def new() -> StoredConversation:
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    return StoredConversation(_folder() / f"{name}{_SUFFIX}")


def find(id: str) -> StoredConversation:
    """The conversation with that id, or the only one whose id begins with it."""
    if not _ID.match(id):
        raise InvalidRequest(f"{id!r} is not an id; --list shows them", path="--conversation")
    paths = _paths()
    found = [path for path in paths if path.name == id + _SUFFIX]
    found = found or [path for path in paths if path.name.startswith(id)]
    if len(found) != 1:
        reason = f"{len(found)} conversations begin with it" if found else "no such conversation"
        raise InvalidRequest(f"{id}: {reason}; --list shows all of them", path="--conversation")
    return StoredConversation(found[0])


def latest(*, emulated: bool) -> StoredConversation:
    """The last conversation, with providers or with the emulator."""
    for path in _paths():
        settings = _peeked(path).settings
        if settings is not None and settings.emulated == emulated:
            return StoredConversation(path)
    where = " with the emulator" if emulated else ""
    raise InvalidRequest(f"there is no conversation{where} to continue", path="--continue")


def listing() -> list[dict[str, Any]]:
    """All conversations, the newest first; an unreadable one has no provider."""
    rows = []
    for path in _paths():
        stored = _peeked(path)
        settings = stored.settings
        rows.append(
            {
                "id": stored.id,
                "at": datetime.datetime.fromtimestamp(path.stat().st_mtime).astimezone(),
                "provider": settings and settings.provider,
                "model": settings and settings.model,
                "emulated": settings is not None and settings.emulated,
                "messages": len(stored.messages),
                "question": _question(stored),
                "readable": settings is not None,
            }
        )
    return rows


def _question(stored: StoredConversation) -> str:
    """The first question: attached files come before it in the message."""
    for message in stored.messages:
        if message.role == "user":
            texts = [part.text for part in message.parts if hasattr(part, "text")]
            return one_line(texts[-1], _QUESTION) if texts else ""
    return ""


def _peeked(path: Path) -> StoredConversation:
    stored = StoredConversation(path)
    with contextlib.suppress(OSError, Parse):
        stored.peek()
    return stored


def _folder() -> Path:
    return user_folder("XDG_DATA_HOME", ".local/share") / "conversations"


def _paths() -> list[Path]:
    found: list[tuple[int, Path]] = []
    for path in _folder().glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):  # it may have been deleted just now
            found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found, reverse=True)]


_FILE = "llm.yaml"
_VARIABLE = "ANAPHORA_CONFIG"

#: The emulator accepts any key; this one is not looked for in the environment.
_EMULATOR_KEY = {"ANAPHORA_EMULATED_KEY": "emulated"}
#: The emulated provider that is used without -p or -m.
_EMULATED_PROVIDER = "anthropic"


class AskConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration and its origin."""

    client: ClientConfig
    place: str
    """A file, `environment` or `emulator`."""
    environ: Mapping[str, str] | None = None
    """None: the process's own."""
    environment: Environment | None = None
    """Where the providers come from without a file; the chosen one is printed."""
    emulated: bool = False

    @property
    def chooser(self) -> ProviderChooser:
        if self.environment is not None:
            return ProviderChooser(self.environment.providers, (), self.environment)
        return ProviderChooser(check(self.client), self.client.routes)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.client.providers, *self.client.routes)


class ProviderChoice(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Of a provider or a route."""
    model: str | None
    """None: the hops of a route have their own."""
    providers: dict[str, ResolvedProvider]
    """Those that may be called."""
    routes: dict[str, tuple[Hop, ...]]


def find_config(named: Path | None) -> AskConfig:
    """The configuration from a file, or from the keys in the environment."""
    user_file = user_folder("XDG_CONFIG_HOME", ".config") / _FILE
    if named is None and (variable := os.environ.get(_VARIABLE)):
        named = Path(variable)
        if not named.is_file():
            raise InvalidConfig(f"${_VARIABLE} names {variable}, which does not exist")
    file = named or next((path for path in (Path(_FILE), user_file) if path.is_file()), None)
    if file is not None:
        return AskConfig(client=ClientConfig.read(file), place=str(file))
    environment = Environment()
    return AskConfig(
        client=environment.config,
        place="environment",
        environment=environment,
    )


def emulator_config(url: str) -> AskConfig:
    """Every provider of the catalog at the emulator."""
    (key,) = _EMULATOR_KEY
    names = dict.fromkeys((_EMULATED_PROVIDER, *default_rows()))
    common = {"key": {"env": key}, "max_tokens": MAX_TOKENS}
    providers = {name: common | {"dialect": name, "base_url": f"{url}/{name}"} for name in names}
    return AskConfig(
        client=ClientConfig.from_mapping({"providers": providers}),
        place="emulator",
        environ=_EMULATOR_KEY,
        emulated=True,
    )


def choose(
    config: AskConfig, provider: str | None, model: str | None, *, keys: bool = True
) -> ProviderChoice:
    """The provider or route, and the model. Without `keys`, missing keys are no error."""
    if provider is None and model is None:
        name = _first(config)
    else:
        try:
            name, model = config.chooser.choose(provider, model)
        except InvalidRequest as error:
            raise InvalidRequest(error.reason, path="-m" if provider is None else "-p") from None
    client = config.client
    if name in client.routes:
        routes = {name: client.routes[name]}
        needed = {hop.provider for hop in client.routes[name]}
    else:
        routes, needed = {}, {name}
        model = model or _default_model(config, name)
    if config.environment is not None:
        one = config.environment.find(name) if keys else config.environment.providers[name]
        return ProviderChoice(name=name, model=model, providers={name: one}, routes=routes)
    providers = {}
    for one, missing in resolve_each(client, environ=config.environ):
        if one.id in needed:
            if missing is not None and keys:
                raise missing
            providers[one.id] = one
    return ProviderChoice(name=name, model=model, providers=providers, routes=routes)


def split(config: AskConfig, model: str) -> tuple[str | None, str]:
    """`provider/model` taken apart; a model's name may contain a slash as well."""
    return config.chooser.named_by_prefix(model) or (None, model)


def models_of(config: AskConfig, name: str) -> tuple[str, ...]:
    """A provider's models: those in its configuration, or the catalog's."""
    provider = config.client.providers.get(name)
    if provider is None:
        return ()
    if provider.known_models:
        return provider.known_models
    listed = tuple(profile.id for profile in catalog.models(check(config.client)[name].system))
    return listed if provider.model in (None, *listed) else (provider.model or "", *listed)


def _first(config: AskConfig) -> str:
    """The provider or route that is used when none is named, nor a model."""
    if config.environment is not None and not config.names:
        user_file = user_folder("XDG_CONFIG_HOME", ".config") / _FILE
        raise MissingSecret(
            f"no provider is configured: no llm.yaml (looked for ./{_FILE}, {user_file}), and no"
            f" key in the environment ({some_variables()}). Set one, write an llm.yaml, or use the"
            " emulator: anaphora ask --emulate"
        )
    if not config.names:
        # Raises with the file's name.
        check(config.client)
    return config.names[0]


def _default_model(config: AskConfig, name: str) -> str:
    """The configured model; without a configuration, the catalog's first."""
    provider = config.client.providers.get(name)
    model = None if provider is None else provider.model
    if model is None and (config.environment is not None or config.emulated):
        model = catalog.default_model(name, datetime.datetime.now(datetime.UTC).date())
    if model is None:
        listed = models_of(config, name)[:3]
        known = f": {', '.join(listed)}, …" if listed else ""
        raise InvalidRequest(f"choose a model of {name} with -m{known}")
    return model
