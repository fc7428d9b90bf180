"""Keys: where they are found, and a holder that does not show them.

Keys are in an environment variable or in a file `secrets/<NAME>.txt` beside the configuration, and
never in the configuration itself.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from anaphora.errors import MissingSecret

from .origin import Origin
from .values import Key

#: Keys are a line; a file that is longer than this is none.
_LONGEST = 16 * 1024

#: A key goes into a header: printable ASCII without blanks. All keys are like that.
_KEY = re.compile(r"[!-~]+\Z")


class Secret:
    """A text that is shown to whoever asks for it with `reveal()`, and nobody else."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "<secret>"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a secret is not written down")

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: Any) -> Secret:
        return self


def find_key(
    key: Key,
    folder: Path,
    environ: Mapping[str, str],
    *,
    origin: Origin | None = None,
    path: tuple[str, ...] = (),
) -> Secret:
    """The key; `origin` and `path` say who wants it, should it not be there."""

    def missing(reason: str) -> NoReturn:
        told = origin or Origin()
        raise told.error(reason, *path, kind=MissingSecret) from None

    found = environ.get(key.env) if key.env is not None else _in_file(key, folder, missing)
    if found is None:
        missing(f"the environment variable {key} is not set")
    value = found.rstrip("\r\n")
    if not value.strip():
        missing(f"{_where(key, folder)} is empty")
    if not _KEY.match(value):
        missing(f"{_where(key, folder)} holds more than a key: blanks, line breaks, or no ASCII")
    return Secret(value)


def exposed(key: Key, folder: Path) -> str | None:
    """What to say of a file that other users of the machine may read."""
    if key.secret is None or os.name != "posix":
        return None
    mode = stat.S_IMODE(_file(key, folder).stat().st_mode)
    if not mode & (stat.S_IRGRP | stat.S_IROTH):
        return None
    return f"{_where(key, folder)} may be read by others (mode {mode:03o}); chmod 600 keeps it"


def _file(key: Key, folder: Path) -> Path:
    return folder / "secrets" / f"{key.secret}.txt"


def _where(key: Key, folder: Path) -> str:
    return f"the environment variable {key}" if key.env is not None else str(folder / str(key))


def _in_file(key: Key, folder: Path, missing: Callable[[str], NoReturn]) -> str:
    where = _where(key, folder)
    file = _file(key, folder)
    try:
        if not file.is_file():
            missing(f"there is no file {where}")
        with file.open("rb") as opened:
            data = opened.read(_LONGEST + 1)
    except OSError as problem:
        missing(f"{where} cannot be read: {problem.strerror}")
    if len(data) > _LONGEST:
        missing(f"{where} is too long for a key")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        missing(f"{where} is not UTF-8")
