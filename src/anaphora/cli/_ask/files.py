"""Files that go with a question: texts in labelled blocks, images and PDFs as what they are."""

from __future__ import annotations

import mimetypes
import sys
from collections.abc import Iterable
from pathlib import Path

from anaphora.errors import InvalidRequest, Io
from anaphora.values import Audio, Bytes, Document, Image, Part, Text

#: No provider takes more in one request.
_LARGEST = 20 * 1024 * 1024
_STDIN = "-"


def parts_of(files: Iterable[str]) -> tuple[Part, ...]:
    return tuple(part_of(file) for file in files)


def part_of(file: str) -> Part:
    """What a file is said as; `-` is standard input."""
    data = _read(file)
    name = "stdin" if file == _STDIN else Path(file).name
    kind = mimetypes.guess_type(name)[0] or ""
    if kind.startswith("image/") and kind != "image/svg+xml":
        return Image(source=Bytes(data, kind))
    if kind.startswith("audio/"):
        return Audio(source=Bytes(data, kind))
    if kind == "application/pdf":
        return Document(source=Bytes(data, kind), title=name)
    return Text(_labelled(name, _text(data, file)))


def standard_input() -> str:
    """All of it, as text."""
    return _text(_read(_STDIN), _STDIN)


def _labelled(name: str, text: str) -> str:
    # A quote in a file's name must not end the label.
    label = name.replace('"', "'")
    end = "" if text.endswith("\n") else "\n"
    return f'<file name="{label}">\n{text}{end}</file>\n'


def _read(file: str) -> bytes:
    try:
        if file == _STDIN:
            data = sys.stdin.buffer.read(_LARGEST + 1)
        else:
            with Path(file).open("rb") as opened:
                data = opened.read(_LARGEST + 1)
    except OSError as problem:
        raise Io(f"{file}: cannot be read: {problem.strerror or problem}") from None
    if len(data) > _LARGEST:
        raise InvalidRequest(
            f"larger than {_LARGEST // 1024**2} MiB, which no provider takes; ask about a part",
            path=_shown(file),
        )
    return data


def _text(data: bytes, file: str) -> str:
    try:
        if b"\0" in data:
            raise ValueError
        return data.decode("utf-8-sig")
    except ValueError:
        raise InvalidRequest(
            "neither text (UTF-8) nor an image, a sound or a PDF by its name; convert it first",
            path=_shown(file),
        ) from None


def _shown(file: str) -> str:
    return "standard input" if file == _STDIN else file
