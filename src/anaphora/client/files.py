"""Reads the files of `Image.from_file`, `Document.from_file` and `Audio.from_file`."""

from __future__ import annotations

from pathlib import Path

from anaphora.errors import InvalidRequest

#: No provider takes a larger request.
MAX_FILE_BYTES = 50 * 2**20


def read_file(path: str | Path) -> bytes:
    """The content; an error names the path."""
    if not isinstance(path, str | Path):
        raise InvalidRequest(f"must be a path, not {type(path).__name__}", path="path")
    place = str(path)
    try:
        file = Path(path).expanduser()
        if not file.exists():
            raise InvalidRequest("there is no such file", path=place)
        if not file.is_file():
            raise InvalidRequest("is not a file", path=place)
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InvalidRequest(f"cannot be read: {reason}", path=place) from None
    if len(data) > MAX_FILE_BYTES:
        raise InvalidRequest(
            f"is larger than {MAX_FILE_BYTES >> 20} MB, which no provider takes in a request;"
            " upload it to the provider and use its FileId, or a URL",
            path=place,
        )
    return data
