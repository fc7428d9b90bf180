"""One thing that a call may ask for."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from support.call_views import See
from support.feature_calls import Make


class Feature(NamedTuple):
    group: str
    name: str
    make: Make
    see: See
    about: str = ""
    """The path of what is asked: a notice that tells its loss names it, or something it is in."""

    @property
    def owned(self) -> bool:
        """It belongs to the wire that it is made for."""
        return self.name.endswith("its own")


Row: TypeAlias = tuple[str, Make, See] | tuple[str, Make, See, str]


def rows(group: str, *table: Row) -> list[Feature]:
    return [Feature(group, *row) for row in table]
