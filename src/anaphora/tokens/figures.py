"""The measured figures of framing.toml, decoded strictly and read on first use."""

from __future__ import annotations

import datetime
import functools
import pkgutil
from typing import Annotated, Literal, TypeAlias

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
    models: tuple[str, ...] = ()
    """Beginnings of model ids; without any, the row is for all others."""
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


class Output(_Row, frozen=True, kw_only=True):
    """The schema of the answer, counted as JSON."""

    error: Share


class Dress(_Row, frozen=True, kw_only=True):
    """The JSON around a block."""

    bytes: Whole


class Unseen(_Row, frozen=True, kw_only=True):
    """Tokens that are billed without a byte in the request."""

    when: Literal["prompt", "tools"]
    wire: str | None = None
    """None: on every wire that has no row of its own."""
    tokens: Whole
    most: Whole

    @property
    def count(self) -> Count:
        return Count(self.tokens, 0, self.most)


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
    output: Output
    dress: Dress
    unseen: tuple[Unseen, ...]
    media: Media
    encrypted: Encrypted


@functools.cache
def figures() -> _Figures:
    data = pkgutil.get_data(__package__, "framing.toml")
    assert data is not None, "framing.toml comes with the package"
    return msgspec.toml.decode(data, type=_Figures)


def framing(wire: str, profile: Profile) -> Framing:
    """How a model's prompts are framed on a wire."""
    model = profile.id.rpartition("/")[2]
    rows = [row for row in figures().framing if row.wire == wire]
    for row in sorted(rows, key=lambda row: not row.models):
        if not row.models or model.startswith(row.models):
            return row
    known = ", ".join(sorted({row.wire for row in figures().framing}))
    raise InvalidRequest(
        f"how prompts are framed is measured on {known}, not on {wire};"
        " count without a tokenizer there",
        path="tokenizer",
    )


@functools.cache
def unseen(when: Literal["prompt", "tools"], wire: str) -> Count:
    """What a prompt, or having tools, costs beyond its bytes."""
    rows = [row for row in figures().unseen if row.when == when and row.wire in (None, wire)]
    return max(rows, key=lambda row: row.wire is not None).count
