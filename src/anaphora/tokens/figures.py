"""The measured figures of framing.toml, decoded strictly and read on first use."""

from __future__ import annotations

import datetime
import functools
import pkgutil
from typing import Annotated, TypeAlias

import msgspec

from anaphora.catalog import Profile
from anaphora.errors import InvalidRequest

from .count import Count

Whole: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
Said: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    source: Said
    date: datetime.date


class Framing(_Row, frozen=True, kw_only=True):
    """Tokens around the texts of a prompt, on one wire."""

    wire: str
    role: str
    prompt: Whole
    """Once a prompt: what asks for the answer."""
    message: Whole
    call: Whole
    """On top of the call's name and arguments."""
    result: Whole
    """On top of its message."""
    parallel: Whole
    """Once a message that calls several tools."""
    tools: Whole
    """Once a prompt that has tools."""
    error: Share

    def about(self, tokens: int) -> Count:
        return Count.about(tokens, self.error)


class Media(_Row, frozen=True, kw_only=True):
    """What is billed by what it shows, not by its bytes."""

    tokens: Whole
    most: Whole

    def about(self, as_text: int) -> Count:
        """`as_text`: what the bytes would be as text, which a long document may come to."""
        return Count(self.tokens, 0, max(self.most, as_text))


class Encrypted(_Row, frozen=True, kw_only=True):
    """Reasoning as only the provider can read it."""

    bytes_per_token: Positive
    least_bytes_per_token: Positive

    def about(self, size: int) -> Count:
        return Count(
            round(size / self.bytes_per_token), 0, round(size / self.least_bytes_per_token)
        )


class _Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    framing: tuple[Framing, ...]
    media: Media
    encrypted: Encrypted


@functools.cache
def figures() -> _Figures:
    data = pkgutil.get_data(__package__, "framing.toml")
    assert data is not None, "framing.toml comes with the package"
    return msgspec.toml.decode(data, type=_Figures)


def framing(wire: str, profile: Profile) -> Framing:
    """How a model's prompts are framed on a wire."""
    role = "system" if profile.system_role is None else profile.system_role.value
    for row in figures().framing:
        if row.wire == wire and row.role == role:
            return row
    known = ", ".join(sorted({row.wire for row in figures().framing}))
    raise InvalidRequest(
        f"how prompts are framed is measured on {known}, not on {wire};"
        " count without a tokenizer there",
        path="tokenizer",
    )
