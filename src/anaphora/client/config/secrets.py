"""Finding API keys, and a holder that does not show them.

Keys are in an environment variable or in a file `secrets/<NAME>.txt` next to the configuration,
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
from anaphora.yaml_values import Origin

from . import Key

#: A longer file is not a key.
_MAX_BYTES = 16 * 1024

#: A key is sent in a header: printable ASCII without spaces.
_KEY = re.compile(r"[!-~]+\Z")


class Secret:
    """A text that only `reveal()` shows: no repr, format or pickle does."""

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
        raise TypeError("a secret cannot be pickled")

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
    """The key; `origin` and `path` are the place in the configuration, for errors."""

    def missing(reason: str) -> NoReturn:
        raise (origin or Origin()).error(reason, *path, kind=MissingSecret) from None

    where = _where(key, folder)
    if key.env is not None:
        text = environ.get(key.env)
        if text is None:
            missing(f"{where} is not set")
    else:
        text = _read(_file(key, folder), where, missing)
    value = text.rstrip("\r\n")
    if not value.strip():
        missing(f"{where} is empty")
    if not _KEY.match(value):
        missing(f"{where} is not a key: it contains spaces, line breaks or non-ASCII")
    return Secret(value)


def permission_warning(key: Key, folder: Path) -> str | None:
    """A warning if other users of the machine may read the key's file."""
    if key.secret is None or os.name != "posix":
        return None
    mode = stat.S_IMODE(_file(key, folder).stat().st_mode)
    if not mode & (stat.S_IRGRP | stat.S_IROTH):
        return None
    return f"{_where(key, folder)} is readable by other users (mode {mode:03o}); run chmod 600"


def _file(key: Key, folder: Path) -> Path:
    return folder / "secrets" / f"{key.secret}.txt"


def _where(key: Key, folder: Path) -> str:
    return f"the environment variable {key}" if key.env is not None else str(folder / str(key))


def _read(file: Path, where: str, missing: Callable[[str], NoReturn]) -> str:
    try:
        if not file.is_file():
            missing(f"there is no file {where}")
        with file.open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            missing(f"{where} is too long for a key")
        return data.decode("utf-8-sig")
    except OSError as error:
        missing(f"{where} cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        missing(f"{where} is not UTF-8")
