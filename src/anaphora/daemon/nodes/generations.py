"""The grants of all nodes: numbered texts in the format of `extensions.yaml`. The last is in force.

applied, is_new = await apply(lane, text, by="alice@node-1")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from blake3 import blake3

if TYPE_CHECKING:
    from anaphora.postgres.lane import Lane

_FIELDS = "number, digest, text, extract(epoch FROM applied_at)::float8 AS applied_at, applied_by"


class GrantGeneration(msgspec.Struct, frozen=True, kw_only=True):
    """A version of the grants. A node never goes back to an earlier one."""

    number: int
    digest: str
    text: str
    applied_at: float
    applied_by: str

    @property
    def name(self) -> str:
        """Used in place of a file's name in messages with a line."""
        return f"generation {self.number}"


def _generation(row: Any) -> GrantGeneration:
    return GrantGeneration(**dict(row))


async def latest(lane: Lane) -> GrantGeneration | None:
    found = await lane.fetchrow(
        f"SELECT {_FIELDS} FROM grant_generations ORDER BY number DESC LIMIT 1"
    )
    return None if found is None else _generation(found)


async def find(lane: Lane, number: int) -> GrantGeneration | None:
    found = await lane.fetchrow(
        f"SELECT {_FIELDS} FROM grant_generations WHERE number = $1", number
    )
    return None if found is None else _generation(found)


async def apply(
    lane: Lane, text: str, *, by: str, only_first: bool = False
) -> tuple[GrantGeneration, bool]:
    """Stores a text as the next generation. Also returns whether it is new: an unchanged text is
    not. With `only_first`, an existing generation stays in force."""
    digest = blake3(text.encode()).hexdigest()
    async with lane.transaction() as connection:
        # Concurrent texts get different numbers.
        await connection.execute("LOCK TABLE grant_generations IN SHARE ROW EXCLUSIVE MODE")
        before = await connection.fetchrow(
            f"SELECT {_FIELDS} FROM grant_generations ORDER BY number DESC LIMIT 1"
        )
        if before is not None and (only_first or before["digest"] == digest):
            return _generation(before), False
        row = await connection.fetchrow(
            "INSERT INTO grant_generations (number, digest, text, applied_by)"
            f" VALUES ($1, $2, $3, $4) RETURNING {_FIELDS}",
            1 if before is None else before["number"] + 1, digest, text, by,
        )  # fmt: skip
        return _generation(row), True
