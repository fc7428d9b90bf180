"""Reading `llm.yaml`: what it says, or what is wrong with it, by line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anaphora.errors import InvalidConfig, Io
from anaphora.marked import Lines, Marked, decode

from .origin import Origin
from .values import Config

#: A configuration is not that long; whatever is was named by mistake.
_LARGEST = 4 * 1024 * 1024


def read(path: str | os.PathLike[str]) -> Config:
    """What a file says."""
    file = os.fspath(path)
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(_LARGEST + 1)
    except OSError as problem:
        raise Io(f"{file}: cannot be read: {problem.strerror or problem}") from None
    if len(data) > _LARGEST:
        raise InvalidConfig(f"longer than {_LARGEST:,} bytes", file=file)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise InvalidConfig("not UTF-8", file=file, line=line) from None
    return read_text(text, file)


def read_text(text: str, file: str = "<text>") -> Config:
    """What a file of that name would say."""
    whole = Marked.read(text, file, _invalid)
    return _decoded(whole or Marked.of({}, file, _invalid), file)


def from_data(data: Mapping[str, Any]) -> Config:
    """The same from values that are in no file."""
    return _decoded(Marked.of(dict(data), "", _invalid), "")


def _decoded(whole: Marked, file: str) -> Config:
    lines: Lines = {}
    config = decode(whole, Config, lines)
    # Beside the fields: two configurations that say the same are equal, wherever they stand.
    config.__dict__["origin"] = Origin(file, lines)
    return config


def _invalid(reason: str, file: str, line: int | None) -> InvalidConfig:
    return InvalidConfig(reason, file=file, line=line)
