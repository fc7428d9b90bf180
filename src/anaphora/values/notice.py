"""What could not be said, or was said otherwise than asked: told in the result, never logged."""

from __future__ import annotations

import msgspec


class Notice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One remark. `code` is for programs, `message` for people, `path` says where."""

    code: str
    message: str
    path: str = ""
    tokens: int | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message
