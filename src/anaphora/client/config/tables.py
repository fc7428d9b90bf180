"""What the tables of `llm.yaml` share: their base, and the places of secrets."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from anaphora.redaction import could_be_secret

Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]
Dollars = Annotated[float, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1)]


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\Z")


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the tables of keys and credentials."""


class Key(Table, frozen=True):
    """The place of the key: an environment variable, or a file `secrets/<NAME>.txt` next to the
    configuration. Exactly one of the two."""

    example: ClassVar[str] = (
        "write `key: {env: NAME}` for an environment variable, or `key: {secret: NAME}` for the"
        " file secrets/NAME.txt"
    )

    env: Name | None = None
    secret: Name | None = None

    def __post_init__(self) -> None:
        if (self.env is None) == (self.secret is None):
            raise ValueError("name either `env` or `secret`")
        if self.env is not None and not _VARIABLE.match(self.env):
            raise ValueError(
                "env is the name of an environment variable, not the key itself: " + self.example
            )
        if self.secret is not None and not _FILE.match(self.secret):
            raise ValueError("secret is the plain name NAME of a file secrets/NAME.txt")

    def __str__(self) -> str:
        name = self.env or self.secret or ""
        # The key itself, written here by mistake, must not appear in an error or a log.
        shown = "…" if could_be_secret(name) else name
        return f"secrets/{shown}.txt" if self.env is None else f"${shown}"

    def __repr__(self) -> str:
        return f"Key({self})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("name", str(self))]
